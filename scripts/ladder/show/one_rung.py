"""Figures of lessons that show one rung alone."""

from __future__ import annotations

from ladder.show import lessons, memory
from ladder.show.measured import HEADS, Data, Files, need
from ladder.show.style import Drawing, Pyplot, byte_tick, draw_lines, plots

# The counts of memory.traffic, in its order: what a line is called, and how it is drawn.
COUNTS = (("requested", "#CC3311", "o"), ("distinct", "#0072B2", "s"), ("DRAM", "#009E73", "D"))


def counts(files: Files, rung: str) -> Data:
    """The forward lines of one rung in memory.traffic: one panel per head size, one line per kind
    of count."""
    panels = iter(memory.traffic(files)["panels"])
    shown = []
    for d in HEADS:
        lines = [{**line, "label": name, "colour": colour, "marker": marker}
                 for (name, colour, marker), panel in zip(COUNTS, panels)
                 for line in panel["lines"] if line["rung"] == rung and not line["dashed"]]
        shown.append({"title": f"d = {d}", "lines": need(lines)})
    return {"title": f"HBM traffic of {rung.replace('_', ' ')} per head, counted in three ways "
                     f"({files.gpu.text()})", "panels": shown}


def draw_counts(plt: Pyplot, data: Data) -> Drawing:
    figure, pairs = plots(plt, data, (1.5 + 4.2 * len(data["panels"]), 4.2), sharey=True)
    amounts = [y for _, panel in pairs for line in panel["lines"] for y in line["y"]]
    for axis, panel in pairs:
        axis.set(yscale="log", ylim=(min(amounts) / 2, max(amounts) * 2))
        axis.yaxis.set_major_formatter(byte_tick)
        draw_lines(axis, panel["lines"])
    return figure


def block_size(files: Files, rung: str) -> Data:
    """memory.block_size without the rungs after `rung`."""
    return lessons.until(memory.block_size(files), rung, "lines")
