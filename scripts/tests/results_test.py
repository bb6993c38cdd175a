"""Holds what is committed in scripts/results to what the programs count."""

import os
import re
import unittest

from base import RESULTS, ROOT, argument, printed
from ladder.base.files import course_pages, newest_measured, read_lines
from ladder.base.programs import Ladder, ladder_of, programs_in
from ladder.measure import grid, run as measure, traces
from ladder.show.draw import stale
from ladder.show.measured import Files, Measured

BIN = os.path.join(ROOT, "build/bin")
COUNTS = re.compile(r"(?:model|requested|distinct|sram)_\w+_bytes|\w+_flops|exp_count|barriers|"
                    r"bank_conflicts|workspace_bytes|smem_bytes|block_\w+|warps|stages")


class Committed(unittest.TestCase):
    def test_figures_and_tables_are_fresh(self):
        files = Files(newest_measured())
        self.assertEqual(list(stale(files, os.path.join(RESULTS, "figures"), course_pages())), [],
                         "scripts/figures draw --readme renews them")

    def test_a_gpus_file_has_what_is_planned(self):
        """Of its own steps the grid paper, with peers at each point; else long, decode, models."""
        measured = Measured(os.path.join(RESULTS, "h200.jsonl"))
        ladder = Ladder(measured.steps.values())
        paper, both = (
            [one for group in grid.plan(measure.parse(["--grid", grids, "--dtype", "bf16"]),
                                        ladder, ladder.steps) for one in group]
            for grids in ("paper", "paper,long,models"))
        there = {grid.key(r) for r in [*measured.runs, *measured.skipped]
                 if "rung" in r and r["dtype"] == "bf16" and r["seqlen"] > 1}
        ours, known = ({grid.key(one.fields()) for one in planned
                        if isinstance(one, grid.Measurement)} for planned in (paper, both))
        self.assertEqual(ours - there, set())
        self.assertEqual(there - known, set())
        peers = {tuple(r[name] for name in grid.Point._fields) for r in measured.peers}
        beside = {one.point for one in paper if isinstance(one, grid.Peer)}
        self.assertGreater(len(beside), 20)
        self.assertEqual(beside - peers, set())


class OfTheCode(unittest.TestCase):
    """What is committed is what the programs count."""

    def setUp(self):
        if not os.path.exists(os.path.join(BIN, "00_naive")):
            self.skipTest(f"no programs in {BIN}")
        lines = read_lines(os.path.join(RESULTS, "sim.jsonl"))
        self.runs, self.steps = ([line for line in lines if line["kind"] == kind]
                                 for kind in ("run", "step"))

    def test_counts(self):
        by_run = {}
        for r in self.runs:
            # 04's tiles, too, and what 04 and 05's steps skip under the mask.
            if (r["seqlen"] == 128 or r["rung"][:2] == "04" and "--block-q" in r["options"]
                    or r["rung"][:2] in ("04", "05") and r["causal"] and r["head_dim"] == 64
                    and not r["options"]):
                by_run.setdefault(grid.key(r), []).append(r)
        self.assertGreater(len(by_run), 20)
        steps = {step.key: step for step in ladder_of(programs_in(BIN), "sim").steps}
        for (rung, step, options, *point), records in by_run.items():
            command = grid.Measurement(steps[rung, step], grid.Point(*point),
                                       options.split()).command()
            now, before = ([{name: value for name, value in record.items()
                             if COUNTS.fullmatch(name)} for record in of]
                           for of in (printed(*command), records))
            self.assertEqual(now, before, f"{command}; scripts/figures measure --sim --again "
                             "counts anew")

    def test_sim_jsonl_has_what_is_planned(self):
        ladder = ladder_of(programs_in(BIN), "sim")
        planned = {grid.key(one.fields()) for group in grid.plan(
            measure.parse(["--sim"]), ladder, ladder.steps) for one in group}
        self.assertEqual(planned ^ set(map(grid.key, self.runs)), set(),
                         "scripts/figures measure --sim adds them")
        self.assertEqual(self.steps, [{"kind": "step", **step.registered()}
                                      for step in ladder.steps if not step.decoding])

    def test_traces(self):
        self.assertEqual(traces.all_traces(programs_in(BIN)),
                         read_lines(os.path.join(RESULTS, "traces.jsonl")),
                         "scripts/figures measure --sim traces anew")


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
