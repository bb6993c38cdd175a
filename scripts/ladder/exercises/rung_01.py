"""Checks of 01's exercises."""

import math

from ladder.exercises.kinds import Change, Experiment, Numbers
from ladder.exercises.rung_00 import SMALL

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
    "1": Numbers([("bytes of `tile`", lambda lab: lab.requested(f"{TILE} {SMALL}"), 0),
                  ("bytes of `mma`", lambda lab: lab.requested(f"{MMA} {SMALL}"), 0)]),
    "2": Numbers([
        ("matmul FLOPs of `tile`", lambda lab: lab.run(f"{TILE} {SMALL}")["matmul_flops"], 0),
        ("matmul FLOPs of `mma`", lambda lab: lab.run(f"{MMA} {SMALL}")["matmul_flops"], 0),
        ("FLOPs needed", lambda lab: 3 * 4 * 100 * 50 * 40, 0)]),
    "3": Experiment("01_tiled_matmul/tile.cu", {
        "01.3.first": (of_unwritten_bytes,
                       "without the first barrier the sim faults: a byte is read that nobody "
                       "wrote"),
        "01.3.second": (depends_on_the_order,
                        "without the second barrier every access is right by itself, but the "
                        "result is wrong, or changes with the order of the threads")}),
    "4": Numbers([("bank_conflicts of `mma` with d = 128",
                   lambda lab: lab.run(f"{MMA} --head-dim 128")["bank_conflicts"], 0)]),
    "5": Numbers([
        ("from which d on", lambda lab: math.ceil(MATMUL_TFLOPS / HBM_TB_S - 0.5), 0.01),
        ("bytes requested of P at d = 256, one head", lambda lab: lab.run(
            f"{MMA} --heads 1 --head-dim 256")["kernels"][2]["arrays"]["P"]["read"], 0)]),
    "6": Change("01_tiled_matmul/tile.cu", tiles_of_32),
}
