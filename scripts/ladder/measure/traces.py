"""The sim's traces, reduced to what figures show."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from ladder.base.course import TRACED
from ladder.base.files import json_text, write_whole
from ladder.base.records import Record
from ladder.trace.read import Kind, Ranges, Trace

TRACE_OPTIONS = ("--device sim --heads 1 --seqlen 512 --head-dim 64 --block-q 64 --block-kv 64 "
                 "--check off")


def traced(programs: dict[str, str], step: tuple[str, str]) -> Record:
    """A trace reduced to rows: {"figure", "rung", …, "command", "events": [[kernel, block, phase,
    array, "r" or "w", first row, past the last]]}. A phase lies between two barriers of a block."""
    rung, name = step
    words = ["--step", name, *TRACE_OPTIONS.split()]
    trace, (record, *_), *_ = Trace.of(programs[rung], words)
    head = {**trace.head, "block_q": record["block_q"], "block_kv": record["block_kv"],
            "command": shlex.join([rung, *words])}
    width = {name: size // trace.rows_of(name) for name, size in trace.arrays.items()}
    rows: list[list[Any]] = []
    for (launch, block), events in trace.blocks().items():
        phases: dict[int, int] = {}  # by warp
        touched: dict[tuple[int, str, str], Ranges] = {}
        for event in events:
            if event.kind is Kind.SYNCTHREADS:
                phases[event.warp] = event.number + 1
            elif event.direction:
                touched.setdefault((phases.get(event.warp, 0), event.name, event.direction[0]),
                                   []).extend(event.ranges)
        rows += [[trace.kernel_of(launch), block, *place, min(runs)[0] // width[place[1]],
                  -(-max(end for _, end in runs) // width[place[1]])]
                 for place, runs in sorted(touched.items())]
    return {"figure": "access", **head, "events": rows}


def all_traces(programs: dict[str, str]) -> list[Record]:
    """The lines of traces.jsonl."""
    return [traced(programs, step) for step in TRACED]


def write_traces(programs: dict[str, str], folder: str) -> None:
    """Writes traces.jsonl, where the programs that the course traces are all there."""
    if {rung for rung, _ in TRACED} <= set(programs):
        path = os.path.join(folder, "traces.jsonl")
        write_whole(path, json_text(all_traces(programs)))
        print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
