"""Defines how scripts/exercise checks this rung's exercises and bug hunts; the lesson holds their
texts. kinds.py describes the classes. A Change gives the requested bytes at the two shapes of
kinds.COUNTED. An edit replaces a text that occurs once in its file."""

from ladder.exercises.kinds import BugHunt, Change, Experiment, Mistake, Numbers, Words
EXERCISES = [
    Numbers("bytes", {"bytes requested": 274_800}),
    Numbers("square", {"the factor": 3.44}, 0.005),
    Experiment("old_sum", "attention.cu", [
        Mistake({"--block-kv 64": {"o"}, "--block-kv 256": set()},
                "with --block-kv 64 `o` is wrong and `lse` is correct; with 256 there is one "
                "visit, and the mistake has no effect",
                [("old_weight[thread] = alpha * l * inverse;",
                  "old_weight[thread] = alpha * inverse;")])]),
    Words("br"),
    Numbers("break_even", {"keys at d = 64": 43, "keys at d = 128": 71}, 0.03),
    Change("first_visit", "attention.cu", [639_600, 604_800], [
        ("initialise(Hbm<float> O_fp32, Hbm<float> l,", "initialise(Hbm<float> l,"),
        ("  if (i < rows * p.d) O_fp32[i] = 0;\n", ""),
        ("        load(O, O_rows, p.d, rows, p.d);",
         "        if (key > 0) load(O, O_rows, p.d, rows, p.d);  // a fragment begins as zeros"),
        ("dim3(kElementwise), 0, O_fp32, l, m, p);", "dim3(kElementwise), 0, l, m, p);"),
        ('{"initialise", {{"O_fp32", 0, O_fp32}, {"l",', '{"initialise", {{"l",'),
        ('{"O_fp32", O_fp32 * Tc, O_fp32', '{"O_fp32", O_fp32 * (Tc - 1), O_fp32')]),
]

# Each plants a mistake in a step. The reader sees the symptoms, listed for the shapes of
# bug_hunts.SHAPES, and has to find the line; the explanation is shown afterwards.
BUG_HUNTS = [
    BugHunt("units", "attention.cu", "always: lse wrong",
            "m is kept in units of ln 2, for exp2: LSE = m·ln 2 + ln l.",
            [("m[i] * kLn2 + logf(l[i])", "m[i] + logf(l[i])")]),
    BugHunt("crowd", "attention.cu",
            "always: o wrong or correct, depending on thread order",
            "The second barrier is missing. A warp that has added up the warps' sums of these 16 "
            "rows writes its sums of the next 16, while other warps still read.",
            [("  __syncthreads();  // the warps' sums may be overwritten\n", "")]),
]
