"""One step's run as the page needs it."""

import os

from ladder.explore.times import put_in_model_time, put_in_order
from ladder.explore.tiles import put_tiles
from ladder.explore.trace import SIGNALS, WAITS
from ladder.files import ROOT

# What the page compares at the end: its own name → the program's.
COUNTERS = {"requestedRead": "requested_read_bytes", "requestedWrite": "requested_write_bytes",
            "distinctRead": "distinct_read_bytes", "distinctWrite": "distinct_write_bytes",
            "matmul": "matmul_flops", "exps": "exp_count", "other": "other_flops",
            "sramRead": "sram_read_bytes", "sramWrite": "sram_write_bytes"}
AMOUNTS = ("matmul", "exps", "other", "sramRead", "sramWrite")  # those of an event, in its order


def kind_of(event):
    """What the page colours an event as."""
    matmul, exps, other, *_ = event.amounts
    if event.what in (*WAITS, *SIGNALS, "exit"):
        return "wait" if event.what in WAITS else "signal" if event.what in SIGNALS else "exit"
    if event.direction:
        return "copy" if event.copies() else event.direction
    if matmul or event.what == "wgmma":
        return "product"
    if exps or other:
        return "softmax" if exps else "arithmetic"
    return "exchange" if event.what.startswith("__") else "shared"


def place(text, files):
    """(number of the file, line) of "file:line"; (-1, 0) of nothing. Files are numbered in the
    order in which they come."""
    path, _, line = text.rpartition(":")
    return (files.setdefault(path, len(files)), int(line)) if path else (-1, 0)


def pane_of(trace, records, command):
    """Everything of one step, ready for JSON. `records`: what the program printed; none where it
    ended with a fault."""
    meetings = put_in_order(trace)
    model = put_in_model_time(trace)
    put_tiles(trace)
    events = sorted(trace.events, key=lambda event: event.order[0])
    number = {id(event): i for i, event in enumerate(events)}
    files, all_meetings, of_key = {}, [], {}
    for (launch, block), found in meetings.items():
        for key, meeting in found.items():
            of_key[launch, block, key] = len(all_meetings)
            all_meetings.append([*key, [number[id(part)] for part in meeting.parts]])
    told = [told_of(event, files, of_key) for event in events]
    head = trace.head
    return {
        "title": f"{head['rung'][:2]} {head['variant']}", "command": command, "head": head,
        "plan": trace.plan, "model": model, "launches": trace.launches,
        "arrays": [{"name": name, "bytes": size, "rows": trace.rows_of(name),
                    "parts": trace.parts_of(name)} for name, size in trace.arrays.items()],
        "events": told, "meetings": all_meetings, "fault": fault_of(trace, events, files),
        "files": [{"path": os.path.relpath(path, ROOT) if os.path.isabs(path) else path,
                   "text": text_of(path)} for path in files],
        "counted": {mine: sum(record[its] for record in records)
                    for mine, its in COUNTERS.items()} if records else None}


def told_of(event, files, of_key):
    """An event as the page has it: without what it has not."""
    file, line = place(event.line, files)
    since_file, since = place(event.since, files)
    told = {
        "launch": event.launch, "block": event.block, "warp": event.warp, "what": event.what,
        "kind": kind_of(event), "order": event.order, "file": file, "line": line,
        "since": since if since_file == file else line, "number": event.number,
        "model": event.model and [round(time) for time in event.model],
        "name": event.name, "barrier": event.barrier, "amount": event.amount,
        "bytes": event.bytes, "ranges": event.ranges, "write": event.direction == "write",
        "counts": {name: n for name, n in zip(AMOUNTS, event.amounts) if n},
        "awaits": of_key.get((event.launch, event.block, event.awaits)),
        "lands": of_key.get((event.launch, event.block, event.lands)),
        "tile": event.tile, "of": event.source and event.source.name, "fills": event.fills,
        # The one range that holds them all.
        "reads": [[min(run[0] for run in runs),
                   max(run[0] + (run[3] - 1) * run[2] + run[1] for run in runs)]
                  for _, written, runs in event.shared if not written]}
    return {name: value for name, value in told.items() if value or type(value) is int}


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
    return {"message": fault["fault"], "file": file, "line": line,
            "event": of_warp[-1] if of_warp else -1}
