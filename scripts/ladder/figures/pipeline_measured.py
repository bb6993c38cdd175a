"""What the marks of scripts/figures clock say: three kernels under each other on one axis."""

import textwrap

from ladder.bench.clock import FIRST, START, S_DONE, VARIANTS, spans
from ladder.figures import replay
from ladder.figures.measured import need
from ladder.figures.pipeline import HATCH, SHADE, box_axis, box_colour, legend_and_note
from ladder.figures.style import PANEL, plots

HEAD_DIM = 128
SHOWN = 4  # steps of the slowest
BEGIN = 2  # the first one shown: of what comes before, a consumer that is behind has no marks
NAMES = {"S": "S{}", "O": "O{}", "softmax": "P{}", "rest": ""}
WAITED = 50  # cycles: a wait and a mark take less where the product is done before
NOTE = ("Marks of the SM's clock by the first thread of each consumer, in the block whose step is "
        "the median one. A product's bar is from its issue until it is done: the time that it "
        "waits for the tensor cores is in it. Where a consumer has no bar it waits. Cycles and "
        "clock are medians of all blocks. The tensor cores' cycles are a step's FLOPs at {rate:,} "
        "a cycle.")
PERHAPS = " overlap and ping_pong wait for O after P: when it is done before, no mark tells."


def pipeline_measured(files, missing):
    """Boxes [consumer, kind, text, from, to], and where no consumer has a product under way."""
    need(files.clock, "no clock.json: scripts/figures clock")
    clock = files.clock
    found = {one["variant"]: one for one in clock["steps"] if one["head_dim"] == HEAD_DIM}
    need(all(variant in found for variant in VARIANTS), f"no marks at d = {HEAD_DIM}")
    end = SHOWN * max(found[variant]["cycles"]["step"] for variant in VARIANTS)
    end = min(end, *(min(of[-1][START] for of in found[variant]["shown"])
                     - found[variant]["shown"][0][BEGIN][START] for variant in VARIANTS))
    panels = [panel(found[variant], end) for variant in VARIANTS]
    work = clock["workload"]
    return {"title": f"{', '.join(VARIANTS[:-1])} and {VARIANTS[-1]} of 05, four steps of a block, "
                     f"measured: {clock['measured_on']['gpu']}, {work['dtype']}, d = {HEAD_DIM}, "
                     f"N = {work['seqlen']}",
            "panels": panels, "end": end,
            "note": NOTE.format(rate=replay.MATMUL_FLOPS) + (PERHAPS if any(
                box[1] == "perhaps" for one in panels for box in one["boxes"]) else "")}


def panel(one, end):
    begin, boxes = one["shown"][0][BEGIN][START], []
    for consumer, of in enumerate(one["shown"]):
        found = spans(of, one["variant"])
        for kind, name in NAMES.items():
            # Of the rounds from overlap on the first has no mark of where its rest begins.
            late = len(of) - len(found[kind]) if kind == "rest" else 0
            for step, (first, last) in enumerate(found[kind], late):
                parts = [(kind, first, last)]
                wait = found["O_wait"][step] if kind == "O" else None
                if wait and wait[1] - wait[0] < WAITED:  # done before, but not before S is
                    parts = [("O", first, of[step + 1][S_DONE]),
                             ("perhaps", of[step + 1][S_DONE], last)]
                for what, first, last in parts:
                    first, last = max(first - begin, 0), min(last - begin, end)
                    if first < last:
                        text = "" if what == "perhaps" else name.format(FIRST + step)
                        boxes.append([consumer, what, text, first, last])
    idle = gaps([box[3:] for box in boxes if box[1] in ("S", "O", "perhaps")], end)
    cycles = one["cycles"]["step"]
    busy = 4 * one["block_q"] * one["block_kv"] * one["head_dim"] / replay.MATMUL_FLOPS
    return {"boxes": boxes, "idle": idle, "consumers": len(one["shown"]),
            "title": f"{one['variant']}: a step of {cycles:,.0f} cycles, {busy / cycles:.0%} of "
                    f"them the tensor cores'; {one['sm_ghz']:.2f} GHz; {one['tflops_marked']:.0f} "
                    f"TFLOP/s, {one['tflops']:.0f} without the marks"}


def gaps(taken, end):
    """What of [0, end] no span covers."""
    found, at = [], 0
    for first, last in sorted(taken):
        if first > at:
            found.append([at, first])
        at = max(at, last)
    return found + ([[at, end]] if at < end else [])


# From the top: a consumer's lanes, and their heights.
LANES = {"S": 0, "O": 1, "perhaps": 1, "softmax": 2, "rest": 2}
HEIGHTS, GAP, STRIP = (0.42, 0.42, 0.62), 0.34, 0.3
EACH = sum(HEIGHTS) + GAP  # of a consumer


def draw_pipeline_measured(plt, data):
    from matplotlib.patches import Patch
    panels, top = data["panels"], STRIP + GAP
    tall = [top + EACH * panel["consumers"] for panel in panels]
    figure, pairs = plots(
        plt, panels, (11, 2.0 + 0.45 * sum(tall) + 0.6 * (len(panels) - 1)),
        {"left": 1.1, "right": 0.2, "bottom": 1.1, "top": 0.95, "down": 0.6},
        columns=1, gridspec_kw={"height_ratios": tall}, sharex=True)
    for (axis, panel), high in zip(pairs, tall):
        boxes = [("idle", "", None, *span, 0, STRIP) for span in panel["idle"]]
        for begin, until in panel["idle"]:
            axis.axvspan(begin, until, color=SHADE, lw=0, zorder=0)
        for consumer, kind, text, begin, until in panel["boxes"]:
            lane = LANES[kind]
            at = top + EACH * consumer + sum(HEIGHTS[:lane])
            boxes.append((kind, text, consumer, begin, until, at, at + HEIGHTS[lane]))
        box_axis(axis, data["end"], boxes, (high, -GAP / 2), [
            (STRIP / 2, "no product", 7.5, None), *(
                (top + EACH * consumer + sum(HEIGHTS) / 2, f"consumer {'ABC'[consumer]}", 8.5,
                 consumer) for consumer in range(panel["consumers"]))])
        axis.tick_params(axis="x", labelbottom=True)
    pairs[-1][0].set_xlabel("cycles of the SM")
    handles = [Patch(color=box_colour(kind, 0), label=text) for kind, text in (
        ("S", "S: a product QKᵀ, from issue to done"),
        ("O", "O: a product PV"), ("softmax", "P: a softmax"),
        ("rest", "O scaled, P packed"), ("idle", "no product under way"))]
    if any(box[1] == "perhaps" for panel in panels for box in panel["boxes"]):
        handles.insert(2, Patch(facecolor=PANEL, edgecolor=box_colour("O", 0), lw=0, hatch=HATCH,
                                label="O, unless it is done"))
    legend_and_note(figure, handles, len(handles), textwrap.fill(data["note"], 180))
    return figure
