"""Measures the ladder over grids of workloads, into a file for scripts/figures draw.

Runs each step of every program in build/bin. If PyTorch is installed, its attention is measured at
each point too, in turn with ours. Lines that the file already has are kept, so an interrupted run
continues where it stopped, and a second grid adds to the first. A run that is impossible here is
skipped, and the file says why. Steps that are slow, and steps that do not stand for their rung, are
measured only at some points of a grid.

Grids (--grid takes several, separated by commas):
  quick  16k tokens in total, hidden size 2048, N = 2k, heads of 64 (half a minute)
  paper  the workload of FlashAttention-2's figures 4 to 6: N = 512 … 16k, heads of 64 and 128,
         causal or not; also times for several tile sizes, times of the FP8 step with heads of 256,
         and each step's error against float64 (a quarter of an hour on an H200)
  long   batch 1, 16 heads of 128, N = 4k … 64k
  decode one query per head and caches of 8 MB to 2 GB, only for the steps for decoding; each peer's
         record also has the rate of a device copy in the same run (a minute)
  models shapes of real models (scripts/ladder/base/models.jsonl), for the rungs that are compared
         with PyTorch (some minutes)
  profile cycles of each step's longest kernel, and the tensor cores' percentage of busy cycles,
         from Nsight Compute (ncu, in the CUDA Toolkit), at N = 4k: 05's steps for Hopper and its
         last portable step, or the steps named. The kernel's time comes from a run without ncu, so
         cycles divided by time is the SM's normal clock (some ten minutes)

--sim counts instead of timing: one head, N = 128 … 2k, all steps, all tile sizes. It needs no GPU,
and the same programs give the same file, except for the last digits of errors where a step adds in
no fixed order.

Each GPU has its own file, named after it; scripts/results/README.md explains the lines.

Times are measured with --check off, because checking N = 16k against float64 on the host takes
longer than all measurements. Each step's result is checked once, in full, at N = 1k.

Examples:
  scripts/figures measure --grid paper,long
  scripts/figures measure --grid paper 05/sm90 06/sm90
  scripts/figures measure --sim

Exit status: 0 good, even if runs were skipped; 1 a program failed or gave a wrong result; 2 bad
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
# Field → ncu's metric: cycles per SM, cycles of all SMs, and the tensor cores' percentage of them.
METRICS = {
    "cycles": "sm__cycles_active.avg", "cycles_of_all": "sm__cycles_active.sum",
    "products_busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"}


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("--grid", type=some_of(*GRIDS), metavar="NAME,...", default=["quick"],
                        help=f"{', '.join(GRIDS)} (default quick)")
    parser.add_argument("--sim", action="store_true",
                        help="count on the simulator (see below), which has its own grid")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default=None,
                        help="I/O type (default bf16, or fp16 if the GPU lacks bf16)")
    parser.add_argument("--time", type=float, default=40, metavar="MS",
                        help="GPU time per measurement (default 40), after a warm-up of about the "
                        "same time")
    parser.add_argument("steps", nargs="*", metavar="STEP",
                        help="steps to measure, such as 05/sm90 (default all)")
    parser.add_argument("--out", metavar="FILE", help="file of results (default h100.jsonl for an "
                        "H100, or sim.jsonl, in scripts/results)")
    parser.add_argument("--again", action="store_true",
                        help="replace existing lines of these runs and, unless steps are named, "
                        "the ceilings; if interrupted, continue without --again")
    parser.add_argument("--commit", metavar="HASH",
                        help="commit to record if this tree is not a git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="folder of the programs (default build/bin; scripts/run builds them)")
    options = parser.parse_args(words)
    if not 0 < options.time < math.inf:
        parser.error(f"--time {options.time:g}: give a number of milliseconds above 0")
    if not options.dtype:
        answer = "" if options.sim else output_of(
            sys.executable, os.path.join(ROOT, "common/machine/gpu/compute_capability.py"))
        options.dtype = "fp16" if answer and int(answer) < 80 else "bf16"
    return options


class Bench:
    """Writes measurements to a result file. Each line repeats `about`, which machine() returns."""

    def __init__(self, options: argparse.Namespace, ladder: Ladder, results: Results,
                 about: Record) -> None:
        self.options, self.ladder, self.results, self.about = options, ladder, results, about
        self.pytorch: peers.Gpu | None = None
        self.failures = 0

    def go(self, works: list[Work]) -> None:
        """Does those of the runs that are wanted(), in order, with a line on stderr for each."""
        self.find_pytorch()
        wanted = {key(work.fields()): work for work in works if self.wanted(work)}
        self.results.texts.update(dict.fromkeys(wanted, ""))  # removes old lines: they are stale
        self.results.save()
        for number, work in enumerate(wanted.values(), 1):
            print(f"[{number}/{len(wanted)}] {work.text()}", file=sys.stderr, flush=True)
            if isinstance(work, Measurement):
                (self.profile if work.options == PROFILED else self.run)(work)
            elif self.pytorch:
                self.ask_peer(self.pytorch, work)

    def wanted(self, work: Work) -> bool:
        """Returns whether to do a run: with --again always, else if the file lacks a line for it.
        A skipped run left a line; a run that failed without a result did not, and is repeated."""
        return (self.options.again or not self.results.texts.get(key(work.fields()))) and (
            isinstance(work, Measurement) or bool(self.pytorch))

    def find_pytorch(self) -> None:
        """Starts PyTorch, if it is installed, and measures the ceilings."""
        if self.options.sim:
            return
        try:
            self.pytorch = peers.Gpu(peers.import_torch())
        except CommandError as stop:
            print(f"PyTorch and the ceilings are left out: {stop}", file=sys.stderr)
            return
        # If only some steps are measured again, the ceilings remain those of the others.
        if not self.results.texts.get("ceilings") or self.options.again and not self.options.steps:
            try:
                self.put("ceilings", [peers.ceilings(self.pytorch, self.options.time)])
            except Exception as error:  # whatever PyTorch raises, the peers still run
                print(f"the ceilings are left out: {peers.reason(error)}", file=sys.stderr)
            self.pytorch.free()

    def put(self, kind: str, records: list[Record], measurement: Work | None = None) -> None:
        """Writes a line of this kind for each record; they replace the lines of the same run."""
        fields = measurement.fields() if measurement else {}
        lines = [{"kind": kind, **fields, **record, **self.about} for record in records]
        self.results.put(key(fields) if measurement else kind,
                         [kept(line) for line in lines] if kind == "run" else lines)

    def run(self, measurement: Measurement) -> None:
        rung, words = measurement.step.rung, loaded(measurement.command())
        if not self.options.sim:
            words += ["--time", f"{self.options.time:g}"]
            # Only for runs that may be shown, because reading the counters doubles a run's time.
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
            message = message or ("wrong result" if records else "the program reported nothing")
            self.fail(measurement, f"({ended}): {message}")

    def fail(self, measurement: Work, why: str) -> None:
        self.failures += 1
        print(f"{measurement.text()}: failed {why}", file=sys.stderr)

    def profile(self, measurement: Measurement) -> None:
        """Writes ncu's counters of the longest kernel of a step's last pass, and its time."""
        words = measurement.command()
        plain = measurement._replace(options=UNCHECKED).command()
        status, records, message = run_json(plain)
        if status:
            return self.fail(measurement, f"(status {status}): {message}")
        kernel = max(records[-1]["kernels"], key=lambda kernel: kernel["time_ms"])
        # The NVTX range around its launch selects the kernel, because two may share a template.
        status, said, message = run_quietly(
            ["ncu", "--csv", "--page", "raw", "--clock-control", "none", "--metrics",
             ",".join(METRICS.values()), "--nvtx", "--nvtx-include", f"{kernel['name']}/",
             "--launch-count", "1", *words])
        # Keeps ncu's three lines (names, units, values) and drops messages of the program and ncu.
        rows = list(csv.DictReader(line for line in said.splitlines() if line.startswith('"')))
        if status or len(rows) != 2:  # ncu's message says how to permit access to the counters
            return self.fail(measurement, f"under ncu:\n{message}\n{said}")
        return self.put("profile", [{
            "kernel": kernel["name"], "time_ms": kernel["time_ms"],
            **{name: records[-1][name] for name in ("direction", "device", "device_name")},
            **{name: float(rows[1][metric].replace(",", "")) for name, metric in METRICS.items()}}],
                        measurement)

    def skip(self, measurement: Work, status: int, why: str) -> None:
        print(f"{measurement.text()}: skipped: {why}", file=sys.stderr)
        self.put("skipped", [{"status": status, "reason": why}], measurement)

    def ask_peer(self, pytorch: peers.Gpu, peer: Peer) -> None:
        record, why = peers.measure(pytorch, peer, self.options.time)
        # Freed here, because an exception in measure() keeps its frames, and so the tensors, alive.
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
        raise CommandError("the programs were built without CUDA, so nothing can be timed; --sim "
                           "counts on the simulator", NO_DEVICE)
    works = plan(options, ladder, named(options.steps, ladder.steps) or ladder.steps)
    gpu, about = (None, {}) if options.sim else machine(options.commit)
    path = os.path.abspath(options.out or file_of(gpu))
    results = Results(path, gpu)
    # Lists neither steps for decoding, which have their own grid, nor in a file of times steps that
    # repeat another. A step that the file lists stays listed, even if its program is gone.
    now = [{"kind": "step", **step.registered()} for step in ladder.steps
           if not step.decoding and (options.sim or not step.repeats)]
    names = {step.key for step in ladder.steps}
    gone = [line for line in read_lines(path)
            if line["kind"] == "step" and (line["rung"], line["step"]) not in names]
    # Written now, so that an unwritable file is noticed before anything is measured.
    results.put("step", sorted(gone + now, key=lambda step: step["rung"]))
    bench = Bench(options, ladder, results, about)
    bench.go(works)
    print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
    if bench.failures:
        print(f"{bench.failures} runs failed, for the reasons above.", file=sys.stderr)
        return WRONG_RESULT
    return GOOD
