"""What scripts/figures measures: from options to commands, in order."""

import collections
import shlex

from ladder.course import BLOCK_SIZE_TIMED, QUANTISED
from ladder.bench.inputs import CAPTURED, SHIFTED_V
from ladder.bench.workload import HIDDEN, TOKENS, Point, paper_point

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

IGNORED_IN_KEYS = ("--time", "--dram", "--json")  # how it is measured, not what


class Config(collections.namedtuple(
        "Config", "rung variant batch heads seqlen head_dim causal dtype options")):
    """One run of a program; `options` beyond the workload, as the program takes them."""

    def words(self, device):
        shape = [] if "--load" in self.options else [
            "--batch", self.batch, "--heads", self.heads, "--seqlen", self.seqlen, "--head-dim",
            self.head_dim]
        words = [self.rung, "--device", device, "--variant", self.variant, *shape,
                 "--dtype", self.dtype, *(["--causal"] if self.causal else []), *self.options]
        return [str(word) for word in words]

    def work(self):
        """Relative to the paper's workload: B·H·N²·d over 16k·2048 is N itself there."""
        return self.batch * self.heads * self.seqlen**2 * self.head_dim / (TOKENS * HIDDEN)

    def text(self):
        more = " ".join(self.options)
        return (f"{self.rung} {self.variant}, N {self.seqlen}, d {self.head_dim}"
                f"{', causal' if self.causal else ''}{', ' if more else ''}{more}")

    def workload(self):
        found = self._asdict()
        del found["options"]
        return found


def key(self):
        return tuple(value for value in self if value is not None)


def key(command):
    """A command without what only says how it is measured."""
    words, kept = iter(shlex.split(command)), []
    for word in words:
        if word == "--time":
            next(words, None)
        elif word not in IGNORED_IN_KEYS:
            kept.append(word)
    return shlex.join(kept)


def config(step, point, options=()):
    cache = ("--kv-heads", point.kv_heads, "--seqlen-kv", point.seqlen_kv)
    return Config(step.rung, step.variant, *point[:6],
                  (*(map(str, cache) if point.seqlen_kv else ()), *options))


def is_quantised(step):
    """Its times have a table of their own."""
    return (step.rung, step.variant) == QUANTISED["step"]


def too_long(one, step, ladder):
    """Why a configuration of a grid is not run, or None."""
    mask = " under the causal mask" if one.causal else ""
    limit = step.grid_limit[one.causal]
    if limit and one.work() > limit:
        return (f"slow: the grid has it{mask} up to the work of the paper's N = {limit}, and this "
                f"is that of N = {one.work():.0f}")
    lengths = STEP_LENGTHS[one.causal]
    if one.seqlen not in lengths and not (
            ladder.stands_for_its_rung(step) or is_quantised(step)):
        return (f"an earlier step of its rung: the grid has it{mask} at N = "
                f"{', '.join(map(str, lengths))}")
    return None


def ladder_at(points, steps, ladder=None):
    """[(point, [Config], [(Config, why it is left out)])]; without a ladder none is left out."""
    found = []
    for point in points:
        ones, left_out = [], []
        for step in steps:
            one = config(step, point)
            why = too_long(one, step, ladder) if ladder else None
            if why:
                left_out.append((one, why))
            else:
                ones.append(one)
        found.append((point, ones, left_out))
    return found


def plan(options, ladder, steps):
    """What to run of the steps that were chosen, in order: [(point, [Config], [(Config, why)])];
    None for a point where no peer is measured."""
    dtype = options.dtype
    decoding = [step for step in steps if step.decoding]
    steps = [step for step in steps if not step.decoding]
    if options.sim:
        return plan_sim(steps, dtype)
    if options.axes:
        causal = {"yes": [True], "no": [False]}.get(options.causal, [False, True])
        points = [paper_point(n, d, c, dtype, options.batch, options.heads)
                  for n in options.seqlen or PAPER_LENGTHS
                  for d in options.head_dim or HEAD_DIMS for c in causal]
        return unchecked(ladder_at(points, steps))
    found = []
    for grid in options.grid or ["quick"]:
        if grid == "quick":
            found += unchecked(ladder_at([paper_point(2048, 64, False, dtype)], steps, ladder))
            found.append((None, checks(steps, dtype), []))
        elif grid == "paper":
            points = [paper_point(n, d, causal, dtype) for n in PAPER_LENGTHS
                      for causal in (False, True) for d in HEAD_DIMS]
            found += unchecked(ladder_at(points, steps, ladder))
            found += unchecked([(None, wide_heads(steps, dtype), [])])
            timed = [step for step in steps if (step.rung, step.variant) in BLOCK_SIZE_TIMED]
            found.append((None, checks(steps, dtype) + [
                one for d in HEAD_DIMS for one in tile_sizes(
                    timed, paper_point(2048, d, False, dtype), ["--check", "off"])], []))
        elif grid == "decode":
            points = [Point(batch, heads, 1, d, False, dtype, kv_heads, keys)
                      for d in (128, 64) for batch, heads, kv_heads, keys in DECODE_CACHES]
            found += unchecked(ladder_at(points, decoding))
        else:
            points = [Point(1, 16, n, 128, causal, dtype) for n in LONG_LENGTHS
                      for causal in (False, True)]
            found += unchecked(ladder_at(points, steps, ladder))
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
            for step in steps for rows, keys in step.tiles_for(point.head_dim)]


def wide_heads(steps, dtype):
    """The step of numbers of 8 bits at head sizes that nothing else is timed at."""
    return [config(step, paper_point(n, d, causal, dtype))
            for step in steps if is_quantised(step) for n in PAPER_LENGTHS
            for causal in (False, True) for d in QUANTISED["head_dims"] if d not in HEAD_DIMS]


# Of course.QUANTISED's inputs those that are files: what their shapes are, and the option.
LOADED = {"captured": (Point(1, 2, 256, 64, True, "fp16"), ["--load", CAPTURED]),
          "shifted_v": (Point(1, 1, 64, 64, False, "fp16"), ["--load", SHIFTED_V])}


def quantised(steps):
    """The step with settings at each row of its table, and the one beside it."""
    found = []
    for step in steps:
        settings = ([settings for _, settings in QUANTISED["rows"]] if is_quantised(step) else
                    [{}] if (step.rung, step.variant) == QUANTISED["beside"] else [])
        for one in settings:
            chosen = ["--set", ",".join(f"{name}={value}" for name, value in one.items())] if one \
                else []
            chosen += ["--check", "full"]
            for _, d, kind in QUANTISED["inputs"]:
                if d:
                    point, options = Point(1, 8, 1024, d, False, "fp16"), ["--input", kind]
                else:
                    point, options = LOADED[kind]
                found.append(config(step, point, [*options, *chosen]))
    return found


def plan_sim(steps, dtype):
    points = [Point(1, 1, n, d, False, dtype) for n in SIM_LENGTHS for d in (64, 128)]
    points += [Point(1, 1, 512, d, True, dtype) for d in (64, 128)]
    found = [(None, [config(step, point) for step in steps], []) for point in points]
    for kind in dict.fromkeys((dtype, "fp16")):  # of fp16 a paper's claim speaks
        outliers = Point(1, 1, 512, 64, False, kind)
        found.append((None, [config(step, outliers, ["--input", "outliers"]) for step in steps],
                      []))
    found.append((None, quantised(steps), []))
    # The tiles of a step with a backward pass are its forward pass's, which another rung shows.
    tiled = [step for step in steps if not step.backward]
    found += [(None, tile_sizes(tiled, Point(1, 1, 1024, d, False, dtype), ["--check", "off"]), [])
              for d in (64, 128)]
    return found
