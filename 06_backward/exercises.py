"""Defines how scripts/exercise checks this rung's exercises, build tasks and bug hunts; the lessons
hold their texts. kinds.py describes the classes. A Change gives the requested bytes at the two
shapes of kinds.COUNTED. An edit replaces a text that occurs once in its file."""

from ladder.exercises.kinds import BugHunt, BuildTask, Change, Experiment, Mistake, Numbers, Words
EXERCISES = [
    Numbers("bytes", {"bytes of the backward pass": 723_456}),
    Numbers("textbook", {"the largest N, a multiple of 128": 128}),
    Experiment("without_d", "attention.cu", [
        Mistake({"": {"dq", "dk"}},
                "dq and dk are wrong and dv is correct: dV does not need the softmax's derivative",
                [("""\
    fill_rows(dP, load_rows<kWarpRows>(minus_delta_tile + of_S.row));
""", "")])]),
    Words("one_key"),
    Numbers("last_row", {"P": 1}),
    Numbers("no_key", {"tiles computed, of 6": 3}),
    Change("d_first", "stored.cu", [2_236_800, 2_566_400], [
        ("softmax_gradient(Hbm<const T> P, Hbm<T> dP, Problem p) {", """\
softmax_gradient(Hbm<const T> P, Hbm<T> dP, Hbm<const T> O, Hbm<const T> dO,
                                 Problem p) {"""),
        ("""\
  for (int64_t j = first + 8 * lane_id(); j < last; j += 8 * 32) {
    const auto p_j = read_chunk(P + j), dp_j = read_chunk(dP + j);
    for (int e = 0; e < 8; ++e) delta += weighted(float(p_j[e]), float(dp_j[e]));
""", """\
  for (int64_t c = row * p.d + 8 * lane_id(); c < (row + 1) * p.d; c += 8 * 32) {
    const auto o = read_chunk(O + c), g = read_chunk(dO + c);
    for (int e = 0; e < 8; ++e) delta += float(o[e]) * float(g[e]);
"""),
        ('  const auto dO = hbm<const T>(a["dO"]);',
         '  const auto O = hbm<const T>(a["O"]), dO = hbm<const T>(a["dO"]);'),
        ("dim3(32 * kRowWarps), 0, P, dP, p);", "dim3(32 * kRowWarps), 0, P, dP, O, dO, p);"),
        ('{"dS", {{"P", 2 * S, 0}, {"dP", 2 * S, S}}}',
         '{"dS", {{"P", S, 0}, {"dP", S, S}, {"O", q, 0}, {"dO", q, 0}}}')]),
    Numbers("shared_memory", {"bytes of an iteration": 229_376}),
]

# Each names the step to write, the minutes, and the checks that the unchanged previous step fails.
BUILD_TASKS = [
    BuildTask("recompute", 180, ["P", "dP"]),
    BuildTask("stages", 60, ["flops_under_copies"], blanks=True),
    BuildTask("transposed", 90, ["sram_write_bytes"], blanks=True,
              unchecked="that one barrier is gone"),
    BuildTask("bulk_add", 120, ["dQ_sum sectors", "atomics"],
              unchecked="that TMA stores dK and dV"),
    BuildTask("ahead", 60, ["stores_under_products"], blanks=True,
              unchecked="that the product in flight is one whose result is used"),
]

# Each plants a mistake in a step. The reader sees the symptoms, listed for the shapes of
# bug_hunts.SHAPES, and has to find the line; the explanation is shown afterwards.
BUG_HUNTS = [
    BugHunt("alone", "stored.cu",
            "whole tiles, causal, few keys: correct; ragged: dk, dv wrong",
            "All query heads that share a head of K and V add to its dK and dV: H/Hk·N queries.",
            [("const int queries = p.H / p.Hk * p.N;", "const int queries = p.N;")]),
    BugHunt("late", "recompute.cu",
            "whole tiles, ragged, causal: correct; few keys: dq, dk, dv wrong",
            "The rows for a tile of keys begin with the first that attends to its first key. Here "
            "they begin with the first that attends to its last key, so the rows that attend to "
            "only some of the keys are left out.",
            [("p.first_query(key) / Br * Br", "p.first_query(key + Bc - 1) / Br * Br")]),
    BugHunt("slope", "deterministic.cu", "always: dk wrong",
            "S = scale·Q·Kᵀ, so dK = scale·dSᵀ·Q: the scale is missing.",
            [("  if (!sums_dV) for_each(sum, [&](int, int, float& x) { x *= p.scale; });\n", "")]),
    BugHunt("overlay", "deterministic.cu", "always: a fault",
            "The next tiles are copied into the stage whose tiles are still in use, instead of the "
            "other one.",
            [("if (kStages == 2) start_copies(next, 1 - stage);",
              "if (kStages == 2) start_copies(next, stage);")]),
]
