"""What scripts/figures measures: workloads, and from options to commands, in order."""

import collections
import os
import random
import shlex

from ladder.base.course import (BLOCK_SIZE_TIMED, CAPTURED, HIDDEN, LADDER_LENGTH, LOADED,
                                QUANTISED, SHIFTED_V, TOKENS)
from ladder.base.files import ROOT
from ladder.base.npy import write_rows
from ladder.base.records import Point

GRIDS = ("quick", "paper", "long", "decode")
# What a plot at one N shows comes first: an interrupted run leaves what is most useful.
PAPER_LENGTHS = [2048, 4096, 1024, 8192, 512, 16384]
HEAD_DIMS = [64, 128]
LONG_LENGTHS = [16384, 65536, 32768, 8192, 4096]
# One query of each head: batch, heads, those of K and V, keys.
DECODE_CACHES = [(1, 32, 32, 4096), (1, 32, 8, 4096), (1, 32, 8, 32768), (1, 32, 8, 131072),
                 (1, 64, 1, 32768), (16, 32, 32, 4096), (16, 32, 8, 4096), (16, 32, 8, 32768),
                 (64, 32, 8, 8192)]
SIM_LENGTHS = [128, 256, 512, 1024, 2048]
CHECK_LENGTH = 1024

# Steps that do not stand for their rung show what a step brings; for that these lengths do,
# without and with the causal mask.
STEP_LENGTHS = [1024, 2048, 4096], [2048]

UNCHECKED = ("--check", "off")
PEER = "pytorch"  # in the place of a rung; the step is a backend, its option the direction


def paper_point(n, d, causal, dtype):
    return Point(max(1, TOKENS // n), max(1, HIDDEN // d), n, d, causal, dtype)


class Config(collections.namedtuple("Config", "rung step point options")):
    """One run of a program; `options` beyond the workload, as the program takes them."""

    def words(self, device):
        point = self.point
        shape = ["--batch", point.batch, "--heads", point.heads, "--seqlen", point.seqlen,
                 "--head-dim", point.head_dim]
        if point.decoding():
            shape += ["--kv-heads", point.kv_heads, "--seqlen-kv", point.seqlen_kv]
        words = [self.rung, "--device", device, "--step", self.step,
                 *(shape if "--load" not in self.options else []), "--dtype", point.dtype,
                 *["--causal"] * point.causal, *self.options]
        return [str(word) for word in words]

    def fields(self):
        """What all its lines in a file have; among them those of key()."""
        return {"rung": self.rung, "step": self.step, **self.point._asdict(),
                "options": shlex.join(self.options)}

    def text(self):
        return ", ".join([f"{self.rung} {self.step}", self.point.text(),
                          *filter(None, [" ".join(self.options)])])


def key(line):
    """What a line of a file is known by: a run's by these, another's by what kind it is of."""
    if "options" not in line:
        return line["kind"]
    return tuple(line[name] for name in ("rung", "step", *Point._fields, "options"))


def config(step, point, *options):
    return Config(step.rung, step.name, point, options)


def is_quantised(step):
    """Its times have a table of their own."""
    return (step.rung, step.name) == QUANTISED["step"]


def grid_has(point, step, ladder):
    """Whether a step is run at a point of a grid: it may be too slow there, or an earlier step of
    its rung."""
    # The paper's workload, of B·H·N²·d = 16k·2048·N, with as much work has this N.
    like = point.batch * point.heads * point.seqlen**2 * point.head_dim / (TOKENS * HIDDEN)
    limit = step.grid_limit[point.causal]
    return not (limit and like > limit) and (
        point.seqlen in STEP_LENGTHS[point.causal] or ladder.stands_for_its_rung(step)
        or is_quantised(step))


def ladder_at(points, steps, ladder):
    return [(point, [config(step, point, *UNCHECKED) for step in steps
                     if step.decoding or grid_has(point, step, ladder)]) for point in points]


def plan(options, ladder, steps):
    """What to run of the steps that were chosen, in order: [(point, [Config])]; None for a point
    where no peer is measured."""
    dtype = options.dtype
    decoding = [step for step in steps if step.decoding]
    steps = [step for step in steps if not step.decoding]
    if options.sim:
        return plan_sim(steps, dtype)
    found = []
    for grid in options.grid:
        if grid == "decode":
            found += ladder_at([Point(batch, heads, 1, d, False, dtype, kv_heads, keys)
                                for d in (128, 64)
                                for batch, heads, kv_heads, keys in DECODE_CACHES], decoding,
                               ladder)
        elif grid == "long":
            found += ladder_at([Point(1, 16, n, 128, causal, dtype) for n in LONG_LENGTHS
                                for causal in (False, True)], steps, ladder)
        elif grid == "quick":
            found += ladder_at([paper_point(LADDER_LENGTH, 64, False, dtype)], steps, ladder)
        else:
            found += ladder_at([paper_point(n, d, causal, dtype) for n in PAPER_LENGTHS
                                for causal in (False, True) for d in HEAD_DIMS], steps, ladder)
            found.append((None, wide_heads(steps, dtype)))
            timed = [step for step in steps if (step.rung, step.name) in BLOCK_SIZE_TIMED]
            found.append((None, checks(steps, dtype) + [
                one for d in HEAD_DIMS
                for one in tile_sizes(timed, paper_point(2048, d, False, dtype))]))
    return found


def checks(steps, dtype):
    """Each step against float64, every row."""
    return [config(step, Point(1, 2, CHECK_LENGTH, 64, False, dtype), "--check", "full",
                   "--input", kind) for step in steps for kind in ("normal", "outliers")]


def tile_sizes(steps, point):
    return [config(step, point, "--block-q", str(rows), "--block-kv", str(keys), *UNCHECKED)
            for step in steps for rows, keys in step.tiles_for(point.head_dim)]


def wide_heads(steps, dtype):
    """The step of numbers of 8 bits at head sizes that nothing else is timed at."""
    return [config(step, paper_point(n, d, causal, dtype), *UNCHECKED)
            for step in steps if is_quantised(step) for n in PAPER_LENGTHS
            for causal in (False, True) for d in QUANTISED["head_dims"] if d not in HEAD_DIMS]


def loaded(words):
    """A command's words with the folders of --load where they are; what is missing is made."""
    folder = os.path.join(ROOT, SHIFTED_V)
    if SHIFTED_V in words and not os.path.exists(os.path.join(folder, "v.npy")):
        draw = random.Random(0).gauss
        write_rows(folder, **{name: [[mean + draw(0, 1) for _ in range(64)] for _ in range(rows)]
                              for name, rows, mean in (("q", 64, 0), ("k", 16384, 0),
                                                       ("v", 16384, 1))})
    return [os.path.join(ROOT, word) if word in (CAPTURED, SHIFTED_V) else word for word in words]


def quantised(steps):
    """The step with settings at each row of its table, and the one beside it."""
    found = []
    for step in steps:
        settings = ([settings for _, settings in QUANTISED["rows"]] if is_quantised(step) else
                    [{}] if (step.rung, step.name) == QUANTISED["beside"] else [])
        for one in settings:
            chosen = ",".join(f"{name}={value}" for name, value in one.items())
            for _, d, kind in QUANTISED["inputs"]:
                point, options = (LOADED[kind] if not d else
                                  (Point(1, 8, 1024, d, False, "fp16"), ["--input", kind]))
                found.append(config(step, point, *options, *(["--set", chosen] if one else []),
                                    "--check", "full"))
    return found


def plan_sim(steps, dtype):
    points = [Point(1, 1, n, d, False, dtype) for n in SIM_LENGTHS for d in HEAD_DIMS]
    points += [Point(1, 1, 512, d, True, dtype) for d in HEAD_DIMS]
    groups = [[config(step, point) for step in steps] for point in points]
    for kind in dict.fromkeys((dtype, "fp16")):  # of fp16 a paper's claim speaks
        outliers = Point(1, 1, 512, 64, False, kind)
        groups.append([config(step, outliers, "--input", "outliers") for step in steps])
    groups.append(quantised(steps))
    # The tiles of a step with a backward pass are its forward pass's, which another rung shows.
    tiled = [step for step in steps if not step.backward]
    groups += [tile_sizes(tiled, Point(1, 1, 1024, d, False, dtype)) for d in HEAD_DIMS]
    return [(None, ones) for ones in groups]
