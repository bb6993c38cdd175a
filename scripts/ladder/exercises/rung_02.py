"""Hints and checks of 02's exercises."""

import math

from ladder.exercises.cases import keys_seen
from ladder.exercises.kinds import Change, Experiment, Numbers, Words
from ladder.exercises.rung_00 import SMALL
from ladder.records import requested

NARROW = "--heads 1 --seqlen 1024 --head-dim 8"


def every_row_is_zero(lab, program):
    run = lab.start(program, [])
    if not run.records:
        return False
    error = run.records[0]["errors"]["o"]
    return not error["nonfinite"] and math.isclose(error["rel"], 1, rel_tol=1e-3)


def reads_what_is_seen(record):
    """Two loops go to the row's last chunk with a key that it sees, the third to its end."""
    pitch = math.ceil(record["seqlen_kv"] / 8) * 8
    seen = sum(math.ceil(keys_seen(record, row) / 8) * 8 for row in range(record["seqlen"]))
    heads = 2 * record["batch"] * record["heads"]
    whole = record["seqlen"] * pitch
    return {("softmax", "S"): (heads * (2 * seen + whole), 0),
            ("softmax", "P"): (0, heads * whole)}


EXERCISES = {
    "1": Numbers([("bytes requested", lambda lab: requested(lab.run(f"02_safe_softmax {SMALL}")),
                   0)], [
        "One more read of S than 01.", "A row of S takes 56 elements."]),
    "2": Numbers([("the sum", lambda lab: math.exp(0), 0), ("P", lambda lab: 1 / math.exp(0), 0)], [
        "The largest of one logit is that logit.", "What is left in the exponent?"]),
    "3": Experiment("02_safe_softmax/attention.cu", {
        "02.3": (every_row_is_zero, "every exponential has become 0, each row is taken for one "
                                    "that sees no key, and O = 0: a relative error of 1")}, [
        "The line belongs after `m = warp_max(m);`.",
        "The smallest number that fp32 has is about 1.4e-45, which is e to the -103. Which of the "
        "two shifts goes beyond?"]),
    "4": Words(["How large is the bound beside the largest logit, at --scale 6.25?",
                "Exercise 3 has shown what happens when the shift is too large."]),
    "5": Numbers([("the factor", lambda lab: requested(lab.run(f"02_safe_softmax {NARROW}")) /
                   requested(lab.run(f"01_tiled_matmul {NARROW}")), 0.005)], [
        "Bytes for each element of S: 3d/64 + 8 + 2 in 01.", "02 takes two more."]),
    "6": Change("02_safe_softmax/attention.cu", reads_what_is_seen, [
        "p.keys(i) is how many keys query i sees; the row's number in its head is row % p.N.",
        "Lanes read chunks of 8: round up to whole chunks.",
        "The third loop has to write the zeros of P behind them, so it goes on to the end.",
        "In traffic(): 8·⌈keys(i)/8⌉, summed over the rows of a head, twice, and once all of S."]),
}
