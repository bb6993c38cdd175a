"""Lists every figure and table with its functions.

For a figure, the first function takes Files and returns plain data, or raises Missing; the second
draws the data with matplotlib. For a table, one function takes Files and returns lines.
"""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Callable, NamedTuple

from ladder.show import cards, errors, lessons, memory, one_rung, pays, rates, tables
from ladder.show.measured import WAYS, Data, Files, Missing
from ladder.show.style import Drawing, Pyplot

HELP = "`scripts/figures measure --help` says how to measure it"


class Figure(NamedTuple):
    data: Callable[[Files], Data]
    draw: Callable[[Pyplot, Data], Drawing]


FIGURES = {
    "speedup": Figure(rates.speedup, rates.draw_speedup),
    "speedup_steps": Figure(rates.speedup_steps, rates.draw_speedup_steps),
    **{f"tflops_{way}": Figure(partial(rates.tflops, way=way), rates.draw_tflops)
       for way in WAYS},
    "traffic": Figure(memory.traffic, memory.draw_traffic),
    "roofline": Figure(rates.roofline, rates.draw_roofline),
    "decode": Figure(rates.decode, rates.draw_decode),
    "block_size": Figure(memory.block_size, memory.draw_block_size),
    "shared_roof": Figure(memory.shared_roof, memory.draw_shared_roof),
    "error": Figure(errors.error, errors.draw_error),
    "fp8_error": Figure(errors.fp8_error, errors.draw_fp8_error),
    # Of one lesson each.
    "speedup_tiles": Figure(
        partial(lessons.speedup_until, last=("01_tiled_matmul", "thread_tile")),
        lessons.draw_speedup_until),
    "speedup_tensor_cores": Figure(
        partial(lessons.speedup_until, last=("01_tiled_matmul", "pipeline")),
        lessons.draw_speedup_until),
    "roofline_tiles": Figure(
        partial(lessons.roofline_until, rung="01_tiled_matmul"), rates.draw_roofline),
    "traffic_tensor_cores": Figure(
        partial(lessons.traffic_until, rung="01_tiled_matmul"), memory.draw_traffic),
    "traffic_naive": Figure(partial(one_rung.counts, rung="00_naive"), one_rung.draw_counts),
    "traffic_online": Figure(
        partial(lessons.traffic_until, rung="03_online_softmax"), memory.draw_traffic),
    "block_size_flash_v1": Figure(
        partial(one_rung.block_size, rung="04_flash_v1"), memory.draw_block_size),
}


def figure_data(files: Files) -> dict[str, Data | None]:
    """Returns the data of each figure by its name, None for data that are not measured."""
    data_of: dict[str, Data | None] = dict.fromkeys(FIGURES)
    for name, figure in FIGURES.items():
        with contextlib.suppress(Missing):
            # Six digits are more than a figure shows, and are the same on every machine.
            data_of[name] = json.loads(json.dumps(figure.data(files)),
                                       parse_float=lambda text: float(f"{float(text):.6g}"))
    return data_of


# ---- tables ----

# Name → function; `pays` also takes one step, as in "pays 05/rows", for the step's lesson.
TABLES: dict[str, Callable[..., list[str]]] = {
    "ladder": tables.door_table, "headline": partial(tables.headline, whole=False),
    "beside": partial(tables.headline, whole=True), "peers": tables.peers_table,
    "models": tables.models_table,
    "steps": partial(tables.ladder_table, root="../../"),
    "flash_v2": partial(tables.steps_table, rung="05_flash_v2", first="swap", last="large_tiles"),
    **{f"hopper_{name}": partial(tables.schedule_table, rung="05_flash_v2", first=first, last=last)
       for name, first, last in (("tools", "large_tiles", "producer"),
                                 ("schedule", "producer", "sm90"))},
    "fp8_times": errors.fp8_times_table, "pays": pays.pays, "cards": cards.cards_table,
}


def table(files: Files, name: str) -> str:
    """Returns the text of a table, or a sentence that it is not measured yet."""
    name, *step = name.split()
    try:
        return "\n".join(TABLES[name](files, *step))
    except Missing:
        return f"*Not measured yet: {HELP}.*"
