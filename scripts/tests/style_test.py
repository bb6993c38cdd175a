"""Tests of what all scripts have in common: shell that macOS runs too, Python and help of 100
columns.

Run alone: python3 scripts/tests/style_test.py
"""

import glob
import os
import re
import unittest

from base import ROOT, SCRIPTS, Scratch, read


class Portable(unittest.TestCase):
    """What macOS's bash 3.2 and BSD tools lack, the shell scripts do without."""

    # A pattern, and a line that it is to find.
    LACKS = (
        (r"\{\w+\}[<>]", 'exec {lock}>"$1"'),
        (r"&>>|\|&", "make &>>log"),
        (r"\$\{!?\w+(\[[^]]*\])?(\^|,|@[A-Za-z])", 'echo "${name^^}"'),
        (r"\$\{\w+(\[-|:\s*:?\(?-\d+:-)", 'echo "${all[-1]}"'),
        (r"\b(declare|local|typeset|readonly)\s+-\w*[Anlu]", "local -n result=$1"),
        (r"\b(mapfile|readarray|coproc|wait\s+-n)\b", "mapfile -t lines <file"),
        (r"\[\[ (! )?-[vR] ", "if [[ -v name ]]; then"),
        (r";;?&", "a) echo ;;&"),
        (r"\{\d+\.\.\d+\.\.\d+\}|\{0\d+\.\.", "for i in {1..9..2}; do"),
        (r"printf .*%\(", "printf '%(%s)T'"),
        (r"\$\{?(BASHPID|EPOCHSECONDS|EPOCHREALTIME|SRANDOM)\b", "echo $EPOCHSECONDS"),
        (r"\bshopt -s \w*(globstar|lastpipe|inherit_errexit)", "shopt -s globstar"),
        (r"^\s*set -[a-z]*u", "set -euo pipefail"),  # an empty array is unset there
        (r"(?<![.\w])(nproc|flock|timeout|tac|realpath|sha\d+sum|md5sum|setsid|getopt|numfmt)\b",
         'make -j "$(nproc)"'),
        (r"\breadlink\s+-[fem]|\bgrep\s+-\w*P|\bdate\s+(-d|--)|\bstat\s+-c|\bsort\s+-\w*[Vz]",
         "sort -V versions"),
        (r"\bxargs\s+(-\w*[rd]|--)|\bsed\s+(-\w*[irz]|--)|\bfind .*-printf|\bhead\s+-n\s*-|"
         r"\bcp\s+(-\w*[u]|--)|\bmktemp\s+--|\bbase64\s+-w|\b(ps|tail)\s+.*--", "xargs -0r rm"),
    )

    @staticmethod
    def scripts():
        for place in (".ci/*", "scripts/*", "scripts/ladder/*.sh", "common/**/*.sh"):
            for path in filter(os.path.isfile, glob.glob(os.path.join(ROOT, place),
                                                         recursive=True)):
                text = read(path)
                if path.endswith(".sh") or re.match(r"#!.*\b(ba)?sh\b", text):
                    yield os.path.relpath(path, ROOT), text.splitlines()

    def test_no_script_needs_what_is_not_there(self):
        for pattern, line in self.LACKS:
            self.assertRegex(line, pattern)
        found = dict(self.scripts())
        for name, lines in found.items():
            for number, line in enumerate(lines, 1):
                for pattern, _ in self.LACKS if not line.lstrip().startswith("#") else ():
                    self.assertNotRegex(line, pattern, f"{name}:{number}")
        self.assertLessEqual({"scripts/run", "scripts/ladder/ready.sh", "scripts/test", ".ci/run",
                              "common/ptxas.sh"}, set(found))


class Width(unittest.TestCase):
    @staticmethod
    def sources():
        names = [os.path.relpath(path, ROOT) for folder in ("scripts", "common")
                 for path in glob.glob(os.path.join(ROOT, folder, "**"), recursive=True)]
        for name in names:
            path = os.path.join(ROOT, name)
            if os.path.isfile(path) and (name.endswith(".py") or os.path.dirname(name) == "scripts"
                                         and read(path).startswith("#!/usr/bin/env python3")):
                yield name, read(path)

    def test_no_line_of_python_is_longer_than_100_columns(self):
        found = dict(self.sources())
        self.assertLessEqual({"scripts/exercise", "scripts/diff", "scripts/tests/base.py"},
                             set(found))
        long = [f"{name}:{number}" for name, text in found.items()
                for number, line in enumerate(text.splitlines(), 1) if len(line) > 100]
        self.assertEqual(long, [])


class Help(Scratch):
    def test_every_command_has_help_of_100_columns(self):
        commands = [name for name in os.listdir(SCRIPTS) if os.path.isfile(f"{SCRIPTS}/{name}")]
        self.assertIn("figures", commands)
        parts = [f"figures {part}" for part in ("measure", "draw", "clock", "profile", "capture")]
        for command in map(str.split, commands + parts):
            said = self.run_it(os.path.join(SCRIPTS, command[0]), *command[1:], "--help",
                               COLUMNS="100").stdout
            self.assertRegex(said, f"(?i)usage: (scripts/)?{' '.join(command)}")
            self.fits(said)


if __name__ == "__main__":
    unittest.main()
