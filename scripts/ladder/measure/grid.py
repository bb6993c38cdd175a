"""Plans what scripts/figures measures: grids of workloads, and the runs that options choose. plan()
returns the runs; key() identifies a run and its lines in a result file."""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import shlex
from typing import Any, Collection, NamedTuple, Sequence, Tuple, Union

from ladder.base.course import (BLOCK_SIZE_COUNTED, BLOCK_SIZE_TIMED, CAPTURED, CAUSAL_COUNTED,
                                FLASH_V2, HIDDEN, LADDER_LENGTH, MODELS, PADDED_COUNTED,
                                PROFILED_LENGTH, QUANTISED, SHIFTED_V, TOKENS)
from ladder.base.files import ROOT
from ladder.base.npy import write_rows
from ladder.base.programs import Ladder, Step
from ladder.base.records import Point, Record

# What identifies a run and its line in a result file; key() returns it.
Key = Union[str, Tuple[Any, ...]]

GRIDS = ("quick", "paper", "long", "decode", "models", "profile")
# The N of the figures that show a single N is first: if interrupted, a run has measured it already.
PAPER_LENGTHS = [2048, 4096, 1024, 8192, 512, 16384]
HEAD_DIMS = [64, 128]
LONG_LENGTHS = [16384, 65536, 32768, 8192, 4096]
# Caches for one query per head: (batch, query heads, heads of K and V, keys).
DECODE_CACHES = [(1, 32, 32, 4096), (1, 32, 8, 4096), (1, 32, 8, 32768), (1, 32, 8, 131072),
                 (1, 64, 1, 32768), (16, 32, 32, 4096), (16, 32, 8, 4096), (16, 32, 8, 32768),
                 (64, 32, 8, 8192)]
SIM_LENGTHS = [128, 256, 512, 1024, 2048]
CHECK_LENGTH = 1024

# N for timing steps that do not stand for their rung: without a mask, and causal. These lengths
# suffice to show a step's own gain.
STEP_LENGTHS = [1024, 2048, 4096], [2048]

# Backends of PyTorch's attention. The table of real models uses the first two.
BACKENDS = ("flash", "cudnn", "efficient", "math")

UNCHECKED = ("--check", "off")
PROFILED = (*UNCHECKED, "--time", "1")  # options of a run under Nsight Compute (ncu)


def paper_point(n: int, d: int, causal: bool, dtype: str) -> Point:
    """Returns the FlashAttention-2 paper's workload at N = n."""
    return Point(max(1, TOKENS // n), max(1, HIDDEN // d), n, d, causal, dtype)


class Measurement(NamedTuple):
    """One run of a step; `options` are the program's options besides the workload."""
    step: Step
    point: Point
    options: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """Returns the program and its options. On the simulator one head stands for many: with
        --sms 1, a step plans for a GPU with a single SM, and one head fills it."""
        step, point = self.step, self.point
        shape: list[Any] = ["--batch", point.batch, "--heads", point.heads,
                            "--seqlen", point.seqlen, "--head-dim", point.head_dim]
        if (point.kv_heads, point.seqlen_kv) != (point.heads, point.seqlen):
            shape += ["--kv-heads", point.kv_heads, "--seqlen-kv", point.seqlen_kv]
        words = [step.program, "--device", step.device, "--step", step.name,
                 *(shape if "--load" not in self.options else []), "--dtype", point.dtype,
                 *(["--causal"] if point.causal else []),
                 *(["--sms", "1"] if step.device == "sim" else []),
                 *self.options]
        return [str(word) for word in words]

    def fields(self) -> Record:
        """Returns the fields that all lines of this run share, those for key() among them."""
        return {"rung": self.step.rung, "step": self.step.name, **dataclasses.asdict(self.point),
                "options": shlex.join(self.options)}

    def text(self) -> str:
        return ", ".join([" ".join(self.step.key), self.point.text(),
                          *filter(None, [" ".join(self.options)])])


class Peer(NamedTuple):
    """One run of PyTorch's attention with one of BACKENDS."""
    library: str  # one of BACKENDS
    direction: str  # "fwd" or "bwd"
    point: Point

    def fields(self) -> Record:
        return {"library": self.library, "direction": self.direction,
                **dataclasses.asdict(self.point)}

    def text(self) -> str:
        return f"PyTorch {self.library}, {self.point.text()}, {self.direction}"


Work = Union[Measurement, Peer]


def key(line: Record) -> Key:
    """Returns what identifies a line: for a run its step, options and workload; for a peer its
    library, direction and workload; for any other line its kind."""
    if "batch" not in line:
        return line["kind"]
    who = ("library", "direction") if "library" in line else ("rung", "step", "options")
    return *(line[name] for name in who), *Point.key(line)


def grid_has(point: Point, step: Step, ladder: Ladder) -> bool:
    """Returns whether a step is run at a point of a grid. It is not if only one of the two is for
    decoding, if the step is too slow there (its registered grid_limit), or if it does not stand for
    its rung and N is not in STEP_LENGTHS."""
    if step.decoding or point.decoding():
        return step.decoding and point.decoding()
    # The paper's workload, B·H·N²·d = 16k·2048·N, requires the same work if N is paper_n.
    paper_n = point.batch * point.heads * point.seqlen**2 * point.head_dim / (TOKENS * HIDDEN)
    limit = step.grid_limit[point.causal]
    return not (limit and paper_n > limit) and (
        point.seqlen in STEP_LENGTHS[point.causal] or ladder.stands_for_its_rung(step)
        or step.key == QUANTISED["step"])


def plan(options: argparse.Namespace, ladder: Ladder, steps: list[Step]) -> list[Work]:
    """Returns, in order, the runs of `steps` that the options ask for; `ladder` has all steps."""
    dtype, usual = options.dtype, [step for step in steps if not step.decoding]
    if options.sim:
        return plan_sim(usual, dtype)
    if not options.steps:
        steps, usual = ([step for step in some if not step.repeats] for some in (steps, usual))
    points: dict[str, list[Point]] = {
        "quick": [paper_point(LADDER_LENGTH, 64, False, dtype)],
        "paper": [paper_point(n, d, causal, dtype) for n in PAPER_LENGTHS
                  for causal in (False, True) for d in HEAD_DIMS],
        "long": [Point(1, 16, n, 128, causal, dtype) for n in LONG_LENGTHS
                 for causal in (False, True)],
        "decode": [Point(batch, heads, 1, d, False, dtype, kv_heads, keys) for d in (128, 64)
                   for batch, heads, kv_heads, keys in DECODE_CACHES],
        "models": [dataclasses.replace(point, dtype=dtype) for point in MODELS.values()],
        "profile": []}
    rungs = ladder.beside_peers().values()
    compared = [step for step in usual
                if step.rung in rungs and ladder.stands_for_its_rung(step)]
    works: list[Work] = []
    for grid in options.grid:
        for point in points[grid]:
            works += in_turn([Measurement(step, point, UNCHECKED)
                              for step in (compared if grid == "models" else steps)
                              if grid_has(point, step, ladder)], rungs,
                             BACKENDS[:2] if grid == "models" else BACKENDS, point)
        if grid == "paper":
            works += [*wide_heads(usual, dtype), *checks(usual, dtype)]
            timed = [step for step in usual if step.key in BLOCK_SIZE_TIMED]
            for d in HEAD_DIMS:
                works += tile_sizes(timed, paper_point(2048, d, False, dtype))
        if grid == "profile":
            works += [Measurement(step, paper_point(PROFILED_LENGTH, d, False, "bf16"), PROFILED)
                      for step in usual if options.steps or step.key == FLASH_V2 or step.rung ==
                      FLASH_V2[0] and step.exact_architecture and not step.by_name_only
                      for d in HEAD_DIMS]
    return works


def in_turn(ours: list[Measurement], compared: Collection[str], libraries: Sequence[str],
            point: Point) -> list[Work]:
    """Returns our runs at a point and PyTorch's, which come directly before those of the rungs
    `compared` with it, so that the GPU is in the same state for both."""
    last = [measurement for measurement in ours if measurement.step.rung in compared]
    peers = [Peer(library, direction, point) for direction in ("fwd", "bwd")
             for library in libraries if not (point.decoding() and direction == "bwd")]
    return [*(other for other in ours if other not in last), *peers, *last]


def checks(steps: list[Step], dtype: str) -> list[Work]:
    """Returns runs that check all rows of each step's outputs against float64."""
    point = Point(1, 2, CHECK_LENGTH, 64, False, dtype)
    return [Measurement(step, point, ("--check", "full", "--input", kind))
            for step in steps for kind in ("normal", "outliers")]


def tile_sizes(steps: list[Step], point: Point) -> list[Work]:
    return [Measurement(step, point, ("--block-q", str(rows), "--block-kv", str(keys), *UNCHECKED))
            for step in steps for rows, keys in step.tiles_for(point.head_dim)]


def wide_heads(steps: list[Step], dtype: str) -> list[Work]:
    """Returns runs of the FP8 step, for its own table, at head sizes that no other step has."""
    return [Measurement(step, paper_point(n, d, causal, dtype), UNCHECKED)
            for step in steps if step.key == QUANTISED["step"] for n in PAPER_LENGTHS
            for causal in (False, True) for d in QUANTISED["head_dims"] if d not in HEAD_DIMS]


def loaded(words: list[str]) -> list[str]:
    """Returns a command's words with an absolute path after --load; writes SHIFTED_V if missing."""
    folder = os.path.join(ROOT, SHIFTED_V)
    if SHIFTED_V in words and not os.path.exists(os.path.join(folder, "v.npy")):
        draw = random.Random(0).gauss
        write_rows(folder, **{name: [[mean + draw(0, 1) for _ in range(64)] for _ in range(rows)]
                              for name, rows, mean in (("q", 64, 0), ("k", 16384, 0),
                                                       ("v", 16384, 1))})
    return [os.path.join(ROOT, word) if word in (CAPTURED, SHIFTED_V) else word for word in words]


def quantised(steps: list[Step]) -> list[Work]:
    """Returns runs of the FP8 step with each setting in its table, and of the step beside it."""
    settings_of = {QUANTISED["step"]: [settings for _, settings in QUANTISED["rows"]],
                   QUANTISED["beside"]: [{}]}
    return [Measurement(step, point, (*options, *(["--set", chosen] if chosen else []),
                                      "--check", "full"))
            for step in steps for settings in settings_of.get(step.key, ())
            for chosen in [",".join(f"{name}={value}" for name, value in settings.items())]
            for _, point, options, _ in QUANTISED["inputs"]]


def plan_sim(steps: list[Step], dtype: str) -> list[Work]:
    works: list[Work] = [Measurement(step, Point(1, 1, n, d, False, dtype))
                         for n in SIM_LENGTHS for d in HEAD_DIMS for step in steps]
    works += [Measurement(step, Point(1, 1, 512, 64, True, dtype)) for step in steps
              if step.rung in CAUSAL_COUNTED]
    works += [Measurement(step, Point(1, 1, 512, 96, False, dtype)) for step in steps
              if step.key in PADDED_COUNTED]
    works += quantised(steps)
    tiled = [step for step in steps if step.key in BLOCK_SIZE_COUNTED]
    for d in HEAD_DIMS:
        works += tile_sizes(tiled, Point(1, 1, 1024, d, False, dtype))
    return works
