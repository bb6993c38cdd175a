"""Mistakes of the kind that one makes, each a change to a sound source, that the tests must find;
climb_test has more, which learners are shown.

`mistakes.py BUILD` builds the suite of each rung that has some with copies of its sources that hold
all of them, and runs it on each: LADDER_MISTAKE chooses one while the program runs, or none. A
mistake whose text is no longer in its source is not found: the source has moved on, and so must
this table.
"""

import collections
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import unittest

from base import ROOT, scratch
from ladder.base.changed import changed
from ladder.base.sources import included

# What the tests say of a mistake, and, by that, which tests of its step must find it.
WRONG, FAULT, BITS, FORMULA = "max error", "exception .* kernel .*", r"\.bits\n", r" formula\n"
CASES = ":".join(f"Sim.*/{{0}}_{case}" for case in
                 ("ragged_grouped", "long_causal", "keys_before", "values_that_grow"))
TESTS = collections.defaultdict(lambda: CASES, {BITS: "Schedules.*/{0}"})

# `was`, where it stands first in the source, becomes `now`, WAS in it being that; ON is whether the
# mistake is chosen. `step` is the one that must come out wrong.
Mistake = collections.namedtuple("Mistake", "step name was now says")

MISTAKES = {
    "01_tiled_matmul/tile.cu": [
        Mistake("tile", "no_first_barrier", "__syncthreads();  // the tiles are complete",
                "if (!ON) WAS", FAULT),  # reads what nobody wrote
        Mistake("tile", "no_second_barrier", "__syncthreads();  // everybody is done with them",
                "if (!ON) WAS", BITS),
        Mistake("tile", "loads_past_the_end", "inside && i < p.N", "WAS + ON", FAULT),
        Mistake("tile", "makes_rows_of_the_block_before", "int64_t{blockIdx.x} * kRowThreads",
                "int64_t{blockIdx.x} * (kRowThreads - ON)", FAULT + "wrote in the same kernel"),
        Mistake("tile", "formula_misses_the_last_tile", "ceil_div(p.N_kv, kTile)",
                "(ON ? p.N_kv / kTile : WAS)", FORMULA),
    ],
    # Of e4m3: an order of keys, scales and layouts.
    "05_flash_v2/hopper/fp8.cu": [
        Mistake("fp8", "keys_as_they_come", "return column_at(i)",
                "return ON ? i : column_at(i)", WRONG),
        Mistake("fp8", "forgets_the_scale_of_V", "exp2_fast(-of_V) * row_sum",
                "(ON ? 1 : exp2_fast(-of_V)) * row_sum", WRONG),
        Mistake("fp8", "takes_another_heads_scale",
                "scales[work.head * scaled.q + row / kWarpgroupRows]",
                "scales[(ON ? 0 : work.head * scaled.q) + row / kWarpgroupRows]", WRONG),
        Mistake("fp8", "transforms_Q_alone", "if (how.hadamard)",
                "if (how.hadamard && (is_Q || !ON))", WRONG),
        Mistake("fp8", "no_barrier_when_transposed", "__syncthreads();  // the tile is transposed",
                "if (!ON) WAS", FAULT + "transposed"),
    ],
}


# At the head of a copy: which mistake is chosen.
CHOSEN = """\
#include <cstdlib>
namespace ladder { inline const int kMistake = std::atoi(std::getenv("LADDER_MISTAKE")); }
#line 1 "%s"
"""


def plant(source, folder):
    """Writes the copy of a source with all its mistakes; its path."""
    path = pathlib.Path(ROOT, source)
    text = path.read_text(encoding="utf-8")
    for header, inlined in reversed(included(source, text).items()):  # may hold mistakes too
        line = f'#include "{os.path.basename(header)}"\n'
        before, _, after = text.partition(line)
        text = before + inlined + after.replace(line, "")
    for number, m in enumerate(MISTAKES[source]):
        now = m.now.replace("ON", f"(ladder::kMistake == {number})").replace("WAS", m.was)
        text = text.replace(m.was, now, 1)
    copy = pathlib.Path(folder, source.replace("/", "."))
    copy.write_text(CHOSEN % path + text, encoding="utf-8")
    return str(copy)


class Mistakes(unittest.TestCase):
    build = ""

    @classmethod
    def setUpClass(cls):
        folder = scratch(cls)

        def built(source):
            return changed(cls.build, f"{source.split('/')[0]}_test", source,
                           plant(source, folder), os.path.join(folder, "made", source))

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            cls.programs = dict(zip(MISTAKES, pool.map(built, MISTAKES)))

    def suite(self, source, mistakes, number):
        tests = ":".join({TESTS[m.says].format(m.step) for m in mistakes})
        return subprocess.run([self.programs[source], f"--gtest_filter={tests}"], check=False,
                              env={**os.environ, "LADDER_MISTAKE": str(number)}, encoding="utf-8",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def test_each_is_found(self):
        for source, mistakes in MISTAKES.items():
            for number, m in enumerate(mistakes):
                with self.subTest(f"{m.step}: {m.name}"):
                    result = self.suite(source, [m], number)
                    self.assertEqual(result.returncode, 1, result.stdout)
                    self.assertRegex(result.stdout, m.says)

    def test_without_one_nothing_is(self):
        for source, mistakes in MISTAKES.items():
            result = self.suite(source, mistakes, -1)
            self.assertEqual(result.returncode, 0, result.stdout)


if __name__ == "__main__":
    Mistakes.build = os.path.abspath(sys.argv.pop(1))
    unittest.main()
