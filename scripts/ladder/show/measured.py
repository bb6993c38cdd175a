"""The files of scripts/figures measure: what was measured, what was counted, and of which steps."""

import collections
import functools
import os
import re

from ladder.base.console import BAD_USAGE, Stop
from ladder.base.course import HIDDEN, TOKENS
from ladder.base.files import newest_measured, read_lines
from ladder.base.programs import Ladder, step_of
from ladder.base.records import flops, requested, total
from ladder.show.names import label

MARKERS = "osD^vPX<>ph*"  # of figures, by a rung's place in the ladder


class Missing(Exception):
    """What a figure or a table shows is not measured."""


def need(found):
    if not found:
        raise Missing
    return found


def series(points):
    """A line through {x: y}, nothing where y is not known."""
    known = sorted(x for x, y in points.items() if y is not None)
    return {"x": known, "y": [points[x] for x in known]}


class Entry:
    """A record, with its fields. A step is (rung, its name)."""

    def __init__(self, record):
        vars(self).update(record)
        self.record, self.step = record, (record["rung"], record["step"])
        self.tiled = "--block-" in record["options"]
        self.aside = self.tiled or "--set" in record["options"]  # not the step as it is
        amounts = {"requested": requested(record), "workspace": record["workspace_bytes"],
                   **{kind: total(record, kind) for kind in ("distinct", "dram")}}
        self.bytes_a_head = {kind: None if amount is None else amount / (self.batch * self.heads)
                             for kind, amount in amounts.items()}


def of_the_paper(r):
    """The paper's workload: 16k tokens in all and hidden size 2048."""
    return r["batch"] * r["seqlen"] == TOKENS and r["heads"] * r["head_dim"] == HIDDEN


class Measured:
    """A file of scripts/figures measure, of one I/O type (bf16 if it has it); empty without one."""

    def __init__(self, path, dtype=None):
        self.path, found = path, {"step": [], "run": [], "peer": [], "skipped": [], "ceilings": []}
        try:
            for line in read_lines(path):
                found[line["kind"]].append(line)
            self.runs, self.skipped = found["run"], found["skipped"]
            self.ceilings = next(iter(found["ceilings"]), None)
            self.name = next((r["device_name"] for r in self.runs if r["device"] == "gpu"), None)
            types = [r["dtype"] for r in self.runs]
            self.dtype = dtype or ("bf16" if "bf16" in types else next(iter(types), ""))
            self.entries = [Entry(r) for r in self.runs if r["dtype"] == self.dtype]
            self.peers = [r for r in found["peer"] if r["dtype"] == self.dtype]
            self.steps = {(s["rung"], s["step"]): step_of(
                {name: value for name, value in s.items() if name != "kind"},
                device="gpu" if self.name else "sim") for s in found["step"]}
        except (KeyError, TypeError) as error:
            raise Stop(f"{os.path.relpath(path)} was not written by scripts/figures measure "
                       f"({error})", BAD_USAGE) from None
        # A rung's default here is the last step that ran, and not for its name's sake alone: some
        # are for another GPU than this one.
        ran = {e.step for e in self.entries}
        self.defaults = dict(key for key, step in self.steps.items()
                             if key in ran and not step.by_name_only)

    def find(self, direction="fwd", **wanted):
        wanted = {"direction": direction, **wanted}.items()
        return [e for e in self.entries if wanted <= e.record.items()]

    def plain(self, direction="fwd", **wanted):
        return [e for e in self.find(direction, **wanted)
                if not e.aside and e.input == "normal"]

    def checked(self, step, settings=None, **wanted):
        """An entry of a step as it is, or with settings, and its error of O against full precision:
        a step that rounds its inputs has two errors."""
        entry = need([e for e in self.find(rung=step[0], step=step[1], **wanted) if e.errors
                      and not e.tiled and (e.settings == settings if settings else not e.aside)])[0]
        return entry, entry.errors.get("o_full") or entry.errors["o"]

    def paper(self, direction="fwd", **wanted):
        """What was timed of the paper's workload."""
        return [e for e in self.plain(direction, **wanted)
                if of_the_paper(e.record) and e.time_ms is not None]

    @functools.cached_property
    def timed(self):
        """(direction, step or backend of PyTorch) → {(N, d, causal): record} of the paper's
        workload, by N."""
        found = collections.defaultdict(dict)
        every = [(e.step, e.record) for way in ("fwd", "bwd") for e in self.paper(way)]
        every += [(r["step"], r) for r in self.peers if of_the_paper(r)]
        for one, r in sorted(every, key=lambda one: one[1]["seqlen"]):
            found[r["direction"], one][r["seqlen"], r["head_dim"], r["causal"]] = r
        return found

    def rates(self, way, one):
        """{(N, d, causal): TFLOP/s}; `way` may be both, forward and backward together."""
        if way != "both":
            return {at: r["tflops"] for at, r in self.timed[way, one].items()}
        forward, backward = (self.timed[each, one] for each in ("fwd", "bwd"))
        return {at: (flops(forward[at]) + flops(r)) / (forward[at]["time_ms"] + r["time_ms"]) * 1e-9
                for at, r in backward.items() if at in forward}

    def rates_by_n(self, way, one, *point):
        return {n: rate for (n, *at), rate in self.rates(way, one).items() if at == list(point)}

    def ratios(self, way, one, other):
        """{(N, d, causal): how much faster `one` is, a step or a backend, than the other}"""
        theirs = self.rates(way, other)
        return {at: rate / theirs[at] for at, rate in self.rates(way, one).items() if at in theirs}

    def in_turn(self, way, backend, step):
        """Whether the step was measured right after the backend wherever the paper's workload has
        both; way: fwd, bwd or both."""
        return all(" ".join(step) in r.get("beside", ())
                   for one in (("fwd", "bwd") if way == "both" else (way,))
                   for at, r in self.timed[one, backend].items() if at in self.timed[one, step])

    def roofs(self):
        return need(self.ceilings)

    def decoding(self):
        return [e for e in self.plain(seqlen=1, causal=False) if e.seqlen_kv > 1]

    def did_not_fit(self):
        """[(step, what was skipped, GiB that it needs)]"""
        for one in self.skipped:
            needs = re.search(r"needs ([\d.]+) GiB", one["reason"])
            if needs:
                yield (one["rung"], one["step"]), one, float(needs[1])

    def is_default(self, step):
        return self.defaults.get(step[0]) == step[1]


class Files:
    """A GPU's file with the sim's counts and traces beside it, and another GPU's file."""

    def __init__(self, path):
        self.gpu, folder = Measured(path), os.path.dirname(os.path.abspath(path))
        if not self.gpu.name:
            raise Stop(f"{os.path.relpath(path)} holds no GPU's measurements: scripts/figures "
                       "measure makes such a file", BAD_USAGE)
        self.sim = Measured(os.path.join(folder, "sim.jsonl"))
        self.other = Measured(newest_measured(folder, but=self.gpu.name) or "", self.gpu.dtype)
        self.traces = read_lines(os.path.join(folder, "traces.jsonl"))
        self.profile = read_lines(os.path.join(folder, "profile.jsonl"))
        # In the ladder's order: the sim lacks what is for one GPU, and the other way round. What
        # they say of a step differently is the GPU's where there is one.
        every = {**self.sim.steps, **self.gpu.steps}
        self.about = {step: every[step] for step in sorted(every, key=lambda step: step[0])}
        self.order = list(self.about)
        self.ladder = Ladder(self.about.values())

    def steps_of(self, entries, way=None):
        """[(step, its entries)] in the ladder's order; of the steps that are about a direction."""
        found = {step: [] for step in self.order if way in (None, self.own_way(step))}
        for entry in entries:
            if entry.step in found:
                found[entry.step].append(entry)
        return [(step, of) for step, of in found.items() if of]

    def base(self):
        """The step that all others are compared with."""
        return self.order[0]

    def own_way(self, step):
        """The direction that a step is about: with a backward pass its forward is an earlier
        rung's."""
        return "bwd" if self.about[step].backward else "fwd"

    def stands_for_its_rung(self, step):
        """On the GPU: the default, or where that is for one architecture what any GPU runs."""
        return (self.gpu.is_default(step)
                or self.about[step] == self.ladder.last_portable(step[0]))

    def look(self, step, more=""):
        """How a step is drawn: its registration's colour, its rung's marker, and its name."""
        return {"rung": step[0], "colour": self.about[step].colour,
                "marker": MARKERS[self.ladder.rungs().index(step[0]) % len(MARKERS)],
                "label": label(step, self) + more}
