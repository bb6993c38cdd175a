"""When what happens in a block of a pipeline: its trace, replayed under a simple model of time.

The sim knows what a block does and in what order, but no time. replay() gives it one: each warp has
a clock, what it asked for takes as long as the rates below say, and a wait ends when what it waits
for is there. Issuing, barriers, shared memory and the other blocks cost nothing.

It shows what waits for what, and cannot tell how much one step gains over another. A softmax takes
as long as its exponentials, 512 cycles for 64 rows and 128 keys, where 990 to 1,467 fit what was
measured, and sums are there at once, not 129 cycles later. With both set right it still finds
ping_pong no faster than overlap: 05_flash_v2/hopper/notes.md, “The model beside the clock”.
"""

from __future__ import annotations

import collections
import itertools
import math
from typing import Callable, Iterator, NamedTuple

from ladder.base.console import BAD_USAGE, Stop
from ladder.trace.read import COPIES, LOADS, STORES, WAITS, Event, Kind

# Of one SM, per cycle. NVIDIA's H100 white paper: 989.4 TFLOP/s, dense bf16, 132 SMs, 1.83 GHz.
MATMUL_FLOPS = 4096
# CUDA C++ Programming Guide, arithmetic instructions, 9.0: results a cycle. A counted FLOP is taken
# to be an instruction, which overestimates multiply-adds.
EXPS, OTHER_FLOPS = 16, 128
# NVIDIA's A100 white paper: L2 gives 5,120 bytes a cycle, here to 132 SMs.
COPY_BYTES = 5120 / 132
COPY_LATENCY = 500  # cycles; chosen, and hidden wherever a stage is free in time

Step = tuple[float, Callable[[], bool]]  # see run()
Called = dict[str, list[str]]  # course.PRODUCTS
THREADS = 128  # of a warpgroup, all of which do what the first does
# What a consumer waits for, by the event at which it does.
AWAITED = {Kind.MBARRIER_WAIT: "tile", Kind.NAMED_BARRIER_SYNC: "turn", Kind.WGMMA_WAIT: "sums",
           Kind.TMA_STORE_WAIT: "store"}
# What a warp starts itself → how it waits for a group of those.
OWN_WAITS = {Kind.WGMMA: Kind.WGMMA_WAIT, **dict.fromkeys(STORES, Kind.TMA_STORE_WAIT)}
NAMED = (Kind.NAMED_BARRIER_ARRIVE, Kind.NAMED_BARRIER_SYNC)
BARRIERS = (Kind.SYNCTHREADS, Kind.MBARRIER_ARRIVE, Kind.MBARRIER_WAIT, *NAMED)
# What is asked of Hopper's engines and barriers.
ASKED = (*COPIES, *AWAITED, *NAMED, Kind.MBARRIER_ARRIVE, Kind.WGMMA, Kind.EXIT)

# ---- what waits for what ----


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
        if kind is Kind.READ and event.copies():
            copies[event.warp].append(event)
        elif kind is Kind.CP_ASYNC_COMMIT:
            for copy in copies.pop(event.warp, []):
                copy.number = number
                started[Kind.CP_ASYNC_WAIT, event.warp].append(copy)
        elif kind in OWN_WAITS:
            started[OWN_WAITS[kind], event.warp].append(event)
        elif kind in (Kind.CP_ASYNC_WAIT, *OWN_WAITS.values()):
            event.awaits = meeting(f"{kind.value} {number} of warp {event.warp}")
            own = started[kind, event.warp]
            for part in own:
                if part.number < number:
                    join(part, event.awaits)
            started[kind, event.warp] = [part for part in own if part.number >= number]
        elif kind in (*LOADS, *BARRIERS):
            at = meeting(f"{kind.value} number {number + 1}" if kind is Kind.SYNCTHREADS else
                         f"named barrier {name}, round {number}" if kind in NAMED else
                         f"mbarrier {event.barrier or name}, phase {number}")
            if kind in WAITS:
                event.awaits = at
            # Lanes on their own come to a barrier once more, after the rest of their warp.
            came = any((part.kind, part.warp) == (kind, event.warp) for part in meetings[at].parts)
            if kind not in WAITS or (kind is not Kind.MBARRIER_WAIT and not came):
                join(event, at)


# ---- a block, by its warps ----


def warps_of(events: list[Event]) -> dict[int, list[Event]]:
    """Warp → what a block asks of Hopper's engines and barriers, as events of their own. What is
    counted between two of them, by the warp's first lane, is the later one's. One warp stands for a
    warpgroup that multiplies."""
    warps: dict[int, list[Event]] = {}
    counted: dict[int, tuple[int, int]] = {}
    for event in events:
        exps, flops = counted.pop(event.warp, (0, 0))
        exps, flops = exps + event.lane_exps, flops + event.lane_other_flops
        if event.kind in ASKED:
            warps.setdefault(event.warp, []).append(
                Event(*event.asked(), event.amount, exps, flops))
        else:
            counted[event.warp] = exps, flops
    multiply = {warp // 4 for warp, asked in warps.items()
                if any(event.kind is Kind.WGMMA for event in asked)}
    kept = {}
    for warp, asked in sorted(warps.items()):
        if (warp % 4 if warp // 4 in multiply else len(asked) == 1):
            continue  # does what the warpgroup's first warp does, or nothing
        # What the others of a warpgroup that multiplies store is the warpgroup's too.
        others = [warps.get(warp + i, []) for i in (1, 2, 3)] if warp // 4 in multiply else []
        stored: collections.Counter[tuple] = collections.Counter()
        for event in itertools.chain(*others):
            stored[event.asked()] += event.amount if event.kind in STORES else 0
        for event in asked:
            event.amount += stored[event.asked()]
        kept[warp] = asked
    return kept


class Block:
    """All warps of a block, each of which stands for its warpgroup. `called`: what its products
    are, by the right operand's array, in turn (course.PRODUCTS)."""

    def __init__(self, warps: list[list[Event]], called: Called) -> None:
        self.now, self.tensor_free = 0.0, 0.0
        self.engine_free = {LOADS: 0.0, STORES: 0.0}  # do not hold each other up
        self.meetings: list[Meeting] = []
        for number, events in enumerate(warps):
            for event in events:
                event.warp = number
        meet([*itertools.chain(*warps)], self.meetings)
        self.done: dict[Event, float] = {}  # when what an event starts has come
        self.coming: list[float] = []
        self.products: list[list] = []
        self.copies: list[list] = []
        # Of each event: from, to; the explorer has them, too.
        self.times: list[list[tuple[float, float]]] = [[] for _ in warps]
        self.play([self.run(i, events, products(events, called))
                   for i, events in enumerate(warps)])
        waiting = [i for i, events in enumerate(warps) if len(self.times[i]) < len(events)]
        if waiting:
            raise Stop(f"a trace of a pipeline in which warps {waiting} wait for ever", BAD_USAGE)

    def play(self, warps: list[Iterator[Step]]) -> None:
        """Runs what run() gives for each warp."""
        left, ready = [0.0] * len(warps), [lambda: True] * len(warps)
        while True:
            moved = True
            while moved:
                moved = False
                for i, warp in enumerate(warps):
                    while not left[i] and ready[i]():
                        left[i], ready[i] = next(warp, (0, lambda: False))
                        moved = True
            busy = [i for i, cycles in enumerate(left) if cycles]
            self.coming = [when for when in self.coming if when > self.now]
            # All that compute share the units equally.
            then = min(self.coming + [self.now + left[i] * len(busy) for i in busy], default=None)
            if then is None:
                break
            for i in busy:
                cycles = left[i] - (then - self.now) / len(busy)
                left[i] = cycles if cycles > 1e-6 else 0
            self.now = then

    def run(self, warp: int, events: list[Event],
            names: Iterator[tuple[str, int]]) -> Iterator[Step]:
        """What a warp does. Wherever time passes it yields how long its arithmetic takes alone, and
        whether it can go on then."""
        for event in events:
            yield max(THREADS * event.lane_exps / EXPS,
                      THREADS * event.lane_other_flops / OTHER_FLOPS), lambda: True
            since = done = self.now
            if event.kind is Kind.WGMMA:
                start = max(self.now, self.tensor_free)
                done = self.tensor_free = start + event.amount / MATMUL_FLOPS
                self.products.append([warp, *next(names), start, done])
            elif event.kind in COPIES:
                queue = LOADS if event.kind in LOADS else STORES
                done = max(self.now, self.engine_free[queue]) + event.amount / COPY_BYTES
                self.engine_free[queue] = done
                if queue is LOADS:  # of stores, that shared memory has been read is waited for
                    done += COPY_LATENCY
                    self.copies.append([event.name, event.barrier, self.now, done])
            self.done[event] = done
            self.coming.append(done)
            if event.awaits is not None:
                parts = self.meetings[event.awaits].parts
                yield 0, lambda: self.over(parts) <= self.now
            self.times[warp].append((since, self.now))

    def over(self, parts: list[Event]) -> float:
        """When the last of them has come."""
        return max((self.done.get(part, math.inf) for part in parts), default=0)

    def freed(self, barrier: str, landed: float) -> float | None:
        """When a copy's stage was free again: by the kernel's names the first phase of X_free[i]
        that ends after the copy to X_full[i] has landed."""
        free = barrier.replace("_full", "_free")
        return min((when for _, parts in self.meetings if parts and parts[0].name == free
                    and landed < (when := self.over(parts)) < math.inf), default=None)


def products(events: list[Event], called: Called) -> Iterator[tuple[str, int]]:
    """Which of those `called` so each of a warp's products is, and its tile: in turn, but where
    another by the same array follows at once, the next tile's first goes ahead of this tile's
    last."""
    arrays = [event.name for event in events if event.kind is Kind.WGMMA]
    count: collections.Counter[str] = collections.Counter()
    for array, later in zip(arrays, [*arrays[1:], None]):
        names = called[array]
        what = names[0] if later == array else min(names, key=lambda name: count[name])
        yield what, count[what]
        count[what] += 1


def spans(events: list[Event], times: list[tuple[float, float]]) -> list[list]:
    """What a warp did when: [what, number of the tile or None, from, to]."""
    found: list[list] = []
    count: collections.Counter[str] = collections.Counter()
    before = 0.0
    for event, (since, end) in zip(events, times):
        if event.lane_exps or event.lane_other_flops:
            what = "softmax" if event.lane_exps else "scale"
            found.append([what, count[what], before, since])
            count[what] += 1
        wait = AWAITED.get(event.kind)
        if wait and found and found[-1][0] == wait and found[-1][3] == since:
            found[-1][3] = end  # goes on: for a tile of Q, then for one of K
        elif wait and end > since:
            found.append([wait, None, since, end])
        before = end
    return found


def replay(warps: list[list[Event]], called: Called) -> dict:
    """Of the events of each warp, as warps_of() has them

      end        in cycles, as are all times
      products   [consumer, "S" or another of those called so, tile, from, to]
      copies     [array, stage, issued, landed, stage free again or None]
      consumers  of each [[what, tile or None, from, to], …]: "softmax" or "scale", which are
                 arithmetic with exponentials and without, or what of WAITS it waits for
    """
    block = Block(warps, called)
    consumers = sorted({number for number, *_ in block.products})  # who else there is copies
    return {"end": block.now,
            "products": [[consumers.index(number), *more] for number, *more in block.products],
            "copies": [[array, int(barrier.partition("[")[2].rstrip("]")), issued, landed,
                        block.freed(barrier, landed)]
                       for array, barrier, issued, landed in block.copies],
            "consumers": [spans(warps[number], block.times[number]) for number in consumers]}
