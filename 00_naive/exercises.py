"""How the exercises are checked. Their tasks, hints and answers stand in the lessons."""

from ladder.exercises.kinds import BugHunt, Change, Numbers
EXERCISES = [
    Numbers("bytes", {"bytes requested in all": 4_944_000}),
    Numbers("causal", {"bytes fewer with --causal": 0}),
    Numbers("shared_keys", {"by how many bytes the requested ones of `scores` change": 0,
                            "distinct bytes that `scores` then reads": 294_912}),
    Numbers("edge", {"the smallest multiple of 0.25 that fails": 2.5}),
    Numbers("one_key", {"rows that are right": 210}),
    Change("last_key", "attention.cu", [44_016_000, 33_088_000], [
        ("j < p.N_kv; ++j) o = fmaf", "j < p.keys(i); ++j) o = fmaf"),
        ('  return {{"scores",', """\
  int64_t seen = 0;  // pairs of a query and a key that it attends to
  for (int i = 0; i < p.N; ++i) seen += p.keys(i);
  const int64_t PV = int64_t{p.B} * p.H * seen * p.d * kIoBytes;
  return {{"scores","""),
        ('{"P", S * p.d, 0}, {"V", S * p.d, 0}', '{"P", PV, 0}, {"V", PV, 0}')]),
]

# Mistakes to be found by what they do.
BUG_HUNTS = [
    BugHunt("future", "attention.cu", "whole tiles, ragged: right; causal, few keys: o wrong",
            "A query attends to itself and what comes before it; this mask compares with the key "
            "after, and so hides the query's own key.",
            [("p.attends(i, j) ?", "p.attends(i, j + 1) ?")]),
    BugHunt("borrowed", "attention.cu", "whole tiles, causal, few keys: right; ragged: o wrong",
            "Neighbouring query heads share a head of K and V: head h has ⌊h·Hk/H⌋. This takes "
            "turns instead, h mod Hk, which is the same for one head of each and only then.",
            [("const int64_t v = p.kv_row(bh) * p.d + c;",
              "const int64_t v = (bh / p.H * p.Hk + bh % p.Hk) * p.N_kv * p.d + c;")]),
]
