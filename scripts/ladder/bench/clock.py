"""Measures when what happens in a step of 05's producer, overlap and ping_pong, on a Hopper GPU.

Marks are planted into copies of the three kernels, in build/clock: the first thread of each
consumer, a warpgroup with 64 rows, reads the SM's clock where a product begins, is issued and is
done, where the softmax is done and where P is ready, in 8 of the 32 steps of a block. They stay in
shared memory until the block's end, and come out in the place of its rows' LSE. A printf would do
more than disturb: with a call in the loop ptxas makes each product wait for the one before.

A mark may be more than a clock: the compiler moves no arithmetic past it. So the rates with and
without marks, in turn, stand beside each other.

Workload: the papers', 16k tokens in all and hidden size 2048, at N = 4k, bf16, without the mask,
heads of 64 and 128. The marks are those of one launch on a card that has been running the same
kernel for two seconds.

The file has, of all blocks, the medians of a step's cycles and of its parts (a product: from the
first instruction of its issue until it has been waited for; O_wait: of that the wait alone; rest: O
rescaled and P made an operand; wait: for K, and for the turn); the SM's clock; and the marks of the
block whose step is the median one.

Examples:
  scripts/figures clock
  scripts/figures clock --time 100 --out build/clock.json

Exit status: 0 good; 1 a program failed, or a kernel is no longer what is marked; 2 bad usage; 3 no
Hopper GPU.
"""

import json
import os
import statistics
import sys
import tempfile

from ladder.build import need, quietly
from ladder.console import (GOOD, NO_DEVICE, WRONG_RESULT, Parser, Progress, Stop,
                            run_command)
from ladder.files import RESULTS, ROOT, item_a_line, write_whole
from ladder.bench.machine import Clocks, machine, output_of
from ladder.mutate.plant import write_if_new
from ladder.npy import read_npy
from ladder.programs import json_lines, programs_in, run_quietly
from ladder.bench.workload import paper_batch, paper_heads, positive

RUNG = "05_flash_v2"
VARIANTS = ("producer", "overlap", "ping_pong")
HEAD_DIMS = (128, 64)
SEQLEN = 4096
ROWS = 64  # of a consumer
FIRST, STEPS = 12, 8  # those that are marked, of 32
ROUNDS, WARM_MS = 2, 2000  # of the programs in turn; before the launch whose marks are kept

# The marks of a step, in this order: its first product begins to be issued (its tile of K is there,
# and its turn has come), is issued, is done; the softmax is done; P is an operand; P·V is issued,
# is done. From overlap on the last two come a round of the loop later.
START, S_ISSUED, S_DONE, SOFTMAX_DONE, READY, O_ISSUED, O_DONE = range(7)
MARKS = ["start", "s_issued", "s_done", "softmax_done", "ready", "o_issued", "o_done"]
CYCLES, NANOSECONDS = STEPS * len(MARKS), STEPS * len(MARKS) + 1  # of a block, after the marks
WORDS = NANOSECONDS + 1
assert WORDS <= ROWS - 2  # the first consumer's last two words are the block's start


# ---- planting ----

FUNCTIONS = """\
// Marks, planted by scripts/figures clock.
#ifdef LADDER_SIM
inline int cycles_now() { return 0; }
inline int nanoseconds_now() { return 0; }
#else
__device__ __forceinline__ int cycles_now() {
  int now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  return now;
}
__device__ __forceinline__ int nanoseconds_now() {
  int now;
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now)::"memory");
  return now;
}
#endif
// Many times at first, so that the card is warm; once whenever it is timed.
inline int times_to_launch() {
  static const char* at_first = std::getenv("LADDER_CLOCK_LAUNCHES");
  const int times = at_first ? std::atoi(at_first) : 1;
  at_first = nullptr;
  return times;
}
"""
# [(line, what stands in its place, WAS being the line)]: in the whole file, and in each's loop.
EVERYWHERE = [
    ("constexpr int kRows = 64;   // rows of Q of a consumer, which is a warpgroup\n",
     FUNCTIONS + "WAS"),
    (", kLn2 = 0.693147181f;\n", ";\n"),
    ("2 * shared_bytes<Mbarrier>(consumers) + 4 * shared_bytes<Mbarrier>(kStages);\n",
     f"shared_bytes<int>({ROWS} * consumers) + WAS"),
    ("  if (threadIdx.x == 0) fence_mbarrier_init();\n", f"""\
  auto marks = smem.take<int>("marks", {ROWS} * kConsumers);
  if (threadIdx.x == 0) marks[{ROWS - 1}] = cycles_now(), marks[{ROWS - 2}] = nanoseconds_now();
WAS"""),
    ("  const bool first_thread = threadIdx.x % kWarpgroup == 0;\n", f"""\
WAS  const auto mark = [&](int step, int what) {{
    if (first_thread && static_cast<unsigned>(step - {FIRST}) < {STEPS}u)
      marks[{ROWS} * consumer + {len(MARKS)} * (step - {FIRST}) + what] = cycles_now();
  }};
"""),
    ("  named_barrier_sync(kOwn + consumer, kWarpgroup);\n", f"""\
  if (first_thread) {{
    marks[{ROWS} * consumer + {CYCLES}] = cycles_now();
    marks[{ROWS} * consumer + {NANOSECONDS}] = nanoseconds_now();
  }}
WAS"""),
    # In the place of LSE, after the consumer's barrier.
    ("""\
  for_each_row(m, l, [&](int i, float max, float sum) {
    if (row + i < p.N) LSE[p.q_row(bh) + row + i] = sum > 0 ? max * kLn2 + logf(sum) : -INFINITY;
  });
""", f"""\
  const int word = static_cast<int>(threadIdx.x) % kWarpgroup;
  if (word < {WORDS} && tile_row + word < p.N)
    LSE[p.q_row(bh) + tile_row + word] = static_cast<float>(
        marks[{ROWS} * consumer + word] - marks[{ROWS} - (word == {NANOSECONDS} ? 2 : 1)]);
"""),
    ('  launch("attention", attention<T, D, kConsumers, Bc>, '
     "dim3(ceil_div(p.N, Br) * p.B * p.H),\n",
     "  for (int launches = times_to_launch(); launches > 0; --launches)\nWAS"),
]
PRODUCER_LOOP = [
    ("K.wait();", f"WAS mark(step, {START});"),
    ("wgmma_wait<0>(S);", f"mark(step, {S_ISSUED}); WAS mark(step, {S_DONE});"),
    ("mul_rows(O_sum, alpha);", f"mark(step, {SOFTMAX_DONE}); WAS"),
    ("auto P = as_operand<T>(S);", f"WAS mark(step, {READY});"),
    ("wgmma_wait<0>(O_sum, P);", f"mark(step, {O_ISSUED}); WAS mark(step, {O_DONE});"),
]
OVERLAP_LOOP = [
    ("start_scores();", f"mark(step, {START}); WAS mark(step, {S_ISSUED});"),
    ("start_output();", f"WAS mark(step - 1, {O_ISSUED});"),
    ("wgmma_wait<1>(S);", f"WAS mark(step, {S_DONE});"),
    ("softmax(step * Bc);", f"WAS mark(step, {SOFTMAX_DONE});"),
    ("wgmma_wait<0>(O_sum, P);", f"WAS mark(step - 1, {O_DONE});"),
    ("P = as_operand<T>(S);", f"WAS mark(step, {READY});"),
]


def source_of(variant):
    return f"{RUNG}/hopper/{variant}.cu"


def with_marks(text, variant):
    """The text of a kernel with its marks; those of the loop are lines of that depth alone."""
    in_loop = PRODUCER_LOOP if variant == "producer" else OVERLAP_LOOP
    for was, now in EVERYWHERE + [(f"\n    {was}", f"\n    {now.replace('WAS', was)}")
                                  for was, now in in_loop]:
        if text.count(was) != 1:
            many = text.count(was) or "no"
            raise Stop(f"{variant}: the line '{was.strip()}' stands {many} times where one of "
                       f"{source_of(variant)} is to be marked: adapt "
                       "scripts/ladder/bench/clock.py", WRONG_RESULT)
        text = text.replace(was, now.replace("WAS", was))
    return "#include <cstdlib>\n" + text


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


class Block:
    """The marks of one: consumer → step → mark, cycles since the block began."""

    def __init__(self, words):
        size = len(MARKS)
        self.consumers = [[[int(w) for w in of[size * step:size * (step + 1)]]
                           for step in range(STEPS)] for of in words]
        self.cycles = words[0][CYCLES]
        self.nanoseconds = words[0][NANOSECONDS]

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
    found = []
    for head in range(0, len(values), seqlen):
        for row in range(0, seqlen - block_q + 1, block_q):
            at = head + row
            found.append(Block([values[first:first + ROWS]
                                for first in range(at, at + block_q, ROWS)]))
    return found


def spans(of, variant):
    """{what: [(begin, end)]} of one consumer, in the order of steps. A product is under way from
    the first instruction of its issue until the consumer has waited for it; where it does so after
    a softmax, the product may be done before (if O_wait is no longer than a mark takes)."""
    pairs = list(zip(of, of[1:]))
    found = {"S": [(one[START], one[S_DONE]) for one in of],
             "S_issue": [(one[START], one[S_ISSUED]) for one in of],
             "step": [(one[S_DONE], after[S_DONE]) for one, after in pairs]}
    if variant == "producer":
        return {**found, "O": [(one[READY], one[O_DONE]) for one in of],
                "O_issue": [(one[READY], one[O_ISSUED]) for one in of],
                "O_wait": [(one[O_ISSUED], one[O_DONE]) for one in of],
                "softmax": [(one[S_DONE], one[SOFTMAX_DONE]) for one in of],
                "rest": [(one[SOFTMAX_DONE], one[READY]) for one in of],
                "wait": [(one[O_DONE], after[START]) for one, after in pairs]}
    # P·V of a step is issued right after the next one's S, and waited for after its softmax.
    return {**found, "O": [(after[S_ISSUED], one[O_DONE]) for one, after in pairs],
            "O_issue": [(after[S_ISSUED], one[O_ISSUED]) for one, after in pairs],
            "O_wait": [(after[SOFTMAX_DONE], one[O_DONE]) for one, after in pairs],
            "softmax": [(one[S_DONE], one[SOFTMAX_DONE]) for one in of],
            "rest": [(one[O_DONE], after[READY]) for one, after in pairs],
            "wait": [(one[READY], after[START]) for one, after in pairs]}


def statistics_of(blocks, variant):
    """What the marks of all blocks say: medians, in cycles."""
    if not all(block.in_order() for block in blocks):
        raise Stop(f"{variant}: what came in LSE's place are no marks", WRONG_RESULT)
    lengths = {}
    for block in blocks:
        for of in block.consumers:
            for name, found in spans(of, variant).items():
                lengths.setdefault(name, []).extend(end - begin for begin, end in found)
    shown = sorted(blocks, key=Block.step)[(len(blocks) - 1) // 2]
    return {"blocks": len(blocks), "consumers": len(shown.consumers),
            "cycles": {name: statistics.median(of) for name, of in lengths.items()},
            # By all blocks, since the nanoseconds come in larger steps than one.
            "sm_ghz": round(sum(block.cycles for block in blocks)
                            / sum(block.nanoseconds for block in blocks), 4),
            "shown": shown.consumers}


# ---- measuring ----


def need_hopper():
    found = output_of("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
    name, _, capability = (found or "").partition("\n")[0].rpartition(",")
    if capability.strip() != "9.0":
        raise Stop(f"needs a Hopper GPU, and {f'this is an {name}' if name else 'there is none'}",
                   NO_DEVICE)


def command(path, variant, head_dim, *more):
    return [path, "--device", "gpu", "--variant", variant, "--batch", str(paper_batch(SEQLEN)),
            "--heads", str(paper_heads(head_dim)), "--seqlen", str(SEQLEN), "--head-dim",
            str(head_dim), "--dtype", "bf16", "--check", "off", "--json", *more]


def run(words, what, progress):
    """The record that a program prints."""
    status, out, message = run_quietly(words, what, progress)
    if status != GOOD:
        raise Stop(f"{what}: ended with status {status}: {message}", status if status > 0
                   else WRONG_RESULT)
    return json_lines(out, RUNG)[0]


def rates(programs, variant, head_dim, options, progress):
    """The records of the programs without and with marks, in turn."""
    found = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, path in programs.items():
            found[name].append(run(
                command(path, variant, head_dim, "--time", f"{options.time:g}"),
                f"timing {variant} {name} marks, d {head_dim}", progress))
    return found


def marked_blocks(path, variant, head_dim, launches, progress):
    """The marks of the last of many launches: the first ones warm the card up. (--save has what a
    program's first run left, before any of those that are timed.)"""
    with tempfile.TemporaryDirectory() as folder:
        record = run(["env", f"LADDER_CLOCK_LAUNCHES={launches}", *command(
            path, variant, head_dim, "--time", "1", "--save", folder)],
            f"marking {variant}, d {head_dim}", progress)
        values = read_npy(os.path.join(folder, "lse.npy"))
    return blocks_of(values, SEQLEN, record["block_q"]), record


def measure(options):
    need_hopper()
    plain = programs_in(options.bin).get(RUNG)
    if plain is None:
        raise Stop(f"{os.path.relpath(options.bin)} has no {RUNG}: scripts/run builds it",
                   WRONG_RESULT)
    progress = Progress()
    about = machine(False, options.commit)
    programs = {"without": plain.path, "with": build(os.path.join(ROOT, "build/clock"))}
    clocks, found = Clocks(), []
    try:
        for head_dim in HEAD_DIMS:
            for variant in VARIANTS:
                timed = rates(programs, variant, head_dim, options, progress)
                times = {name: statistics.median(r["time_ms"] for r in of)
                         for name, of in timed.items()}
                launches = max(1, round(WARM_MS / times["with"]))
                blocks, record = marked_blocks(programs["with"], variant, head_dim, launches,
                                               progress)
                said = statistics_of(blocks, variant)
                flops = timed["with"][0]["tflops"] * timed["with"][0]["time_ms"]
                tflops = {name: round(flops / ms, 1) for name, ms in times.items()}
                found.append({"variant": variant, "head_dim": head_dim,
                              "block_q": record["block_q"], "block_kv": record["block_kv"],
                              "tflops": tflops["without"], "tflops_marked": tflops["with"],
                              **said})
                progress.clear()
                print(f"{variant}, d {head_dim}: {tflops['without']} TFLOP/s, with marks "
                      f"{tflops['with']}; a step of {said['cycles']['step']:,g} cycles at "
                      f"{said['sm_ghz']:.3f} GHz", flush=True)
    finally:
        clocks.stop()
        progress.clear()
    about["clocks"] = clocks.report()
    # Not "machine": that is what makes a file one of scripts/figures measure's.
    write_whole(options.out, item_a_line({
        "measured_on": about, "workload": {"batch": paper_batch(SEQLEN), "seqlen": SEQLEN,
                                           "heads": {d: paper_heads(d) for d in HEAD_DIMS},
                                           "dtype": "bf16", "causal": False},
        "marks": MARKS, "first_step": FIRST, "steps": found}))
    print(f"Wrote {os.path.relpath(options.out)}.")
    return GOOD


def parse(arguments=None):
    parser = Parser("scripts/figures clock", __doc__)
    parser.add_argument("--out", metavar="FILE", type=os.path.abspath,
                        default=os.path.join(RESULTS, "clock.json"),
                        help="(default scripts/results/clock.json)")
    parser.add_argument("--time", type=positive, default=400, metavar="MS",
                        help="GPU time per measurement (default 400; about as much warms up)")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs without marks (default build/bin; scripts/run builds "
                        "them)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures clock", lambda: measure(parse())))
