"""Holds what the lessons of 04 and 05 claim of FlashAttention-2 against FlashAttention to the sim's
counts: 04 beside 05's three steps, at equal tiles of 64 × 64.

Run alone: python3 scripts/tests/claims_test.py build/bin
"""

import functools
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

from base import ROOT, SECONDS, argument
from ladder.npy import read_npy

BIN = os.path.join(ROOT, "build/bin")

STEPS = {
    "04": ("04_flash_v1",),
    "swap": ("05_flash_v2", "--variant", "swap"),
    "defer": ("05_flash_v2", "--variant", "defer"),
    "mma": ("05_flash_v2", "--variant", "mma"),
}
N, D = 256, 64
WORKLOAD = ("--device", "sim", "--heads", "1", "--seqlen", str(N), "--head-dim", str(D))
TILE = ("--block-q", "64", "--block-kv", "64")


@functools.lru_cache(maxsize=None)
def run(step, *options):
    """The JSON object of a step's run, which has to pass where it is checked."""
    program, *variant = STEPS[step]
    done = subprocess.run(
        [os.path.join(BIN, program), *variant, *WORKLOAD, *options, "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS,
        encoding="utf-8")
    if done.returncode != 0:
        raise AssertionError(f"{step} {options}: status {done.returncode}: {done.stderr}")
    result = json.loads(done.stdout)
    if "off" not in options and not result["pass"]:
        raise AssertionError(f"{step} {options}: out of tolerance: {result['errors']}")
    return result


def both_ways(kind):
    return lambda result: result[f"{kind}_read_bytes"] + result[f"{kind}_write_bytes"]


requested, distinct, shared = map(both_ways, ("requested", "distinct", "sram"))


def saved_lse(step, folder, *options):
    run(step, *options, "--save", folder)
    return read_npy(os.path.join(folder, "lse.npy"))


class EqualTiles(unittest.TestCase):
    def each(self, count):
        """Of 04, then of 05's steps swap, defer and mma."""
        return [count(run(step, *TILE)) for step in STEPS]

    def test_bytes_requested(self):
        flash_v1, swap, defer, mma = self.each(requested)
        self.assertLess(swap, flash_v1)
        self.assertLess(defer, swap)  # l and m are not stored
        self.assertEqual(mma, defer)

    def test_the_loop_swap_saves_sixty_per_cent_of_what_grows_with_the_square(self):
        # Per pair of a query and a key: 10·d/Bc + 16/Bc for 04, 4·d/Br for 05. The rest grows
        # with N, and doubling N tells them apart: f(2N) − 2·f(N) = 2·a·N².
        def pair_bytes(step):
            once, twice = (requested(run(step, *TILE, "--seqlen", str(n))) for n in (N, 2 * N))
            return (twice - 2 * once) / (2 * N * N)

        self.assertEqual([pair_bytes(step) for step in STEPS],
                         [(10 * D + 16) / 64] + [4 * D / 64] * 3)

    def test_what_is_known_by_a_formula(self):
        rows = N * (N // 64)  # and steps
        line, twice = 8 * N * D + 4 * N, N * N + 2 * rows
        for what, expected in (
                (lambda result: (result["block_q"], result["block_kv"]), [(64, 64)] * 4),
                (distinct, [24 * N * D + 36 * N, 8 * N * D + 20 * N, line, line]),
                # One for each element of S, and for each row and step α and β, or α in each of the
                # four warps that share the row, or α.
                (lambda result: result["exp_count"], [twice, twice, N * N + 4 * rows,
                                                      N * N + rows]),
                (lambda result: result["matmul_flops"], [4 * N * N * D] * 4),
                (lambda result: result["workspace_bytes"], [4 * N * D + 8 * N, 8 * N, 0, 0])):
            self.assertEqual(self.each(what), expected)

    def test_shared_memory_bytes(self):
        flash_v1, swap, defer, mma = self.each(shared)
        self.assertLess(defer, swap)
        self.assertLess(2 * mma, min(flash_v1, swap, defer))
        # K and V arrive at every step of `swap`, at 04's only Q: reads are equal, writes are not.
        reads = self.each(lambda result: result["sram_read_bytes"])
        self.assertEqual(reads[0], reads[1])
        self.assertGreater(swap, flash_v1)

    def test_other_flops(self):
        flash_v1, swap, defer, mma = self.each(lambda result: result["other_flops"])
        self.assertEqual(swap, flash_v1)
        # One product less for each element of O and step; at the end that product with 1/l, and for
        # each row the sum of four warps' l and the division.
        tiles = N // 64
        self.assertEqual(swap - defer, tiles * tiles * 64 * D - tiles * (64 * D + 4 * 64))
        self.assertLess(mma, defer)


class Tiles(unittest.TestCase):
    def test_requested_bytes_of_04_fall_as_its_tile_of_keys_grows(self):
        b64, b128, b256 = (requested(run("04", "--block-kv", str(b))) for b in (64, 128, 256))
        self.assertGreater(b64, b128)
        self.assertGreater(b128, b256)
        # A visit of all queries costs the same whatever the tile: 4, 2 and 1 visits.
        self.assertEqual(b64 - b128, 2 * (b128 - b256))

    def test_requested_bytes_of_04_fall_as_on_chip_memory_grows(self):
        small, middle, large = (run("04", "--sram", str(m)) for m in (60000, 100000, 232448))
        self.assertEqual([r["block_kv"] for r in (small, middle, large)], [64, 128, 256])
        self.assertGreater(requested(small), requested(middle))
        self.assertGreater(requested(middle), requested(large))

    def test_requested_bytes_of_05_depend_on_its_tile_of_queries_alone(self):
        for step in ("swap", "defer"):
            with self.subTest(step):
                self.assertEqual(requested(run(step, "--block-kv", "128")),
                                 requested(run(step, "--block-kv", "64")))
        self.assertLess(requested(run("mma", "--block-q", "128")),
                        requested(run("mma", "--block-q", "64")))

    def test_the_loop_orders_cross_at_two_and_a_half(self):
        def longer(step, *options):
            return requested(run(step, "--seqlen", "1024", "--check", "off", *options))

        widest = longer("04", "--block-kv", "256")  # more than 2.5 · 64, less than 2.5 · 128
        self.assertLess(widest, longer("mma", "--block-q", "64"))
        self.assertGreater(widest, longer("mma", "--block-q", "128"))
        self.assertGreater(longer("04", "--block-kv", "128"), longer("mma", "--block-q", "64"))


class Causal(unittest.TestCase):
    def test_mma_skips_what_no_row_of_a_tile_sees(self):
        for rows in (64, 128):
            with self.subTest(block_q=rows):
                tile = ("--block-q", str(rows), "--block-kv", "64")
                everything, causal = run("mma", *tile), run("mma", *tile, "--causal")
                self.assertLess(requested(causal), requested(everything))
                # 1/2 + Br/2N of the tiles
                self.assertEqual(2 * N * causal["matmul_flops"],
                                 (N + rows) * everything["matmul_flops"])
                self.assertLess(causal["exp_count"], everything["exp_count"])

    def test_the_steps_before_skip_nothing(self):
        for step in ("04", "swap", "defer"):
            with self.subTest(step):
                everything, causal = run(step, *TILE), run(step, *TILE, "--causal")
                self.assertEqual(requested(causal), requested(everything))
                self.assertEqual(causal["matmul_flops"], everything["matmul_flops"])


class Lse(unittest.TestCase):
    def test_04_and_05_agree(self):
        for options in ((), ("--causal",), ("--scale", "6.25"), ("--seqlen-kv", "100")):
            with self.subTest(" ".join(options)), tempfile.TemporaryDirectory() as scratch:
                lse = {step: saved_lse(step, os.path.join(scratch, step), *TILE, *options)
                       for step in STEPS}
                largest = max(map(abs, lse["04"]))
                self.assertEqual(len(lse["04"]), N)
                for step in ("swap", "defer", "mma"):
                    self.assertEqual(len(lse[step]), N)
                    worst = max(abs(a - b) for a, b in zip(lse["04"], lse[step]))
                    self.assertLessEqual(worst, 1e-5 + largest * 2**-20, step)


if __name__ == "__main__":
    BIN = argument(BIN)
    for program in ("04_flash_v1", "05_flash_v2"):
        if not glob.glob(os.path.join(BIN, program)):
            sys.exit(f"{sys.argv[0]}: no {program} in {BIN}; give the folder that has it")
    unittest.main()
