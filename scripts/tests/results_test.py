"""Holds what is committed in scripts/results, and some of what the lessons of 04 and 05 say of
their steps, to what the programs count.

Run alone: python3 scripts/tests/results_test.py [build/bin]
"""

import functools
import json
import os
import re
import subprocess
import unittest

from base import RESULTS, ROOT, SECONDS, argument, read
from ladder.bench import grid, measure, traces
from ladder.figures.draw import stale
from ladder.figures.measured import Files
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
        self.assertEqual(list(stale(files, os.path.join(RESULTS, "figures"), course_pages())), [],
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
        planned = {one.command("sim") for _, ones in grid.plan(
            measure.parse(["--sim"]), ladder, ladder.steps) for one in ones}
        self.assertEqual(planned ^ set(map(grid.key, self.sim["commands"])), set(),
                         "scripts/figures measure --sim adds them")
        self.assertEqual([(s["rung"], s["variant"]) for s in self.sim["steps"]],
                         [(step.rung, step.variant) for step in ladder.steps
                          if not step.decoding])

    def test_traces(self):
        self.assertEqual(traces.all_traces(programs_in(BIN)),
                         json.loads(read(RESULTS, "traces.json")),
                         "scripts/figures measure --sim traces anew")


class LoopOrders(unittest.TestCase):
    """04 beside 05's steps at equal tiles: what the consoles of their lessons do not show."""

    N, D = 256, 64
    STEPS = ["04_flash_v1", *(f"05_flash_v2 --variant {step}" for step in ("swap", "defer", "mma"))]

    def each(self, *names, options=""):
        """The sum of what each step has counted under these names."""
        return [sum(result[name] for name in names) for step in self.STEPS for result in printed(
            f"{step} --device sim --heads 1 --seqlen {self.N} --head-dim {self.D} --block-q 64 "
            f"--block-kv 64 {options}")]

    def setUp(self):
        if not os.path.exists(os.path.join(BIN, "04_flash_v1")):
            self.skipTest(f"no programs in {BIN}")

    def test_what_is_known_by_a_formula(self):
        N, D = self.N, self.D
        rows = N * (N // 64)  # and steps
        line, twice = 8 * N * D + 4 * N, N * N + 2 * rows
        for names, expected in (
                (["distinct_read_bytes", "distinct_write_bytes"],
                 [24 * N * D + 36 * N, 8 * N * D + 20 * N, line, line]),
                # One for each element of S, and for each row and step α and β, or α in each of the
                # four warps that share the row, or α.
                (["exp_count"], [twice, twice, N * N + 4 * rows, N * N + rows]),
                (["matmul_flops"], [4 * N * N * D] * 4),
                (["workspace_bytes"], [4 * N * D + 8 * N, 8 * N, 0, 0])):
            self.assertEqual(self.each(*names), expected, names)

    def test_mma_skips_what_no_row_of_a_tile_sees_and_the_others_nothing(self):
        for name in ("requested_read_bytes", "matmul_flops", "exp_count"):
            everything, causal = (self.each(name, options=mask) for mask in ("", "--causal"))
            self.assertLess(causal[3], everything[3], name)
            if name != "exp_count":
                self.assertEqual(causal[:3], everything[:3], name)
            if name == "matmul_flops":  # 1/2 + Br/2N of the tiles
                self.assertEqual(2 * self.N * causal[3], (self.N + 64) * everything[3])


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
