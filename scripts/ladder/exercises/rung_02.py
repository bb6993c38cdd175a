"""Checks of 02's exercises."""

import math

from ladder.exercises.cases import keys_seen
from ladder.exercises.kinds import Change, Experiment, Numbers, Words
from ladder.exercises.rung_00 import SMALL

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
    "1": Numbers([("bytes requested", lambda lab: lab.requested(f"02_safe_softmax {SMALL}"),
                   0)]),
    "2": Numbers([("the sum", lambda lab: math.exp(0), 0), ("P", lambda lab: 1 / math.exp(0), 0)]),
    "3": Experiment("02_safe_softmax/attention.cu", {
        "02.3": (every_row_is_zero, "every exponential has become 0, each row is taken for one "
                                    "that sees no key, and O = 0: a relative error of 1")}),
    "4": Words(),
    "5": Numbers([("the factor", lambda lab: lab.requested(f"02_safe_softmax {NARROW}") /
                   lab.requested(f"01_tiled_matmul {NARROW}"), 0.005)]),
    "6": Change("02_safe_softmax/attention.cu", reads_what_is_seen),
}
