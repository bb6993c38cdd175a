"""When things happen, in the order of the trace.

The order is what the program fixes: each event of a warp takes one tick, and a wait ends when the
last thing that it waits for has come. That is an order and no time. Each block begins at 0; the
page puts blocks one after the other, and side by side on SMs.
"""

from __future__ import annotations

from ladder.trace.meetings import Meeting, meet
from ladder.trace.read import Event, Trace


def put_in_order(trace: Trace) -> list[Meeting]:
    """Gives every event its ticks, and the meeting that it waits for."""
    meetings: list[Meeting] = []
    for events in trace.blocks().values():
        meet(events, meetings)
        # A warp's first lane may be ahead, in the trace, of what the warp waits for: so it is gone
        # through until nothing moves, but not for ever, as after a fault some may wait for others.
        for _ in range(50):
            last: dict[int, Event] = {}
            moved = False
            for event in events:
                begin = end_of(last[event.warp], meetings) if event.warp in last else 0
                moved |= event.ticks[0] != begin
                event.ticks[0] = begin
                last[event.warp] = event
            if not moved:
                break
        for event in last.values():
            end_of(event, meetings)
        put_landings(events)
    return meetings


def end_of(event: Event, meetings: list[Meeting]) -> int:
    """A tick later, or when the last has come that it waits for."""
    parts = meetings[event.awaits].parts if event.awaits is not None else []
    event.ticks[1] = 1 + max(part.ticks[0] for part in (event, *parts))
    return event.ticks[1]


def put_landings(events: list[Event]) -> None:
    """Gives each event of a block, after its begin and end, when somebody first knew that the
    meeting was complete in which it takes part."""
    over: dict[int | None, int] = {}
    for event in events:
        end = event.ticks[1]
        over[event.awaits] = min(over.get(event.awaits, end), end)
    for event in events:
        begin, end = event.ticks
        until = end if event.lands is None else max(over.get(event.lands, end), begin)
        event.ticks.append(until)
