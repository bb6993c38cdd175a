"""Builds the explorer's page: one self-contained HTML file with the traced runs and the sources in
scripts/ladder/explore/web."""

from __future__ import annotations

import base64
import html
import json
import os
import zlib
from typing import Any

from ladder.base.files import ROOT, read
from ladder.base.records import Record
from ladder.explore.tiles import put_tiles
from ladder.explore.times import put_in_order
from ladder.trace.read import Event, Trace, place

FOLDER = os.path.join(ROOT, "scripts/ladder/explore/web")
SCRIPTS = ("data.js", "replay.js", "words.js", "paint.js", "memory.js", "scores.js", "shared.js",
           "timeline.js", "source.js", "pane.js", "app.js")
# Counts that the page recomputes from the events and checks against the program's.
BYTES = ("requested_read_bytes", "requested_write_bytes", "distinct_read_bytes",
         "distinct_write_bytes")


def pane_of(trace: Trace, records: list[Record], command: str) -> dict[str, Any]:
    """Returns all that the page needs to know about one step, ready for JSON. `records` are those
    that the program printed, or [] after a fault; `command` is shown as the summary's tooltip."""
    meetings = put_in_order(trace)
    trace.events = [event for events in trace.blocks().values()
                    for event in sorted(events, key=lambda event: event.ticks[0])]
    put_tiles(trace, meetings)
    for i, event in enumerate(trace.events):
        event.index = i
    head, fault, counters = trace.head, fault_of(trace), [*BYTES, *trace.counts]
    paths = {event.file for event in trace.events} | ({fault["file"]} if fault else set())
    return {
        "title": f"{head['rung'][:2]} {head['step']}", "command": command, "head": head,
        "plan": trace.plan, "launches": trace.launches,
        "arrays": [{"name": name, "bytes": size, "rows": trace.rows_of(name)}
                   for name, size in trace.arrays.items()],
        "events": [page_event(event) for event in trace.events],
        "blocks": [block_of(*block) for block in trace.blocks().items()],
        "meetings": [[title, [part.index for part in parts]] for title, parts in meetings],
        "fault": fault,
        "files": {path: read(os.path.join(ROOT, path)) for path in sorted(paths) if path},
        "counters": counters, "counted": {name: sum(record[name] for record in records)
                                          for name in counters} if records else None}


def block_of(place: tuple[int, int], events: list[Event]) -> dict[str, Any]:
    """Returns a block as the page stores it: its launch and number, the range [first, end) of its
    events, its number of warps, and the warpgroups that execute wgmma."""
    return {"launch": place[0], "number": place[1],
            "events": [events[0].index, events[-1].index + 1],
            "warps": max(event.warp for event in events) + 1,
            "groups": sorted({event.warp // 4 for event in events if event.kind == "wgmma"})}


def page_event(event: Event) -> dict[str, Any]:
    """Returns an event as the page stores it, under the same names, omitting empty fields (but
    keeping zeros) and `shared`, because `holds` and `tile` say what the page needs of it."""
    members = {**vars(event), "shared": None, "category": event.category(),
               "engine": event.engine(),
               "source": event.source and event.source.name,
               "holds": {array: [[*rows, filled.index] for *rows, filled in stages]
                         for array, stages in event.holds.items()}}
    return {name: value for name, value in members.items() if value or type(value) is int}


def fault_of(trace: Trace) -> dict[str, Any] | None:
    """Returns the fault's message, file and line, and the index of its warp's last event (-1 if
    it has none); None if the run did not fault. The file may contain no events."""
    fault = trace.fault
    if not fault:
        return None
    file, line = place(fault["line"])
    warp = fault["launch"], fault["block"], fault["thread"] // 32
    return {"message": fault["fault"], "file": file, "line": line, "event": max(
        (event.index for event in trace.events
         if (event.launch, event.block, event.warp) == warp), default=-1)}


def page_of(panes: list[dict[str, Any]]) -> str:
    """Returns the HTML of a page that needs no other file and no network."""
    packed = zlib.compress(json.dumps(panes, separators=(",", ":")).encode(), 9)
    style, page, *scripts = (read(os.path.join(FOLDER, name)).strip()
                             for name in ("style.css", "page.html", *SCRIPTS))
    parts = {"title": html.escape(" and ".join(pane["title"] for pane in panes)),
             "style": style, "script": "\n\n".join(scripts),
             "data": base64.b64encode(packed).decode()}
    page += "\n"
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    return page
