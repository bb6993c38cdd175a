"""Hints and checks of 01's exercises."""

import math

from ladder.exercises.kinds import Change, Experiment, Numbers
from ladder.exercises.rung_00 import SMALL
from ladder.records import requested

TILE, MMA = "01_tiled_matmul --variant tile", "01_tiled_matmul --variant mma"
HBM_TB_S, MATMUL_TFLOPS = 4.8, 989  # an H200's, by the lesson's table


def of_unwritten_bytes(lab, program):
    return "unwritten" in lab.start(program, []).last_words()


def depends_on_the_order(lab, program):
    """Wrong, or not the same under two orders of threads, and no access is wrong by itself."""
    runs = [lab.start(program, ["--schedule", order]) for order in ("forward", "reverse")]
    return all(run.records for run in runs) and (
        any(run.status for run in runs)
        or runs[0].records[0]["errors"] != runs[1].records[0]["errors"])


def tiles_of_32(record):
    """Q and K are read once for each tile of the other's 32 rows, P and V likewise."""
    n, n_kv, d = record["seqlen"], record["seqlen_kv"], record["head_dim"]
    heads = 2 * record["batch"] * record["heads"]

    def tiles(length):
        return math.ceil(length / 32)

    return {("scores", "Q"): (heads * n * d * tiles(n_kv), 0),
            ("scores", "K"): (heads * n_kv * d * tiles(n), 0),
            ("output", "P"): (heads * n * n_kv * tiles(d), 0),
            ("output", "V"): (heads * n_kv * d * tiles(n), 0)}


EXERCISES = {
    "1": Numbers([("bytes of `tile`", lambda lab: requested(lab.run(f"{TILE} {SMALL}")), 0),
                  ("bytes of `mma`", lambda lab: requested(lab.run(f"{MMA} {SMALL}")), 0)], [
        "The table under “HBM traffic” has both columns.",
        "For `tile` ⌈50/16⌉ = 4, ⌈100/16⌉ = 7 and ⌈40/16⌉ = 3.",
        "For `mma` there is one tile in every direction, but rows of S take 56 elements."]),
    "2": Numbers([
        ("matmul FLOPs of `tile`", lambda lab: lab.run(f"{TILE} {SMALL}")["matmul_flops"], 0),
        ("matmul FLOPs of `mma`", lambda lab: lab.run(f"{MMA} {SMALL}")["matmul_flops"], 0),
        ("FLOPs needed", lambda lab: 3 * 4 * 100 * 50 * 40, 0)], [
        "Two products of 2·N·N_kv·d each are needed, for three heads.",
        "`tile` rounds N, N_kv and d up to multiples of 16.",
        "`mma` makes 128 × 128 of S with an inner length of 64, and 128 × 64 of O with one of "
        "64."]),
    "3": Experiment("01_tiled_matmul/tile.cu", {
        "01.3.first": (of_unwritten_bytes,
                       "without the first barrier the sim faults: a byte is read that nobody "
                       "wrote"),
        "01.3.second": (depends_on_the_order,
                        "without the second barrier every access is right by itself, but the "
                        "result is wrong, or changes with the order of the threads")}, [
        "The barriers are in the loop of `scores`, one after the stores into Qs and Ks, one after "
        "the loop over k.",
        "Delete one line, check, put it back, delete the other."]),
    "4": Numbers([("bank_conflicts of `mma` with d = 128",
                   lambda lab: lab.run(f"{MMA} --head-dim 128")["bank_conflicts"], 0)], [
        "An 8 × 8 piece takes 8 passes instead of 1: 7 too many.",
        "In `scores` a warp loads 24 pieces for a step of 16, for 65,536 FLOPs.",
        "With d = 64 a warp of `output` makes 32 × 32: 16 pieces for 32,768 FLOPs. With d = 128 it "
        "makes 32 × 64, as in `scores`. There each product has 33,554,432 FLOPs."]),
    "5": Numbers([
        ("from which d on", lambda lab: math.ceil(MATMUL_TFLOPS / HBM_TB_S - 0.5), 0.01),
        ("bytes requested of P at d = 256, one head", lambda lab: lab.run(
            f"{MMA} --heads 1 --head-dim 256")["kernels"][2]["arrays"]["P"]["read"], 0)], [
        "The intensity of `scores` is d. Where is the ridge?",
        "A block of `output` has at most 128 columns of O, and needs all of P for them."]),
    "6": Change("01_tiled_matmul/tile.cu", tiles_of_32, [
        "A block may have 1,024 threads, and that is 32 × 32.",
        "Everything in the file follows from one constant, traffic() too."]),
}
