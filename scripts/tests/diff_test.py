"""Tests of scripts/diff, on a small ladder in a folder of its own and on the real one.

Run alone: python3 scripts/tests/diff_test.py
"""

import glob
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from base import ROOT, SCRIPTS, SECONDS, listed, program, write

SCRIPT = os.path.join(SCRIPTS, "diff")
ESCAPE = re.compile(r"\033\[[0-9;]*m")


def source(variant, *lines, more=""):
    return "\n".join([*lines, "const Register r{{" + more, f'  .name = "{variant}"}}}};', ""])


class DiffTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        os.mkdir(os.path.join(self.root, "scripts"))
        shutil.copy(SCRIPT, os.path.join(self.root, "scripts"))
        shutil.copytree(os.path.join(SCRIPTS, "ladder"), os.path.join(self.root, "scripts/ladder"),
                        ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in ("NO_COLOR", "COLUMNS")}
        self.environment["TERM"] = "xterm"
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        # No variant is called as its file, nor do the files' names follow the steps' order.
        self.write("00_first/attention.cu", source("only", "a", "b", "c"))
        self.write("01_second/zig.cu", source("early", "a", "b", "c"))
        self.write("01_second/alpha.cu", source("late", "a", "B", "c"))
        self.write("01_second/attention.cu", source("last", "a", "B", "c", "d"))
        self.write("01_second/sm90.cu", source("sm90", "a", "tma"))
        self.write("02_third/attention.cu", source("last", "a", "B", "c", "e"))
        self.program("00_first", ("only", ""))
        self.program("01_second", ("early", ""), ("late", "early"), ("last", "late"),
                     ("sm90", "last"))
        self.program("02_third", ("last", ""))

    def write(self, path, text):
        write(self.root, path, text=text)

    def program(self, rung, *steps):
        """One that lists these: (step, the one that it follows)."""
        program(os.path.join(self.root, "build/bin", rung),
                [listed(rung, step, after=after) for step, after in steps])

    def diff(self, *words, cwd=None, **environment):
        return subprocess.run([os.path.join(self.root, "scripts/diff"), *words],
                              cwd=cwd or self.root, env={**self.environment, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              timeout=SECONDS)

    def on_a_terminal(self, *words, **environment):
        try:
            main, other = pty.openpty()
        except OSError as error:  # a container without /dev/pts
            self.skipTest(f"no pseudo-terminal: {error}")
        with subprocess.Popen([os.path.join(self.root, "scripts/diff"), *words], cwd=self.root,
                              env={**self.environment, **environment}, stdin=other, stdout=other,
                              stderr=other) as process:
            os.close(other)
            out = b""
            try:
                while part := os.read(main, 65536):
                    out += part
            except OSError:  # how Linux says that nobody has the terminal open any more
                pass
        os.close(main)
        self.assertEqual(process.returncode, 0, out)
        return out.decode().replace("\r\n", "\n")

    # ---- which files ----

    def test_names_of_rungs_and_steps(self):
        zig, alpha, last = ("01_second/zig.cu", "01_second/alpha.cu", "01_second/attention.cu")
        for name, path in (("01", last), ("01_second", last), ("01_second/", last), ("01/", last),
                           ("01/attention", last), ("01_second/attention.cu", last),
                           ("01/last", last), ("01_second/last", last),
                           ("01/zig", zig), ("01_second/zig.cu", zig), ("01/early", zig),
                           ("01/alpha", alpha), ("01/late", alpha),
                           ("01/sm90", "01_second/sm90.cu")):
            with self.subTest(name):
                result = self.diff("00", name)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(f"\n+++ {path}\n", result.stdout)

    def test_a_file_of_a_name_comes_before_a_variant_of_it(self):
        self.write("01_second/late.cu", source("zig", "x"))
        self.assertIn("+++ 01_second/late.cu", self.diff("00", "01/late").stdout)
        self.assertIn("+++ 01_second/zig.cu", self.diff("00", "01/zig").stdout)

    def test_what_is_unknown_is_status_2_with_what_is_known(self):
        for name in ("07", "01/nosuch", "nosuch", "0", "1_second", "00/last", "/zig"):
            with self.subTest(name):
                result = self.diff("00", name)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(f"there is no {name}. The rungs and their steps:\n", result.stderr)
                self.assertIn("  00_first            00 (only)\n"
                              "  01_second           01/alpha (late), 01 (last), 01/sm90, "
                              "01/zig (early)\n", result.stderr)

    def test_bad_usage_is_status_2(self):
        for words in ((), ("00",), ("00", "01", "02"), ("--stat", "00", "01"), ("--nosuch",),
                      ("-U", "-1", "00", "01"), ("-U", "x", "00", "01")):
            with self.subTest(words):
                result = self.diff(*words)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn("scripts/diff: error", result.stderr)

    def test_a_file_that_cannot_be_read(self):
        with open(os.path.join(self.root, "02_third/attention.cu"), "wb") as file:
            file.write(b"\xff")
        result = self.diff("00", "01")
        self.assertEqual(result.returncode, 2)
        self.assertIn("cannot read 02_third/attention.cu", result.stderr)

    def test_from_any_folder(self):
        self.assertEqual(self.diff("00", "01", cwd="/").stdout, self.diff("00", "01").stdout)

    def test_help(self):
        result = self.diff("--help", COLUMNS="100")
        self.assertEqual(result.returncode, 0)
        for word in ("scripts/diff 02 03", "--context", "--stat", "Exit status"):
            self.assertIn(word, result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)

    # ---- unified ----

    def test_unified(self):
        result = self.diff("01/zig", "01/alpha")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "\n".join([
            "--- 01_second/zig.cu",
            "+++ 01_second/alpha.cu",
            "@@ -1,5 +1,5 @@",
            " a",
            "-b",
            "+B",
            " c",
            " const Register r{{",
            '-  .name = "early"}};',
            '+  .name = "late"}};',
            "01_second/zig.cu → 01_second/alpha.cu, lines: 2 added, 2 removed, 3 kept",
            ""]))

    def test_hunks_and_context(self):
        lines = [str(i) for i in range(40)]
        self.write("00_first/attention.cu", "\n".join(lines))
        self.write("01_second/attention.cu", "\n".join(["first", *lines[:30], *lines[31:]]))
        result = self.diff("00", "01")
        self.assertEqual([line for line in result.stdout.splitlines() if line.startswith("@@")],
                         ["@@ -1,3 +1,4 @@", "@@ -28,7 +29,6 @@"])
        result = self.diff("-U", "0", "00", "01")
        self.assertEqual(result.stdout.splitlines()[2:],
                         ["@@ -0,0 +1,1 @@", "+first", "@@ -31,1 +31,0 @@", "-30",
                          "00_first/attention.cu → 01_second/attention.cu, lines: 1 added, "
                          "1 removed, 39 kept"])
        result = self.diff("-U", "99", "00", "01")
        self.assertEqual(result.stdout.count("@@ -"), 1)

    def test_the_same_file(self):
        result = self.diff("01", "01/last")
        self.assertEqual((result.returncode, result.stdout), (
            0, "01_second/attention.cu → 01_second/attention.cu, lines: 0 added, 0 removed, "
               "6 kept\n"))

    def test_diff_and_patch_agree(self):
        """The hunks are what `patch` reads."""
        if not shutil.which("patch"):
            self.skipTest("patch is missing")
        rungs = sorted(glob.glob(os.path.join(ROOT, "[0-9][0-9]_*", "attention.cu")))[:3]
        for old, new in zip(rungs, rungs[1:]):
            names = [os.path.basename(os.path.dirname(path)) for path in (old, new)]
            made = subprocess.run([sys.executable, SCRIPT, *names], capture_output=True, check=True)
            patched = os.path.join(self.root, "patched")
            shutil.copy(old, patched)
            body = made.stdout[:made.stdout.rindex(b"\n", 0, -1) + 1]  # without the closing line
            subprocess.run(["patch", "--silent", "--ignore-whitespace", patched], input=body,
                           check=True, capture_output=True)
            with open(patched, "rb") as got, open(new, "rb") as expected:
                self.assertEqual([line.lstrip() for line in got],
                                 [line.lstrip() for line in expected])

    def test_what_is_only_indented_otherwise_is_kept(self):
        self.write("00_first/attention.cu", "a\nb\nc\n")
        self.write("01_second/attention.cu", "a\nloop\n  b\nend\nc\n")
        result = self.diff("00", "01")
        self.assertEqual(result.stdout.splitlines()[3:], [
            " a", "+loop", "   b", "+end", " c",
            "00_first/attention.cu → 01_second/attention.cu, lines: 2 added, 0 removed, 3 kept"])

    # ---- the whole ladder ----

    def test_stat(self):
        result = self.diff("--stat")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([line.split() for line in result.stdout.splitlines()], [
            ["from", "to", "added", "removed", "kept"],
            ["00", "01/zig", "1", "1", "4"],
            ["01/zig", "01/alpha", "2", "2", "3"],
            ["01/alpha", "01", "2", "1", "4"],
            ["00", "01", "3", "2", "3"],
            ["01", "01/sm90", "2", "4", "2"],
            ["01", "02", "1", "1", "5"]])

    def test_stat_of_what_comes_after_the_rung(self):
        """Asides, a folder of the rung, and what is no step."""
        self.write("01_second/aside.cu", source("aside", "a", "aside"))
        self.write("01_second/vendor.cu", source("vendor", "a", more=".baseline = true,"))
        self.write("01_second/fast/two.cu", source("second", "a", "tma", "x"))
        self.write("01_second/fast/one.cu", source("one", "a", "tma"))
        self.write("01_second/fast/deeper/no.cu", source("no", "a"))
        self.program("01_second", ("early", ""), ("late", "early"), ("last", "late"),
                     ("aside", "last"), ("sm90", "last"), ("one", "sm90"), ("second", "one"))
        self.assertEqual([line.split()[:2] for line in self.diff("--stat").stdout.splitlines()], [
            ["from", "to"], ["00", "01/zig"], ["01/zig", "01/alpha"], ["01/alpha", "01"],
            ["00", "01"], ["01", "01/aside"], ["01", "01/sm90"], ["01/sm90", "01/one"],
            ["01/one", "01/two"], ["01", "02"]])
        for name, path in (("01/two", "01_second/fast/two.cu"),
                           ("01/fast/two", "01_second/fast/two.cu"),
                           ("01_second/fast/two.cu", "01_second/fast/two.cu"),
                           ("01/second", "01_second/fast/two.cu"),
                           ("01/aside", "01_second/aside.cu")):
            with self.subTest(name):
                self.assertIn(f"\n+++ {path}\n", self.diff("00", name).stdout)
        self.assertEqual(self.diff("00", "01/vendor").returncode, 2)

    def test_stat_asks_the_programs(self):
        self.program("01_second", ("early", ""), ("gone", "early"))
        result = self.diff("--stat")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("01_second lists gone, which no file registers: scripts/run", result.stderr)
        shutil.rmtree(os.path.join(self.root, "build"))
        result = self.diff("--stat")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("no folder build/bin: scripts/run builds the programs", result.stderr)
        self.assertEqual(self.diff("00", "01").returncode, 0)

    def test_06_holds_05(self):
        """06's attention.cu adds the backward pass; of 05's no more goes or changes than the head
        comment and the registration."""
        made = subprocess.run([sys.executable, SCRIPT, "-U", "0", "05", "06"], capture_output=True,
                              encoding="utf-8", check=True).stdout
        removed = [line for line in made.splitlines()[2:] if line.startswith("-")]
        self.assertLessEqual(len(removed), 25, "\n".join(removed))
        for line in removed:
            self.assertRegex(line, r"^-(//|const Register|  +\.\w+ = )",
                             "neither comment nor registration")

    # ---- colour ----

    def test_colour_on_a_terminal_alone(self):
        for words in (("00", "01"), ("--stat",)):
            self.assertNotIn("\033", self.diff(*words).stdout)
            colour = self.on_a_terminal(*words)
            self.assertIn("\033[", colour)
            self.assertEqual(ESCAPE.sub("", colour), self.diff(*words).stdout)
            for off in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
                self.assertNotIn("\033", self.on_a_terminal(*words, **off))
            self.assertIn("\033", self.on_a_terminal(*words, NO_COLOR=""))
        colour = self.on_a_terminal("00", "01")
        self.assertIn("\033[31m-b\033[0m\n", colour)
        self.assertIn("\033[32m+B\033[0m\n", colour)

    # ---- what goes wrong ----

    def test_a_reader_that_has_seen_enough(self):
        self.write("00_first/attention.cu", "x\n" * 100_000)
        result = subprocess.run(["bash", "-c", "scripts/diff 00 01 | head -n 1"], cwd=self.root,
                                env=self.environment, capture_output=True, encoding="utf-8",
                                timeout=SECONDS)
        self.assertEqual((result.stdout, result.stderr), ("--- 00_first/attention.cu\n", ""))

    def test_a_locale_without_the_arrow(self):
        result = self.diff("00", "01", LC_ALL="C", PYTHONIOENCODING="ascii")
        self.assertEqual(result.returncode, 0)
        self.assertIn("→", result.stdout)


if __name__ == "__main__":
    unittest.main()
