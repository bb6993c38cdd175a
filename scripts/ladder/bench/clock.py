"""Measures when what happens in a step of 05's producer, overlap and ping_pong, on a Hopper GPU.

Marks are planted into copies of the three kernels, in build/clock: the first thread of each
consumer, a warpgroup with 64 rows, reads the SM's clock where a product begins, is issued and is
done, where the softmax is done and where P is ready, in 8 of the 32 steps of a block. They stay in
shared memory until the block's end, and come out in the place of its rows' LSE. A printf would do
more than disturb: with a call in the loop ptxas makes each product wait for the one before.

A mark may be more than a clock: the compiler moves no arithmetic past it. So the rates with and
without marks stand beside each other.

Workload: the papers', 16k tokens in all and hidden size 2048, at N = 4k, bf16, without the mask,
heads of 64 and 128. The marks are those of one launch on a card that has been running the same
kernel for two seconds.

The file has, of all blocks, the medians of a step's cycles and of its parts (a product: from the
first instruction of its issue until it has been waited for; O_wait: of that the wait alone; rest: O
rescaled and P made an operand; wait: for K, and for the turn); the SM's clock; and the marks of the
block whose step is the median one.

Examples:
  scripts/figures clock
  scripts/figures clock --out build/clock.json

Exit status: 0 good; 1 a program failed, or a kernel is no longer what is marked; 2 bad usage; 3 no
Hopper GPU.
"""

import collections
import os
import statistics
import sys
import tempfile

from ladder.bench import hopper
from ladder.bench.hopper import SEQLEN
from ladder.bench.machine import machine
from ladder.build import need, quietly
from ladder.console import WRONG_RESULT, Stop, run_command
from ladder.files import ROOT
from ladder.mutate.plant import write_if_new
from ladder.npy import read_npy
from ladder.programs import json_lines, programs_in

RUNG = "05_flash_v2"
VARIANTS = ("producer", "overlap", "ping_pong")
HEAD_DIMS = (128, 64)
ROWS = 64  # of a consumer
FIRST, STEPS = 12, 8  # those that are marked, of 32

# The marks of a step, in this order: its first product begins to be issued (its tile of K is there,
# and its turn has come), is issued, is done; the softmax is done; P is an operand; P·V is issued,
# is done. From overlap on the last two come a round of the loop later.
START, S_ISSUED, S_DONE, SOFTMAX_DONE, READY, O_ISSUED, O_DONE = range(7)
MARKS = ["start", "s_issued", "s_done", "softmax_done", "ready", "o_issued", "o_done"]
CYCLES = STEPS * len(MARKS)  # of a block, after the marks; then its nanoseconds


# ---- planting ----

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "marks.h")
# [(how a line begins, what stands in its place, WAS being that)]: in each, and in each's loop.
EVERYWHERE = [
    ("         2 * shared_bytes<Mbarrier>(consumers)", "Marks::bytes(consumers) + WAS"),
    ("  if (threadIdx.x == 0) fence_mbarrier_init();", "const Marks marks{smem, kConsumers}; WAS"),
    ("  named_barrier_sync(kOwn + consumer, kWarpgroup);", "marks.end(consumer); WAS"),
    ("  if (first_thread) tma_store_wait_read<0>();",
     "marks.store(LSE, p.q_row(bh) + tile_row, p.N - tile_row, consumer); WAS"),
    ('  launch("attention", attention<', "for (int n = times_to_launch(); n > 0; --n) WAS"),
]
PRODUCER_LOOP = [
    ("    K.wait();", f"WAS MARK(step, {START});"),
    ("    wgmma_wait<0>(S);", f"MARK(step, {S_ISSUED}); WAS MARK(step, {S_DONE});"),
    ("    mul_rows(O_sum, alpha);", f"MARK(step, {SOFTMAX_DONE}); WAS"),
    ("    auto P = as_operand<T>(S);", f"WAS MARK(step, {READY});"),
    ("    wgmma_wait<0>(O_sum, P);", f"MARK(step, {O_ISSUED}); WAS MARK(step, {O_DONE});"),
]
OVERLAP_LOOP = [
    ("    start_scores();", f"MARK(step, {START}); WAS MARK(step, {S_ISSUED});"),
    ("    start_output();", f"WAS MARK(step - 1, {O_ISSUED});"),
    ("    wgmma_wait<1>(S);", f"WAS MARK(step, {S_DONE});"),
    ("    softmax(step * Bc);", f"WAS MARK(step, {SOFTMAX_DONE});"),
    ("    wgmma_wait<0>(O_sum, P);", f"WAS MARK(step - 1, {O_DONE});"),
    ("    P = as_operand<T>(S);", f"WAS MARK(step, {READY});"),
]


def source_of(variant):
    return f"{RUNG}/hopper/{variant}.cu"


def with_marks(text, variant):
    for was, now in EVERYWHERE + (PRODUCER_LOOP if variant == "producer" else OVERLAP_LOOP):
        if text.count(f"\n{was}") != 1:
            many = text.count(f"\n{was}") or "no"
            raise Stop(f"{variant}: the line '{was.strip()}' stands {many} times where one of "
                       f"{source_of(variant)} is to be marked: adapt "
                       "scripts/ladder/bench/clock.py", WRONG_RESULT)
        text = text.replace(f"\n{was}", "\n" + now.replace("WAS", was).replace(
            "MARK(", "marks.add(consumer, "))
    return (f"constexpr int kFirst = {FIRST}, kSteps = {STEPS}, kMarks = {len(MARKS)};\n"
            f'#include "{HEADER}"\n{text}')


def plant(folder):
    for variant in VARIANTS:
        with open(os.path.join(ROOT, source_of(variant)), encoding="utf-8") as source:
            write_if_new(os.path.join(folder, source_of(variant)),
                         with_marks(source.read(), variant))


def build(folder):
    """The program with the marks; where it is."""
    planted, there = os.path.join(folder, "planted"), os.path.join(folder, "build")
    plant(planted)
    log = os.path.join(folder, "build.log")
    for what, command in (("configuring", [
            "cmake", "-S", ROOT, "-B", there, "-G", "Ninja", f"-DLADDER_PLANTED={planted}",
            "-DCMAKE_BUILD_TYPE=Release", "-DLADDER_TESTS=OFF"]), ("building", [
                "ninja", "-C", there, RUNG])):
        need(not quietly(command, what, log)[0], f"{what} failed", log)
    return os.path.join(there, "bin", RUNG)


# ---- what the marks say ----


class Block(collections.namedtuple("Block", "consumers cycles nanoseconds")):
    """One block's: consumer → step → mark, cycles since it began; and how long it took."""

    def in_order(self):
        """Whether these can be marks at all."""
        return all(0 < one[START] <= one[S_ISSUED] <= one[S_DONE] <= one[SOFTMAX_DONE]
                   <= one[READY] < after[START] and one[O_ISSUED] <= one[O_DONE]
                   for of in self.consumers for one, after in zip(of, of[1:]))

    def step(self):
        """Cycles of one, over all that are marked and all consumers."""
        return statistics.fmean((of[-1][S_DONE] - of[0][S_DONE]) / (STEPS - 1)
                                for of in self.consumers)


def blocks_of(values, seqlen, block_q):
    """All whole blocks of a launch. A head's tiles of Q stand one after another."""
    def marks(row):
        return [[int(value) for value in values[at:at + len(MARKS)]]
                for at in range(row, row + CYCLES, len(MARKS))]
    return [Block([marks(row) for row in range(at, at + block_q, ROWS)],
                  values[at + CYCLES], values[at + CYCLES + 1])
            for head in range(0, len(values), seqlen)
            for at in range(head, head + seqlen - block_q + 1, block_q)]


def spans(of, variant):
    """{what: [(begin, end)]} of one consumer, in the order of steps. A product is under way from
    the first instruction of its issue until the consumer has waited for it; where it does so after
    a softmax, the product may be done before (if O_wait is no longer than a mark takes)."""
    pairs = list(zip(of, of[1:]))
    found = {"S": [(one[START], one[S_DONE]) for one in of],
             "softmax": [(one[S_DONE], one[SOFTMAX_DONE]) for one in of],
             "step": [(one[S_DONE], after[S_DONE]) for one, after in pairs]}
    if variant == "producer":
        return {**found, "O": [(one[READY], one[O_DONE]) for one in of],
                "O_wait": [(one[O_ISSUED], one[O_DONE]) for one in of],
                "rest": [(one[SOFTMAX_DONE], one[READY]) for one in of],
                "wait": [(one[O_DONE], after[START]) for one, after in pairs]}
    # P·V of a step is issued right after the next one's S, and waited for after its softmax.
    return {**found, "O": [(after[S_ISSUED], one[O_DONE]) for one, after in pairs],
            "O_wait": [(after[SOFTMAX_DONE], one[O_DONE]) for one, after in pairs],
            "rest": [(one[O_DONE], after[READY]) for one, after in pairs],
            "wait": [(one[READY], after[START]) for one, after in pairs]}


def statistics_of(blocks, variant):
    """What the marks of all blocks say: medians, in cycles."""
    if not all(block.in_order() for block in blocks):
        raise Stop(f"{variant}: what came in LSE's place are no marks", WRONG_RESULT)
    lengths = collections.defaultdict(list)
    for block in blocks:
        for of in block.consumers:
            for name, found in spans(of, variant).items():
                lengths[name] += [end - begin for begin, end in found]
    shown = sorted(blocks, key=Block.step)[(len(blocks) - 1) // 2]
    return {"blocks": len(blocks), "consumers": len(shown.consumers),
            "cycles": {name: statistics.median(of) for name, of in lengths.items()},
            # By all blocks, since the nanoseconds come in larger steps than one.
            "sm_ghz": round(sum(block.cycles for block in blocks)
                            / sum(block.nanoseconds for block in blocks), 4),
            "shown": shown.consumers}


# ---- measuring ----


def run(path, variant, head_dim, what, *more):
    """The record that a program prints."""
    what = f"{variant} {what} marks, d {head_dim}"
    status, out, message = hopper.run(
        [path, *hopper.options_of(variant, head_dim), "--time", "400", *more], what)
    if status:
        raise Stop(f"{what}: ended with status {status}: {message}", max(status, WRONG_RESULT))
    return json_lines(out, RUNG)[0]


def measure(options):
    about = machine(False, options.commit)
    plain, found = programs_in(options.bin)[RUNG], []
    for head_dim in HEAD_DIMS:
        for variant in VARIANTS:
            without = run(plain.path, variant, head_dim, "without")  # on Hopper alone
            marked = build(os.path.join(ROOT, "build/clock"))
            with tempfile.TemporaryDirectory() as folder:
                record = run(marked, variant, head_dim, "with", "--save", folder)
                values = read_npy(os.path.join(folder, "lse.npy"))
            said = statistics_of(blocks_of(values, SEQLEN, record["block_q"]), variant)
            found.append({"variant": variant, "head_dim": head_dim, "block_q": record["block_q"],
                          "block_kv": record["block_kv"], "tflops": round(without["tflops"], 1),
                          "tflops_marked": round(record["tflops"], 1), **said})
    point = hopper.point(HEAD_DIMS[0])
    return hopper.write(options, about, workload={
        "batch": point.batch, "seqlen": SEQLEN,
        "heads": {d: hopper.point(d).heads for d in HEAD_DIMS}, "dtype": point.dtype,
        "causal": point.causal}, marks=MARKS, first_step=FIRST, steps=found)


def parse(arguments=None):
    return hopper.parse("clock", __doc__, "clock.json", arguments)


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures clock", lambda: measure(parse())))
