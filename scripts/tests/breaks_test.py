"""Ready-made mistakes: what is said of each in a line is what its runs come to; its line is taken,
no other is; and nothing gives it away before.

`breaks_test.py BIN` runs three; with LADDER_CLIMB=all (`scripts/test climb`) all.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import unittest

from base import ROOT, SECONDS, argument
from ladder.exercises import breaks

BIN = argument(os.path.join(ROOT, "build/bin"))
BUILD = os.path.dirname(BIN)
BREAKS = breaks.read_breaks()
RUN = [name for name in BREAKS if os.environ.get("LADDER_CLIMB") == "all"
       or name in ("01/hasty", "05/tally", "06/alone")]


class Breaks(unittest.TestCase):
    def exercise(self, *words, status=0, said=""):
        """What --break prints on a terminal where this is typed."""
        person, terminal = os.openpty()
        os.write(person, said.encode())
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/exercise"),
                                   "--break", *words, "--build", BUILD, "--folder", folder],
                                  timeout=SECONDS, stdin=terminal, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, encoding="utf-8")
        os.close(terminal)
        os.close(person)
        self.assertEqual(done.returncode, status, done)
        return done.stdout

    def test_each_shows_what_is_said_of_it(self):
        """And the sim's own words, and why, only when the line has been found."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            texts = list(pool.map(lambda name: self.exercise(
                name, said=f"here\n1\n{BREAKS[name].lines[-1]}\n"), RUN))
        for name, text in zip(RUN, texts):
            with self.subTest(name):
                mistake = BREAKS[name].mistake
                before, _, after = text.partition("here is not the line.")
                self.assertIn(f"\n{mistake.shows}.\n", before)
                self.assertRegex(after, r"^\n1 is not the line\.\nRight\.\n")
                faults = re.findall("The sim says: (.*)", after)
                self.assertEqual("no access is at fault" in faults[0],
                                 not re.search("a fault|never ends", mistake.shows))
                for one in (mistake.why, *faults):
                    self.assertIn(one, after)
                    self.assertNotIn(one, before)

    def test_lines_and_the_list(self):
        known = self.exercise()
        self.assertGreaterEqual(len(BREAKS), 15)
        for name, broken in BREAKS.items():
            with self.subTest(name):
                self.assertRegex(known, rf"(?m)^{name} +{re.escape(broken.mistake.shows)}$")
                lines, text = broken.lines, broken.text
                missing = len(text) < len(broken.old)
                self.assertEqual(len(lines), 2 if missing or name == "05/early" else 1)
                self.assertEqual([*text[:lines[0] - 1 + missing], *broken.was,
                                  *text[lines[-1] - missing:]], broken.old)
        for line in (0, 33, 35):
            self.assertIn("is not it", self.exercise("00/future", "--answer", str(line), status=1))
        self.assertRegex(self.exercise("00/future", "--answer", "34"),
                         r"Right\.\n-.*sees\(i, j\).*\n\+.*sees\(i, j \+ 1\)")
        self.assertIn("no mistake 05/none", self.exercise("05/none", status=2))


if __name__ == "__main__":
    unittest.main()
