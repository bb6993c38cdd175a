"""Holds the lessons to the programs: runs the commands that README.md and those of the rungs quote
in ```console blocks and compares what they print, and looks up their ```cuda excerpts in the rung,
their ```cpp excerpts in common, and their ```diff excerpts in what scripts/diff shows.

Run alone: python3 scripts/tests/lessons_test.py build/bin

A line that starts with "$ " is a command (one ending in a backslash goes on in the next line); the
lines up to the next command are its stdout and stderr. Integers and byte figures must be equal,
other numbers to two significant digits, times and rates not at all. A line "…" stands for any
lines, "…" within a line for any text. A command must succeed, unless "$ echo $?" after it says
otherwise.
"""

import functools
import glob
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest

from base import ROOT, SECONDS, argument, read
from ladder.files import course_pages

BIN = os.path.join(ROOT, "build/bin")

OURS = re.compile(r"(?:^|[\s;|&(])(?:build/bin/|scripts/)|^(?:python3|echo) ")
NOT_RUN = [
    (r"--device[ =]gpu", "needs a GPU"),
    (r"^(?:sudo|apt-get|git)\b", "changes the machine"),
    (r"^scripts/(?:run .|test|figures|explore|bench\.py|plot\.py)", "has tests of its own"),
    (r"^scripts/tests/format\b", "needs a tool that not every machine has"),
    (r"scripts/(?:capture_qkv|peers)\b", "needs PyTorch"),
]

# `scripts/run` without its building, and as a machine without a GPU runs it.
LADDER = "CUDA_VISIBLE_DEVICES= PYTHONPATH=scripts python3 -m ladder.run 2> /dev/null"

# ---- comparing ----

NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
TIME = (rf"(?:{NUMBER}\s*(?:ns|[µμu]s|ms|s|min)\b|{NUMBER}\s*[kMGT]?(?:FLOP|B)/s|"
        rf'"(?:time_ms\w*|tflops|samples)": (?:null|{NUMBER}))')
CORES = r"sim on \d+ cores?"
TOKEN = re.compile(rf"(?P<time>{TIME})|(?P<cores>{CORES})|(?P<bytes>{NUMBER}\s*[kMGT]?B\b)|"
                   rf"(?P<number>{NUMBER})|(?P<any>…)|(?P<space>\s+)|(?P<text>.)")


@functools.lru_cache(maxsize=None)
def pattern(line):
    """The expected line as a regular expression whose groups are its floating-point numbers."""
    parts, floats = [], []
    for token in TOKEN.finditer(line.strip()):
        kind, text = token.lastgroup, token.group()
        if kind == "time":
            parts.append(TIME)
        elif kind == "cores":
            parts.append(CORES)
        elif kind == "any":
            parts.append(r".*?")
        elif kind == "space":
            parts.append(r"\s+")
        elif kind == "number" and not text.isdigit():
            parts.append(rf"({NUMBER})")
            floats.append(float(text))
        elif kind in ("number", "bytes"):
            parts.append(rf"(?<!\d)(?<!\d\.){re.escape(text)}(?!\d|\.\d|[eE][+-]?\d)")
        else:
            parts.append(re.escape(text))
    return re.compile("".join(parts)), floats


def close(a, b):
    """Equal to two significant digits, or closer than half a unit in them (7.549 and 7.551)."""
    if a == b or f"{a:.1e}" == f"{b:.1e}":
        return True
    smaller = min(abs(a), abs(b))
    return smaller > 0 and abs(a - b) < 0.05 * 10 ** math.floor(math.log10(smaller))


def same_line(expected, actual):
    regex, floats = pattern(expected)
    match = regex.fullmatch(actual.strip())
    return bool(match) and all(close(x, float(y)) for x, y in zip(floats, match.groups()))


def first_difference(expected, actual):
    """None if the lines agree, else (index in expected, index in actual) of where they part."""
    furthest = (0, 0)

    @functools.lru_cache(maxsize=None)
    def agree(i, j):
        nonlocal furthest
        furthest = max(furthest, (i, j))
        if i == len(expected):
            return j == len(actual)
        if expected[i].strip() == "…":
            return any(agree(i + 1, k) for k in range(j, len(actual) + 1))
        return j < len(actual) and same_line(expected[i], actual[j]) and agree(i + 1, j + 1)

    return None if agree(0, 0) else furthest


def trimmed(lines):
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    while lines and not lines[0].strip():
        lines = lines[1:]
    return lines


# ---- reading the lessons ----


class Command:
    def __init__(self, text, line):
        self.text = text
        self.line = line
        self.output = []
        self.status = 0


def fences(text, language):
    """(number of the line after the opening fence, lines) of each fenced block."""
    block = None
    for number, line in enumerate(text.splitlines(), 1):
        if block is not None and line.strip() == "```":
            yield block
            block = None
        elif block is not None:
            block[1].append(line)
        elif line.strip() == f"```{language}":
            block = (number + 1, [])


def commands(first_line, lines):
    found = []
    number = 0
    while number < len(lines):
        line, at = lines[number], first_line + number
        number += 1
        if not line.startswith("$ "):
            if found:
                found[-1].output.append(line)
            continue
        text = line[2:]
        while text.endswith("\\") and number < len(lines):
            text = text[:-1] + lines[number]
            number += 1
        if text.strip() == "echo $?" and found and number < len(lines):
            found[-1].status = int(lines[number])
            number += 1
        else:
            found.append(Command(text, at))
    return found


# ---- the tests ----


class Lessons(unittest.TestCase):
    """One test for each command quoted; added below."""

    def run_command(self, path, command):
        for regex, why in NOT_RUN:
            if re.search(regex, command.text):
                self.skipTest(why)
        where = f"{os.path.relpath(path, ROOT)}:{command.line}: $ {command.text}"
        # In a folder that looks like the repository, so that nothing is left in the real one.
        with tempfile.TemporaryDirectory() as scratch:
            for name in os.listdir(ROOT):
                if name not in ("build", ".git"):
                    os.symlink(os.path.join(ROOT, name), os.path.join(scratch, name))
            os.mkdir(os.path.join(scratch, "build"))
            os.symlink(BIN, os.path.join(scratch, "build/bin"))
            text = LADDER if command.text == "scripts/run" else command.text
            text = text.replace("scripts/exercise ",
                                f"scripts/exercise --build '{os.path.dirname(BIN)}' ")
            text = text.replace("scripts/diff --stat", f"scripts/diff --bin '{BIN}' --stat")
            done = subprocess.run(["bash", "-c", text], cwd=scratch, timeout=SECONDS,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
        # What ends in an ellipsis is progress, shown where a machine is slow.
        actual = trimmed([line for line in done.stdout.splitlines() if not line.endswith(" …")])
        expected = trimmed(command.output)
        parted = first_difference(expected, actual)
        if parted:
            i, j = parted
            self.fail("\n".join([
                where, "", "quoted:  " + (expected[i] if i < len(expected) else "(nothing more)"),
                "printed: " + (actual[j] if j < len(actual) else "(nothing more)"), "",
                "All that it printed:", *actual]))
        self.assertEqual(done.returncode, command.status, f"{where}: exit status")


def add_tests():
    count = 0
    for path in course_pages():
        name = re.sub(r"\W+", "_", os.path.relpath(path, ROOT).removesuffix(".md"))
        for first_line, lines in fences(read(path), "console"):
            for command in commands(first_line, lines):
                if not OURS.search(command.text):
                    continue
                count += 1

                def test(self, path=path, command=command):
                    self.run_command(path, command)

                setattr(Lessons, f"test_{name}_line_{command.line:04}", test)
    return count


class Excerpts(unittest.TestCase):
    def test_code_shown_is_in_the_rung(self):
        for path in course_pages():
            rung = os.path.relpath(path, ROOT).split(os.sep)[0]
            sources = [read(source).splitlines() for source in sorted(
                glob.glob(os.path.join(ROOT, rung, "**/*.cu"), recursive=True))]
            for first_line, lines in fences(read(path), "cuda"):
                with self.subTest(f"{os.path.relpath(path, ROOT)}:{first_line}"):
                    self.assertTrue(any(self.holds(source, lines) for source in sources),
                                    "no .cu of the rung has these lines:\n" +
                                    "\n".join(lines))

    def test_differences_shown_are_the_scripts(self):
        """Of two steps that the page names: (`scripts/diff 04 05/swap`); or, in an answer to an
        exercise, of its solution."""
        for path in course_pages():
            text = read(path)
            rung = os.path.relpath(path, ROOT)[:2]
            sources = [read(patch).splitlines() for patch in sorted(glob.glob(
                os.path.join(ROOT, f"scripts/ladder/exercises/patches/{rung}.*")))]
            if "```diff" in text:
                sources += [self.difference(*pair) for pair in
                            re.findall(r"scripts/diff (\d\d\S*) (\d\d[^\s`)]*)", text)]
            for first_line, lines in fences(text, "diff"):
                with self.subTest(f"{os.path.relpath(path, ROOT)}:{first_line}"):
                    self.assertTrue(any(self.holds(source, lines) for source in sources),
                                    "no difference named has these lines:\n" + "\n".join(lines))

    @staticmethod
    @functools.lru_cache(maxsize=None)
    def difference(old, new):
        return subprocess.run([os.path.join(ROOT, "scripts/diff"), old, new], check=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              encoding="utf-8").stdout.splitlines()

    def test_code_shown_is_in_common(self):
        headers = [read(header).splitlines() for header in sorted(
            glob.glob(os.path.join(ROOT, "common/**/*.h"), recursive=True))]
        for path in course_pages():
            for first_line, lines in fences(read(path), "cpp"):
                with self.subTest(f"{os.path.relpath(path, ROOT)}:{first_line}"):
                    self.assertTrue(any(self.holds(header, lines) for header in headers),
                                    "no header of common has these lines:\n" + "\n".join(lines))

    @staticmethod
    def holds(source, lines):
        """Whether the runs of lines between lines "…" stand in the source, in this order."""
        at = 0
        for run in "\n".join(lines).split("\n…\n"):
            run = run.splitlines()
            while at + len(run) <= len(source) and source[at:at + len(run)] != run:
                at += 1
            if at + len(run) > len(source):
                return False
            at += len(run)
        return True


class Formulas(unittest.TestCase):
    """As GitHub reads them: Markdown comes first, and takes a backslash from a sign after it."""

    def test_each_is_read_as_one(self):
        for path in course_pages():
            text = re.sub(r"^```.*?^```|`[^`\n]*`", lambda code: re.sub(r"[^\n]", "c", code[0]),
                          read(path), flags=re.DOTALL | re.MULTILINE)
            with self.subTest(os.path.relpath(path, ROOT)):
                self.assertEqual(text.count("$") % 2, 0)
                for before, formula, after in re.findall(r"(.?)\$([^$]*)\$(?=(.?))", text):
                    self.assertEqual(formula, formula.strip())
                    self.assertFalse(before.isalnum() or after.isalnum(), formula)
                    # And a _ after a brace may begin an emphasis.
                    self.assertNotRegex(formula, r"\\[^A-Za-z]|[^A-Za-z0-9]_|\n\n")
                for row in re.findall(r"^\|.*", text, re.MULTILINE):
                    for cell in row.split("|"):
                        self.assertEqual(cell.count("$") % 2, 0, row)


class Python(unittest.TestCase):
    """Examples run where the modules that they import are there, and print what they say."""

    def test_each_runs(self):
        found = [(path, *block) for path in course_pages()
                 for block in fences(read(path), "python")]
        self.assertTrue(found)
        for path, first_line, lines in found:
            with self.subTest(f"{os.path.relpath(path, ROOT)}:{first_line}"):
                text = "\n".join(lines)
                for module in re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE):
                    if not importlib.util.find_spec(module):
                        self.skipTest(f"there is no Python module {module}")
                done = subprocess.run([sys.executable, "-c", text], timeout=SECONDS,
                                      stdin=subprocess.DEVNULL, capture_output=True,
                                      encoding="utf-8")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout.splitlines(),
                                 re.findall(r"^print\(.*\)  # (.*)", text, re.MULTILINE))


class Links(unittest.TestCase):
    """Links within the repository lead to a file, and to a heading of it."""

    @staticmethod
    def name_of(heading):
        """As GitHub calls it: lower case, spaces as dashes, no other signs."""
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lstrip("#").strip().lower())
        return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")

    @classmethod
    def headings(cls, path):
        found, fenced = set(), False
        for line in read(path).splitlines():
            fenced ^= line.startswith("```")
            if line.startswith("#") and not fenced:
                found.add(cls.name_of(line))
        return found

    def test_they_lead_somewhere(self):
        count = 0
        for path in [*course_pages(), *glob.glob(os.path.join(ROOT, "common/*.md"))]:
            text = re.sub(r"```.*?```", "", read(path), flags=re.DOTALL)
            for link in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"\w+:", link):
                    continue
                count += 1
                file, _, heading = link.partition("#")
                target = os.path.join(os.path.dirname(path), file) if file else path
                with self.subTest(f"{os.path.relpath(path, ROOT)}: {link}"):
                    self.assertTrue(os.path.exists(target), "no such file")
                    if heading:
                        self.assertIn(heading, self.headings(target))
        self.assertGreater(count, 50)


class Glossary(unittest.TestCase):
    """Every term is in its place in the alphabet, and is to be found where the glossary says."""

    PATH = os.path.join(ROOT, "common/GLOSSARY.md")
    ROW = re.compile(r"^\| (?:\*\*(.+?)\*\*|`(.+?)`) \| .* \| \[.*?\]\((.*?)\) \|$", re.MULTILINE)

    def test_each_term_is_where_it_says(self):
        text = read(self.PATH)
        rows = [(bold or code, link) for bold, code, link in self.ROW.findall(text)]
        self.assertEqual(len(rows), len(re.findall(r"^\| ", text, re.MULTILINE)) - 1)  # the head
        terms = [term.lower() for term, _ in rows]
        self.assertEqual(terms, sorted(terms))
        for term, link in rows:
            file, _, heading = link.partition("#")
            path = os.path.join(os.path.dirname(self.PATH), file)
            page = self.section(path, heading) if heading else read(path)
            page = re.sub(r"[*`${}\\]", "", page)
            page += page.replace("_", " ") + page.replace("_", "")
            for word in re.findall(r"[\w.-]+", re.sub(r" \(.*\)", "", term)):
                with self.subTest(f"{term}: {link}"):
                    # The beginning of a long word; a symbol by itself.
                    self.assertRegex(page, f"(?i){re.escape(word[:5])}" if len(word) > 3 else
                                     rf"(?<![A-Za-z]){re.escape(word)}(?![A-Za-z])")

    @staticmethod
    def section(path, heading):
        """The text under a heading, those below it included."""
        lines = re.sub(r"^```.*?^```", lambda fence: fence[0].replace("\n#", "\n "), read(path),
                       flags=re.DOTALL | re.MULTILINE).splitlines()
        begin = next(i for i, line in enumerate(lines)
                     if line.startswith("#") and Links.name_of(line) == heading)
        depth = len(lines[begin].split()[0])
        end = next((i for i in range(begin + 1, len(lines))
                    if re.match(f"#{{1,{depth}}} ", lines[i])), len(lines))
        return "\n".join(lines[begin:end])


class Lengths(unittest.TestCase):
    """Each lesson is read in half an hour, and README's map says in how many minutes."""

    NOT_READ_ON = (r"<!-- (\w+):begin -->.*?<!-- \1:end -->", r"<details>.*?</details>",
                   r"^```.*?^```", r"^\|[^\n]*", r"\]\([^)]*\)")
    LESSONS = [path for path in course_pages() if "/notes" not in path and "/results" not in path]

    @classmethod
    def words(cls, text):
        """Of the running text: no generated blocks, answers, code, tables; a formula is a word."""
        for regex in cls.NOT_READ_ON:
            text = re.sub(regex, " ", text, flags=re.DOTALL | re.MULTILINE)
        return len(re.findall(r"[A-Za-z][\w'’-]*", re.sub(r"\$[^$\n]+\$", "X", text)))

    def test_words(self):
        words = {os.path.relpath(path, ROOT): self.words(read(path)) for path in self.LESSONS}
        self.assertLessEqual(words["README.md"], 900)
        for path, number in words.items():
            self.assertLessEqual(number, 2500, path)
        self.assertLessEqual(sum(words.values()), 21000, words)

    def test_minutes(self):
        rows = dict(re.findall(r"^\| \[[^\]]*\]\(([^)]*\.md)\) .* (\d+) \|$",
                               read(os.path.join(ROOT, "README.md")), re.MULTILINE))
        minutes = {os.path.relpath(path, ROOT):
                   re.search(r"\*Reading time:\* (\d+) minutes", read(path))
                   for path in self.LESSONS[1:]}
        self.assertEqual(rows, {path: found and found[1] for path, found in minutes.items()})


class HeadComments(unittest.TestCase):
    """Each step says at its head how to run it, and that runs."""

    def test_each_says_how_to_run_it(self):
        for path in sorted(glob.glob(os.path.join(ROOT, "[0-9][0-9]_*/**/*.cu"), recursive=True)):
            with self.subTest(os.path.relpath(path, ROOT)):
                self.run_head(path)

    def run_head(self, path):
        text = read(path)
        head = text.split("\n\n", 1)[0].splitlines()
        indented = [line[2:].strip() for line in head if line.startswith("//   ")]
        self.assertTrue(indented, "the head comment has no command")
        words = indented[0].split()  # before all else that is set apart there
        rung = os.path.relpath(path, ROOT).split(os.sep)[0]
        self.assertEqual(words[0], f"build/bin/{rung}", indented[0])
        kind = "--baseline" if ".baseline = true" in text else "--variant"
        name = re.search(r'\.name = "(\w+)"', text)[1]
        self.assertEqual(words[1:3], [kind, name], indented[0])
        # Whether its results are right, the suite says.
        more = ["--check", "off"] + (["--device", "sim"] if kind == "--variant" else [])
        done = subprocess.run([os.path.join(BIN, rung), *words[1:], *more], timeout=SECONDS,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", check=False)
        # A baseline wants a GPU.
        self.assertIn(done.returncode, (0, 3) if kind == "--baseline" else (0,), done.stdout)


class Ideas(unittest.TestCase):
    """The table of scripts/run has a place for three words about each step."""

    def test_each_step_has_one_of_its_own(self):
        seen = {}
        for program in sorted(glob.glob(os.path.join(BIN, "[0-9][0-9]_*"))):
            if program.endswith("_test"):
                continue
            out = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True).stdout
            for step in map(json.loads, out.splitlines()):
                name, idea = f"{step['rung']} {step['variant']}", step["idea"]
                with self.subTest(name):
                    self.assertIn(len(idea.split()), (1, 2, 3), repr(idea))
                    self.assertEqual(seen.setdefault(idea, name), name)
        self.assertTrue(seen)


class Functions(unittest.TestCase):
    def test_every_function_of_common_tile_is_listed_and_no_other(self):
        defined = set()
        for header in glob.glob(os.path.join(ROOT, "common/tile/*.h")):
            text = read(header)
            defined |= set(re.findall(r"^struct (\w+)", text, re.MULTILINE))
            # A function's name comes after its type; members, indented, are not listed.
            defined |= set(re.findall(r"^__device__ __forceinline__ [^()=;]*?\b(\w+)\(", text,
                                      re.MULTILINE))
        readme = read(os.path.join(ROOT, "common/README.md"))
        tables = readme[readme.index("| function "):readme.index("On the sim each function")]
        listed = set(re.findall(r"`([a-zA-Z]\w*)(?:<[^`]*>)?`", tables))
        self.assertEqual(defined, listed)


class Comparison(unittest.TestCase):
    """The tests above are worth what their comparison is worth."""

    def assert_same(self, expected, actual):
        self.assertIsNone(first_difference(expected.splitlines(), actual.splitlines()))

    def assert_different(self, expected, actual):
        self.assertIsNotNone(first_difference(expected.splitlines(), actual.splitlines()))

    def test_integers_are_exact(self):
        self.assert_same("scores   65536 B", "scores 65536 B")
        self.assert_different("65536 bytes", "65537 bytes")
        self.assert_different("6553", "65536")
        self.assert_different("6", "6.5")

    def test_bytes_are_exact(self):
        self.assert_same("read 2.05 kB", "read      2.05 kB")
        self.assert_different("read 2.05 kB", "read 2.06 kB")
        self.assert_different("read 2.05 kB", "read 2.05 MB")

    def test_errors_to_two_digits(self):
        self.assert_same("error 7.56e-04", "error 7.64e-04")
        self.assert_same("error 7.549e-04", "error 7.551e-04")
        self.assert_same("error 9.97e-04", "error 1.00e-03")
        for second in "5.46e-04", "5.66e-04":
            self.assert_different("error 5.56e-04", f"error {second}")
        self.assert_different("error 7.56e-04", "error 7.56e-03")
        self.assert_different("error 7.5e-04", "error 5.5e-04")
        self.assert_different("error 0.0", "error 7e-04")

    def test_times_do_not_count(self):
        self.assert_same("scores 1.2 ms, 3.1 TFLOP/s", "scores 730 µs, 12 TFLOP/s")
        self.assert_same('{"time_ms": 1.5, "heads": 2}', '{"time_ms": 2.5, "heads": 2}')
        self.assert_same("00 · sim on 2 cores", "00 · sim on 64 cores")
        self.assert_different("scores 1.2 ms", "softmax 1.2 ms")

    def test_ellipsis(self):
        self.assert_same("a 1\n…\nb 2", "a 1\nx\ny\nb 2")
        self.assert_same("a 1\n…\nb 2", "a 1\nb 2")
        self.assert_same('{"rung": "00", … "seqlen": 32, …}',
                         '{"rung": "00", "x": 32, "seqlen": 32, "y": 1}')
        self.assert_different("a 1\n…\nb 2", "a 1\nx\nb 3")
        self.assert_different("a 1\n…\nb 2", "a 1\nb 2\nx")
        self.assert_different('… "seqlen": 32, …', '{"seqlen": 64, "y": 32, "z"}')

    def test_commands(self):
        first, second = commands(10, ["$ a \\", "  b", "out", "$ c", "oh", "$ echo $?", "1"])
        self.assertEqual((first.text, first.line, first.output, first.status),
                         ("a   b", 10, ["out"], 0))
        self.assertEqual((second.text, second.line, second.output, second.status),
                         ("c", 13, ["oh"], 1))

    def test_something_is_compared(self):
        self.assertTrue(any(name.startswith("test_00_naive") for name in dir(Lessons)))


if __name__ == "__main__":
    BIN = argument(BIN)
    if not glob.glob(os.path.join(BIN, "[0-9][0-9]_*")):
        sys.exit(f"{sys.argv[0]}: no programs in {BIN}; give the folder that has them")
    add_tests()
    unittest.main()
