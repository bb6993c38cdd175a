"""Who touches what, and who does what in a block: boxes over time, of the sim's traces.

A panel is lanes from the top: [name, consumer or None, height in inches, boxes]. A box is [kind,
text, consumer or None, from, to], and may end with the part of the lane that it takes: from, to.
"""

from __future__ import annotations

import textwrap
from typing import Any

from ladder.base import course
from ladder.base.records import Record
from ladder.show.measured import Data, Files, label, need
from ladder.show.style import INK, PANEL, mixed, plots
from ladder.trace import replay

# A kind of box has a colour of its own, or (a product, arithmetic) a share of its consumer's.
BOXES = {"lane": "#f0f0ea", "r": "#0072B2", "w": "#E69F00", "copy": "#c9a3bb", "held": "#ece4e9",
         "tile": "#c4c4bd", "turn": "#a3a39c", "sums": "#efefea", "store": "#a3a39c"}
CONSUMERS = ["#0072B2", "#E69F00", "#009E73"]
SHARES = {"S": 1, "dP": 0.8, "softmax": 0.7, "dV": 0.6, "dK": 0.5, "O": 0.42, "dQ": 0.35,
          "scale": 0.25}


def look(kind: str, consumer: int) -> dict[str, Any]:
    """How matplotlib draws a kind of box."""
    return {"fc": BOXES.get(kind) or mixed(CONSUMERS[consumer], SHARES[kind], 255), "ec": PANEL,
            "lw": 0.5}


def draw_boxes(plt: Any, data: Data) -> Any:
    from matplotlib.patches import Patch
    gap = data["gap"]
    tall = [sum(height + gap for _, _, height, _ in panel["lanes"]) - gap
            for panel in data["panels"]]
    figure, pairs = plots(plt, data, (11, 1.6 + sum(tall) + 0.75 * len(tall)), data["note"],
                          columns=1, gridspec_kw={"height_ratios": tall})
    for high, (axis, panel) in zip(tall, pairs):
        names, consumers, _, _ = zip(*panel["lanes"])
        lane, places = 0, []
        for _, _, height, boxes in panel["lanes"]:
            for kind, text, consumer, left, right, *part in boxes:
                top, bottom = (lane + height * at for at in part or (0, 1))
                axis.add_patch(plt.Rectangle((left, top), right - left, bottom - top, zorder=2,
                                             **look(kind, consumer)))
                # A letter is about as wide.
                if right - left > panel["end"] * 0.0048 * (len(text) + 0.4):
                    axis.text((left + right) / 2, (top + bottom) / 2, text, ha="center",
                              fontsize=6.5, va="center_baseline",
                              color="#ffffff" if kind in ("S", "dP") and consumer != 1 else INK)
            places.append(lane + height / 2)
            lane += height + gap
        for begin, until, text in panel.get("parts", ()):
            axis.plot([begin] * 2, [0, high], color=INK, lw=0.7)
            axis.text((begin + until) / 2, -0.03, text, fontsize=7, ha="center", va="bottom")
        axis.set(xlim=(0, panel["end"]), ylim=(high, -0.16 if "parts" in panel else -0.03))
        axis.set_yticks(places, names)
        for tick, consumer in zip(axis.get_yticklabels(), consumers):
            if consumer is not None:
                tick.set(color=mixed(CONSUMERS[consumer], 0.74), fontweight="bold")
        axis.tick_params(axis="y", length=0, labelsize=8)
        axis.spines["left"].set_visible(False)
        axis.grid(axis="y", visible=False)
        axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.set_xlabel(data["xlabel"])
    pairs[0][0].legend(
        handles=[Patch(**look(kind, 0), label=text) for kind, text in data["legend"]], ncol=5,
        loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=3, fontsize=7.5, handlelength=1.6)
    return figure


# ---- which array is touched when ----

def access(files: Files) -> Data:
    """A slot for each visit of a tile, in the two orders of loops."""
    first, *_ = traces = need([trace for trace in files.traces if trace["figure"] == "access"])
    return {"title": f"Who touches what, and when: one head, N = {first['seqlen']}, d = "
                     f"{first['head_dim']}, tiles of {first['block_q']}×{first['block_kv']} (sim)",
            "panels": list(map(access_panel, traces)), "gap": 0.08,
            "legend": [("r", "read"), ("w", "write")],
            "xlabel": "time: a slot begins where a tile of Q, K or V arrives",
            "note": f"Rows 0 to N - 1 run downwards in each band. {course.ACCESS_NOTE}"}


def access_panel(trace: Record) -> Data:
    """Time in slots. One begins where a tile of Q, K or V arrives and lasts until the next one
    does; a kernel whose blocks do one tile each, all at once, takes one."""
    events = trace["events"]
    arrives = {tuple(at) for *at, array, op, _, _ in events if array in "QKV" and op == "r"}
    kernels = {kernel for kernel, *_ in events}
    short = kernels - {kernel for kernel, _, phase, *_ in events if phase}
    slot, place = -1, None
    touched: dict[tuple[str, int, str], list[int]] = {}
    parts: dict[str, int] = {}
    for kernel, block, phase, array, op, first, last in events:
        at = (kernel, 0, 0) if kernel in short else (kernel, block, phase)
        if at != place and (at in arrives or place is None or place[0] != kernel):
            slot += 1
        place = at
        part = f"block {block}" if len(kernels) == 1 else kernel
        parts.setdefault(part, slot)
        rows = touched.setdefault((array[0], slot, op), [first, last])
        rows[:] = min(rows[0], first), max(rows[1], last)
    lanes: dict[str, list[list[Any]]] = {
        lane: [["lane", "", None, 0, slot + 1]] for lane in "QKVO"}
    for (lane, begin, op), rows in touched.items():
        if lane in lanes:
            # Where a slot reads and writes the same rows, the write takes the later half of it.
            half = 0.5 * ((lane, begin, "w" if op == "r" else "r") in touched)
            lanes[lane].append([op, "", None, begin + half * (op == "w"),
                                begin + 1 - half * (op == "r"),
                                *(row / trace["seqlen"] for row in rows)])
    step = trace["rung"], trace["step"]
    return {"lanes": [(lane, None, 0.64, boxes) for lane, boxes in lanes.items()],
            "title": f"{label(step)}: {course.TRACED[step]}", "end": slot + 1, "parts": [
                [begin, until, name] for (name, begin), until in
                zip(parts.items(), [*list(parts.values())[1:], slot + 1])]}


# ---- a block's pipeline, in the time of a model ----

TILES = ["Q", "dO", "K", "V"]  # from the top


def pipeline(files: Files, name: str) -> Data:
    """Lanes from the top: stages of tiles, the tensor cores, the consumers."""
    about = course.PIPELINES[name]
    first, *_ = traces = need([trace for trace in files.traces if trace["figure"] == name])
    panels = [pipeline_panel(trace, about) for trace in traces]
    there = {box[0] for panel in panels for *_, boxes in panel["lanes"] for box in boxes}
    return {"title": f"The pipeline of {label((first['rung'], first['step']))}: "
                     f"{about['what']}, in the time of a model, not measured",
            "panels": panels, "gap": 0.04, "xlabel": "cycles of the model",
            "legend": [("copy", "copy under way"), ("held", "tile there, until its stage is free"),
                       *about["legend"].items(), *(
                           (kind, f"waits for {what}") for kind, what in about["waits"].items()
                           if kind in there)],
            "note": textwrap.fill(
                "Order and amounts are the sim's, the time is a model's. Of one SM: the tensor "
                f"cores do {replay.MATMUL_FLOPS:,} FLOPs a cycle, one product after the other as "
                f"they were issued; {replay.EXPS} exponentials and {replay.OTHER_FLOPS} other "
                "operations a cycle side by side, which consumers that compute at the same time "
                f"share equally; tiles come one after the other, {replay.COPY_BYTES:.0f} bytes a "
                f"cycle, each {replay.COPY_LATENCY} cycles late (assumed). All else takes no time. "
                f"{about['note']}", 180)}


def pipeline_panel(trace: Record, about: dict[str, Any]) -> Data:
    """A trace's lanes, and how busy the tensor cores are."""
    played = trace["played"]
    consumers, end = len(played["consumers"]), played["end"]
    fills = stage_fills(played["copies"], about["own"], consumers, end)
    rings = {array for array, stage in fills if stage}
    lanes: list[Any] = []
    for array, stage in sorted(fills, key=lambda fill: (TILES.index(fill[0]), fill)):
        lanes.append((f"{array} stage {stage}" if array in rings else array, None, 0.16, [
            box for text, issued, landed, freed in fills[array, stage] for box in (
                ["copy", text, None, issued, landed], ["held", "", None, landed, freed])]))
    lanes.append(("tensor cores", None, 0.31, [
        [what, f"{what}{tile}", consumer, begin, until]
        for consumer, what, tile, begin, until in played["products"]]))
    lanes += [(f"consumer {'ABC'[consumer]}", consumer, 0.31, [
        [what, about["texts"].get(what, what).format(tile), consumer, begin, until]
        for what, tile, begin, until in spans])
              for consumer, spans in enumerate(played["consumers"])]
    busy = sum(until - begin for *_, begin, until in played["products"]) / end
    share = about["share"].format(rows=trace["block_q"] // consumers, **trace)
    return {"lanes": lanes, "end": end,
            "title": f"d = {trace['head_dim']}: {consumers} consumers of {share}; the tensor cores "
                     f"are busy {busy:.0%} of the time"}


def stage_fills(copies: list[Any], own: str, consumers: int,
                end: float) -> dict[tuple[str, int], list[list[Any]]]:
    """(array, stage) → [[name of the tile, issued, landed, stage free again]]. Where each consumer
    has a stage of its own, those of a round share a lane, and what is issued at once is one."""
    fills: dict[tuple[str, int], list[list[Any]]] = {}
    numbers: dict[str, int] = {}
    for array, stage, issued, landed, freed in copies:
        if array not in TILES:  # a number for each row, with a tile
            continue
        stages = fills.setdefault((array, stage // consumers if array in own else stage), [])
        freed = end if freed is None else freed
        if array in own and stages and stages[-1][1] == issued:
            stages[-1][2:] = max(stages[-1][2], landed), max(stages[-1][3], freed)
            continue
        numbers[array] = numbers.get(array, -1) + 1
        stages.append([f"{array}{numbers[array]}", issued, landed, freed])
    return fills
