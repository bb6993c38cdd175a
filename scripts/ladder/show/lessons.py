"""Figures of single lessons: cuts of the course's figures that show only what a reader has met."""

from __future__ import annotations

from ladder.show import memory, rates
from ladder.show.measured import Data, Files, Missing, StepKey, label
from ladder.show.style import Drawing, Pyplot


def speedup_until(files: Files, last: StepKey) -> Data:
    """The forward bars of rates.speedup_steps from the first step to `last`, whose lesson shows
    them."""
    data, end = rates.speedup_steps(files), label(last)
    panels = [panel for panel in data["panels"] if panel["title"].startswith("forward")]
    for panel in panels:
        names = [bar["label"] for bar in panel["bars"]]
        if end not in names:
            raise Missing(end)
        panel["bars"] = [{**bar, "default": True} for bar in panel["bars"][:names.index(end) + 1]]
    return {**data, "panels": panels}


def draw_speedup_until(plt: Pyplot, data: Data) -> Drawing:
    figure = rates.draw_speedup_steps(plt, data)
    figure.supxlabel("The scale is logarithmic.", x=0.012, ha="left", fontsize=8, color="#555555")
    return figure


def roofline_until(files: Files, rung: str) -> Data:
    """The points of rates.roofline that belong to `rung` and the rungs before it."""
    return until(rates.roofline(files), rung, "points")


def traffic_until(files: Files, rung: str) -> Data:
    """The lines of memory.traffic that belong to `rung` and the rungs before it."""
    return until(memory.traffic(files), rung, "lines")


def until(data: Data, rung: str, what: str) -> Data:
    """Data of a figure whose panels' lists named `what` end with a rung."""
    return {**data, "panels": [
        {**panel, what: [one for one in panel[what] if one["rung"] <= rung]}
        for panel in data["panels"]]}
