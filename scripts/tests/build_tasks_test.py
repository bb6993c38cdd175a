"""Tests build tasks and bug hunts, as the rungs' exercises.py list them. In a build task, a copy of
the preceding step fails exactly the listed checks and gets no points, and the real file gets all of
them. Copies with planted mistakes end in bounded time, and the test suite finds the mistakes.

`python3 scripts/tests build_tasks BIN` checks four steps and those whose file the last commit
changed, and runs three bug hunts; with LADDER_BUILD_TASKS=all in the environment, which
`scripts/test build_tasks` sets, it checks and runs all."""

import collections
import concurrent.futures
import contextlib
import io
import os
import re
import subprocess
import unittest
from unittest import mock

from support import ROOT, SCRIPTS, Scratch, expect_output, programs, read, scratch, write
from ladder.base.console import CommandError
from ladder.base.sources import included
from ladder.exercises import bug_hunts, build_tasks, kinds, lessons, mistakes, program
from ladder.trace.read import Trace

BUILD = os.path.dirname(programs())
TASKS = build_tasks.read_tasks()
ALL = os.environ.get("LADDER_BUILD_TASKS") == "all"
# Paths of files that the last commit or uncommitted edits change.
TOUCHED = subprocess.run(["git", "diff", "--name-only", "HEAD^"], cwd=ROOT, check=False,
                         encoding="utf-8", capture_output=True).stdout.split()
CHECKED = [name for name, task in TASKS.items() if ALL or task.file in TOUCHED
           or name in ("01/fragment", "05/skip", "05/flat", "06/bulk_add")]
BUG_HUNTS = bug_hunts.read_bug_hunts()
BROKEN = BUG_HUNTS if ALL else ("01/hasty", "05/tally", "06/alone")
ATTEMPTS = [one for _, one in lessons.of_rungs("ATTEMPTS")]

# ---- mistakes for every kernel, as in a rung's PLANTED; ARRAY names one of its arrays ----

HEAD = re.compile(r"__global__[^{;]*\{\n")
BY_ORDER, FORMULA = "depending on thread order", "formula"
OF_ANY = [
    (HEAD, "WAS if (ON) for (volatile int x = 0;; x = x + 1) {}", "did not end within 2 seconds"),
    (HEAD, "WAS if (ON) (void)float(ARRAY[int64_t{1} << 40]);", r"\[1099511627776\]"),
    (HEAD, "WAS if (ON) { static int* volatile none; *none = 1; }", "memory that is not its own"),
    (HEAD, "WAS if (ON) std::exit(0);", "it ends the program"),
    (HEAD, "WAS if (ON) return;", "max error|unwritten|nobody"),
    (re.compile(r"__syncthreads\(\);"), "if (!ON) WAS", BY_ORDER),
    (re.compile(r"p\.scale"), "(ON ? 1 : WAS)", "max error")]
OF_SOURCES = collections.defaultdict(list)
for rung, (file, *planted_there) in lessons.of_rungs("PLANTED"):
    OF_SOURCES[f"{rung}/{file}"].append(planted_there)


def mistakes_in(path):
    """Returns (text or pattern, replacement, pattern of the report) for each mistake in a file."""
    text = read(ROOT, path)
    return [*(one for one in OF_ANY if one[0].search(text)), *OF_SOURCES.get(path, ())]


def planted(path):
    """Returns a step's text with its own headers inlined and all mistakes planted; the environment
    variable LADDER_MISTAKE selects the one that a run makes, by its index in mistakes_in(path)."""
    text = read(ROOT, path)
    for header, inlined in reversed(included(path, text).items()):
        line = f'#include "{os.path.basename(header)}"\n'
        before, _, after = text.partition(line)
        text = before + inlined + after.replace(line, "")
    for number, (was, now, _) in enumerate(mistakes_in(path)):
        def changed(found, now=now, number=number):
            array = re.search(r"Hbm<(?:const )?\w+> (\w+)", found[0])
            name = array[1] if array else "kept.dQ_sum" if "Kept kept" in found[0] else ""
            return (now.replace("ON", f"(ladder::kMistake == {number})")
                    .replace("WAS", found[0]).replace("ARRAY", name))
        alone = isinstance(was, str)  # replaced once, anywhere; a pattern, in all kernels
        end = len(text if alone else text.partition("\nPlan plan(")[0])  # the end of the kernels
        text = re.sub(re.escape(was) if alone else was, changed, text[:end], count=int(alone)
                      ) + text[end:]
    return """#include <cstdlib>
namespace ladder {
inline const char* const kChosen = std::getenv("LADDER_MISTAKE");
inline const int kMistake = kChosen ? std::atoi(kChosen) : -1;
}
""" + text


class TargetsTest(unittest.TestCase):
    def test_the_preceding_step_fails_the_listed_checks(self):
        self.assertGreater(len(TASKS), 20)
        for name, task in TASKS.items():
            with self.subTest(name):
                by_cases = {one for one in task.check.fails if one in build_tasks.BY_CASES}
                self.assertEqual(build_tasks.lacking(task, BUILD) | by_cases, {*task.check.fails})
                page, line = re.search(r"(\S+/\w+\.md):(\d+)\.$", task.hints[0]).groups()
                self.assertNotEqual(task.task, "Since ")
                for hunk in [hint for hint in task.hints[2:] if hint.startswith("\n")]:
                    self.assertRegex(hunk, r"(?m)^[-+] *[^/ \n]")  # changes more than comments
                    self.assertNotIn("const Register", hunk)
                self.assertGreater(len(task.hints), 2)
                self.assertEqual(read(ROOT, page).splitlines()[int(line) - 1],
                                 f"Write it first: `scripts/exercise {name}`.")


class Judging(unittest.TestCase):
    def verdict(self, right, *said):
        """Returns the verdict on a copy of 05/skip that passes all checks, except that only the
        fraction `right` of its results is correct. `said` holds the messages of wrong cases."""
        names = [*build_tasks.BY_CASES, "LSE", *TASKS["05/skip"].lacks]
        return build_tasks.verdict_of(
            TASKS["05/skip"], [build_tasks.Check(name, name != build_tasks.RESULTS or right == 1,
                                                 right if name == build_tasks.RESULTS else 1, name)
                               for name in names], [program.Case("seven", one) for one in said])

    def test_points_follow_results(self):
        self.assertEqual(self.verdict(0.8).share, 0.4)  # halved, as common/TEACHING.md says
        self.assertEqual(self.verdict(1).share, 1)
        self.assertEqual([kinds.Verdict(False, "", share=share).points(10)
                          for share in (0.96, 1 - 4 / 5)], [9, 2])  # as a float, below 0.2

    def test_output_of_the_suite_is_read(self):
        """A case whose only failure is a traffic() that differs from the count has correct results,
        any other failed case wrong ones; a case that did not end or begin is listed too."""
        said = ("[====] Running 5 tests\n[ RUN      ] A/skip_a\n  formula\n[  FAILED  ] A/skip_a, "
                "where GetParam() = 05 --step skip --batch 1 (2 ms)\n[ RUN      ] A/skip_b\n"
                "[       OK ] A/skip_b (1 ms)\n[ RUN      ] A/skip_c\nelse\n[  FAILED  ] A/skip_c\n"
                "[ RUN      ] A/skip_d\n")
        copy = mock.Mock(step="skip", printed=lambda *_, **__: (0, said))
        self.assertEqual(program.Program.some(copy, "", ""), [
            program.Case("a", "", program.UNLIKE, "--batch 1"),
            program.Case("b", ""), program.Case("c", "it fails"),
            program.Case("d", "it ends the program"), program.Case("another", program.NOT_RUN)])

    def test_the_table_says_what_falls_what_may_rise_and_the_trade(self):
        self.assertRegex(build_tasks.targets(TASKS["05/swap"], BUILD), (
            r"(?s)must fall: Q bytes .* 230,400 → 76,800\n.*may rise: K bytes +32,768 → 131,072 .*"
            "The trade: for whole tiles, 196,608 more bytes of K and V buy 266,240 fewer bytes of "
            r"O_fp32, Q, l, m; fewer workspace_bytes\."))

    def test_verdicts_match_the_expected_output(self):
        self.assertIn("Correct, 10 of 10 points: all results are correct, and the counts are those "
                      "of the step, or better.", self.verdict(1).why)
        expect_output(self, "a build task", self.verdict(0.5, *"aabcd").why + "\n")


class BuildTasks(unittest.TestCase):
    """Tests copies of steps. setUpClass builds them in parallel, one per core at a time."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch(cls)
        real = {TASKS[name].file: TASKS[name] for name in CHECKED}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            cls.real = {path: pool.submit(cls.copy, "real", real.get(path), path,
                                          planted(path))
                        for path in {**real, **OF_SOURCES}}
            cls.before = {name: pool.submit(cls.copy, "before", TASKS[name], TASKS[name].file,
                                            TASKS[name].start())
                          for name in (TASKS if ALL else ["01/fragment", "05/skip", "05/flat"])}

    @classmethod
    def copy(cls, of, task, path, text):
        """Builds the text in place of the source `path`, as an answer to the task if there is one.
        The copy is stored in the folder `of`. Returns a Program."""
        copy = write(cls.folder, of, path, text=text)
        return build_tasks.built(task, BUILD, copy) if task else program.Program(BUILD, path, copy)

    def test_the_preceding_step_has_no_points(self):
        for name, copy in self.before.items():
            with self.subTest(name):
                verdict = build_tasks.check(TASKS[name], copy.result())
                self.assertEqual((verdict.right, verdict.share), (False, 0), verdict.why)
                self.assertEqual({check for check, held, _ in verdict.checks if not held},
                                 {*TASKS[name].lacks}, verdict.why)

    def test_the_real_step_has_all_points(self):
        for name in CHECKED:
            with self.subTest(name):
                verdict = build_tasks.check(TASKS[name], self.real[TASKS[name].file].result())
                self.assertTrue(verdict.right, verdict.why)

    def test_attempts_are_judged_by_what_they_do(self):
        """Code that bypasses the accessors or works on the host is refused; sound kernels pass."""
        for number, (name, file, edits, right, said) in enumerate(
                ATTEMPTS if ALL else ATTEMPTS[::3]):
            with self.subTest(name, said=said):
                task = TASKS[name]
                text = mistakes.edited(read(ROOT, file),
                                       [(re.compile(old), new) for old, new in edits])
                verdict = build_tasks.check(task, self.copy(f"{number}", task, task.file, text))
                self.assertEqual(verdict.right, right, verdict.why)
                self.assertRegex(verdict.why, said)

    def test_the_explorer_shows_the_copy(self):
        copy = self.real[TASKS["05/skip"].file].result()
        trace, *_ = Trace.of(copy.path, "--step skip --device sim --seqlen 32 --heads 1".split())
        self.assertIn(os.path.realpath(copy.copy), {
            os.path.realpath(os.path.join(ROOT, event.file)) for event in trace.events})
        page = os.path.join(self.folder, "page.html")
        subprocess.run([os.path.join(SCRIPTS, "explore"), "--bin", copy.folder, "05/skip",
                        "--seqlen", "32", "--heads", "1", "--no-open", "--out", page], check=True,
                       capture_output=True)
        self.assertTrue(os.path.exists(page))

    @unittest.skipUnless(ALL, "not run here: scripts/test build_tasks compiles all blanks")
    def test_blanks_compile_and_fail(self):
        for name, task in TASKS.items():
            if task.check.blanks:
                with self.subTest(name):
                    verdict = build_tasks.check(
                        task, self.copy("blanks", task, task.file, task.blanks()))
                    self.assertFalse(verdict.right)

    @mock.patch.object(program, "SECONDS", 2)
    def test_planted_mistakes_are_found(self):
        for path in self.real if ALL else [TASKS["05/skip"].file, *OF_SOURCES]:
            copy = self.real[path].result()
            cases = ":".join(f"Sim.*/{copy.step}_{case}" for case in (
                "ragged_grouped", "long_causal", "keys_before", "values_that_grow"))
            for number, (_, now, said) in enumerate(
                    [("", "", ""), *mistakes_in(path)], -1):
                tests = f"Schedules.*/{copy.step}" if said == BY_ORDER else cases
                copy.stopped = False
                with self.subTest(path, mistake=now, number=number), \
                        mock.patch.dict(os.environ, LADDER_MISTAKE=str(number)):
                    found = copy.some(copy.suite, tests)
                    wrong = " ".join(case.said or FORMULA * bool(case.uncounted)
                                     for case in found)
                    self.assertRegex(wrong, r"\S" if said == BY_ORDER else said or "^ *$")

    def test_copies_that_are_no_steps_are_refused(self):
        for _, (name, was, now, said) in lessons.of_rungs("REFUSED"):
            with self.subTest(said), self.assertRaisesRegex(CommandError, said):
                task = TASKS[name]
                self.copy("wrong", task, task.file, re.sub(was, now, task.real.text, count=1))


class BugHunts(Scratch):
    """A bug hunt's runs show its listed symptoms; only the mistake's line is accepted; and nothing
    reveals the mistake before the reader has named that line."""

    def exercise(self, *words):
        return self.run_it(os.path.join(SCRIPTS, "exercise"), "--break", *words, "--build", BUILD,
                           "--folder", self.root).stdout

    @mock.patch.object(bug_hunts.MutatedSource, "seen", lambda *_: bug_hunts.Observed("", "", []))
    def takes(self, name, line):
        """Returns whether this line is accepted as the answer, without running the copy."""
        with contextlib.suppress(CommandError), contextlib.redirect_stdout(io.StringIO()):
            return bug_hunts.show(name, line, BUILD, self.root, "") == 0

    def test_each_bug_hunt_shows_its_symptoms(self):
        """The simulator's message and the explanation appear only once the line has been found."""
        def seen_of(name):
            broken = BUG_HUNTS[name]
            return broken.seen(BUILD, self.write(f"{name}/{os.path.basename(broken.path)}",
                                                 "\n".join(broken.text)))

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, seen in zip(BROKEN, pool.map(seen_of, BROKEN)):
                if ALL:  # the test suite finds it too
                    copy = os.path.join(self.root, name, os.path.basename(BUG_HUNTS[name].path))
                    found = program.Program(BUILD, BUG_HUNTS[name].path, copy).cases()
                    self.assertTrue(any(case.said for case in found), name)
                with self.subTest(name):
                    mistake, found = BUG_HUNTS[name].mistake, BUG_HUNTS[name].found(seen)
                    self.assertEqual(seen.line, mistake.shows)
                    faults = re.findall("The simulator says: (.*)", found)
                    self.assertEqual("no access is at fault" in faults[0],
                                     not re.search("a fault|never ends", mistake.shows))
                    for one in (mistake.why, *faults):
                        self.assertIn(one, found)
                        self.assertNotIn(one, seen.text)

    def test_answers_and_the_list(self):
        known = self.exercise()
        self.assertGreaterEqual(len(BUG_HUNTS), 15)
        for name, broken in BUG_HUNTS.items():
            with self.subTest(name):
                self.assertRegex(known, rf"(?m)^{name} +{re.escape(broken.mistake.shows)}$")
                lines, text = broken.lines, broken.text
                missing = len(text) < len(broken.old)
                self.assertEqual(len(lines), 2 if missing or name == "05/early" else 1)
                self.assertEqual([*text[:lines[0] - 1 + missing], *broken.was,
                                  *text[lines[-1] - missing:]], broken.old)
                self.assertEqual([line for line in range(lines[0] - 1, lines[-1] + 2)
                                  if self.takes(name, line)], [*lines])
                hint = self.exercise(name, "--hint")
                first, last = map(int, re.findall(r"\d+", hint.partition("lines")[2]))
                self.assertTrue(first <= lines[0] <= last, hint)
