"""Tables of rates: the ladder, PyTorch beside it, a rung's steps in turn, and a step beside others
at every N."""

import itertools

from ladder.bench.workload import HIDDEN, LADDER_LENGTH, TOKENS
from ladder.figures.measured import Measured, need
from ladder.figures.names import (HEADS, PEERS, POINTS, WAYS, at_the_machine, geometric_mean,
                                  length_text, library, markdown, number, over_lengths,
                                  point_text, where, whole_bytes)
from ladder.records import requested, total
from ladder.text import NO_VALUE, rate_text, time_text


def ladder_table(files):
    """Each step at N = 2k: from the GPU all but what is distinct, which the sim counts."""
    n, d = LADDER_LENGTH, 64
    rows = []
    for way in ("fwd", "bwd"):
        timed, wide = ({e.step: e for e in files.gpu.paper(
            way, seqlen=n, head_dim=head, causal=False)} for head in HEADS)
        counted = {e.step: e for e in files.sim.plain(way, seqlen=n, head_dim=d, causal=False)}
        base = timed.get(files.base())
        for step, [known, *_] in files.steps_of([*timed.values(), *counted.values()], way):
            gpu, sim, other = timed.get(step), counted.get(step), wide.get(step)
            counts = [known.per_head(requested(known.record)),
                      sim and sim.per_head(total(sim.record, "distinct")),
                      gpu and gpu.per_head(total(gpu.record, "dram")),
                      known.per_head(known.workspace_bytes)]
            rows.append([f"[{step[0]}]({step[0]}/README.md)", f"`{step[1]}`" + (
                " backward" if way == "bwd" else ""),
                time_text(gpu and gpu.time_ms), rate_text(gpu and gpu.tflops),
                rate_text(other and other.tflops),
                rate_text(base.time_ms / gpu.time_ms if gpu and base else None),
                *map(whole_bytes, counts)])
    lines = markdown(["rung", "step", "time", "TFLOP/s", "d = 128", f"× {number(files.base()[0])}",
                      "requested", "distinct", "DRAM", "workspace"], need(rows), range(2, 10))
    return [*lines, "", (
        f"N = {n:,}, d = 64, not causal. Bytes are those of one head: *requested* by the kernels; "
        "*distinct*, each byte once a kernel, the sim's count; *DRAM*, what it served; "
        "*workspace*, memory beyond inputs and outputs. Times are those of "
        f"{TOKENS // n} × {HIDDEN // d} heads, {files.gpu.dtype}, and *d = 128* is the rate in "
        f"TFLOP/s of as much work in heads of 128, on an {at_the_machine(files)}.")]


def peers_table(files):
    """The defaults of the rungs that are compared with PyTorch's attention."""
    gpu = files.gpu
    ours = {way: (rung, gpu.defaults[rung]) for way, rung in files.ladder.beside_peers().items()
            if rung in gpu.defaults}
    lengths = sorted({r["seqlen"] for r in gpu.peers if r["batch"] * r["seqlen"] == TOKENS})
    rows = []
    for way, step in ours.items():
        for point in POINTS:
            mine, *others = (gpu.rates(way, one, *point) for one in (step, *PEERS))
            if mine and any(others):
                rows.append([WAYS[way], str(point[0]), "yes" if point[1] else "no", *(
                    " / ".join(rate_text(of.get(n)) for of in (mine, *others[:2]))
                    for n in lengths)])
    need(rows)
    names = [f"{number(rung)}'s `{variant}`{' backward' if way == 'bwd' else ''}"
             for way, (rung, variant) in ours.items()]
    if len(names) > 1:
        names[0] += " forward"
    apart = [library(backend) for backend in ("flash", "cudnn")
             if not all(gpu.in_turn(way, backend, step) for way, step in ours.items())]
    summary = []
    for way, backend in itertools.product(ours, PEERS):
        ratios = gpu.ratios(way, ours[way], backend)
        if ratios:
            ends = (end(ratios, key=ratios.get) for end in (min, max))
            summary.append([WAYS[way], library(backend), f"{geometric_mean(ratios.values()):.2f}",
                            *(f"{ratios[at]:.2f} ({where(at)})" for at in ends),
                            str(len(ratios))])
    return ["TFLOP/s, ours / FlashAttention-2 / cuDNN, the last two through "
            f"{gpu.peers[0]['version']}, alternating in one run"
            f"{', but for ' + ' and '.join(apart) + ' in another,' if apart else ''} on the "
            f"{gpu.name}; ours is {' and '.join(names)}.", "",
            *over_lengths(lengths, rows, ("", "d", "causal")), "",
            "Ours over each of PyTorch's backends, above 1 where ours is faster:", "",
            *markdown(["", "against", "geometric mean", "worst", "best", "points"], summary,
                      (2, 5))]


def name_of(one):
    """Of what stands beside a step: a peer's name, or another step (rung, variant)."""
    return library(one) if isinstance(one, str) else f"`{one[1]}`"


def steps_table(files, rung, first, way, peers):
    """A line a step, from the first on: TFLOP/s at one N, and how much faster than the step
    before."""
    n, steps = LADDER_LENGTH, [step for step in files.order if step[0] == rung]
    if (rung, first) in steps:
        steps = steps[steps.index((rung, first)):]
    rows, before = [], {}
    for one in [*steps, *peers]:
        rates = {point: files.gpu.rates(way, one, *point).get(n) for point in POINTS}
        cells = [rate_text(rate) + (f" ({rate / before[point]:.2f})"
                                    if rate and point in before and one in steps else "")
                 for point, rate in rates.items()]
        before |= {point: rate for point, rate in rates.items() if rate}
        rows.append([name_of(one), *cells])
    need(any(set(row[1:]) != {NO_VALUE} for row in rows[:len(steps)]))
    lines = markdown(["step", *(point_text(*point) for point in POINTS)], rows, range(1, 5))
    return [*lines, "", (
        f"TFLOP/s at N = {n:,}, {files.gpu.dtype}, and in brackets against the step above, on an "
        f"{at_the_machine(files)}.")]


def ratios_table(files, step, way, over, dtype=None):
    """A step over what stands beside it, at every N; above 1 the step is faster."""
    gpu = Measured(files.gpu.path, dtype) if dtype else files.gpu
    ratios = {other: gpu.ratios(way, step, other) for other in over}
    lengths = sorted({n for of in ratios.values() for n, *_ in of})
    lines = over_lengths(need(lengths), [[point_text(*point), *(" · ".join(
        f"{of[(n, *point)]:.2f}" if (n, *point) in of else NO_VALUE for of in ratios.values())
        for n in lengths)] for point in POINTS])
    passes = {"fwd": "", "bwd": ", backward", "both": ", forward and backward together"}[way]
    text = (f"`{step[1]}` over {' · over '.join(map(name_of, over))}{passes}: ratios of TFLOP/s, "
            f"{gpu.dtype}, above 1 where `{step[1]}` is faster, on an {gpu.name}.")
    for other, of in ratios.items():
        if isinstance(other, str) and of:
            n, *point = at = min(of, key=of.get)
            turn = "each point in turn" if gpu.in_turn(way, other, step) else "in another run"
            text += (f" Against {name_of(other)}, {turn}: geometric mean "
                     f"{geometric_mean(of.values()):.3f} of {len(of)} points, worst {of[at]:.3f} "
                     f"({point_text(*point)}, N = {length_text(n)}), "
                     f"{sum(ratio >= 1 for ratio in of.values())} are 1 or more.")
    return [*lines, "", text]
