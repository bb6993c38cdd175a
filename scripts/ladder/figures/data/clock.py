"""What the marks of scripts/clock.py say: three kernels under each other on one axis."""

from ladder.clock import FIRST, S_DONE, START, VARIANTS, spans
from ladder.figures import replay
from ladder.figures.data.missing import need

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
    need(files.clock, "no clock.json: scripts/clock.py")
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
    return {"variant": one["variant"], "boxes": boxes, "idle": idle,
            "consumers": len(one["shown"]),
            "said": f"{one['variant']}: a step of {cycles:,.0f} cycles, {busy / cycles:.0%} of "
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
