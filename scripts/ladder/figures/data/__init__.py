"""What each figure shows: plain data, without matplotlib.

A figure is a function of the files, and of `missing`, which is told of each series that they do not
have. It returns what is drawn, or raises Missing.
"""

from ladder.figures.data.clock import pipeline_measured
from ladder.figures.data.errors import error, fp8_error
from ladder.figures.data.memory import block_size, traffic, workspace
from ladder.figures.data.missing import Missing
from ladder.figures.data.pair import two_gpus
from ladder.figures.data.rates import roofline, speedup, tflops
from ladder.figures.data.shared import shared_roof
from ladder.figures.data.traces import access, pipeline
from ladder.figures.names import PAPER_GRID

FIGURES = {
    "speedup": speedup,
    "tflops_fwd": lambda files, missing: tflops(files, missing, "fwd"),
    "tflops_bwd": lambda files, missing: tflops(files, missing, "bwd"),
    "tflops_both": lambda files, missing: tflops(files, missing, "both"),
    "traffic": traffic,
    "roofline": roofline,
    "two_gpus": two_gpus,
    "workspace": workspace,
    "block_size": block_size,
    "access": access,
    "pipeline": lambda files, missing: pipeline(files, missing, "pipeline"),
    "pipeline_measured": pipeline_measured,
    "pipeline_bwd": lambda files, missing: pipeline(files, missing, "pipeline_bwd"),
    "shared_roof": shared_roof,
    "error": error,
    "fp8_error": fp8_error,
}
OF_TIMES = ("speedup", "tflops_fwd", "tflops_bwd", "tflops_both", "roofline", "two_gpus",
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
    for name, build in FIGURES.items():
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
