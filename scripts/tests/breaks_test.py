"""Ready-made mistakes: what is said of each in a line is what its runs come to, of its lines each is
taken, no other is, and nothing gives them away before.

`breaks_test.py BIN` runs three; with LADDER_CLIMB=all (`scripts/test climb`) all.
"""

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

    def test_each_shows_what_is_said_of_it(self):
        for name in RUN:
            with self.subTest(name):
                broken = BREAKS[name]
                seen = broken.seen(BUILD, broken.placed(os.path.join(self.folder, name)))
                self.assertEqual(breaks.summary(seen), broken.mistake.shows)
                said, found = breaks.symptoms(seen), broken.solution(seen)
                for one in filter(None, (each.fault for each in seen.values())):
                    self.assertNotIn(one, said)
                    self.assertIn(one, found)
                self.assertIn(broken.mistake.why, found)
                self.assertEqual("The sim says:" in found, "a fault" in broken.mistake.shows)

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
                lines, text = broken.lines(), broken.text.splitlines()
                self.assertIn(len(lines), (1, 2))
                # What is missing is no line of the copy, what is wrong none of the file.
                new = [text[line - 1] for line in lines]
                missing = len(text) < len(broken.old.splitlines())
                self.assertEqual("\n".join(new) in broken.old, missing)
                for line in (lines[0] - 1, lines[-1] + 1):
                    self.assertIn("is not it", self.exercise(name, "--answer", str(line), status=1))
        name, line = "05/parity", BREAKS["05/parity"].lines()[0]
        said = self.exercise(name, "--answer", str(line))
        self.assertRegex(said, r"Right\.\n(.*\n)*-.*wait\(kv_tile % 2\);\n\+.*wait\(0\);")
        self.assertIn("no mistake 05/none", self.exercise("05/none", status=2))
        self.assertEqual(read(self.folder, "break", name, "tma.cu"), BREAKS[name].text)

    def test_a_terminal_is_asked(self):
        master, terminal = os.openpty()
        self.addCleanup(os.close, master)
        name, line = "05/parity", BREAKS["05/parity"].lines()[0]
        os.write(master, f"here\n3\n{line}\n".encode())
        said = self.exercise(name, stdin=terminal)
        os.close(terminal)
        self.assertRegex(said, r"here is not the line\.(.|\n)*3 is not the line\.(.|\n)*Right\.")
        self.assertLess(said.index("a fault"), said.index("Right."))


if __name__ == "__main__":
    unittest.main()
