"""Defines how scripts/exercise checks this rung's exercises, build tasks and bug hunts; the lessons
hold their texts. kinds.py describes the classes. A Change gives the requested bytes at the two
shapes of kinds.COUNTED. An edit replaces a text that occurs once in its file."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import os
import random
import tempfile
from typing import Callable, Iterator

from ladder.base.npy import read_npy, write_rows
from ladder.exercises.checks import wrong_outputs
from ladder.exercises.kinds import (SHAPES, BugHunt, BuildTask, Change, Experiment, Mistake,
                                    Numbers, Program, Stage, Verdict, verdict_of, wrong_or_unlike)

# ---- a reference for the masks of two exercises, which the programs' own reference lacks ----

D = 8  # head size
WINDOW, SINKS = 96, 4  # keys
MASK_SHAPES = ((400, 400), (70, 400))  # (queries, keys)
Attends = Callable[[int, int], bool]  # (key, the query's last key if the mask is causal)


@functools.lru_cache(maxsize=None)
def inputs(n: int, n_kv: int) -> list[list[list[float]]]:
    """Returns the rows of Q, K and V, always the same: random multiples of 1/8 from −2 to 2."""
    draw = random.Random(0)
    return [[[draw.randint(-16, 16) / 8 for _ in range(D)] for _ in range(rows)]
            for rows in (n, n_kv, n_kv)]


def attention(n: int, n_kv: int, attends: Attends) -> Iterator[tuple[float, list[float]]]:
    """Yields (LSE, row of O) for each query, computed over the keys that it attends to."""
    q, k, v = inputs(n, n_kv)
    for i in range(n):
        last = i + n_kv - n
        keys = [j for j in range(last + 1) if attends(j, last)]
        weights = [math.exp(sum(map(operator.mul, q[i], k[j])) / math.sqrt(D)) for j in keys]
        total = sum(weights)
        yield math.log(total), [sum(w * v[j][c] for w, j in zip(weights, keys)) / total
                                for c in range(D)]


@dataclasses.dataclass(frozen=True)
class Mask(Change):
    """Asks for a change of the mask. `predicted` holds the requested bytes for each of MASK_SHAPES
    (not of COUNTED) if a block reads only tiles with a key that one of its rows attends to."""

    attends: Attends

    def check(self, program: Program) -> Verdict:
        return verdict_of([(f"{shape[0]} queries, {shape[1]} keys, causal",
                            self.wrong(program, predicted, *shape))
                           for shape, predicted in zip(MASK_SHAPES, self.predicted)],
                          "Right: each query attends to its keys, and no other tile is read.")

    def wrong(self, program: Program, predicted: int, n: int, n_kv: int) -> str | None:
        """Runs one shape and compares LSE and O with attention(), then the bytes with `predicted`.
        Returns one line that says what is wrong; "" or None if nothing is."""
        with tempfile.TemporaryDirectory() as folder:
            write_rows(folder, **dict(zip("qkv", inputs(n, n_kv))))
            run = program.run("--causal --check off", "--load", folder, "--save", folder)
            if not run.records:
                return run.last_words()
            lse, o = (read_npy(os.path.join(folder, f"{name}.npy")) for name in ("lse", "o"))
        for i, (right, row) in enumerate(attention(n, n_kv, self.attends)):
            if not abs(lse[i] - right) < 1e-4:
                return (f"query {i} has an LSE of {lse[i]:.4f}; over the keys that it should "
                        f"attend to, it is {right:.4f}")
            if not all(abs(a - b) < 1e-2 for a, b in zip(o[D * i:], row)):
                return f"query {i} has the correct LSE, but a wrong row of O"
        return wrong_or_unlike(run, predicted)


# ---- how the mistakes of two Experiments are recognised ----


def both_wrong(program: Program, o_error: Callable[[float], bool]) -> bool:
    """Returns whether `o` and `lse` both fail and o_error accepts the maximum error of `o`."""
    wrong = wrong_outputs(program.run(""))
    return wrong.keys() == {"o", "lse"} and o_error(wrong["o"]["max"])


def splits_for_nothing(program: Program) -> bool:
    """Returns whether the keys of 150 heads are split into 8 parts, which the step itself does not
    do: then the workspace holds m, l and O (128 columns) in fp32 for each head and part."""
    run = program.run("--seqlen 1 --seqlen-kv 512 --heads 150 --head-dim 128 --check off")
    return bool(run.records) and run.records[0]["workspace_bytes"] == 8 * 150 * (128 + 2) * 4


EXERCISES = [
    Numbers("bytes", {"bytes requested": 73_200}),
    Numbers("crossing", {"the Bc": 320, "the nearest compiled": 256,
                         "the factor it misses by": 1.52}, 0.01),
    Numbers("exponentials", {"exponentials at 64 × 128": 270_336}),
    Experiment("rescaling", "attention.cu", [
        Mistake(lambda program: both_wrong(program, lambda error: error < 0.28),
                "l is too large: `o` is too small and `lse` too large",
                [("l = alpha * l + row_sum", "l = l + row_sum")]),
        Mistake(lambda program: both_wrong(program, lambda error: error >= 0.28),
                "without both rescalings `o` and `lse` fail, too: the factor does not cancel, "
                "because the keys before a new maximum count for too much",
                [("    const auto alpha = exp2(m - shift);\n", ""),
                 ("l = alpha * l + row_sum", "l = l + row_sum"),
                 ("    mul_rows(O_sum, alpha);\n", "")])]),
    Numbers("no_skip", {"tiles skipped": 0}),
    Change("mask", "rows.cu", [398_000, 469_120], [
        ("int keys = p.N_kv;",
         "int keys = p.keys(min(block_row + Br, p.N) - 1);  // of the block's last row"),
        ("""\
  const int64_t k = heads * p.N_kv * p.d * kIoBytes;  // bytes of K or V, once per query head
  const int64_t blocks = ceil_div(p.N, plan.block_q);
""", """\
  int64_t rows = 0;                                // rows of K or V that a head's tiles read
  for (int64_t row = 0; row < p.N; row += plan.block_q)
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1));
  const int64_t k = heads * rows * p.d * kIoBytes;
"""),
        ('{"K", k * blocks, 0}', '{"K", k, 0}'),
        ('{"V", k * blocks, 0}', '{"V", k, 0}')]),
    Mask("window", "attention.cu", [39_488, 11_224], [
        ("constexpr float kLog2e", "constexpr int kWindow = 96;\nconstexpr float kLog2e"),
        ("""\
  const auto [begin, end] = keys_of_part<kSplit, Bc>(keys);  // this block's part of the keys
""", """\
  const int first = max(p.keys(block_row) - kWindow, 0) / Bc * Bc;  // the first row's first tile
  auto [begin, end] = keys_of_part<kSplit, Bc>(keys);               // this block's part of the keys
  begin = max(begin, first);
"""),
        ("""\
    if (key + Bc > p.keys(row))
      mask_columns(S, [&](int i) {
        opaque(i);  // otherwise the rows' limits would occupy registers in every iteration
        return p.keys(row + i) - key;
      });
""", """\
    if (key + Bc > p.keys(row) || key < p.keys(row + kWarpRows - 1) - kWindow)
      for_each(S, [&](int i, int j, float& s) {
        const int after = p.keys(row + i);
        if (key + j >= after || key + j < after - kWindow) s = -INFINITY;
      });
"""),
        ("(std::min<int64_t>(row + plan.block_q, p.N) - 1));\n", """\
(std::min<int64_t>(row + plan.block_q, p.N) - 1)) -
            std::max(p.keys(static_cast<int>(row)) - kWindow, 0) / plan.block_kv * plan.block_kv;
""")], lambda j, last: j > last - WINDOW),
    Mask("sink", "attention.cu", [47_680, 15_320], [
        ("constexpr float kLog2e",
         "constexpr int kWindow = 96, kSinks = 4;\nconstexpr float kLog2e"),
        ("  const float c = p.scale * kLog2e;", """\
  const int first = max(p.keys(block_row) - kWindow, 0) / Bc * Bc;  // the first row's first tile
  const float c = p.scale * kLog2e;"""),
        ("  for (int key = begin; key < end; key += Bc) {\n", """\
  for (int key = begin, next; key < end; key = next) {
    next = max(key + Bc, first);
"""),
        ("""\
    if (key + Bc > p.keys(row))
      mask_columns(S, [&](int i) {
        opaque(i);  // otherwise the rows' limits would occupy registers in every iteration
        return p.keys(row + i) - key;
      });
""", """\
    if (key + Bc > p.keys(row) || key < p.keys(row + kWarpRows - 1) - kWindow)
      for_each(S, [&](int i, int j, float& s) {
        const int after = p.keys(row + i);
        if (key + j >= after || (key + j < after - kWindow && key + j >= kSinks)) s = -INFINITY;
      });
"""),
        ("""\
    if (key + Bc < end)
      copy_async<kThreads>(tile_K, K_head + int64_t{key + Bc} * p.d, p.d, end - key - Bc, p.d,
                           thread);
""", """\
    if (next < end)
      copy_async<kThreads>(tile_K, K_head + int64_t{next} * p.d, p.d, end - next, p.d, thread);
"""),
        ("""\
  for (int64_t row = 0; row < p.N; row += plan.block_q)
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1));
""", """\
  for (int64_t row = 0; row < p.N; row += plan.block_q) {
    const int first = std::max(p.keys(static_cast<int>(row)) - kWindow, 0) / plan.block_kv *
                      plan.block_kv;
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1)) - first +
            std::min(first, plan.block_kv);
  }
""")], lambda j, last: j > last - WINDOW or j < SINKS),
    Numbers("decode_bytes", {"bytes requested": 2_218_048}),
    Numbers("parts", {"8 parts": 67, "32 parts": 19, "64 parts": 22}),
    Experiment("in_code", "split_kv.cu", [
        Mistake(splits_for_nothing, "8 parts instead of one, with a workspace",
                [("kStart = 3,", "kStart = 0,")])]),

    Numbers("hopper_bytes", {"bytes requested": 526_336}),
    Numbers("in_vain", {"units": 20}),
    Numbers("shared_tile", {"bytes requested": 452_864, "bytes of workspace": 67_584}),
    Experiment("key_order", "hopper/fp8.cu", [
        Mistake({"--seqlen-kv 3": {"o"}, "--seqlen-kv 2": set()},
                "from three keys on `o` fails, and `lse` never does",
                [("return column_at(i);", "return i;")])]),
    Numbers("vanishing", {"below the maximum": 6.93, "O": 0.517}, 0.005),
]

# Each names the step to write, the minutes, and the checks that the unchanged previous step fails.
BUILD_TASKS = [
    BuildTask("swap", 90, ["O_fp32", "Q", "l", "m", "O_fp32 sectors", "Q sectors", "l sectors",
                           "m sectors", "workspace_bytes"], moves=[("product_blocks", "more")]),
    BuildTask("defer", 60, ["l", "m", "l sectors", "m sectors", "workspace_bytes", "other_flops"],
              unchecked="that the sums of lanes are added only at the end"),
    BuildTask("rows", 90, ["O sectors", "barriers", "sram_write_bytes"]),
    BuildTask("skip", 60, ["K", "V", "K sectors", "V sectors", "matmul_flops"], blanks=True,
              longest_first=True),
    BuildTask("large_tiles", 30, ["K", "V", "K sectors", "V sectors"],
              unchecked="that registers suffice, and the sharing of tiles, which is optional"),
    BuildTask("flat", 360, [], stages=[
        Stage("stage 1, scores of one tile", "LSE gets each row's largest score times p.scale",
              "01_tiled_matmul/tensor_cores.md, steps mma, swizzle and pipeline: where chunks go, "
              "which rows lanes name, which scores a lane holds. (The check takes 64 keys and the "
              "scale 4000: then the largest score is the LSE, as all other exponentials vanish.)",
              r"(?s)  const auto at = .*?  cp_async_commit\(\);\n|    // 1\. .*?(?=    if \(key)",
              {"matmul_flops": 0.5}, ["lse"],
              ["--heads 1 --seqlen 128 --seqlen-kv 64 --scale 4000"]),
        Stage("stage 2, softmax over tiles", "LSE = m + ln l, over all keys that a row attends to",
              "03_online_softmax/README.md, Where infinity comes in and step one_pass_tile; "
              "05_flash_v2/README.md, What is stored, and the mask below The main loop, whole.",
              r"(?s)    if \(key \+ Bc > p\.keys.*?(?=    cp_async_w)|    // 2\. .*?(?=    count_)|"
              r"  const auto entry = .*?};\n|"
              r"    for \(int bit[^;]*l\[r\].*?(?=    const float inv)|"
              r"    if \(const int i = row[^\n]*\n[^\n]*\n",
              {"matmul_flops": 0.5, "exp_count": 0.5}, ["lse"]),
        Stage("stage 3, the output", "O, correct in all cases of the suite",
              "01_tiled_matmul/tensor_cores.md, step mma, The product PV; 05_flash_v2/README.md, "
              "the end of The main loop, whole.",
              r"(?s)    // 3\. .*?(?=  }\n  cp_async_wait)|  // O / l, .*?(?=}\n\n///)",
              {"matmul_flops": 1}),
        Stage("stage 4, copies in flight",
              "copies of K and V overlap products, and no count is far above 05/flat's",
              "05_flash_v2/README.md, the table of waits in The main loop, whole.",
              r"(?m)^ *(?:cp_async_[wc]|(?:if.*)?copy\.t|__syncthr|for \(int key|[KV]_ti).*\n",
              {"flops_under_copies": 0.5}, ["o", "lse"],
              [*SHAPES.values(),
               # K and V of two heads fill a group, so the second group has a block without a head.
               "--heads 3 --seqlen 1 --seqlen-kv 16384 --head-dim 128 --causal"])]),
    BuildTask("wgmma", 90, ["products", "sram_operand_bytes"], blanks=True),
    BuildTask("tma", 120, ["consumer_copies"], unchecked="that O leaves by TMA"),
    BuildTask("producer", 120, ["barriers", "consumer_copies"],
              unchecked="that registers move from the producer to the consumers"),
    BuildTask("overlap", 90, ["exps_under_products"], blanks=True,
              unchecked="that the product in flight is one that is needed"),
    BuildTask("counter", 60, ["atomics"],
              unchecked="that blocks start early, and work on the tile that the counter names"),
    BuildTask("lazy", 60, ["other_flops"],
              unchecked="that lanes compare maxima only where m rises, and rescale with mul_rows"),
    BuildTask("own_keys", 60, ["matmul_flops"], blanks=True,
              unchecked="that tiles of Q are counted from the last row up"),
    BuildTask("q_registers", 45, ["sram_operand_bytes"], unchecked="that registers suffice"),
]

# Each plants a mistake in a step. The reader sees the symptoms, listed for the shapes of
# bug_hunts.SHAPES, and has to find the line; the explanation is shown afterwards.
BUG_HUNTS = [
    BugHunt("edge", "attention.cu", "whole tiles, ragged, few keys: correct; causal: o, lse wrong",
            "A tile needs no mask if all of the warp's rows attend to all of its keys. The warp's "
            "first row attends to the fewest keys, but this tests the last row.",
            [("if (key + Bc > p.keys(row))", "if (key + Bc > p.keys(row + kWarpRows - 1))")]),
    BugHunt("strides", "hopper/wgmma.cu", "always: a fault",
            "The two offsets of V's descriptor are exchanged. V is MN-major: its stride byte "
            "offset leads from 8 keys to the next 8, 1,024 bytes, and its leading byte offset from "
            "64 columns to the next 64, a panel.",
            [("matrix_descriptor(tile_V.data, kPanel, 1024)",
              "matrix_descriptor(tile_V.data, 1024, kPanel)")],
            [("    wgmma_AB(O_sum, P_operand, tile_V);\n", """\
    constexpr int kPanel = tile_V.kPanel * kIoBytes;
    const uint64_t V_columns = matrix_descriptor(tile_V.data, kPanel, 1024);
    for (int k = 0; k < Bc; k += 16)
      wgmma_m64<T, true>(O_sum.r[0], P_operand.r[0][k / 16],
                         advanced(V_columns, tile_V.bytes(k, 0)), 1);
""")]),
    BugHunt("promise", "hopper/tma.cu",
            "whole tiles, ragged, few keys: never ends; causal: a fault",
            "The barrier expects fewer bytes than TMA brings, so the phase ends when only half of "
            "the tile has arrived.",
            [("full.arrive_expect_tx(to.kBytes);", "full.arrive_expect_tx(to.kBytes / 2);")]),
    BugHunt("parity", "hopper/tma.cu", "always: never ends",
            "A barrier's phases have parities 0, 1, 0, … A wait for parity 0 at every tile either "
            "passes at once at the second tile, because phase 0 is over, or never passes, because "
            "phase 1 is over, too.",
            [("V_full[0].wait(kv_tile % 2);", "V_full[0].wait(0);")]),
    BugHunt("stuck", "hopper/producer.cu",
            "whole tiles, ragged: a fault; causal: never ends or a fault, depending on thread "
            "order; few keys: correct",
            "release() frees V's stage and moves on to the next stage. Without release() the "
            "consumers read the first tile every time, and the producer waits for a stage that "
            "nobody frees.",
            [("    wgmma_wait<0>(O_sum, P_operand);\n    V.release();\n",
              "    wgmma_wait<0>(O_sum, P_operand);\n")]),
    BugHunt("early", "hopper/producer.cu", "always: a fault",
            "K's stage is freed while the product still reads it: a wgmma may keep running after "
            "it was issued, until wgmma_wait returns.",
            [("    wgmma_wait<0>(S);\n    K.release();\n",
              "    K.release();\n    wgmma_wait<0>(S);\n")]),
    BugHunt("tally", "hopper/counter.cu",
            "whole tiles, ragged, causal: a fault; few keys: correct",
            "Blocks read the counter, add to it and write it in three steps, so two blocks may "
            "take the same tile. An atomicAdd does all three at once.",
            [("index = gridDim.x + atomicAdd(next, 1);",
              "index = gridDim.x + next[0], next[0] = next[0] + 1;")]),
    BugHunt("let_go", "hopper/q_registers.cu",
            "whole tiles, ragged, few keys: correct; causal: a fault",
            "The wait for S does not name the registers that hold Q. So the compiler may use "
            "them for something else while a product still reads them.",
            [("    wgmma_wait<groups>(S, Q_rows);", "    wgmma_wait<groups>(S);")]),
]

# Answers that build_tasks_test hands in, as (task, file, edits of the file, whether the answer is
# correct, pattern of the verdict). In these edits the old text is a regular expression.
ATTEMPTS = [
    ("05/skip", "05_flash_v2/rows.cu", [  # correct only at the checked shapes
        (r"const int keys = p\.N_kv;", "const int keys = p.N == 300 ? p.keys(min(block_row + Br, "
                                      "p.N) - 1) : p.N_kv;"),
        (r"  const int64_t k = .*\n", ""), (r"k \* blocks", "heads * rows * p.d * kIoBytes"),
        (r"const int64_t blocks = .*;", "int64_t rows = 0;\n  for (int row = 0; row < p.N; row += "
         "plan.block_q)\n    rows += p.N == 300 ? p.keys(std::min(row + plan.block_q, p.N) - 1) : "
         "p.N_kv;")], False,
     r"requested_bytes goes from 657,408 .* to 657,408"),
    ("05/skip", "05_flash_v2/skip.cu", [  # prints while the reader looks for a mistake
        (r"\A", "#include <cstdio>\n"),
        ("  SharedMemory smem;\n", '  if (threadIdx.x == 0) std::printf("{x: %d} ", blockIdx.x);\n'
                                   "  SharedMemory smem;\n")], True, "all results are correct"),
    ("05/skip", "05_flash_v2/skip.cu", [(r', \{"LSE", 0, heads \* p\.N \* 4\}', "")], False,
     "traffic.. equals the count in 0 of .*attention: global-memory writes"),
    ("05/large_tiles", "05_flash_v2/attention.cu", [
        (r"(?s)(kTiles\[\] = )\{.*?\};", r"\1{{128, 128, 96}, {256, 64, 32}};")], True,
     "all results are correct"),
    ("05/swap", "05_flash_v2/defer.cu", [], True,
     "better than the step of the course: workspace_bytes: 0; "),
    ("05/flat", "05_flash_v2/flat.cu", [  # the maximum alone
        (r"m\[r\] \* kLn2 \+ logf\(l\[r\]\)", "m[r] * kLn2")], False,
     r"✓ stage 1.*\n✗ stage 2.*\n  ✗ lse right in 0 of 3"),
    ("05/flat", "05_flash_v2/flat.cu", [(r" *mma_m16n8k16<T>\(O_sum.*\n", "")], False,
     r"✓ stage 2.*\n✗ stage 3(?s:.)*✗ matmul_flops"),
    ("05/flat", "05_flash_v2/flat.cu", [  # every copy is awaited at once
        (r"cp_async_commit\(\);", "cp_async_commit();\n    cp_async_wait<0>();")], False,
     r"✓ stage 3.*\n✗ stage 4(?s:.)*✗ flops_under_copies: 0"),
]

# Answers that are refused before they run, as (task, pattern in its file, replacement, pattern of
# the message). KERNEL and FIRST match where to insert: at a kernel's start, before all definitions.
KERNEL, FIRST = r"__global__[^{;]*\{\n", r"(namespace \{\n)"
REGISTERS = '\n/*\nconst Register step{{\n    .rung = "05",\n    .name = "rows",\n}};\n*/\n'
REFUSED = [
    ("05/skip", r"(?s)\A.*\Z", f'#  include "../05_flash_v2/rows.cu"{REGISTERS}',
     "includes 05_flash_v2/rows.cu, another step's file"),
    ("05/skip", r"(?s)\A.*\Z",
     f'#define STEP "../05_flash_v2/rows.cu"\n#include STEP{REGISTERS}',
     "includes 05_flash_v2/rows.cu, another step's file"),
    ("05/skip", KERNEL, r"\g<0>  __shared__ float x[32];\n", "line .* uses __shared__.*take<T>"),
    ("05/skip", KERNEL, r"\g<0>  this_block->counts.barriers = 0;\n", "uses this_block"),
    ("05/skip", KERNEL, r"\g<0>  count_flops(-16);\n", "uses count_flops"),
    ("05/skip", FIRST, r"\1const Step& other() { return all_steps()[0]; }\n", "uses all_steps"),
    ("05/skip", FIRST, r'\1const int before = system("true");\n', "uses system"),
    ("05/skip", KERNEL, r"\g<0>  std::vector<float> scores(p.N_kv);\n",
     "uses std::vector: this memory would not be counted"),
    ("05/skip", FIRST, r"\1__device__ float S_all[1 << 24];\n",
     "uses __device__ float S_all.*would not be counted"),
    ("05/skip", KERNEL, r"\g<0>  float(K.data()[0]);\n", r"uses \.data\(\)"),
    ("05/skip", KERNEL, r"\g<0>  what?;\n", r"skip.cu:\d+:\d+: error: .*what"),
    ("05/skip", r"const Register step[^;]*;", "", "registers the step, is gone"),
    ("05/flat", r'(#include "rung.h")', r'\1\n#include "tile/rows.h"', "a part of common/tile"),
]

# Mistakes that build_tasks_test compiles into the steps, as (file, text in the file, replacement,
# pattern of what the suite then reports); "formula" means that traffic() differs from the count. In
# a replacement, ON is true in the runs that make the mistake, and WAS stands for the replaced text.
PLANTED = [
    ("hopper/fp8.cu", "return column_at(i)", "return ON ? i : column_at(i)", "max error"),
    ("hopper/fp8.cu", "exp2_fast(-of_V) * row_sum", "(ON ? 1 : exp2_fast(-of_V)) * row_sum",
     "max error"),
    ("hopper/fp8.cu", "scales[work.head * scaled.q + row / kWarpgroupRows]",
     "scales[(ON ? 0 : work.head * scaled.q) + row / kWarpgroupRows]", "max error"),
    ("hopper/fp8.cu", "if (rotate) hadamard", "if (rotate && (of.tile.is_Q || !ON)) hadamard",
     "max error"),
    ("hopper/fp8.cu", "__syncthreads();  // the tile is transposed", "if (!ON) WAS",
     "kernel .*transposed"),
]
