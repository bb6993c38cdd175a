"""Hints and checks of 00's exercises."""

from ladder.exercises.cases import keys_seen
from ladder.exercises.kinds import Change, Numbers
from ladder.records import requested

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
    "1": Numbers([("bytes requested in all", lambda lab: requested(lab.run(f"00_naive {SMALL}")),
                   0)], [
        "Each element of S reads d elements of Q and d of K, each of O reads N_kv of P and of V.",
        "softmax reads S twice. What is written is S, P and O, once each.",
        "In elements per head: 2·N·N_kv·d + 2·N·N_kv + 2·N·N_kv·d read. Two bytes an element, "
        "three heads."]),
    "2": Numbers([("bytes fewer with --causal", lambda lab: requested(lab.run("00_naive")) -
                   requested(lab.run("00_naive --causal")), 0)], [
        "Look at where `scores` asks p.sees(i, j): before or after its reads?",
        "And `output`: does it know that a weight is 0?"]),
    "3": Numbers([
        ("by how many bytes the requested ones of `scores` change",
         lambda lab: scores_bytes(lab, "--heads 8 --kv-heads 1", "requested_read_bytes") -
         scores_bytes(lab, "--heads 8", "requested_read_bytes"), 0),
        ("distinct bytes that `scores` then reads",
         lambda lab: scores_bytes(lab, "--heads 8 --kv-heads 1", "distinct_read_bytes"), 0)], [
        "A thread does not know that another head reads the same keys.",
        "A head's Q, and a head's K, have 256 × 64 elements of 2 bytes at the default size.",
        "Eight heads of Q, one of K."]),
    "4": Numbers([("the smallest multiple of 0.25 that fails", least_scale_that_fails, 0)], [
        "Run 00_naive with --scale and look at its exit status, `echo $?`.",
        "expf overflows above 88.7, and q·k has a standard deviation of 8: try around 88.7 / 32."]),
    "5": Numbers([("rows that are right", rows_that_are_right, 0)], [
        "The program counts the rows whose sum leaves fp32's range.",
        "All other rows are right: P = 1 there to the last bit that 16 bits have."]),
    "6": Change("00_naive/attention.cu", stops_at_the_last_key, [
        "p.keys(i) is how many keys query i sees. Behind them all weights of the row are 0.",
        "The kernel takes one changed bound. The work is in traffic(): it has to count pairs of a "
        "query and a key that it sees.",
        "Sum p.keys(i) over the rows of a head; P and V are each read d times as often."]),
}
