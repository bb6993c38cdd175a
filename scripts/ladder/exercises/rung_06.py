"""Hints and checks of 06's exercises."""

import math

from ladder.exercises.kinds import Change, Experiment, Numbers, Words
from ladder.exercises.rung_00 import SMALL
from ladder.records import requested

WIDE = "06_backward --heads 1 --head-dim 128 --check off"


def longest_where_stored_requests_less(lab):
    n = 128
    while (requested(lab.run(f"{WIDE} --variant stored --seqlen {n}")) <
           requested(lab.run(f"{WIDE} --variant mma --seqlen {n}"))):
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
    "1": Numbers([("bytes of the backward pass", lambda lab: requested(lab.run(
        f"06_backward --variant mma {SMALL}")), 0)], [
        "50 keys are one tile: Tc = 1.",
        "A head takes (12d + 8)·N·Tc + 14·N·d + 8·N_kv·d + 12·N."]),
    "2": Numbers([("the largest N, a multiple of 128", longest_where_stored_requests_less, 0)], [
        "For `stored` (18 + 10d/128)·N² + 6·N·d, for `mma` (12d + 8)·N²/128 and terms in N.",
        "28·N² + 768·N against 12.06·N² + 2828·N."]),
    "3": Experiment("06_backward/attention.cu", {
        "06.3": (dv_alone_is_right, "dq and dk are wrong and dv is right: dV comes before the "
                                    "softmax's derivative")}, [
        "It is the line with delta_tile in it.", "Which of the three gradients goes through dS?"]),
    "4": Words(["The softmax of one element is 1 whatever its logit is.",
                "D and dP are sums of the same products. In which order does each step add them?"]),
    "5": Numbers([("P", lambda lab: math.exp(0 - 0), 0)], [
        "S is the product with a row of zeros, and LSE of such a row is read as 0."]),
    "6": Numbers([("tiles computed, of 6", tiles_computed, 0)], [
        "The tiles are 128 × 128: three of queries, two of keys.",
        "Which is the first row that sees a key of each tile of keys?"]),
    "7": Change("06_backward/stored.cu", reads_P_and_dP_once, [
        "D = rowsum(dO∘O). A row of O has d elements, and begins at row * p.d.",
        "The lanes of the warp go over the d elements as they went over the keys, 8 at a time; "
        "warp_sum adds up.",
        "softmax_gradient needs O and dO: two parameters more, and a[\"O\"] in launch_backward.",
        "traffic: P and dP are read once, O and dO once."]),
    "8": Numbers([("bytes of a step", lambda lab: lab.run(
        "06_backward --variant sm90 --heads 1 --seqlen 128 --check off")["sram_operand_bytes"],
        0)], [
        "A product of 64 rows and N columns, 16 terms each, reads 32·N bytes of its right operand, "
        "and 2,048 of its left one unless that is in registers.",
        "A consumer: Sᵀ and dPᵀ are 64 × 128 with 64 terms, dV and dK 64 × 64 with 128, and dQ for "
        "64 of the queries 64 × 64 with 128."]),
}
