"""Tests of what scripts/figures measures, and of the files that it writes."""

import itertools
import os
import pathlib
import unittest
import unittest.mock

from base import Scratch, listed, read
import fake_ladder
from ladder import files, programs
from ladder.bench import grid, measure, results

STEPS = {**fake_ladder.STEPS, "06_backward": ["stored", "mma", "aside", "sm90"]}
SLOW = ["naive", "tile", "two_pass", "one_pass"]
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


class Grid(unittest.TestCase):
    def ladder(self, *more):
        tiles = [[64, 64, 64], [64, 64, 128], [128, 64, 32]]
        return programs.Ladder([*(programs.Step(**listed(
            rung, variant, "gpu", default=variant == variants[-1], by_name_only=variant == "aside",
            backward=rung == "06_backward", exact_architecture=variant == "sm90", tiles=tiles,
            grid_limit=[4096, 2048] if variant in SLOW else [0, 0]))
            for rung, variants in STEPS.items() for variant in variants), *more])

    def plan(self, words, *more):
        """[(point, Config)]; the point is None where no peer is measured."""
        ladder = self.ladder(*more)
        groups = grid.plan(measure.parse(words.split()), ladder, ladder.steps)
        return [(point, one) for point, ones in groups for one in ones]

    def test_the_papers_grid(self):
        run = self.plan("--grid paper")
        points = {point for point, _ in run if point}
        self.assertEqual({(p.batch * p.seqlen, p.heads * p.head_dim) for p in points},
                         {(16384, 2048)})
        self.assertEqual({(p.seqlen, p.head_dim, p.causal) for p in points},
                         set(itertools.product(LENGTHS, (64, 128), (False, True))))
        # What stands for its rung is measured everywhere, unless it is slow; the others where a
        # step's gain is shown.
        for step in self.ladder().steps:
            everywhere = step.variant in ("mma", "three_loops", "one_pass_tile", "flash_v1", "sm90")
            for causal, some in ((False, {1024, 2048, 4096}), (True, {2048})):
                slow = {n for n in LENGTHS if n <= max(some)}
                self.assertEqual(
                    {p.seqlen for p, one in run if p and p.causal == causal
                     and one[:2] == (step.rung, step.variant)},
                    set(LENGTHS) if everywhere else slow if step.variant == "naive" else some,
                    step)
        extra = [one for point, one in run if not point]
        # The tiles that each head size has, of the one step that is timed against them.
        self.assertEqual([(one.rung, one.point.head_dim, one.options[1], one.options[3])
                          for one in extra if "--block-q" in one.options],
                         [("04_flash_v1", 64, "64", "64"), ("04_flash_v1", 64, "64", "128"),
                          ("04_flash_v1", 128, "64", "32")])
        self.assertEqual(sum("full" in one.options for one in extra), 2 * len(self.ladder().steps))
        self.assertEqual({(one.options, one.point.causal) for _, one in run
                          if measure.wants_dram(one)}, {(("--check", "off"), False)})

    def test_numbers_of_8_bits_are_timed_at_every_length_and_with_wide_heads(self):
        eight_bits = programs.Step(**listed("05_flash_v2", "fp8", "gpu", by_name_only=True,
                                            exact_architecture=True))
        run = self.plan("--grid paper", eight_bits)
        found = [(point, one) for point, one in run
                 if one.variant == "fp8" and one.options == ("--check", "off")]
        self.assertEqual(sorted(one.point[:5] for _, one in found), sorted(
            (16384 // n, 2048 // d, n, d, causal)
            for n, d, causal in itertools.product(LENGTHS, (64, 128, 256), (False, True))))
        # At a size that is nobody else's it is measured beside nothing.
        self.assertEqual({one.point.head_dim for point, one in found if not point}, {256})
        wide = {one for _, one in run if one.point.head_dim == 256}
        self.assertEqual({one.variant for one in wide}, {"fp8"})

    def test_long_sequences(self):
        run = self.plan("--grid long")
        self.assertEqual({(p.batch, p.heads, p.head_dim) for p, _ in run}, {(1, 16, 128)})
        self.assertEqual({one.variant for p, one in run if p.seqlen == 65536},
                         {"mma", "sm90", "three_loops", "one_pass_tile", "flash_v1"})
        # A slow step by the work of a point, not by its length.
        self.assertEqual({(p.seqlen, p.causal) for p, one in run if one.variant == "naive"},
                         {(4096, False), (8192, False), (4096, True)})


class FileTest(Scratch):
    def test_a_file_is_written_whole_or_not_at_all(self):
        path, lines = self.at("out.jsonl"), [{"kind": "ceilings", "a": 1}]
        results.Results(path, None).put("ceilings", lines)
        before, file = read(path), results.Results(path, None)
        self.assertEqual(file.lines("ceilings"), lines)
        with unittest.mock.patch("os.replace", side_effect=OSError(28, "No space left")):
            with self.assertRaisesRegex(OSError, "No space left"):
                file.put("ceilings", [])
        self.assertEqual(read(path), before)
        self.assertEqual(os.listdir(self.root), ["out.jsonl"])
        files.write_whole(path, b"\xff")
        self.assertEqual(pathlib.Path(path).read_bytes(), b"\xff")
        with self.assertRaisesRegex(FileNotFoundError, "directory: .*nosuch/two'$"):
            files.write_whole(self.at("nosuch/two"), "new")

    def test_the_newest_file_by_its_own_date(self):
        def newest(**but):
            return os.path.basename(files.newest_measured(self.root, **but) or "none")

        for name, line in (("sim.jsonl", {"kind": "run", "device": "sim", "device_name": "sim"}),
                           ("traces.jsonl", {"figure": "access"})):
            self.write(name, line)
        self.assertEqual(newest(), "none")
        self.assertEqual([os.path.basename(files.file_of(gpu)) for gpu in (
            None, "NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090")],
            ["sim.jsonl", "h100.jsonl", "4090.jsonl"])
        # The first is the last to be written; of a day the last by name.
        for name, gpu, date, age, expected in (
                ("z1.jsonl", "X", "2026-03-31", 0, "z1.jsonl"),
                ("a1.jsonl", "X", "2026-04-01", 9, "a1.jsonl"),
                ("b1.jsonl", "X", "2026-04-01", 5, "b1.jsonl"),
                ("y1.jsonl", "Y", "2026-03-30", 0, "b1.jsonl")):
            path = self.write(name, {"kind": "run", "device": "gpu", "device_name": gpu,
                                     "date": date})
            os.utime(path, (1_000_000 - age, 1_000_000 - age))
            self.assertEqual(newest(), expected)
        self.assertEqual((newest(but="X"), newest(but="Y")), ("y1.jsonl", "b1.jsonl"))


if __name__ == "__main__":
    unittest.main()
