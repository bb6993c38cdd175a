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
    for pane in panes:
        clock = "model" if pane["model"] else "order"
        clocks.append(f"{pane['command']}: {CLOCKS[clock]}")
        events = [{**event, "from": event[clock][0], "to": max(event[clock])}
                  for event in pane["events"]]
        over = {}  # when somebody first knew that a meeting was complete
        for event in events:
            meeting = event.get("awaits")
            over[meeting] = min(over.get(meeting, event["to"]), event["to"])
        for event in events:
            block = len(clocks), event["launch"], event["block"]
            if block not in threads:
                threads[block] = {"pid": len(threads) + 1}
                kernel = pane["launches"][event["launch"]]["kernel"]
                found.append({"ph": "M", "name": "process_name", **threads[block], "args": {
                    "name": f"{pane['title']} {kernel} block {event['block']}"}})
            if event["file"] >= 0:
                event["line"] = f"{pane['files'][event['file']]['path']}:{event['line']}"
            event["at"] = {**threads[block], "tid": event["warp"]}
            if (*block, event["warp"]) not in threads:
                threads[(*block, event["warp"])] = event["at"]
                found.append({"ph": "M", "name": "thread_name", **event["at"],
                              "args": {"name": f"warp {event['warp']}"}})
        for i, event in enumerate(events):
            found += work_of(event, f"{len(clocks)}.{i}", over)
            meeting = pane["meetings"][event["awaits"]] if "awaits" in event else [None, None, []]
            for number in meeting[2]:
                part = events[number]
                if part["warp"] == event["warp"] or part["from"] > event["to"]:
                    continue
                flow = {"cat": "who is waited for", "name": str(meeting[0]),
                        "id": f"{len(clocks)}.{number}.{i}"}
                found.append({"ph": "s", "ts": part["from"], **part["at"], **flow})
                found.append({"ph": "f", "bp": "e", "ts": event["to"], **event["at"], **flow})
    return {"traceEvents": found, "displayTimeUnit": "ns",
            "otherData": {"clock": "; ".join(clocks)}}


def work_of(event, number, over):
    """What the warp does, and what it starts beside itself."""
    name, counts = f"{event['what']} {event.get('name', '')}".strip(), event.get("counts", {})
    said = {"line": event["line"], "bytes": event["bytes"] or event["amount"],
            "matmul FLOPs": counts.get("matmul"), "exponentials": counts.get("exps")}
    work = [{"ph": "X", **event["at"], "ts": event["from"], "dur": event["to"] - event["from"],
             "name": name, "cat": "warp",
             "args": {what: value for what, value in said.items() if value}}]
    if "lands" in event and event["what"] in ENGINES:
        track = {"cat": ENGINES[event["what"]], "id": number, "name": name, **event["at"]}
        until = max(over.get(event["lands"], event["to"]), event["from"])
        work += [{"ph": "b", "ts": event["from"], **track}, {"ph": "e", "ts": until, **track}]
    return work
