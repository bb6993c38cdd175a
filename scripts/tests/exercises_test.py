"""Tests of scripts/exercise: each exercise of the lessons is there; right numbers are taken and
wrong ones are not; each solution, applied to a copy and built, is right, and the rung as
it is, is not."""

import concurrent.futures
import copy
import os
import re
import sys
import tempfile
import types
import unittest

from base import ROOT, Scratch, argument, read, write
from ladder.base.console import Stop
from ladder.base.sources import Source, read_sources
from ladder.exercises.every import EXERCISES
from ladder.exercises.kinds import CASES, Change, Experiment, Mask, Numbers, patches
from ladder.exercises.lab import Lab, patch_text
from ladder.exercises.lessons import written

BIN = os.path.join(ROOT, "build/bin")
IN_CODE = {name: exercise for name, exercise in EXERCISES.items() if exercise.file}


def patched(text, patch):
    """A text after a unified diff. Hunks are found by their lines, wherever these stand."""
    for hunk in re.split(r"^@@.*\n", patch, flags=re.MULTILINE)[1:]:
        old, new = ("".join(line[1:] + "\n" for line in hunk.splitlines() if line[0] in marks)
                    for marks in (" -", " +"))
        if text.count(old) != 1:
            raise ValueError(f"lines stand {text.count(old)} times in the file:\n{old}")
        text = text.replace(old, new)
    return text


class Listing(unittest.TestCase):
    def test_the_lessons_and_the_checks_have_the_same_exercises(self):
        tasks = written()
        self.assertEqual(set(tasks), set(EXERCISES))
        self.assertEqual(set(tasks) & {f"{file.rung[:2]}/{file.step}" for file in read_sources()},
                         set(), "a step is called so")
        for name, task in tasks.items():
            with self.subTest(name):
                self.assertTrue(task.title and task.task and task.answer and task.hints)
                self.assertNotIn("$", task.task)  # formulas are turned into text
                self.assertNotRegex(task.answer, r"frac|mathrm|\^top")


class Answers(unittest.TestCase):
    def test_right_numbers_are_taken_and_wrong_ones_are_not(self):
        tasks = written()
        for name, exercise in EXERCISES.items():
            if isinstance(exercise, Numbers):
                with self.subTest(name):
                    self.check(exercise, tasks[name].answer)

    def check(self, exercise, answer):
        right = list(exercise.answers.values())
        self.assertEqual(exercise.check(None, right), (True, "Right."))
        for i, what in enumerate(exercise.answers):
            # It stands in the lesson, whose numbers lessons_test compares with the programs'; 0 is
            # said in words.
            if right[i]:
                self.assertRegex(answer.replace(",", ""),
                                 rf"(?<![\d.]){right[i]}(?!\d|\.\d)", what)
            for off, size in ((1.1, "large"), (0.9, "small")):
                wrong = [*right[:i], right[i] * off if right[i] else off - 1, *right[i + 1:]]
                good, why = exercise.check(None, wrong)
                self.assertFalse(good)
                self.assertRegex(why, f"{re.escape(what)}: .* is too {size}")


class Code(unittest.TestCase):
    """All solutions are built at once, by as many compilers as there are cores, in setUpClass."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        jobs = [(exercise.file, name, patch) for name, exercise in IN_CODE.items()
                for patch in patches(name, exercise)]

        def build(job):
            file, name, patch = job
            lab = Lab(os.path.dirname(BIN), os.path.join(folder.name, patch))
            write(lab.scratch(name, file), text=patched(read(ROOT, file), patch_text(patch)))
            return lab, lab.compile(name, file)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            cls.solved = {patch: made for (*_, patch), made in zip(jobs, pool.map(build, jobs))}
        cls.unchanged = {}
        for file in {file for file, *_ in jobs}:
            lab = Lab(os.path.dirname(BIN), os.path.join(folder.name, "unchanged", file))
            cls.unchanged[file] = lab, [os.path.join(BIN, file.split(os.sep)[0]), "--step",
                                        Source(file).step]

    def test_each_solution_is_right(self):
        for name, exercise in IN_CODE.items():
            for patch in patches(name, exercise):
                with self.subTest(patch):
                    lab, program = self.solved[patch]
                    good, why = exercise.check(lab, program)
                    self.assertTrue(good, why)
                    if isinstance(exercise, Experiment):
                        self.assertEqual(why, f"Seen: {exercise.outcomes[patch][1]}.")

    def test_the_rung_as_it_is_is_not(self):
        for name, exercise in IN_CODE.items():
            with self.subTest(name):
                lab, program = self.unchanged[exercise.file]
                good, why = exercise.check(lab, program)
                self.assertFalse(good)
                self.assertRegex(why, r"^Not yet: .*\.$")
                if isinstance(exercise, Change):
                    self.assertRegex(why, r"--heads .*predicted are")
                if isinstance(exercise, Mask):
                    self.assertRegex(why, r"query \d+ has an LSE of .* should see have")

    def test_what_is_wrong_is_named(self):
        """A formula that is not the kernel's; results that are wrong; what does not compile."""
        lab, _ = self.solved["00.last_key"]
        path = lab.scratch("00/last_key", IN_CODE["00/last_key"].file)
        write(path, text=read(path).replace("T(o)", "T(o"))
        with self.assertRaisesRegex(Stop, "^Not yet: it does not compile: .*error.*$"):
            lab.compile("00/last_key", IN_CODE["00/last_key"].file)
        with self.assertRaisesRegex(Stop, "^00_naive/new.cu is not built yet: scripts/run"):
            lab.compile("00/last_key", "00_naive/new.cu")
        # Of a program's records, each changed in one place.
        lab, program = self.unchanged[IN_CODE["00/last_key"].file]
        for where, name, said in (("kernels", "model_read_bytes", "the rung's formula says"),
                                  ("errors", "max", "o is wrong: its error is"),
                                  ("errors", "nonfinite", "o is wrong: its error is")):
            with self.subTest(said):
                run = copy.deepcopy(lab.start(program, [*CASES[0].split(), "--check", "full"]))
                of = run.records[0][where]
                (of["o"] if where == "errors" else of[0])[name] += 1
                other = types.SimpleNamespace(start=lambda *_: run)
                good, why = Change("", []).check(other, program)
                self.assertFalse(good)
                self.assertRegex(why, f"^Not yet: {CASES[0]}: .*{said}.*$")

    def test_what_is_wrong_with_a_mask_is_named(self):
        def causal(j, last):
            return True

        for of, sees, predicted, said in (
                (self.solved["05.window"], lambda j, last: j > last - 97, 39_488,
                 "query 96 has an LSE of"),
                (self.unchanged["05_flash_v2/attention.cu"], causal, 51_776, "Right"),
                # It reads the tiles that no row of a block sees, too.
                (self.unchanged["05_flash_v2/rows.cu"], causal, 70_208,
                 "it requests 104,000 bytes; predicted are 70,208")):
            self.assertIn(said, Mask("", sees, [predicted]).check(*of)[1])


class Command(Scratch):
    def exercise(self, *words, status=0):
        done = self.run_it(os.path.join(ROOT, "scripts/exercise"), *words, "--folder", self.root,
                           "--build", os.path.dirname(BIN), status=status)
        return done.stdout if status in (0, 1) else done.stderr

    def test_a_task_and_its_copy(self):
        path = self.at("03/skip/03_online_softmax/attention.cu")
        self.assertIn("03/skip/03_online_softmax/attention.cu", self.exercise("03/skip"))
        write(path, text=read(path) + "// mine\n")
        self.exercise("03/skip")  # keeps what the reader has
        self.assertIn("// mine", read(path))
        self.exercise("03/skip", "--restart")
        self.assertEqual(read(path), read(ROOT, "03_online_softmax/attention.cu"))

    def test_hints_one_by_one(self):
        hints = written()["01/bytes"].hints
        for shown in (1, 2, 3, 3):
            out = self.exercise("--hint", "01/bytes")
            self.assertEqual([hint in out for hint in hints], [i < shown for i in range(3)])
        self.exercise("01/bytes", "--restart")
        self.assertNotIn(hints[1], self.exercise("01/bytes", "--hint"))

    def test_numbers_and_a_solution(self):
        for words, status, said in ((["498,000", "240000"], 0, "Right.\n"),
                                    (["498,000", "1"], 1, "Not yet: bytes of `mma`: 1 is too ")):
            self.assertIn(said, self.exercise("01/bytes", *words, status=status))
        self.assertIn("4,944,000", self.exercise("00/bytes", "--solution"))
        self.assertEqual(
            self.exercise("01/barriers", "--solution").count("\n-    __syncthreads();"), 2)

    def test_bad_usage(self):
        for words, why in (("3/bytes", "no exercise 3/bytes, but 03/bytes: "),
                           ("01/bytes 5", "asks for 2 numbers"),
                           ("00/bytes nan", "'nan' is not a number"),
                           ("00/last_key 5", "asks for code, not for a number"),
                           ("00/bytes --check", "there is nothing to build"),
                           ("00/last_key --check", "there is no copy yet"),
                           ("02/bound --check", "an answer in words"),
                           ("--hint", "which exercise?"),
                           ("00/bytes 5 --hint", "give numbers, or one of")):
            with self.subTest(words):
                self.assertIn(why, self.exercise(*words.split(), status=2))


if __name__ == "__main__":
    BIN = argument(BIN)
    if not os.path.exists(os.path.join(BIN, "00_naive")):
        sys.exit(f"{sys.argv[0]}: no programs in {BIN}; give the folder that has them")
    unittest.main()
