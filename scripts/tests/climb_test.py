"""Climbing: the step before fails by its own row and by nothing else; the real file has all points;
what learners do to a kernel ends in bounded time, with a message that names the line.

`climb_test.py BIN` climbs three steps, and those whose file has changed since the commit before,
and runs three ready-made mistakes; with LADDER_CLIMB=all in the environment (`scripts/test climb`)
every one.
"""

import concurrent.futures
import contextlib
import io
import os
import re
import subprocess
import unittest
from unittest import mock

from base import ROOT, SCRIPTS, Scratch, expect_said, programs, read, scratch, write
from ladder.base.console import Stop
from ladder.exercises import breaks, climb, kinds

BUILD = os.path.dirname(programs())
TASKS = climb.read_tasks()
ALL = os.environ.get("LADDER_CLIMB") == "all"
TOUCHED = subprocess.run(["git", "diff", "--name-only", "HEAD^"], cwd=ROOT, check=False,
                         encoding="utf-8", capture_output=True).stdout.split()
CLIMBED = [name for name, task in TASKS.items() if ALL or task.file in TOUCHED
           or name in ("01/fragment", "05/skip", "06/bulk_add")]
BREAKS = breaks.read_breaks()
BROKEN = BREAKS if ALL else ("01/hasty", "05/tally", "06/alone")

KERNEL = r"(__global__[^{;]*\{\n)"
# What is planted at the head of each kernel, ARRAY being one of its own, or takes the place of a
# text, WAS; and what a check says of it. Which, LADDER_MISTAKE chooses while the program runs.
PLANTED = {
    "loops for ever": ("for (volatile int x = 0;; x = x + 1) {}", "had not ended after 1 seconds"),
    "reads past the end": ("(void)float(ARRAY[int64_t{1} << 40]);", r"\[1099511627776\]"),
    "writes elsewhere": ("static int* volatile none; *none = 1;", "memory that is not its own"),
    "fills its stack": ("struct F { static int f(volatile int n) { volatile char a[999]; a[n] = 1; "
                        "return f(0) + a[n]; } }; F::f(0);", "its stack is full"),
    "wants all memory": ("*(volatile char*)(::operator new(1ull << 40)) = 1;", "bad_alloc"),
    "ends the program": ("std::exit(0);", "it ends the program"),
    "prints without end": ("static char text[99999]; for (;;) if (::write(1, text, 99999) < 0) {}",
                           "more than 100 MB"),
    "does nothing": ("return;", r"max error|unwritten|nobody"),
    "forgets a barrier": ("__syncthreads();", "if (!ON) WAS", r"\S"),
    "forgets the scale": ("p.scale", "(ON ? 1 : WAS)", "max error")}
NOT_COMPILED = {
    "is no C++": (KERNEL, r"\1  what?;\n", r"{}:\d+:\d+: error: .*what"),
    "registers nothing": (r"const Register step[^;]*;", "", "registers the step, is gone"),
    "has a large array": (KERNEL, r"\1volatile char a[99999]; a[blockIdx.x] = 1;",
                          r"{}:\d+:\d+: error: the frame size")}


def planted(text):
    """A step's text with all of PLANTED."""
    kernels, plan, rest = text.partition("\nPlan plan")
    heads = ""
    for number, (was, *now, _) in enumerate(PLANTED.values()):
        on = f"(ladder::kMistake == {number})"
        if now:
            kernels = kernels.replace(was, now[0].replace("ON", on).replace("WAS", was))
        else:
            heads += f" if {on} {{ {was} }}"
    kernels = re.sub(KERNEL, lambda head: head[0] + heads.replace(
        "ARRAY", re.findall(r"Hbm<(?:const )?\w+> (\w+)", head[0])[0]), kernels)
    return ("namespace ladder { inline const int kMistake = [] { const char* m = "
            'std::getenv("LADDER_MISTAKE"); return m ? std::atoi(m) : -1; }(); }\n' + kernels
            + plan + rest)


class Tables(unittest.TestCase):
    def test_the_step_before_lacks_what_the_table_says(self):
        self.assertGreater(len(TASKS), 20)
        for name, task in TASKS.items():
            with self.subTest(name):
                by_cases = {one for one in task.check.fails if one in climb.BY_CASES}
                self.assertEqual({*climb.lacking(task, BUILD)} | by_cases, {*task.check.fails})
                page, line = re.search(r"(\S+/\w+\.md):(\d+)\.$", task.hints[0]).groups()
                self.assertNotEqual(task.task, "Since ")
                self.assertEqual(read(ROOT, page).splitlines()[int(line) - 1],
                                 f"Write it first: `scripts/exercise {name}`.")


class Judging(unittest.TestCase):
    def judged(self, right, *said):
        names = [*climb.BY_CASES, "LSE", *TASKS["05/skip"].check.fails]
        return climb.judged_by(
            TASKS["05/skip"], [climb.Check(name, name != climb.RESULTS or right == 1,
                                           right if name == climb.RESULTS else 1, name)
                               for name in names], [climb.Case("seven", one) for one in said])

    def test_points_follow_results(self):
        self.assertEqual(self.judged(0.8).share, 0.4)  # half at most, as common/TEACHING.md says
        self.assertEqual(self.judged(1).share, 1)
        self.assertEqual([kinds.Judged(False, "", share=share).points(10)
                          for share in (0.96, 1 - 4 / 5)], [9, 2])  # a float below 0.2

    def test_the_worst_shape_counts_and_sectors_where_bytes_do_not(self):
        copy = mock.MagicMock(task=TASKS["05/skip"], cases=lambda *_: [climb.Case("seven", "")])
        copy.run.return_value.records = [{"kernels": [
            {"name": "a", "requested_read_bytes": 1, "model_read_bytes": 2}]}]
        with mock.patch.multiple(
                climb, counted_by=mock.Mock(), said_of=lambda _: "", compared=lambda *_: {
                    name: [climb.Check(name, at == 1, at, f"{name} {at}") for at in (1, worst, 1)]
                    for name, worst in (("K", 0.5), ("K sectors", 0.6), ("V sectors", 0.4),
                                        ("Q", 1), ("Q sectors", 1), ("V", 1))}):
            self.assertRegex(climb.check(copy).why, r"(?s) (\d+) of \1; --heads 1 --seqlen 256: a: "
                             r"HBM .*counted 1 .*wanted: Q, V\n✗ K 0.5\n✗ V sectors 0.4\n")

    def test_a_formula_that_is_not_the_count(self):
        said = ("[====] Running 2 tests\n[ RUN      ] /skip_a\n  formula\n[  FAILED  ]\n"
                "[ RUN      ] /skip_b\n[       OK ]\n")
        copy = mock.Mock(step="skip", printed=lambda *_, **__: (1, said), ending=lambda *_: "")
        self.assertEqual(climb.Copy.cases(copy, ""), [climb.Case("a", "", False),
                                                      climb.Case("b", "")])

    def test_what_is_said_is_as_written(self):
        self.assertIn("Right: its results are, and it counts what the step counts; not checked: "
                      "the order of blocks.", self.judged(1).why)
        expect_said(self, "a climb", self.judged(0.5, *[
            f"o: max error {error}, 0 not finite" for error in (0.017881, 1e-05)],
            *"abcd", *[kinds.NOT_RUN] * 2).why + "\n")
        record = {"seqlen": 256, "kernels": [{"arrays": {"K": {"read": 0, "distinct_read": 64}}}]}
        for read_bytes, text in ((64, ""), (96, ""), (256, ", read 4 times (N/64)")):
            record["kernels"][0]["arrays"]["K"]["read"] = read_bytes
            self.assertEqual(climb.times_read(record, "K"), text)


class Climbs(unittest.TestCase):
    """All copies are built at once, by as many compilers as there are cores."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch(cls)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            cls.real = {name: pool.submit(cls.copy, "real", name, planted(TASKS[name].real.text))
                        for name in CLIMBED}
            cls.before = {name: pool.submit(cls.copy, "before", name, TASKS[name].old.text)
                          for name in (TASKS if ALL else ["01/fragment"])}

    @classmethod
    def copy(cls, of, name, text):
        return climb.Copy(BUILD, TASKS[name], write(cls.folder, of, TASKS[name].file, text=text))

    def test_the_step_before_has_no_points(self):
        for name, copy in self.before.items():
            with self.subTest(name):
                judged = climb.check(copy.result())
                self.assertEqual((judged.right, judged.share), (False, 0), judged.why)
                self.assertEqual({check for check, held, _ in judged.checks if not held},
                                 {*TASKS[name].check.fails}, judged.why)

    def test_the_real_step_has_all(self):
        for name, copy in self.real.items():
            with self.subTest(name):
                judged = climb.check(copy.result())
                self.assertTrue(judged.right, judged.why)

    @unittest.skipUnless(ALL, "not run here: scripts/test climb compiles all blanks")
    def test_blanks_compile_and_are_not_right(self):
        for name, task in TASKS.items():
            if task.check.blanks:
                with self.subTest(name):
                    judged = climb.check(self.copy("blanks", name, task.blanks()))
                    self.assertFalse(judged.right)

    @mock.patch.object(kinds, "SECONDS", 1)
    def test_what_learners_do_ends_and_names_its_line(self):
        for name in CLIMBED if ALL else ["05/skip"]:
            copy, text = self.real[name].result(), TASKS[name].real.text
            file = os.path.basename(copy.copy)
            for number, (what, (was, *now, said)) in enumerate(PLANTED.items()):
                copy.stopped = False
                if now and was not in text:
                    continue
                with self.subTest(name, what=what), \
                        mock.patch.dict(os.environ, LADDER_MISTAKE=str(number)):
                    wrong = " ".join(case.said for case in copy.cases(
                        f"Sim.*/{copy.step}_long_causal"
                        + f":Schedules.*/{copy.step}" * (what == "forgets a barrier")))
                    self.assertRegex(wrong, said)
                    if not re.search(r"max error|ends the program|MB|\\S", said):
                        self.assertRegex(wrong, rf"\({file}:\d+\)")
            for what, (was, now, said) in NOT_COMPILED.items():
                if ALL or what != "has a large array":  # which a compiler says last of all
                    with self.subTest(name, what=what), \
                            self.assertRaisesRegex(Stop, said.format(re.escape(file))):
                        self.copy("wrong", name, re.sub(was, now, text, count=1))


class Breaks(Scratch):
    """Ready-made mistakes: what is said of each in a line is what its runs come to; its line is
    taken, no other is; and nothing gives it away before."""

    def exercise(self, *words, status=0):
        done = self.run_it(os.path.join(SCRIPTS, "exercise"), "--break", *words, "--build", BUILD,
                           "--folder", self.root, status=status)
        return done.stderr if status else done.stdout

    @mock.patch.object(breaks.Broken, "seen", lambda *_: breaks.Seen("", "", []))
    def takes(self, name, line):
        with contextlib.suppress(Stop), contextlib.redirect_stdout(io.StringIO()):
            return breaks.show(name, line, BUILD, self.root, "") == 0

    def test_each_shows_what_is_said_of_it(self):
        """And the sim's own words, and why, only when the line has been found."""
        def seen_of(name):
            broken = BREAKS[name]
            return broken.seen(BUILD, self.write(f"{name}/{os.path.basename(broken.path)}",
                                                 "\n".join(broken.text)))

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, seen in zip(BROKEN, pool.map(seen_of, BROKEN)):
                with self.subTest(name):
                    mistake, found = BREAKS[name].mistake, BREAKS[name].found(seen)
                    self.assertEqual(seen.line, mistake.shows)
                    faults = re.findall("The sim says: (.*)", found)
                    self.assertEqual("no access is at fault" in faults[0],
                                     not re.search("a fault|never ends", mistake.shows))
                    for one in (mistake.why, *faults):
                        self.assertIn(one, found)
                        self.assertNotIn(one, seen.text)

    def test_lines_and_the_list(self):
        known = self.exercise()
        self.assertGreaterEqual(len(BREAKS), 15)
        for name, broken in BREAKS.items():
            with self.subTest(name):
                self.assertRegex(known, rf"(?m)^{name} +{re.escape(broken.mistake.shows)}$")
                lines, text = broken.lines, broken.text
                missing = len(text) < len(broken.old)
                self.assertEqual(len(lines), 2 if missing or name == "05/early" else 1)
                self.assertEqual([*text[:lines[0] - 1 + missing], *broken.was,
                                  *text[lines[-1] - missing:]], broken.old)
                self.assertEqual([line for line in range(lines[0] - 1, lines[-1] + 2)
                                  if self.takes(name, line)], [*lines])
        self.assertIn("is not it", self.exercise("00/future", "--answer", "0", status=1))
        right = r"Right\.\n-.*sees\(i, j\).*\n\+.*sees\(i, j \+ 1\)"
        self.assertRegex(self.exercise("00/future", "--answer", "34"), right)
        before = self.exercise("00/future")
        self.assertIn(f"\n{BREAKS['00/future'].mistake.shows}.\n", before)
        self.assertNotRegex(before, right)
        self.assertIn("no mistake 05/none", self.exercise("05/none", status=2))


if __name__ == "__main__":
    unittest.main()
