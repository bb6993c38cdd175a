"""Holds what the pages show and say to the rest of the repository: excerpts to the code, links to
files and headings, the glossary to the lessons, the list of functions to the headers; formulas to
what GitHub reads as one, lengths to what a reader has time for, and drawings to one language."""

import functools
import glob
import importlib.util
import os
import re
import subprocess
import sys
import unittest
from xml.etree import ElementTree

from base import FENCE, RESULTS, ROOT, SECONDS, fences, read
from ladder.files import course_pages


def name_of(path):
    return os.path.relpath(path, ROOT)


@functools.cache
def files(pattern):
    """The lines of each."""
    return [read(path).splitlines() for path in
            sorted(glob.glob(os.path.join(ROOT, pattern), recursive=True))]


@functools.cache
def difference(old, new):
    return subprocess.run([os.path.join(ROOT, "scripts/diff"), old, new], check=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          encoding="utf-8").stdout.splitlines()


def differences(path, text):
    """Of two steps that the page names: (`scripts/diff 04 05/swap`); or, in an answer to an
    exercise, of its solution."""
    return [*files(f"scripts/ladder/exercises/patches/{name_of(path)[:2]}.*"),
            *(difference(*pair) for pair in
              re.findall(r"scripts/diff (\d\d\S*) (\d\d[^\s`)]*)", text))]


# Where the lines of a fenced block stand, by its language.
SOURCES = {"cuda": lambda path, _: files(os.path.join(name_of(path).split(os.sep)[0], "**/*.cu")),
           "cpp": lambda *_: files("common/**/*.h"), "diff": differences}


class Excerpts(unittest.TestCase):
    def test_code_shown_is_there(self):
        for path in course_pages():
            text = read(path)
            for language, sources in SOURCES.items():
                for first_line, lines in fences(text, language):
                    with self.subTest(f"{name_of(path)}:{first_line}"):
                        self.assertTrue(any(self.holds(source, lines) for source in
                                            sources(path, text)),
                                        f"no source of {language} has these lines:\n"
                                        + "\n".join(lines))

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
            text = re.sub(r"`[^`\n]*`", "c", FENCE.sub("c", read(path)))
            with self.subTest(name_of(path)):
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
            with self.subTest(f"{name_of(path)}:{first_line}"):
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
    def anchor(heading):
        """As GitHub calls it: lower case, spaces as dashes, no other signs."""
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lstrip("#").strip().lower())
        return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")

    @classmethod
    def headings(cls, path):
        return {cls.anchor(line) for line in FENCE.sub("", read(path)).splitlines()
                if line.startswith("#")}

    def test_they_lead_somewhere(self):
        count = 0
        for path in [*course_pages(), *glob.glob(os.path.join(ROOT, "common/*.md"))]:
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
        text = FENCE.sub(lambda code: code[0].replace("\n#", "\n "), read(path))
        head = next(head for head in re.finditer(r"^(#+) .*", text, re.MULTILINE)
                    if Links.anchor(head[0]) == heading)
        return re.split(rf"^#{{1,{len(head[1])}}} ", text[head.end():], flags=re.MULTILINE)[0]


class Drawings(unittest.TestCase):
    """All of scripts/results/drawings speak one language, and are shown."""

    SVG = "{http://www.w3.org/2000/svg}"

    def test_each(self):
        pages = "".join(map(read, course_pages()))
        styles = set()
        for path in glob.glob(os.path.join(RESULTS, "drawings/*")):
            with self.subTest(name_of(path)):
                root = ElementTree.fromstring(read(path))
                style, *more = [one.text for one in root.iter(self.SVG + "style")]
                styles.add(style)
                self.assertTrue(root.find(self.SVG + "title").text)
                self.assertIn(f"drawings/{os.path.basename(path)}", pages)
                known = set(re.findall(r"\.([a-z]\w*(?:-\w+)?)", "".join([style, *more])))
                for one in root.iter():
                    self.assertLessEqual(set(one.get("class", "").split()), known)
                    if one.tag == self.SVG + "text":
                        self.check_text(one, *map(float, root.get("viewBox").split()[2:]))
        self.assertEqual(len(styles), 1, "the first style block is the same in every drawing")
        light, dark = styles.pop().split("@media (prefers-color-scheme: dark)")
        self.assertEqual(*(sorted(re.findall(r"\.[\w-]+(?= \{ (?:fill|stroke): )", text))
                           for text in (light, dark)))

    def check_text(self, text, wide, high):
        """Large enough, and within the view box where a font is wide, as DejaVu Sans is."""
        size, x, y = (float(text.get(name)) for name in ("font-size", "x", "y"))
        length = size * sum(0.37 if c in "fijlrtI.,:;'() " else 0.62 for c in text.text)
        left = x - {"middle": 0.5, "end": 1}.get(text.get("text-anchor"), 0) * length
        self.assertTrue(10 <= size <= y <= high - 4 and 0 <= left <= wide - length, text.text)


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
        words = {name_of(path): self.words(read(path)) for path in self.LESSONS}
        self.assertLessEqual(words["README.md"], 900)
        for path, number in words.items():
            self.assertLessEqual(number, 2500, path)
        self.assertLessEqual(sum(words.values()), 21000, words)

    def test_minutes(self):
        rows = dict(re.findall(r"^\| \[[^\]]*\]\(([^)]*\.md)\) .* (\d+) \|$",
                               read(os.path.join(ROOT, "README.md")), re.MULTILINE))
        minutes = {name_of(path):
                   re.search(r"\*Reading time:\* (\d+) minutes", read(path))
                   for path in self.LESSONS[1:]}
        self.assertEqual(rows, {path: found and found[1] for path, found in minutes.items()})


class Functions(unittest.TestCase):
    def test_every_function_of_common_tile_is_listed_and_no_other(self):
        defined = set()
        for header in glob.glob(os.path.join(ROOT, "common/tile/*.h")):
            text = read(header)
            defined |= set(re.findall(r"^struct (\w+)", text, re.MULTILINE))
            # A function's name comes after its type; members, indented, are not listed.
            defined |= set(re.findall(r"^(?:__device__ __forceinline__|constexpr) [^()=;]*?\b"
                                      r"(\w+)\(", text, re.MULTILINE))
        readme = read(os.path.join(ROOT, "common/README.md"))
        tables = readme[readme.index("| function "):readme.index("On the sim each function")]
        listed = set(re.findall(r"`([a-zA-Z]\w*)(?:<[^`]*>)?`", tables))
        self.assertEqual(defined, listed)


if __name__ == "__main__":
    unittest.main()
