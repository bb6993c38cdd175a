"""Compares the course's pages with the programs and the repository. It runs the commands that the
pages and commands.md quote in ```console blocks, and compares their output. It also checks excerpts
against the code, links against files and headings, and formulas against GitHub's rules.

A line that starts with "$ " is a command, and one that ends in a backslash continues on the next
line. The lines up to the next command are its stdout and stderr. Integers and numbers of bytes must
be equal, other numbers equal to two significant digits; times and rates may differ. A line "…"
stands for any lines, "…" within a line for any text. A command must succeed, unless "$ echo $?"
after it shows another status."""

import dataclasses
import functools
import math
import os
import re
import subprocess
import tempfile
import unittest

from support import FENCE, ROOT, SCRIPTS, SECONDS, fences, programs, read
from ladder.base.files import course_pages, paths_in
from ladder.exercises.lessons import read_exercises

BIN = programs()

NOT_RUN = [("--device gpu", "needs a GPU"),
           ("^scripts/(?:run .|test|figures|explore)", "has tests of its own")]

# `scripts/run` without its build, as on a machine without a GPU.
LADDER = "CUDA_VISIBLE_DEVICES= python3 scripts/ladder front.run 2> /dev/null"

# ---- comparing ----

NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
TIME = (rf"(?:{NUMBER}\s*(?:ns|[µμu]s|ms|s|min)\b|{NUMBER}\s*[kMGT]?(?:FLOP|B)/s|"
        rf'"(?:time_ms\w*|tflops|samples)": (?:null|{NUMBER}))')
CORES = r"sim on \d+ cores?"
TOKEN = re.compile(rf"(?P<time>{TIME})|(?P<cores>{CORES})|(?P<bytes>{NUMBER}\s*[kMGT]?B\b)|"
                   rf"(?P<number>{NUMBER})|(?P<any>…)|(?P<space>\s+)|(?P<text>.)")
ANY = {"time": TIME, "cores": CORES, "any": r".*?", "space": r"\s+"}  # what each kind matches


def pattern(lines):
    """Returns (a regular expression that matches the expected lines, the numbers in them). Only
    numbers with a fraction or an exponent are listed; each has a group in the expression."""
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
    """Returns whether two numbers agree to two significant digits, or to 0.5% (7.549 and 7.551)."""
    return f"{a:.1e}" == f"{b:.1e}" or math.isclose(a, b, rel_tol=0.005)


def same(expected, actual):
    """Returns whether the lines of an output equal the expected ones, as the module's text says."""
    regex, floats = pattern(expected)
    match = regex.fullmatch("".join(f"{line.strip()}\n" for line in actual))
    return bool(match) and all(close(x, float(y)) for x, y in zip(floats, match.groups()))


# ---- reading the lessons ----

def name_of(path):
    return os.path.relpath(path, ROOT)


@dataclasses.dataclass
class QuotedCommand:
    text: str
    line: int
    output: list = dataclasses.field(default_factory=list)
    status: int = 0


def commands(first_line, lines):
    """Returns the QuotedCommands of a block whose first line has this number in its page."""
    found = []
    for number, line in enumerate(lines, first_line):
        if found and found[-1].text.endswith("\\"):
            found[-1].text = found[-1].text[:-1] + line
        elif line.startswith("$ "):
            found.append(QuotedCommand(line[2:], number))
        elif found:
            found[-1].output.append(line)
    for command, asked in zip(found, found[1:]):
        if asked.text == "echo $?":
            command.status = int(asked.output[0])
    return [command for command in found if command.text != "echo $?"]


# ---- the tests ----

@functools.cache  # several pages quote some commands
def in_scratch(text):
    """Runs a command in a temporary copy of the repository (symlinks); returns the result."""
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
    """Has one test per quoted command; the loop after the class adds them."""

    def run_command(self, path, command):
        for regex, why in NOT_RUN:
            if re.search(regex, command.text):
                self.skipTest(why)
        where = f"{name_of(path)}:{command.line}: $ {command.text}"
        text = LADDER if command.text == "scripts/run" else command.text
        text = text.replace("scripts/exercise ",
                            f"scripts/exercise --build '{os.path.dirname(BIN)}' ")
        text = text.replace("scripts/diff --stat", f"scripts/diff --bin '{BIN}' --stat")
        done = in_scratch(text)
        # Lines that end in an ellipsis show progress. They appear only on a slow machine.
        actual = [line for line in done.stdout.strip("\n").splitlines() if not line.endswith(" …")]
        expected = "\n".join(command.output).strip("\n").splitlines()
        if not same(expected, actual):
            parted = next((i for i in range(len(expected))
                           if not same([*expected[:i + 1], "…"], actual)), -1)
            self.fail("\n".join([where, "", f"first line that differs: {expected[parted:][:1]}",
                                 "the command printed:", *actual]))
        self.assertEqual(done.returncode, command.status, f"{where}: exit status")


for page in [*course_pages(), os.path.join(SCRIPTS, "tests/commands.md")]:
    title = re.sub(r"\W+", "_", name_of(page).removesuffix(".md"))
    for block in fences(read(page), "console"):
        for quoted in commands(*block):
            setattr(Lessons, f"test_{title}_line_{quoted.line:04}",
                    functools.partialmethod(Lessons.run_command, page, quoted))


class Comparison(unittest.TestCase):
    def test_which_outputs_count_as_equal(self):
        for agree, expected, *others in (
                (True, "scores   65536 B", "scores 65536 B"), (False, "65536 bytes", "65537 bytes"),
                (False, "6553", "65536"), (False, "read 2.05 kB", "read 2.06 kB", "read 2.05 MB"),
                (True, "error 7.549e-04", "error 7.551e-04"),
                (False, "error 5.56e-04", "error 5.46e-04", "error 5.56e-03", "error 0.0"),
                (True, "a 1.2 ms, sim on 2 cores", "a 730 µs, sim on 64 cores"),
                (True, "a 1\n…\nb 2", "a 1\nx\ny\nb 2", "a 1\nb 2"),
                (False, "a 1\n…\nb 2", "a 1\nx\nb 3", "a 1\nb 2\nx"),
                (False, "…5 B", "15 B", "1.5 B"), (False, "5…", "5.5", "5e3")):
            for other in others:
                self.assertEqual(same(expected.splitlines(), other.splitlines()), agree,
                                 (expected, other))

    def test_console_blocks_compare_something(self):
        self.assertTrue(any(name.startswith("test_00_naive") for name in dir(Lessons)))


# ---- excerpts, formulas and links ----

EXERCISES = list(read_exercises().values())


@functools.cache
def files(pattern):
    """Returns a list of lines for each file that matches the pattern, but for Python's caches."""
    return [read(path).splitlines() for path in paths_in(ROOT, pattern)
            if not path.endswith(".pyc")]


@functools.cache
def difference(old, new):
    return subprocess.run([os.path.join(ROOT, "scripts/diff"), old, new], check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          encoding="utf-8").stdout.splitlines()


def differences(path, text):
    """Returns the diffs of a page's exercises, and of its pairs of steps (`scripts/diff 04 05`)."""
    return [*(diff.splitlines() for exercise in EXERCISES
              if exercise.lesson == name_of(path) for diff in exercise.diffs()),
            *(difference(*pair) for pair in
              re.findall(r"scripts/diff (\d\d\S*) (\d\d[^\s`)]*)", text))]


# Language of a fenced block → the texts that may contain its lines.
SOURCES = {"cuda": lambda path, _: [
               *files(os.path.join(name_of(path).split(os.sep)[0], "**/*.[ch]*")),
               *files("scripts/ladder/front/*.cu")],  # the host of scripts/run --alone
           "cpp": lambda *_: files("common/**/*.h"), "diff": differences}


class Excerpts(unittest.TestCase):
    def test_excerpts_are_in_their_files(self):
        for path in course_pages():
            text = read(path)
            for language, sources in SOURCES.items():
                for first_line, lines in fences(text, language):
                    with self.subTest(f"{name_of(path)}:{first_line}"):
                        self.assertTrue(any(self.holds(source, lines) for source in
                                            sources(path, text)),
                                        f"no source of {language} has these lines:\n"
                                        + "\n".join(lines))

    def test_the_diff_of_a_build_task_is_folded(self):
        for path in course_pages():
            for section in re.split(r"(?m)^#{2,4} ", read(path)):
                rest = section.partition("Write it first:")[2]
                self.assertNotRegex(rest, r"(?<!</summary>\n\n)```diff", name_of(path))

    @staticmethod
    def holds(source, lines):
        """Returns whether the source contains the runs of lines that "…" separates, in order."""
        text, at = "\n".join(["", *source, ""]), 0
        for run in "\n".join(lines).split("\n…\n"):
            at = text.find(f"\n{run}\n", at)
            if at < 0:
                return False
            at += len(run) + 1
        return True


class Formulas(unittest.TestCase):
    """Tests that formulas survive GitHub's Markdown pass, which runs before the math is read and
    removes a backslash before a punctuation mark."""

    def test_formulas_survive_markdown(self):
        for path in course_pages():
            text = re.sub(r"`[^`\n]*`", "c", FENCE.sub("c", read(path)))
            with self.subTest(name_of(path)):
                self.assertEqual(text.count("$") % 2, 0)
                self.assertNotRegex(text, r"\[[^][]*\$[^][]*\]\(")  # no formula in a link
                for before, formula, after in re.findall(r"(.?)\$([^$]*)\$(?=(.?))", text):
                    self.assertEqual(formula, formula.strip())
                    self.assertFalse(before.isalnum() or after.isalnum(), formula)
                    # A _ after a brace may begin emphasis.
                    self.assertNotRegex(formula, r"\\[^A-Za-z]|[^A-Za-z0-9]_|\n\n")
                for row in re.findall(r"^\|.*", text, re.MULTILINE):
                    for cell in row.split("|"):
                        self.assertEqual(cell.count("$") % 2, 0, row)


class Links(unittest.TestCase):
    """Tests that links within the repository lead to a file, and to one of its headings."""

    @staticmethod
    def anchor(heading):
        """Returns GitHub's anchor for a heading: lower case, dashes for spaces, no punctuation."""
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lstrip("#").strip().lower())
        return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")

    @classmethod
    def headings(cls, path):
        return {cls.anchor(line) for line in FENCE.sub("", read(path)).splitlines()
                if line.startswith("#")}

    def test_links_and_anchors_exist(self):
        count = 0
        for path in [*course_pages(), *(path for folder in ("common", ".github", "scripts")
                                        for path in paths_in(ROOT, f"{folder}/*.md"))]:
            for link in re.findall(r"(?:\]\(|src(?:set)?=\")([^)\s\"]+)",
                                   FENCE.sub("", read(path))):
                if re.match(r"\w+:", link):
                    continue
                count += 1
                file, _, heading = link.partition("#")
                target = os.path.join(os.path.dirname(path), file) if file else path
                with self.subTest(f"{name_of(path)}: {link}"):
                    self.assertTrue(os.path.exists(target), "no such file")
                    if heading:
                        self.assertIn(heading, self.headings(target))
        self.assertGreater(count, 50)
