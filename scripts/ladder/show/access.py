"""Which rows of which array are touched when: boxes over the order of the sim's traces.

A panel is lanes from the top: [name, boxes]. A box is [kind, from, to], and may end with the part
of the lane that it takes: from, to.
"""

from __future__ import annotations

from typing import Any

from ladder.base import course
from ladder.base.records import Record
from ladder.show.measured import Data, Files, label, need
from ladder.show.style import INK, PANEL, plots

COLOURS = {"lane": "#f0f0ea", "r": "#0072B2", "w": "#E69F00"}
HEIGHT, GAP = 0.64, 0.08  # of a lane, and between two, in inches


def draw_access(plt: Any, data: Data) -> Any:
    from matplotlib.patches import Patch
    tall = [len(panel["lanes"]) * (HEIGHT + GAP) - GAP for panel in data["panels"]]
    figure, pairs = plots(plt, data, (11, 1.6 + sum(tall) + 0.75 * len(tall)), data["note"],
                          columns=1, gridspec_kw={"height_ratios": tall})
    looks = {kind: {"fc": colour, "ec": PANEL, "lw": 0.5} for kind, colour in COLOURS.items()}
    for high, (axis, panel) in zip(tall, pairs):
        for i, (_, boxes) in enumerate(panel["lanes"]):
            for kind, left, right, *part in boxes:
                top, bottom = (i * (HEIGHT + GAP) + HEIGHT * at for at in part or (0, 1))
                axis.add_patch(plt.Rectangle((left, top), right - left, bottom - top, zorder=2,
                                             **looks[kind]))
        for begin, until, text in panel["parts"]:
            axis.plot([begin] * 2, [0, high], color=INK, lw=0.7)
            axis.text((begin + until) / 2, -0.03, text, fontsize=7, ha="center", va="bottom")
        axis.set(xlim=(0, panel["end"]), ylim=(high, -0.16))
        axis.set_yticks([i * (HEIGHT + GAP) + HEIGHT / 2 for i in range(len(panel["lanes"]))],
                        [name for name, _ in panel["lanes"]])
        axis.tick_params(axis="y", length=0, labelsize=8)
        axis.spines["left"].set_visible(False)
        axis.grid(axis="y", visible=False)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlabel(data["xlabel"])
    pairs[0][0].legend(
        handles=[Patch(**looks[kind], label=text) for kind, text in data["legend"]], ncol=5,
        loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=3, fontsize=7.5, handlelength=1.6)
    return figure


def access(files: Files) -> Data:
    """A slot for each visit of a tile, in the two orders of loops."""
    first, *_ = traces = need(files.traces)
    return {"title": f"Who touches what, and when: one head, N = {first['seqlen']}, d = "
                     f"{first['head_dim']}, tiles of {first['block_q']}×{first['block_kv']} (sim)",
            "panels": list(map(access_panel, traces)),
            "legend": [("r", "read"), ("w", "write")],
            "xlabel": "time: a slot begins where a tile of Q, K or V arrives",
            "note": f"Rows 0 to N - 1 run downwards in each band. {course.ACCESS_NOTE}"}


def access_panel(trace: Record) -> Data:
    visits = {tuple(place): rows for *place, first, last in trace["visits"]
              for rows in [(first, last)]}
    end, parts = trace["slots"], trace["parts"]
    lanes: dict[str, list[list[Any]]] = {lane: [["lane", 0, end]] for lane in "QKVO"}
    for (lane, begin, op), rows in visits.items():
        # Where a slot reads and writes the same rows, the write takes the later half of it.
        half = 0.5 * ((lane, begin, "w" if op == "r" else "r") in visits)
        lanes[lane].append([op, begin + half * (op == "w"), begin + 1 - half * (op == "r"),
                            *(row / trace["seqlen"] for row in rows)])
    step = trace["rung"], trace["step"]
    return {"lanes": list(lanes.items()),
            "title": f"{label(step)}: {course.TRACED[step]}", "end": end, "parts": [
                [begin, until, name] for (name, begin), until in
                zip(parts.items(), [*list(parts.values())[1:], end])]}
