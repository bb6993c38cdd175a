"""Tests scripts/exercise: correct numbers are accepted and wrong ones are not; each solution,
applied to a copy of the rung's file and built, is accepted, and the unchanged file is not."""

import concurrent.futures
import copy
import fcntl
import functools
import os
import re
import subprocess
import sys
import unittest
from unittest import mock

from support import ROOT, Scratch, programs, scratch, write
from ladder.exercises.rebuild import compiled
from ladder.base.console import CommandError
from ladder.base.records import requested
from ladder.base.sources import read_sources
from ladder.exercises import lessons
from ladder.exercises.kinds import Change, Experiment, Mistake, Words, wrong_or_unlike
from ladder.exercises.mistakes import edited
from ladder.exercises.program import Case, Program, ProgramRun

BUILD = os.path.dirname(programs())
EXERCISES = lessons.read_exercises()
IN_CODE = {name: exercise for name, exercise in EXERCISES.items() if exercise.file}
RUNG_05 = sys.modules["05_flash_v2.exercises"]


class Listing(unittest.TestCase):
    def test_tasks_match_the_lessons(self):
        self.assertGreater(len(EXERCISES), 50)
        for name, exercise in EXERCISES.items():
            with self.subTest(name):
                self.assertTrue(all(exercise[:5]))  # title, task, answer, lesson and hints
                self.assertNotIn("$", exercise.task)  # formulas are turned into text
                self.assertNotRegex(exercise.answer, r"frac|mathrm|\^top")

    def test_each_has_its_own_name_a_task_and_a_check(self):
        names = [*(f"{source.rung[:2]}/{source.step}" for source in read_sources() if source.step),
                 *(f"{lesson[:2]}/{name}" for lesson, name, *_ in lessons.written())]
        self.assertEqual([name for name in names if names.count(name) > 1], [])
        self.assertEqual(len(lessons.of_rungs("EXERCISES")), len(EXERCISES))
        for change, said in ((Words("new"), "^05/new has a check but no task: "),
                             (None, "^05/window has a task but no check: ")):
            checks = [check for check in RUNG_05.EXERCISES if change or check.name != "window"]
            with self.subTest(said), self.assertRaisesRegex(CommandError, said), \
                    mock.patch.object(RUNG_05, "EXERCISES", checks + ([change] if change else [])):
                lessons.read_exercises()

    def test_each_edit_matches_once(self):
        for old, times in (("e", 0), ("b", 2)):
            with self.assertRaisesRegex(CommandError, f"occurs {times} times in the file:\n{old}"):
                edited("a b b\n", [("a", "c"), (old, "d")])


class Answers(unittest.TestCase):
    def test_right_numbers_are_accepted_and_wrong_ones_are_not(self):
        for name, exercise in EXERCISES.items():
            right = list(getattr(exercise.check, "answers", {}).values())
            for i, what in enumerate(getattr(exercise.check, "answers", ())):
                with self.subTest(name, what=what):
                    self.assertEqual(exercise.check.check(right)[:2], (True, "Correct."))
                    # The lesson's answer states the number, but a 0 in words. lessons_test compares
                    # these numbers with the program's.
                    if right[i]:
                        self.assertRegex(exercise.answer.replace(",", ""),
                                         rf"(?<![\d.]){right[i]}(?!\d|\.\d)", what)
                    # A number just outside the tolerance is the only one reported as wrong.
                    near = max(2 * exercise.check.tolerance, 1e-6)
                    for off, size in ((1 + near, "large"), (1 - near, "small")):
                        wrong = [*right[:i], right[i] * off or off - 1, *right[i + 1:]]
                        good, why, cases, share, *_ = exercise.check.check(wrong)
                        self.assertFalse(good)
                        self.assertRegex(why, f"{re.escape(what)}: .* is too {size}")
                        self.assertEqual([not said for _, said in cases].index(False), i)
                        self.assertEqual(share, 1 - 1 / len(right))


class Experiments(unittest.TestCase):
    def test_experiments_make_exactly_the_expected_outputs_wrong(self):
        mistake = Mistake({"--a": {"o"}}, "it shows", ())
        for wrong, seen in (({"o"}, True), ({"o", "lse"}, False), (set(), False)):
            # An error of 2 exceeds the tolerance, one of 1 does not.
            errors = {name: {"max": 1 + (name in wrong), "tolerance": 1, "nonfinite": 0}
                      for name in ("o", "lse")}
            program = mock.Mock(
                run=lambda _, errors=errors: ProgramRun(1, [{"errors": errors}], ""))
            self.assertEqual(mistake.is_seen(program), seen, wrong)


class Code(unittest.TestCase):
    """Tests exercises in code. setUpClass builds all solutions, one per core at a time."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch(cls)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            building = {(name, number): pool.submit(cls.program, exercise.file, name, str(number),
                                                    text=text)
                        for name, exercise in IN_CODE.items()
                        for number, text in enumerate(exercise.solutions())}
        cls.solved = {solution: made.result() for solution, made in building.items()}
        cls.unchanged = {exercise.file: cls.program(exercise.file) for exercise in IN_CODE.values()}
        for program in cls.unchanged.values():  # several exercises run it with the same options
            program.run = functools.lru_cache(None)(program.run)

    @classmethod
    def program(cls, file, *folder, text=""):
        """Returns a program built with the file or, if `text` is given, with that text, stored in
        `folder`. A file of an earlier build is written first, to show that it is replaced."""
        if text:
            write(cls.folder, *folder, f"{file}.made", file.split("/")[0], text="of before")
        return Program(BUILD, file, text and write(cls.folder, *folder, file, text=text))

    def test_each_solution_is_right(self):
        for (name, number), program in self.solved.items():
            with self.subTest(name, number=number):
                check = IN_CODE[name].check
                good, why, *_ = check.check(program)
                self.assertTrue(good, why)
                if isinstance(check, Experiment):
                    self.assertEqual(why, f"Observed: {check.mistakes[number].seen}.")

    def test_the_unchanged_rung_is_refused(self):
        for name, exercise in IN_CODE.items():
            with self.subTest(name):
                good, why, *_ = exercise.check.check(self.unchanged[exercise.file])
                self.assertFalse(good)
                self.assertRegex(why, {Change: r"^Not yet: --.*: it requests .* solution requests ",
                                       RUNG_05.Mask: r"query \d+ has an LSE of .* should attend to"}
                                 .get(type(exercise.check), r"^Not yet: .*\.$"))

    def test_the_verdict_names_what_is_wrong(self):
        """It names a compiler's error, traffic() unlike the count, and wrong results."""
        file = "00_naive/attention.cu"
        with self.assertRaisesRegex(CommandError, "^Not yet: it does not compile: .*error.*$"):
            self.program(file, "00/last_key", "0", text="what?")  # replaces a correct copy
        for gpu in (False, True):
            with self.assertRaisesRegex(CommandError, "^00_naive/new.cu is "
                                                      f".*yet{' for a GPU' if gpu else ''}: "):
                compiled(BUILD, "00_naive", "00_naive/new.cu", file, self.folder, gpu=gpu)
        # Records of a correct run, each changed in one place.
        for where, key, said in (("kernels", "model_read_bytes", "traffic\\(\\) predicts"),
                                 ("errors", "max", "o: max error .*, tolerance"),
                                 ("errors", "nonfinite", "o: 1 not finite, max error")):
            run = copy.deepcopy(self.unchanged[file].run("--seqlen 32 --check full"))
            asked = requested(run.records[0])
            self.assertEqual(wrong_or_unlike(run, asked), "")
            self.assertRegex(wrong_or_unlike(run, asked + 1), "the solution requests")
            part = run.records[0][where]
            (part["o"] if where == "errors" else part[0])[key] += 1
            self.assertRegex(wrong_or_unlike(run, asked), said)
        # The verdict names the options of the first wrong case, here the second of two.
        with mock.patch.object(Program, "cases", lambda _: [
                Case("a", "", "", "--a"), Case("b", "", "it counts other bytes", "--b")]):
            self.assertIn("--b: it counts other bytes", IN_CODE["03/skip"].check.check(
                self.solved["03/skip", 0])[1])


class CommandTest(Scratch):
    """Tests what the sessions quoted in commands.md cannot show."""

    def test_a_check_waits_for_another_of_the_same_copy(self):
        write(self.at("00/last_key/attention.cu"), text="what?")
        with open(write(self.at("00/last_key/attention.cu.made/.lock"), text=""), "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            with subprocess.Popen([os.path.join(ROOT, "scripts/exercise"), "--folder", self.root,
                                   "--build", BUILD, "00/last_key", "--check"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as second:
                with self.assertRaises(subprocess.TimeoutExpired):
                    second.wait(2)
                fcntl.lockf(lock, fcntl.LOCK_UN)
                self.assertIn(b"not compile", second.communicate()[0])
