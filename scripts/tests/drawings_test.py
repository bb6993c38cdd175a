"""Tests of the drawings in scripts/results/drawings.

Run alone: python3 scripts/tests/drawings_test.py
"""

import glob
import os
import re
import unittest
from xml.etree import ElementTree

from base import RESULTS, read
from ladder.drawings import DRAWINGS
from ladder.drawings.make import stale_drawings
from ladder.drawings.pen import COLOURS
from ladder.files import course_pages

SVG = "{http://www.w3.org/2000/svg}"


class Drawings(unittest.TestCase):
    def test_they_are_those_that_would_be_drawn(self):
        self.assertEqual(stale_drawings(), [])

    def test_each_is_well_formed_and_has_both_colour_schemes(self):
        for name, path in PATHS.items():
            root = ElementTree.parse(path).getroot()
            light, _, dark = root.find(SVG + "style").text.partition("prefers-color-scheme:dark")
            for element in root.iter():
                for kind in element.get("class", "").split():
                    if kind.partition("-")[0] in COLOURS:
                        self.assertIn(f".{kind}{{", light, name)
                        self.assertIn(f".{kind}{{", dark, name)
            self.assertEqual(root.find(SVG + "title").text, DRAWINGS[name])
            self.assertNotIn("<script", read(path))

    def test_no_text_leaves_the_view_box(self):
        # What a character takes of its size, roughly, in a wide font: DejaVu Sans.
        for name, path in PATHS.items():
            root = ElementTree.parse(path).getroot()
            wide, high = map(float, root.get("viewBox").split()[2:])
            for text in root.iter(SVG + "text"):
                size, x = float(text.get("font-size")), float(text.get("x"))
                length = size * sum(0.37 if c in "fijlrtI.,:;'() " else 0.62 for c in text.text)
                left = x - {"middle": 0.5, "end": 1}.get(text.get("text-anchor"), 0) * length
                self.assertTrue(0 <= left and left + length <= wide and
                                size <= float(text.get("y")) <= high - 4, (name, text.text))

    def test_each_is_shown(self):
        pages = "".join(map(read, course_pages()))
        self.assertEqual([n for n in PATHS if f"drawings/{n}.svg" not in pages], [])

    def test_text_is_large_enough(self):
        for name, path in PATHS.items():
            sizes = re.findall(r'font-size="([\d.]+)"', read(path))
            self.assertGreaterEqual(min(map(float, sizes)), 10, name)


PATHS = {name: os.path.join(RESULTS, "drawings", f"{name}.svg") for name in DRAWINGS}

if __name__ == "__main__":
    unittest.main()
