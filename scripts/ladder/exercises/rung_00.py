"""Checks of 00's exercises."""

from ladder.exercises.cases import keys_seen
from ladder.exercises.kinds import Change, Numbers

SMALL = "--heads 3 --seqlen 100 --seqlen-kv 50 --head-dim 40"


def scores_bytes(lab, options, name):
    return lab.run(f"00_naive {options}")["kernels"][0][name]


def least_scale_that_fails(lab):
    quarter = 1
    while lab.start(lab.need_build("00_naive"), ["--scale", str(quarter / 4)]).status == 0:
        quarter += 1
    return quarter / 4


def rows_that_are_right(lab):
    run = lab.start(lab.need_build("00_naive"), ["--seqlen-kv", "1", "--scale", "20"])
    words = run.err.split(" in ")[1].split()  # "302 of the 512 rows checked"
    return int(words[3]) - int(words[0])


def stops_at_the_last_key(record):
    """`output` reads P and V once for each key that a query sees, and each column of O."""
    seen = sum(keys_seen(record, row) for row in range(record["seqlen"]))
    read = 2 * record["batch"] * record["heads"] * seen * record["head_dim"]
    return {("output", "P"): (read, 0), ("output", "V"): (read, 0)}


EXERCISES = {
    "1": Numbers([("bytes requested in all", lambda lab: lab.requested(f"00_naive {SMALL}"),
                   0)]),
    "2": Numbers([("bytes fewer with --causal", lambda lab: lab.requested("00_naive") -
                   lab.requested("00_naive --causal"), 0)]),
    "3": Numbers([
        ("by how many bytes the requested ones of `scores` change",
         lambda lab: scores_bytes(lab, "--heads 8 --kv-heads 1", "requested_read_bytes") -
         scores_bytes(lab, "--heads 8", "requested_read_bytes"), 0),
        ("distinct bytes that `scores` then reads",
         lambda lab: scores_bytes(lab, "--heads 8 --kv-heads 1", "distinct_read_bytes"), 0)]),
    "4": Numbers([("the smallest multiple of 0.25 that fails", least_scale_that_fails, 0)]),
    "5": Numbers([("rows that are right", rows_that_are_right, 0)]),
    "6": Change("00_naive/attention.cu", stops_at_the_last_key),
}
