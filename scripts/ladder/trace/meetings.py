"""What the events of a block wait for, and what takes part in that."""

from __future__ import annotations

import collections
from typing import NamedTuple

from ladder.trace.read import LOADS, STORES, WAITS, Event

# What a warp starts itself → how it waits for a group of those.
OWN_WAITS = {"wgmma": "wgmma_wait", **dict.fromkeys(STORES, "tma_store_wait")}
NAMED = ("named_barrier_arrive", "named_barrier_sync")
BARRIERS = ("__syncthreads", "mbarrier_arrive", "mbarrier_wait", *NAMED)


class Meeting(NamedTuple):
    """One phase of an mbarrier, one round of a barrier, or groups of copies or products."""

    title: str
    parts: list[Event]


def meet(events: list[Event], meetings: list[Meeting]) -> None:
    """Finds out what the events of a block wait for, and what takes part in that."""
    numbers: dict[str, int] = {}
    copies: dict[int, list[Event]] = collections.defaultdict(list)  # of no group yet, by warp
    started: dict[tuple, list[Event]] = collections.defaultdict(list)  # by what waits for it

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
            # Lanes on their own come to a barrier once more, after the rest of their warp.
            came = any((part.kind, part.warp) == (kind, event.warp) for part in meetings[at].parts)
            if kind not in WAITS or (kind != "mbarrier_wait" and not came):
                join(event, at)
