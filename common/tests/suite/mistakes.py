"""Mistakes of the kind that one makes, each a change to a sound source, that the tests must find.

`mistakes.py FOLDER` writes, as part of the build, a copy of each source with all its mistakes in
it, planted as scripts/mutate does: LADDER_MISTAKE, or a test, chooses one while the program runs,
or none. Beside them it writes mistakes.inc, the table for the tests. A mistake whose text is no
longer in its source is said to be gone, and its test fails, since nothing is caught: the source has
moved on, and so must this table.
"""

import collections
import json
import os
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

from ladder.mutate.plant import change, with_mutants, write_if_new  # noqa: E402  (in scripts)

FIRST = 1_000_000  # number; scripts/mutate counts its mutants, maybe in the same program, from 0
TABLE = os.path.join(ROOT, "common/tests/suite/mistakes.h")

# The steps whose sources have mistakes.
TILE, PIPELINE = ("01_tiled_matmul", "tile"), ("01_tiled_matmul", "pipeline")
STORED, BACKWARD = ("06_backward", "stored"), ("06_backward", "wgmma")
COUNTER, FP8 = ("05_flash_v2", "counter"), ("05_flash_v2", "fp8")
REFERENCE = ("", "")

WRONG, FAULT, BITS, FORMULA = "wrong result", "fault", "different bits", "formula is not count"

# `was`, where it stands first in the source, becomes `now`, WAS in it being that; ON is whether the
# mistake is chosen. `how`: one of the ways in which it must be caught, `says`: what the fault must
# say.
Mistake = collections.namedtuple("Mistake", "name step was now how says", defaults=[""])

MISTAKES = {
    "01_tiled_matmul/tile.cu": [
        Mistake("tile_no_first_barrier", TILE, "__syncthreads();  // the tiles are complete",
                "if (!ON) WAS", FAULT),  # reads what nobody wrote
        Mistake("tile_no_second_barrier", TILE, "__syncthreads();  // everybody is done with them",
                "if (!ON) WAS", BITS),
        Mistake("tile_loads_past_the_end", TILE, "inside && i < p.N", "WAS + ON", FAULT),
        Mistake("tile_stores_past_the_end", TILE, "i < p.N && j < p.N_kv", "WAS + ON", FAULT),
        Mistake("tile_makes_rows_of_the_block_before", TILE, "int64_t{blockIdx.x} * kRowThreads",
                "int64_t{blockIdx.x} * (kRowThreads - ON)", FAULT, "wrote in the same kernel"),
        Mistake("tile_formula_misses_the_last_tile", TILE, "ceil_div(p.N_kv, kTile)",
                "(ON ? p.N_kv / kTile : WAS)", FORMULA),
    ],
    "01_tiled_matmul/attention.cu": [
        Mistake("pipeline_waits_for_a_stage_too_few", PIPELINE, "cp_async_wait<kStages - 2>",
                "(ON ? cp_async_wait<kStages - 1> : WAS)", FAULT),
        Mistake("pipeline_no_barrier_in_the_loop", PIPELINE,
                "__syncthreads();  // this step's tiles", "if (!ON) WAS", FAULT),
        Mistake("pipeline_no_barrier_after_the_loop", PIPELINE,
                "cp_async_wait<0>();\n  __syncthreads();",
                "cp_async_wait<0>();\n  if (!ON) __syncthreads();", BITS),
        Mistake("pipeline_loads_past_the_end", PIPELINE, "g.rows - row, g.inner - k",
                "g.rows - row + ON, g.inner - k", FAULT),
    ],
    "06_backward/stored.cu": [
        Mistake("stored_forgets_D", STORED, "float(ds[e]) - D",
                "float(ds[e]) - (ON ? 0 : D)", WRONG),
        Mistake("stored_forgets_the_group", STORED, "p.H / p.Hk * p.N",
                "(ON ? 1 : p.H / p.Hk) * p.N", WRONG),
        Mistake("stored_formula_counts_blocks_of_queries", STORED, '{"Q", q * key_blocks',
                '{"Q", q * (ON ? row_blocks : key_blocks)', FORMULA),
    ],
    # Atomic additions done as plain ones: a read, a sum and a write.
    "06_backward/hopper/wgmma.cu": [
        Mistake("backward_adds_to_dQ_plainly", BACKWARD, "atomic_add_pair(dQ_at",
                "[&](auto at, float x, float y) { if (ON) at[0] = at[0] + x, at[1] = at[1] + y; "
                "else atomic_add_pair(at, x, y); }(dQ_at", FAULT, "in the same kernel"),
    ],
    "05_flash_v2/hopper/counter.cu": [
        Mistake("counter_counts_plainly", COUNTER, "atomicAdd(next",
                "[&](auto at, int x) { if (!ON) return atomicAdd(at, x); const int n = at[0]; "
                "at[0] = n + x; return n; }(next", FAULT, "in the same kernel"),
    ],
    # Of e4m3: an order of keys, scales and layouts.
    "05_flash_v2/hopper/fp8.cu": [
        Mistake("fp8_keys_as_they_come", FP8, "constexpr int kRows",
                "int column_at(int i) { return ON ? i : MACHINE::column_at(i); } WAS", WRONG),
        Mistake("fp8_forgets_the_scale_of_V", FP8, "exp2_fast(-of_V) * row_sum",
                "(ON ? 1 : exp2_fast(-of_V)) * row_sum", WRONG),
        Mistake("fp8_forgets_that_the_scale_of_V_changes", FP8, "scale_KV[2 * K.number() + 1];",
                "scale_KV[(ON ? 0 : 2 * K.number()) + 1];", WRONG),
        Mistake("fp8_takes_another_tiles_scale", FP8, "of_K = scales[first + step]",
                "of_K = scales[first + (ON ? 0 : step)]", WRONG),
        Mistake("fp8_takes_another_heads_scale", FP8, "scales[w.head * scaled.q + row / kRows]",
                "scales[(ON ? 0 : w.head * scaled.q) + row / kRows]", WRONG),
        Mistake("fp8_transforms_Q_alone", FP8, "if (how.hadamard)",
                "if (how.hadamard && (is_Q || !ON))", WRONG),
        Mistake("fp8_exchanges_neighbours_of_V", FP8, "x[e][c]", "x[e ^ ON][c]", WRONG),
        Mistake("fp8_transposes_without_a_barrier", FP8,
                "__syncthreads();  // the tile is transposed", "if (!ON) WAS", FAULT, "transposed"),
        Mistake("fp8_forgets_the_scale_of_P", FP8, "fill_rows<16>(p_exponent + of_V)",
                "fill_rows<16>((ON ? 0 : p_exponent) + of_V)", WRONG),
        Mistake("fp8_swizzles_Q_and_K_by_128", FP8, "SwizzledTile<e4m3, kRows, D>::kPanelBytes)",
                "ON ? 128 : WAS", FAULT),
        Mistake("fp8_frees_K_too_early", FP8, "    wgmma_wait<0>(S);\n    K.release();",
                "    if (ON) K.release();\n    wgmma_wait<0>(S); if (!ON) K.release();", FAULT,
                "which a wgmma"),
    ],
    # Where one of these is made, what is sound must come out wrong: see tests.cmake.
    "common/harness/reference.cpp": [
        Mistake("reference_misses_the_last_key", REFERENCE, "static_cast<size_t>(p.keys(i))",
                "static_cast<size_t>(ON ? std::max(1, p.keys(i) - 1) : p.keys(i))", WRONG),
        Mistake("reference_forgets_D", REFERENCE, "dP[j] - D", "dP[j] - (ON ? 0 : D)", WRONG),
    ],
}


def plant(folder):
    rows = []
    for source, mistakes in MISTAKES.items():
        with open(os.path.join(ROOT, source), encoding="utf-8") as file:
            text = file.read()
        planted = {}
        for number, m in enumerate(mistakes, FIRST + len(rows)):
            if m.was in text:
                planted[number] = change(source, text.index(m.was), m.was, m.now)
            else:
                print(f"mistakes.py: {m.name}: '{m.was}' is no longer in {source}", file=sys.stderr)
            fields = map(json.dumps, (number, m.name, *m.step, m.how, m.says))
            rows.append(f"{{{', '.join(fields)}}},\n")
        write_if_new(os.path.join(folder, source + ".cpp"),
                     with_mutants(text, planted, os.path.join(ROOT, source), TABLE)[0])
    write_if_new(os.path.join(folder, "mistakes.inc"), "".join(rows))


if __name__ == "__main__":
    plant(sys.argv[1])
