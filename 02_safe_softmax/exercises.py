"""Defines how scripts/exercise checks this rung's exercises, build tasks and bug hunts; the lesson
holds their texts. kinds.py describes the classes. A Change gives the requested bytes at the two
shapes of kinds.COUNTED. An edit replaces a text that occurs once in its file."""

from __future__ import annotations

import math

from ladder.exercises.kinds import (BugHunt, BuildTask, Change, Experiment, Mistake, Numbers,
                                    Program, Words)
def every_row_is_zero(program: Program) -> bool:
    """Returns whether O is zero everywhere: finite, with a relative error of 1."""
    run = program.run("")
    error = run.records[0]["errors"]["o"] if run.records else {}
    return bool(error) and not error["nonfinite"] and math.isclose(error["rel"], 1, rel_tol=1e-3)


EXERCISES = [
    Numbers("bytes", {"bytes requested": 273_600}),
    Numbers("one_key", {"the sum": 1, "P": 1}),
    Experiment("shift", "attention.cu", [
        Mistake(every_row_is_zero,
                "every exponential has become 0, so each row is mistaken for one that attends "
                "to no key, and O = 0: a relative error of 1",
                [("  m = warp_max(m);\n", "  m = warp_max(m);\n  m += 110;\n")])]),
    Words("bound"),
    Numbers("price", {"the factor": 1.193}, 0.005),
    Change("hidden", "attention.cu", [1_394_432, 1_689_600], [
        ("""\
  float m = -INFINITY;
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
""", """\
  const int64_t seen = first + ceil_div(p.keys(static_cast<int>(row % p.N)), 8) * 8;
  float m = -INFINITY;
  for (int64_t j = first + 8 * lane_id(); j < seen; j += 8 * 32) {
"""),
        ("""\
  float sum = 0;
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
""", """\
  float sum = 0;
  for (int64_t j = first + 8 * lane_id(); j < seen; j += 8 * 32) {
"""),
        ("  return {\n", """\
  int64_t chunks = 0;  // of 8 elements of S that a head's queries attend to
  for (int i = 0; i < p.N; ++i) chunks += ceil_div(p.keys(i), 8);
  const int64_t seen = heads * chunks * 8 * kIoBytes;
  return {
"""),
        ('{"S", 3 * S, 0}', '{"S", 2 * seen + S, 0}')]),
]

# Each names the step to write, the minutes, and the checks that the unchanged previous step fails.
BUILD_TASKS = [
    BuildTask("safe", 30, ["results"], cases=("--seqlen 113 --scale 6.25 --input outliers",),
              blanks=True),
]

# Each plants a mistake in a step. The reader sees the symptoms, listed for the shapes of
# bug_hunts.SHAPES, and has to find the line; the explanation is shown afterwards.
BUG_HUNTS = [
    BugHunt("nothing", "attention.cu", "whole tiles, ragged, causal: correct; few keys: o wrong",
            "The maximum of a row that attends to no key is −∞, and −∞ − (−∞) is NaN. The line "
            "that sets the maximum to 0 is missing.",
            [("  if (m == -INFINITY) m = 0;  // a row that attends to no key: exp(−∞ − 0) = 0\n",
              "")]),
    BugHunt("short", "attention.cu",
            "whole tiles: correct; ragged, causal, few keys: o wrong",
            "The last slice of keys is left out if it is not a whole one. The number of slices is "
            "ceil_div(N_kv, kInner), not N_kv / kInner.",
            [("const int slices = ceil_div(p.N_kv, kInner);",
              "const int slices = p.N_kv / kInner;")]),
]
