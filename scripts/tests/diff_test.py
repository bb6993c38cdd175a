"""Tests scripts/diff on three small rungs, which each test writes into a folder of its own."""

import re
import shutil

from fake_ladder import FakeLadder

FIRST, THIRD = "00_first/attention.cu", "02_third/attention.cu"
ZIG, ALPHA, LAST = ("01_second/zig.cu", "01_second/alpha.cu", "01_second/attention.cu")


class DiffTest(FakeLadder):
    def setUp(self):
        super().setUp()
        self.copy_scripts("diff")
        # The steps' names differ from their files', and the files are not in the steps' order.
        for path, step, lines in ((FIRST, "only", "a b c"), (ZIG, "early", "a b c"),
                                  (ALPHA, "late", "a B c"), (LAST, "last", "a B c d"),
                                  ("01_second/sm90.cu", "sm90", "a tma"),
                                  (THIRD, "last", "a B c e")):
            self.source(path, step, lines.split())
        self.rung("00_first", dict(only=""))
        self.rung("01_second", dict(early="", late="early", last="late", sm90="last"))
        self.rung("02_third", dict(last=""))

    def source(self, path, step, lines):
        self.write(path, "\n".join([*lines, "const Register r{{",
                                    f'  .name = "{step}"}}}};', ""]))

    def diff(self, *words, **more):
        return self.run_it(self.at("scripts/diff"), *words, **more)

    def test_steps_are_found_by_name(self):
        self.source("01_second/late.cu", "zig", "x")  # a file's name takes precedence over a step's
        self.source("01_second/fast/two.cu", "second", "x")
        self.rung("01_second", dict(early="", last="", zig="", second=""))
        for names, path in (
                ("01 01_second/ 01/attention 01_second/attention.cu 01/last", LAST),
                ("01/zig 01_second/zig.cu 01/early", ZIG), ("01/alpha", ALPHA),
                ("01/late", "01_second/late.cu"), ("02 02/last", THIRD),
                ("01/two 01/fast/two 01_second/fast/two.cu 01/second", "01_second/fast/two.cu")):
            for name in names.split():
                self.assertIn(f"\n+++ {path}\n", self.diff("00", name).stdout, name)

    def test_unknown_names_are_refused(self):
        for name in ("07", "01/nosuch", "0", "1_second", "00/last", "/zig"):
            self.assertRegex(self.diff("00", name, status=2).stderr,
                             rf"there is no {name}\.( Did you mean .*\?)? The rungs and their "
                             r"steps:\n  00_first            00 \(only\)\n  01_second           "
                             r"01/alpha \(late\), 01 \(last\), 01/sm90, 01/zig \(early\)\n")
        self.assertIn("there is no 01/alhpa. Did you mean 01/alpha? The rungs and their steps:\n",
                      self.diff("00", "01/alhpa", status=2).stderr)

    def test_the_shown_diff(self):
        """Each case has the old and the new lines, the options and the lines shown."""
        lines = [str(i) for i in range(40)]
        for old, new, options, shown in (
                # A line that only changes its indentation counts as kept.
                (["a", "b", "c"], ["a", "loop", "  b", "end", "c"], "-U 1",
                 "@@ -1,3 +1,5 @@| a|+loop|   b|+end| c|lines: 2 added, 0 removed, 5 kept"),
                (lines, ["first", *lines[:30], *lines[31:]], "-U 0", "@@ -1,0 +1,1 @@|+first|"
                 "@@ -31,1 +32,0 @@|-30|lines: 1 added, 1 removed, 41 kept"),
                (lines, [*lines[:9], *lines[10:]], "", "@@ -7,7 +7,6 @@| 6| 7| 8|-9| 10| 11| 12|"
                 "lines: 0 added, 1 removed, 41 kept"),
                (["a"], ["a"], "", "lines: 0 added, 0 removed, 3 kept")):
            self.source(FIRST, "one", old)
            self.source(LAST, "one", new)
            head = [f"--- {FIRST}", f"+++ {LAST}"] if old != new else []
            *expected, counts = shown.split("|")
            self.assertEqual(self.diff(*options.split(), "00", "01").stdout.splitlines(),
                             [*head, *expected, f"{FIRST} → {LAST}, {counts}"])

    def test_headers_of_the_folder_are_named(self):
        """Headers are named if only the new file includes them."""
        self.write("01_second/more.h", '#include "most.h"\n')
        self.write("01_second/most.h", "")
        self.source(ALPHA, "late", ['#include "more.h"', '#include "rung.h"'])
        self.source(LAST, "last", ['#include "most.h"'])
        for old, new, headers in (("01/zig", "01/alpha", "most more"), ("01/zig", "01", "most"),
                                  ("01", "01/alpha", "more"), ("01/alpha", "01", ""),
                                  ("01/alpha", "02", "")):
            said = self.diff("-U", "0", old, new).stdout
            self.assertEqual(re.findall(r"(?m)^01_second/.* includes 01_second/(.*)\.h$", said),
                             headers.split(), (old, new))

    def test_stat(self):
        """Steps for Hopper come after the rung's other steps. (lessons_test tests the counts.)"""
        self.assertEqual([line.split()[:2] for line in self.diff("--stat").stdout.splitlines()], [
            ["from", "to"], ["00", "01/zig"], ["01/zig", "01/alpha"], ["01/alpha", "01"],
            ["00", "01"], ["01", "01/sm90"], ["01", "02"]])
        shutil.rmtree(self.at("build"))
        self.assertIn("build/bin has no rung's program", self.diff("--stat", status=2).stderr)
        self.diff("00", "01")

    def test_a_closed_pipe_ends_it_quietly(self):
        self.source(FIRST, "only", "x" * 100_000)
        result = self.run_it("bash", "-o", "pipefail", "-c", "scripts/diff 00 01 | head -n 1",
                             status=141)
        self.assertEqual((result.stdout, result.stderr), (f"--- {FIRST}\n", ""))
