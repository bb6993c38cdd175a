"""The sim's traces, reduced to what figures show."""

from __future__ import annotations

import os
import shlex
import sys
from typing import NamedTuple

from ladder.base.course import PIPELINED, TRACED, Pipelined
from ladder.base.files import json_text, write_whole
from ladder.base.records import Record
from ladder.trace.read import Kind, Ranges, Trace, joined
from ladder.trace.replay import rows_of, warps_of

TRACE_OPTIONS = ["--device", "sim", "--heads", "1", "--seqlen", "512", "--head-dim", "64",
                 "--block-q", "64", "--block-kv", "64", "--check", "off"]


def trace_of(path: str, rung: str, step: str, options: list[str],
             kernel: str | None = None) -> tuple[Trace, Record]:
    """The trace; and what it says of the run, with its tiles (those of the pass that has the
    kernel) and the command."""
    options = ["--step", step, *options]
    trace, records, *_ = Trace.of(path, options)
    record = next(record for record in records
                  if not kernel or any(k["name"] == kernel for k in record["kernels"]))
    return trace, {**trace.head, "block_q": record["block_q"], "block_kv": record["block_kv"],
                   "command": shlex.join([rung, *options])}


def traced(path: str, rung: str, step: str) -> Record:
    """A trace reduced to rows: {"figure", "rung", …, "command", "kernels", "arrays": {name: bytes
    of a row}, "events": [[kernel, block, phase, array, "r" or "w", first row, past the last]]}."""
    trace, head = trace_of(path, rung, step, TRACE_OPTIONS)
    lines = accesses(trace)
    seqlen: int = head["seqlen"]
    rows = {"Q": seqlen, "K": head["seqlen_kv"], "V": head["seqlen_kv"]}
    kernels = list(dict.fromkeys(access.kernel for access in lines))
    width: dict[str, int] = {}
    for access in lines:
        width[access.array] = max(width.get(access.array, 1),
                                  access.end // rows.get(access.array, seqlen))
    return {"figure": "access", **head, "kernels": kernels, "arrays": width, "events": [
        [kernels.index(kernel), block, phase, array, direction[0], begin // width[array],
         -(-end // width[array])]
        for kernel, block, phase, array, direction, begin, end in lines]}


class Access(NamedTuple):
    """What of HBM a block touched between two of its barriers: bytes [begin, end) of an array."""
    kernel: str
    block: int
    phase: int  # barriers before
    array: str
    direction: str  # read or write
    begin: int
    end: int


def accesses(trace: Trace) -> list[Access]:
    """Those of all blocks, in the order of the blocks and then of phases."""
    touches = []
    for (launch, block), events in trace.blocks().items():
        phases: dict[int, int] = {}
        touched: dict[tuple[int, str, str], Ranges] = {}
        for event in events:
            if event.kind is Kind.SYNCTHREADS:
                phases[event.warp] = event.number + 1
            elif event.direction:
                touched.setdefault((phases.get(event.warp, 0), event.name, event.direction),
                                   []).extend(event.ranges)
        touches += [Access(trace.kernel_of(launch), block, phase, array, direction, begin, end)
                    for (phase, array, direction), runs in sorted(touched.items())
                    for begin, end in joined(runs)]
    return touches


def pipelined(path: str, shown: Pipelined) -> Record:
    """What block 0 of a kernel asks of Hopper's engines and barriers: {"figure", "rung", …,
    "command", "kernel", "warps": [rows_of() its events]}. One warp stands for a warpgroup that
    multiplies; a copy's boxes are one."""
    trace, head = trace_of(path, shown.rung, shown.step, shown.options, shown.kernel)
    events = next(events for (launch, block), events in trace.blocks().items()
                  if block == 0 and trace.kernel_of(launch) == shown.kernel)
    return {"figure": shown.figure, **head, "kernel": shown.kernel,
            "warps": [rows_of(asked) for asked in warps_of(events).values()]}


def all_traces(programs: dict[str, str]) -> list[Record]:
    """The lines of traces.jsonl."""
    return ([traced(programs[rung], rung, step) for rung, step in TRACED]
            + [pipelined(programs[shown.rung], shown) for shown in PIPELINED])


def write_traces(programs: dict[str, str], folder: str) -> None:
    """Writes traces.jsonl, where the programs that the course traces are all there."""
    if {rung for rung, _ in TRACED} | {shown.rung for shown in PIPELINED} <= set(programs):
        path = os.path.join(folder, "traces.jsonl")
        write_whole(path, json_text(all_traces(programs)))
        print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
