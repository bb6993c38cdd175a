"""When things happen: in the order of the trace, and in the time of the figures' model.

The order is what the program fixes: each event of a warp takes one tick, a wait ends when the last
thing that it waits for is there, and blocks come one after the other, as the sim runs them (the
page puts them side by side on SMs). That is an order and no time.
"""

import collections

from ladder.console import Stop
from ladder.course import PRODUCTS
from ladder.figures import replay
from ladder.bench.traces import LOADS, STORES, warps_of


OWN_WAITS = ("cp_async_wait", "wgmma_wait", "tma_store_wait")  # for what the warp itself started


class Meeting:
    """What a wait waits for: a phase of an mbarrier, a round of a barrier, groups of copies or of
    products. `parts` is [event] that it takes; `known` how many of them have a tick."""

    def __init__(self):
        self.parts, self.known, self.complete = [], 0, 0


def keys_of(event):
    """(what it takes part in, what it waits for), each a key within its block, or None."""
    what, number = event.what, event.number
    named = ("named barrier " + event.name, number)
    if what in LOADS:
        return (event.barrier, number), None
    if what == "mbarrier_wait":
        return None, (event.name, number)
    if what in OWN_WAITS:
        return None, (f"{what} of warp {event.warp}", number)
    return {"__syncthreads": ((what, number), (what, number)),
            "named_barrier_sync": (named, named), "named_barrier_arrive": (named, None),
            "mbarrier_arrive": ((event.name, number), None)}.get(what, (None, None))


def own_groups(events):
    """The parts of waits for groups that a warp started itself: {key of the wait: [event]}."""
    started, groups, parts = {}, {}, {}  # groups: (wait, warp) → [(number of the group, event)]
    starts = {"wgmma": "wgmma_wait", **dict.fromkeys(STORES, "tma_store_wait")}
    for event in events:
        mine = groups.setdefault((starts.get(event.what, event.what), event.warp), [])
        if event.what == "read" and event.copies():
            started.setdefault(event.warp, []).append(event)
        elif event.what == "cp_async_commit":
            groups.setdefault(("cp_async_wait", event.warp), []).extend(
                (event.number, one) for one in started.pop(event.warp, []))
        elif event.what in starts:
            mine.append((event.number, event))
        elif event.what in OWN_WAITS:
            parts.setdefault(keys_of(event)[1], []).extend(
                one for number, one in mine if number < event.number)
            mine[:] = [pair for pair in mine if pair[0] >= event.number]
    return parts


def order_block(events, start):
    """Gives the events of a block their ticks, from `start` on. The last tick and the meetings."""
    meetings, by_warp, takes_part = {}, {}, {}
    for key, parts in own_groups(events).items():
        meetings.setdefault(key, Meeting()).parts += parts
    for event in events:
        by_warp.setdefault(event.warp, []).append(event)
        part, event.awaits = keys_of(event)
        if part:
            meetings.setdefault(part, Meeting()).parts.append(event)
    for key, meeting in meetings.items():
        for part in meeting.parts:
            takes_part.setdefault(id(part), []).append(meeting)
            if part.awaits is None and part.lands is None:
                part.lands = key
    left = {warp: collections.deque(mine) for warp, mine in by_warp.items()}
    clock, told = dict.fromkeys(by_warp, start), set()
    moved = True
    while moved:
        moved = False
        for warp, mine in left.items():
            while mine:
                event, now = mine[0], clock[warp]
                if id(event) not in told:  # it has come to it
                    told.add(id(event))
                    moved = True
                    for meeting in takes_part.get(id(event), []):
                        meeting.known += 1
                        meeting.complete = max(meeting.complete, now + 1)
                meeting = meetings.get(event.awaits)
                if meeting and meeting.known < len(meeting.parts):
                    break
                clock[warp] = max(now + 1, meeting.complete if meeting else 0)
                event.order = [now, clock[warp]]
                mine.popleft()
                moved = True
    last = max(clock.values(), default=start)
    for warp, mine in left.items():  # only a fault leaves some that wait forever
        for event in mine:
            event.order = [clock[warp], last + 1]
    return last + any(left.values()), meetings


def put_in_order(trace):
    """Gives every event its ticks. (launch, block) → its meetings."""
    now, meetings = 0, {}
    for place, events in trace.blocks().items():
        now, meetings[place] = order_block(events, now)
    return meetings


# ---- the model's time ----

def put_in_model_time(trace):
    """Gives every event its time by replay, where the trace has what that takes: products and
    copies by Hopper's engines. The blocks of a kernel run side by side; kernels that the model
    does not know take no time. Whether it has."""
    lines = {}
    for line in trace.lines:
        lines.setdefault((line["launch"], line["block"]), []).append(line)
    modelled = {trace.launches[line["launch"]]["kernel"]
                for line in trace.lines if line["do"] == "wgmma"}
    if not modelled or trace.fault:
        return False
    start, until, launch = 0.0, 0.0, None
    for (number, block), events in trace.blocks().items():
        if number != launch:
            start, launch = until, number
        kernel = trace.launches[number]["kernel"]
        try:
            times = (times_of(lines[number, block], PRODUCTS.get(kernel, {}))
                     if kernel in modelled else {})
        except (Stop, KeyError):
            return False  # more than the model knows
        until = max(until, place_block(events, times, start))
    return True


def times_of(lines, called):
    """{warp: [(event, name, number, from, to)]} of the warps that the replay has."""
    warps = warps_of(lines)
    played = replay.Block(list(warps.values()), called)
    played.play()
    return {warp: [(event[0], event[1], event[3], *time)
                   for event, time in zip(warps[warp], actor.times)]
            for warp, actor in zip(warps, played.actors)}


def place_block(events, times, start):
    """Gives a block's events their time; that of the last. Those that the replay does not have
    share the time until the next that it has."""
    by_warp, end = {}, start
    for event in events:
        by_warp.setdefault(event.warp, []).append(event)
    for warp, mine in by_warp.items():
        # A warpgroup's other warps do what its first does.
        known = list(times.get(warp) or times.get(warp // 4 * 4) or [])
        now, waiting = start, []
        for event in mine:
            waiting.append(event)
            found = next((i for i, one in enumerate(known)
                          if one[:3] == (event.what, event.name, event.number)), None)
            if found is None:
                event.model = [now, now]
                continue
            *_, begin, until = known[found]
            del known[:found + 1]
            step = max(0, start + begin - now) / max(1, len(waiting) - 1)
            for one in waiting[:-1]:
                one.model, now = [now, now + step], now + step
            event.model = [max(now, start + begin), max(now, start + until)]
            now, waiting = event.model[1], []
        end = max(end, now)
    return end
