"""Measures when what happens in a step of five kernels of 05 and of one of 06, on a Hopper GPU.

Marks are planted into copies of the kernels, in build/clock: the first thread of each consumer, a
warpgroup, reads the SM's clock where, say, a product is issued and where it is done, in 8 steps of
a tile. They stay in shared memory until the block's end, and then come out by HBM, of one launch. A
printf would do more than disturb: with a call in the loop ptxas makes each product wait for the one
before.

A mark may be more than a clock: the compiler moves no arithmetic past it. So the rates with and
without marks stand beside each other.

Workload: the papers', 16k tokens in all and hidden size 2048, at N = 4k, bf16, without the mask,
heads of 64 and 128. The marks are those of one launch on a card that has been running the same
kernel for two seconds; of a block with several tiles, those of the last.

The file has, of all blocks, the medians of a step's cycles and of its parts (SPANS says from which
mark to which); the SM's clock; and the marks of the block whose step is the median one.

Examples:
  scripts/figures clock
  scripts/figures clock --out build/clock.json

Exit status: 0 good; 1 a program failed, or a kernel is no longer what is marked; 2 bad usage; 3 no
Hopper GPU.
"""

import array
import collections
import os
import re
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
from ladder.programs import json_lines, programs_in

HEAD_DIMS = (128, 64)
FIRST, STEPS = 12, 8  # those that are marked, of 32 at least
CONSUMERS = 3  # for which marks.h has room

# The marks of a step of 05: its first product begins to be issued (its tile of K is there, and its
# turn has come), is issued, is done; the softmax is done; P is an operand; P·V is issued, is done.
# From overlap on the last two come a round of the loop later.
FORWARD = START, S_ISSUED, S_DONE, SOFTMAX_DONE, READY, O_ISSUED, O_DONE = range(7)
# Of 06: it begins; dP is issued; P is there; dS is written and dV issued; everyone's dS is written;
# dV is done; dQ, the next S and dK are issued; dQ is done; its tile has been sent; the next S is
# done. Where dP is done there is no register for a mark.
BACKWARD = (BEGIN, DP_ISSUED, P_READY, DV_ISSUED, DS_READY, DV_DONE, ISSUED, DQ_DONE, DQ_SENT,
            NEXT_S_DONE) = range(10)
NEXT = 100  # so much more: the mark of the step after

# What a step's parts are called: from which mark to which. A product is under way from the first
# instruction of its issue until the consumer has waited for it; where it does so after a softmax,
# the product may be done before (if O_wait is no longer than a mark takes).
SPANS_IN_TURN = {
    "S": (START, S_DONE), "softmax": (S_DONE, SOFTMAX_DONE), "rest": (SOFTMAX_DONE, READY),
    "O": (READY, O_DONE), "O_wait": (O_ISSUED, O_DONE), "wait": (O_DONE, NEXT + START),
    "step": (S_DONE, NEXT + S_DONE)}
# P·V of a step is issued right after the next one's S, and waited for after its softmax.
SPANS_OVERLAPPED = {
    "S": (START, S_DONE), "softmax": (S_DONE, SOFTMAX_DONE), "rest": (O_DONE, NEXT + READY),
    "O": (NEXT + S_ISSUED, O_DONE), "O_wait": (NEXT + SOFTMAX_DONE, O_DONE),
    "wait": (READY, NEXT + START), "step": (S_DONE, NEXT + S_DONE)}
SPANS_BACKWARD = {
    "start": (BEGIN, DP_ISSUED), "P": (DP_ISSUED, P_READY), "dS": (P_READY, DV_ISSUED),
    "barrier": (DV_ISSUED, DS_READY), "dV_wait": (DS_READY, DV_DONE),
    "issue": (DV_DONE, ISSUED), "dQ_wait": (ISSUED, DQ_DONE), "dQ_sent": (DQ_DONE, DQ_SENT),
    "S_wait": (DQ_SENT, NEXT_S_DONE), "rest": (NEXT_S_DONE, NEXT + BEGIN),
    "step": (BEGIN, NEXT + BEGIN)}

# ---- planting ----

HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "marks.h")
# [(pattern, what stands in its place)]: in each.
EVERYWHERE = [
    (r"^  if \(threadIdx.x == 0\) fence_mbarrier_init\(\);", r"const Marks marks{smem}; \g<0>"),
    (r"^  if \(first_\w+\) tma_store_wait_read<0>\(\);", r"marks.end(); \g<0>"),
    (r"\bplan\.smem_bytes,", "plan.smem_bytes + Marks::kBytes,"),
    (r"^    (launch_\w+<.*\(p, plan, a\);)$", r"marked([&] { \1 });"),
]
# [(a statement of the loop, the marks before it and after it)]
IN_TURN = [
    ("K.wait();", None, START), ("wgmma_wait<0>(S);", S_ISSUED, S_DONE),
    ("mul_rows(O_sum, alpha);", SOFTMAX_DONE, None), ("auto P = as_operand<T>(S);", None, READY),
    ("wgmma_wait<0>(O_sum, P);", O_ISSUED, O_DONE)]


def overlapped(softmax="softmax(step * Bc);", finish="wgmma_wait<0>(O_sum, P);",
               pack="P = as_operand<T>(S);"):
    return [("start_scores();", START, S_ISSUED), ("start_output();", None, O_ISSUED),
            ("wgmma_wait<1>(S);", None, S_DONE), (softmax, None, SOFTMAX_DONE),
            (finish, None, O_DONE), (pack, None, READY)]


Kernel = collections.namedtuple("Kernel", "rung variant indentation loop marks spans")
KERNELS = [
    Kernel("05_flash_v2", "producer", 4, IN_TURN, FORWARD, SPANS_IN_TURN),
    Kernel("05_flash_v2", "overlap", 4, overlapped(), FORWARD, SPANS_OVERLAPPED),
    Kernel("05_flash_v2", "ping_pong", 4, overlapped(), FORWARD, SPANS_OVERLAPPED),
    Kernel("05_flash_v2", "sm90", 6, overlapped("const bool raised = softmax(step * Bc);"), FORWARD,
           SPANS_OVERLAPPED),
    Kernel("05_flash_v2", "fp8", 6, overlapped(
        "const bool raised = softmax(step * Bc, c, of_V);", "finish_output();",
        "P = as_permuted_operand<e4m3>(S);"), FORWARD, SPANS_OVERLAPPED),
    Kernel("06_backward", "sm90", 6, [
        ("dO.wait();", BEGIN, None), ("auto& P = S;", DP_ISSUED, None),
        ("auto P_operand = as_operand<T>(P);", P_READY, None),
        ("named_barrier_sync(kAll, kConsumersBackward * kWarpgroup);", DV_ISSUED, DS_READY),
        ("wgmma_wait<0>(dV_sum, P_operand);", None, DV_DONE),
        ("    wgmma_wait<2>(dQ);", ISSUED, DQ_DONE),
        ("    wgmma_wait<kLate ? 1 : 0>(S);", DQ_SENT, NEXT_S_DONE)], BACKWARD, SPANS_BACKWARD)]


def kernel_of(rung, variant):
    return next(one for one in KERNELS if (one.rung, one.variant) == (rung, variant))


def source_of(kernel):
    return f"{kernel.rung}/hopper/{kernel.variant}.cu"


def with_marks(text, kernel):
    def mark(number):
        late = kernel.spans is SPANS_OVERLAPPED and number in (O_ISSUED, O_DONE)
        return "" if number is None else f"marks.add(step{' - 1' if late else ''}, {number});"

    plants = EVERYWHERE + [(f"^{' ' * kernel.indentation}{re.escape(statement)}",
                            f"{mark(before)} \\g<0> {mark(after)}")
                           for statement, before, after in kernel.loop]
    for was, now in plants:
        text, times = re.subn(was, now, text, flags=re.M)
        if times != 1:
            raise Stop(f"{kernel.variant}: '{was}' matches {times or 'no'} lines where one of "
                       f"{source_of(kernel)} is to be marked: adapt "
                       "scripts/ladder/bench/clock.py", WRONG_RESULT)
    return (f"constexpr int kFirst = {FIRST}, kSteps = {STEPS}, kMarks = {len(kernel.marks)};\n"
            f'#include "{HEADER}"\n{text}')


def plant(folder):
    for kernel in KERNELS:
        with open(os.path.join(ROOT, source_of(kernel)), encoding="utf-8") as source:
            write_if_new(os.path.join(folder, source_of(kernel)),
                         with_marks(source.read(), kernel))


def build(folder):
    """Where the programs with the marks are."""
    planted, there = os.path.join(folder, "planted"), os.path.join(folder, "build")
    plant(planted)
    log = os.path.join(folder, "build.log")
    for what, command in (("configuring", [
            "cmake", "-S", ROOT, "-B", there, "-G", "Ninja", f"-DLADDER_PLANTED={planted}",
            "-DCMAKE_BUILD_TYPE=Release", "-DLADDER_TESTS=OFF"]), ("building", [
                "ninja", "-C", there, *sorted({kernel.rung for kernel in KERNELS})])):
        need(not quietly(command, what, log)[0], f"{what} failed", log)
    return os.path.join(there, "bin")


# ---- what the marks say ----


class Block(collections.namedtuple("Block", "consumers cycles nanoseconds")):
    """One block's: consumer → step → mark, cycles since it began; and how long it took."""

    def step(self, spans):
        """Cycles of one, over all that are marked and all consumers."""
        at = spans["step"][0]
        return statistics.fmean((of[-1][at] - of[0][at]) / (STEPS - 1) for of in self.consumers)


def blocks_of(words, marks):
    """All blocks that marks.h wrote: of each consumer that there is, STEPS times `marks`, then
    cycles and nanoseconds when it began and when it ended. Both clocks have 32 bits."""
    size, blocks = STEPS * marks + 4, []
    for block in range(0, len(words), CONSUMERS * size):
        rows = [words[at:at + size] for at in range(block, block + CONSUMERS * size, size)]
        rows = [row for row in rows if any(row)]
        if rows:
            since = [[(word - row[-4]) % 2**32 for word in row] for row in rows]
            blocks.append(Block([[row[at:at + marks] for at in range(0, STEPS * marks, marks)]
                                 for row in since],
                                since[0][-2], (rows[0][-1] - rows[0][-3]) % 2**32))
    return blocks


def spans_of(of, kernel):
    """{what: [(begin, end)]} of one consumer, in the order of steps; one less where a part ends in
    the step after."""
    def at(step, mark):
        return of[step + mark // NEXT][mark % NEXT]
    return {name: [(at(step, begin), at(step, end))
                   for step in range(len(of) - (max(begin, end) >= NEXT))]
            for name, (begin, end) in kernel.spans.items()}


def statistics_of(blocks, kernel):
    """What the marks of all blocks say: medians, in cycles."""
    lengths = collections.defaultdict(list)
    for block in blocks:
        for of in block.consumers:
            for name, found in spans_of(of, kernel).items():
                lengths[name] += [end - begin for begin, end in found]
    if not lengths or min(map(min, lengths.values())) < 0:
        raise Stop(f"{kernel.variant}: what came out are no marks", WRONG_RESULT)
    shown = sorted(blocks, key=lambda block: block.step(kernel.spans))[(len(blocks) - 1) // 2]
    return {"blocks": len(blocks), "consumers": len(shown.consumers),
            "cycles": {name: statistics.median(of) for name, of in lengths.items()},
            # By all blocks, since the nanoseconds come in larger steps than one.
            "sm_ghz": round(sum(block.cycles for block in blocks)
                            / sum(block.nanoseconds for block in blocks), 4),
            "shown": shown.consumers}


# ---- measuring ----


def run(path, kernel, head_dim, what):
    """The record that a program prints, of the backward pass where it has one."""
    what = f"{kernel.variant} {what} marks, d {head_dim}"
    status, out, message = hopper.run(
        [path, *hopper.options_of(kernel.variant, head_dim), "--time", "400"], what)
    if status:
        raise Stop(f"{what}: ended with status {status}: {message}", max(status, WRONG_RESULT))
    return json_lines(out, kernel.rung)[-1]


def measure(options):
    about = machine(False, options.commit)
    programs, found = programs_in(options.bin), []
    for head_dim in HEAD_DIMS:
        for kernel in KERNELS:
            # Says first whether the GPU is a Hopper.
            without = run(programs[kernel.rung].path, kernel, head_dim, "without")
            marked = build(os.path.join(ROOT, "build/clock"))
            with tempfile.TemporaryDirectory() as folder:
                os.environ["MARKS"] = os.path.join(folder, "marks")
                record = run(os.path.join(marked, kernel.rung), kernel, head_dim, "with")
                words = array.array("I")
                if os.path.exists(os.environ["MARKS"]):
                    with open(os.environ["MARKS"], "rb") as file:
                        words.frombytes(file.read())
            said = statistics_of(blocks_of(words, len(kernel.marks)), kernel)
            found.append({"rung": kernel.rung, "variant": kernel.variant, "head_dim": head_dim,
                          "block_q": record["block_q"], "block_kv": record["block_kv"],
                          "tflops": round(without["tflops"], 1),
                          "tflops_marked": round(record["tflops"], 1), **said})
    point = hopper.point(HEAD_DIMS[0])
    return hopper.write(options, about, workload={
        "batch": point.batch, "seqlen": SEQLEN,
        "heads": {d: hopper.point(d).heads for d in HEAD_DIMS}, "dtype": point.dtype,
        "causal": point.causal}, first_step=FIRST, steps=found)


def parse(arguments=None):
    return hopper.parse("clock", __doc__, "clock.json", arguments)


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures clock", lambda: measure(parse())))
