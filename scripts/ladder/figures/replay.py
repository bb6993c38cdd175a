"""When what happens in a block of a pipeline: its trace, replayed under a simple model of time.

The sim knows what a block does and in what order, but no time. replay() gives it one: each warp has
a clock, what it asked for takes as long as the rates below say, and a wait ends when what it waits
for is there. Issuing, barriers, shared memory and the other blocks cost nothing.

It shows what waits for what, and cannot tell how much one step gains over another. A softmax takes
as long as its exponentials, 512 cycles for 64 rows and 128 keys, where 990 to 1,467 fit what was
measured, and sums are there at once, not 129 cycles later. With both set right it still finds
ping_pong no faster than overlap: 05_flash_v2/hopper/notes.md, section 14.
"""

import collections

from ladder.console import BAD_USAGE, Stop
from ladder.bench.traces import LOADS, STORES

# Of one SM, per cycle. NVIDIA's H100 white paper: 989.4 TFLOP/s of dense bf16 by 132 SMs at
# 1.83 GHz.
MATMUL_FLOPS = 4096
# CUDA C++ Programming Guide, arithmetic instructions, 9.0: results a cycle. A counted FLOP is taken
# to be an instruction, which overestimates multiply-adds.
EXPS, OTHER_FLOPS = 16, 128
# NVIDIA's A100 white paper: L2 gives 5,120 bytes a cycle, here to 132 SMs.
COPY_BYTES = 5120 / 132
COPY_LATENCY = 500  # cycles; chosen, and hidden wherever a stage is free in time

THREADS = 128  # of a warpgroup, all of which do what the first does
# What a consumer waits for, by the event at which it does.
WAITS = {"mbarrier_wait": "tile", "named_barrier_sync": "turn", "wgmma_wait": "sums",
         "tma_store_wait": "store"}
COUNTED = ("mbarrier_arrive", "named_barrier_arrive", "named_barrier_sync")  # by a barrier


class Actor:
    """A warp that stands for its warpgroup."""

    def __init__(self, number, events):
        self.number, self.events, self.at = number, events, 0
        self.left = None   # cycles of arithmetic before the next event, were it alone
        self.since = None  # when it began to wait
        # Event that waits → [group, when that ends] of what it waits for.
        self.ends = {"wgmma_wait": [], "tma_store_wait": []}
        self.count = collections.Counter()  # of products, by name
        self.times = []    # of each event: from, to; by them the explorer places a warp's

    def product(self, array, names):
        """Which of `names` the product that begins is, and its step: in turn, but where another by
        the same array follows at once, the next step's first goes ahead of this step's last."""
        what = min(names, key=lambda name: self.count[name])
        if len(names) > 1:
            later = (name for event, name, *_ in self.events[self.at + 1:] if event == "wgmma")
            if next(later, None) == array:
                what = names[0]
        self.count[what] += 1
        return what, self.count[what] - 1

    def work(self):
        """How long the arithmetic before the next event takes alone."""
        *_, exps, flops = self.events[self.at]
        return max(THREADS * exps / EXPS, THREADS * flops / OTHER_FLOPS)

    def spans(self):
        """What it did when: [what, number of the step or None, from, to]."""
        spans, count, before = [], collections.Counter(), 0.0
        for (kind, *_, exps, flops), (since, end) in zip(self.events, self.times):
            if exps or flops:
                what = "softmax" if exps else "scale"
                spans.append([what, count[what], before, since])
                count[what] += 1
            wait = WAITS.get(kind)
            if wait and spans and spans[-1][0] == wait and spans[-1][3] == since:
                spans[-1][3] = end  # goes on: for a tile of Q, then for one of K
            elif wait and end > since:
                spans.append([wait, None, since, end])
            before = end
        return spans


class Block:
    """`called`: what its products are, by the right operand's array, in turn (course.PRODUCTS)."""

    def __init__(self, warps, called):
        self.called = called
        self.actors = [Actor(number, events) for number, events in enumerate(warps)]
        self.now, self.tensor_free = 0.0, 0.0
        self.engine_free = {LOADS: 0.0, STORES: 0.0}  # do not hold each other up
        # How much of each phase of an mbarrier, and of each round of a named one, is still to come;
        # and when nothing was.
        self.missing, self.complete = collections.Counter(
            (barrier or name, number) for actor in self.actors
            for event, name, barrier, number, *_ in actor.events
            if event in (*LOADS, *COUNTED)), {}
        self.landings = []  # [when, what comes then]
        self.products, self.copies = [], []

    def come(self, key):
        self.missing[key] -= 1
        if self.missing[key] == 0:
            self.complete[key] = self.now

    def over(self, actor, kind, name, number):
        """Whether a wait is over."""
        if kind in actor.ends:
            return all(end <= self.now for group, end in actor.ends[kind] if group < number)
        return not self.missing[name, number]

    def issue(self, actor, kind, name, barrier, number, amount):
        """What ends by itself, later."""
        if kind == "wgmma":
            start = max(self.now, self.tensor_free)
            self.tensor_free = start + amount / MATMUL_FLOPS
            self.products.append([actor.number, *actor.product(name, self.called[name]),
                                  start, self.tensor_free])
            actor.ends["wgmma_wait"].append((number, self.tensor_free))
            return
        queue = LOADS if kind in LOADS else STORES
        sent = max(self.now, self.engine_free[queue]) + amount / COPY_BYTES
        self.engine_free[queue] = sent
        if queue is LOADS:
            self.landings.append((sent + COPY_LATENCY, (barrier, number)))
            self.copies.append([name, barrier, self.now, sent + COPY_LATENCY])
        else:  # what is waited for is that shared memory has been read
            actor.ends["tma_store_wait"].append((number, sent))

    def advance(self, actor):
        """Goes on until it computes or waits; whether it got anywhere."""
        moved = False
        while actor.at < len(actor.events):
            kind, name, barrier, number, amount, *_ = actor.events[actor.at]
            if actor.left is None:
                actor.left = actor.work()
            if actor.left > 0:
                return moved
            if actor.since is None:
                actor.since, moved = self.now, True
                if kind in COUNTED:
                    self.come((name, number))
                elif kind in ("wgmma", *LOADS, *STORES):
                    self.issue(actor, kind, name, barrier, number, amount)
            if kind in WAITS and not self.over(actor, kind, name, number):
                return moved
            actor.times.append((actor.since, self.now))
            actor.at, actor.left, actor.since = actor.at + 1, None, None
        return moved

    def play(self):
        while True:
            while any([self.advance(actor) for actor in self.actors]):
                pass
            busy = [actor for actor in self.actors if actor.left]
            then = min([when for when, _ in self.landings]
                       + [end for actor in self.actors for ends in actor.ends.values()
                          for _, end in ends if end > self.now]
                       # All that compute share the units equally.
                       + [self.now + actor.left * len(busy) for actor in busy], default=None)
            if then is None:
                break
            for actor in busy:
                left = actor.left - (then - self.now) / len(busy)
                actor.left = left if left > 1e-6 else 0
            self.now = then
            for landing in [one for one in self.landings if one[0] <= then]:
                self.landings.remove(landing)
                self.come(landing[1])
        waiting = [actor.number for actor in self.actors if actor.at < len(actor.events)]
        if waiting:
            raise Stop(f"a trace of a pipeline in which warps {waiting} wait for ever", BAD_USAGE)

    def stage_of(self, copy):
        """A copy with its stage's number, and when that was free again: by the kernel's names the
        first phase of X_free[i] that ends after the copy to X_full[i] has landed."""
        name, barrier, issued, landed = copy
        free = barrier.replace("_full", "_free")
        freed = [when for (one, _), when in self.complete.items() if one == free and when > landed]
        return [name, int(barrier.partition("[")[2].rstrip("]")), issued, landed,
                min(freed, default=None)]


def replay(warps, called):
    """Of [[event, name, barrier, number, amount, exps, other FLOPs], …] for each warp

      end        in cycles, as are all times
      products   [consumer, "S" or another of those called so, step, from, to]
      copies     [array, stage, issued, landed, stage free again or None]
      consumers  of each [[what, step or None, from, to], …]: "softmax" or "scale", which are
                 arithmetic with exponentials and without, or what of WAITS it waits for
    """
    block = Block(warps, called)
    block.play()
    consumers = sorted({number for number, *_ in block.products})  # who else there is copies
    return {"end": block.now,
            "products": [[consumers.index(number), *more] for number, *more in block.products],
            "copies": [block.stage_of(copy) for copy in block.copies],
            "consumers": [block.actors[number].spans() for number in consumers]}
