"""Holds the numbers in the lessons' text, formulas and hand-made tables to what each page shows, or
to numbers.txt, digit by digit, and works out the equations among them.

numbers.txt has for each page the numbers that are in none of its checked parts: its consoles, its
code, its generated tables, an equation that is worked out here. They are sizes, limits of CUDA's,
what is quoted or derived. Such a number deserves a look when it is new; none may be a measurement.
After an edit of the text:

  python3 scripts/tests/numbers_test.py --write     and look at `git diff scripts/tests/numbers.txt`
"""

import math
import os
import re
import sys
import unittest

from base import FENCE, ROOT, SCRIPTS, read, write
from ladder.files import course_pages

LOCK = os.path.join(SCRIPTS, "tests/numbers.txt")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
GENERATED = re.compile(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", re.DOTALL)
CHECKED = ("console", "cuda", "cpp")  # by lessons_test and pages_test; other fences are text


def lessons():
    return [path for path in course_pages()
            if not re.search(r"(?:notes|results/README)\.md$", path)]


def numbers(text):
    return [found.replace(",", "") for found in NUMBER.findall(text.replace("{,}", ","))]


# ---- equations ----

REPLACED = [(r"\{,\}", ""), (r"\\cdot\b", "*"), (r"\\[td]?frac(\d)(\d)", r"((\1)/(\2))"),
            (r"\\[td]?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))"),
            (r"\\sqrt\{([^{}]*)\}", r"math.sqrt(\1)"), (r"\\ln ?(\d+)", r"math.log(\1)"),
            (r"\be\^", "math.e^"), (r"\^\{([^{}]*)\}", r"**(\1)"), (r"\^(\d)", r"**\1")]


def value(tex):
    """Of a formula without variables, or None."""
    for old, new in REPLACED:
        tex = re.sub(old, new, tex)
    tex = tex.strip()
    if not re.fullmatch(r"(?:[\d.+*/() -]|math\.(?:e|sqrt|log)\b)+", tex):
        return None
    try:
        return float(eval(tex, {"__builtins__": {}, "math": math}))  # of the signs above alone
    except (SyntaxError, TypeError, ZeroDivisionError):
        return None


def formulas(text):
    """Inline ones, and the lines of those set apart."""
    shown = [line for language, block in FENCE.findall(text) if language == "math"
             for line in re.split(r"\\\\|\n\n", block)]
    return shown + re.findall(r"\$([^$]+)\$", FENCE.sub("", text))


def equations(text):
    """[(left, right)] of all that have a value on both sides, as they are written."""
    found = []
    for formula in formulas(text):
        sides = re.split(r"=|\\approx\b", re.sub(r"\s+|&", " ", formula))
        found += [(a, b) for a, b in zip(sides, sides[1:])
                  if value(a) is not None and value(b) is not None]
    return found


def holds(left, right):
    """Within half a unit of the last place of the right side, where that is a number."""
    a, b = value(left), value(right)
    written = re.fullmatch(r"\s*-?[\d{},]+(?:\.(\d+))?\s*(?:\\cdot\s*(10\^.*))?", right)
    if not written:
        return math.isclose(a, b)
    unit = 10.0 ** -len(written[1] or "") * (value(written[2]) if written[2] else 1)
    return abs(a - b) <= unit * 0.5000001


# ---- pages ----


def prose(text):
    """Without headings and what is checked elsewhere, links within the repository among it."""
    text = GENERATED.sub("", text)
    text = FENCE.sub(lambda block: "" if block[1] in (*CHECKED, "diff") else block[2], text)
    return re.sub(r"\]\((?!https:)[^)]*\)|^#+ .*", "]", text, flags=re.MULTILINE)


def checked_numbers(text):
    found = [block[0] for block in GENERATED.finditer(text)]
    found += [block for language, block in FENCE.findall(GENERATED.sub("", text))
              if language in CHECKED]
    found += [f"{a} {b}" for a, b in equations(text)]
    return set(numbers(" ".join(found)))


def unchecked():
    """The lines of numbers.txt."""
    for path in lessons():
        text = read(path)
        found = sorted(set(numbers(prose(text))) - checked_numbers(text))
        yield f"{os.path.relpath(path, ROOT)}: {' '.join(sorted(found, key=float))}"


class Numbers(unittest.TestCase):
    def test_each_is_shown_or_listed(self):
        self.assertEqual(read(LOCK).splitlines(), list(unchecked()), "(see this file's head)")

    def test_equations_hold(self):
        count = 0
        for path in lessons():
            for left, right in equations(read(path)):
                count += 1
                with self.subTest(f"{os.path.relpath(path, ROOT)}: {left} = {right}"):
                    self.assertTrue(holds(left, right), f"{value(left)} and {value(right)}")
        self.assertGreater(count, 20)


class Itself(unittest.TestCase):
    def test_what_holds(self):
        for left, rights in ((r"4 \cdot 32{,}768 \cdot 9", ("1{,}179{,}648", "1179649")),
                             (r"e^{-1} + \frac12", ("0.868", "0.867")),
                             ("2/3", ("0.667", "0.668")), ("2/4", ("1/2", "1/3")),
                             ("e^{-80}", (r"1.8 \cdot 10^{-35}", r"1.9 \cdot 10^{-35}"))):
            self.assertEqual([holds(left, right) for right in rights], [True, False], left)
        self.assertEqual([value("4 N"), value("m")], [None, None])


if __name__ == "__main__":
    if "--write" in sys.argv:
        write(LOCK, text="".join(f"{line}\n" for line in unchecked()))
    else:
        unittest.main()
