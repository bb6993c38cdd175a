"""Holds what is committed in scripts/results to what the programs count."""

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
from ladder.programs import ladder_of, programs_in

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
            # 04's tiles, too, and what 04 and 05's steps skip under the mask.
            if (record["seqlen"] == 128 or words.startswith("04") and "--block-q" in words
                    or words[:2] in ("04", "05") and words.endswith("64 --dtype bf16 --causal")):
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


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
