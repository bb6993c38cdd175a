"""All exercises by name, such as 03/bytes: the rung's number, and what the lesson calls it."""

from __future__ import annotations

import math
from typing import Callable

from ladder.exercises.kinds import (Change, Command, Exercise, Experiment, Mask, Numbers, Words,
                                    wrong_outputs)
from ladder.exercises.lab import Lab

# ---- what shows a mistake, of a Lab and a program ----


def depends_on_the_order(lab: Lab, program: Command) -> bool:
    """Wrong, or not the same under two orders of threads, and no access is wrong by itself."""
    runs = [lab.start(program, ["--schedule", order]) for order in ("forward", "reverse")]
    return all(run.records for run in runs) and (
        any(run.status for run in runs)
        or runs[0].records[0]["errors"] != runs[1].records[0]["errors"])


def every_row_is_zero(lab: Lab, program: Command) -> bool:
    run = lab.start(program, [])
    error = run.records[0]["errors"]["o"] if run.records else {}
    return bool(error) and not error["nonfinite"] and math.isclose(error["rel"], 1, rel_tol=1e-3)


def both_wrong(lab: Lab, program: Command, o_error: Callable[[float], bool]) -> bool:
    run = lab.start(program, [])
    return wrong_outputs(run) == {"o", "lse"} and o_error(run.records[0]["errors"]["o"]["max"])


def splits_for_nothing(lab: Lab, program: Command) -> bool:
    """150 rows have m, l and O in fp32 for each of 8 parts."""
    run = lab.start(program, "--seqlen 1 --seqlen-kv 512 --heads 150 --head-dim 128 --check off"
                    .split())
    return bool(run.records) and run.records[0]["workspace_bytes"] == 8 * 150 * (128 + 2) * 4


# What a program counts also stands in a console block of the lesson's answer, which a test runs and
# compares.
WINDOW, SINKS = 96, 4
EXERCISES: dict[str, Exercise] = {
    "00/bytes": Numbers({"bytes requested in all": 4_944_000}),
    "00/causal": Numbers({"bytes fewer with --causal": 0}),
    "00/shared_keys": Numbers({"by how many bytes the requested ones of `scores` change": 0,
                               "distinct bytes that `scores` then reads": 294_912}),
    "00/edge": Numbers({"the smallest multiple of 0.25 that fails": 2.5}),
    "00/one_key": Numbers({"rows that are right": 210}),
    "00/last_key": Change("00_naive/attention.cu", [44_016_000, 33_088_000]),

    "01/bytes": Numbers({"bytes of `tile`": 498_000, "bytes of `mma`": 240_000}),
    "01/waste": Numbers({"matmul FLOPs of `tile`": 4_128_768, "matmul FLOPs of `mma`": 9_437_184,
                         "FLOPs needed": 2_400_000}),
    "01/barriers": Experiment("01_tiled_matmul/tile.cu", {
        "01.barriers.first": (
            lambda lab, program: "unwritten" in lab.start(program, []).last_words(),
            "without the first barrier the sim faults: a byte is read that nobody wrote"),
        "01.barriers.second": (
            depends_on_the_order,
            "without the second barrier every access is right by itself, but the result is wrong, "
            "or changes with the order of the threads")}),
    "01/conflicts": Numbers({"bank_conflicts of `mma` with d = 128": 172_032}),
    "01/heads": Numbers({"from which d on": 206,
                         "bytes requested of P at d = 256, one head": 262_144}, 0.01),
    "01/tiles_of_32": Change("01_tiled_matmul/tile.cu", [2_748_000, 2_592_000]),

    "02/bytes": Numbers({"bytes requested": 273_600}),
    "02/one_key": Numbers({"the sum": 1, "P": 1}),
    "02/shift": Experiment("02_safe_softmax/attention.cu", {
        "02.shift": (
            every_row_is_zero,
            "every exponential has become 0, each row is taken for one that sees no key, and O = 0"
            ": a relative error of 1")}),
    "02/bound": Words(),
    "02/price": Numbers({"the factor": 1.193}, 0.005),
    "02/hidden": Change("02_safe_softmax/attention.cu", [1_394_432, 1_689_600]),

    "03/recurrence": Numbers({"the last m": 5, "the last l": 2.057}, 0.001),
    "03/bytes": Numbers({"bytes requested": 144_000}),
    "03/rescaling": Experiment("03_online_softmax/attention.cu", {
        "03.rescaling": (
            {"": {"o"}, "--seqlen-kv 32": set()},
            "the default size is wrong, and with --seqlen-kv 32, a single tile of keys, "
            "nothing is to be noticed")}),
    "03/one_more": Numbers({"the factor": 2.125}, 0.001),
    "03/causal": Numbers({"bytes that `one_pass` saves": 16_711_680}),
    "03/skip": Change("03_online_softmax/attention.cu", [652_800, 757_760]),

    "04/bytes": Numbers({"bytes requested": 274_800}),
    "04/square": Numbers({"the factor": 3.44}, 0.005),
    "04/old_sum": Experiment("04_flash_v1/attention.cu", {
        "04.old_sum": (
            {"--block-kv 64": {"o"}, "--block-kv 256": set()},
            "with --block-kv 64 `o` is wrong and `lse` right; with 256 there is one visit, "
            "and nothing shows")}),
    "04/br": Words(),
    "04/break_even": Numbers({"keys at d = 64": 43, "keys at d = 128": 71}, 0.03),
    "04/first_visit": Change("04_flash_v1/attention.cu", [639_600, 604_800]),

    "05/bytes": Numbers({"bytes requested": 73_200}),
    "05/crossing": Numbers({"the Bc": 320, "the nearest compiled": 256,
                            "the factor it misses by": 1.52}, 0.01),
    "05/exponentials": Numbers({"exponentials at 64 × 128": 270_336}),
    "05/rescaling": Experiment("05_flash_v2/attention.cu", {
        "05.rescaling.sum": (
            lambda lab, program: both_wrong(lab, program, lambda error: error < 0.28),
            "l is too large: `o` is too small and `lse` too large"),
        "05.rescaling.both": (
            lambda lab, program: both_wrong(lab, program, lambda error: error >= 0.28),
            "without both rescalings `o` and `lse` fail too: the factor does not cancel, "
            "since the keys before a new maximum count for too much")}),
    "05/no_skip": Numbers({"tiles skipped": 0}),
    "05/mask": Change("05_flash_v2/rows.cu", [398_000, 469_120]),
    "05/window": Mask("05_flash_v2/attention.cu", lambda j, last: j > last - WINDOW,
                      [39_488, 9_176]),
    "05/sink": Mask("05_flash_v2/attention.cu", lambda j, last: j > last - WINDOW or j < SINKS,
                    [43_584, 11_224]),
    "05/decode_bytes": Numbers({"bytes requested": 2_218_048}),
    "05/parts": Numbers({"8 parts": 67, "32 parts": 19, "64 parts": 22}),
    "05/in_code": Experiment("05_flash_v2/split_kv.cu", {
        "05.in_code": (splits_for_nothing, "8 parts instead of one, with a workspace")}),

    "05/hopper_bytes": Numbers({"bytes requested": 526_364}),
    "05/in_vain": Numbers({"units": 20}),
    "05/key_order": Experiment("05_flash_v2/hopper/fp8.cu", {
        "05.key_order": (
            {"--seqlen-kv 3": {"o"}, "--seqlen-kv 2": set()},
            "from three keys on `o` fails, and `lse` never does")}),
    "05/vanishing": Numbers({"below the maximum": 6.93, "O": 0.517}, 0.005),

    "06/bytes": Numbers({"bytes of the backward pass": 353_280}),
    "06/textbook": Numbers({"the largest N, a multiple of 128": 128}),
    "06/without_d": Experiment("06_backward/attention.cu", {
        "06.without_d": (
            {"": {"dq", "dk"}},
            "dq and dk are wrong and dv is right: dV comes before the softmax's derivative")}),
    "06/one_key": Words(),
    "06/last_row": Numbers({"P": 1}),
    "06/no_key": Numbers({"tiles computed, of 6": 3}),
    "06/d_first": Change("06_backward/stored.cu", [2_236_800, 2_566_400]),
    "06/shared_memory": Numbers({"bytes of an iteration": 229_376}),
}
