"""Reads the traces that a program writes with --trace: what each warp did at each line of the
source. common/machine/trace.h defines them. Trace.of() runs a program and reads its trace."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import tempfile

from ladder.base.console import BAD_USAGE, CommandError
from ladder.base.files import ROOT
from ladder.base.programs import json_lines, run_quietly

Ranges = list[tuple[int, int]]  # [begin, end) in bytes
# An event's kind is a text of kEventTexts in common/machine/trace.h. TMA's loads complete on an
# mbarrier; TMA's stores are awaited by the warp that issued them.
LOADS, STORES = ("tma_load", "bulk_load"), ("tma_store", "bulk_add")

# Keys of an event in a trace that become fields of Event unchanged.
SAME = ("launch", "block", "warp", "name", "barrier", "number", "amount", "bytes")
# Events that may make a warp, or one of its threads, wait.
WAITS = ("__syncthreads", "mbarrier_wait", "named_barrier_sync", "cp_async_wait", "wgmma_wait",
         "tma_store_wait")
SIGNALS = ("mbarrier_arrive", "named_barrier_arrive", "cp_async_commit", "exit")
COPIES = (*LOADS, *STORES)
# Events that end the stretch of a warp's events that merged() may join.
BOUNDS = (*WAITS, *SIGNALS, *COPIES, "wgmma", "round")
# Kind of asynchronous operation → the engine that performs it.
ENGINES = {"read": "cp.async", "wgmma": "tensor cores", **dict.fromkeys(LOADS, "TMA"),
           "tma_store": "TMA stores", "bulk_add": "TMA additions"}


def place(text: str) -> tuple[str, int]:
    """Returns (path, line) for "path:line", the path relative to the repository; ("", 0) for ""."""
    path, _, line = text.rpartition(":")
    return os.path.relpath(path, ROOT) if os.path.isabs(path) else path, int(line or 0)


@dataclasses.dataclass(eq=False)
class Event:
    """What a warp did at one line. The fields up to `counts` are those of TraceEvent in
    common/machine/trace.h; the explorer derives the others. `ranges` are the bytes of the array
    `name` in HBM that the event accesses; `bytes` counts each as often as it is requested."""
    kind: str
    name: str = ""
    barrier: str = ""
    number: int = 0
    amount: int = 0
    launch: int = 0
    block: int = 0
    warp: int = 0
    file: str = ""
    line: int = 0
    start_line: int = 0  # the line of the event after which a computation begins
    bytes: int = 0
    ranges: Ranges = dataclasses.field(default_factory=list)
    # (array of shared memory, 1 if written or 0 if read) → ranges.
    shared: dict[tuple[str, int], Ranges] = dataclasses.field(default_factory=dict)
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    direction: str = ""          # "read" or "write", if it accesses HBM
    source: Event | None = None  # the read whose data this store writes to shared memory
    rows: list[int] | None = None  # [first, last] that it accesses in its array
    tile: list[int] | None = None  # [first row, past the last, first key, past the last] of S
    holds: dict[str, list] = dataclasses.field(default_factory=dict)  # shared array → contents
    # The ticks at which it begins, ends and, from put_landings() on, its operation completes.
    ticks: list[int] = dataclasses.field(default_factory=lambda: [-1, -1])
    awaits: int | None = None  # index of the Meeting (ladder/explore/times.py) that ends its wait
    lands: int | None = None   # index of the Meeting that its completion is a part of
    index: int = -1  # its place among the page's events

    @classmethod
    def of(cls, line: dict) -> Event:
        """Returns the event of a trace's line, a JSON object."""
        (file, at), (start_file, start) = (place(line.get(key, ""))
                                           for key in ("line", "start_line"))
        return cls(
            line["kind"], file=file, line=at, start_line=start if start_file == file else at,
            ranges=[(begin, end) for begin, end in line.get("ranges", [])],
            shared={(array, written): [(begin, end) for begin, end in ranges]
                    for array, written, ranges in line.get("shared", [])},
            counts=collections.Counter(line.get("counts", {})),
            direction=line["kind"] if line["kind"] in ("read", "write") else "",
            **{key: line[key] for key in SAME if key in line})

    def copies(self) -> bool:
        """Returns whether it copies from HBM into shared memory, with or without TMA."""
        return self.direction == "read" and any(written for _, written in self.shared)

    def asked(self) -> tuple[str, str, str, int]:
        """Returns a key that is equal for all TMA copies of one tile. (A tile may need several.)"""
        return self.kind, self.name, self.barrier, self.number

    def engine(self) -> str:
        """Returns the engine that performs the operation that the event starts, such as "tensor
        cores" or, with the array, "TMA K"; "" if it starts none."""
        if self.lands is None or self.kind not in ENGINES:
            return ""
        return ENGINES[self.kind] + (" " + self.name if self.kind in LOADS else "")

    def category(self) -> str:
        """Returns the category that determines its colour on the page; app.js explains them."""
        if self.kind in (*WAITS, *SIGNALS):
            return "wait" if self.kind in WAITS else "signal"
        if self.direction:
            return "copy" if self.copies() else self.direction
        if self.counts["matmul_flops"] or self.kind == "wgmma":
            return "product"
        if self.counts["exp_count"] or self.counts["other_flops"]:
            return "softmax" if self.counts["exp_count"] else "arithmetic"
        return "exchange" if self.name.startswith("__") else "shared"

    def merge(self, other: Event) -> None:
        """Adds the bytes, ranges and counts of an event that belongs to this one."""
        self.bytes += other.bytes
        self.ranges = union(self.ranges, other.ranges)
        for place, ranges in other.shared.items():
            self.shared[place] = union(self.shared.get(place, []), ranges)
        self.counts += other.counts


class Trace:
    """A run as write_trace() in common/harness/run.h writes it: `head` (the step and the workload);
    `counts`, the counters' names; `plan`; `arrays`, {name: bytes}; `launches`, one object for each
    kernel; `events` in order; and `fault`, the error that ended the run, or None."""

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8") as file:
            self.head, *lines = [json.loads(line) for line in file]
        self.launches, done, plans, faults = (
            [line for line in lines if name in line]
            for name in ("kernel", "kind", "arrays", "fault"))
        self.plan, self.fault = plans[0], next(iter(faults), None)
        self.arrays, self.counts = self.plan.pop("arrays"), self.head.pop("counts")
        self.events = merged([Event.of(line) for line in done])

    @classmethod
    def of(cls, program: str, options: list[str]) -> tuple[Trace, list[dict], int, str]:
        """Runs a program with --trace. Returns its trace, its records (none after a fault), its
        status and the end of its stderr. Raises CommandError if it wrote no trace."""
        what = " ".join([os.path.basename(program), *options[:2]])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            status, said, message = run_quietly([program, *options, "--json", "--trace", path])
            if not os.path.exists(path):
                raise CommandError(f"{what} wrote no trace: {message}", status or BAD_USAGE)
            trace = cls(path)
        return trace, [] if trace.fault else json_lines(said, what), status, message

    def rows_of(self, array: str) -> int:
        """Returns the number of an array's rows over all heads: Q's or K's, whichever divides its
        size in bytes. Partial results (05/split_kv) have one row per row of Q and split."""
        head = self.head
        queries = head["batch"] * head["heads"] * head["seqlen"]
        keys = head["batch"] * head["kv_heads"] * head["seqlen_kv"]
        if array.endswith("_parts"):
            queries = self.arrays["l_parts"] // 4  # l_parts holds one fp32 value per row
        of_keys = array.lstrip("d")[:1] in ("K", "V")
        for rows in (keys, queries) if of_keys else (queries, keys):
            if self.arrays[array] % rows == 0:
                return rows
        return 1

    def blocks(self) -> dict[tuple[int, int], list[Event]]:
        """Returns {(launch, block): the block's events in order}."""
        found: dict[tuple[int, int], list[Event]] = {}
        for event in self.events:
            found.setdefault((event.launch, event.block), []).append(event)
        return found


def merge_ranges(runs: Ranges) -> Ranges:
    """Returns the ranges in order, with those that overlap or touch joined."""
    found: Ranges = []
    for begin, end in sorted(runs):
        if found and begin <= found[-1][1]:
            begin, last = found.pop()
            end = max(last, end)
        found.append((begin, end))
    return found


def union(some: Ranges, others: Ranges) -> Ranges:
    return merge_ranges(some + others) if some and others else some or others


def merged(events: list[Event]) -> list[Event]:
    """Returns the events, with those joined that belong together: a warp's events at one line
    between two of BOUNDS, in whatever order the compiler put them; and a copy by TMA, its accesses
    to HBM, and the other copies of the same tile."""
    kept: list[Event] = []
    # Per warp: its events since the last one of BOUNDS; its last HBM access; that one of BOUNDS.
    seen: dict[tuple, dict[tuple, Event]] = {}
    accesses: dict[tuple, Event | None] = {}
    last: dict[tuple, Event] = {}
    for event in events:
        warp = event.launch, event.block, event.warp
        access, before = accesses.get(warp), last.get(warp)
        if event.kind in BOUNDS:
            seen[warp], accesses[warp] = {}, None
            if event.kind in COPIES and access:
                kept.remove(access)
                event.direction = access.direction
                event.merge(access)
            if event.kind in COPIES and before and event.asked() == before.asked():
                before.amount += event.amount
                before.merge(event)
                continue
            last[warp] = event
            if event.kind != "round":
                kept.append(event)
            continue
        if event.kind == "store" and event.line and access and (
                (access.file, access.line) == (event.file, event.line)):
            event.source = access
        same = seen.setdefault(warp, {}).setdefault(
            (event.kind, event.name, event.file, event.line, event.start_line), event)
        if same is event:
            kept.append(event)
        else:
            same.merge(event)
        if event.direction:
            accesses[warp] = same
    return kept
