"""The files of scripts/figures measure: what was measured, what was counted, and of which steps."""

import functools
import os

from ladder.console import BAD_USAGE, Stop
from ladder.files import newest_measured, parsed
from ladder.programs import Step
from ladder.steps import Ladder
from ladder.bench.workload import HIDDEN, TOKENS


class Missing(Exception):
    """A figure, or a series of one, cannot be drawn, and why."""


def need(panels, what="nothing to show"):
    if not panels:
        raise Missing(what)
    return panels


def series(entries, value):
    """x and y of a line against N; nothing where the value is not known."""
    points = {e.seqlen: value(e) for e in entries}
    points = {n: y for n, y in points.items() if y is not None}
    return {"x": sorted(points), "y": [points[n] for n in sorted(points)]}


class Entry:
    """A record and the command that it came from. A step is (rung, variant)."""

    def __init__(self, command, record):
        self.command, self.record = command, record
        self.step = (record["rung"], record["variant"])
        self.tiled = "--block-" in command
        self.aside = self.tiled or "--set" in command  # not the step as it is
        self.input = record["input"]

    def __getattr__(self, name):
        return self.record[name]

    def has_settings(self, settings=None):
        """Those that were asked for: none is the step as it is."""
        return self.record["settings"] == settings if settings else not self.aside

    def full_error(self):
        """Of O against full precision: a step that rounds its inputs has two errors."""
        errors = self.record["errors"]
        return errors.get("o_full") or errors["o"]

    def heads_in_all(self):
        return self.record["batch"] * self.record["heads"]

    def is_paper(self, n=None, d=None, causal=None):
        """The paper's workload, 16k tokens in all and hidden size 2048, at this point of it."""
        r = self.record
        return (r["batch"] * r["seqlen"] == TOKENS and r["heads"] * r["head_dim"] == HIDDEN
                and not self.aside and self.input == "normal" and n in (None, r["seqlen"])
                and d in (None, r["head_dim"]) and causal in (None, r["causal"]))


def flops(r):
    """As the papers count."""
    forward = (4 * r["seqlen"] * r["seqlen_kv"] * r["head_dim"] * r["heads"] * r["batch"]
               / (2 if r["causal"] else 1))
    return forward * (2.5 if r["direction"] == "bwd" else 1)


class Measured:
    """One file of bench.py; empty where there is none. Of one I/O type: bf16 if it has it."""

    def __init__(self, path, dtype=None):
        self.path, self.there = path, os.path.exists(path)
        self.machine, self.ceilings = {}, None
        self.dtype, self.of_other_types = "", 0
        self.entries, self.peers, self.skipped, self.steps = [], [], [], {}
        self.defaults, self.points = {}, {}
        if not self.there:
            return
        data = read_json(path)
        try:
            self.machine, self.ceilings = data["machine"], data["ceilings"]
            self.entries = [Entry(c, r) for c, r in zip(data["commands"], data["records"])]
            self.peers, self.skipped = data["peers"], data["skipped"]
            types = [e.dtype for e in self.entries]
            self.dtype = dtype or ("bf16" if "bf16" in types else next(iter(types), ""))
            self.of_other_types = sum(dtype != self.dtype for dtype in types)
            self.entries = [e for e in self.entries if e.dtype == self.dtype]
            self.peers = [r for r in self.peers if r["dtype"] == self.dtype]
            device = "gpu" if self.machine["gpu"] else "sim"
            self.steps = {(s["rung"], s["variant"]): Step(device=device, **s)
                          for s in data["steps"]}
        except (KeyError, TypeError) as error:
            raise Stop(f"{os.path.relpath(path)} was not written by scripts/figures measure "
                       f"({error})",
                       BAD_USAGE) from None
        # A rung's default here is the last step that ran, and not for its name's sake alone: some
        # are for another GPU than this one.
        ran = {e.step for e in self.entries}
        self.defaults = dict(key for key, step in self.steps.items()
                             if key in ran and not step.by_name_only)

    def find(self, direction="fwd", **wanted):
        return [e for e in self.entries if e.direction == direction
                and all(e.record[name] == value for name, value in wanted.items())]

    @functools.cached_property
    def of_paper(self):
        return [e for e in self.entries if e.is_paper() and e.time_ms is not None]

    def paper(self, direction="fwd", n=None, d=None, causal=None):
        wanted = (direction, n, d, causal)
        if wanted not in self.points:
            self.points[wanted] = [e for e in self.of_paper if e.direction == direction
                                   and e.is_paper(n, d, causal)]
        return self.points[wanted]

    def plain(self, direction="fwd", **wanted):
        return [e for e in self.find(direction, **wanted)
                if not e.aside and e.input == "normal"]

    def paper_peers(self, direction, backend, d, causal):
        return sorted((r for r in self.peers if r["direction"] == direction
                       and r["variant"] == backend and r["head_dim"] == d
                       and r["causal"] == causal and r["batch"] * r["seqlen"] == TOKENS
                       and r["heads"] * d == HIDDEN), key=lambda r: r["seqlen"])

    def in_turn(self, way, backend, step):
        """Whether the step was measured right after the backend wherever the paper's workload has
        both; way: fwd, bwd or both."""
        ways = ("fwd", "bwd") if way == "both" else (way,)
        points = {(e.head_dim, e.causal, e.seqlen) for one in ways for e in self.paper(one)
                  if e.step == step}
        return all(" ".join(step) in r.get("beside", ()) for one in ways
                   for d, causal in {point[:2] for point in points}
                   for r in self.paper_peers(one, backend, d, causal)
                   if (d, causal, r["seqlen"]) in points)

    def is_default(self, step):
        return self.defaults.get(step[0]) == step[1]


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return parsed(file.read())
    except OSError as error:
        raise Stop(f"cannot read {os.path.relpath(path)}: {error.strerror}", BAD_USAGE) from None
    except ValueError as error:
        raise Stop(f"{os.path.relpath(path)} is no JSON: {error}", BAD_USAGE) from None


NONE = os.devnull + "/none"


class Files:
    """A GPU's file with the sim's counts and traces beside it, marks of the clock, and another
    GPU's file; or the sim's alone."""

    def __init__(self, path):
        if not os.path.exists(path):
            raise Stop(f"there is no {os.path.relpath(path)}: scripts/figures measure makes it, or "
                       "counts it with --sim", BAD_USAGE)
        first = Measured(path)
        folder = os.path.dirname(os.path.abspath(path))
        sim = os.path.join(folder, "sim.json")
        if first.machine["gpu"] is None:
            self.gpu, self.sim = Measured(NONE), first
        else:
            self.gpu, self.sim = first, Measured(sim)
        other = self.gpu.there and newest_measured(folder, but=self.gpu.machine["gpu"])
        self.other = Measured(other or NONE, self.gpu.dtype)
        traces = os.path.join(folder, "traces.json")
        traced = read_json(traces) if os.path.exists(traces) else {}
        self.traces, self.pipelines = traced.get("traces", []), traced.get("pipelines", [])
        clock = os.path.join(folder, "clock.json")  # of scripts/figures clock
        self.clock = read_json(clock) if os.path.exists(clock) else None
        # The ladder's order: the sim lacks what is for one GPU, and the other way round. What they
        # say of a step differently is the GPU's where there is one.
        order = sorted([*self.sim.steps, *self.gpu.steps], key=lambda step: step[0])
        self.about = {step: self.gpu.steps.get(step) or self.sim.steps[step] for step in order}
        self.order = list(self.about)
        self.ladder = Ladder(self.about.values())

    def steps_of(self, entries):
        """[(step, its entries)] in the ladder's order."""
        found = [(step, [e for e in entries if e.step == step]) for step in self.order]
        return [(step, of) for step, of in found if of]

    def base(self):
        """The step that all others are compared with."""
        return self.order[0]

    def variants(self, rung):
        return [step[1] for step in self.order if step[0] == rung]

    def own_way(self, step):
        """The direction that a step is about: with a backward pass its forward is an earlier
        rung's."""
        return "bwd" if self.about[step].backward else "fwd"

    def is_default(self, step):
        """The GPU's default, or without one the sim's: a figure of both shows one step of a
        rung."""
        return {**self.sim.defaults, **self.gpu.defaults}.get(step[0]) == step[1]

    def is_aside(self, step):
        return self.about[step].by_name_only

    def stands_for_its_rung(self, step):
        """On the GPU: the default, or where that is for one architecture what any GPU runs."""
        rung = step[0]
        portable = self.ladder.last_portable(rung)
        return self.gpu.is_default(step) or (
            portable is not None and step == (rung, portable.variant)
            and rung in self.gpu.defaults
            and self.about[rung, self.gpu.defaults[rung]].exact_architecture)

    def look(self, step):
        """How a step is drawn: its colour, and its rung's place in the ladder."""
        return {"rung": step[0], "colour": self.about[step].colour,
                "place": self.ladder.rungs().index(step[0])}

    def memory(self):
        return self.gpu.machine.get("memory_bytes")
