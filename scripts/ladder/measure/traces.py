"""The sim's traces, reduced to what figures show."""

import os
import shlex
import sys

from ladder.base.course import PIPELINED, TRACED
from ladder.base.files import json_text, write_whole
from ladder.trace.read import Kind, Trace, joined
from ladder.trace.replay import rows_of, warps_of

TRACE_OPTIONS = ["--device", "sim", "--heads", "1", "--seqlen", "512", "--head-dim", "64",
                 "--block-q", "64", "--block-kv", "64", "--check", "off"]


def trace_of(path, rung, step, options, kernel=None):
    """The trace; and what it says of the run, with its tiles (those of the pass that has the
    kernel) and the command."""
    options = ["--step", step, *options]
    trace, records, *_ = Trace.of(path, options)
    record = next(record for record in records
                  if not kernel or any(k["name"] == kernel for k in record["kernels"]))
    return trace, {**trace.head, "block_q": record["block_q"], "block_kv": record["block_kv"],
                   "command": shlex.join([rung, *options])}


def traced(path, rung, step):
    """A trace reduced to rows: {"figure", "rung", …, "command", "kernels", "arrays": {name: bytes
    of a row}, "events": [[kernel, block, phase, array, "r" or "w", first row, past the last]]}."""
    trace, head = trace_of(path, rung, step, TRACE_OPTIONS)
    lines = accesses(trace)
    rows = {"Q": head["seqlen"], "K": head["seqlen_kv"], "V": head["seqlen_kv"]}
    kernels = list(dict.fromkeys(kernel for kernel, *_ in lines))
    width = {}
    for _, _, _, array, _, _, end in lines:
        width[array] = max(width.get(array, 1), end // rows.get(array, head["seqlen"]))
    return {"figure": "access", **head, "kernels": kernels, "arrays": width, "events": [
        [kernels.index(kernel), block, phase, array, does[0], begin // width[array],
         -(-end // width[array])] for kernel, block, phase, array, does, begin, end in lines]}


def accesses(trace):
    """[(kernel, block, phase, array, "read" or "write", begin, end)]: what of HBM the blocks
    touched between two of their barriers, of which a phase is the number before."""
    found = []
    for (launch, block), events in trace.blocks().items():
        phases, touched = {}, {}
        for event in events:
            if event.kind is Kind.SYNCTHREADS:
                phases[event.warp] = event.number + 1
            elif event.direction:
                touched.setdefault((phases.get(event.warp, 0), event.name, event.direction),
                                   []).extend(event.ranges)
        found += [(trace.kernel_of(launch), block, *at, *run)
                  for at, runs in sorted(touched.items()) for run in joined(runs)]
    return found


def pipelined(path, figure, rung, step, kernel, options):
    """What block 0 of a kernel asks of Hopper's engines and barriers: {"figure", "rung", …,
    "command", "kernel", "warps": [rows_of() its events]}. One warp stands for a warpgroup that
    multiplies; a copy's boxes are one."""
    trace, head = trace_of(path, rung, step, options, kernel)
    events = next(events for (launch, block), events in trace.blocks().items()
                  if block == 0 and trace.kernel_of(launch) == kernel)
    return {"figure": figure, **head, "kernel": kernel,
            "warps": [rows_of(asked) for asked in warps_of(events).values()]}


def all_traces(programs):
    """The lines of traces.jsonl."""
    return ([traced(programs[rung], rung, step) for rung, step in TRACED]
            + [pipelined(programs[one.rung], *one) for one in PIPELINED])


def write_traces(programs, folder):
    """traces.jsonl, where the programs that the course traces are all there."""
    if {rung for rung, _ in TRACED} | {one.rung for one in PIPELINED} <= set(programs):
        path = os.path.join(folder, "traces.jsonl")
        write_whole(path, json_text(all_traces(programs)))
        print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
