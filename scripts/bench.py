#!/usr/bin/env python3
"""Measures the ladder over a grid of workloads and writes one JSON file for scripts/plot.py.

Every program in build/bin runs with each of its steps; where PyTorch is there, its attention is
measured at each point too, in turn with ours. What the file has already is kept, so a run that was
interrupted goes on where it stopped, and a second grid adds to the first. What cannot fit, or would
take too long, is skipped, and the file says why.

Grids (--grid, several with commas):
  quick  16k tokens in all, hidden size 2048, N = 2k, heads of 64 (a minute)
  paper  the same workload as in FlashAttention-2's figures 4 to 6: N = 512 … 16k, heads of 64 and
         128, causal or not; besides, 04's tile sizes and each step's error against float64
         (about 10 minutes on an H100)
  long   batch 1, 16 heads of 128, N = 4k … 64k
Or give axes (--seqlen, --head-dim, --batch, --heads, --causal): then only those.

--sim counts instead of timing: one head, N = 128 … 2k, all steps, 04's and 05's tile sizes, and
the traces of 04 and 05, 05's sm90 with its barriers and engines. No GPU is needed, and the same
programs give the same file, but for the last digits of 06's errors: it adds in any order.

The file's keys: machine, ceilings (device copy and cuBLAS matmul, through PyTorch, else null),
steps (what the programs' --list says), commands and records (side by side; a record is what the
program printed, unchanged), peers (PyTorch's backends in the same keys), skipped.

In the grids times are measured with --check off: checking N = 16k against float64 on the host takes
longer than all of the measurement. Each step's result is checked once, at N = 1k, in full.

Examples:
  scripts/bench.py --grid paper,long
  scripts/bench.py --rung 05,06 --seqlen 2k,4k --head-dim 128 --causal
  scripts/bench.py --sim

Exit status: 0 good (what was skipped included); 1 a program failed or gave a wrong result; 2 bad
usage; 3 no GPU.
"""

import argparse
import collections
import contextlib
import datetime
import itertools
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import peers
from ladder import (BAD_USAGE, GOOD, NO_DEVICE, ROOT, WRONG_RESULT, Program, Progress, Stop,
                    json_lines, run_quietly, write_whole)

RESULTS = os.path.join(ROOT, "scripts/results")
TOKENS, HIDDEN = peers.TOKENS, peers.HIDDEN  # the paper's: 16k tokens in all, hidden size 2048
# What a plot at one N shows comes first: an interrupted run leaves the most of use.
PAPER_LENGTHS = [2048, 4096, 1024, 8192, 512, 16384]
LONG_LENGTHS = [16384, 65536, 32768, 8192, 4096]
SIM_LENGTHS = [128, 256, 512, 1024, 2048]
CHECK_LENGTH = 1024

# A step's cost relative to the paper's workload: B·H·N²·d over 16k·2048 is N itself there. Up to
# how much each of the slow ones goes, without and with the causal mask (they skip nothing under
# it, so that it teaches little more). A sample of 00 at 4k takes 0.4 s, and there are about 20.
CAPS = {
    ("00_naive", "naive"): (4096, 2048),
    ("01_tiled_matmul", "tile"): (4096, 2048),
    ("03_online_softmax", "two_pass"): (4096, 2048),
    ("03_online_softmax", "one_pass"): (4096, 2048),
    ("04_flash_v1", "flash_v1"): (8192, 2048),
}
# Steps that are no rung's last show what a step brings; for that these lengths do, without and
# with the causal mask.
STEP_LENGTHS = [1024, 2048, 4096], [2048]

IGNORED_IN_KEYS = ("--time", "--dram", "--json")  # how it is measured, not what


class Config(collections.namedtuple(
        "Config", "rung variant batch heads seqlen head_dim causal dtype options")):
    """One run of a program; `options` beyond the workload, as the program takes them."""

    def words(self, device):
        words = [self.rung, "--device", device, "--variant", self.variant, "--batch", self.batch,
                 "--heads", self.heads, "--seqlen", self.seqlen, "--head-dim", self.head_dim,
                 "--dtype", self.dtype, *(["--causal"] if self.causal else []), *self.options]
        return [str(word) for word in words]

    def work(self):
        return self.batch * self.heads * self.seqlen**2 * self.head_dim / (TOKENS * HIDDEN)

    def text(self):
        more = " ".join(self.options)
        return (f"{self.rung} {self.variant}, N {self.seqlen}, d {self.head_dim}"
                f"{', causal' if self.causal else ''}{', ' if more else ''}{more}")

    def workload(self):
        found = self._asdict()
        del found["options"]
        return found


Point = collections.namedtuple("Point", "batch heads seqlen head_dim causal dtype")


def key(command):
    """A command without what only says how it is measured."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        if word == "--time":
            next(words, None)
        elif word not in IGNORED_IN_KEYS:
            kept.append(word)
    return shlex.join(kept)


# ---- options ----


def words(text):
    return [word for word in text.split(",") if word]


def parse(arguments=None):
    description, epilog = __doc__.split("\n\n", 1)
    parser = argparse.ArgumentParser(prog="scripts/bench.py", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=epilog)
    parser.add_argument("--grid", type=words, metavar="NAME,...",
                        help="quick, paper, long (default quick, unless axes are given)")
    parser.add_argument("--sim", action="store_true", help="count on the sim (see above)")
    parser.add_argument("--out", metavar="FILE",
                        help="(default scripts/results/GPU.json, such as h100.json; sim.json)")
    parser.add_argument("--seqlen", type=peers.lengths, metavar="N,...", help="axis: lengths")
    parser.add_argument("--head-dim", type=peers.lengths, metavar="D,...", help="axis: head sizes")
    parser.add_argument("--batch", type=peers.length, help="axis: (default 16k / seqlen)")
    parser.add_argument("--heads", type=peers.length, help="axis: (default 2048 / head-dim)")
    parser.add_argument("--causal", choices=["yes", "no", "both"], nargs="?", const="yes",
                        help="axis: with the causal mask (default both)")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default="bf16", help="(default bf16)")
    parser.add_argument("--rung", type=words, metavar="NN,...",
                        help="only these, such as 04,05_flash_v2")
    parser.add_argument("--variant", type=words, metavar="NAME,...", help="only these steps")
    parser.add_argument("--time", type=peers.positive, default=40, metavar="MS",
                        help="GPU time per measurement (default 40; about as much warms up)")
    parser.add_argument("--minutes", type=peers.positive, metavar="M",
                        help="begin nothing new after this long; run again to go on")
    parser.add_argument("--peers", type=words, metavar="NAME,...",
                        help=f"PyTorch's backends (default {','.join(peers.BACKENDS)}; none: "
                             "do without)")
    parser.add_argument("--no-dram", action="store_true",
                        help="no DRAM counters (default: where a figure or a table shows them)")
    parser.add_argument("--again", action="store_true",
                        help="forget what the file has of these, and measure it again; "
                        "interrupted, it goes on without --again")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs (default build/bin; scripts/run builds them)")
    options = parser.parse_args(arguments)
    options.axes = any(value is not None for value in (
        options.seqlen, options.head_dim, options.batch, options.heads, options.causal))
    if options.axes and options.grid:
        parser.error("--grid and axes: give one of them")
    for name in options.grid or []:
        if name not in ("quick", "paper", "long"):
            parser.error(f"--grid {name}: there are quick, paper and long")
    if options.sim and (options.grid or options.axes):
        parser.error("--sim has a grid of its own")
    for name in options.peers or []:
        if name not in (*peers.BACKENDS, "none"):
            parser.error(f"--peers {name}: there are {', '.join(peers.BACKENDS)} and none")
    if options.peers is None:
        options.peers = list(peers.BACKENDS)
    return options


# ---- what is measured ----


class Step(collections.namedtuple("Step", "rung variant device default summary tiles")):
    """What --list says of a step, and the tile sizes that --help says are compiled."""


def find_steps(options):
    """The programs' paths, their steps for the device in the order of the ladder, and those of
    them that were asked for."""
    if not os.path.isdir(options.bin):
        raise Stop(f"there is no folder {os.path.relpath(options.bin)}: scripts/run builds the "
                   "programs into build/bin; --bin names another", BAD_USAGE)
    paths = {name: os.path.join(options.bin, name) for name in sorted(os.listdir(options.bin))
             if re.fullmatch(r"\d\d_\w+", name) and not name.endswith("_test")
             and os.access(os.path.join(options.bin, name), os.X_OK)}
    if not paths:
        raise Stop(f"{os.path.relpath(options.bin)} has no rung: scripts/run builds them into "
                   "build/bin; --bin names another folder", BAD_USAGE)
    device = "sim" if options.sim else "gpu"
    found = []
    for rung, path in paths.items():
        listed = [step for step in Program(path).steps() if step["device"] == device]
        status, out, _ = run_quietly([path, "--help"], rung)
        tiles = compiled_tiles(out if status == GOOD else "")
        found += [Step(rung, step["variant"], device, step["default"], step["summary"],
                       tiles.get(step["variant"], [])) for step in listed]
    if not found:
        raise Stop("the programs were built without CUDA; --sim counts on the sim", NO_DEVICE)
    chosen = [step for step in found
              if (not options.rung or any(step.rung.startswith(rung) for rung in options.rung))
              and (not options.variant or step.variant in options.variant)]
    if not chosen:
        there = ", ".join(f"{step.rung} {step.variant}" for step in found)
        raise Stop(f"--rung and --variant leave nothing; there are {there}", BAD_USAGE)
    return paths, found, chosen


def compiled_tiles(help_text):
    """Variant → [(Br, Bc)], from lines such as
      mma                    rows of Q split among the warps [sim]
                             tiles BRxBC: 128x64, 64x64"""
    tiles, variant = {}, None
    for line in help_text.partition("Variants of this rung")[2].splitlines():
        name = re.match(r"  (\w+) ", line)
        listed = re.match(r"\s+tiles BRxBC: (.*)", line)
        if listed and variant:
            tiles[variant] = [tuple(map(int, pair)) for pair in
                              re.findall(r"(\d+)x(\d+)", listed[1])]
        elif name:
            variant = name[1]
    return tiles


def config(step, point, options=()):
    return Config(step.rung, step.variant, *point, tuple(options))


def paper_point(n, d, causal, dtype, batch=None, heads=None):
    return Point(batch or max(1, TOKENS // n), heads or max(1, HIDDEN // d), n, d, causal, dtype)


def too_long(one, steps):
    """Why a configuration of a grid is not run, or None."""
    cap = CAPS.get((one.rung, one.variant))
    if cap and one.work() > cap[one.causal]:
        return (f"slow: the grid has it{' under the causal mask' if one.causal else ''} up to the "
                f"work of the paper's N = {cap[one.causal]}, and this is that of N = "
                f"{one.work():.0f}")
    # Where a rung has an sm90 it is the default, and mma is measured at every point as well.
    step = next(s for s in steps if (s.rung, s.variant) == (one.rung, one.variant))
    lengths = STEP_LENGTHS[one.causal]
    if one.seqlen not in lengths and not step.default and not one.variant.startswith("sm") and (
            one.variant != "mma" or one.rung.startswith("01")):
        return ("an earlier step of its rung: the grid has it"
                f"{' under the causal mask' if one.causal else ''} at N = "
                f"{', '.join(map(str, lengths))}")
    return None


def ladder_at(points, steps, capped=True):
    """[(point, [Config], [(Config, why it is left out)])]"""
    found = []
    for point in points:
        every = [config(step, point) for step in steps]
        left_out = [(one, why) for one in every
                    if capped and (why := too_long(one, steps)) is not None]
        names = {one for one, _ in left_out}
        found.append((point, [one for one in every if one not in names], left_out))
    return found


def plan(options, steps):
    """What to run, in order: [(point, [Config], [(Config, why)])]; None for a point where no peer
    is measured."""
    dtype = options.dtype
    if options.sim:
        return plan_sim(steps, dtype)
    if options.axes:
        causal = {"yes": [True], "no": [False]}.get(options.causal, [False, True])
        points = [paper_point(n, d, c, dtype, options.batch, options.heads)
                  for n in options.seqlen or PAPER_LENGTHS
                  for d in options.head_dim or [64, 128] for c in causal]
        return unchecked(ladder_at(points, steps, capped=False))
    found = []
    for grid in options.grid or ["quick"]:
        if grid == "quick":
            found += unchecked(ladder_at([paper_point(2048, 64, False, dtype)], steps))
            found.append((None, checks(steps, dtype), []))
        elif grid == "paper":
            points = [paper_point(n, d, causal, dtype) for n in PAPER_LENGTHS
                      for causal in (False, True) for d in (64, 128)]
            found += unchecked(ladder_at(points, steps))
            found.append((None, checks(steps, dtype) + [
                one for d in (64, 128) for one in tile_sizes(
                    [s for s in steps if s.rung.startswith("04")],
                    paper_point(2048, d, False, dtype), ["--check", "off"])], []))
        else:
            points = [Point(1, 16, n, 128, causal, dtype) for n in LONG_LENGTHS
                      for causal in (False, True)]
            found += unchecked(ladder_at(points, steps))
    return found


def unchecked(groups):
    return [(point, [one._replace(options=("--check", "off", *one.options)) for one in ones],
             left_out) for point, ones, left_out in groups]


def checks(steps, dtype):
    """Each step against float64, every row."""
    return [config(step, Point(1, 2, CHECK_LENGTH, 64, False, dtype),
                   ["--check", "full", "--input", kind])
            for step in steps for kind in ("normal", "outliers")]


def tile_sizes(steps, point, more=()):
    return [config(step, point, ["--block-q", str(rows), "--block-kv", str(keys), *more])
            for step in steps for rows, keys in step.tiles]


def plan_sim(steps, dtype):
    points = [Point(1, 1, n, d, False, dtype) for n in SIM_LENGTHS for d in (64, 128)]
    points += [Point(1, 1, 512, d, True, dtype) for d in (64, 128)]
    found = [(None, [config(step, point) for step in steps], []) for point in points]
    outliers = Point(1, 1, 512, 64, False, dtype)
    found.append((None, [config(step, outliers, ["--input", "outliers"]) for step in steps], []))
    tiled = [step for step in steps if step.rung[:2] in ("04", "05")]
    found += [(None, tile_sizes(tiled, Point(1, 1, 1024, d, False, dtype), ["--check", "off"]), [])
              for d in (64, 128)]
    return found


# ---- the machine ----


def output_of(*command):
    """What a command printed, or None."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
                              timeout=60, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def commit(given):
    if given:
        return given
    head = output_of("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
    # What was measured before, and text, change nothing in what is measured.
    if head and output_of("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--",
                          ".", ":(exclude)scripts/results", ":(exclude)*.md"):
        head += "+changes"
    return head


def cuda_version():
    nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")
    release = re.search(r"release ([\d.]+)", output_of("nvcc", "--version")
                        or output_of(nvcc, "--version") or "")
    return release and release[1]


def gpu():
    """Name, driver, memory; None where nvidia-smi does not answer."""
    line = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                     "--format=csv,noheader,nounits")
    parts = [part.strip() for part in (line or "").splitlines()[:1] for part in part.split(",")]
    if len(parts) != 3:
        return None
    return {"gpu": parts[0], "driver": parts[1], "memory_bytes": int(parts[2]) * 2**20}


def machine(options):
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    if options.sim:  # the counts depend on the programs alone
        return {"gpu": None, "driver": None, "memory_bytes": None, "clocks": None, "cuda": None,
                "commit": commit(options.commit), "date": today}
    found = gpu()
    if not found:
        raise Stop("no GPU answers (nvidia-smi); --sim counts on the sim", NO_DEVICE)
    return {**found, "clocks": None, "cuda": cuda_version(), "commit": commit(options.commit),
            "date": today}


class Clocks:
    """Reads the GPU's clocks once a second while all else runs."""

    FIELDS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "temperature_c": "temperature.gpu",
              "power_w": "power.draw"}

    def __init__(self):
        self.seen = {name: [] for name in self.FIELDS}
        self.process = None
        with contextlib.suppress(OSError):
            self.process = subprocess.Popen(
                ["nvidia-smi", f"--query-gpu={','.join(self.FIELDS.values())}",
                 "--format=csv,noheader,nounits", "-lms", "1000"], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8")
            threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            for name, text in zip(self.FIELDS, line.split(",")):
                with contextlib.suppress(ValueError):
                    self.seen[name].append(float(text))

    def report(self):
        """Least, median and most of each, or None."""
        return {name: {"min": min(values), "median": statistics.median(values), "max": max(values)}
                for name, values in self.seen.items() if values} or None

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()


# ---- PyTorch, in a process of its own ----


class Peers:
    """scripts/peers.py --serve; `why` says why there is none."""

    def __init__(self, options, progress):
        self.why, self.process, self.errors = None, None, None
        if "none" in options.peers or options.sim:
            self.why = "left out"
            return
        progress.at("starting PyTorch")
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(ROOT, "scripts/peers.py"), "--serve", "--dtype",
             options.dtype, "--time", f"{options.time:g}"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, encoding="utf-8")
        self.version = (self.answer() or [{}])[-1].get("ready")

    def answer(self):
        """The lines up to the one that ends an answer; None where the process has ended."""
        lines = []
        for text in self.process.stdout:
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
            if {"ready", "done", "ceilings"} & set(lines[-1]):
                return lines
        self.process.kill()
        status = self.process.wait()
        self.errors.seek(0)
        said = [line.strip() for line in self.errors if line.strip(" .\n")]
        said = [line for line in said if not line.endswith("...")]  # progress
        self.why = (said[-1] if said else f"it ended with status {status}").removeprefix(
            "scripts/peers.py: ")
        return None

    def ask(self, question):
        if self.why:
            return None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except OSError:  # it has ended; answer() finds out why
            pass
        return self.answer()

    def ceilings(self):
        lines = self.ask({"ceilings": True})
        return lines[-1]["ceilings"] if lines else None

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()


def peer_key(record):
    return tuple(record[name] for name in ("variant", "direction", "batch", "heads", "seqlen",
                                           "head_dim", "causal", "dtype"))


# ---- the file ----


DIRECTIONS = ("fwd", "bwd")


class File:
    """What is measured so far; save() writes all of it or nothing."""

    def __init__(self, path, about):
        self.path = path
        self.machine = about
        self.ceilings = None
        self.steps, self.runs, self.peers, self.skipped = [], {}, {}, {}
        self.kept, self.commits_before = set(), []  # what was in the file and was not measured anew

    def load(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                data = json.load(file)
            commands, records = data["commands"], data["records"]
            if len(commands) != len(records):
                raise ValueError("commands and records differ in number")
            for command, record in zip(commands, records):
                self.runs.setdefault(key(command), (command, []))[1].append(record)
            self.peers = {peer_key(record): record for record in data["peers"]}
            self.skipped = {key(one["command"]): one for one in data["skipped"]}
            self.steps, self.ceilings = data["steps"], data["ceilings"]
            before = data["machine"]
        except FileNotFoundError:
            return
        except OSError as error:
            raise Stop(f"cannot read {os.path.relpath(self.path)}: {error.strerror}",
                       BAD_USAGE) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Stop(f"{os.path.relpath(self.path)} is no file of this script ({error}); --out "
                       "names another", BAD_USAGE) from None
        if before["gpu"] != self.machine["gpu"]:
            raise Stop(f"{os.path.relpath(self.path)} was measured on {before['gpu']}, and this is "
                       f"{self.machine['gpu']}; --out names another file", BAD_USAGE)
        self.kept = {*self.runs, *self.peers}
        self.commits_before = [c for c in (before["commit"] or "").split(", ") if c]
        self.machine["clocks"] = merged(before["clocks"], self.machine["clocks"])

    def add_steps(self, steps):
        """In the ladder's order; a step of which there are records stays, though its program has
        gone."""
        now = [{name: getattr(step, name) for name in ("rung", "variant", "default", "summary")}
               for step in steps]
        names = {(step.rung, step.variant) for step in steps}
        gone = [step for step in self.steps if (step["rung"], step["variant"]) not in names]
        self.steps = sorted(gone + now, key=lambda step: step["rung"])

    def has(self, name):
        return bool(self.runs.get(name) or self.peers.get(name))

    def forget(self, names):
        """They are measured again: if that is interrupted, they are missing rather than old. They
        keep their places."""
        for name in names:
            for of in (self.runs, self.peers):
                if name in of:
                    of[name] = None
            self.kept.discard(name)

    def add_run(self, command, records):
        self.runs[key(command)] = (command, records)
        self.skipped.pop(key(command), None)
        self.kept.discard(key(command))

    def add_peer(self, record):
        self.peers[peer_key(record)] = record
        self.kept.discard(peer_key(record))

    def commits(self):
        """Those that what is in the file was measured at."""
        before = self.commits_before if self.kept else []
        return ", ".join(dict.fromkeys([*before, *filter(None, [self.machine["commit"]])])) or None

    def save(self, clocks=None):
        pairs = [(run[0], record) for run in self.runs.values() if run for record in run[1]]
        data = {"machine": {**self.machine, "commit": self.commits(),
                            "clocks": merged(self.machine["clocks"], clocks)},
                "ceilings": self.ceilings, "steps": self.steps,
                "commands": [command for command, _ in pairs],
                "records": [record for _, record in pairs],
                "peers": [record for record in self.peers.values() if record],
                "skipped": list(self.skipped.values())}
        write_whole(self.path, text_of(data))


def merged(before, now):
    """Clocks of two runs as one: the median is that of the later."""
    if not before or not now:
        return now or before
    return {name: {"min": min(before.get(name, seen)["min"], seen["min"]),
                   "median": seen["median"],
                   "max": max(before.get(name, seen)["max"], seen["max"])}
            for name, seen in now.items()}


def text_of(data):
    """JSON with one item of a list a line, so that a diff shows which changed."""
    parts = []
    for name, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in value)
            parts.append(f"{json.dumps(name)}: [\n{items}\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


# ---- traces ----


TRACED = [("04_flash_v1", "flash_v1"), ("05_flash_v2", "mma")]
TRACE_OPTIONS = ["--device", "sim", "--heads", "1", "--seqlen", "512", "--head-dim", "64",
                 "--block-q", "64", "--block-kv", "64", "--check", "off"]


def trace_of(path, rung, variant, options):
    """What it says of the run, with its tiles and the command, and its other lines."""
    options = ["--variant", variant, *options]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "trace")
        status, said, message = run_quietly([path, *options, "--trace", out, "--json"],
                                            f"tracing {rung} {variant}")
        if status:
            raise Stop(f"{rung}: no trace (status {status}): {message}", WRONG_RESULT)
        record = json_lines(said, rung)[0]
        with open(out, encoding="utf-8") as file:
            head, *lines = [json.loads(line) for line in file]
    return {**head, "block_q": record["block_q"], "block_kv": record["block_kv"],
            "command": shlex.join([rung, *options])}, lines


def traced(path, rung, variant):
    """A trace reduced to rows: {"rung", …, "command", "kernels", "arrays": {name: bytes of a row},
    "events": [[kernel, block, step, array, "r" or "w", first row, past the last row]]}."""
    head, lines = trace_of(path, rung, variant, TRACE_OPTIONS)
    rows = {"Q": head["seqlen"], "K": head["seqlen_kv"], "V": head["seqlen_kv"]}
    size, kernels, events = {}, [], []
    for event in lines:
        size[event["array"]] = max(size.get(event["array"], 0), event["end"])
        if event["kernel"] not in kernels:
            kernels.append(event["kernel"])
    width = {name: max(1, end // rows.get(name, head["seqlen"])) for name, end in size.items()}
    for event in lines:
        row = width[event["array"]]
        one = [kernels.index(event["kernel"]), event["block"], event["step"], event["array"],
               event["op"][0], event["begin"] // row, -(-event["end"] // row)]
        events.append(one)
    return {**head, "kernels": kernels, "arrays": width, "events": events}


# Two pieces of work for block 0, of four tiles of K and V each, with two consumers and with three.
PIPELINED = [("05_flash_v2", "sm90", ["--device", "sim", "--heads", "1", "--seqlen", str(4 * rows),
                                      "--seqlen-kv", "512", "--head-dim", str(d), "--check", "off"])
             for d, rows in ((128, 128), (64, 192))]


def pipelined(path, rung, variant, options):
    """What block 0 asks of Hopper's engines and barriers: {"rung", …, "command", "warps": [[[event,
    name, barrier, number, amount, exps, other FLOPs], …], …]}, as --trace has them. One warp stands
    for a warpgroup that multiplies; a copy's boxes are one."""
    head, lines = trace_of(path, rung, variant, options)
    warps = {}
    for line in lines:
        if "event" in line and line["block"] == 0:
            warps.setdefault(line["warp"], []).append([line[name] for name in (
                "event", "name", "barrier", "number", "amount", "exps", "other_flops")])
    multiply = {warp // 4 for warp, events in warps.items() if any(e[0] == "wgmma" for e in events)}
    kept = []
    for warp, events in sorted(warps.items()):
        if (warp % 4 if warp // 4 in multiply else len(events) == 1):
            continue  # does what the warpgroup's first warp does, or nothing
        mine = []
        for event in events:
            if mine and event[0] in ("tma_load", "tma_store") and event[:4] == mine[-1][:4]:
                mine[-1][4] += event[4]
            else:
                mine.append(event)
        kept.append(mine)
    return {**head, "warps": kept}


def write_traces(options, paths, beside):
    path = os.path.join(os.path.dirname(beside), "traces.json")
    if all(rung in paths for rung, *_ in TRACED + PIPELINED):
        write_whole(path, text_of({
            "traces": [traced(paths[rung], rung, variant) for rung, variant in TRACED],
            "pipelines": [pipelined(paths[rung], rung, variant, options)
                          for rung, variant, options in PIPELINED]}))
        print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)


# ---- all of it ----


class Pace:
    """How long what is left will take, from how long its like took."""

    def __init__(self):
        self.took = {}

    def note(self, one, seconds):
        self.took.setdefault((one.rung, one.variant), []).append(seconds)

    def left(self, ones):
        every = list(itertools.chain(*self.took.values()))
        if not every:
            return ""
        mean = statistics.fmean(every)
        seconds = sum(statistics.fmean(self.took.get((one.rung, one.variant), [mean]))
                      for one in ones)
        return (f", about {seconds / 60:.0f} min left" if seconds >= 90
                else f", about {seconds:.0f} s left")


class Bench:
    def __init__(self, options, paths, steps, file):
        self.options, self.paths, self.steps, self.file = options, paths, steps, file
        self.device = "sim" if options.sim else "gpu"
        self.progress = Progress()
        self.pace = Pace()
        self.failures = []
        self.stopped = False
        self.started = time.monotonic()

    def go(self):
        groups = plan(self.options, self.steps)
        left = [one for _, ones, _ in groups for one in ones if self.wanted(one)]
        left = list(dict.fromkeys(left))
        self.count = len(left)
        self.left = left
        self.new = 0
        self.next_save = 0
        self.clocks = None if self.options.sim else Clocks()
        pytorch = Peers(self.options, self.progress)
        try:
            if pytorch.why and not self.options.sim:
                self.say(f"no peers and no ceilings: {pytorch.why}")
            elif not self.options.sim and (self.options.again or not self.file.ceilings):
                self.progress.at("measuring the ceilings")
                self.file.ceilings = pytorch.ceilings()
            if self.options.again:
                self.file.forget(key(shlex.join(one.words(self.device))) for one in left)
                if not pytorch.why:
                    self.file.forget((name, direction, *point) for point, _, _ in groups if point
                                     for name in self.options.peers for direction in DIRECTIONS)
            for point, ones, left_out in groups:
                for one, why in left_out:
                    self.skip(one, None, why)
                # Ours before 05, then the peers, then 05 and 06, which are compared with them.
                last = [one for one in ones if one.rung >= "05"]
                for one in ones:
                    if one not in last:
                        self.run(one)
                if point and not self.over():
                    self.ask_peers(pytorch, point)
                for one in last:
                    self.run(one)
                if self.over():
                    self.stopped = True
                    break
        finally:
            pytorch.stop()
            if self.clocks:
                self.clocks.stop()
            self.progress.clear()
            self.save()

    def save(self):
        began = time.monotonic()
        self.file.save(self.clocks.report() if self.clocks else None)
        now = time.monotonic()
        # As often as costs a twentieth of the time: what is killed has lost little.
        self.next_save = now + 20 * (now - began)

    def over(self):
        minutes = self.options.minutes
        return minutes is not None and time.monotonic() - self.started > 60 * minutes

    def wanted(self, one):
        if self.options.again:
            return True
        name = key(shlex.join(one.words(self.device)))
        # What failed otherwise than for want of memory is tried again.
        return not self.file.has(name) and self.file.skipped.get(name, {}).get(
            "status") not in (NO_DEVICE, BAD_USAGE)

    def wants_dram(self, one):
        """Where a figure or a table shows it: reading the counters costs about as much time again
        as the rest of a run."""
        if self.options.no_dram or one.causal or one.batch * one.seqlen != TOKENS or (
                "full" in one.options or "--block-q" in one.options):
            return False
        last = any(s.default for s in self.steps if (s.rung, s.variant) == (one.rung, one.variant))
        return (self.options.axes or last or one.variant in ("tile", "mma") or one.seqlen == 2048
                or one.variant.startswith("sm"))

    def say(self, text):
        self.progress.clear()
        print(text, file=sys.stderr, flush=True)

    def skip(self, one, status, why):
        command = shlex.join(one.words(self.device))
        if not self.file.has(key(command)):
            self.file.skipped[key(command)] = {**one.workload(), "command": command,
                                               "status": status, "reason": why}

    def run(self, one):
        if one not in self.left or self.over():
            return
        done = self.count - len(self.left) + 1
        what = f"[{done}/{self.count}{self.pace.left(self.left)}] {one.text()}"
        self.left.remove(one)
        words_of = one.words(self.device)
        if not self.options.sim:
            words_of += ["--time", f"{self.options.time:g}"]
            if self.wants_dram(one):
                words_of.append("--dram")
        began = time.monotonic()
        status, out, message = run_quietly([self.paths[one.rung], *words_of[1:], "--json"], what,
                                           self.progress)
        self.pace.note(one, time.monotonic() - began)
        message = message.removeprefix(f"{one.rung}: ")
        try:
            records = json_lines(out, one.rung)
        except Stop as stop:
            records, status, message = [], WRONG_RESULT, str(stop)
        if status in (NO_DEVICE, BAD_USAGE) and not records:
            self.skip(one, status, message)
            self.say(f"{one.text()}: left out: {message}")
            return
        if status != GOOD or not records or any(r.get("pass") is False for r in records):
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            message = message or ("wrong result" if records else "it reported nothing")
            self.failures.append(one)
            self.say(f"{one.text()}: failed ({ended}): {message}")
        command = shlex.join(words_of)
        if not records:
            self.skip(one, status, message)
            return
        self.file.add_run(command, records)
        self.new += 1
        if time.monotonic() > self.next_save:
            self.save()

    def ask_peers(self, pytorch, point):
        if pytorch.why:
            return
        for direction in DIRECTIONS:
            names = {name: f"pytorch {name} {direction} {' '.join(map(str, point))}"
                     for name in self.options.peers}
            # The same order as peer_key's.
            missing = [name for name in names if self.options.again or (
                not self.file.has((name, direction, *point))
                and names[name] not in self.file.skipped)]
            if not missing:
                continue
            self.progress.at(f"[{self.count - len(self.left)}/{self.count}"
                             f"{self.pace.left(self.left)}] PyTorch, {direction}, N "
                             f"{point.seqlen}, d {point.head_dim}")
            lines = pytorch.ask({"direction": direction, "backends": missing, **{
                name: getattr(point, name) for name in ("head_dim", "causal", "seqlen", "batch",
                                                        "heads")}})
            if lines is None:
                self.say(f"PyTorch ended, going on without: {pytorch.why}")
                return
            for record in lines[:-1]:
                self.file.add_peer(record)
            for name, why in lines[-1]["left_out"].items():
                self.say(f"pytorch {name}, {direction}, N {point.seqlen}, d {point.head_dim}: left "
                         f"out: {why}")
                self.file.skipped[names[name]] = {
                    "rung": "pytorch", "variant": name, "direction": direction,
                    **point._asdict(), "command": names[name], "status": None, "reason": why}


def default_out(about):
    """h100.json for an NVIDIA H100 80GB HBM3."""
    if about["gpu"] is None:
        return os.path.join(RESULTS, "sim.json")
    name = re.search(r"[A-Za-z]*\d+", about["gpu"]) or re.search(r"\w+", about["gpu"])
    return os.path.join(RESULTS, f"{name[0].lower()}.json")


def bench(options):
    paths, found, steps = find_steps(options)
    about = machine(options)
    path = os.path.abspath(options.out or default_out(about))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    file = File(path, about)
    file.load()
    file.add_steps(found)
    file.save()  # finds out now whether it can be written
    kept = len(file.runs)
    work = Bench(options, paths, steps, file)
    try:
        work.go()
    except (KeyboardInterrupt, SystemExit):
        print(f"\nscripts/bench.py: interrupted; {os.path.relpath(path)} has what was measured; "
              "run again to go on", file=sys.stderr)
        raise
    if options.sim:
        write_traces(options, paths, path)
    notes = [f"{work.new} runs new, {kept} were there"]
    peers_there = sum(map(bool, file.peers.values()))
    if peers_there:
        notes.append(f"{peers_there} of peers")
    if file.skipped:
        notes.append(f"{len(file.skipped)} skipped, with reasons")
    print(f"Wrote {os.path.relpath(path)}: {', '.join(notes)}.", file=sys.stderr)
    if work.stopped and work.left:
        print(f"Stopped after {options.minutes:g} minutes with {len(work.left)} runs to go: run "
              "again to go on.", file=sys.stderr)
    if work.failures:
        print(f"{len(work.failures)} failed: see above.", file=sys.stderr)
        return WRONG_RESULT
    return GOOD


def main():
    def terminated(*_):
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")
    try:
        return bench(parse())
    except Stop as stop:
        print(f"scripts/bench.py: {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
