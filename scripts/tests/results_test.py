"""Tests of what is committed in scripts/results: the figures and tables show it, and the programs
count it.

Run alone: python3 scripts/tests/results_test.py [build/bin]
"""

import json
import os
import re
import subprocess
import unittest

from base import RESULTS, ROOT, SECONDS, argument, read
from ladder import course
from ladder.bench import command, grid, traces
from ladder.figures.make import stale
from ladder.figures.measured import Files
from ladder.files import course_pages, newest_measured
from ladder.programs import programs_in
from ladder.steps import ladder_of

BIN = os.path.join(ROOT, "build/bin")


class Committed(unittest.TestCase):
    """What lies in scripts/results, and what shows it."""

    def test_figures_and_tables_are_fresh(self):
        found = stale(Files(newest_measured()), os.path.join(RESULTS, "figures"), course_pages())
        self.assertEqual(found, [], "scripts/figures draw --readme renews them")


COUNTS = re.compile(r"(?:model|requested|distinct|sram)_\w+_bytes|\w+_flops|exp_count|"
                    r"workspace_bytes|smem_bytes|block_\w+|warps|stages")


class OfTheCode(unittest.TestCase):
    """What is committed is what the programs count."""

    def setUp(self):
        if not os.path.exists(os.path.join(BIN, "00_naive")):
            self.skipTest(f"no programs in {BIN}")
        self.sim = json.loads(read(RESULTS, "sim.json"))
        self.traces = json.loads(read(RESULTS, "traces.json"))

    def test_counts(self):
        by_command = {}
        for words, record in zip(self.sim["commands"], self.sim["records"]):
            by_command.setdefault(words, []).append(record)
        checked = 0
        for asked, records in by_command.items():
            words = asked.split()
            if records[0]["seqlen"] != 128 and not (
                    "--block-q" in words and words[0].startswith("04")):
                continue
            program = os.path.join(BIN, words[0])
            if not os.path.exists(program):
                self.fail(f"{words[0]} is gone: remove scripts/results/sim.json and run "
                          "scripts/figures measure --sim")
            out = subprocess.run([program, *words[1:], "--json"], stdin=subprocess.DEVNULL,
                                 capture_output=True, encoding="utf-8", timeout=SECONDS).stdout
            printed = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(len(printed), len(records))
            for now, before in zip(printed, records):
                for name, value in before.items():
                    if COUNTS.fullmatch(name):
                        self.assertEqual(now[name], value, f"{asked}: {name}; scripts/figures "
                                         "--sim --again counts anew")
            checked += 1
        self.assertGreater(checked, 20)

    def test_sim_json_has_what_is_planned(self):
        ladder = ladder_of(programs_in(BIN).values(), "sim")
        ladder.steps = [step for step in ladder.steps if not step.decoding]
        planned = {grid.key(" ".join(one.words("sim"))) for _, ones, _ in grid.plan(
            command.parse(["--sim"]), ladder, ladder.steps) for one in ones}
        self.assertEqual(planned ^ set(map(grid.key, self.sim["commands"])), set(),
                         "scripts/figures measure --sim adds them")
        self.assertEqual([(s["rung"], s["variant"]) for s in self.sim["steps"]],
                         [(step.rung, step.variant) for step in ladder.steps])

    def test_traces(self):
        anew = {"traces": [traces.traced(os.path.join(BIN, rung), rung, variant)
                           for rung, variant in course.TRACED],
                "pipelines": [traces.pipelined(os.path.join(BIN, one[1]), *one)
                              for one in course.PIPELINED]}
        for kind, of in anew.items():
            self.assertEqual(of, self.traces[kind], "scripts/figures measure --sim traces anew")


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
