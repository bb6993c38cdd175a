"""Ready-made mistakes: what is said of each in a line is what its runs come to, of its lines each is
taken, no other is, and nothing gives them away before.

`breaks_test.py BIN` runs three; with LADDER_CLIMB=all (`scripts/test climb`) all.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import unittest

from base import ROOT, SECONDS, argument, read
from ladder.exercises import breaks

BIN = argument(os.path.join(ROOT, "build/bin"))
BUILD = os.path.dirname(BIN)
BREAKS = breaks.read_breaks()
RUN = BREAKS if os.environ.get("LADDER_CLIMB") == "all" else ("01/restless", "03/heavy", "05/parity")


class Breaks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def exercise(self, *words, status=0, **how):
        done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts/exercise"), "--break",
                               *words, "--build", BUILD, "--folder", self.folder],
                              timeout=SECONDS, encoding="utf-8", **{
                                  "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                                  "stderr": subprocess.PIPE, **how})
        self.assertEqual(done.returncode, status, done)
        return done.stdout + done.stderr

    def asked(self, name):
        """What a terminal says, where two answers are wrong and then the line is given."""
        person, terminal = os.openpty()
        os.write(person, f"here\n1\n{BREAKS[name].lines[-1]}\n".encode())
        try:
            return self.exercise(name, stdin=terminal)
        finally:
            os.close(terminal)
            os.close(person)

    def test_each_shows_what_is_said_of_it(self):
        """And the sim's own words, and why, only when the line has been found."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            said = dict(zip(RUN, pool.map(self.asked, RUN)))
        for name, text in said.items():
            with self.subTest(name):
                mistake = BREAKS[name].mistake
                before, wrong, after = text.partition("here is not the line.")
                self.assertIn(f"\n{mistake.shows}.\n", before)
                self.assertRegex(after, r"1 is not the line\.(.|\n)*Right\.")
                self.assertIn(mistake.why, after)
                faults = re.findall("The sim says: (.*)", after)
                self.assertEqual("no access is at fault" not in faults[0],
                                 bool(re.search("a fault|never ends", mistake.shows)))
                for one in (mistake.why, *faults):
                    self.assertNotIn(one, before)

    def test_the_list_gives_nothing_away(self):
        said = self.exercise()
        self.assertGreaterEqual(len(BREAKS), 15)
        self.assertEqual(len({broken.mistake.why for broken in BREAKS.values()}), len(BREAKS))
        for name, broken in BREAKS.items():
            self.assertRegex(said, rf"(?m)^{name} +{re.escape(broken.mistake.shows)}$")
            self.assertNotIn(broken.mistake.why, said)

    def test_its_lines_are_taken_and_no_other(self):
        for name, broken in BREAKS.items():
            with self.subTest(name):
                lines, text = broken.lines, broken.text
                missing = len(text) < len(broken.old)
                self.assertEqual(len(lines), 2 if missing or name == "05/early" else 1)
                self.assertEqual([*text[:lines[0] - 1 + missing], *broken.was,
                                  *text[lines[-1] - missing:]], broken.old)
        name, lines = "00/future", BREAKS["00/future"].lines
        for line in (0, lines[0] - 1, lines[-1] + 1):
            self.assertIn("is not it", self.exercise(name, "--answer", str(line), status=1))
        self.assertEqual(read(self.folder, "break", name, "attention.cu"),
                         "\n".join([*BREAKS[name].text, ""]))
        self.assertRegex(self.exercise(name, "--answer", str(lines[0])),
                         r"Right\.\n(.*\n)*-.*sees\(i, j\).*\n\+.*sees\(i, j \+ 1\)")
        self.assertIn("no mistake 05/none", self.exercise("05/none", status=2))


if __name__ == "__main__":
    unittest.main()
