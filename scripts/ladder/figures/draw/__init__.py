"""Drawing, with matplotlib, what the data of a figure say."""

import functools
import glob
import hashlib
import io
import json
import os
import re
import struct

from ladder.figures import names
from ladder.figures.draw.clock import draw_pipeline_measured
from ladder.figures.draw.errors import draw_error, draw_fp8_error
from ladder.figures.draw.memory import draw_block_size, draw_traffic, draw_workspace
from ladder.figures.draw.rates import (draw_roofline, draw_shared_roof, draw_speedup,
                                       draw_tflops)
from ladder.figures.draw.traces import draw_access, draw_pipeline
from ladder.figures.draw.two_gpus import draw_two_gpus

DRAW = {"speedup": draw_speedup, "tflops_fwd": draw_tflops, "tflops_bwd": draw_tflops,
        "tflops_both": draw_tflops, "traffic": draw_traffic, "roofline": draw_roofline,
        "two_gpus": draw_two_gpus, "workspace": draw_workspace, "block_size": draw_block_size, "access": draw_access,
        "pipeline": draw_pipeline, "pipeline_measured": draw_pipeline_measured,
        "pipeline_bwd": draw_pipeline, "shared_roof": draw_shared_roof, "error": draw_error,
        "fp8_error": draw_fp8_error}


def digest(name, data):
    """Of the data and of the code that draws it."""
    text = json.dumps([name, data, drawing_code()], sort_keys=True, ensure_ascii=False)
    return "ladder-sha256:" + hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def drawing_code():
    """All of this package, and how numbers on axes are written."""
    found = []
    for path in [*sorted(glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))),
                 names.__file__]:
        with open(path, encoding="utf-8") as file:
            found.append(file.read())
    return found


def render(plt, name, data):
    """{"svg": bytes, "png": bytes}, with the digest inside."""
    figure = DRAW[name](plt, data)
    found = {}
    for kind, metadata in (("svg", {"Date": None, "Creator": None, "Title": data["title"],
                                    "Description": digest(name, data)}),
                           ("png", {"Software": None, "Title": data["title"],
                                    "Description": digest(name, data)})):
        out = io.BytesIO()
        figure.savefig(out, format=kind, metadata=metadata)
        found[kind] = out.getvalue()
    plt.close(figure)
    return found


def stored_digest(path):
    """The digest in an SVG or a PNG, None where there is none."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    if path.endswith(".png"):
        at = 8
        while at + 8 <= len(data):
            length, kind = struct.unpack(">I4s", data[at:at + 8])
            if kind == b"tEXt" and data[at + 8:].startswith(b"Description\0"):
                return data[at + 20:at + 8 + length].decode("latin-1")
            at += 12 + length
        return None
    found = re.search(rb"ladder-sha256:[0-9a-f]{64}", data)
    return found and found[0].decode()
