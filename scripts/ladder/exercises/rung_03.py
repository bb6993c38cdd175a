"""Hints and checks of 03's exercises."""

import math

from ladder.exercises.cases import keys_seen
from ladder.exercises.kinds import Change, Experiment, Numbers
from ladder.exercises.rung_00 import SMALL
from ladder.records import requested

LOGITS = (2, 0, 5, 5)


def recurrence(logits):
    m, total = -math.inf, 0
    for x in logits:
        m_new = max(m, x)
        total = total * math.exp(m - m_new) + math.exp(x - m_new)
        m = m_new
    return m, total


def bytes_of_K(lab, head_dim):
    return lab.run(f"03_online_softmax --heads 1 --head-dim {head_dim}")["kernels"][0][
        "arrays"]["K"]["read"]


def wrong_but_for_one_tile(lab, program):
    many, one = (lab.start(program, options) for options in ([], ["--seqlen-kv", "32"]))
    return bool(many.records and one.records) and many.status == 1 and one.status == 0


def skips_what_nobody_sees(record):
    """A warp reads K and V as far as its last row sees."""
    rows, n = record["block_q"], record["seqlen"]
    keys = sum(keys_seen(record, min(row + rows, n) - 1) for row in range(0, n, rows))
    read = 2 * record["batch"] * record["heads"] * keys * record["head_dim"]
    return {("attention", "K"): (read, 0), ("attention", "V"): (read, 0)}


EXERCISES = {
    "1": Numbers([("the last m", lambda lab: recurrence(LOGITS)[0], 0),
                  ("the last l", lambda lab: recurrence(LOGITS)[1], 0.001)], [
        "l is multiplied by e to the (old m - new m), and e to the (x - new m) is added.",
        "Where the maximum does not change, the factor is 1."]),
    "2": Numbers([("bytes requested", lambda lab: requested(lab.run(f"03_online_softmax {SMALL}")),
                   0)], [
        "A warp has 32 rows: how many warps have a row of these 100?",
        "Each of them reads all of K and of V. Q is read once, O written once."]),
    "3": Experiment("03_online_softmax/attention.cu", {
        "03.3": (wrong_but_for_one_tile, "the default size is wrong, and with --seqlen-kv 32, a "
                                         "single tile of keys, nothing is to be noticed")}, [
        "It is one line. The check also runs --seqlen-kv 32.",
        "In which rows does alpha stay 1 after the first tile?"]),
    "4": Numbers([("the factor", lambda lab: bytes_of_K(lab, 136) / bytes_of_K(lab, 128), 0.001)], [
        "To what is 136 padded on chip?", "How many rows does a warp then have room for?"]),
    "5": Numbers([("bytes that `one_pass` saves", lambda lab:
                   requested(lab.run("03_online_softmax --variant one_pass")) -
                   requested(lab.run("03_online_softmax --variant one_pass --causal")), 0)], [
        "Of the pairs of a query and a key 256·257/2 remain.",
        "Each pair costs a row of K and one of V, and there are two heads."]),
    "6": Change("03_online_softmax/attention.cu", skips_what_nobody_sees, [
        "The warp's last row sees the most: p.keys of it is where the loop over keys may end.",
        "The last row is min(row + kRows, p.N) - 1. Put its keys in the place of p.N_kv, in the "
        "copies too.",
        "A warp whose rows see no key never enters the loop. What then waits for Q's copy, before "
        "tile_Q is overwritten with O?",
        "traffic(): sum, over the warps, the keys of their last rows. block_q is a warp's rows."]),
}
