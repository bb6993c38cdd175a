"""Checks of 06's exercises."""

import math

from ladder.exercises.kinds import Change, Experiment, Numbers, Words
from ladder.exercises.rung_00 import SMALL

WIDE = "06_backward --heads 1 --head-dim 128 --check off"


def longest_where_stored_requests_less(lab):
    n = 128
    while (lab.requested(f"{WIDE} --variant stored --seqlen {n}") <
           lab.requested(f"{WIDE} --variant mma --seqlen {n}")):
        n += 128
    return n - 128


def dv_alone_is_right(lab, program):
    run = lab.start(program, [])
    if len(run.records) < 2:
        return False
    errors = run.records[1]["errors"]
    return [errors[name]["max"] <= errors[name]["tolerance"] for name in ("dq", "dk", "dv")] == [
        False, False, True]


def tiles_computed(lab):
    options = "--variant mma --heads 1 --seqlen 384 --seqlen-kv 256"
    everything, causal = (lab.run(f"06_backward {options}{more}")["matmul_flops"]
                          for more in ("", " --causal"))
    return 6 * causal / everything


def reads_P_and_dP_once(record):
    """D comes from a row of O and one of dO."""
    if record["direction"] == "fwd":
        return {}
    heads = 2 * record["batch"] * record["heads"] * record["seqlen"]
    matrix = heads * math.ceil(record["seqlen_kv"] / 8) * 8
    rows = heads * record["head_dim"]
    return {("dS", "P"): (matrix, 0), ("dS", "dP"): (matrix, matrix),
            ("dS", "O"): (rows, 0), ("dS", "dO"): (rows, 0)}


EXERCISES = {
    "1": Numbers([("bytes of the backward pass", lambda lab: lab.requested(
        f"06_backward --variant mma {SMALL}"), 0)]),
    "2": Numbers([("the largest N, a multiple of 128", longest_where_stored_requests_less, 0)]),
    "3": Experiment("06_backward/attention.cu", {
        "06.3": (dv_alone_is_right, "dq and dk are wrong and dv is right: dV comes before the "
                                    "softmax's derivative")}),
    "4": Words(),
    "5": Numbers([("P", lambda lab: math.exp(0 - 0), 0)]),
    "6": Numbers([("tiles computed, of 6", tiles_computed, 0)]),
    "7": Change("06_backward/stored.cu", reads_P_and_dP_once),
    "8": Numbers([("bytes of a step", lambda lab: lab.run(
        "06_backward --variant sm90 --heads 1 --seqlen 128 --check off")["sram_operand_bytes"],
        0)]),
}
