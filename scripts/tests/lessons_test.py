"""Holds the lessons to the programs: runs the commands that README.md and those of the rungs quote
in ```console blocks, and compares what they print. (What else the pages show, pages_test looks up.)

Run alone: python3 scripts/tests/lessons_test.py build/bin

A line that starts with "$ " is a command (one ending in a backslash goes on in the next line); the
lines up to the next command are its stdout and stderr. Integers and byte figures must be equal,
other numbers to two significant digits, times and rates not at all. A line "…" stands for any
lines, "…" within a line for any text. A command must succeed, unless "$ echo $?" after it says
otherwise.
"""

import dataclasses
import functools
import glob
import math
import os
import re
import subprocess
import tempfile
import unittest

from base import ROOT, SECONDS, fences, programs, read
from ladder.base.files import course_pages

BIN = programs()

NOT_RUN = [("--device gpu", "needs a GPU"),
           ("^scripts/(?:run .|test|figures|explore)", "has tests of its own")]

# `scripts/run` without its building, and as a machine without a GPU runs it.
LADDER = "CUDA_VISIBLE_DEVICES= python3 scripts/ladder front.run 2> /dev/null"

# ---- comparing ----

NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
TIME = (rf"(?:{NUMBER}\s*(?:ns|[µμu]s|ms|s|min)\b|{NUMBER}\s*[kMGT]?(?:FLOP|B)/s|"
        rf'"(?:time_ms\w*|tflops|samples)": (?:null|{NUMBER}))')
CORES = r"sim on \d+ cores?"
TOKEN = re.compile(rf"(?P<time>{TIME})|(?P<cores>{CORES})|(?P<bytes>{NUMBER}\s*[kMGT]?B\b)|"
                   rf"(?P<number>{NUMBER})|(?P<any>…)|(?P<space>\s+)|(?P<text>.)")
ANY = {"time": TIME, "cores": CORES, "any": r".*?", "space": r"\s+"}  # what may stand there


def pattern(lines):
    """The expected lines as a regular expression whose groups are their floating-point numbers."""
    parts, floats = [], []
    for line in lines:
        for token in TOKEN.finditer(line.strip()) if line.strip() != "…" else ():
            kind, text = token.lastgroup, token.group()
            if kind in ANY:
                parts.append(ANY[kind])
            elif kind == "number" and not text.isdigit():
                parts.append(rf"({NUMBER})")
                floats.append(float(text))
            elif kind in ("number", "bytes"):
                parts.append(rf"(?<!\d)(?<!\d\.){re.escape(text)}(?!\d|\.\d|[eE][+-]?\d)")
            else:
                parts.append(re.escape(text))
        parts.append(r"\n" if line.strip() != "…" else r"(?:.*\n)*?")
    return re.compile("".join(parts)), floats


def close(a, b):
    """Equal to two significant digits, or nearly so (7.549 and 7.551)."""
    return f"{a:.1e}" == f"{b:.1e}" or math.isclose(a, b, rel_tol=0.005)


def same(expected, actual):
    regex, floats = pattern(expected)
    match = regex.fullmatch("".join(f"{line.strip()}\n" for line in actual))
    return bool(match) and all(close(x, float(y)) for x, y in zip(floats, match.groups()))


# ---- reading the lessons ----


@dataclasses.dataclass
class Command:
    text: str
    line: int
    output: list = dataclasses.field(default_factory=list)
    status: int = 0


def commands(first_line, lines):
    found = []
    for number, line in enumerate(lines, first_line):
        if found and found[-1].text.endswith("\\"):
            found[-1].text = found[-1].text[:-1] + line
        elif line.startswith("$ "):
            found.append(Command(line[2:], number))
        elif found:
            found[-1].output.append(line)
    for command, asked in zip(found, found[1:]):
        if asked.text == "echo $?":
            command.status = int(asked.output[0])
    return [command for command in found if command.text != "echo $?"]


# ---- the tests ----


def in_scratch(text):
    """What a command does, in a folder that looks like the repository, so that nothing is left in
    the real one."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in os.listdir(ROOT):
            if name not in ("build", ".git"):
                os.symlink(os.path.join(ROOT, name), os.path.join(scratch, name))
        os.mkdir(os.path.join(scratch, "build"))
        os.symlink(BIN, os.path.join(scratch, "build/bin"))
        return subprocess.run(["bash", "-c", text], cwd=scratch, timeout=SECONDS,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")


class Lessons(unittest.TestCase):
    """One test for each command quoted; added below."""

    def run_command(self, path, command):
        for regex, why in NOT_RUN:
            if re.search(regex, command.text):
                self.skipTest(why)
        where = f"{os.path.relpath(path, ROOT)}:{command.line}: $ {command.text}"
        text = LADDER if command.text == "scripts/run" else command.text
        text = text.replace("scripts/exercise ",
                            f"scripts/exercise --build '{os.path.dirname(BIN)}' ")
        text = text.replace("scripts/diff --stat", f"scripts/diff --bin '{BIN}' --stat")
        done = in_scratch(text)
        # What ends in an ellipsis is progress, shown where a machine is slow.
        actual = [line for line in done.stdout.strip("\n").splitlines() if not line.endswith(" …")]
        expected = "\n".join(command.output).strip("\n").splitlines()
        if not same(expected, actual):
            parted = next((i for i in range(len(expected))
                           if not same([*expected[:i + 1], "…"], actual)), -1)
            self.fail("\n".join([where, "", f"quoted: {expected[parted:][:1]}, and it printed:",
                                 *actual]))
        self.assertEqual(done.returncode, command.status, f"{where}: exit status")


def add_tests():
    for path in course_pages():
        name = re.sub(r"\W+", "_", os.path.relpath(path, ROOT).removesuffix(".md"))
        for block in fences(read(path), "console"):
            for command in commands(*block):
                setattr(Lessons, f"test_{name}_line_{command.line:04}",
                        functools.partialmethod(Lessons.run_command, path, command))


class HeadComments(unittest.TestCase):
    """Each step says at its head how to run it, and that runs."""

    def test_each_says_how_to_run_it(self):
        for path in sorted(glob.glob(os.path.join(ROOT, "[0-9][0-9]_*/**/*.cu"), recursive=True)):
            name, text = os.path.relpath(path, ROOT), read(path)
            with self.subTest(name):
                # The first that is set apart there.
                command = re.search(r"^//   +(.*)", text.split("\n\n", 1)[0], re.MULTILINE)[1]
                needs_gpu = ".library = true" in text
                step = re.search(r'\.name = "(\w+)"', text)[1]
                self.assertRegex(command, rf"^build/bin/{name.split(os.sep)[0]} --step {step}\b")
                # Whether its results are right, and at that length, the suite says.
                done = in_scratch(re.sub(r"--seqlen \d{2,}", "--seqlen 64", command)
                                  + " --check off" + " --device sim" * (not needs_gpu))
                if not (needs_gpu and "unknown on the sim" in done.stdout):
                    self.assertEqual(done.returncode, 0, done.stdout)


class Comparison(unittest.TestCase):
    """The tests above are worth what their comparison is worth."""

    def test_what_is_the_same(self):
        for agree, expected, *others in (
                (True, "scores   65536 B", "scores 65536 B"), (False, "65536 bytes", "65537 bytes"),
                (False, "6553", "65536"), (False, "read 2.05 kB", "read 2.06 kB", "read 2.05 MB"),
                (True, "error 7.549e-04", "error 7.551e-04"),
                (False, "error 5.56e-04", "error 5.46e-04", "error 5.56e-03", "error 0.0"),
                (True, "scores 1.2 ms, 3.1 TFLOP/s", "scores 730 µs, 12 TFLOP/s"),
                (True, '{"time_ms": 1.5}, sim on 2 cores', '{"time_ms": 2.5}, sim on 64 cores'),
                (False, "scores 1.2 ms", "softmax 1.2 ms"),
                (True, "a 1\n…\nb 2", "a 1\nx\ny\nb 2", "a 1\nb 2"),
                (True, '{… "seqlen": 32, …}', '{"x": 32, "seqlen": 32, "y": 1}'),
                (False, "a 1\n…\nb 2", "a 1\nx\nb 3", "a 1\nb 2\nx"),
                (False, "…5 B", "15 B", "1.5 B"), (False, "5…", "5.5", "5e3")):
            for other in others:
                self.assertEqual(same(expected.splitlines(), other.splitlines()), agree,
                                 (expected, other))

    def test_something_is_compared(self):
        self.assertTrue(any(name.startswith("test_00_naive") for name in dir(Lessons)))


if __name__ == "__main__":
    add_tests()
    unittest.main()
