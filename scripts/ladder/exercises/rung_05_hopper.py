"""Hints and checks of the exercises of 05's lesson on Hopper."""

from ladder.exercises.kinds import Numbers
from ladder.records import requested

HEAD = "--heads 1 --seqlen 512"


def units(lab, step):
    """Of 64 rows × 128 keys of both products, at d = 64."""
    causal = lab.run(f"05_flash_v2 --variant {step} {HEAD} --causal --check off")
    return causal["matmul_flops"] / (4 * 64 * 128 * 64)


EXERCISES = {
    "1": Numbers([("bytes requested", lambda lab: requested(lab.run(
        f"05_flash_v2 --variant sm90 {HEAD}")), 0)], [
        "How many tiles of 192 rows are 512?", "Q, O and LSE once, K and V once for each tile of Q.",
        "And a counter of 4 bytes: cleared once, read and written once for each tile."]),
    "2": Numbers([("units", lambda lab: units(lab, "sm90"), 0)], [
        "A consumer has 64 rows, and ends where its last row does.",
        "Three tiles are nine consumers, but eight have rows."]),
}
