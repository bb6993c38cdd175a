"""Lists every figure and table with its functions. A figure's first function takes a Files and
returns JSON-like data, or raises Missing; the second draws the data with matplotlib. A table's
function takes a Files and returns lines."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from typing import Callable, NamedTuple

from ladder.show import cards, errors, lessons, memory, pays, rates, tables
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
    # Each for one lesson, and only up to the last rung or step that its readers have met.
    **{f"speedup_{name}": Figure(partial(lessons.speedup, last=last), lessons.draw_speedup)
       for name, last in (("tiles", "01 thread_tile"), ("tensor_cores", "01 pipeline"))},
    "traffic_naive": Figure(partial(lessons.counts, rung="00_naive"), lessons.draw_counts),
    **{name: Figure(partial(lessons.until, figure=figure, items=items, last=last), draw)
       for name, figure, draw, items, last in (
           ("roofline_tiles", rates.roofline, rates.draw_roofline, "points", "01_tiled_matmul"),
           ("traffic_tensor_cores", memory.traffic, memory.draw_traffic, "lines",
            "01_tiled_matmul"),
           ("traffic_online", memory.traffic, memory.draw_traffic, "lines", "03_online_softmax"),
           ("block_size_flash_v1", memory.block_size, memory.draw_block_size, "lines",
            "04_flash_v1"))},
}


def figure_data(files: Files) -> dict[str, Data | None]:
    """Returns {figure's name: its data, or None if they are not measured}."""
    data_of: dict[str, Data | None] = dict.fromkeys(FIGURES)
    for name, figure in FIGURES.items():
        with contextlib.suppress(Missing):
            # Six digits are more than a figure shows, and are the same on every machine.
            data_of[name] = json.loads(json.dumps(figure.data(files)),
                                       parse_float=lambda text: float(f"{float(text):.6g}"))
    return data_of


# Name → function; "pays 05/rows" is about one step.
TABLES: dict[str, Callable[..., list[str]]] = {
    "ladder": tables.door_table, "headline": tables.headline,
    "beside": tables.beside_libraries, "findings": tables.findings,
    "peers": tables.peers_table, "models": tables.models_table,
    "steps": partial(tables.ladder_table, root="../../"),
    "flash_v2": partial(tables.steps_table, rung="05_flash_v2", first="swap", last="large_tiles",
                        root="../"),
    "backward_hopper": partial(tables.steps_table, rung="06_backward", first="wgmma", last="sm90",
                               root="../../"),
    **{f"hopper_{name}": partial(tables.schedule_table, rung="05_flash_v2", first=first, last=last)
       for name, first, last in (("tools", "large_tiles", "producer"),
                                 ("schedule", "producer", "sm90"))},
    "fp8_times": errors.fp8_times_table, "fp8_errors": errors.fp8_errors,
    "decoding": tables.decode_text, "pays": pays.pays, "cards": cards.cards_table,
}


def table(files: Files, name: str) -> str:
    """Returns the text of a table, or a sentence saying that it is not measured yet."""
    name, *step = name.split()
    try:
        return "\n".join(TABLES[name](files, *step))
    except Missing:
        return f"*Not measured yet: {HELP}.*"
