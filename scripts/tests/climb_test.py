"""Climbing: the step before fails by its own row and by nothing else; the real file has all points;
what learners do to a kernel ends in bounded time, with a message that names the line.

`climb_test.py BIN` climbs three steps, and those whose file has changed since the commit before;
with LADDER_CLIMB=all in the environment (`scripts/test climb`) every one.
"""

import os
import re
import subprocess
import unittest
from unittest import mock

from base import ROOT, Scratch, argument, read, write
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
    "loops for ever": ("for (volatile int x = 0;; x = x + 1) {}", r"had not ended after 2 seconds"),
    "reads past the end": ("(void)float(ARRAY[int64_t{1} << 40]);", r"read of \w+\[1099511627776\]"),
    "writes what is not its own": ("static int* volatile none; *none = 1;", "memory that is not its own"),
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
    "has a large array": (r"(__global__[^{;]*\{\n)", r"\1volatile char a[99999]; a[blockIdx.x] = 1;",
                          r"{0}:\d+:\d+: error: the frame size"),
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


class Climbs(Scratch):
    def judged(self, task, text, **environment):
        path = write(self.root, f"{task.real.step}.cu", text=text)
        with mock.patch.dict(os.environ, environment):
            return climb.check(task, BUILD, path)

    def test_the_real_step_has_all_points_and_the_step_before_none(self):
        for name in CLIMBED:
            task = TASKS[name]
            with self.subTest(name):
                judged = self.judged(task, task.real.text)
                self.assertTrue(judged.right, judged.why)
            if not ALL and name != CLIMBED[0] and "results" not in task.climb.fails:
                continue
            with self.subTest(name, of="the step before"):
                judged = self.judged(task, task.old.text)
                self.assertEqual((judged.right, judged.share), (False, 0), judged.why)
                self.assertEqual({name for name, held, _ in judged.checks if not held},
                                 set(task.climb.fails))

    def test_what_learners_do_ends_and_names_its_line(self):
        for name in CLIMBED if ALL else ["05/skip"]:
            task = TASKS[name]
            file = f"{task.real.step}.cu"
            path = write(self.root, file, text=planted(task.real.text))
            copy = climb.Copy(BUILD, task, path)
            texts = {**PLANTED, **{name: ends[1:] for name, ends in REPLACED.items()}}
            for number, (what, (_, said)) in enumerate(texts.items()):
                with self.subTest(name, what=what), \
                        mock.patch.object(climb, "SECONDS", 2), \
                        mock.patch.dict(os.environ, LADDER_MISTAKE=str(number)):
                    copy.ended = False
                    cases = copy.suite_cases(f"Sim.*/{task.real.step}_long_causal:"
                                             f"Schedules.*/{task.real.step}")
                    wrong = " ".join(case.said for case in cases)
                    self.assertRegex(wrong, said)
                    if not re.search("max error|ends the program|MB", said):
                        self.assertRegex(wrong, rf"\({file}:\d+\)")
            for what, (was, now, said) in NOT_COMPILED.items() if ALL or name == "05/skip" else ():
                with self.subTest(name, what=what), self.assertRaisesRegex(Stop, said.format(file)):
                    self.judged(task, re.sub(was, now, task.real.text, 1))


if __name__ == "__main__":
    unittest.main()
