"""Build tasks: the step before fails by its own row and by nothing else; the real file has all
points; mistakes planted in kernels end in bounded time, and the suite of tests finds them.

`python3 scripts/tests build_tasks BIN` checks three steps, and those whose file has changed since
the commit before, and runs three bug hunts; with LADDER_BUILD_TASKS=all in the environment
(`scripts/test build_tasks`) every one.
"""

import concurrent.futures
import contextlib
import io
import json
import os
import re
import subprocess
import unittest
from unittest import mock

from support import ROOT, SCRIPTS, Scratch, expect_output, programs, read, scratch, write
from ladder.base.console import CommandError
from ladder.exercises import bug_hunts, build_tasks, kinds, mistakes, program
from ladder.trace.read import Trace

BUILD = os.path.dirname(programs())
TASKS = build_tasks.read_tasks()
ALL = os.environ.get("LADDER_BUILD_TASKS") == "all"
TOUCHED = subprocess.run(["git", "diff", "--name-only", "HEAD^"], cwd=ROOT, check=False,
                         encoding="utf-8", capture_output=True).stdout.split()
CHECKED = [name for name, task in TASKS.items() if ALL or task.file in TOUCHED
           or name in ("01/fragment", "05/skip", "06/bulk_add")]
BUG_HUNTS = bug_hunts.read_bug_hunts()
BROKEN = BUG_HUNTS if ALL else ("01/hasty", "05/tally", "06/alone")

# ---- what is refused before it runs: (where in 05/skip, what takes its place, what is said) ----

HEAD, FIRST = mistakes.HEAD, re.compile(r"(?s)(namespace \{\n)")
WHOLE = re.compile(r"(?s)\A.*\Z")
REGISTERS = '\n/*\nconst Register step{{\n    .rung = "05",\n    .name = "rows",\n}};\n*/\n'
REFUSED = {
    "includes a step": (WHOLE, f'#  include "../05_flash_v2/rows.cu"{REGISTERS}',
                        "includes 05_flash_v2/rows.cu, another step's file"),
    "includes it by a macro": (WHOLE, '#define STEP "../05_flash_v2/rows.cu"\n#include STEP'
                               + REGISTERS, "includes 05_flash_v2/rows.cu, another step's file"),
    "has __shared__": (HEAD, r"\g<0>  __shared__ float x[32];\n",
                       "line .* has __shared__.*take<T>"),
    "resets a count": (HEAD, r"\g<0>  this_block->counts.barriers = 0;\n", "has this_block"),
    "counts for itself": (HEAD, r"\g<0>  count_flops(-16);\n", "has count_flops"),
    "runs another step": (FIRST, r"\1const Step& other() { return all_steps()[0]; }\n",
                          "has all_steps"),
    "runs another program": (FIRST, r'\1const int before = system("true");\n', "has system"),
    "has memory of the host": (HEAD, r"\g<0>  std::vector<float> scores(p.N_kv);\n",
                               "has std::vector: memory that nobody counts"),
    "has an array of the device": (FIRST, r"\1__device__ float S_all[1 << 24];\n",
                                   "has __device__ float S_all.*nobody counts"),
    "reads past the accessor": (HEAD, r"\g<0>  float(K.data()[0]);\n", r"has \.data\(\)"),
    "is no C++": (HEAD, r"\g<0>  what?;\n", r"{}:\d+:\d+: error: .*what"),
    "registers nothing": (re.compile(r"const Register step[^;]*;"), "",
                          "registers the step, is gone")}


# ---- what a reader may hand in: (the task, the file, edits of it, whether it is right, what the
# verdict says) ----

HOST = """  with_type(p, [&]<class T>() {
    static_cast<T*>(a["O"].data)[0] = T(float(static_cast<const T*>(a["Q"].data)[0]));
  });
"""
ATTEMPTS = [
    ("03/one_pass", "03_online_softmax/two_pass.cu", [
        (r"Hbm<const T> K, Hbm<const T> V", "const T* K, const T* V"),
        (r"read_chunk\((K \+ \(k_row \+ 8 \* c\))\)", r"\1"),
        (r"read_chunk\((V \+ \(v_row \+ 8 \* c\))\)", r"\1"),
        (r', K = hbm<const T>\(a\["K"\]\), V = hbm<const T>\(a\["V"\]\);',
         '; const auto K = static_cast<const T*>(a["K"].data), '
         'V = static_cast<const T*>(a["V"].data);'),
        (r', \{"K", 2 \* k, 0\}, \{"V", k, 0\}', "")], False,
     "K is in HBM: host code cannot touch it, and a kernel only through Hbm"),
    ("01/tile", "01_tiled_matmul/tile.cu", [
        (r"void forward\((?:.|\n)*?\n}\n",
         f"void forward(const Problem& p, const Plan&, const Arrays& a) {{\n{HOST}}}\n"),
        (r"Traffic traffic\((?:.|\n)*?\n}\n",
         "Traffic traffic(const Problem&, const Plan&) { return {}; }\n")], False,
     "Q is in HBM: host code cannot touch it"),
    ("01/tile", "00_naive/attention.cu", [
        (r"namespace \{\n", 'namespace {\nstruct Print {\n  Print() {\n'
         '    std::puts("{\\\\"rung\\\\": \\\\"01_tiled_matmul\\\\", \\\\"pass\\\\": true}");\n'
         "    std::fflush(stdout), std::_Exit(0);\n  }\n} before_main;\n")], False,
     "results right in 0 of"),
    ("03/one_pass", "03_online_softmax/two_pass.cu", [  # no accessor counts a thread's own array
        (r"o\[Dh\] = \{\};\n", "o[Dh] = {}, scores[4096];\n"),
        (r"const float s = logit\(j\);", "const float s = scores[j] = logit(j);"),
        (r"expf\(logit\(j\) - m\)", "expf(scores[j] - m)"),
        (r'\{"K", 2 \* k, 0\}', '{"K", k, 0}')], False, "exp_count: 196,608; .* 131,072"),
    ("05/skip", "05_flash_v2/rows.cu", [  # the shapes that are checked are not all
        (r"const int keys = p\.N_kv;", "const int keys = p.N == 300 ? p.keys(min(block_row + Br, "
                                      "p.N) - 1) : p.N_kv;"),
        (r"  const int64_t k = .*\n", ""), (r"k \* blocks", "heads * rows * p.d * kIoBytes"),
        (r"const int64_t blocks = .*;", "int64_t rows = 0;\n  for (int row = 0; row < p.N; row += "
         "plan.block_q)\n    rows += p.N == 300 ? p.keys(std::min(row + plan.block_q, p.N) - 1) : "
         "p.N_kv;")], False,
     r"requested_bytes goes from 657,408 .* to 657,408"),
    ("05/skip", "05_flash_v2/skip.cu", [(r', \{"LSE", 0, heads \* p\.N \* 4\}', "")], False,
     "traffic.. says what is counted in 0 of .*attention: HBM writes"),
    ("05/skip", "05_flash_v2/skip.cu", [  # a reader looks for a mistake
        ("(?s)\\A", "#include <cstdio>\n"),
        ("  SharedMemory smem;\n", '  if (threadIdx.x == 0) std::printf("{x: %d} ", blockIdx.x);\n'
                                   "  SharedMemory smem;\n")], True, "its results are right"),
    ("05/large_tiles", "05_flash_v2/attention.cu", [
        (r"(kTiles\[\] = )\{.*\};", r"\1{{128, 128, 96}, {256, 64, 32}};")], True,
     "its results are right"),
    ("01/tile", "01_tiled_matmul/tile.cu", [
        (r"  float sum = 0;\n", "  float m = -INFINITY, sum = 0;\n  for (int j = 0; j < p.N_kv; "
         "++j) m = fmaxf(m, float(S[first + j]));\n  if (m == -INFINITY) m = 0;\n"),
        (r"expf\(float\(S\[first \+ j\]\)\)", "expf(float(S[first + j]) - m)"),
        (r'"S", 2 \* S, 0', '"S", 3 * S, 0')], True, "safer than the step of the course"),
    ("05/swap", "05_flash_v2/defer.cu", [], True,
     "better than the step of the course: workspace_bytes: 0; "),
]


class TargetsTest(unittest.TestCase):
    def test_the_step_before_fails_the_listed_checks(self):
        self.assertGreater(len(TASKS), 20)
        for name, task in TASKS.items():
            with self.subTest(name):
                by_cases = {one for one in task.check.fails if one in build_tasks.BY_CASES}
                self.assertEqual(build_tasks.lacking(task, BUILD) | by_cases, {*task.check.fails})
                page, line = re.search(r"(\S+/\w+\.md):(\d+)\.$", task.hints[0]).groups()
                self.assertNotEqual(task.task, "Since ")
                for hunk in task.hints[2:]:
                    self.assertRegex(hunk, r"(?m)^[-+] *[^/ \n]")  # not of comments alone
                    self.assertNotIn("const Register", hunk)
                self.assertGreater(len(task.hints), 2)
                self.assertEqual(read(ROOT, page).splitlines()[int(line) - 1],
                                 f"Write it first: `scripts/exercise {name}`.")


class Judging(unittest.TestCase):
    def verdict(self, right, *said):
        names = [*build_tasks.BY_CASES, "LSE", *TASKS["05/skip"].lacks]
        return build_tasks.verdict_of(
            TASKS["05/skip"], [build_tasks.Check(name, name != build_tasks.RESULTS or right == 1,
                                                 right if name == build_tasks.RESULTS else 1, name)
                               for name in names], [program.Case("seven", one) for one in said])

    def test_points_follow_results(self):
        self.assertEqual(self.verdict(0.8).share, 0.4)  # half at most, as common/TEACHING.md says
        self.assertEqual(self.verdict(1).share, 1)
        self.assertEqual([kinds.Verdict(False, "", share=share).points(10)
                          for share in (0.96, 1 - 4 / 5)], [9, 2])  # a float below 0.2

    def test_output_of_the_suite_is_read(self):
        """A case that fails by its formula alone has right results; of one that fails by anything
        else they are not; and what did not end, or begin, is a case too."""
        said = ("[====] Running 5 tests\n[ RUN      ] A/skip_a\n  formula\n[  FAILED  ] A/skip_a, "
                "where GetParam() = 05 --step skip --batch 1 (2 ms)\n[ RUN      ] A/skip_b\n"
                "[       OK ] A/skip_b (1 ms)\n[ RUN      ] A/skip_c\nelse\n[  FAILED  ] A/skip_c\n"
                "[ RUN      ] A/skip_d\n")
        copy = mock.Mock(step="skip", printed=lambda *_, **__: (0, said))
        self.assertEqual(program.Program.some(copy, "", ""), [
            program.Case("a", "", "its traffic() says other bytes than are counted", "--batch 1"),
            program.Case("b", ""), program.Case("c", "it fails"),
            program.Case("d", "it ends the program"), program.Case("another", program.NOT_RUN)])

    def test_the_table_says_what_falls_what_may_rise_and_the_trade(self):
        self.assertRegex(build_tasks.targets(TASKS["05/swap"], BUILD), (
            r"(?s)must fall: Q bytes .* 230,400 → 76,800\n.*may rise: K bytes +32,768 → 131,072 .*"
            "The trade: for whole tiles, 196,608 more bytes of K and V buy 266,240 fewer bytes of "
            r"O_fp32, Q, l, m; fewer workspace_bytes\."))

    def test_verdicts_match_the_expected_output(self):
        self.assertIn("Right, 10 of 10 points: its results are right, and its counts are those of "
                      "the step or better.", self.verdict(1).why)
        expect_output(self, "a build task", self.verdict(0.5, *"aabcd").why + "\n")


class BuildTasks(unittest.TestCase):
    """All copies are built at once, by as many compilers as there are cores."""

    @classmethod
    def setUpClass(cls):
        cls.folder = scratch(cls)
        real = {TASKS[name].file: TASKS[name] for name in CHECKED}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            cls.real = {path: pool.submit(cls.copy, "real", real.get(path), path,
                                          mistakes.planted(path))
                        for path in {**real, **mistakes.OF_SOURCES}}
            cls.before = {name: pool.submit(cls.copy, "before", TASKS[name], TASKS[name].file,
                                            TASKS[name].old.text)
                          for name in (TASKS if ALL else ["01/fragment", "05/skip"])}

    @classmethod
    def copy(cls, of, task, path, text):
        copy = write(cls.folder, of, path, text=text)
        return build_tasks.built(task, BUILD, copy) if task else program.Program(BUILD, path, copy)

    def test_the_step_before_has_no_points(self):
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

    def test_what_readers_hand_in_is_judged_by_what_it_does(self):
        """Work past the accessors, or on the host, is refused; another sound kernel is not."""
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
        for path in self.real if ALL else [TASKS["05/skip"].file, *mistakes.OF_SOURCES]:
            copy = self.real[path].result()
            cases = ":".join(f"Sim.*/{copy.step}_{case}" for case in (
                "ragged_grouped", "long_causal", "keys_before", "values_that_grow"))
            for number, (_, now, said) in enumerate(
                    [("", "", ""), *mistakes.mistakes_in(path)], -1):
                tests = f"Schedules.*/{copy.step}" if said == mistakes.BY_ORDER else cases
                copy.stopped = False
                with self.subTest(path, mistake=now, number=number), \
                        mock.patch.dict(os.environ, LADDER_MISTAKE=str(number)):
                    found = copy.some(copy.suite, tests)
                    wrong = " ".join(case.said or mistakes.FORMULA * bool(case.uncounted)
                                     for case in found)
                    self.assertRegex(wrong, said or "^ *$")

    def test_what_is_no_step_is_refused(self):
        task = TASKS["05/skip"]
        for what, (was, now, said) in REFUSED.items():
            with self.subTest(what), self.assertRaisesRegex(CommandError, said.format("skip.cu")):
                self.copy("wrong", task, task.file, was.sub(now, task.real.text, count=1))


class BugHunts(Scratch):
    """Ready-made mistakes: what is said of each in a line is what its runs come to; its line is
    taken, no other is; and nothing gives it away before."""

    def exercise(self, *words, status=0):
        done = self.run_it(os.path.join(SCRIPTS, "exercise"), "--break", *words, "--build", BUILD,
                           "--folder", self.root, status=status)
        return done.stderr if status else done.stdout

    @mock.patch.object(bug_hunts.MutatedSource, "seen", lambda *_: bug_hunts.Observed("", "", []))
    def takes(self, name, line):
        with contextlib.suppress(CommandError), contextlib.redirect_stdout(io.StringIO()):
            return bug_hunts.show(name, line, BUILD, self.root, "") == 0

    def test_each_bug_hunt_shows_its_symptoms(self):
        """And the simulator's own words, and why, only when the line has been found."""
        def seen_of(name):
            broken = BUG_HUNTS[name]
            return broken.seen(BUILD, self.write(f"{name}/{os.path.basename(broken.path)}",
                                                 "\n".join(broken.text)))

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for name, seen in zip(BROKEN, pool.map(seen_of, BROKEN)):
                if ALL:  # and the suite of tests finds it
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
        self.assertIn("is not it", self.exercise("00/future", "--answer", "0", status=1))
        right = r"Right\.\nThe step: .*attends\(i, j\).*\nThis copy: .*attends\(i, j \+ 1\)"
        self.assertRegex(self.exercise("00/future", "--answer", "34"), right)
        self.assertIn("the file has ", self.exercise("00/future", "--answer", "999", status=1))
        for name, broken in BUG_HUNTS.items():
            hint = self.exercise(name, "--hint")
            first, last = map(int, re.findall(r"\d+", hint.partition("lines")[2]))
            self.assertTrue(first <= broken.lines[0] <= last, hint)
        before = self.exercise("00/future")
        self.assertIn(f"\n{BUG_HUNTS['00/future'].mistake.shows}.\n", before)
        self.assertNotRegex(before, right)
        told = json.loads(self.exercise("00/future", "--json"))
        self.assertEqual(told["shows"], BUG_HUNTS["00/future"].mistake.shows)
        self.assertNotRegex(told["seen"], right)
        for line, status, good in (("0", 1, False), ("34", 0, True)):
            done = self.run_it(os.path.join(SCRIPTS, "exercise"), "--break", "00/future", "--json",
                               "--answer", line, "--build", BUILD, "--folder", self.root,
                               status=status)
            self.assertEqual(json.loads(done.stdout)["right"], good)
        self.assertIn("no bug hunt 05/none", self.exercise("05/none", status=2))
