"""The sim's traces, reduced to what figures show."""

from __future__ import annotations

import shlex

from ladder.base.course import TRACED
from ladder.base.records import Record
from ladder.trace.read import Event, Trace

TRACE_OPTIONS = ("--device sim --heads 1 --seqlen 512 --head-dim 64 --block-q 64 --block-kv 64 "
                 "--check off")


def traced(programs: dict[str, str], step: tuple[str, str]) -> Record:
    """A trace reduced to slots of time: {"rung", …, "command", "slots": how many, "parts":
    {block or kernel: its first slot}, "visits": [[array, slot, "r" or "w", first row, past the
    last]]}. A slot begins where a tile of Q, K or V arrives, after a barrier of a block, and lasts
    until the next one does; a kernel without barriers, whose blocks do one tile each, takes one."""
    rung, name = step
    words = ["--step", name, *TRACE_OPTIONS.split()]
    trace, (record, *_), *_ = Trace.of(programs[rung], words)
    width = {name: size // trace.rows_of(name) for name, size in trace.arrays.items()}
    blocks = {(trace.kernel_of(launch), block): events
              for (launch, block), events in trace.blocks().items()}
    kernels = {kernel for kernel, _ in blocks}
    with_barriers = {kernel for (kernel, _), events in blocks.items()
                     if any(event.kind == "__syncthreads" for event in events)}
    parts: dict[str, int] = {}
    visits: dict[tuple[str, int, str], list[int]] = {}
    slot = -1
    for (kernel, block), events in blocks.items():
        phases: dict[int, int] = {}  # by warp
        touched: dict[int, list[Event]] = {}  # by phase
        for event in events:
            if event.kind == "__syncthreads":
                phases[event.warp] = event.number + 1
            elif event.direction and event.name[0] in "QKVO":
                touched.setdefault(phases.get(event.warp, 0), []).append(event)
        for _, its in sorted(touched.items()):
            part = f"block {block}" if len(kernels) == 1 else kernel
            arrives = any(event.name in "QKV" and event.direction == "read" for event in its)
            slot += part not in parts or arrives and kernel in with_barriers
            parts.setdefault(part, slot)
            for event in sorted(its, key=lambda event: (event.name, event.direction)):
                rows = visits.setdefault((event.name[0], slot, event.direction[0]),
                                         [trace.rows_of(event.name), 0])
                for begin, end in event.ranges:
                    rows[:] = (min(rows[0], begin // width[event.name]),
                               max(rows[1], -(-end // width[event.name])))
    return {**trace.head, "block_q": record["block_q"],
            "block_kv": record["block_kv"], "command": shlex.join([rung, *words]),
            "slots": slot + 1, "parts": parts,
            "visits": [[*place, *rows] for place, rows in visits.items()]}


def all_traces(programs: dict[str, str]) -> list[Record]:
    """The lines of traces.jsonl."""
    return [traced(programs, step) for step in TRACED]
