"""Tests of the drawings in scripts/results/drawings.

Run alone: python3 scripts/tests/drawings_test.py
"""

import unittest
from xml.etree import ElementTree

from base import RESULTS, read
from ladder.drawings.pen import COLOURS, DRAWINGS
from ladder.files import course_pages

SVG = "{http://www.w3.org/2000/svg}"


class Drawings(unittest.TestCase):
    def each(self):
        """(name, root, text) of all that are committed."""
        for name in DRAWINGS:
            text = read(RESULTS, "drawings", f"{name}.svg")
            yield name, ElementTree.fromstring(text), text

    def test_each_is_well_formed_and_has_both_colour_schemes(self):
        for name, root, text in self.each():
            light, _, dark = root.find(SVG + "style").text.partition("prefers-color-scheme:dark")
            for element in root.iter():
                for kind in element.get("class", "").split():
                    if kind.partition("-")[0] in COLOURS:
                        self.assertIn(f".{kind}{{", light, name)
                        self.assertIn(f".{kind}{{", dark, name)
            self.assertEqual(root.find(SVG + "title").text, DRAWINGS[name][0])
            self.assertNotIn("<script", text)

    def test_texts_are_large_enough_and_within_the_view_box(self):
        # What a character takes of its size, roughly, in a wide font: DejaVu Sans.
        for name, root, _ in self.each():
            wide, high = map(float, root.get("viewBox").split()[2:])
            for text in root.iter(SVG + "text"):
                size, x = float(text.get("font-size")), float(text.get("x"))
                length = size * sum(0.37 if c in "fijlrtI.,:;'() " else 0.62 for c in text.text)
                left = x - {"middle": 0.5, "end": 1}.get(text.get("text-anchor"), 0) * length
                self.assertTrue(10 <= size <= float(text.get("y")) <= high - 4 and
                                0 <= left and left + length <= wide, (name, text.text))

    def test_each_is_shown(self):
        pages = "".join(map(read, course_pages()))
        self.assertEqual([n for n in DRAWINGS if f"drawings/{n}.svg" not in pages], [])


if __name__ == "__main__":
    unittest.main()
