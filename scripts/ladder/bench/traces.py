"""The sim's traces, reduced to what figures show."""

import collections
import json
import os
import shlex
import sys
import tempfile

from ladder.console import BAD_USAGE, WRONG_RESULT, Stop
from ladder.course import PIPELINED, TRACED
from ladder.files import json_text, write_whole
from ladder.programs import json_lines, run_quietly

# What TMA is asked for: what an mbarrier waits for, and what the warp itself does.
LOADS, STORES = ("tma_load", "bulk_load"), ("tma_store", "bulk_add")
# What is asked of Hopper's engines and barriers.
ASKED = (*LOADS, *STORES, "tma_store_wait", "mbarrier_arrive", "mbarrier_wait",
         "named_barrier_arrive", "named_barrier_sync", "wgmma", "wgmma_wait", "exit")
TRACE_OPTIONS = ["--device", "sim", "--heads", "1", "--seqlen", "512", "--head-dim", "64",
                 "--block-q", "64", "--block-kv", "64", "--check", "off"]

# What a file has, as write_trace() of common/harness/run.h says: head (of the run), plan
# (arrays, tiles), launches, lines (what each warp did) and fault, or None.
Traced = collections.namedtuple("Traced", "head plan launches lines fault")


def read_trace(path):
    try:
        with open(path, encoding="utf-8") as file:
            head, *lines = [json.loads(line) for line in file]
    except ValueError as error:
        raise Stop(f"cannot read the trace {path}: {error}", BAD_USAGE) from None

    def having(name):
        return [line for line in lines if name in line]
    if not having("kernel"):
        raise Stop(f"{path} is a trace without kernels", BAD_USAGE)
    return Traced(head, having("arrays")[0], having("kernel"), having("do"),
                  next(iter(having("fault")), None))


def trace_of(path, rung, variant, options, kernel=None):
    """What it says of the run, with its tiles (those of the pass that has the kernel) and the
    command, and its other lines."""
    options = ["--variant", variant, *options]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "trace")
        status, said, message = run_quietly([path, *options, "--trace", out, "--json"],
                                            f"tracing {rung} {variant}")
        if status:
            raise Stop(f"{rung}: no trace (status {status}): {message}", WRONG_RESULT)
        record = next(record for record in json_lines(said, rung)
                      if not kernel or any(k["name"] == kernel for k in record["kernels"]))
        trace = read_trace(out)
    lines = [{**line, "kernel": trace.launches[line["launch"]]["kernel"]} for line in trace.lines]
    return {**trace.head, "block_q": record["block_q"], "block_kv": record["block_kv"],
            "command": shlex.join([rung, *options])}, lines


def traced(path, rung, variant):
    """A trace reduced to rows: {"figure", "rung", …, "command", "kernels", "arrays": {name: bytes
    of a row}, "events": [[kernel, block, step, array, "r" or "w", first row, past the last]]}."""
    head, lines = trace_of(path, rung, variant, TRACE_OPTIONS)
    lines = accesses(lines)
    rows = {"Q": head["seqlen"], "K": head["seqlen_kv"], "V": head["seqlen_kv"]}
    kernels = list(dict.fromkeys(kernel for kernel, *_ in lines))
    width = {}
    for _, _, _, array, _, _, end in lines:
        width[array] = max(width.get(array, 1), end // rows.get(array, head["seqlen"]))
    return {"figure": "access", **head, "kernels": kernels, "arrays": width, "events": [
        [kernels.index(kernel), block, step, array, does[0], begin // width[array],
         -(-end // width[array])] for kernel, block, step, array, does, begin, end in lines]}


def accesses(lines):
    """[(kernel, block, step, array, "read" or "write", begin, end)]: what of HBM the blocks touched
    between two of their barriers, of which a step is the number before."""
    blocks, steps = {}, {}
    for line in lines:
        block = (line["launch"], line["kernel"], line["block"])
        warp = (block, line["warp"])
        if line["do"] == "__syncthreads":
            steps[warp] = line.get("number", 0) + 1
        elif line["do"] in ("read", "write"):
            touched = blocks.setdefault(block, {}).setdefault(
                (steps.get(warp, 0), line["name"], line["do"]), [])
            touched += pieces(line["ranges"])
    return [(kernel, block, step, array, does, *run)
            for (_, kernel, block), touched in blocks.items()
            for (step, array, does), runs in sorted(touched.items()) for run in joined(runs)]


def pieces(ranges):
    """[(begin, end)] of runs in the form [begin, bytes, step, count]."""
    return [(begin + i * step, begin + i * step + size)
            for begin, size, step, count in ranges for i in range(count)]


def joined(runs):
    """Those that overlap or touch as one; in order."""
    found = []
    for begin, end in sorted(runs):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return found


def pipelined(path, figure, rung, variant, kernel, options):
    """What block 0 of a kernel asks of Hopper's engines and barriers: {"figure", "rung", …,
    "command", "kernel", "warps": [[[event, name, barrier, number, amount, exps, other FLOPs], …],
    …]}, as --trace has them. One warp stands for a warpgroup that multiplies; a copy's boxes are
    one."""
    head, lines = trace_of(path, rung, variant, options, kernel)
    warps = warps_of(line for line in lines if line["block"] == 0 and line["kernel"] == kernel)
    return {"figure": figure, **head, "kernel": kernel, "warps": list(warps.values())}


def warps_of(lines):
    """Warp → its events of a block, those that pipelined() keeps. What is counted between two of
    them, by the warp's first lane, is the later one's."""
    warps, counted = {}, {}
    for line in lines:
        amounts = counted.setdefault(line["warp"], [0, 0])
        for i, name in enumerate(("lane_exps", "lane_other_flops")):
            amounts[i] += line.get(name, 0)
        if line["do"] in ASKED:
            warps.setdefault(line["warp"], []).append(
                [line["do"], *(line.get(name, default) for name, default in (
                    ("name", ""), ("barrier", ""), ("number", 0), ("amount", 0))),
                 *amounts])
            amounts[:] = [0, 0]
    multiply = {warp // 4 for warp, events in warps.items() if any(e[0] == "wgmma" for e in events)}
    kept = {}
    for warp, events in sorted(warps.items()):
        if (warp % 4 if warp // 4 in multiply else len(events) == 1):
            continue  # does what the warpgroup's first warp does, or nothing
        mine = []
        for event in events:
            if mine and event[0] in LOADS + STORES and event[:4] == mine[-1][:4]:
                mine[-1][4] += event[4]
            else:
                mine.append(event)
        if warp // 4 in multiply:  # what the others store is the warpgroup's too
            for other in range(warp + 1, warp + 4):
                for event in warps.get(other, []):
                    for own in mine:
                        if event[0] in STORES and event[:4] == own[:4]:
                            own[4] += event[4]
        kept[warp] = mine
    return kept


def all_traces(programs):
    """The lines of traces.jsonl."""
    return ([traced(programs[rung].path, rung, variant) for rung, variant in TRACED]
            + [pipelined(programs[one[1]].path, *one) for one in PIPELINED])


def write_traces(programs, folder):
    """traces.jsonl, where the programs that the course traces are all there."""
    if {rung for rung, _ in TRACED} | {rung for _, rung, *_ in PIPELINED} <= set(programs):
        path = os.path.join(folder, "traces.jsonl")
        write_whole(path, json_text(all_traces(programs)))
        print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
