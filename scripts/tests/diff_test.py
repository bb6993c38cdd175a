"""Tests of scripts/diff, on a small ladder in a folder of its own and on the real one.

Run alone: python3 scripts/tests/diff_test.py
"""

import fcntl
import glob
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

from base import SECONDS

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/diff")
ESCAPE = re.compile(r"\033\[[0-9;]*m")


def source(rung, variant, after, *lines, more=""):
    return "\n".join([*lines, f'const Register r{{{{.rung = "{rung}",', f'  .name = "{variant}",',
                      f'  {more}.after = "{after}"}}}};', ""])


class DiffTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        os.mkdir(os.path.join(self.root, "scripts"))
        shutil.copy(SCRIPT, os.path.join(self.root, "scripts"))
        shutil.copytree(os.path.join(os.path.dirname(SCRIPT), "ladder"),
                        os.path.join(self.root, "scripts/ladder"),
                        ignore=shutil.ignore_patterns("__pycache__"))
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in ("NO_COLOR", "COLUMNS")}
        self.environment["TERM"] = "xterm"
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        # No variant is called as its file, nor do the files' names follow the steps' order.
        self.write("00_first/attention.cu", "a\nb\nc\n")
        self.write("01_second/zig.cu", source("01_second", "early", "", "a", "b", "c"))
        self.write("01_second/alpha.cu", source("01_second", "late", "early", "a", "B", "c"))
        self.write("01_second/attention.cu",
                   source("01_second", "last", "late", "a", "B", "c", "d"))
        self.write("01_second/sm90.cu", source("01_second", "sm90", "last", "a", "tma"))
        self.write("02_third/attention.cu", source("02_third", "last", "", "a", "B", "c", "e"))

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def diff(self, *words, cwd=None, **environment):
        return subprocess.run([os.path.join(self.root, "scripts/diff"), *words],
                              cwd=cwd or self.root, env={**self.environment, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              timeout=SECONDS)

    def on_a_terminal(self, *words, columns=80, **environment):
        try:
            main, other = pty.openpty()
        except OSError as error:  # a container without /dev/pts
            self.skipTest(f"no pseudo-terminal: {error}")
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
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
        self.write("01_second/late.cu", source("01_second", "zig", "sm90", "x"))
        self.assertIn("+++ 01_second/late.cu", self.diff("00", "01/late").stdout)
        self.assertIn("+++ 01_second/zig.cu", self.diff("00", "01/zig").stdout)

    def test_what_is_unknown_is_status_2_with_what_is_known(self):
        for name in ("07", "01/nosuch", "nosuch", "0", "1_second", "00/last", "/zig"):
            with self.subTest(name):
                result = self.diff("00", name)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(f"there is no {name}. The rungs and their steps:\n", result.stderr)
                self.assertIn("  00_first            00\n"
                              "  01_second           01/zig (early), 01/alpha (late), 01 (last), "
                              "01/sm90\n", result.stderr)

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
        for word in ("scripts/diff 02 03", "--side-by-side", "--stat", "Exit status"):
            self.assertIn(word, result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)

    # ---- unified ----

    def test_unified(self):
        result = self.diff("01/zig", "01/alpha")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(result.stdout, "\n".join([
            "--- 01_second/zig.cu",
            "+++ 01_second/alpha.cu",
            "@@ -1,6 +1,6 @@",
            " a",
            "-b",
            "+B",
            " c",
            ' const Register r{{.rung = "01_second",',
            '-  .name = "early",',
            '-  .after = ""}};',
            '+  .name = "late",',
            '+  .after = "early"}};',
            "01_second/zig.cu → 01_second/alpha.cu, lines: 3 added, 3 removed, 3 kept",
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
        for words in (("01", "01/last"), ("-y", "01", "01")):
            result = self.diff(*words)
            self.assertEqual(result.returncode, 0)
            self.assertEqual(result.stdout, "01_second/attention.cu → 01_second/attention.cu, "
                                            "lines: 0 added, 0 removed, 7 kept\n")

    def test_diff_and_patch_agree(self):
        """The hunks are what `patch` reads."""
        if not shutil.which("patch"):
            self.skipTest("patch is missing")
        here = os.path.join(os.path.dirname(SCRIPT), "..")
        rungs = sorted(glob.glob(os.path.join(here, "[0-9][0-9]_*", "attention.cu")))[:3]
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
        rows = self.rows(self.diff("-y", "00", "01").stdout)
        self.assertEqual(rows, [("1", "a", "1", "a"), ("", "", "2", "loop"), ("2", "b", "3", "b"),
                                ("", "", "4", "end"), ("3", "c", "5", "c")])

    # ---- side by side ----

    def rows(self, text, digits=1):
        """(left number, left, right number, right) of each row, where numbers have so many
        digits."""
        found = []
        for line in text.splitlines():
            if " │" in line:
                left, right = line.split(" │")
                found.append(tuple(part.strip() for half in (left, right[1:])
                                   for part in (half[:digits], half[digits:])))
        return found[1:]  # not the names

    def test_side_by_side(self):
        result = self.diff("--side-by-side", "01/alpha", "01")
        self.assertEqual(result.returncode, 0)
        self.assertEqual(self.rows(result.stdout), [
            ("1", "a", "1", "a"), ("2", "B", "2", "B"), ("3", "c", "3", "c"), ("", "", "4", "d"),
            ("4", 'const Register r{{.rung = "01_second",',
             "5", 'const Register r{{.rung = "01_second",'),
            ("5", '.name = "late",', "6", '.name = "last",'),
            ("6", '.after = "early"}};', "7", '.after = "late"}};')])
        self.assertTrue(result.stdout.endswith(", lines: 3 added, 2 removed, 4 kept\n"))

    def test_lines_that_share_words_stand_side_by_side(self):
        self.write("00_first/attention.cu", "gone();\nsum += exp(s[j] - m);\n\nx = 1;\n")
        self.write("01_second/attention.cu", "m = max(m, s[j]);\nnew();\nsum += exp(s[j]);\n}\n")
        self.assertEqual(self.rows(self.diff("-y", "00", "01").stdout), [
            ("1", "gone();", "", ""),
            ("", "", "1", "m = max(m, s[j]);"),
            ("", "", "2", "new();"),
            ("2", "sum += exp(s[j] - m);", "3", "sum += exp(s[j]);"),
            ("3", "", "", ""),
            ("4", "x = 1;", "", ""),
            ("", "", "4", "}")])

    def test_long_lines_go_on_in_the_next_row(self):
        long = "".join(chr(ord("a") + i % 26) for i in range(200))
        self.write("00_first/attention.cu", f"{long}\n")
        self.write("01_second/attention.cu", "short\n")
        out = self.diff("-y", "00", "01").stdout
        self.assertEqual("".join(left for _, left, _, _ in self.rows(out)), long)
        self.assertLessEqual(max(map(len, out.splitlines())), 160)

    def test_fits_the_terminal(self):
        self.write("00_first/attention.cu", f"{'long ' * 50}\n")
        self.write("01_second/attention.cu", f"{'other ' * 50}\n")
        for columns in (60, 120, 200):
            lines = ESCAPE.sub("", self.on_a_terminal("-y", "00", "01", columns=columns))
            widest = max(len(line) for line in lines.splitlines() if "│" in line)
            self.assertLessEqual(widest, columns)
            self.assertGreater(widest, columns - 10)

    def test_every_line_is_shown_once(self):
        """Side by side and unified show the same lines, for the real ladder."""
        stat = subprocess.run([sys.executable, SCRIPT, "--stat"], capture_output=True,
                              encoding="utf-8", check=True).stdout.splitlines()[1:]
        for line in stat[:4]:
            old, new, added, removed, kept = line.split()
            out = subprocess.run([sys.executable, SCRIPT, "-y", "-U", "9999", old, new],
                                 capture_output=True, encoding="utf-8", check=True).stdout
            rows = self.rows(out, len(str(int(kept) + max(int(added), int(removed)))))
            lefts, rights = ([int(row[i]) for row in rows if row[i]] for i in (0, 2))
            self.assertEqual(lefts, list(range(1, int(removed) + int(kept) + 1)))
            self.assertEqual(rights, list(range(1, int(added) + int(kept) + 1)))
            self.assertIn(f"lines: {added} added, {removed} removed, {kept} kept", out)

    # ---- the whole ladder ----

    def test_stat(self):
        result = self.diff("--stat")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([line.split() for line in result.stdout.splitlines()], [
            ["from", "to", "added", "removed", "kept"],
            ["00", "01/zig", "3", "0", "3"],
            ["01/zig", "01/alpha", "3", "3", "3"],
            ["01/alpha", "01", "3", "2", "4"],
            ["00", "01", "5", "1", "2"],
            ["01", "01/sm90", "3", "5", "2"],
            ["01", "02", "3", "3", "4"]])

    def test_stat_of_what_comes_after_the_rung(self):
        """Asides, a folder of the rung, and what is no step."""
        self.write("01_second/aside.cu", source("01_second", "aside", "last", "a", "aside",
                                                more=".aside = true, "))
        self.write("01_second/vendor.cu", source("01_second", "vendor", "", "a", "library",
                                                 more=".baseline = true, "))
        self.write("01_second/fast/two.cu", source("01_second", "second", "one", "a", "tma", "x"))
        self.write("01_second/fast/one.cu", source("01_second", "one", "sm90", "a", "tma"))
        self.write("01_second/fast/deeper/no.cu", source("01_second", "no", "last", "a"))
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
        result = self.diff("00", "01/vendor")
        self.assertEqual(result.returncode, 2)
        self.assertIn("  01_second           01/zig (early), 01/alpha (late), 01 (last), 01/aside, "
                      "01/sm90, 01/one, 01/two (second)\n", result.stderr)

    def test_a_step_that_follows_none(self):
        for after in ("nosuch", "lost"):
            with self.subTest(after):
                self.write("01_second/lost.cu", source("01_second", "lost", after, "a"))
                result = self.diff("--stat")
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn("01_second/lost.cu: from what .after says no way leads back",
                              result.stderr)

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
        for words in (("00", "01"), ("-y", "00", "01"), ("--stat",)):
            self.assertNotIn("\033", self.diff(*words).stdout)
            colour = self.on_a_terminal(*words, columns=160)
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
