"""How the exercises are checked. Their tasks, hints and answers stand in the lessons."""

from ladder.exercises.kinds import Change, Numbers

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
  int64_t seen = 0;  // pairs of a query and a key that it sees
  for (int i = 0; i < p.N; ++i) seen += p.keys(i);
  const int64_t PV = int64_t{p.B} * p.H * seen * p.d * kIoBytes;
  return {{"scores","""),
        ('{"P", S * p.d, 0}, {"V", S * p.d, 0}', '{"P", PV, 0}, {"V", PV, 0}')]),
]
