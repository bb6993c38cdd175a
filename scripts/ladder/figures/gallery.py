"""Every figure: what it shows, and how that is drawn.

A figure's first function is of the files, and of `missing`, which is told of each series that they
do not have: it returns plain data, or raises Missing. The second draws the data with matplotlib.
"""

import functools
import hashlib
import inspect
import io
import json
import os
import re
import sys

from ladder.figures import (decode, errors, memory, names, pipeline, pipeline_measured, rates,
                            shared_roof, style, two_gpus)
from ladder.figures.measured import Missing
from ladder.figures.names import PAPER_GRID
from ladder.files import write_whole

FIGURES = {
    "speedup": (rates.speedup, rates.draw_speedup),
    **{f"tflops_{way}": (functools.partial(rates.tflops, direction=way), rates.draw_tflops)
       for way in ("fwd", "bwd", "both")},
    "traffic": (memory.traffic, memory.draw_traffic),
    "roofline": (decode.roofline, rates.draw_roofline),
    "decode": (decode.decode, decode.draw_decode),
    "two_gpus": (two_gpus.two_gpus, two_gpus.draw_two_gpus),
    "workspace": (memory.workspace, memory.draw_workspace),
    "block_size": (memory.block_size, memory.draw_block_size),
    "access": (pipeline.access, pipeline.draw_access),
    "pipeline": (functools.partial(pipeline.pipeline, name="pipeline"), pipeline.draw_pipeline),
    "pipeline_measured": (pipeline_measured.pipeline_measured,
                          pipeline_measured.draw_pipeline_measured),
    "pipeline_bwd": (functools.partial(pipeline.pipeline, name="pipeline_bwd"),
                     pipeline.draw_pipeline),
    "shared_roof": (shared_roof.shared_roof, shared_roof.draw_shared_roof),
    "error": (errors.error, errors.draw_error),
    "fp8_error": (errors.fp8_error, errors.draw_fp8_error),
}
OF_TIMES = ("speedup", "tflops_fwd", "tflops_bwd", "tflops_both", "roofline", "decode", "two_gpus",
            "shared_roof")


def rounded(value):
    """Six digits: what a figure can show, and the same on every machine."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return value


def figure_data(files, say=lambda text: None):
    """{name: data} of what can be drawn; says what is left out."""
    found = {}
    if files.gpu.of_other_types:
        say(f"all figures: left out of them: {files.gpu.of_other_types} records that are not "
            f"{files.gpu.dtype}")
    for name, (build, _) in FIGURES.items():
        notes = []
        try:
            if name in OF_TIMES and not files.gpu.there:
                raise Missing(f"needs times, which a GPU gives: {PAPER_GRID}")
            found[name] = rounded(build(files, notes.append))
        except Missing as why:
            notes = notes if notes and str(why) == "nothing to show" else [*notes, str(why)]
            say(f"{name} is left out: {'; '.join(dict.fromkeys(notes))}")
            continue
        for note in dict.fromkeys(notes):
            say(f"{name}: left out of it: {note}")
    return found


def digest(name, data):
    """Of the data and of the code that draws it."""
    text = json.dumps([name, data, drawing_code(name)], sort_keys=True, ensure_ascii=False)
    return "ladder-sha256:" + hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def drawing_code(name):
    """The figure's own file and those of other figures that it draws with, what all of them share,
    and how numbers on axes are written."""
    own = FIGURES[name][1].__globals__.values()
    used = {value.__module__ for value in own if inspect.isfunction(value)}
    drawing = {draw.__module__ for _, draw in FIGURES.values()}
    return [inspect.getsource(sys.modules[module]) for module in sorted(used & drawing)] + [
        inspect.getsource(module) for module in (style, names)]


def render(plt, name, data):
    """The SVG, with the digest inside."""
    figure = FIGURES[name][1](plt, data)
    style.title_of(figure, data["title"])
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={
        "Date": None, "Creator": None, "Title": data["title"], "Description": digest(name, data)})
    plt.close(figure)
    return out.getvalue()


def stored_digest(path):
    """The digest in an SVG, None where there is none."""
    try:
        with open(path, "rb") as file:
            found = re.search(rb"ladder-sha256:[0-9a-f]{64}", file.read())
    except OSError:
        return None
    return found and found[0].decode()


def draw(files, out, only=None):
    """Writes what the files have of FIGURES (of `only` alone) into a folder, and removes what an
    earlier file had and this one has not. Says on stderr what is left out."""
    plt, wrote = style.pyplot(), []
    data = figure_data(files, lambda text: print(text, file=sys.stderr))
    os.makedirs(out, exist_ok=True)
    for name in FIGURES:
        path = os.path.join(out, f"{name}.svg")
        if name in data and name in (only or FIGURES):
            write_whole(path, render(plt, name, data[name]))
            wrote.append(name)
        elif name not in data and stored_digest(path):
            os.unlink(path)
            print(f"removed {os.path.relpath(path)}: no data for it any more", file=sys.stderr)
    print(f"Wrote {', '.join(wrote) or 'no figure'} (.svg) to {os.path.relpath(out)}.",
          file=sys.stderr)
