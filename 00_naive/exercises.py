"""Defines how scripts/exercise checks this rung's exercises and bug hunts; the lesson holds their
texts. kinds.py describes the classes. A Change gives the requested bytes at the two shapes of
kinds.COUNTED. An edit replaces a text that occurs once in its file."""

from ladder.exercises.kinds import BugHunt, Change, Numbers
EXERCISES = [
    Numbers("bytes", {"bytes requested in all": 4_944_000}),
    Numbers("causal", {"bytes fewer with --causal": 0}),
    Numbers("shared_keys", {"change in the bytes that `scores` requests": 0,
                            "distinct bytes that `scores` reads with one head of K": 294_912}),
    Numbers("edge", {"the smallest multiple of 0.25 that fails": 2.5}),
    Numbers("one_key", {"correct rows": 210}),
    Change("last_key", "attention.cu", [44_016_000, 33_088_000], [
        ("j < p.N_kv; ++j) o = fmaf", "j < p.keys(i); ++j) o = fmaf"),
        ('  return {{"scores",', """\
  int64_t seen = 0;  // pairs of a query and a key that it attends to
  for (int i = 0; i < p.N; ++i) seen += p.keys(i);
  const int64_t PV = int64_t{p.B} * p.H * seen * p.d * kIoBytes;
  return {{"scores","""),
        ('{"P", S * p.d, 0}, {"V", S * p.d, 0}', '{"P", PV, 0}, {"V", PV, 0}')]),
]

# Each plants a mistake in a step. The reader sees the symptoms, listed for the shapes of
# bug_hunts.SHAPES, and has to find the line; the explanation is shown afterwards.
BUG_HUNTS = [
    BugHunt("future", "attention.cu", "whole tiles, ragged: correct; causal, few keys: o wrong",
            "A query attends to itself and to the keys before it. This mask compares with the next "
            "key, so it masks the query's own key.",
            [("p.attends(i, j) ?", "p.attends(i, j + 1) ?")]),
    BugHunt("borrowed", "attention.cu", "whole tiles, causal, few keys: correct; ragged: o wrong",
            "Neighbouring query heads share a head of K and V: query head h uses ⌊h·Hk/H⌋. This "
            "takes h mod Hk instead, which is the same only if Hk is 1 or H.",
            [("const int64_t v = p.kv_row(bh) * p.d + c;",
              "const int64_t v = (bh / p.H * p.Hk + bh % p.Hk) * p.N_kv * p.d + c;")]),
]
