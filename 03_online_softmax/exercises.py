"""Defines how scripts/exercise checks this rung's exercises, build tasks and bug hunts; the lesson
holds their texts. kinds.py describes the classes. A Change gives the requested bytes at the two
shapes of kinds.COUNTED. An edit replaces a text that occurs once in its file."""

from ladder.exercises.kinds import BugHunt, BuildTask, Change, Experiment, Mistake, Numbers
EXERCISES = [
    Numbers("recurrence", {"the last m": 5, "the last l": 2.057}, 0.001),
    Numbers("bytes", {"bytes requested": 144_000}),
    Experiment("rescaling", "attention.cu", [
        Mistake({"": {"o"}, "--seqlen-kv 32": set()},
                "the default size is wrong; with --seqlen-kv 32 there is a single tile of keys, "
                "and the mistake has no effect",
                [("    mul_rows(O_sum, alpha);\n", "")])]),
    Numbers("one_more", {"the factor": 2.125}, 0.001),
    Numbers("causal", {"bytes that `one_pass` saves": 16_711_680}),
    Change("skip", "attention.cu", [652_800, 757_760], [
        ("  const float c = p.scale * kLog2e;  //", """\
  const int keys = p.keys(min(row + kWarpRows, p.N) - 1);  // that the warp's last row attends to
  const float c = p.scale * kLog2e;                        //"""),
        ("(tile_K, K_head, p.d, p.N_kv, p.d", "(tile_K, K_head, p.d, keys, p.d"),
        ("key < p.N_kv; key += kWarpKeys", "key < keys; key += kWarpKeys"),
        ("p.N_kv - key, p.d", "keys - key, p.d"),
        ("if (key + kWarpKeys < p.N_kv)", "if (key + kWarpKeys < keys)"),
        ("p.N_kv - key - kWarpKeys", "keys - key - kWarpKeys"),
        ("  mul_rows(O_sum, inverse_or_zero(l));\n", """\
  cp_async_wait<0>();
  __syncwarp();  // Q has arrived even if there were no keys
  mul_rows(O_sum, inverse_or_zero(l));
"""),
        ("""\
  const int64_t k = heads * p.N_kv * p.d * kIoBytes * ceil_div(p.N, plan.block_q);
""", """\
  int64_t rows = 0;  // rows of K or V that a head's warps read
  for (int64_t row = 0; row < p.N; row += plan.block_q)
    rows += p.keys(static_cast<int>(std::min<int64_t>(row + plan.block_q, p.N) - 1));
  const int64_t k = heads * rows * p.d * kIoBytes;
""")]),
]

# Each names the step to write, the minutes, and the checks that the unchanged previous step fails.
BUILD_TASKS = [
    BuildTask("softmax", 45, ["S", "S sectors"], blanks=True,
              unchecked="that no thread keeps a row of S in its registers"),
    BuildTask("two_pass", 90, ["P", "Q", "S", "P sectors", "Q sectors", "S sectors",
                               "workspace_bytes"]),
    BuildTask("one_pass", 45, ["K", "K sectors", "exp_count"], blanks=True),
]

# Each plants a mistake in a step. The reader sees the symptoms, listed for the shapes of
# bug_hunts.SHAPES, and has to find the line; the explanation is shown afterwards.
BUG_HUNTS = [
    BugHunt("heavy", "one_pass.cu", "always: o wrong",
            "When the maximum grows, the sums so far have to be rescaled by alpha, o as well as l.",
            [("alpha * o[8 * c + e]", "o[8 * c + e]")]),
]

# Answers that build_tasks_test hands in, as (task, file, edits of the file, whether the answer is
# correct, pattern of the verdict). In these edits the old text is a regular expression.
ATTEMPTS = [
    ("03/one_pass", "03_online_softmax/two_pass.cu", [  # keeps scores in an array of its own
        (r"o\[Dh\] = \{\};\n", "o[Dh] = {}, scores[4096];\n"),
        (r"const float s = score\(j\);", "const float s = scores[j] = score(j);"),
        (r"expf\(score\(j\) - m\)", "expf(scores[j] - m)"),
        (r'\{"K", 2 \* k, 0\}', '{"K", k, 0}')], False, "exp_count: 196,608; .* 131,072"),
    ("03/one_pass", "03_online_softmax/two_pass.cu", [
        (r"Hbm<const T> K, Hbm<const T> V", "const T* K, const T* V"),
        (r"read_chunk\((K \+ \(k_row \+ 8 \* c\))\)", r"\1"),
        (r"read_chunk\((V \+ \(v_row \+ 8 \* c\))\)", r"\1"),
        (r', K = hbm<const T>\(a\["K"\]\), V = hbm<const T>\(a\["V"\]\);',
         '; const auto K = static_cast<const T*>(a["K"].data), '
         'V = static_cast<const T*>(a["V"].data);'),
        (r', \{"K", 2 \* k, 0\}, \{"V", k, 0\}', "")], False,
     "K is in HBM: host code cannot touch it, and a kernel only through Hbm"),
]
