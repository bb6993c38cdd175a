"""Every figure and table: what it shows, how that is made, and what measures it.

A figure's first function is of the files and returns plain data, or raises Missing. The second
draws the data with matplotlib. A table's returns lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from functools import partial
from typing import Callable, NamedTuple

from ladder.base import course
from ladder.show import claims, errors, memory, pipeline, rates, tables
from ladder.show.measured import WAYS, Data, Files, Missing
from ladder.show.style import Drawing, Pyplot

PAPER = "scripts/figures measure --grid paper"
SIM = "scripts/figures measure --sim"
DECODE = "scripts/figures measure --grid decode"
MODELS = "scripts/figures measure --grid models --peers flash,cudnn"


class Figure(NamedTuple):
    data: Callable[[Files], Data]
    draw: Callable[[Pyplot, Data], Drawing]
    command: str  # that measures it


FIGURES = {
    "speedup": Figure(rates.speedup, rates.draw_speedup, PAPER),
    **{f"tflops_{way}": Figure(partial(rates.tflops, direction=way), rates.draw_tflops, PAPER)
       for way in WAYS},
    "traffic": Figure(memory.traffic, memory.draw_traffic, SIM),
    "roofline": Figure(rates.roofline, rates.draw_roofline, PAPER),
    "decode": Figure(rates.decode, rates.draw_decode, DECODE),
    "block_size": Figure(memory.block_size, memory.draw_block_size, SIM),
    "access": Figure(pipeline.access, pipeline.draw_boxes, SIM),
    **{name: Figure(partial(pipeline.pipeline, name=name), pipeline.draw_boxes, SIM)
       for name in course.PIPELINES},
    "shared_roof": Figure(memory.shared_roof, memory.draw_shared_roof, f"{PAPER}, and {SIM}"),
    "error": Figure(errors.error, errors.draw_error, PAPER),
    "fp8_error": Figure(errors.fp8_error, errors.draw_fp8_error, SIM),
}


def figure_data(files: Files) -> dict[str, Data | None]:
    """What each figure shows, by its name; None where that is not measured."""
    data_of: dict[str, Data | None] = dict.fromkeys(FIGURES)
    for name, figure in FIGURES.items():
        with contextlib.suppress(Missing):
            # Six digits: what a figure can show, and the same on every machine.
            data_of[name] = json.loads(json.dumps(figure.data(files)),
                                       parse_float=lambda text: float(f"{float(text):.6g}"))
    return data_of


def digest(name: str, data: Data) -> str:
    text = json.dumps([name, data], sort_keys=True)
    return "ladder-sha256:" + hashlib.sha256(text.encode()).hexdigest()


# ---- tables ----

# Name → its lines, and the command that measures it.
TABLES: dict[str, tuple[Callable[[Files], list[str]], str]] = {
    "ladder": (partial(tables.ladder_table, root="", short=True), SIM),
    "peers": (tables.peers_table, PAPER),
    "models": (tables.models_table, MODELS),
    "claims": (claims.claims_table, ""),
    "steps": (partial(tables.ladder_table, root="../../"), SIM),
    "visits": (tables.visits_tables, SIM),
    "shared_roof": (memory.shared_roof_table, SIM), "plans": (tables.plans_table, SIM),
    "profile": (tables.profile_table, "scripts/figures profile"),
    **{f"hopper_{name}": (partial(tables.schedule_table, rung="05_flash_v2", first=first,
                                  last=last), "scripts/figures profile")
       for name, first, last in (("tools", "mma", "producer"), ("schedule", "producer", "sm90"))},
    "decode": (rates.decode_table, DECODE),
    "fp8_error": (errors.fp8_error_table, SIM),
    "fp8_times": (errors.fp8_times_table, PAPER),
    "hopper_steps": (partial(tables.steps_table, rung="05_flash_v2", first="mma", way="fwd",
                             peers=["cudnn"]), PAPER),
    **{name: (partial(tables.ratios_table, **arguments), PAPER)
       for name, arguments in course.RATIO_TABLES.items()},
}


def table(files: Files, name: str) -> str:
    lines, command = TABLES[name]
    try:
        return "\n".join(lines(files))
    except Missing:
        return f"*Not measured yet: `{command}` does it.*"
