"""Checks of 04's exercises."""

import math

from ladder.exercises.kinds import Change, Experiment, Numbers, Words
from ladder.exercises.rung_00 import SMALL


def grows_with_the_head(lab):
    narrow, wide = (lab.requested(f"04_flash_v1 --heads 1 --seqlen 1024 --head-dim {d} "
                                      "--check off") for d in (64, 128))
    return wide / narrow


def keys_where_level(d):
    """10·d/Bc = 3·d/64 + 12."""
    return 10 * d / (3 * d / 64 + 12)


def wrong_from_two_tiles_on(lab, program):
    four, one = (lab.start(program, ["--block-kv", keys]) for keys in ("64", "256"))
    if not (four.records and one.records) or one.status:
        return False
    errors = four.records[0]["errors"]
    return (errors["o"]["max"] > errors["o"]["tolerance"]
            and errors["lse"]["max"] <= errors["lse"]["tolerance"])


def first_visit_reads_no_output(record):
    """The fp32 O is neither cleared before nor read by the first tile of keys."""
    size = 4 * record["batch"] * record["heads"] * record["seqlen"] * record["head_dim"]
    steps = math.ceil(record["seqlen_kv"] / record["block_kv"])
    return {("initialise", "O_fp32"): (0, 0),
            ("attention", "O_fp32"): (size * (steps - 1), size * steps)}


EXERCISES = {
    "1": Numbers([("bytes requested", lambda lab: lab.requested(
        f"04_flash_v1 {SMALL} --block-kv 64"), 0)]),
    "2": Numbers([("the factor", grows_with_the_head, 0.005)]),
    "3": Experiment("04_flash_v1/attention.cu", {
        "04.3": (wrong_from_two_tiles_on, "with --block-kv 64 `o` is wrong and `lse` right; with "
                                          "256 there is one visit, and nothing shows")}),
    "4": Words(),
    "5": Numbers([("keys at d = 64", lambda lab: round(keys_where_level(64)), 0.03),
                  ("keys at d = 128", lambda lab: round(keys_where_level(128)), 0.03)]),
    "6": Change("04_flash_v1/attention.cu", first_visit_reads_no_output),
}
