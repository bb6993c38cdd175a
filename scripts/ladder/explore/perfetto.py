"""A trace for ui.perfetto.dev: Chrome's trace events, as JSON.

A process for each block, a thread for each of its warps. What the engines do lies on asynchronous
tracks of the block; a flow leads from each that ends a wait to the wait. The clock is the order of
the trace or, where there is one, the model's time, a tick or a cycle as a microsecond: neither is
measured, and the trace's own first words say so.
"""

from ladder.explore.times import put_in_model_time, put_in_order
from ladder.explore.trace import short
from ladder.bench.traces import LOADS, STORES

ENGINES = {**dict.fromkeys(LOADS, "TMA: loads"),
           **dict.fromkeys(STORES, "TMA: stores"),
           "wgmma": "tensor cores", "read": "asynchronous copies"}


def events_of(runs):
    """{"traceEvents": …, "otherData": …} of [(Trace, records, command)]."""
    events, clocks, processes = [], [], 0
    for trace, _, command in runs:
        meetings = put_in_order(trace)
        model = put_in_model_time(trace)
        clocks.append(f"{command}: " + ("cycles of a model, not measured" if model
                                        else "the order of the trace, not time"))
        for (launch, block), of_block in trace.blocks().items():
            processes += 1
            kernel = trace.launches[launch]["kernel"]
            name = f"{trace.head['rung'][:2]} {trace.head['variant']} {kernel} block {block}"
            events += block_events(processes, name, of_block, meetings[launch, block],
                                   "model" if model else "order")
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"clock": "; ".join(clocks)}}


def block_events(process, name, events, meetings, clock):
    def begin(event):
        return getattr(event, clock)[0]

    def end(event):
        return max(getattr(event, clock)[1], begin(event))

    found = [meta(process, None, "process_name", name)]
    warps = sorted({event.warp for event in events})
    found += [meta(process, warp, "thread_name", f"warp {warp}") for warp in warps]
    over = {}  # when somebody first knew that a meeting was complete
    for event in events:
        if event.awaits:
            over[event.awaits] = min(over.get(event.awaits, end(event)), end(event))
    numbers = {}
    for event in events:
        numbers[id(event)] = len(numbers)
        found.append({"ph": "X", "pid": process, "tid": event.warp, "ts": begin(event),
                      "dur": end(event) - begin(event), "name": title(event), "cat": "warp",
                      "args": arguments(event)})
        if event.lands and event.what in ENGINES:
            track = {"cat": ENGINES[event.what], "id": f"{process}.{numbers[id(event)]}",
                     "pid": process, "tid": event.warp, "name": title(event)}
            until = max(over.get(event.lands, end(event)), begin(event))
            found.append({"ph": "b", "ts": begin(event), **track})
            found.append({"ph": "e", "ts": until, **track})
    for event in events:
        meeting = meetings.get(event.awaits) if event.awaits else None
        for part in meeting.parts if meeting else []:
            if part.warp == event.warp or begin(part) > end(event):
                continue
            flow = {"cat": "who is waited for", "pid": process, "name": str(event.awaits[0]),
                    "id": f"{process}.{numbers[id(part)]}.{numbers[id(event)]}"}
            found.append({"ph": "s", "tid": part.warp, "ts": begin(part), **flow})
            found.append({"ph": "f", "bp": "e", "tid": event.warp, "ts": end(event), **flow})
    return found


def meta(process, thread, what, name):
    event = {"ph": "M", "pid": process, "name": what, "args": {"name": name}}
    return event if thread is None else {**event, "tid": thread}


def title(event):
    return f"{event.what} {event.name}".strip()


def arguments(event):
    said = {"line": short(event.line), "bytes": event.bytes or event.amount,
            "matmul FLOPs": event.amounts[0], "exponentials": event.amounts[1]}
    return {name: value for name, value in said.items() if value}
