"""Holds what is committed in scripts/results, and what the lessons of 04 and 05 claim of
FlashAttention-2 against FlashAttention, to what the programs count.

Run alone: python3 scripts/tests/results_test.py [build/bin]
"""

import functools
import json
import os
import re
import subprocess
import unittest

from base import RESULTS, ROOT, SECONDS, argument, read
from ladder import course
from ladder.bench import grid, measure, traces
from ladder.figures.gallery import stale_figures
from ladder.figures.measured import Files
from ladder.figures.pages import stale_tables
from ladder.files import course_pages, newest_measured
from ladder.programs import programs_in
from ladder.steps import ladder_of

BIN = os.path.join(ROOT, "build/bin")
COUNTS = re.compile(r"(?:model|requested|distinct|sram)_\w+_bytes|\w+_flops|exp_count|"
                    r"workspace_bytes|smem_bytes|block_\w+|warps|stages")


@functools.cache
def printed(words):
    """The JSON objects of a run, all of which has to pass where it is checked."""
    program, *options = words.split()
    done = subprocess.run([os.path.join(BIN, program), *options, "--json"],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS,
                          encoding="utf-8")
    if done.returncode != 0:
        raise AssertionError(f"{words}: status {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


class Committed(unittest.TestCase):
    def test_figures_and_tables_are_fresh(self):
        files = Files(newest_measured())
        self.assertEqual([*stale_figures(files, os.path.join(RESULTS, "figures")),
                          *stale_tables(files, course_pages())], [],
                         "scripts/figures draw --readme renews them")


class OfTheCode(unittest.TestCase):
    """What is committed is what the programs count."""

    def setUp(self):
        if not os.path.exists(os.path.join(BIN, "00_naive")):
            self.skipTest(f"no programs in {BIN}")
        self.sim = json.loads(read(RESULTS, "sim.json"))

    def test_counts(self):
        by_command = {}
        for words, record in zip(self.sim["commands"], self.sim["records"]):
            if record["seqlen"] == 128 or "--block-q" in words and words.startswith("04"):
                by_command.setdefault(words, []).append(record)
        self.assertGreater(len(by_command), 20)
        for words, records in by_command.items():
            now, before = ([{name: value for name, value in record.items()
                             if COUNTS.fullmatch(name)} for record in of]
                           for of in (printed(words), records))
            self.assertEqual(now, before, f"{words}; scripts/figures measure --sim --again counts "
                             "anew")

    def test_sim_json_has_what_is_planned(self):
        ladder = ladder_of(programs_in(BIN).values(), "sim")
        ladder.steps = [step for step in ladder.steps if not step.decoding]
        planned = {grid.key(" ".join(one.words("sim"))) for _, ones, _ in grid.plan(
            measure.parse(["--sim"]), ladder, ladder.steps) for one in ones}
        self.assertEqual(planned ^ set(map(grid.key, self.sim["commands"])), set(),
                         "scripts/figures measure --sim adds them")
        self.assertEqual([(s["rung"], s["variant"]) for s in self.sim["steps"]],
                         [(step.rung, step.variant) for step in ladder.steps])

    def test_traces(self):
        self.assertEqual(traces.all_traces(programs_in(BIN)),
                         json.loads(read(RESULTS, "traces.json")),
                         "scripts/figures measure --sim traces anew")


# ---- 04 beside 05's three steps ----

# A step's program, and which of its steps it is.
STEPS = {"04": "04_flash_v1 --variant flash_v1", **{
    step: f"05_flash_v2 --variant {step}" for step in ("swap", "defer", "mma")}}
N, D = 256, 64
TILE = "--block-q 64 --block-kv 64"  # equal ones


def count(step, options, *names):
    """The sum of what a step's run has counted under these names."""
    result, = printed(f"{STEPS[step]} --device sim --heads 1 --seqlen {N} --head-dim {D} {options}")
    return sum(result[name] for name in names)


def requested(step, options=TILE):
    return count(step, options, "requested_read_bytes", "requested_write_bytes")


def each(*names, options=TILE):
    """Of 04, then of 05's steps swap, defer and mma."""
    return [count(step, options, *names) for step in STEPS]


class LoopOrders(unittest.TestCase):
    def falls(self, *runs):
        """Bytes requested, strictly."""
        counts = [requested(*one) for one in runs]
        self.assertEqual(counts, sorted(set(counts), reverse=True))
        return counts

    def test_the_loop_swap_saves_sixty_per_cent_of_what_grows_with_the_square(self):
        # Per pair of a query and a key: 10·d/Bc + 16/Bc for 04, 4·d/Br for 05. The rest grows
        # with N, and doubling N tells them apart: f(2N) − 2·f(N) = 2·a·N².
        def pair_bytes(step):
            once, twice = (requested(step, f"{TILE} --seqlen {n}") for n in (N, 2 * N))
            return (twice - 2 * once) / (2 * N * N)

        self.assertEqual([pair_bytes(step) for step in STEPS],
                         [(10 * D + 16) / 64] + [4 * D / 64] * 3)
        flash_v1, swap, defer, mma = map(requested, STEPS)
        self.assertTrue(flash_v1 > swap > defer == mma)  # l and m are not stored

    def test_what_is_known_by_a_formula(self):
        rows = N * (N // 64)  # and steps
        line, twice = 8 * N * D + 4 * N, N * N + 2 * rows
        for names, expected in (
                (["block_q"], [64] * 4), (["block_kv"], [64] * 4),
                (["distinct_read_bytes", "distinct_write_bytes"],
                 [24 * N * D + 36 * N, 8 * N * D + 20 * N, line, line]),
                # One for each element of S, and for each row and step α and β, or α in each of the
                # four warps that share the row, or α.
                (["exp_count"], [twice, twice, N * N + 4 * rows, N * N + rows]),
                (["matmul_flops"], [4 * N * N * D] * 4),
                (["workspace_bytes"], [4 * N * D + 8 * N, 8 * N, 0, 0])):
            self.assertEqual(each(*names), expected, names)

    def test_shared_memory_bytes(self):
        flash_v1, swap, defer, mma = each("sram_read_bytes", "sram_write_bytes")
        self.assertLess(defer, swap)
        self.assertLess(2 * mma, min(flash_v1, swap, defer))
        # K and V arrive at every step of `swap`, at 04's only Q: reads are equal, writes are not.
        reads = each("sram_read_bytes")
        self.assertEqual(reads[0], reads[1])
        self.assertGreater(swap, flash_v1)

    def test_other_flops(self):
        flash_v1, swap, defer, mma = each("other_flops")
        self.assertEqual(swap, flash_v1)
        # One product less for each element of O and step; at the end that product with 1/l, and for
        # each row the sum of four warps' l and the division.
        tiles = N // 64
        self.assertEqual(swap - defer, tiles * tiles * 64 * D - tiles * (64 * D + 4 * 64))
        self.assertLess(mma, defer)

    def test_requested_bytes_of_04_fall_as_its_tile_of_keys_grows(self):
        b64, b128, b256 = self.falls(*(("04", f"--block-kv {b}") for b in (64, 128, 256)))
        # A visit of all queries costs the same whatever the tile: 4, 2 and 1 visits.
        self.assertEqual(b64 - b128, 2 * (b128 - b256))
        # And it grows with on-chip memory.
        sizes = [f"--sram {m}" for m in (60000, 100000, 232448)]
        self.assertEqual([count("04", size, "block_kv") for size in sizes], [64, 128, 256])
        self.assertEqual([requested("04", size) for size in sizes], [b64, b128, b256])

    def test_requested_bytes_of_05_depend_on_its_tile_of_queries_alone(self):
        for step in ("swap", "defer"):
            self.assertEqual(*(requested(step, f"--block-kv {b}") for b in (64, 128)), step)
        self.falls(("mma", "--block-q 64"), ("mma", "--block-q 128"))

    def test_the_loop_orders_cross_at_two_and_a_half(self):
        # 04's tile of 256 keys is more than 2.5 · 64, less than 2.5 · 128.
        self.falls(*((step, f"--seqlen 1024 --check off {tile}") for step, tile in (
            ("04", "--block-kv 128"), ("mma", "--block-q 64"),
            ("04", "--block-kv 256"), ("mma", "--block-q 128"))))

    def test_mma_skips_what_no_row_of_a_tile_sees_and_the_others_nothing(self):
        for rows in (64, 128):
            tile = f"--block-q {rows} --block-kv 64"
            everything, causal = ({name: count("mma", f"{tile} {mask}", name) for name in (
                "requested_read_bytes", "matmul_flops", "exp_count")} for mask in ("", "--causal"))
            # 1/2 + Br/2N of the tiles
            self.assertEqual(2 * N * causal["matmul_flops"],
                             (N + rows) * everything["matmul_flops"])
            self.assertTrue(all(causal[name] < everything[name] for name in causal))
        for name in ("requested_read_bytes", "requested_write_bytes", "matmul_flops"):
            self.assertEqual(each(name)[:3], each(name, options=TILE + " --causal")[:3])


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
