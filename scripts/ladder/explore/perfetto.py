"""A trace for ui.perfetto.dev: Chrome's trace events, as JSON.

A process for each block, a thread for each of its warps. What the engines do lies on asynchronous
tracks of the block; a flow leads from each that ends a wait to the wait. The clock is the order of
the trace or, where there is one, the model's time, a tick or a cycle as a microsecond: neither is
measured, and the trace's own first words say so.
"""

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
        events = pane["events"]
        for event in events:
            launch, block, warp = (event[name] for name in ("launch", "block", "warp"))
            key = len(clocks), launch, block
            at = named("process_name", key, f"{pane['title']} {pane['launches'][launch]['kernel']} "
                       f"block {block}", pid=len(threads) + 1)
            event["at"] = named("thread_name", (*key, warp), f"warp {warp}", **at, tid=warp)
            event["ts"], event["end"], event["until"] = event[clock]
            found += work_of(event, f"{len(clocks)}.{event['index']}")
        for event in events:
            title, parts = pane["meetings"][event["awaits"]] if "awaits" in event else ("", [])
            for part in (events[number] for number in parts):
                if part["warp"] == event["warp"] or part["ts"] > event["end"]:
                    continue
                flow = {"cat": "who is waited for", "name": title,
                        "id": f"{len(clocks)}.{part['index']}.{event['index']}"}
                found.append({"ph": "s", "ts": part["ts"], **part["at"], **flow})
                found.append({"ph": "f", "bp": "e", "ts": event["end"], **event["at"], **flow})
    return {"traceEvents": found, "displayTimeUnit": "ns",
            "otherData": {"clock": "; ".join(clocks)}}


def work_of(event, number):
    """What the warp does, and what it starts beside itself."""
    counts, begin = event.get("counts", {}), event["ts"]
    said = {"line": "file" in event and f"{event['file']}:{event['line']}",
            "bytes": event["bytes"] or event["amount"],
            "matmul FLOPs": counts.get("matmul_flops"), "exponentials": counts.get("exp_count")}
    both = {"name": f"{event['what']} {event.get('name', '')}".strip(), **event["at"]}
    work = [{"ph": "X", "ts": begin, "dur": event["end"] - begin, "cat": "warp", **both,
             "args": {what: value for what, value in said.items() if value}}]
    if "engine" in event:
        track = {"cat": event["engine"], "id": number, **both}
        work += [{"ph": "b", "ts": begin, **track}, {"ph": "e", "ts": event["until"], **track}]
    return work
