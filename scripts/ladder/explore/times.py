"""When things happen: in the order of the trace, and in the time of the figures' model.

The order is what the program fixes: each event of a warp takes one tick, a wait ends when the last
thing that it waits for is there, and blocks come one after the other, as the sim runs them; the page
puts them side by side on SMs. That is an order and no time.
"""

from ladder.console import Stop
from ladder.course import PRODUCTS
from ladder.explore.trace import WAITS
from ladder.figures import replay
from ladder.bench.traces import LOADS, STORES, warps_of


class Meeting:
    """What a wait waits for: a phase of an mbarrier, a round of a barrier, groups of copies or of
    products. `parts` is [event] that it takes; `known` how many of them have a tick."""

    def __init__(self):
        self.parts, self.known, self.complete = [], 0, 0


def keys_of(event):
    """(what it takes part in, what it waits for), each a key within its block, or None."""
    if event.what == "__syncthreads":
        key = ("__syncthreads", event.number)
        return key, key
    if event.what == "named_barrier_sync":
        key = ("named barrier " + event.name, event.number)
        return key, key
    if event.what == "named_barrier_arrive":
        return ("named barrier " + event.name, event.number), None
    if event.what == "mbarrier_arrive":
        return (event.name, event.number), None
    if event.what == "mbarrier_wait":
        return None, (event.name, event.number)
    if event.what in LOADS:
        return (event.barrier, event.number), None
    if event.what in WAITS:  # for what the warp itself started
        return None, (f"{event.what} of warp {event.warp}", event.number)
    return None, None


def own_groups(events):
    """The parts of waits for groups that a warp started itself: {key of the wait: [event]}."""
    started, groups, parts = {}, {}, {}
    starts = {"wgmma": "wgmma_wait", **dict.fromkeys(STORES, "tma_store_wait")}
    for event in events:
        if event.what == "read" and event.copies():
            started.setdefault(event.warp, []).append(event)
        elif event.what == "cp_async_commit":
            for one in started.pop(event.warp, []):
                groups.setdefault(("cp_async_wait", event.warp), []).append((event.number, one))
        elif event.what in starts:
            groups.setdefault((starts[event.what], event.warp), []).append((event.number, event))
        elif event.what in starts.values() or event.what == "cp_async_wait":
            mine = groups.get((event.what, event.warp), [])
            over = [one for number, one in mine if number < event.number]
            groups[event.what, event.warp] = [pair for pair in mine if pair[0] >= event.number]
            parts.setdefault(keys_of(event)[1], []).extend(over)
    return parts


def order_block(events, start):
    """Gives the events of a block their ticks, from `start` on. The last tick and the meetings."""
    meetings, by_warp = {}, {}
    for key, parts in own_groups(events).items():
        meetings.setdefault(key, Meeting()).parts += parts
    for event in events:
        by_warp.setdefault(event.warp, []).append(event)
        part, event.awaits = keys_of(event)
        if part:
            meetings.setdefault(part, Meeting()).parts.append(event)
    takes_part = {}
    for key, meeting in meetings.items():
        for part in meeting.parts:
            takes_part.setdefault(id(part), []).append(meeting)
            if keys_of(part)[1] is None and part.lands is None:
                part.lands = key
    at, clock = dict.fromkeys(by_warp, 0), dict.fromkeys(by_warp, start)
    told = set()
    moved = True
    while moved:
        moved = False
        for warp, mine in by_warp.items():
            while at[warp] < len(mine):
                event = mine[at[warp]]
                now = clock[warp]
                if id(event) not in told:  # it has come to it
                    told.add(id(event))
                    moved = True
                    for meeting in takes_part.get(id(event), []):
                        meeting.known += 1
                        meeting.complete = max(meeting.complete, now + 1)
                end = now + 1
                if event.awaits:
                    meeting = meetings.get(event.awaits)
                    if meeting and meeting.known < len(meeting.parts):
                        break
                    end = max(end, meeting.complete if meeting else 0)
                event.order = [now, end]
                clock[warp], at[warp] = end, at[warp] + 1
                moved = True
    last = max(clock.values(), default=start)
    for warp, mine in by_warp.items():  # only a fault leaves some that wait forever
        for event in mine[at[warp]:]:
            event.order = [clock[warp], last + 1]
    if any(at[warp] < len(mine) for warp, mine in by_warp.items()):
        last += 1
    return last, meetings


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
    does not know take no time. The cycles in all, or None."""
    lines = {}
    for line in trace.lines:
        lines.setdefault((line["launch"], line["block"]), []).append(line)
    modelled = {trace.launches[line["launch"]]["kernel"]
                for line in trace.lines if line["do"] == "wgmma"}
    if not modelled or trace.fault:
        return None
    start, until, launch, model = 0.0, 0.0, None, {}
    for (number, block), events in trace.blocks().items():
        if number != launch:
            start, launch = until, number
        kernel = trace.launches[number]["kernel"]
        if kernel not in modelled:
            for event in events:
                event.model = [start, start]
            continue
        times = times_of(lines[number, block], PRODUCTS.get(kernel, {}))
        if times is None:
            return None
        until = max(until, start + place_block(events, times, start))
        model[number, block] = times
    return until


def times_of(lines, called):
    """{warp: [(event, name, number, from, to)]} of the warps that the replay has."""
    warps = warps_of(lines)
    played = replay.Block(list(warps.values()), called)
    try:
        played.play()
    except (Stop, KeyError):
        return None  # more than the model knows
    return {warp: [(event[0], event[1], event[3], *time)
                   for event, time in zip(warps[warp], actor.times)]
            for warp, actor in zip(warps, played.actors)}


def place_block(events, times, start):
    """Gives a block's events their time; that of the last."""
    by_warp, end = {}, 0.0
    for event in events:
        by_warp.setdefault(event.warp, []).append(event)
    for warp, mine in by_warp.items():
        # A warpgroup's other warps do what its first does.
        known = list(times.get(warp) or times.get(warp // 4 * 4) or [])
        now, waiting, at = 0.0, [], 0
        for event in mine:
            found = next((i for i in range(at, len(known))
                          if known[i][:3] == (event.what, event.name, event.number)), None)
            if found is None:
                waiting.append(event)
                continue
            *_, begin, until = known[found]
            at = found + 1
            share_out(waiting, now, max(now, begin), start)
            waiting = []
            event.model = [start + max(now, begin), start + max(now, until)]
            now = max(now, until)
        share_out(waiting, now, now, start)
        end = max(end, now)
    return end


def share_out(events, begin, end, start):
    step = (end - begin) / len(events) if events else 0
    for i, event in enumerate(events):
        event.model = [start + begin + i * step, start + begin + (i + 1) * step]
