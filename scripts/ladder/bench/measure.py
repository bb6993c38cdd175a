"""Measures the ladder over a grid of workloads and writes one JSON file for scripts/figures draw.

Every program in build/bin runs with each of its steps; where PyTorch is there, its attention is
measured at each point too, in turn with ours. What the file has already is kept, so a run that was
interrupted goes on where it stopped, and a second grid adds to the first. What cannot fit, or would
take too long, is skipped, and the file says why.

Grids (--grid, several with commas):
  quick  16k tokens in all, hidden size 2048, N = 2k, heads of 64 (a minute)
  paper  the same workload as in FlashAttention-2's figures 4 to 6: N = 512 … 16k, heads of 64 and
         128, causal or not; besides, times against the tile size, those of numbers of 8 bits with
         heads of 256, and each step's error against float64 (a quarter of an hour on an H200)
  long   batch 1, 16 heads of 128, N = 4k … 64k
  decode one query of each head against caches of 8 MB to 2 GB: the steps for decoding alone, and
         in each peer's record the rate of a device copy of that run (a minute)
Or give axes (--seqlen, --head-dim, --batch, --heads, --causal): then only those.

--sim counts instead of timing: one head, N = 128 … 2k, all steps, all tile sizes, and the traces
that figures show. No GPU is needed, and the same programs give the same file, but for the last
digits of errors where a step adds in any order.

Each GPU has a file of its own, named after it. Its keys: machine, ceilings (device copy and cuBLAS
matmul, through PyTorch, else null), steps (what the programs' --list says), commands and records
(side by side; a record is what the program printed, unchanged), peers (PyTorch's backends in the
same keys; in beside the steps that were measured right after it), skipped.

In the grids times are measured with --check off: checking N = 16k against float64 on the host takes
longer than all of the measurement. Each step's result is checked once, at N = 1k, in full.

Examples:
  scripts/figures measure --grid paper,long
  scripts/figures measure --rung 05,06 --seqlen 2k,4k --head-dim 128 --causal
  scripts/figures measure --sim

Exit status: 0 good (what was skipped included); 1 a program failed or gave a wrong result; 2 bad
usage; 3 no GPU.
"""

import os
import shlex
import signal
import sys
import time

from ladder.console import (BAD_USAGE, GOOD, NO_DEVICE, WRONG_RESULT, Parser, Progress, Stop,
                            run_command)
from ladder.course import ROOFLINE_EXTRA
from ladder.files import ROOT, file_of
from ladder.bench.grid import GRIDS, key, plan
from ladder.bench.machine import Clocks, machine
from ladder.programs import json_lines, programs_in, run_quietly, rungs
from ladder.bench import peers
from ladder.bench.results import Results, peer_name
from ladder.steps import DIRECTIONS, ladder_of
from ladder.bench.traces import write_traces
from ladder.bench.workload import LADDER_LENGTH, TOKENS, length, lengths, loaded, positive, words


def parse(arguments=None):
    parser = Parser("scripts/figures measure", __doc__)
    parser.add_argument("--grid", type=words, metavar="NAME,...",
                        help="quick, paper, long, decode (default quick, unless axes are given)")
    parser.add_argument("--sim", action="store_true", help="count on the sim (see above)")
    parser.add_argument("--out", metavar="FILE",
                        help="(default scripts/results/GPU.json, such as h100.json; sim.json)")
    parser.add_argument("--seqlen", type=lengths, metavar="N,...", help="axis: lengths")
    parser.add_argument("--head-dim", type=lengths, metavar="D,...", help="axis: head sizes")
    parser.add_argument("--batch", type=length, help="axis: (default 16k / seqlen)")
    parser.add_argument("--heads", type=length, help="axis: (default 2048 / head-dim)")
    parser.add_argument("--causal", choices=["yes", "no", "both"], nargs="?", const="yes",
                        help="axis: with the causal mask (default both)")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default="bf16", help="(default bf16)")
    parser.add_argument("--rung", type=words, metavar="NN,...",
                        help="only these, such as 04,05_flash_v2")
    parser.add_argument("--variant", type=words, metavar="NAME,...", help="only these steps")
    parser.add_argument("--time", type=positive, default=40, metavar="MS",
                        help="GPU time per measurement (default 40; about as much warms up)")
    parser.add_argument("--minutes", type=positive, metavar="M",
                        help="begin nothing new after this long; run again to go on")
    parser.add_argument("--peers", type=words, metavar="NAME,...", default=list(peers.BACKENDS),
                        help=f"PyTorch's backends (default {','.join(peers.BACKENDS)}; none: do "
                        "without)")
    parser.add_argument("--no-dram", action="store_true",
                        help="no DRAM counters (default: where a figure or a table shows them)")
    parser.add_argument("--again", action="store_true",
                        help="forget what the file has of these, and measure it again; "
                        "interrupted, it goes on without --again; the ceilings too, unless --rung "
                        "or --variant chooses steps")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs (default build/bin; scripts/run builds them)")
    parser.set_defaults(seed=0)  # of the peers' input
    options = parser.parse_args(arguments)
    options.axes = any(value is not None for value in (
        options.seqlen, options.head_dim, options.batch, options.heads, options.causal))
    if options.axes and options.grid:
        parser.error("--grid and axes: give one of them")
    for name in options.grid or []:
        if name not in GRIDS:
            parser.error(f"--grid {name}: there are {', '.join(GRIDS)}")
    if options.sim and (options.grid or options.axes):
        parser.error("--sim has a grid of its own")
    for name in options.peers:
        if name not in (*peers.BACKENDS, "none"):
            parser.error(f"--peers {name}: there are {', '.join(peers.BACKENDS)} and none")
    return options


class Bench:
    def __init__(self, options, programs, ladder, steps, results):
        self.options, self.programs, self.results = options, programs, results
        self.ladder, self.steps = ladder, steps
        self.device = "sim" if options.sim else "gpu"
        self.progress = Progress()
        self.failures = []
        self.started = time.monotonic()

    def go(self):
        groups = plan(self.options, self.ladder, self.steps)
        self.left = list(dict.fromkeys(
            one for _, ones, _ in groups for one in ones if self.wanted(self.command(one))))
        self.count = len(self.left)
        self.new = self.next_save = 0
        self.clocks = None if self.options.sim else Clocks()
        self.pytorch = self.find_pytorch()
        compared = self.ladder.beside_peers().values()
        # Of some steps again: the others' ceilings stay.
        afresh = self.options.again and not (self.options.rung or self.options.variant)
        try:
            known = {} if afresh else self.results.ceilings or {}
            if self.pytorch and "matmul_e4m3_tflops" not in known:
                self.progress.at("measuring the ceilings")
                self.results.ceilings = {**self.ceilings(), **known} or None
            if self.options.again:
                self.results.forget(map(self.command, self.left))
                if self.pytorch:
                    for point in filter(None, (point for point, _, _ in groups)):
                        for direction in DIRECTIONS:
                            self.results.forget(self.peers_of(point, direction).values())
            for point, ones, left_out in groups:
                for one, why in left_out:
                    self.skip(one, None, why)
                # The peers just before what is compared with them.
                last = [one for one in ones if one.rung in compared]
                for one in ones:
                    if one not in last:
                        self.run(one)
                if point and self.pytorch and not self.over():
                    self.ask_peers(point, [one for one in last
                                           if self.wanted(self.command(one))])
                for one in last:
                    self.run(one)
        finally:
            if self.clocks:
                self.clocks.stop()
            self.progress.clear()
            self.save()

    def command(self, one):
        return shlex.join(one.words(self.device))

    def find_pytorch(self):
        """Its GPU; None, said why, where there is none."""
        if self.options.sim:
            return None
        try:
            if "none" in self.options.peers:
                raise Stop("left out", GOOD)
            self.progress.at("starting PyTorch")
            return peers.Gpu(peers.import_torch())
        except Stop as stop:
            self.say(f"no peers and no ceilings: {stop}")
            return None

    def ceilings(self):
        try:
            return peers.ceilings(self.pytorch, self.options)
        except Exception as error:  # whatever PyTorch may throw: the peers go on
            self.say(f"no ceilings: {peers.reason(self.pytorch.torch, error, [])}")
            return {}
        finally:
            self.pytorch.free()

    def save(self):
        began = time.monotonic()
        self.results.save(self.clocks.report() if self.clocks else None)
        now = time.monotonic()
        # As often as costs a twentieth of the time: a run that is killed loses little.
        self.next_save = now + 20 * (now - began)

    def over(self):
        minutes = self.options.minutes
        return minutes is not None and time.monotonic() - self.started > 60 * minutes

    def wanted(self, command):
        """What failed is tried again, but not what cannot run here."""
        skipped = self.results.skipped.get(key(command), {"status": GOOD})["status"]
        return self.options.again or not self.results.has(command) and skipped not in (
            None, NO_DEVICE, BAD_USAGE)

    def wants_dram(self, one):
        """Where a figure or a table shows it: reading the counters costs about as much time again
        as the rest of a run."""
        point, name = one.point, (one.rung, one.variant)
        if self.options.no_dram or point.causal or point.batch * point.seqlen != TOKENS or (
                "full" in one.options or "--block-q" in one.options):
            return False
        return (self.options.axes or point.seqlen == LADDER_LENGTH or name in ROOFLINE_EXTRA or any(
            self.ladder.stands_for_its_rung(step) for step in self.steps
            if (step.rung, step.variant) == name))

    def say(self, text):
        self.progress.clear()
        print(text, file=sys.stderr, flush=True)

    def skip(self, one, status, why):
        if not self.results.has(self.command(one)):
            self.results.skip(self.command(one), status, why, rung=one.rung, variant=one.variant,
                              **one.point._asdict())

    def run(self, one):
        if one not in self.left or self.over():
            return
        what = f"{self.place()} {one.text()}"
        self.left.remove(one)
        words = one.words(self.device)
        if not self.options.sim:
            words += ["--time", f"{self.options.time:g}", *["--dram"] * self.wants_dram(one)]
        status, out, message = run_quietly(
            [self.programs[one.rung].path, *loaded(words[1:]), "--json"], what, self.progress)
        message = message.removeprefix(f"{one.rung}: ")
        try:
            records = json_lines(out, one.rung)
        except Stop as stop:
            records, status, message = [], WRONG_RESULT, str(stop)
        if status in (NO_DEVICE, BAD_USAGE) and not records:
            self.say(f"{one.text()}: left out: {message}")
        elif status != GOOD or not records or any(r.get("pass") is False for r in records):
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            message = message or ("wrong result" if records else "it reported nothing")
            self.failures.append(one)
            self.say(f"{one.text()}: failed ({ended}): {message}")
        if not records:
            self.skip(one, status, message)
            return
        self.results.add(shlex.join(words), records)
        self.new += 1
        if time.monotonic() > self.next_save:
            self.save()

    def place(self):
        """Which run this is, of how many."""
        return f"[{self.count - len(self.left) + 1}/{self.count}]"

    def peers_of(self, point, direction):
        """The backends that are asked for, as results are named."""
        return {name: peer_name({**point._asdict(), "variant": name, "direction": direction})
                for name in self.options.peers}

    def ask_peers(self, point, beside):
        """beside: what is measured right after them."""
        beside = sorted({f"{one.rung} {one.variant}" for one in beside})
        for direction in DIRECTIONS[:1] if point.seqlen_kv else DIRECTIONS:
            names = self.peers_of(point, direction)
            missing = [name for name in names if self.wanted(names[name])]
            what = f"{direction}, {point.text()}"
            records, left_out = peers.measure(self.pytorch, point, direction, missing, self.options,
                                             self.progress, f"{self.place()} PyTorch, {what}")
            for name, record in records.items():
                self.results.add(names[name], [{**record, "beside": beside}])
            for name, why in left_out.items():
                self.say(f"pytorch {name}, {what}: left out: {why}")
                self.results.skip(names[name], None, why, rung="pytorch", variant=name,
                                  direction=direction, **point._asdict())


def find_steps(options):
    """The programs by name, the ladder on the device, and the steps of it that were asked for."""
    programs = programs_in(options.bin)
    missing = [rung for rung in rungs() if rung not in programs]
    if missing and not options.rung:
        print(f"{os.path.relpath(options.bin)} lacks {', '.join(missing)}: measuring the others",
              file=sys.stderr)
    device = "sim" if options.sim else "gpu"
    ladder = ladder_of(programs.values(), device)
    # Those that decode have a grid of their own, and stand beside the ladder.
    grids = options.grid or []
    every = [step for step in ladder.steps if not step.decoding or "decode" in grids]
    ladder.steps = [step for step in ladder.steps if not step.decoding]
    if not ladder.steps:
        raise Stop("the programs were built without CUDA; --sim counts on the sim", NO_DEVICE)
    chosen = [step for step in every
              if (not options.rung or any(step.rung.startswith(rung) for rung in options.rung))
              and (not options.variant or step.variant in options.variant)]
    if not chosen:
        there = ", ".join(f"{step.rung} {step.variant}" for step in every)
        raise Stop(f"--rung and --variant leave nothing; there are {there}", BAD_USAGE)
    return programs, ladder, chosen


def bench(options):
    programs, ladder, steps = find_steps(options)
    about = machine(options.sim, options.commit)
    path = os.path.abspath(options.out or file_of(about["gpu"]))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    results = Results(path, about)
    results.load()
    results.add_steps(ladder.steps)
    results.save()  # finds out now whether it can be written
    kept = len({command for command, _ in results.records(of_peers=False)})
    work = Bench(options, programs, ladder, steps, results)
    try:
        work.go()
    except (KeyboardInterrupt, SystemExit):
        print(f"\nscripts/figures measure: interrupted; {os.path.relpath(path)} has what was "
              "measured; run again to go on", file=sys.stderr)
        raise
    if options.sim:
        write_traces(programs, os.path.dirname(path))
    notes = [f"{work.new} runs new, {kept} were there"]
    if theirs := results.records(of_peers=True):
        notes.append(f"{len(theirs)} of peers")
    if results.skipped:
        notes.append(f"{len(results.skipped)} skipped, with reasons")
    print(f"Wrote {os.path.relpath(path)}: {', '.join(notes)}.", file=sys.stderr)
    if work.left:
        print(f"Stopped after {options.minutes:g} minutes with {len(work.left)} runs to go: run "
              "again to go on.", file=sys.stderr)
    if work.failures:
        print(f"{len(work.failures)} failed: see above.", file=sys.stderr)
        return WRONG_RESULT
    return GOOD


if __name__ == "__main__":
    # bench() says itself what an interrupted run has left.
    sys.exit(run_command("scripts/figures measure", lambda: bench(parse()), interrupted=None))
