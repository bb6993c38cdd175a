"""Every figure: what it shows, how that is drawn, and what measures it.

A figure's first function is of the files and returns plain data, or raises Missing. The second
draws the data with matplotlib.
"""

import functools
import hashlib
import inspect
import io
import json
import os
import re
import sys

from ladder.figures import (decode, errors, memory, names, pipeline, rates, shared_roof, style,
                            two_gpus)
from ladder.figures.measured import Missing
from ladder.files import write_whole

PAPER = "scripts/figures measure --grid paper"
SIM = "scripts/figures measure --sim"
DECODE = "scripts/figures measure --grid decode"
CLOCK = "scripts/figures clock"
FIGURES = {
    "speedup": (rates.speedup, rates.draw_speedup, PAPER),
    **{f"tflops_{way}": (functools.partial(rates.tflops, direction=way), rates.draw_tflops, PAPER)
       for way in ("fwd", "bwd", "both")},
    "traffic": (memory.traffic, memory.draw_traffic, SIM),
    "roofline": (rates.roofline, rates.draw_roofline, PAPER),
    "decode": (decode.decode, decode.draw_decode, DECODE),
    "two_gpus": (two_gpus.two_gpus, two_gpus.draw_two_gpus, PAPER),
    "workspace": (memory.workspace, memory.draw_workspace, SIM),
    "block_size": (memory.block_size, memory.draw_block_size, SIM),
    "access": (pipeline.access, pipeline.draw_boxes, SIM),
    "pipeline": (functools.partial(pipeline.pipeline, name="pipeline"), pipeline.draw_boxes, SIM),
    "pipeline_measured": (pipeline.pipeline_measured, pipeline.draw_boxes, CLOCK),
    "pipeline_bwd": (functools.partial(pipeline.pipeline, name="pipeline_bwd"),
                     pipeline.draw_boxes, SIM),
    "shared_roof": (shared_roof.shared_roof, shared_roof.draw_shared_roof, f"{PAPER}, and {SIM}"),
    "error": (errors.error, errors.draw_error, SIM),
    "fp8_error": (errors.fp8_error, errors.draw_fp8_error, SIM),
}


def figure_data(files, say=lambda text: None):
    """{name: data} of what can be drawn; says what is left out."""
    found = {}
    for name, (build, _, command) in FIGURES.items():
        try:
            # Six digits: what a figure can show, and the same on every machine.
            found[name] = json.loads(json.dumps(build(files)),
                                     parse_float=lambda text: float(f"{float(text):.6g}"))
        except Missing:
            say(f"{name} is left out: {command} measures it")
    return found


def digest(name, data):
    """Of the data and of the code that draws it."""
    code = [inspect.getsource(module) for module in (
        sys.modules[FIGURES[name][1].__module__], style, names)]
    text = json.dumps([name, data, code], sort_keys=True)
    return "ladder-sha256:" + hashlib.sha256(text.encode()).hexdigest()


def render(plt, name, data):
    """The SVG, with the digest inside."""
    figure = FIGURES[name][1](plt, data)
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={
        "Date": None, "Creator": None, "Title": data["title"], "Description": digest(name, data)})
    plt.close(figure)
    return out.getvalue()


def draw(files, out, only=None):
    """Writes what the files have of FIGURES (of `only` alone) into a folder, and says on stderr
    what is left out."""
    plt = style.pyplot()
    data = figure_data(files, lambda text: print(text, file=sys.stderr))
    os.makedirs(out, exist_ok=True)
    for name in FIGURES:
        path = os.path.join(out, f"{name}.svg")
        if name in data and name in (only or FIGURES):
            write_whole(path, render(plt, name, data[name]))
            print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
        elif name not in data and os.path.exists(path):
            os.unlink(path)
            print(f"Removed {os.path.relpath(path)}: no data for it any more.", file=sys.stderr)


def stale_figures(files, out):
    """Lines that say which of a folder do not show what the files say."""
    data = figure_data(files)
    for name in FIGURES:
        path = os.path.join(out, f"{name}.svg")
        text = ""
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                text = file.read()
        found = re.search("ladder-sha256:[0-9a-f]{64}", text)
        if name not in data and text:
            yield f"{os.path.relpath(path)} shows what the files no longer have"
        elif name in data and (not found or found[0] != digest(name, data[name])):
            yield f"{os.path.relpath(path)} is {'stale' if text else 'missing'}"
