"""Compares the committed files of scripts/results with the programs: which runs there are, and what
the simulator counts. Also tests that each step changes the count that its registration names."""

import os
import unittest

from support import RESULTS, printed, programs
from ladder.base.files import course_pages, newest_measured, read_lines
from ladder.base.programs import ladder_of, programs_in
from ladder.exercises.build_tasks import counts_of
from ladder.exercises.checks import Move
from ladder.measure import grid, results, run as measure
from ladder.show.draw import stale
from ladder.show.measured import Files

BIN = programs()


class Committed(unittest.TestCase):
    def test_a_gpus_file_has_what_is_planned(self):
        """In bf16, not counting decoding, the file has all runs of the grid paper, with peers, for
        the steps that it lists, and besides these only runs of the grids long and models."""
        files = Files(newest_measured())
        there, ladder = files.gpu, files.ladder
        paper, known = (
            {grid.key(work.fields()) for work in grid.plan(
                measure.parse(["--grid", grids, "--dtype", "bf16"]), ladder, ladder.steps)}
            for grids in ("paper", "paper,long,models"))
        had = {grid.key(r) for r in [*there.runs, *there.skipped, *there.peers]
               if r["dtype"] == "bf16" and r["seqlen"] > 1}
        self.assertEqual((paper - had, had - known), (set(), set()))

    def test_figures_and_tables_are_fresh(self):
        files = Files(newest_measured())
        self.assertEqual(list(stale(files, os.path.join(RESULTS, "figures"), course_pages())), [],
                         "scripts/figures draw --readme renews them")


def counted(steps, options):
    """Runs the steps on the simulator. Returns {(rung, step): the record of its last direction},
    the backward pass if there is one."""
    records = {}
    for program in dict.fromkeys(step.program for step in steps):
        names = ",".join(step.name for step in steps if step.program == program)
        for r in printed(program, "--device", "sim", "--check", "off", "--step", names,
                         *options.split()):
            records[r["rung"], r["step"]] = r
    return records


class Counts(unittest.TestCase):
    def setUp(self):
        self.ladder = ladder_of(programs_in(BIN), "sim")
        lines = read_lines(os.path.join(RESULTS, "sim.jsonl"))
        self.runs, self.steps = ([line for line in lines if line["kind"] == kind]
                                 for kind in ("run", "step"))

    def test_counts(self):
        by_run = {}
        for r in self.runs:
            if results.counted_again(r):
                by_run.setdefault(grid.key(r), []).append(r)
        self.assertGreater(len(by_run), 20)
        steps = {step.key: step for step in ladder_of(programs_in(BIN), "sim").steps}
        for (rung, step, options, *point), records in by_run.items():
            command = grid.Measurement(steps[rung, step], grid.Point(*point),
                                       options.split()).command()
            now = [results.kept({**before, **record, "device_name": before["device_name"]})
                   for before, record in zip(records, printed(*command))]
            self.assertEqual(now, records, f"{command}; scripts/figures measure --sim --again "
                             "counts again")

    def test_sim_jsonl_has_what_is_planned(self):
        planned = {grid.key(work.fields()) for work in grid.plan(
            measure.parse(["--sim"]), self.ladder, self.ladder.steps)}
        self.assertEqual(planned ^ set(map(grid.key, self.runs)), set(),
                         "scripts/figures measure --sim adds them")
        self.assertEqual(self.steps, [{"kind": "step", **step.registered()}
                                      for step in self.ladder.steps if not step.decoding])

    def test_a_step_changes_the_count_of_its_idea(self):
        """Each registered change of a count happens. Without one are only the first steps, `heads`
        (only a GPU's counters show its effect) and `flat` (large_tiles in another form)."""
        steps = self.ladder.steps
        pairs = [(self.ladder.before(step), step) for step in steps]
        for first in ([step.name for old, step in pairs if not old],
                      [step.name for step in steps if not any(step.change)]):
            self.assertEqual([name for name in first if name not in ("heads", "flat")],
                             ["naive", "stored"])
        for options in {step.change[2] for _, step in pairs}:
            wanted = [pair for pair in pairs
                      if pair[0] and pair[1].change[0] and pair[1].change[2] == options]
            records = counted([step for step in steps if any(step in pair for pair in wanted)],
                              f"--seqlen 256 {options}")
            for pair in wanted:
                old, new = (records[step.rung, step.name] for step in pair)
                with self.subTest(rung=pair[1].rung, step=pair[1].name):
                    checked = Move(*pair[1].change).check(old, new)
                    self.assertTrue(checked.held, checked.text)

    def test_flat_counts_what_large_tiles_counts(self):
        """Compares all counts at head sizes for which both steps use the same tile."""
        both = [step for step in self.ladder.steps if step.rung == "05_flash_v2"
                and step.name in ("large_tiles", "flat")]
        for options in ("--heads 2 --seqlen 300 --causal", "--seqlen 128 --seqlen-kv 200",
                        "--heads 2 --seqlen 256 --head-dim 128 --dtype bf16"):
            with self.subTest(options):
                of_tiles, of_flat = map(counts_of, counted(both, options).values())
                self.assertEqual(of_tiles, of_flat)

    def test_no_count_depends_on_the_schedule(self):
        forward, random = (counted(self.ladder.steps, "--heads 1 --seqlen 72 --seqlen-kv 88 "
                                   f"--head-dim 40 --causal --schedule {order}")
                           for order in ("forward", "random:3"))
        for step, record in forward.items():
            for key, value in record.items():
                if isinstance(value, (int, list)):
                    self.assertEqual(value, random[step][key], (step, key))
