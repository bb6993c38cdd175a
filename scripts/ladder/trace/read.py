"""A trace: what each warp did, a line of the source at a time."""

import collections
import json
import os
import tempfile

from ladder.console import BAD_USAGE, Stop
from ladder.files import ROOT
from ladder.programs import json_lines, run_quietly

# What TMA is asked for: what an mbarrier waits for, and what the warp itself does.
LOADS, STORES = ("tma_load", "bulk_load"), ("tma_store", "bulk_add")

# What an event counts → what the program calls the sum.
AMOUNTS = {"matmul_flops": "matmul_flops", "exps": "exp_count", "other_flops": "other_flops",
           "sram_read": "sram_read_bytes", "sram_write": "sram_write_bytes"}
# What a warp, or a thread of it, may stop at.
WAITS = ("__syncthreads", "mbarrier_wait", "named_barrier_sync", "cp_async_wait", "wgmma_wait",
         "tma_store_wait")
SIGNALS = ("mbarrier_arrive", "named_barrier_arrive", "cp_async_commit", "exit")
COPIES = (*LOADS, *STORES)
BOUNDS = (*WAITS, *SIGNALS, *COPIES, "wgmma", "round")
# Who does what a warp starts.
ENGINES = {"read": "cp.async", "wgmma": "tensor cores", **dict.fromkeys(LOADS, "TMA"),
           "tma_store": "TMA stores", "bulk_add": "TMA additions"}


def place(text):
    """(path, line) of "path:line", as seen from the repository; ("", 0) of nothing."""
    path, _, line = text.rpartition(":")
    return os.path.relpath(path, ROOT) if os.path.isabs(path) else path, int(line or 0)


class Event:
    """What a warp did at one line, as the page has it. `ranges` are bytes of HBM's array `name`,
    `shared` is {(array, 1 if written): ranges}; ranges are [(begin, end)]."""

    def __init__(self, line):
        self.what, self.launch, self.block, self.warp = (
            line[name] for name in ("do", "launch", "block", "warp"))
        self.file, self.line = place(line.get("line", ""))
        file, self.since = place(line.get("from", ""))
        if file != self.file:
            self.since = self.line
        self.name, self.barrier = line.get("name", ""), line.get("barrier", "")
        self.number, self.amount, self.bytes = (
            line.get(name, 0) for name in ("number", "amount", "bytes"))
        self.direction = self.what if self.what in ("read", "write") else ""
        self.ranges = pieces(line.get("ranges", []))
        self.shared = {(array, written): pieces(ranges)
                       for array, written, ranges in line.get("shared", [])}
        self.counts = collections.Counter(
            {AMOUNTS[name]: line[name] for name in AMOUNTS if line.get(name)})
        # What the warp's first lane has counted since its last event of the kind.
        self.lane = [line.get("lane_exps", 0), line.get("lane_other_flops", 0)]
        self.source = None  # the event that read what this one stores
        self.rows = None    # [first, last] that it touches of its array
        self.tile = None    # [first row, past the last, first key, past the last] of S
        self.holds, self.reads = {}, {}  # of arrays of shared memory: what is in them, [begin, end]
        # By either clock [from, to], and until when what the event starts is under way.
        self.order, self.model = [-1, -1], None
        self.awaits = self.lands = None  # the meeting that it waits for, or takes part in

    def copies(self):
        """Whether it reads HBM into shared memory, by TMA or not."""
        return self.direction == "read" and any(written for _, written in self.shared)

    def asked(self):
        return self.what, self.name, self.barrier, self.number

    def engine(self):
        """What goes on beside the warps, of what it starts; a load is named by its array."""
        if self.lands is None or self.what not in ENGINES:
            return ""
        return ENGINES[self.what] + (" " + self.name if self.what in LOADS else "")

    def kind(self):
        """What the page colours it as."""
        if self.what in (*WAITS, *SIGNALS):
            return "wait" if self.what in WAITS else "signal"
        if self.direction:
            return "copy" if self.copies() else self.direction
        if self.counts["matmul_flops"] or self.what == "wgmma":
            return "product"
        if self.counts["exp_count"] or self.counts["other_flops"]:
            return "softmax" if self.counts["exp_count"] else "arithmetic"
        return "exchange" if self.what.startswith("__") else "shared"

    def absorb(self, other):
        """Adds an event that is one with this one."""
        self.bytes += other.bytes
        self.ranges = union(self.ranges, other.ranges)
        for place, ranges in other.shared.items():
            self.shared[place] = union(self.shared.get(place, []), ranges)
        self.counts += other.counts
        self.lane = [sum(both) for both in zip(self.lane, other.lane)]


class Trace:
    """A run, by what write_trace() of common/harness/run.h says: `head`, `plan`, `arrays` {name:
    bytes}, `launches`, `events` in order, and `fault` or None."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.head, *lines = [json.loads(line) for line in file]
        self.launches, done, plans, faults = (
            [line for line in lines if name in line]
            for name in ("kernel", "do", "arrays", "fault"))
        self.plan, self.fault = plans[0], next(iter(faults), None)
        self.arrays = self.plan.pop("arrays")
        self.events = merged([Event(line) for line in done])

    @classmethod
    def of(cls, program, options, progress=None):
        """Runs a program with --trace: (its trace, the records that it printed, none after a fault,
        status, message)."""
        what = " ".join([os.path.basename(program), *options[:2]])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace")
            status, said, message = run_quietly([program, *options, "--json", "--trace", path],
                                                f"tracing {what}", progress)
            if not os.path.exists(path):
                raise Stop(f"{what} wrote no trace: {message}", status or BAD_USAGE)
            trace = cls(path)
        return trace, [] if trace.fault else json_lines(said, what), status, message

    def kernel_of(self, launch):
        return self.launches[launch]["kernel"]

    def rows_of(self, array):
        """How many rows an array has: those of Q or of K, whichever its bytes can be shared out
        to; of partial results (05's split_kv) a row of Q has several."""
        head = self.head
        queries = head["batch"] * head["heads"] * head["seqlen"]
        keys = head["batch"] * head["kv_heads"] * head["seqlen_kv"]
        if array.endswith("_parts"):
            queries = self.arrays["l_parts"] // 4
        of_keys = array.lstrip("d")[:1] in ("K", "V")
        for rows in (keys, queries) if of_keys else (queries, keys):
            if self.arrays[array] % rows == 0:
                return rows
        return 1

    def blocks(self):
        """(launch, block) → its events, in order."""
        found = {}
        for event in self.events:
            found.setdefault((event.launch, event.block), []).append(event)
        return found


def pieces(ranges):
    """[(begin, end)] of the runs of a file, [begin, bytes, stride, count]."""
    return [(begin + i * stride, begin + i * stride + size)
            for begin, size, stride, count in ranges for i in range(count)]


def joined(runs):
    """Those that overlap or touch as one; in order."""
    found = []
    for begin, end in sorted(runs):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return found


def union(some, others):
    """Ranges that hold what either has."""
    return joined(some + others) if some and others else some or others


def merged(events):
    """A warp's events at one line between two waits are one, wherever the compiler put them; and a
    copy by TMA is one with what it reads or writes of HBM, and with the tile's other boxes."""
    kept, seen, accesses, last = [], {}, {}, {}  # by warp: by key; the last access; the last bound
    for event in events:
        warp = event.launch, event.block, event.warp
        access, before = accesses.get(warp), last.get(warp)
        if event.what in BOUNDS:
            seen[warp], accesses[warp] = {}, None
            if event.what in COPIES and access:
                kept.remove(access)
                event.direction = access.direction
                event.absorb(access)
            if event.what in COPIES and before and event.asked() == before.asked():
                before.amount += event.amount
                before.absorb(event)
                continue
            last[warp] = event
            if event.what != "round":
                kept.append(event)
            continue
        if event.what == "store" and event.line and access and (
                (access.file, access.line) == (event.file, event.line)):
            event.source = access
        one = seen.setdefault(warp, {}).setdefault(
            (event.what, event.name, event.file, event.line, event.since), event)
        if one is event:
            kept.append(event)
        else:
            one.absorb(event)
        if event.direction:
            accesses[warp] = one
    return kept
