"""One step's run as the page needs it: columns of numbers, and tables of the names in them."""

import os

from ladder.explore.times import put_in_model_time, put_in_order
from ladder.explore.tiles import put_tiles
from ladder.explore.trace import SIGNALS, WAITS, short
from ladder.files import ROOT

# What the page compares at the end: its own name → the program's.
COUNTERS = {"requestedRead": "requested_read_bytes", "requestedWrite": "requested_write_bytes",
            "distinctRead": "distinct_read_bytes", "distinctWrite": "distinct_write_bytes",
            "matmul": "matmul_flops", "exps": "exp_count", "other": "other_flops",
            "sramRead": "sram_read_bytes", "sramWrite": "sram_write_bytes"}
KINDS = ("copy", "read", "write", "product", "softmax", "arithmetic", "shared", "exchange", "wait",
         "signal", "exit")


def kind_of(event):
    """What the page colours an event as."""
    matmul, exps, other, *_ = event.amounts
    if event.what in WAITS:
        return "wait"
    if event.what in SIGNALS:
        return "signal"
    if event.what == "exit":
        return "exit"
    if event.direction == "read":
        return "copy" if any(written for _, written, _ in event.shared) else "read"
    if event.direction == "write":
        return "write"
    if matmul or event.what == "wgmma":
        return "product"
    if exps:
        return "softmax"
    if other:
        return "arithmetic"
    return "exchange" if event.what.startswith("__") else "shared"


class Table:
    """Values numbered in the order in which they come."""

    def __init__(self):
        self.numbers = {}

    def __call__(self, value):
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self):
        return list(self.numbers)


def deltas(values):
    """Differences are small and alike, and compress."""
    return [value - before for value, before in zip(values, [0, *values[:-1]])]


def place(text, files):
    """(number of the file, line) of "file:line"; (-1, 0) of nothing."""
    path, _, line = text.rpartition(":")
    return (files(path), int(line)) if path else (-1, 0)


def pane_of(trace, records, command):
    """Everything of one step, ready for JSON. `records`: what the program printed; none where it
    ended with a fault."""
    meetings, ticks = put_in_order(trace)
    cycles = put_in_model_time(trace)
    put_tiles(trace)
    events = sorted(trace.events, key=lambda event: event.order[0])
    number = {id(event): i for i, event in enumerate(events)}
    names, files, whats = Table(), Table(), Table()
    columns = {name: [] for name in (
        "launch", "block", "warp", "what", "kind", "name", "barrier", "number", "amount", "file",
        "line", "fromFile", "fromLine", "begin", "end", "modelBegin", "modelEnd", "direction",
        "bytes", "matmul", "exps", "other", "sramRead", "sramWrite", "meeting", "lands")}
    ranges, shared, tiles, sources = {}, {}, {}, {}
    barriers, of_key = [], {}
    for (launch, block), found in meetings.items():
        for key, meeting in found.items():
            of_key[launch, block, key] = len(barriers)
            barriers.append([key[0], key[1], [number[id(part)] for part in meeting.parts]])
    for i, event in enumerate(events):
        file, line = place(event.line, files)
        from_file, from_line = place(event.since, files)
        model = event.model or [0, 0]
        meeting = of_key.get((event.launch, event.block, event.awaits), -1)
        lands = of_key.get((event.launch, event.block, event.lands), -1)
        for name, value in (
                ("launch", event.launch), ("block", event.block), ("warp", event.warp),
                ("what", whats(event.what)), ("kind", KINDS.index(kind_of(event))),
                ("name", names(event.array or event.name)), ("barrier", names(event.barrier)),
                ("number", event.number), ("amount", event.amount), ("file", file), ("line", line),
                ("fromFile", from_file), ("fromLine", from_line), ("begin", event.order[0]),
                ("end", event.order[1]), ("modelBegin", round(model[0])),
                ("modelEnd", round(model[1])),
                ("direction", ("", "read", "write").index(event.direction)),
                ("bytes", event.bytes), ("meeting", meeting), ("lands", lands),
                *zip(("matmul", "exps", "other", "sramRead", "sramWrite"), event.amounts)):
            columns[name].append(value)
        if event.ranges:
            ranges[i] = [value for run in event.ranges for value in run]
        if event.shared:
            shared[i] = [[names(array), written, hull(runs) if not written else
                          [value for run in runs for value in run]]
                         for array, written, runs in event.shared]
        if event.source:
            sources[i] = number[id(event.source)]
        if event.tile:
            tiles[i] = event.tile
    fault = fault_of(trace, events, files)
    head = trace.head
    return {
        "title": f"{head['rung'][:2]} {head['variant']}", "command": command, "head": head,
        "plan": trace.plan, "ticks": ticks, "cycles": round(cycles) if cycles else None,
        "kinds": list(KINDS), "whats": whats.values(), "names": names.values(),
        "arrays": [{"name": name, "bytes": size, "rows": trace.rows_of(name)}
                   for name, size in trace.arrays.items()],
        "launches": trace.launches, "barriers": barriers,
        "columns": {name: deltas(values) for name, values in columns.items()},
        "ranges": ranges, "shared": shared, "tiles": tiles, "sources": sources,
        "files": [{"path": short(path), "text": text_of(path)} for path in files.values()],
        "fault": fault,
        "counted": {mine: sum(record[its] for record in records)
                    for mine, its in COUNTERS.items()} if records else None,
        "directions": [record["direction"] for record in records]}


def hull(ranges):
    """The one range that holds them all."""
    begin = min(run[0] for run in ranges)
    end = max(run[0] + (run[3] - 1) * run[2] + run[1] for run in ranges)
    return [begin, end - begin, 0, 1]


def text_of(path):
    try:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""  # built somewhere else


def fault_of(trace, events, files):
    """What went wrong and where: the file may be one that no event is in."""
    fault = trace.fault
    if not fault:
        return None
    file, line = place(fault["line"], files)
    of_warp = [i for i, event in enumerate(events)
               if (event.launch, event.block, event.warp) ==
               (fault["launch"], fault["block"], fault["thread"] // 32)]
    return {"message": fault["fault"], "launch": fault["launch"], "block": fault["block"],
            "thread": fault["thread"], "file": file, "line": line,
            "event": of_warp[-1] if of_warp else -1}
