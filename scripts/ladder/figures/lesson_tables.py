"""Tables of the lessons: a rung's steps in turn, and a step beside others at every N."""

import itertools
import math
import statistics

from ladder import course
from ladder.figures.errors import quantised
from ladder.figures.rates import both_ways
from ladder.figures.shared_roof import SHARED_BYTES, steps
from ladder.figures.measured import Measured, flops
from ladder.figures.names import (PAPER_GRID, PEER_NAMES, label, length_text, number,
                                  point_text)
from ladder.figures.replay import MATMUL_FLOPS
from ladder.figures.tables import at_the_machine, markdown, without
from ladder.text import NO_VALUE, rate_text
from ladder.bench.workload import LADDER_LENGTH

POINTS = [(d, causal) for d in (64, 128) for causal in (False, True)]


def name_of(one):
    """Of what stands beside a step: a peer's name, or another step (rung, variant)."""
    return PEER_NAMES[one].partition(", ")[2] if isinstance(one, str) else f"`{one[1]}`"


def rates_of(gpu, way, one, d, causal):
    """{N: TFLOP/s} of a peer or a step on the paper's workload; of both ways together too."""
    if way == "both":
        line = both_ways(*(
            gpu.paper_peers(each, one, d, causal) if isinstance(one, str) else
            [e.record for e in gpu.paper(each, None, d, causal) if e.step == one]
            for each in ("fwd", "bwd")))
        return dict(zip(line["x"], line["y"]))
    if isinstance(one, str):
        return {r["seqlen"]: r["tflops"] for r in gpu.paper_peers(way, one, d, causal)}
    return {e.seqlen: e.tflops for e in gpu.paper(way, None, d, causal) if e.step == one}


def steps_table(files, name):
    """A line a step: TFLOP/s at one N, and how much faster than the step before."""
    about = course.STEP_TABLES[name]
    rung, way, n = about["rung"], about["way"], LADDER_LENGTH
    steps = [step for step in files.order if step[0] == rung]
    if (rung, about["first"]) in steps:
        steps = steps[steps.index((rung, about["first"])):]
    rows, untimed, before = [], [], {}
    for one in [*steps, *about["peers"]]:
        cells = []
        for point in POINTS:
            rate = rates_of(files.gpu, way, one, *point).get(n)
            text = rate_text(rate)
            if rate and not isinstance(one, str):
                if point in before:
                    text += f" ({rate / before[point]:.2f})"
                before[point] = rate
            cells.append(text)
        rows.append([name_of(one), *cells])
        if not isinstance(one, str) and set(cells) == {NO_VALUE}:
            untimed.append(name_of(one))
    if not files.gpu.there or len(untimed) == len(steps):
        return without("The steps are not measured yet", PAPER_GRID)
    lines = markdown(["step", *(point_text(*point) for point in POINTS)], rows, range(1, 5))
    text = (f"TFLOP/s at N = {n:,}, {files.gpu.dtype}, and in brackets against the step above, on "
            f"an {at_the_machine(files)}.")
    if untimed:
        text += f" {NO_VALUE}: that run did not have {', '.join(untimed)} yet."
    return [*lines, "", text]


def ratios_table(files, name):
    """A step over what stands beside it, at every N; above 1 the step is faster."""
    about = course.RATIO_TABLES[name]
    gpu = files.gpu
    if gpu.there and about.get("dtype", gpu.dtype) != gpu.dtype:
        gpu = Measured(gpu.path, about["dtype"])
    step, way, others = about["step"], about["way"], about["over"]
    ratios = {other: {} for other in others}
    for point in POINTS:
        ours = rates_of(gpu, way, step, *point)
        for other in others:
            for n, rate in rates_of(gpu, way, other, *point).items():
                if n in ours:
                    ratios[other][point, n] = ours[n] / rate
    lengths = sorted({n for of in ratios.values() for _, n in of})
    if not lengths:
        return without(f"{label(step)} beside others is not measured yet", PAPER_GRID)
    rows = [[point_text(*point), *(" · ".join(
        f"{of[point, n]:.2f}" if (point, n) in of else NO_VALUE for of in ratios.values())
        for n in lengths)] for point in POINTS]
    lines = markdown(["", *(f"N = {length_text(n)}" for n in lengths)], rows,
                     range(1, 1 + len(lengths)))
    passes = {"fwd": "", "bwd": ", backward", "both": ", forward and backward together"}[way]
    text = (f"`{step[1]}` over {' · over '.join(map(name_of, others))}{passes}: ratios of TFLOP/s, "
            f"{gpu.dtype}, above 1 where `{step[1]}` is faster, on an {gpu.machine['gpu']}.")
    for other, of in ratios.items():
        if isinstance(other, str) and of:
            (point, n), worst = min(of.items(), key=lambda one: one[1])
            mean = math.exp(statistics.fmean(map(math.log, of.values())))
            turn = "each point in turn" if gpu.in_turn(way, other, step) else "in another run"
            text += (f" Against {name_of(other)}, {turn}: geometric mean {mean:.3f} of "
                     f"{len(of)} points, worst {worst:.3f} ({point_text(*point)}, N = "
                     f"{length_text(n)}), {sum(ratio >= 1 for ratio in of.values())} are 1 or "
                     "more.")
    return [*lines, "", text]


def fp8_error_table(files, name):
    """A line a choice of settings: the root mean square error of O at each input."""
    rows = quantised(files)
    if not rows:
        return without("Errors of FP8 are not counted yet", "scripts/figures measure --sim")
    lines = markdown(["", *(title for title, _, _ in course.QUANTISED["inputs"])],
                     [[text, *(f"{error:.1e}" for error in errors)] for text, errors in rows],
                     range(1, 1 + len(course.QUANTISED["inputs"])))
    plain, best = rows[1][1], dict(rows)["all of these"]
    return [*lines, "", (
        "Root mean square error of O against float64 of the inputs as they were, all rows of 8 "
        "heads of N = 1k, no mask. Captured: 2 heads of 256 × 64 of a small trained model, causal. "
        "V + 1: 64 queries, 16k keys, one head of 64, N(0, 1), and 1 added to V. "
        "One scale a tensor over all remedies: "
        + ", ".join(f"{a / b:.3g}" for a, b in zip(plain, best)) + ". Counted on the sim.")]


def fp8_times_table(files, name):
    """A line a head size and mask: the rate of the step's attention alone, and with all that is
    done before it. And the same over cuBLAS's, beside that of the kernel that was released."""
    step, released = course.QUANTISED["step"], course.QUANTISED["released"]
    cells, rates = {}, {}
    for e in files.gpu.paper("fwd"):
        alone = [k["time_ms"] for k in e.record["kernels"] if k["name"] == "attention"]
        if e.step == step and alone and alone[0]:
            at = (e.head_dim, e.causal), e.seqlen
            rates[at] = flops(e.record) / alone[0] * 1e-9
            cells[at] = f"{rate_text(rates[at])} · {rate_text(e.tflops)}"
    lengths = sorted({n for _, n in cells})
    if not lengths:
        return without("Times of FP8 are not measured yet", PAPER_GRID)

    def table(cells):
        return markdown(["", *(f"N = {length_text(n)}" for n in lengths)], [
            [point_text(*point), *(cells.get((point, n), NO_VALUE) for n in lengths)]
            for point in itertools.product(course.QUANTISED["head_dims"], (False, True))
            # Heads that are wider than the others' where they were measured.
            if point in POINTS or any(at == point for at, _ in cells)], range(1, 1 + len(lengths)))

    lines = [*table(cells), "", (
        f"TFLOP/s of `{step[1]}`: its attention alone · with `quantise` before it. On the paper's "
        f"workload, inputs {files.gpu.dtype}, on an {at_the_machine(files)}.")]
    matmul = (files.gpu.ceilings or {}).get("matmul_e4m3_tflops")
    if not matmul:
        return lines

    def theirs(point, n):
        known = dict(zip(released["lengths"], released["tflops"].get(point, [])))
        return f"{known[n] / released['matmul']:.2f}" if n in known else NO_VALUE

    shares = {at: f"{rate / matmul:.2f} · {theirs(*at)}" for at, rate in rates.items()}
    return [*lines, "", *table(shares), "", (
        f"The attention alone as a share of cuBLAS's rate on e4m3 matrices of 8,192 × 8,192, "
        f"{matmul:,.0f} TFLOP/s there: `{step[1]}` · FlashAttention-3's own kernel, of inputs that "
        f"are in e4m3 already, on the same kind of GPU on another day, when cuBLAS had "
        f"{released['matmul']:,}"
        + ("." if all(point in released["tflops"] for point, _ in rates) else
           f"; {NO_VALUE}: not known."))]


def shared_roof_table(files, name):
    """A line a step and head size: bytes of shared memory against the products' time."""
    counted = steps(files)
    if not counted:
        return without("Shared memory is not counted yet", "scripts/figures measure --sim")
    rows = [[f"{number(step[0])} `{step[1]}`", str(one["d"]), "{} × {}".format(*one["tile"]),
             f"{one['cycles']:,}", f"{one['operands']:,}", f"{one['of_operands']:.2f}",
             f"{one['every']:,}", f"{one['of_every']:.2f}"] for step, one in counted]
    lines = markdown(["step", "d", "tile", "products, cycles", "they read, bytes", "cycles of it",
                      "all bytes", "cycles of it"], rows, range(1, 8))
    return [*lines, "", (
        "A step is one tile of Q against one of K, in one block: what the sim counts at N = 2,048 "
        "less twice that at 1,024, bf16, no mask. One SM does "
        f"{MATMUL_FLOPS:,} FLOPs of dense 16-bit products a cycle, and reads or writes "
        f"{SHARED_BYTES} bytes of shared memory. “Cycles of it” are over the products': from 1 on "
        "shared memory is what a step takes.")]
