"""The files of scripts/figures measure: what was measured, what was counted, and of which steps."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
from typing import Any, Iterable, Mapping, TypeVar

from ladder.base.console import BAD_USAGE, Stop
from ladder.base.course import HIDDEN, TOKENS
from ladder.base.files import read_lines
from ladder.base.programs import Ladder, Step, step_of
from ladder.base.records import Record, flops, requested, total
from ladder.show.names import Contender, Data, Shape, StepKey, label

T = TypeVar("T")
MARKERS = "osD^vPX<>ph*"  # of figures, by a rung's place in the ladder


class Missing(Exception):
    """The data of a figure or a table is not measured."""


def need(data: T | None) -> T:
    """The data, of which there has to be some."""
    if not data:
        raise Missing
    return data


def series(points: Mapping[int, float | None]) -> Data:
    """A line through {x: y}, nothing where y is not known."""
    known = sorted(x for x, y in points.items() if y is not None)
    return {"x": known, "y": [points[x] for x in known]}


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run: its record, and what figures and tables read of it."""

    record: Record
    step: StepKey
    tiled: bool  # with a tile that was asked for
    aside: bool  # so, or with settings: not the step as it is
    bytes_a_head: Data  # by kind, None where it is not known
    errors: dict[str, Record]  # by output, none where nothing was checked
    rung: str
    options: str
    device: str
    dtype: str
    input: str
    batch: int
    heads: int
    kv_heads: int
    seqlen: int
    seqlen_kv: int
    head_dim: int
    causal: bool
    time_ms: Any  # these two floats, or None on the sim
    tflops: Any


READ_AS_THEY_ARE = [field.name for field in dataclasses.fields(Entry)][6:]  # from rung on


def entry_of(record: Record) -> Entry:
    tiled = "--block-" in record["options"]
    amounts = {"requested": requested(record), "workspace": record["workspace_bytes"],
               **{kind: total(record, kind) for kind in ("distinct", "dram")}}
    heads = record["batch"] * record["heads"]
    return Entry(
        record, (record["rung"], record["step"]), tiled, tiled or "--set" in record["options"],
        {kind: None if amount is None else amount / heads for kind, amount in amounts.items()},
        record["errors"] or {}, **{name: record[name] for name in READ_AS_THEY_ARE})


def of_the_paper(r: Record) -> bool:
    """The paper's workload: 16k tokens in all and hidden size 2048."""
    return r["batch"] * r["seqlen"] == TOKENS and r["heads"] * r["head_dim"] == HIDDEN


class Measured:
    """A file of scripts/figures measure, of one I/O type (bf16 if it has it); empty without one."""

    def __init__(self, path: str, dtype: str | None = None) -> None:
        self.path = path
        lines: dict[str, list[Record]] = {
            kind: [] for kind in ("step", "run", "peer", "skipped", "ceilings")}
        try:
            for line in read_lines(path):
                lines[line["kind"]].append(line)
            self.runs, self.skipped = lines["run"], lines["skipped"]
            self.ceilings = next(iter(lines["ceilings"]), None)
            self.name = next((r["device_name"] for r in self.runs if r["device"] == "gpu"), "")
            types = [r["dtype"] for r in self.runs]
            self.dtype = dtype or ("bf16" if "bf16" in types else next(iter(types), ""))
            self.entries = [entry_of(r) for r in self.runs if r["dtype"] == self.dtype]
            self.peers = [r for r in lines["peer"] if r["dtype"] == self.dtype]
            self.steps: dict[StepKey, Step] = {(s["rung"], s["step"]): step_of(
                {name: value for name, value in s.items() if name != "kind"},
                device="gpu" if self.name else "sim") for s in lines["step"]}
        except (KeyError, TypeError) as error:
            raise Stop(f"{os.path.relpath(path)} was not written by scripts/figures measure "
                       f"({error})", BAD_USAGE) from None
        # A rung's default here is the last step that ran, and not for its name's sake alone: some
        # are for another GPU than this one.
        ran = {e.step for e in self.entries}
        self.defaults = dict(key for key, step in self.steps.items()
                             if key in ran and not step.by_name_only)

    def find(self, direction: str = "fwd", **wanted: Any) -> list[Entry]:
        """The entries whose records have these fields."""
        fields = {"direction": direction, **wanted}.items()
        return [e for e in self.entries if fields <= e.record.items()]

    def plain(self, direction: str = "fwd", **wanted: Any) -> list[Entry]:
        return [e for e in self.find(direction, **wanted)
                if not e.aside and e.input == "normal"]

    def checked(self, step: StepKey, settings: Record | None = None,
                **wanted: Any) -> tuple[Entry, Record]:
        """An entry of a step as it is, or with settings, and its error of O against full precision:
        a step that rounds its inputs has two errors."""
        entry = need([e for e in self.find(rung=step[0], step=step[1], **wanted) if e.errors
                      and not e.tiled and (e.record.get("settings") == settings if settings
                                           else not e.aside)])[0]
        return entry, entry.errors.get("o_full") or entry.errors["o"]

    def paper(self, direction: str = "fwd", **wanted: Any) -> list[Entry]:
        """The entries of the paper's workload that were timed."""
        return [e for e in self.plain(direction, **wanted)
                if of_the_paper(e.record) and e.time_ms is not None]

    @functools.cached_property
    def timed(self) -> dict[tuple[str, Contender], dict[Shape, Record]]:
        """The timed records of the paper's workload by direction and contender, in order of N."""
        timed: dict[tuple[str, Contender], dict[Shape, Record]] = collections.defaultdict(dict)
        records: list[tuple[Contender, Record]] = [
            (e.step, e.record) for way in ("fwd", "bwd") for e in self.paper(way)]
        records += [(r["library"], r) for r in self.peers if of_the_paper(r)]
        for contender, r in sorted(records, key=lambda record: record[1]["seqlen"]):
            timed[r["direction"], contender][r["seqlen"], r["head_dim"], r["causal"]] = r
        return timed

    def rates(self, way: str, contender: Contender) -> dict[Shape, float]:
        """TFLOP/s; `way` may be both, forward and backward together."""
        if way != "both":
            return {shape: r["tflops"] for shape, r in self.timed[way, contender].items()}
        forward, backward = (self.timed[direction, contender] for direction in ("fwd", "bwd"))
        return {shape: (flops(forward[shape]) + flops(r))
                / (forward[shape]["time_ms"] + r["time_ms"]) * 1e-9
                for shape, r in backward.items() if shape in forward}

    def rates_by_n(self, way: str, contender: Contender, d: int, causal: bool) -> dict[int, float]:
        return {n: rate for (n, *point), rate in self.rates(way, contender).items()
                if point == [d, causal]}

    def ratios(self, way: str, contender: Contender, rival: Contender) -> dict[Shape, float]:
        """How much faster the contender is than the rival."""
        theirs = self.rates(way, rival)
        return {shape: rate / theirs[shape]
                for shape, rate in self.rates(way, contender).items() if shape in theirs}

    def in_turn(self, way: str, backend: str, step: StepKey) -> bool:
        """Whether the step was measured right after the backend wherever the paper's workload has
        both; way: fwd, bwd or both."""
        return all(" ".join(step) in r.get("beside", ())
                   for direction in (("fwd", "bwd") if way == "both" else (way,))
                   for shape, r in self.timed[direction, backend].items()
                   if shape in self.timed[direction, step])

    def roofs(self) -> Record:
        """The rates of a copy and of matrix products, which were measured beside the steps."""
        return need(self.ceilings)

    def decoding(self) -> list[Entry]:
        return [e for e in self.plain(seqlen=1, causal=False) if e.seqlen_kv > 1]

    def is_default(self, step: StepKey) -> bool:
        return self.defaults.get(step[0]) == step[1]


class Files:
    """A GPU's file with the sim's counts and traces beside it."""

    def __init__(self, path: str) -> None:
        self.gpu, folder = Measured(path), os.path.dirname(os.path.abspath(path))
        if not self.gpu.name:
            raise Stop(f"{os.path.relpath(path)} holds no GPU's measurements: scripts/figures "
                       "measure makes such a file", BAD_USAGE)
        self.sim = Measured(os.path.join(folder, "sim.jsonl"))
        self.traces = read_lines(os.path.join(folder, "traces.jsonl"))
        self.profile = read_lines(os.path.join(folder, "profile.jsonl"))
        # In the ladder's order: the sim lacks steps for one GPU, and the other way round. Where
        # both have a step, what the GPU's file says of it counts.
        steps = {**self.sim.steps, **self.gpu.steps}
        self.about = {step: steps[step] for step in sorted(steps, key=lambda step: step[0])}
        self.order = list(self.about)
        self.ladder = Ladder(self.about.values())

    def steps_of(self, entries: Iterable[Entry],
                 way: str | None = None) -> list[tuple[StepKey, list[Entry]]]:
        """[(step, its entries)] in the ladder's order; of the steps that are about a direction."""
        by_step: dict[StepKey, list[Entry]] = {
            step: [] for step in self.order if way in (None, self.own_way(step))}
        for entry in entries:
            if entry.step in by_step:
                by_step[entry.step].append(entry)
        return [(step, its_entries) for step, its_entries in by_step.items() if its_entries]

    def base(self) -> StepKey:
        """The step that all others are compared with."""
        return self.order[0]

    def own_way(self, step: StepKey) -> str:
        """The direction that a step is about: with a backward pass its forward is an earlier
        rung's."""
        return "bwd" if self.about[step].backward else "fwd"

    def stands_for_its_rung(self, step: StepKey) -> bool:
        """On the GPU: the default, or where that is for one architecture what any GPU runs."""
        return (self.gpu.is_default(step)
                or self.about[step] == self.ladder.last_portable(step[0]))

    def look(self, step: StepKey, more: str = "") -> Data:
        """How a step is drawn: its registration's colour, its rung's marker, and its name."""
        return {"rung": step[0], "colour": self.about[step].colour,
                "marker": MARKERS[self.ladder.rungs().index(step[0]) % len(MARKERS)],
                "label": label(step, self) + more}
