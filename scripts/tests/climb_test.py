"""Climbing: the step before fails by its own row and by nothing else; the real file has all points;
what learners do to a kernel ends in bounded time, with a message that names the line.

`climb_test.py BIN` climbs three steps, and those whose file has changed since the commit before;
with LADDER_CLIMB=all in the environment (`scripts/test climb`) every one.
"""

import concurrent.futures
import os
import re
import subprocess
import tempfile
import unittest
from unittest import mock

from base import ROOT, argument, read, write
from ladder.base.console import Stop
from ladder.exercises import climb

BIN = argument(os.path.join(ROOT, "build/bin"))
BUILD = os.path.dirname(BIN)
TASKS = climb.read_tasks()
ALL = os.environ.get("LADDER_CLIMB") == "all"


def touched():
    """The files that differ from the commit before, where it is there."""
    return subprocess.run(["git", "diff", "--name-only", "HEAD^"], cwd=ROOT, check=False,
                          encoding="utf-8", capture_output=True).stdout.split()


CLIMBED = [name for name, task in TASKS.items()
           if ALL or name in ("01/fragment", "05/skip", "06/bulk_add")
           or task.real.path in touched()]

# What is planted at the head of each kernel, and what a check says of it; ARRAY is one of the
# kernel's. Each is chosen while the program runs.
PLANTED = {
    "loops for ever": ("for (volatile int x = 0;; x = x + 1) {}", "had not ended after 1 seconds"),
    "reads past the end": ("(void)float(ARRAY[int64_t{1} << 40]);",
                           r"read of \w+\[1099511627776\]"),
    "writes what is not its own": ("static int* volatile none; *none = 1;",
                                   "memory that is not its own"),
    "fills its stack": ("struct F { static int f(volatile int n) { volatile char a[999]; a[n] = 1; "
                        "return f(0) + a[n]; } }; F::f(0);", "its stack is full"),
    "wants all memory": ("*static_cast<volatile char*>(::operator new(1ull << 40)) = 1;",
                         "bad_alloc"),
    "ends the program": ("std::exit(0);", "it ends the program"),
    "prints without end": ("static char text[99999]; for (;;) if (::write(1, text, 99999) < 0) {}",
                            "more than 30 MB"),
    "does nothing": ("return;", r"max error|never|unwritten|nobody"),
}
# And what takes a text's place, wherever it stands in the kernels.
REPLACED = {
    "forgets a barrier": ("__syncthreads();", "if (!ON) WAS", r"wrote|read|other bits|max error"),
    "forgets the scale": ("p.scale", "(ON ? 1 : WAS)", "max error"),
}
NOT_COMPILED = {
    "has a large array": (r"(__global__[^{;]*\{\n)",
                          r"\1volatile char a[99999]; a[blockIdx.x] = 1;", r"{0}:\d+:\d+: error: the frame size"),
    "is no C++": (r"(__global__[^{;]*\{\n)", r"\1  what?;\n", r"{0}:\d+:\d+: error: .*what"),
    "registers nothing": (r"const Register step[^;]*;", "", "registers the step, is gone"),
}


def planted(text):
    """All of PLANTED and REPLACED; LADDER_MISTAKE chooses one."""
    def plant(head):
        array = re.findall(r"Hbm<(?:const )?\w+> (\w+)", head[0])[0]
        return head[0] + " ".join(f"if (ladder::kMistake == {number}) {{ {code} }}".replace(
            "ARRAY", array) for number, (code, _) in enumerate(PLANTED.values()))

    kernels, plan, rest = text.partition("\nPlan plan(")
    for number, (was, now, _) in enumerate(REPLACED.values(), len(PLANTED)):
        kernels = kernels.replace(was, now.replace("ON", f"(ladder::kMistake == {number})")
                                  .replace("WAS", was))
    kernels = re.sub(r"__global__[^{;]*\{\n", plant, kernels)
    return ("namespace ladder { inline const int kMistake = [] { const char* m = "
            'std::getenv("LADDER_MISTAKE"); return m ? std::atoi(m) : -1; }(); }\n#line 1\n'
            + kernels + plan + rest)


class Tables(unittest.TestCase):
    def test_the_step_before_lacks_what_the_table_says(self):
        self.assertGreater(len(TASKS), 20)
        for name, task in TASKS.items():
            with self.subTest(name):
                lacking = set(climb.lacking(task, BUILD))
                self.assertEqual(lacking | {one for one in task.climb.fails
                                            if one in climb.BY_CASES}, set(task.climb.fails))
                self.assertIn(task.real.step, read(ROOT, *task.lesson().split(":")[:1]))
                self.assertNotIn(task.idea(), ("", "Since "))


def copy_of(folder, name, text):
    task = TASKS[name]
    return climb.Copy(BUILD, task, write(folder, f"{task.real.step}.cu", text=text))


class Climbs(unittest.TestCase):
    """All copies are built at once, by as many compilers as there are cores."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            cls.real, cls.before = ({name: pool.submit(copy_of, os.path.join(cls.folder, of, name),
                                                       name, text(TASKS[name])) for name in names}
                                    for of, names, text in (
                ("real", CLIMBED, lambda task: planted(task.real.text)),
                ("before", TASKS if ALL else ["01/fragment"], lambda task: task.old.text)))

    def test_the_step_before_has_no_points(self):
        for name, copy in self.before.items():
            with self.subTest(name):
                judged = climb.check(copy.result())
                self.assertEqual((judged.right, judged.share), (False, 0), judged.why)
                self.assertEqual({check for check, held, _ in judged.checks if not held},
                                 set(TASKS[name].climb.fails))

    def test_the_real_step_has_all(self):
        for name, copy in self.real.items():
            with self.subTest(name):
                judged = climb.check(copy.result())
                self.assertTrue(judged.right, judged.why)

    @unittest.skipUnless(ALL, "not run here: scripts/test climb compiles all blanks")
    def test_blanks_are_those_that_compile(self):
        for name, task in TASKS.items():
            with self.subTest(name):
                try:
                    copy_of(os.path.join(self.folder, "blanks"), name, task.blanks())
                except Stop:
                    self.assertFalse(task.climb.blanks)
                else:
                    self.assertTrue(task.climb.blanks)

    def test_what_learners_do_ends_and_names_its_line(self):
        for name in self.real if ALL else ["05/skip"]:
            self.done_wrong(name, TASKS[name], self.real[name].result())

    def done_wrong(self, name, task, copy):
        file = f"{task.real.step}.cu"
        for number, (what, (was, *_, said)) in enumerate({**PLANTED, **REPLACED}.items()):
            if what in REPLACED and was not in task.real.text:
                continue
            with self.subTest(name, what=what), mock.patch.object(climb, "SECONDS", 1), \
                    mock.patch.dict(os.environ, LADDER_MISTAKE=str(number)):
                copy.ended = False
                wrong = " ".join(case.said for case in copy.suite_cases(
                    f"Sim.*/{task.real.step}_long_causal"))
                self.assertRegex(wrong, said)
                if not re.search("max error|ends the program|MB", said):
                    self.assertRegex(wrong, rf"\({file}:\d+\)")
        for what, (was, now, said) in NOT_COMPILED.items():
            if ALL or what != "has a large array":  # which a compiler says last of all
                with self.subTest(name, what=what), \
                        self.assertRaisesRegex(Stop, said.format(re.escape(file))):
                    copy_of(self.folder, name, re.sub(was, now, task.real.text, count=1))


if __name__ == "__main__":
    unittest.main()
