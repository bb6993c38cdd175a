"""When things happen: in the order of the trace, and in the time of the figures' model.

The order is what the program fixes: each event of a warp takes one tick, and a wait ends when the
last thing that it waits for is there. That is an order and no time. By both each block begins at 0;
the page puts blocks one after the other, and side by side on SMs.
"""

from __future__ import annotations

from ladder.base.console import Stop
from ladder.base.course import PRODUCTS
from ladder.trace import replay
from ladder.trace.read import Event, Kind, Trace
from ladder.trace.replay import Meeting, meet

Times = dict[int, list[tuple[tuple, tuple[float, float]]]]


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
                moved |= event.order[0] != begin
                event.order[0] = begin
                last[event.warp] = event
            if not moved:
                break
        for event in last.values():
            end_of(event, meetings)
        put_landings(events, "order")
    return meetings


def end_of(event: Event, meetings: list[Meeting]) -> int:
    """A tick later, or when the last has come that it waits for."""
    parts = meetings[event.awaits].parts if event.awaits is not None else []
    event.order[1] = 1 + max(part.order[0] for part in (event, *parts))
    return event.order[1]


def put_landings(events: list[Event], clock: str) -> None:
    """Gives each event of a block, after from and to, when somebody first knew that the meeting was
    complete in which it takes part."""
    over: dict[int | None, int] = {}
    for event in events:
        end = getattr(event, clock)[1]
        over[event.awaits] = min(over.get(event.awaits, end), end)
    for event in events:
        begin, end = getattr(event, clock)
        until = end if event.lands is None else max(over.get(event.lands, end), begin)
        getattr(event, clock).append(until)


# ---- the model's time ----

def put_in_model_time(trace: Trace) -> bool:
    """Gives every event its time by replay, where the trace has what that takes: products and
    copies by Hopper's engines; kernels that the model does not know take no time. Whether it
    has."""
    modelled = {event.launch for event in trace.events if event.kind is Kind.WGMMA}
    if not modelled or trace.fault:
        return False
    for (launch, _), events in trace.blocks().items():
        warps = replay.warps_of(events) if launch in modelled else {}
        try:
            played = replay.Block(list(warps.values()), PRODUCTS.get(trace.kernel_of(launch), {}))
        except (Stop, KeyError):
            return False  # more than the model knows
        place_block(events, {warp: [(event.asked(), time) for event, time in zip(asked, times)]
                             for (warp, asked), times in zip(warps.items(), played.times)})
    return True


def place_block(events: list[Event], times: Times) -> None:
    """Gives a block's events their time; `times`: warp → [(what an event asks, (from, to))] of
    those that the replay has. The others share the time until the next that it has."""
    by_warp: dict[int, list[Event]] = {}
    for event in events:
        by_warp.setdefault(event.warp, []).append(event)
    for warp, mine in by_warp.items():
        # A warpgroup's other warps do what its first does.
        known = times.get(warp) or times.get(warp // 4 * 4, [])
        now, waiting = 0, []
        for event in mine:
            at = next((i for i, (asked, _) in enumerate(known) if asked == event.asked()), None)
            if at is None:
                event.model = [now, now]
                waiting.append(event)
                continue
            begin, until = map(round, known[at][1])
            known = known[at + 1:]
            for i, one in enumerate(waiting, 1):
                one.model = [now + round((begin - now) * part / len(waiting))
                             for part in (i - 1, i)]
            event.model, now, waiting = [begin, until], until, []
    put_landings(events, "model")
