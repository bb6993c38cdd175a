"""Checks of 03's exercises."""

import math

from ladder.exercises.cases import keys_seen
from ladder.exercises.kinds import Change, Experiment, Numbers
from ladder.exercises.rung_00 import SMALL

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
                  ("the last l", lambda lab: recurrence(LOGITS)[1], 0.001)]),
    "2": Numbers([("bytes requested", lambda lab: lab.requested(f"03_online_softmax {SMALL}"),
                   0)]),
    "3": Experiment("03_online_softmax/attention.cu", {
        "03.3": (wrong_but_for_one_tile, "the default size is wrong, and with --seqlen-kv 32, a "
                                         "single tile of keys, nothing is to be noticed")}),
    "4": Numbers([("the factor", lambda lab: bytes_of_K(lab, 136) / bytes_of_K(lab, 128), 0.001)]),
    "5": Numbers([("bytes that `one_pass` saves", lambda lab:
                   lab.requested("03_online_softmax --variant one_pass") -
                   lab.requested("03_online_softmax --variant one_pass --causal"), 0)]),
    "6": Change("03_online_softmax/attention.cu", skips_what_nobody_sees),
}
