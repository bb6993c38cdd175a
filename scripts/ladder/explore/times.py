"""Assigns ticks to events, and finds what they wait for.

Ticks give an order, not a duration. Each event of a warp takes one tick, and a wait ends one tick
after the start of the last event that it waits for. The blocks of a kernel start together, and
kernels run one after the other."""

from __future__ import annotations

import collections
import itertools
from typing import NamedTuple

from ladder.trace.read import LOADS, STORES, WAITS, Event, Trace

# Kind of asynchronous operation → kind of event that waits for a group of such operations.
OWN_WAITS = {"wgmma": "wgmma_wait", **dict.fromkeys(STORES, "tma_store_wait")}
NAMED = ("named_barrier_arrive", "named_barrier_sync")
BARRIERS = ("__syncthreads", "mbarrier_arrive", "mbarrier_wait", *NAMED)


class Meeting(NamedTuple):
    """The events that must happen before one wait ends: one phase of an mbarrier, one round of a
    barrier, or the groups of copies or products that one wait completes."""
    title: str  # in words for the page, such as "mbarrier Q_full[0], phase 0"
    parts: list[Event]


def meet(events: list[Event], meetings: list[Meeting]) -> None:
    """Sets `awaits` (the meeting that an event waits for) and `lands` (the meeting that its
    completion counts towards) in a block's events, and appends the meetings to `meetings`."""
    numbers: dict[str, int] = {}
    copies: dict[int, list[Event]] = collections.defaultdict(list)  # per warp, not yet in a group
    started: dict[tuple, list[Event]] = collections.defaultdict(list)  # key: (kind of wait, warp)

    def meeting(title: str) -> int:
        if title not in numbers:
            numbers[title] = len(meetings)
            meetings.append(Meeting(title, []))
        return numbers[title]

    def join(event: Event, at: int) -> None:
        meetings[at].parts.append(event)
        if event.awaits is None:
            event.lands = at

    for event in events:
        kind, name, number = event.kind, event.name, event.number
        if kind == "read" and event.copies():
            copies[event.warp].append(event)
        elif kind == "cp_async_commit":
            for copy in copies.pop(event.warp, []):
                copy.number = number
                started["cp_async_wait", event.warp].append(copy)
        elif kind in OWN_WAITS:
            started[OWN_WAITS[kind], event.warp].append(event)
        elif kind in ("cp_async_wait", *OWN_WAITS.values()):
            event.awaits = meeting(f"{kind} {number} of warp {event.warp}")
            own = started[kind, event.warp]
            for part in own:
                if part.number < number:
                    join(part, event.awaits)
            started[kind, event.warp] = [part for part in own if part.number >= number]
        elif kind in (*LOADS, *BARRIERS):
            at = meeting(f"{kind} number {number + 1}" if kind == "__syncthreads" else
                         f"named barrier {name}, round {number}" if kind in NAMED else
                         f"mbarrier {event.barrier or name}, phase {number}")
            if kind in WAITS:
                event.awaits = at
            # Diverged lanes arrive at a barrier separately, after the rest of their warp, so only
            # the warp's first arrival is counted.
            came = any((part.kind, part.warp) == (kind, event.warp) for part in meetings[at].parts)
            if kind not in WAITS or (kind != "mbarrier_wait" and not came):
                join(event, at)


def put_in_order(trace: Trace) -> list[Meeting]:
    """Sets the ticks, `awaits` and `lands` of all events of a trace; returns all meetings."""
    meetings: list[Meeting] = []
    for events in trace.blocks().values():
        meet(events, meetings)
        # A wait may precede the events that it awaits, so the loop repeats until no tick changes.
        # Before a fault, warps may wait for each other in a cycle, so 50 rounds are the limit.
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
    start = 1  # no event starts at tick 0
    for _, kernel in itertools.groupby(trace.events, key=lambda event: event.launch):
        events = [*kernel]
        for event in events:
            event.ticks = [start + tick for tick in event.ticks]
        start = max(event.ticks[1] for event in events)
    return meetings


def end_of(event: Event, meetings: list[Meeting]) -> int:
    """Sets and returns an event's last tick: one after its start or, if that is later, one after
    the start of the last event that it waits for."""
    parts = meetings[event.awaits].parts if event.awaits is not None else []
    event.ticks[1] = 1 + max(part.ticks[0] for part in (event, *parts))
    return event.ticks[1]


def put_landings(events: list[Event]) -> None:
    """Appends to each event's ticks the tick when its work completes: the end of the earliest wait
    for its meeting (`lands`) or, without a meeting, the end of the event itself."""
    over: dict[int | None, int] = {}
    for event in events:
        end = event.ticks[1]
        over[event.awaits] = min(over.get(event.awaits, end), end)
    for event in events:
        begin, end = event.ticks
        until = end if event.lands is None else max(over.get(event.lands, end), begin)
        event.ticks.append(until)
