"""Writes the tables: the ladder, the comparison with PyTorch, the shapes of real models, and a
kernel's cycles compared with a model of them."""

from __future__ import annotations

import dataclasses
import itertools
from statistics import geometric_mean
from typing import Mapping, Sequence

from ladder.base.course import HIDDEN, LADDER_LENGTH, MODELS, PROFILED_LENGTH, TOKENS
from ladder.base.hardware import EXPS, MATMUL_FLOPS
from ladder.base.records import Record, flops, shape_text
from ladder.base.text import NO_VALUE, bytes_text, rate_text, time_text
from ladder.show.measured import (HEADS, PEERS, POINTS, WAYS, Files, Measured, StepKey,
                                  bytes_a_head, length_text, library, linked, markdown, need,
                                  number, of_the_paper, point_text, ratios_text, step_key)
from ladder.show.rates import decode


def door_table(files: Files) -> list[str]:
    """Returns README's table at N = 2k: each rung's default on this GPU and, for forward passes,
    its last portable step, with their rates and these rates' fractions of cuDNN's."""
    n, rows = LADDER_LENGTH, []
    for step in files.order:
        way = files.own_way(step)
        narrow, wide = (files.at(way, n, d).get(step) for d in HEADS)
        if not narrow or not (files.gpu.is_default(step)
                              or way == "fwd" and files.stands_for_its_rung(step)):
            continue
        cells = []
        for d, record in zip(HEADS, (narrow, wide)):
            rate = record["tflops"] if record else None
            theirs = files.gpu.rates(way, "cudnn").get((n, d, False))
            ratio = rate / theirs if rate and theirs else None
            cells += [rate_text(rate), f"{ratio:.{int(ratio < 0.01)}%}" if ratio else NO_VALUE]
        rows.append([linked(step, "") + (" backward" if way == "bwd" else ""), *cells,
                     bytes_text(bytes_a_head(narrow, "requested"))])
    return markdown(
        ["step", *(text for d in HEADS for text in (f"d = {d}: TFLOP/s", "fraction of cuDNN's")),
         "bytes requested"], need(rows), range(1, 6), (
            f"N = {n:,}, no mask, {TOKENS // n} sequences of {HIDDEN // HEADS[0]} heads with d = "
            f"{HEADS[0]} or of {HIDDEN // HEADS[1]} with d = {HEADS[1]}, {files.gpu.dtype}, on an "
            f"{files.gpu.machine(n)}. *Fraction of cuDNN's*: the rate divided by cuDNN's for the "
            "same pass. *Bytes requested*: bytes that the kernels read from and write to global "
            f"memory, per head with d = {HEADS[0]}."))


def over(files: Files, rival: str, steps: Mapping[str, StepKey]) -> list[list[float]]:
    """Returns how many times as fast as a rival `steps`, {pass: step}, are at all measured points
    in both I/O types: for each pass its ratios, worst first."""
    types = [Measured(files.gpu.path, dtype) for dtype in ("bf16", "fp16")]
    return [sorted(ratio for gpu in types for ratio in gpu.ratios(way, step, rival).values())
            for way, step in steps.items()]


def means(ratios: Sequence[Sequence[float]]) -> str:
    """Returns the geometric mean of each pass's ratios in words, such as "1.16 and 1.19"."""
    return " and ".join(f"{geometric_mean(need(of_pass)):.2f}" for of_pass in ratios)


def last_steps(files: Files) -> tuple[dict[str, StepKey], dict[str, StepKey]]:
    """Returns {pass: step} of the last steps for this GPU, and of the last portable ones."""
    rungs = need(files.ladder.beside_peers())
    need(set(rungs.values()) <= files.gpu.defaults.keys())
    return ({way: (rung, files.gpu.defaults[rung]) for way, rung in rungs.items()},
            {way: (step.rung, step.name) for way, rung in rungs.items()
             if (step := files.ladder.last_portable(rung))})


def headline(files: Files) -> list[str]:
    """Returns a sentence that compares the last steps with cuDNN over all measured points."""
    last, _ = last_steps(files)
    ratios = over(files, "cudnn", last)
    flat = sorted(itertools.chain(*ratios))
    return [f"On an {files.gpu.name}, the last {' and '.join(WAYS[way] for way in last)} kernels "
            f"are **{means(ratios)} times as fast as cuDNN** (geometric means; at "
            f"{sum(ratio >= 1 for ratio in flat)} of {len(flat)} measured points the ratio is 1 or "
            f"more, and the worst ratio is {flat[0]:.2f})."]


def beside_libraries(files: Files) -> list[str]:
    """Returns a table of the last steps' and the last portable steps' ratios to cuDNN and
    FlashAttention-2 over all measured points."""
    last, portable = last_steps(files)
    need(len(portable) == len(last))
    rows = []
    for what, steps, rival in (("last steps", last, "cudnn"), ("last steps", last, "flash"),
                               ("last portable steps", portable, "flash")):
        names = " and ".join(f"{number(rung)} `{step}`" for rung, step in steps.values())
        rows.append([f"{what}, {names}", library(rival),
                     *(f"{geometric_mean(need(of_pass)):.2f} ({of_pass[0]:.2f})"
                       for of_pass in over(files, rival, steps))])
    return markdown(["our kernels", "library", *(WAYS[way] for way in last)], rows, (2, 3), (
        "How many times as fast our kernels are: geometric means over all measured workloads, with "
        f"the worst ratio in brackets, on an {files.gpu.name}. Both libraries run through "
        f"{files.gpu.peers[0]['version']}."))


def findings(files: Files) -> list[str]:
    """Returns the first findings of the results page as a list: the rates of the last steps at N =
    2k, and their ratios to PyTorch's libraries. (The fastest step of one run would not do, because
    two runs of a step may differ by more than the last steps do.)"""
    n, d = LADDER_LENGTH, HEADS[0]
    steps, _ = last_steps(files)
    rates = [f"{WAYS[way]}, {linked(step, '../../')} reaches "
             f"{rate_text(need(files.at(way, n, d).get(step))['tflops'])} TFLOP/s"
             for way, step in steps.items()]
    return [f"- **[Last steps](#the-ladder):** {'; '.join(rates)} (N = {n:,}, d = {d}, no "
            f"mask, {files.gpu.text()}).",
            "- **[PyTorch's kernels](#compared-with-pytorch):** over all measured workloads, our "
            f"last steps {' and '.join(WAYS[way] for way in steps)} are "
            f"{means(over(files, 'cudnn', steps))} times as fast as cuDNN, and "
            f"{means(over(files, 'flash', steps))} times as fast as FlashAttention-2 (geometric "
            "means)."]


def ladder_table(files: Files, root: str) -> list[str]:
    """Returns a table of all forward steps at N = 2k and one of all backward steps, below a
    paragraph on their columns. The simulator counted the distinct bytes, and the GPU's file has the
    rest. `root` is the path to the repository's root in the page's links."""
    n, d = LADDER_LENGTH, 64
    lines = [f"All columns are for N = {n:,} without a mask, and for d = {d} unless they name "
             f"another d. Times and rates are for 16k tokens, {TOKENS // n} sequences of "
             f"{HIDDEN // d} heads with d = {d} or of {HIDDEN // HEADS[1]} with d = {HEADS[1]}, in "
             f"{files.gpu.dtype}, on an {files.gpu.machine(n)}. Bytes are per head: *requested* by "
             "the kernels from global memory; *distinct*, each byte once per kernel, counted by "
             "the simulator; served by *DRAM*, according to the GPU's counters; and *workspace*, "
             "memory beyond inputs and outputs."]
    for way in WAYS:
        timed, wide = (files.at(way, n, head) for head in HEADS)
        counted = {step_key(r): r
                   for r in files.sim.plain(way, seqlen=n, head_dim=d, causal=False)}
        steps = [step for step in files.order
                 if files.own_way(step) == way and (step in timed or step in counted)]
        base, rows = timed.get(steps[0]) if steps else None, []
        for step in steps:
            gpu, sim, other = timed.get(step), counted.get(step), wide.get(step)
            known = gpu or sim
            counts = [bytes_a_head(record, kind) for record, kind in (
                (known, "requested"), (sim, "distinct"), (gpu, "dram"), (known, "workspace"))]
            rows.append([linked(step, root), time_text(gpu["time_ms"] if gpu else None),
                         *(rate_text(r["tflops"] if r else None) for r in (gpu, other)),
                         rate_text(base["time_ms"] / gpu["time_ms"] if gpu and base else None),
                         *map(bytes_text, counts)])
        if rows:
            lines += ["", *markdown([
                f"{WAYS[way]} step", "time", "TFLOP/s", f"TFLOP/s, d = {HEADS[1]}",
                f"speed-up over {number(steps[0][0])}/{steps[0][1]}", "requested", "distinct",
                "DRAM", "workspace"], rows, range(1, 9))]
    return lines


def steps_table(files: Files, rung: str, first: str, last: str, root: str) -> list[str]:
    """Returns the table of a rung's steps from `first` to `last` at N = 2k, below the step that
    `first` follows: requested and DRAM bytes, and per head size and mask the time and how many
    times as fast as the row above it is. `root` is as in ladder_table()."""
    n, way = LADDER_LENGTH, files.own_way((rung, first))
    names = [step for its, step in files.order if its == rung]
    before = files.ladder.before(files.about[rung, first])
    steps = [*([(before.rung, before.name)] if before else []),
             *((rung, name) for name in names[names.index(first):names.index(last) + 1])]
    narrow, rows = files.at(way, n, HEADS[0]), []
    for above, step in zip([None, *steps], steps):
        record = narrow.get(step)
        cells = [bytes_text(bytes_a_head(record, kind)) for kind in ("requested", "dram")]
        for d, causal in POINTS:
            times = [files.gpu.timed[way, its].get((n, d, causal)) if its else None
                     for its in (above, step)]
            old, new = (r["time_ms"] if r else None for r in times)
            cells.append(time_text(new) + (f" ({rate_text(old / new)})" if old and new else ""))
        rows.append([linked(step, root), *cells])
    need(narrow)
    in_one_run = len({(r["commit"], r["date"]) for r in files.gpu.runs_at(n)}) == 1
    return markdown(["step", "requested", "DRAM", *(point_text(*point) for point in POINTS)],
                    rows, range(1, 3 + len(POINTS)), (
        f"N = {n:,}. Bytes are per head with d = {HEADS[0]} and without a mask: *requested* by the "
        "kernels, and served by *DRAM*. Times are for "
        f"{TOKENS // n} × {HIDDEN // HEADS[0]} heads with d = {HEADS[0]} or {TOKENS // n} × "
        f"{HIDDEN // HEADS[1]} with d = {HEADS[1]}, {files.gpu.dtype}, on an "
        f"{files.gpu.machine(n)}. In brackets: how many times as fast as the step above. "
        f"{'All' if in_one_run else 'Not all'} steps were timed in one run; two runs of one step "
        "may differ by 5% or more."))


def peers_table(files: Files) -> list[str]:
    """Returns the rates of the last steps, of FlashAttention-2 and of cuDNN, at every N."""
    gpu = files.gpu
    ours = {way: (rung, gpu.defaults[rung]) for way, rung in files.ladder.beside_peers().items()
            if rung in gpu.defaults}
    lengths = sorted({r["seqlen"] for r in need(gpu.peers) if of_the_paper(r)})
    rows = []
    for (way, step), (d, causal) in itertools.product(ours.items(), POINTS):
        rates = [gpu.rates(way, step), *(gpu.rates(way, backend) for backend in PEERS[:2])]
        rows.append([WAYS[way], str(d), "yes" if causal else "no", *(" / ".join(
            rate_text(rate_at.get((n, d, causal))) for rate_at in rates) for n in lengths)])
    names = [f"{number(rung)}'s `{step}` {WAYS[way]}" for way, (rung, step) in ours.items()]
    return ["Each cell has three rates in TFLOP/s: ours / FlashAttention-2's / cuDNN's, on the "
            f"{gpu.name}; ours is {' and '.join(names)}. The libraries run through "
            f"{gpu.peers[0]['version']}. At each point the three were measured in turn, within "
            "seconds.", "",
            *markdown(["", "d", "causal", *(f"N = {length_text(n)}" for n in lengths)], rows,
                      range(3, 3 + len(lengths)))]


def models_table(files: Files) -> list[str]:
    """Returns the last steps' and the faster peer's times at real models' attention shapes."""
    gpu, ours = files.gpu, files.ladder.beside_peers()
    ratios: dict[str, dict[str, float]] = {way: {} for way in ours}
    rows = []
    for name, point in MODELS.items():
        shape: Record = {**dataclasses.asdict(point), "dtype": gpu.dtype}
        rows.append([name, shape_text(shape)])
        for way, rung in ours.items():
            us = {r.get("library", "ours"): 1e3 * r["time_ms"] for r in [
                *gpu.plain(way, rung=rung, step=gpu.defaults.get(rung)), *gpu.peers]
                if {**shape, "direction": way}.items() <= r.items()}
            peer = min((p for p in PEERS[:2] if p in us), key=us.__getitem__, default="")
            if peer and "ours" in us:
                ratios[way][name] = us[peer] / us["ours"]
            rows[-1] += [rate_text(us.get("ours")), rate_text(us.get(peer)) + (
                f" {library(peer)}" if peer else ""), rate_text(ratios[way].get(name))]
    need(any(ratios.values()))
    columns = [text for way, rung in ours.items() for text in (
        f"{WAYS[way]}: {number(rung)}'s `{gpu.defaults.get(rung)}`, µs", "peer, µs", "ratio")]
    return [" ".join([
        "*Peer* is the faster of FlashAttention-2 and cuDNN through PyTorch, measured in turn with",
        "ours. *Ratio* is the peer's time divided by ours, so it is above 1 where ours is faster.",
        f"Times are medians with the L2 flushed before each run, on an {gpu.machine()}.",
        *(f"{WAYS[way].capitalize()}: {ratios_text(its)}." for way, its in ratios.items() if its)]),
        "", *markdown(["model", "shape", *columns], rows, range(2, 8))]


def decode_text(files: Files) -> list[str]:
    """Returns a sentence with the rates of decode() at the smallest and at the largest cache."""
    points = sorted(point for line in decode(files)["panels"][0].values()
                    for point in zip(line["bytes"], line["ours"], line["cudnn"]))
    (least, slow, _), *_, (most, fast, theirs) = points
    return [f"An {files.gpu.name} reads {bytes_text(least)} at {slow:.2f} times a copy's rate, and "
            f"{bytes_text(most)} at {fast:.2f} times that rate (cuDNN: {theirs:.2f})."]


# ---- how busy kernels keep the units of an SM, from the GPU's counters ----

SIDE = 128  # cycles are scaled to a square of S with so many rows and columns


def schedule_table(files: Files, rung: str, first: str, last: str) -> list[str]:
    """Returns a table for SIDE × SIDE elements of S: cycles of an SM, the tensor cores' fraction of
    them, the clock and the rate. Two rows are a model, in which products and exponentials alternate
    or overlap; the others are measured, one per step from `first` to `last`."""
    found = {(r["step"], r["head_dim"]): r for r in files.gpu.profile
             if r["rung"] == rung and r["kernel"] == "attention"}
    names = [step for its, step in files.order if its == rung
             and (step == first or files.about[its, step].exact_architecture)]
    rows = [["*products, then exponentials*"], ["*products overlap exponentials*"]]
    for d in HEADS:
        products, exps = 4 * SIDE**2 * d / MATMUL_FLOPS, SIDE**2 / EXPS
        for row, cycles in zip(rows, (products + exps, max(products, exps))):
            row += [f"{cycles:,.0f}", f"{products / cycles:.0%}", NO_VALUE, NO_VALUE]
    for name in names[names.index(first):names.index(last) + 1]:
        rows.append([f"`{name}`"])
        for d in HEADS:
            r = found.get((name, d))
            rows[-1] += [NO_VALUE] * 4 if not r else [
                f"{r['cycles_of_all'] * SIDE**2 / (flops(r) / 4 / d):,.0f}",
                f"{r['products_busy']:.0f}%",
                f"{r['cycles'] / r['time_ms'] * 1e-6:.2f}",
                rate_text(flops(r) / r["time_ms"] * 1e-9)]
    r = need(found)[max(found, key=lambda key: found[key]["date"])]
    return markdown(["", *(text for d in HEADS for text in (
        f"d = {d}: cycles", "tensor cores", "GHz", "TFLOP/s"))], rows, range(1, 9), (
        f"*Cycles*: cycles of an SM per {SIDE} rows of Q × {SIDE} keys. *Tensor cores*: the "
        "fraction of these cycles in which they work. *GHz*: the SM's clock. *TFLOP/s*: the "
        "kernel's rate. The first two lines are the model, the others the GPU's counters: N = "
        f"{PROFILED_LENGTH:,}, no mask, bf16, on an {r['device_name']}, driver {r['driver']}, "
        f"CUDA {r['cuda']}, {r['date']}."))
