"""Reads result files, and names the steps, points and amounts that figures and tables show. The
functions that make these take a Files object: one GPU's results and the simulator's."""

from __future__ import annotations

import collections
import os
from statistics import geometric_mean
from typing import Any, Container, Dict, Mapping, Sequence, Tuple, TypeVar, Union

from ladder.base.console import BAD_USAGE, CommandError
from ladder.base.course import HIDDEN, TOKENS
from ladder.base.files import ROOT, course_pages, read, read_lines
from ladder.base.programs import Ladder, Step, step_of
from ladder.base.records import Point, Record, requested, total
from ladder.base.text import NO_VALUE

Data = Dict[str, Any]            # the data of a figure, panel, line, point or row
StepKey = Tuple[str, str]        # a step's rung and its name
Contender = Union[StepKey, str]  # a step, or a backend of PyTorch
Shape = Tuple[int, int, bool]    # N, d, causal
T = TypeVar("T")
MARKERS = "osD^vPX<>ph*"  # markers in figures, in the order of the rungs

PEER_NAMES = {"flash": "PyTorch, FlashAttention-2", "cudnn": "PyTorch, cuDNN",
              "efficient": "PyTorch, efficient", "math": "PyTorch, plain"}
PEERS = list(PEER_NAMES)
WAYS = {"fwd": "forward", "bwd": "backward"}
HEADS = (64, 128)
POINTS = [(d, causal) for d in HEADS for causal in (False, True)]


class Missing(Exception):
    """Raised by the function of a figure or table if its data are not measured."""


def need(data: T | None) -> T:
    """Returns the data; raises Missing if they are empty."""
    if not data:
        raise Missing
    return data


def series(points: Mapping[int, float | None]) -> Data:
    """Returns a line through {x: y}, without the points whose y is None."""
    known = sorted(x for x, y in points.items() if y is not None)
    return {"x": known, "y": [points[x] for x in known]}


def step_key(record: Record) -> StepKey:
    return record["rung"], record["step"]


def bytes_a_head(record: Record | None, kind: str) -> float | None:
    """Returns a record's bytes of a kind (requested, distinct, dram or workspace) per query head;
    None if there is no record or it lacks them."""
    if not record:
        return None
    amount = (record["workspace_bytes"] if kind == "workspace" else
              requested(record) if kind == "requested" else total(record, kind))
    return None if amount is None else amount / (record["batch"] * record["heads"])


def of_the_paper(r: Record) -> bool:
    """Returns whether a record is of the paper's workload: 16k tokens in total, hidden size 2048,
    and equally many queries and keys."""
    return (r["batch"] * r["seqlen"] == TOKENS and r["heads"] * r["head_dim"] == HIDDEN
            and (r["kv_heads"], r["seqlen_kv"]) == (r["heads"], r["seqlen"]))


class Measured:
    """The lines of the result file `path` for one I/O type, by default bf16 if the file has it. If
    there is no such file, there are no lines."""

    def __init__(self, path: str, dtype: str | None = None) -> None:
        self.path = path
        lines: dict[str, list[Record]] = {
            kind: [] for kind in ("step", "run", "peer", "skipped", "ceilings", "profile")}
        try:
            for line in read_lines(path):
                lines[line["kind"]].append(line)
            self.runs, self.skipped, self.profile = (
                lines[kind] for kind in ("run", "skipped", "profile"))
            self.ceilings = next(iter(lines["ceilings"]), None)
            self.name = next((r["device_name"] for r in self.runs if r["device"] == "gpu"), "")
            types = [r["dtype"] for r in self.runs]
            self.dtype = dtype or ("bf16" if "bf16" in types else next(iter(types), ""))
            self.records = [r for r in self.runs if r["dtype"] == self.dtype]
            self.peers = [r for r in lines["peer"] if r["dtype"] == self.dtype]
            self.steps: dict[StepKey, Step] = {(s["rung"], s["step"]): step_of(
                {name: value for name, value in s.items() if name != "kind"},
                device="gpu" if self.name else "sim") for s in lines["step"]}
            self.timed = self.times()
        except (KeyError, TypeError) as error:
            raise CommandError(f"{os.path.relpath(path)} was not written by scripts/figures "
                               f"measure ({error})", BAD_USAGE) from None
        # A rung's default is its last step that ran on this GPU, asides excepted; the registered
        # default may be for another GPU.
        ran = set(map(step_key, self.records))
        self.defaults = dict(key for key, step in self.steps.items()
                             if key in ran and not step.by_name_only)

    def find(self, direction: str = "fwd", **wanted: Any) -> list[Record]:
        """Returns the records of a direction whose fields have these values."""
        fields = {"direction": direction, **wanted}.items()
        return [r for r in self.records if fields <= r.items()]

    def plain(self, direction: str = "fwd", **wanted: Any) -> list[Record]:
        """Like find(), but returns only runs with the step's own tiles and the usual inputs. These
        have no options or, on a GPU, only --check off."""
        return self.find(direction, options="--check off" if self.name else "", **wanted)

    def times(self) -> dict[tuple[str, Contender], dict[Shape, Record]]:
        """Returns the paper workload's records, {(direction, contender): {shape: record}}, by N."""
        timed: dict[tuple[str, Contender], dict[Shape, Record]] = collections.defaultdict(dict)
        records: list[tuple[Contender, Record]] = [
            (step_key(r), r) for way in ("fwd", "bwd") for r in self.plain(way)]
        records += [(r["library"], r) for r in self.peers]
        for contender, r in sorted(records, key=lambda record: record[1]["seqlen"]):
            if of_the_paper(r) and "time_ms" in r:
                shape = r["seqlen"], r["head_dim"], r["causal"]
                timed[r["direction"], contender][shape] = r
        return timed

    def rates(self, way: str, contender: Contender) -> dict[Shape, float]:
        """Returns a contender's TFLOP/s by shape."""
        return {shape: r["tflops"] for shape, r in self.timed[way, contender].items()}

    def rates_by_n(self, way: str, contender: Contender, d: int, causal: bool) -> dict[int, float]:
        """Returns {N: TFLOP/s} of a contender for one head size and mask."""
        return {n: rate for (n, *point), rate in self.rates(way, contender).items()
                if point == [d, causal]}

    def ratios(self, way: str, contender: Contender, rival: Contender) -> dict[Point, float]:
        """Returns a rival's time divided by the contender's, for all workloads with both times."""
        times: list[dict[Point, float]] = []
        for who in (contender, rival):
            records = (self.plain(way, rung=who[0], step=who[1]) if isinstance(who, tuple) else
                       [r for r in self.peers if (r["library"], r["direction"]) == (who, way)])
            times.append({Point(*Point.key(r)): r["time_ms"]
                          for r in records if "time_ms" in r})
        ours, theirs = times
        return {point: theirs[point] / ours[point] for point in ours if point in theirs}

    def text(self) -> str:
        return f"{self.name}, {self.dtype}"

    def machine(self, n: int | None = None) -> str:
        """Returns the GPU's name, its latest driver and CUDA version, and the range of dates: over
        all runs or, if n is given, over runs_at(n)."""
        runs = sorted(need(self.runs_at(n) if n else self.runs), key=lambda r: r["date"])
        oldest, newest = runs[0], runs[-1]
        first = f"{oldest['date']} to " if oldest["date"] != newest["date"] else ""
        return (f"{self.name}, driver {newest['driver']}, CUDA {newest['cuda']}, "
                f"{first}{newest['date']}")

    def runs_at(self, n: int) -> list[Record]:
        """Returns the runs of the paper's workload at N = n with heads of 64 and 128."""
        return [r for way in ("fwd", "bwd") for r in self.plain(way, seqlen=n)
                if of_the_paper(r) and r["head_dim"] in HEADS]

    def roofs(self) -> Record:
        """Returns the measured rates of a device copy and of matrix products, or raises Missing."""
        return need(self.ceilings)

    def decoding(self) -> list[Record]:
        """Returns the records with one query per head."""
        return [r for r in self.plain(seqlen=1, causal=False) if r["seqlen_kv"] > 1]

    def is_default(self, step: StepKey) -> bool:
        return self.defaults.get(step[0]) == step[1]


class Files:
    """A GPU's file, and sim.jsonl in the same folder."""

    def __init__(self, path: str) -> None:
        self.gpu, folder = Measured(path), os.path.dirname(os.path.abspath(path))
        if not self.gpu.name:
            raise CommandError(f"{os.path.relpath(path)} holds no GPU's measurements: "
                               "scripts/figures measure makes such a file", BAD_USAGE)
        self.sim = Measured(os.path.join(folder, "sim.jsonl"))
        # In the ladder's order. Either file may lack steps that the other has; a step in both is
        # taken from the GPU's file.
        steps = {**self.sim.steps, **self.gpu.steps}
        self.about = {step: steps[step] for step in sorted(steps, key=lambda step: step[0])}
        self.order = list(self.about)
        self.base = self.order[0]  # the ladder's first step, the reference for speed-ups
        self.ladder = Ladder(self.about.values())

    def at(self, way: str, n: int, d: int) -> dict[StepKey, Record]:
        """Returns {step: timed record} of the paper's workload at N = n without a mask."""
        return {step: at[n, d, False] for step in self.order
                if (n, d, False) in (at := self.gpu.timed[way, step])}

    def own_way(self, step: StepKey) -> str:
        """Returns the direction that a step is about: "bwd" if it has a backward pass, because its
        forward pass is an earlier rung's or nearly so."""
        return "bwd" if self.about[step].backward else "fwd"

    def stands_for_its_rung(self, step: StepKey) -> bool:
        """Returns whether a step is its rung's default on this GPU, or its last portable one."""
        return (self.gpu.is_default(step)
                or self.about[step] == self.ladder.last_portable(step[0]))

    def look(self, step: StepKey, more: str = "") -> Data:
        """Returns how a step is drawn: its registered colour, its rung's marker, and its name (the
        rung's, if the rung has only one step) followed by `more`."""
        alone = len(self.ladder.of(step[0])) == 1
        return {"rung": step[0], "colour": self.about[step].colour,
                "marker": MARKERS[self.ladder.rungs().index(step[0]) % len(MARKERS)],
                "label": (step[0].replace("_", " ") if alone else label(step)) + more}


# ---- names of steps, points and amounts ----

def number(rung: str) -> str:
    """Returns "05" for "05_flash_v2"."""
    return rung.partition("_")[0]


def label(step: StepKey) -> str:
    """Returns a step's name in figures, such as "05 large_tiles"."""
    return f"{number(step[0])} {step[1]}"


def linked(step: StepKey, root: str) -> str:
    """Returns a Markdown link to the place that teaches a step: the heading "Step `name`" or, for
    an aside, the page of that name; without either, its rung's lesson."""
    rung, name = step
    place = f"{rung}/README.md"
    for path in course_pages():
        if os.path.relpath(path, ROOT).startswith(f"{rung}/"):
            if f"\n### Step `{name}`\n" in read(path):
                place = f"{os.path.relpath(path, ROOT)}#step-{name}"
            elif os.path.basename(path) == f"{name}.md":
                place = os.path.relpath(path, ROOT)
    return f"[{number(rung)} `{name}`]({root}{place})"


def library(backend: str) -> str:
    """Returns the name of PyTorch's backend, such as "cuDNN" for "cudnn"."""
    return PEER_NAMES[backend].partition(", ")[2]


def point_text(d: int, causal: bool) -> str:
    return f"d = {d}{', causal' if causal else ''}"


def length_text(n: float, _: Any = None) -> str:
    """Returns "2k" for 2048; the second argument is the position that matplotlib passes."""
    return f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"


def ratios_text(ratios: Mapping[str, float]) -> str:
    """Returns the mean of {workload: ratio}, the worst, and how many are 1 or more, in words."""
    worst = min(ratios, key=ratios.__getitem__)
    return (f"geometric mean {geometric_mean(ratios.values()):.2f}, worst {ratios[worst]:.2f} "
            f"({worst}), 1 or more for {sum(r >= 1 for r in ratios.values())} of {len(ratios)}")


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]],
             right: Container[int] = (), note: str = "") -> list[str]:
    """Returns a table's lines and its note; `right` holds the indices of right-aligned columns."""
    lines = ["| " + " | ".join(header) + " |",
             "|" + "|".join("--:" if i in right else "---" for i in range(len(header))) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return [*lines, "", note] if note else lines


def over_lengths(cells: Mapping[Shape, str]) -> list[str]:
    """Returns a table with one row per head size and mask, and one column per N."""
    lengths, points = sorted({n for n, *_ in cells}), sorted({shape[1:] for shape in cells})
    return markdown(["", *(f"N = {length_text(n)}" for n in lengths)], [
        [point_text(*point), *(cells.get((n, *point), NO_VALUE) for n in lengths)]
        for point in points], range(1, 1 + len(lengths)))
