"""A trace for ui.perfetto.dev: Chrome's trace events, as JSON.

A process for each block, a thread for each of its warps. What the engines do lies on asynchronous
tracks of the block; a flow leads from each that ends a wait to the wait. The clock is the order of
the trace or, where there is one, the model's time, a tick or a cycle as a microsecond: neither is
measured, and the trace's own first words say so.
"""

from ladder.bench.traces import LOADS, STORES

ENGINES = {**dict.fromkeys(LOADS, "TMA: loads"),
           **dict.fromkeys(STORES, "TMA: stores"),
           "wgmma": "tensor cores", "read": "asynchronous copies"}
CLOCKS = {"model": "cycles of a model, not measured", "order": "the order of the trace, not time"}


def events_of(panes):
    """{"traceEvents": …, "otherData": …} of what pane_of() makes."""
    found, clocks, threads = [], [], {}

    def named(kind, key, name, **at):
        if key not in threads:
            threads[key] = at
            found.append({"ph": "M", "name": kind, **at, "args": {"name": name}})
        return threads[key]

    for pane in panes:
        clock = "model" if pane["model"] else "order"
        clocks.append(f"{pane['command']}: {CLOCKS[clock]}")
        events, over = [], {}  # when somebody first knew that a meeting was complete
        for event in pane["events"]:
            launch, block, warp = (event[name] for name in ("launch", "block", "warp"))
            key = len(clocks), launch, block
            at = named("process_name", key, f"{pane['title']} {pane['launches'][launch]['kernel']} "
                       f"block {block}", pid=len(threads) + 1)
            at = named("thread_name", (*key, warp), f"warp {warp}", **at, tid=warp)
            begin, end = event[clock][0], max(event[clock])
            events.append({**event, "from": begin, "to": end, "at": at})
            meeting = event.get("awaits")
            over[meeting] = min(over.get(meeting, end), end)
        for event in events:
            found += work_of(event, f"{len(clocks)}.{event['index']}", over)
            if "awaits" not in event:
                continue
            name, parts = pane["meetings"][event["awaits"]]
            for part in (events[number] for number in parts):
                if part["warp"] == event["warp"] or part["from"] > event["to"]:
                    continue
                flow = {"cat": "who is waited for", "name": name,
                        "id": f"{len(clocks)}.{part['index']}.{event['index']}"}
                found.append({"ph": "s", "ts": part["from"], **part["at"], **flow})
                found.append({"ph": "f", "bp": "e", "ts": event["to"], **event["at"], **flow})
    return {"traceEvents": found, "displayTimeUnit": "ns",
            "otherData": {"clock": "; ".join(clocks)}}


def work_of(event, number, over):
    """What the warp does, and what it starts beside itself."""
    name, counts = f"{event['what']} {event.get('name', '')}".strip(), event.get("counts", {})
    said = {"line": "file" in event and f"{event['file']}:{event['line']}",
            "bytes": event["bytes"] or event["amount"],
            "matmul FLOPs": counts.get("matmul_flops"), "exponentials": counts.get("exp_count")}
    work = [{"ph": "X", **event["at"], "ts": event["from"], "dur": event["to"] - event["from"],
             "name": name, "cat": "warp",
             "args": {what: value for what, value in said.items() if value}}]
    if "lands" in event and event["what"] in ENGINES:
        track = {"cat": ENGINES[event["what"]], "id": number, "name": name, **event["at"]}
        until = max(over.get(event["lands"], event["to"]), event["from"])
        work += [{"ph": "b", "ts": event["from"], **track}, {"ph": "e", "ts": until, **track}]
    return work
