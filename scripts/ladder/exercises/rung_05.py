"""Checks of 05's exercises."""

import math

from ladder.exercises.kinds import Change, Experiment, Mask, Numbers
from ladder.exercises.rung_00 import SMALL
from ladder.exercises.rung_03 import skips_what_nobody_sees

LONG = "--heads 1 --seqlen 1024 --head-dim 128 --check off"
WINDOW, SINKS = 96, 4
CACHE = "--variant split_kv --seqlen 1 --seqlen-kv 1000 --heads 16 --kv-heads 4 --head-dim 128"
MANY_HEADS = "--variant split_kv --seqlen 1 --seqlen-kv 512 --heads 150 --head-dim 128 --check off"
MASKED = "05_flash_v2 --variant mma --heads 1 --seqlen 128 --seqlen-kv 1024"


def misses_by(lab):
    return (lab.requested(f"04_flash_v1 {LONG} --block-kv 256") /
            lab.requested(f"05_flash_v2 --variant mma {LONG}"))


def nearest_tile(lab):
    program = lab.need_build("04_flash_v1")
    tiles = [keys for keys in (64, 128, 256)
             if lab.start(program, [*LONG.split(), "--block-kv", str(keys)]).records]
    return min(tiles, key=lambda keys: abs(keys - 2.5 * 128))


def both_wrong(lab, program, o_error):
    run = lab.start(program, [])
    if not run.records:
        return False
    errors = run.records[0]["errors"]
    return (all(errors[name]["max"] > errors[name]["tolerance"] for name in ("o", "lse"))
            and o_error(errors["o"]["max"]))


def tiles_skipped(lab):
    everything, causal = (lab.run(f"{MASKED}{more}")["matmul_flops"] for more in ("", " --causal"))
    return 16 * (everything - causal) / everything


def tiles_of_time(parts):
    """Of 8 heads of 512 tiles of keys, with places for 264 blocks."""
    return math.ceil(8 * parts / 264) * (math.ceil(512 / parts) + 3)


def splits_for_nothing(lab, program):
    """150 rows have m, l and O in fp32 for each of 8 parts."""
    run = lab.start(program, MANY_HEADS.split())
    return bool(run.records) and run.records[0]["workspace_bytes"] == 8 * 150 * (128 + 2) * 4


EXERCISES = {
    "1": Numbers([("bytes requested", lambda lab: lab.requested(
        f"05_flash_v2 --variant mma {SMALL}"), 0)]),
    "2": Numbers([("the Bc", lambda lab: 2.5 * 128, 0), ("the nearest compiled", nearest_tile, 0),
                  ("the factor it misses by", misses_by, 0.01)]),
    "3": Numbers([("exponentials at 64 × 128", lambda lab: lab.run(
        "05_flash_v2 --variant defer --heads 1 --seqlen 512 --block-kv 128")["exp_count"], 0)]),
    "4": Experiment("05_flash_v2/attention.cu", {
        "05.4.sum": (lambda lab, program: both_wrong(lab, program, lambda error: error < 0.28),
                     "l is too large: `o` is too small and `lse` too large"),
        "05.4.both": (lambda lab, program: both_wrong(lab, program, lambda error: error >= 0.28),
                      "without both rescalings `o` and `lse` fail too: the factor does not cancel, "
                      "since the keys before a new maximum count for too much")}),
    "5": Numbers([("tiles skipped", tiles_skipped, 0)]),
    "6": Change("05_flash_v2/rows.cu", skips_what_nobody_sees),
    "7": Mask("05_flash_v2/attention.cu", lambda j, last: j > last - WINDOW),
    "8": Mask("05_flash_v2/attention.cu",
              lambda j, last: j > last - WINDOW or j < SINKS),
    "9": Numbers([("bytes requested", lambda lab: lab.requested(
        f"05_flash_v2 {CACHE} --set splits=8"), 0)]),
    "10": Numbers([(f"{parts} parts", lambda lab, parts=parts: tiles_of_time(parts), 0)
                   for parts in (8, 32, 64)]),
    "11": Experiment("05_flash_v2/split_kv.cu", {
        "05.11": (splits_for_nothing, "8 parts instead of one, with a workspace")}),
}
