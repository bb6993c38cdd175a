"""When things happen: in the order of the trace, and in the time of the figures' model.

The order is what the program fixes: each event of a warp takes one tick, a wait ends when the last
thing that it waits for is there, and blocks come one after the other, as the sim runs them (the
page puts them side by side on SMs). That is an order and no time.
"""

import collections
import math

from ladder.base.console import Stop
from ladder.base.course import PRODUCTS
from ladder.trace import replay
from ladder.trace.read import LOADS, STORES, WAITS

# What a warp starts itself → how it waits for a group of those.
OWN_WAITS = {"read": "cp_async_wait", "wgmma": "wgmma_wait",
             **dict.fromkeys(STORES, "tma_store_wait")}
BARRIERS = ("__syncthreads", "mbarrier_arrive", "mbarrier_wait", "named_barrier_arrive",
            "named_barrier_sync")


def put_in_order(trace):
    """Gives every event its ticks, and what it waits for: a *meeting* is one phase of an mbarrier,
    one round of a barrier, or groups of copies or products, [title, [event]]."""
    now, meetings = 0, []
    for events in trace.blocks().values():
        meet(events, meetings)
        # A warp's first lane may be ahead, in the trace, of what the warp waits for: so it is gone
        # through until nothing moves, but not for ever, as after a fault some may wait for others.
        for _ in range(50):
            last, moved = {}, False
            for event in events:
                begin = end_of(last[event.warp], meetings) if event.warp in last else now
                moved |= event.order[0] != begin
                event.order[0] = begin
                last[event.warp] = event
            if not moved:
                break
        now = max(end_of(event, meetings) for event in last.values())
        put_landings(events, "order")
    return meetings


def end_of(event, meetings):
    """A tick later, or when the last has come that it waits for."""
    parts = meetings[event.awaits][1] if event.awaits is not None else []
    event.order[1] = 1 + max(one.order[0] for one in (event, *parts))
    return event.order[1]


def put_landings(events, clock):
    """Gives each event of a block, after from and to, when somebody first knew that the meeting was
    complete in which it takes part."""
    over = {}
    for event in events:
        end = getattr(event, clock)[1]
        over[event.awaits] = min(over.get(event.awaits, end), end)
    for event in events:
        begin, end = getattr(event, clock)
        until = end if event.lands is None else max(over.get(event.lands, end), begin)
        getattr(event, clock).append(until)


def meet(events, meetings):
    """Finds out what the events of a block wait for, and what takes part in that."""
    numbers, own = {}, collections.defaultdict(list)

    def meeting(title):
        if title not in numbers:
            numbers[title] = len(meetings)
            meetings.append([title, []])
        return numbers[title]

    def join(event, at):
        meetings[at][1].append(event)
        if event.awaits is None:
            event.lands = at

    for event in events:
        what, name, number = event.what, event.name, event.number
        if what in OWN_WAITS and (what != "read" or event.copies()):
            # Copies by the warp are of the group that it closes next.
            own[OWN_WAITS[what], event.warp].append(
                [math.inf if what == "read" else number, event])
        elif what == "cp_async_commit":
            for one in own["cp_async_wait", event.warp]:
                one[0] = min(one[0], number)
        elif what in OWN_WAITS.values():
            event.awaits = meeting(f"{what} {number} of warp {event.warp}")
            mine = own[what, event.warp]
            for group, one in mine:
                if group < number:
                    join(one, event.awaits)
            mine[:] = [one for one in mine if one[0] >= number]
        elif what in (*LOADS, *BARRIERS):
            at = meeting(f"__syncthreads number {number + 1}" if what == "__syncthreads" else
                         f"named barrier {name}, round {number}" if what.startswith("named") else
                         f"mbarrier {event.barrier or name}, phase {number}")
            if what in WAITS:
                event.awaits = at
            # Lanes on their own come to a barrier once more, after the rest of their warp.
            came = any((one.what, one.warp) == (what, event.warp) for one in meetings[at][1])
            if what not in WAITS or (what != "mbarrier_wait" and not came):
                join(event, at)


# ---- the model's time ----

def put_in_model_time(trace):
    """Gives every event its time by replay, where the trace has what that takes: products and
    copies by Hopper's engines. The blocks of a kernel run side by side; kernels that the model
    does not know take no time. Whether it has."""
    modelled = {event.launch for event in trace.events if event.what == "wgmma"}
    if not modelled or trace.fault:
        return False
    start, until, launch = 0, 0, None
    for (number, _), events in trace.blocks().items():
        if number != launch:
            start, launch = until, number
        try:
            times = (times_of(events, PRODUCTS.get(trace.kernel_of(number), {}))
                     if number in modelled else {})
        except (Stop, KeyError):
            return False  # more than the model knows
        until = max(until, place_block(events, times, start))
    return True


def times_of(events, called):
    """{warp: [((event, name, number), (from, to))]} of the warps that the replay has."""
    warps = replay.warps_of(events)
    played = replay.Block(list(warps.values()), called)
    return {warp: [((what, name, number), time) for (what, name, _, number, *_), time
                   in zip(warps[warp], times)]
            for warp, times in zip(warps, played.times)}


def place_block(events, times, start):
    """Gives a block's events their time; that of the last. Those that the replay does not have
    share the time until the next that it has."""
    by_warp, end = {}, start
    for event in events:
        by_warp.setdefault(event.warp, []).append(event)
    for warp, mine in by_warp.items():
        # A warpgroup's other warps do what its first does.
        known = times.get(warp) or times.get(warp // 4 * 4, [])
        now, waiting = start, []
        for event in mine:
            key = event.what, event.name, event.number
            at = next((i for i, (other, _) in enumerate(known) if other == key), None)
            if at is None:
                event.model = [now, now]
                waiting.append(event)
                continue
            begin, until = (start + round(time) for time in known[at][1])
            known = known[at + 1:]
            for i, one in enumerate(waiting, 1):
                one.model = [now + round((begin - now) * part / len(waiting))
                             for part in (i - 1, i)]
            event.model, now, waiting = [begin, until], until, []
        end = max(end, now)
    put_landings(events, "model")
    return end
