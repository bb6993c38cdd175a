"""Tests of what all scripts have in common: Python and help of 100 columns. (That their shell is
one that macOS runs, CI sees there.)"""

import glob
import os
import re
import unittest

from base import ROOT, SCRIPTS, Scratch, read


class Width(unittest.TestCase):
    def test_no_line_of_python_is_longer_than_100_columns(self):
        found = {}
        for place in ("scripts/*", "scripts/ladder/**", "scripts/tests/**", "common/**"):
            for path in glob.glob(os.path.join(ROOT, place), recursive=True):
                if path.endswith(".py") or os.path.isfile(path) and "." not in \
                        os.path.basename(path) and re.match(r"#!.*\bpython3\b", read(path)):
                    found[os.path.relpath(path, ROOT)] = read(path).splitlines()
        self.assertLessEqual({"scripts/exercise", "scripts/diff", "scripts/tests/base.py"},
                             set(found))
        self.assertEqual([f"{name}: {line}" for name, lines in found.items() for line in lines
                          if len(line) > 100], [])


class Help(Scratch):
    def test_every_command_has_help_of_100_columns(self):
        commands = [name for name in os.listdir(SCRIPTS) if os.path.isfile(f"{SCRIPTS}/{name}")]
        self.assertIn("figures", commands)
        parts = [f"figures {part}" for part in ("measure", "draw", "profile")]
        for command in map(str.split, commands + parts):
            said = self.run_it(os.path.join(SCRIPTS, command[0]), *command[1:], "--help",
                               COLUMNS="100").stdout
            self.assertRegex(said, f"(?i)usage: (scripts/)?{' '.join(command)}")
            self.fits(said)


if __name__ == "__main__":
    unittest.main()
