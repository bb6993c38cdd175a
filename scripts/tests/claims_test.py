"""Holds what the lessons of 04 and 05 claim of FlashAttention-2 against FlashAttention to the sim's
counts: 04 beside 05's three steps, at equal tiles of 64 × 64.

Run alone: python3 scripts/tests/claims_test.py build/bin
"""

import functools
import json
import os
import subprocess
import unittest

from base import ROOT, SECONDS, argument

BIN = os.path.join(ROOT, "build/bin")

# A step's program, and which of its steps it is.
STEPS = {"04": ("04_flash_v1", "flash_v1"), **{
    step: ("05_flash_v2", step) for step in ("swap", "defer", "mma")}}
N, D = 256, 64
WORKLOAD = f"--device sim --heads 1 --seqlen {N} --head-dim {D} --json".split()
TILE = "--block-q 64 --block-kv 64"


@functools.cache
def run(step, options=""):
    """The JSON object of a step's run, all of which has to pass where it is checked."""
    program, variant = STEPS[step]
    done = subprocess.run(
        [os.path.join(BIN, program), "--variant", variant, *WORKLOAD, *options.split()],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS,
        encoding="utf-8")
    if done.returncode != 0:
        raise AssertionError(f"{step} {options}: status {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def both_ways(kind, step, options):
    result = run(step, options)
    return result[f"{kind}_read_bytes"] + result[f"{kind}_write_bytes"]


def requested(step, options=""):
    return both_ways("requested", step, options)


def each(*names, options=TILE):
    """Of 04, then of 05's steps swap, defer and mma."""
    found = [[run(step, options)[name] for name in names] for step in STEPS]
    return [of[0] if len(of) == 1 else tuple(of) for of in found]


class EqualTiles(unittest.TestCase):
    def test_the_loop_swap_saves_sixty_per_cent_of_what_grows_with_the_square(self):
        # Per pair of a query and a key: 10·d/Bc + 16/Bc for 04, 4·d/Br for 05. The rest grows
        # with N, and doubling N tells them apart: f(2N) − 2·f(N) = 2·a·N².
        def pair_bytes(step):
            once, twice = (requested(step, f"{TILE} --seqlen {n}") for n in (N, 2 * N))
            return (twice - 2 * once) / (2 * N * N)

        self.assertEqual([pair_bytes(step) for step in STEPS],
                         [(10 * D + 16) / 64] + [4 * D / 64] * 3)
        flash_v1, swap, defer, mma = (requested(step, TILE) for step in STEPS)
        self.assertTrue(flash_v1 > swap > defer == mma)  # l and m are not stored

    def test_what_is_known_by_a_formula(self):
        rows = N * (N // 64)  # and steps
        line, twice = 8 * N * D + 4 * N, N * N + 2 * rows
        for found, expected in (
                (each("block_q", "block_kv"), [(64, 64)] * 4),
                ([both_ways("distinct", step, TILE) for step in STEPS],
                 [24 * N * D + 36 * N, 8 * N * D + 20 * N, line, line]),
                # One for each element of S, and for each row and step α and β, or α in each of the
                # four warps that share the row, or α.
                (each("exp_count"), [twice, twice, N * N + 4 * rows, N * N + rows]),
                (each("matmul_flops"), [4 * N * N * D] * 4),
                (each("workspace_bytes"), [4 * N * D + 8 * N, 8 * N, 0, 0])):
            self.assertEqual(found, expected)

    def test_shared_memory_bytes(self):
        flash_v1, swap, defer, mma = (both_ways("sram", step, TILE) for step in STEPS)
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


class Tiles(unittest.TestCase):
    def falls(self, *runs):
        """Bytes requested, strictly."""
        counts = [requested(*one) for one in runs]
        self.assertEqual(counts, sorted(set(counts), reverse=True))
        return counts

    def test_requested_bytes_of_04_fall_as_its_tile_of_keys_grows(self):
        b64, b128, b256 = self.falls(*(("04", f"--block-kv {b}") for b in (64, 128, 256)))
        # A visit of all queries costs the same whatever the tile: 4, 2 and 1 visits.
        self.assertEqual(b64 - b128, 2 * (b128 - b256))
        # And it grows with on-chip memory.
        sizes = [f"--sram {m}" for m in (60000, 100000, 232448)]
        self.assertEqual([run("04", size)["block_kv"] for size in sizes], [64, 128, 256])
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


class Causal(unittest.TestCase):
    def test_mma_skips_what_no_row_of_a_tile_sees_and_the_others_nothing(self):
        for rows in (64, 128):
            tile = f"--block-q {rows} --block-kv 64"
            everything, causal = run("mma", tile), run("mma", tile + " --causal")
            self.assertLess(requested("mma", tile + " --causal"), requested("mma", tile))
            # 1/2 + Br/2N of the tiles
            self.assertEqual(2 * N * causal["matmul_flops"],
                             (N + rows) * everything["matmul_flops"])
            self.assertLess(causal["exp_count"], everything["exp_count"])
        names = ("requested_read_bytes", "requested_write_bytes", "matmul_flops")
        self.assertEqual(each(*names)[:3], each(*names, options=TILE + " --causal")[:3])


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
