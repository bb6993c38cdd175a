"""Cuts figures of rates.py and memory.py down to the steps that one lesson's readers have met."""

from __future__ import annotations

from typing import Callable

from ladder.show import memory, rates
from ladder.show.measured import HEADS, Data, Files, need
from ladder.show.style import Drawing, Pyplot, byte_tick, draw_lines, plots

# The panels of memory.traffic for one head size, in order: each one's line, its colour and marker.
COUNTS = (("requested", "#CC3311", "o"), ("distinct", "#0072B2", "s"), ("DRAM", "#009E73", "D"))


def until(files: Files, figure: Callable[[Files], Data], items: str, last: str) -> Data:
    """Returns a figure's data, in which the lists `items` of all panels ("bars", "lines" or
    "points") end with `last`, a rung or a step's label. Raises Missing if no panel has it."""
    data = figure(files)
    for panel in data["panels"]:
        ends = [i for i, one in enumerate(panel[items], 1) if last in (one["rung"], one["label"])]
        panel[items] = panel[items][:max(ends, default=0)]
    need(any(panel[items] for panel in data["panels"]))
    return data


def speedup(files: Files, last: str) -> Data:
    """Returns the bars of rates.speedup_steps up to the step labelled `last`, none of them pale."""
    data = until(files, rates.speedup_steps, "bars", last)
    return {**data, "panels": [
        {**panel, "bars": [{**bar, "default": True} for bar in panel["bars"]]}
        for panel in data["panels"] if panel["bars"]]}


def draw_speedup(plt: Pyplot, data: Data) -> Drawing:
    figure = rates.draw_speedup_steps(plt, data)
    figure.supxlabel("The scale is logarithmic.", x=0.012, ha="left", fontsize=8, color="#555555")
    return figure


def counts(files: Files, rung: str) -> Data:
    """Returns the lines of the ladder's first rung in memory.traffic: one panel per head size, with
    one line per kind of count."""
    panels = iter(until(files, memory.traffic, "lines", rung)["panels"])
    return {"title": f"HBM traffic of {rung.replace('_', ' ')} per head, counted in three ways "
                     f"({files.gpu.text()})", "panels": [
        {"title": f"d = {d}", "lines": [
            {**line, "label": name, "colour": colour, "marker": marker}
            for (name, colour, marker), panel in zip(COUNTS, panels) for line in panel["lines"]]}
        for d in HEADS]}


def draw_counts(plt: Pyplot, data: Data) -> Drawing:
    figure, pairs = plots(plt, data, (1.5 + 4.2 * len(data["panels"]), 4.2), sharey=True)
    amounts = [y for _, panel in pairs for line in panel["lines"] for y in line["y"]]
    for axis, panel in pairs:
        axis.set(yscale="log", ylim=(min(amounts) / 2, max(amounts) * 2))
        axis.yaxis.set_major_formatter(byte_tick)
        draw_lines(axis, panel["lines"])
    return figure
