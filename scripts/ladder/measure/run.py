"""Measures the ladder over a grid of workloads, into a file that scripts/figures draw shows.

Every program in build/bin runs with each of its steps; where PyTorch is there, its attention is
measured at each point too, in turn with ours. What the file has already is kept, so a run that was
interrupted goes on where it stopped, and a second grid adds to the first. What cannot run is
skipped, and the file says why. Steps that are slow, or only show what they bring, are measured at
some points of a grid alone.

Grids (--grid, several with commas):
  quick  16k tokens in all, hidden size 2048, N = 2k, heads of 64 (half a minute)
  paper  the same workload as in FlashAttention-2's figures 4 to 6: N = 512 … 16k, heads of 64 and
         128, causal or not; besides, times against the tile size, those of numbers of 8 bits with
         heads of 256, and each step's error against float64 (a quarter of an hour on an H200)
  long   batch 1, 16 heads of 128, N = 4k … 64k
  decode one query of each head against caches of 8 MB to 2 GB: the steps for decoding alone, and
         in each peer's record the rate of a device copy of that run (a minute)
  models real models' shapes (scripts/ladder/base/models.jsonl): the rungs that PyTorch is
         compared with (some minutes)
  profile cycles of each step's longest kernel, and how many the tensor cores work, by Nsight
         Compute (ncu, of the CUDA Toolkit): N = 4k; 05's steps for Hopper and the last for every
         GPU, or those that are named. The kernel's time is that of a run without ncu, so that
         cycles over time is the SM's clock at its own speed (some ten minutes)

--sim counts instead of timing: one head, N = 128 … 2k, all steps, all tile sizes. No GPU
is needed, and the same programs give the same file, but for the last digits of errors where a step
adds in any order.

Each GPU has a file of its own, named after it; what its lines are, scripts/results/README.md says.

In the grids times are measured with --check off: checking N = 16k against float64 on the host takes
longer than all of the measurement. Each step's result is checked once, at N = 1k, in full.

Examples:
  scripts/figures measure --grid paper,long
  scripts/figures measure --grid paper 05/sm90 06/sm90
  scripts/figures measure --sim

Exit status: 0 good (what was skipped included); 1 a program failed or gave a wrong result; 2 bad
usage; 3 no GPU.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import signal
import sys

from ladder.base.console import (BAD_USAGE, GOOD, NO_DEVICE, WRONG_RESULT, CommandError, Parser,
                                 some_of)
from ladder.base.files import ROOT, file_of, read_lines
from ladder.base.gpu import machine, output_of
from ladder.base.programs import Ladder, ladder_of, programs_in, run_json, run_quietly
from ladder.base.records import Record
from ladder.base.sources import named
from ladder.measure import peers
from ladder.measure.grid import (GRIDS, PROFILED, TOKENS, UNCHECKED, Measurement, Peer, Work,
                                 key, loaded, plan)
from ladder.measure.results import Results, kept

COMMAND = "scripts/figures measure"
# Field → ncu's metric: cycles of an SM on average and of all of them, and the tensor cores' share.
METRICS = {
    "cycles": "sm__cycles_active.avg", "cycles_of_all": "sm__cycles_active.sum",
    "products_busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"}


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("--grid", type=some_of(*GRIDS), metavar="NAME,...", default=["quick"],
                        help=f"{', '.join(GRIDS)} (default quick)")
    parser.add_argument("--sim", action="store_true",
                        help="count on the simulator (see above), which has a grid of its own")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default=None,
                        help="(default bf16, fp16 where the GPU has no other)")
    parser.add_argument("--time", type=float, default=40, metavar="MS",
                        help="GPU time per measurement (default 40; about as much warms up)")
    parser.add_argument("steps", nargs="*", metavar="STEP", help="such as 05/sm90 (default all)")
    parser.add_argument("--out", metavar="FILE",
                        help="(default scripts/results/GPU.jsonl, such as h100.jsonl; sim.jsonl)")
    parser.add_argument("--again", action="store_true",
                        help="drop what the file has of these, and measure it again; "
                        "interrupted, it goes on without --again; the ceilings too, unless steps "
                        "are chosen")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs (default build/bin; scripts/run builds them)")
    options = parser.parse_args(words)
    if not 0 < options.time < math.inf:
        parser.error("--time must be above 0")
    if not options.dtype:
        answer = "" if options.sim else output_of(
            sys.executable, os.path.join(ROOT, "common/machine/gpu/compute_capability.py"))
        options.dtype = "fp16" if answer and int(answer) < 80 else "bf16"
    return options


class Bench:
    """Measures into a file. `about`: what its lines say of the machine."""

    def __init__(self, options: argparse.Namespace, ladder: Ladder, results: Results,
                 about: Record) -> None:
        self.options, self.ladder, self.results, self.about = options, ladder, results, about
        self.pytorch: peers.Gpu | None = None
        self.failures = 0

    def go(self, works: list[Work]) -> None:
        self.find_pytorch()
        wanted = {key(work.fields()): work for work in works if self.wanted(work)}
        self.results.texts.update(dict.fromkeys(wanted, ""))  # missing is better than old
        self.results.save()
        for number, work in enumerate(wanted.values(), 1):
            print(f"[{number}/{len(wanted)}] {work.text()}", file=sys.stderr, flush=True)
            if isinstance(work, Measurement):
                (self.profile if work.options == PROFILED else self.run)(work)
            elif self.pytorch:
                self.ask_peer(self.pytorch, work)

    def wanted(self, work: Work) -> bool:
        """What cannot run here is in the file, too; what failed is not, and is tried again."""
        return (self.options.again or not self.results.texts.get(key(work.fields()))) and (
            isinstance(work, Measurement) or bool(self.pytorch))

    def find_pytorch(self) -> None:
        """Starts PyTorch, if it is there, and measures the ceilings."""
        if self.options.sim:
            return
        try:
            self.pytorch = peers.Gpu(peers.import_torch())
        except CommandError as stop:
            print(f"no peers and no ceilings: {stop}", file=sys.stderr)
            return
        # Where only some steps are measured again, the ceilings stay as the others had them.
        if not self.results.texts.get("ceilings") or self.options.again and not self.options.steps:
            try:
                self.put("ceilings", [peers.ceilings(self.pytorch, self.options.time)])
            except Exception as error:  # whatever PyTorch may throw: the peers go on
                print(f"no ceilings: {peers.reason(error)}", file=sys.stderr)
            self.pytorch.free()

    def put(self, kind: str, records: list[Record], measurement: Work | None = None) -> None:
        fields = measurement.fields() if measurement else {}
        lines = [{"kind": kind, **fields, **record, **self.about} for record in records]
        self.results.put(key(fields) if measurement else kind,
                         [kept(line) for line in lines] if kind == "run" else lines)

    def run(self, measurement: Measurement) -> None:
        rung, words = measurement.step.rung, loaded(measurement.command())
        if not self.options.sim:
            words += ["--time", f"{self.options.time:g}"]
            # Where a figure or a table may show it: reading the counters costs about as much time
            # again as the rest of a run.
            if (measurement.options == UNCHECKED and not measurement.point.causal
                    and measurement.point.batch * measurement.point.seqlen == TOKENS):
                words.append("--dram")
        status, records, message = run_json(words)
        message = message.removeprefix(f"{rung}: ")
        if records:
            self.put("run", records, measurement)
        if status in (NO_DEVICE, BAD_USAGE) and not records:
            self.skip(measurement, status, message)
        elif status != GOOD or not records:
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            message = message or ("wrong result" if records else "it reported nothing")
            self.fail(measurement, f"({ended}): {message}")

    def fail(self, measurement: Work, why: str) -> None:
        self.failures += 1
        print(f"{measurement.text()}: failed {why}", file=sys.stderr)

    def profile(self, measurement: Measurement) -> None:
        """Of a step's own pass, which is the backward one where it has one."""
        words = measurement.command()
        plain = measurement._replace(options=UNCHECKED).command()
        status, records, message = run_json(plain)
        if status:
            return self.fail(measurement, f"(status {status}): {message}")
        kernel = max(records[-1]["kernels"], key=lambda kernel: kernel["time_ms"])
        # By the NVTX range around a launch: kernels of two names may be one template's.
        status, said, message = run_quietly(
            ["ncu", "--csv", "--page", "raw", "--clock-control", "none", "--metrics",
             ",".join(METRICS.values()), "--nvtx", "--nvtx-include", f"{kernel['name']}/",
             "--launch-count", "1", *words])
        # Lines of names, units and values, between what the program and ncu say.
        rows = list(csv.DictReader(line for line in said.splitlines() if line.startswith('"')))
        if status or len(rows) != 2:  # ncu says itself how a user comes to read the GPU's counters
            return self.fail(measurement, f"under ncu:\n{message}\n{said}")
        return self.put("profile", [{
            "kernel": kernel["name"], "time_ms": kernel["time_ms"],
            **{name: records[-1][name] for name in ("direction", "device", "device_name")},
            **{name: float(rows[1][metric].replace(",", "")) for name, metric in METRICS.items()}}],
                        measurement)

    def skip(self, measurement: Work, status: int, why: str) -> None:
        print(f"{measurement.text()}: left out: {why}", file=sys.stderr)
        self.put("skipped", [{"status": status, "reason": why}], measurement)

    def ask_peer(self, pytorch: peers.Gpu, peer: Peer) -> None:
        record, why = peers.measure(pytorch, peer, self.options.time)
        # Only here: an exception keeps the frames that it went through, and so the tensors.
        pytorch.free()
        if record:
            self.put("peer", [record], peer)
        else:
            self.skip(peer, NO_DEVICE, why)


def main(words: list[str]) -> int:
    options = parse(words)
    programs = programs_in(options.bin)
    ladder = ladder_of(programs, "sim" if options.sim else "gpu")
    if not ladder.steps:
        raise CommandError("the programs were built without CUDA; --sim counts on the simulator",
                           NO_DEVICE)
    works = plan(options, ladder, named(options.steps, ladder.steps) or ladder.steps)
    gpu, about = (None, {}) if options.sim else machine(options.commit)
    path = os.path.abspath(options.out or file_of(gpu))
    results = Results(path, gpu)
    # Steps for decoding have a grid of their own and are not listed; a step that the file lists
    # stays, even where its program has gone.
    now = [{"kind": "step", **step.registered()} for step in ladder.steps if not step.decoding]
    names = {step.key for step in ladder.steps}
    gone = [line for line in read_lines(path)
            if line["kind"] == "step" and (line["rung"], line["step"]) not in names]
    # Shows at once whether the file can be written.
    results.put("step", sorted(gone + now, key=lambda step: step["rung"]))
    bench = Bench(options, ladder, results, about)
    bench.go(works)
    print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
    if bench.failures:
        print(f"{bench.failures} failed: see above.", file=sys.stderr)
        return WRONG_RESULT
    return GOOD
