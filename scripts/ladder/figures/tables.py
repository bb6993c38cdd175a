"""The tables of the README: the ladder, PyTorch beside it, and the list of figures."""

import math
import statistics

from ladder import course
from ladder.figures.gallery import figure_data
from ladder.figures.names import (PAPER_GRID, PEER_NAMES, PEERS, length_text, number, per_head,
                                  point_text, whole_bytes)
from ladder.records import requested, total
from ladder.text import rate_text, ratio_text, time_text
from ladder.bench.workload import HIDDEN, LADDER_LENGTH, TOKENS


def markdown(header, rows, right=()):
    """A table; the columns numbered in `right` are figures."""
    lines = ["| " + " | ".join(header) + " |",
             "|" + "|".join("--:" if i in right else "---" for i in range(len(header))) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def without(what, command):
    return [f"*{what}: `{command}` measures {'them' if what.endswith('s') else 'it'}.*"]


def at_the_machine(files):
    machine = files.gpu.machine
    parts = [machine["gpu"], f"driver {machine['driver']}"]
    if machine.get("cuda"):
        parts.append(f"CUDA {machine['cuda']}")
    clocks = (machine.get("clocks") or {}).get("sm_mhz")
    if clocks:
        parts.append(f"SM clock {clocks['median']:.0f} MHz in the median")
    parts.append(machine["date"])
    return ", ".join(parts)


def ladder_table(files):
    """Each step at N = 2k: from the GPU all but what is distinct, which the sim counts."""
    n, d = LADDER_LENGTH, 64
    rows, untimed = [], []
    for way in ("fwd", "bwd"):
        timed = {head: {e.step: e for e in files.gpu.paper(way, n, head, False)}
                 for head in (64, 128)}
        counted = {e.step: e for e in files.sim.plain(way, seqlen=n, head_dim=d, causal=False)}
        base = timed[64].get(files.base())
        for step in files.order:
            gpu, sim, wide = timed[64].get(step), counted.get(step), timed[128].get(step)
            if not gpu and not sim:
                continue
            if way != files.own_way(step):
                continue
            known = gpu or sim
            if not gpu:
                untimed.append(f"`{step[1]}`")
            dram = per_head(gpu, total(gpu.record, "dram")) if gpu else None
            size = per_head(known, known.workspace_bytes)
            rows.append([f"[{step[0]}]({step[0]}/README.md)", f"`{step[1]}`" + (
                " backward" if way == "bwd" else ""),
                time_text(gpu and gpu.time_ms), rate_text(gpu and gpu.tflops),
                rate_text(wide and wide.tflops),
                ratio_text(base.time_ms / gpu.time_ms if gpu and base else None),
                whole_bytes(per_head(known, requested(known.record))),
                whole_bytes(per_head(sim, total(sim.record, "distinct")) if sim else None),
                whole_bytes(dram), whole_bytes(size)])
    if not rows:
        return without("The steps are not counted yet", "scripts/figures measure --sim")
    lines = markdown(["rung", "step", "time", "TFLOP/s", "d = 128", f"× {number(files.base()[0])}",
                      "requested", "distinct", "DRAM", "workspace"], rows, range(2, 10))
    about = (f"N = {n:,}, d = 64, not causal; bytes are those of one head: requested by the "
             "kernels, distinct (each byte once a kernel, the sim's count), served by DRAM, and "
             "beyond inputs and outputs.")
    if files.gpu.paper("fwd", n, d, False):
        about += (f" Times of {TOKENS // n} × {HIDDEN // d} heads, {files.gpu.dtype}, and the "
                  f"rate with heads of 128 beside it, on an {at_the_machine(files)}.")
        if untimed:
            about += f" –: that run did not have {' and '.join(untimed)} yet."
        if not any(total(e.record, "dram") for e in files.gpu.paper("fwd", n, d, False)):
            about += f" DRAM is not measured yet: `{PAPER_GRID}`, where counters may be read."
        return lines + ["", about]
    return lines + ["", about, ""] + without("No GPU has been measured yet, so there are no times",
                                             PAPER_GRID)


def our_line(files, way, d, causal):
    """By N, the default of the rung that is compared with PyTorch's attention."""
    rung = files.ladder.beside_peers().get(way)
    return {e.seqlen: e for e in files.gpu.paper(way, None, d, causal)
            if e.rung == rung and files.gpu.is_default(e.step)}


def peers_table(files):
    lengths = sorted({r["seqlen"] for r in files.gpu.peers if r["batch"] * r["seqlen"] == TOKENS})
    rows, ratios = [], {}
    for way in ("fwd", "bwd"):
        for d in (64, 128):
            for causal in (False, True):
                ours = our_line(files, way, d, causal)
                peers = {b: {r["seqlen"]: r for r in files.gpu.paper_peers(way, b, d, causal)}
                         for b in PEERS}
                if not ours or not any(peers.values()):
                    continue
                cells = []
                for n in lengths:
                    cells.append(" / ".join(rate_text(r and r["tflops"]) for r in (
                        ours[n].record if n in ours else None, peers["flash"].get(n),
                        peers["cudnn"].get(n))))
                rows.append(["forward" if way == "fwd" else "backward", str(d),
                             "yes" if causal else "no", *cells])
                for backend, of in peers.items():
                    for n, r in of.items():
                        if n in ours:
                            ratios.setdefault((way, backend), []).append(
                                (r["time_ms"] / ours[n].time_ms, n, d, causal))
    if not rows:
        return without("Ours beside PyTorch's is not measured yet", PAPER_GRID)
    ours = [f"{number(rung)}'s `{files.gpu.defaults[rung]}`{' backward' if way == 'bwd' else ''}"
            for way, rung in files.ladder.beside_peers().items() if rung in files.gpu.defaults]
    if len(ours) > 1:
        ours[0] += " forward"
    apart = [name for backend, name in (("flash", "FlashAttention-2"), ("cudnn", "cuDNN"))
             if not all(files.gpu.in_turn(way, backend, (rung, files.gpu.defaults[rung]))
                        for way, rung in files.ladder.beside_peers().items()
                        if rung in files.gpu.defaults)]
    lines = ["TFLOP/s, ours / FlashAttention-2 / cuDNN, the last two through "
             f"{files.gpu.peers[0]['version']}, alternating in one run"
             f"{', but for ' + ' and '.join(apart) + ' in another,' if apart else ''} on the "
             f"{files.gpu.machine['gpu']}; ours is {' and '.join(ours)}.", ""]
    lines += markdown(["", "d", "causal", *(f"N = {length_text(n)}" for n in lengths)], rows,
                      range(3, 3 + len(lengths)))
    lines += ["", "Ours over each of PyTorch's backends, above 1 where ours is faster:", ""]
    summary = []
    for (way, backend), points in ratios.items():
        worst, best = min(points), max(points)
        mean = math.exp(statistics.fmean(math.log(point[0]) for point in points))
        summary.append(["forward" if way == "fwd" else "backward", PEER_NAMES[backend].partition(
            ", ")[2], f"{mean:.2f}", *(f"{p[0]:.2f} (N = {length_text(p[1])}, "
                                       f"{point_text(p[2], p[3])})" for p in (worst, best)),
            str(len(points))])
    return lines + markdown(["", "against", "geometric mean", "worst", "best", "points"], summary,
                            (2, 5))


def figure_list(files):
    """Those that can be drawn, each with a line."""
    found = figure_data(files)
    lines = []
    for name in found:
        path = f"scripts/results/figures/{name}.svg"
        lines += [f"**{found[name]['title']}.** {course.CAPTIONS[name]}", "",
                  f"![{course.CAPTIONS[name]}]({path})", ""]
    return lines[:-1]
