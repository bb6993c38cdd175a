"""All exercises by number, such as 03.2, or 05/hopper.1 of the lesson in a folder of a rung."""

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
    "00.1": Numbers({"bytes requested in all": 4_944_000}),
    "00.2": Numbers({"bytes fewer with --causal": 0}),
    "00.3": Numbers({"by how many bytes the requested ones of `scores` change": 0,
                     "distinct bytes that `scores` then reads": 294_912}),
    "00.4": Numbers({"the smallest multiple of 0.25 that fails": 2.5}),
    "00.5": Numbers({"rows that are right": 210}),
    "00.6": Change("00_naive/attention.cu", [44_016_000, 33_088_000]),

    "01.1": Numbers({"bytes of `tile`": 498_000, "bytes of `mma`": 240_000}),
    "01.2": Numbers({"matmul FLOPs of `tile`": 4_128_768, "matmul FLOPs of `mma`": 9_437_184,
                     "FLOPs needed": 2_400_000}),
    "01.3": Experiment("01_tiled_matmul/tile.cu", {
        "01.3.first": (lambda lab, program: "unwritten" in lab.start(program, []).last_words(),
                       "without the first barrier the sim faults: a byte is read that nobody "
                       "wrote"),
        "01.3.second": (depends_on_the_order,
                        "without the second barrier every access is right by itself, but the "
                        "result is wrong, or changes with the order of the threads")}),
    "01.4": Numbers({"bank_conflicts of `mma` with d = 128": 172_032}),
    "01.5": Numbers({"from which d on": 206,
                     "bytes requested of P at d = 256, one head": 262_144}, 0.01),
    "01.6": Change("01_tiled_matmul/tile.cu", [2_748_000, 2_592_000]),

    "02.1": Numbers({"bytes requested": 273_600}),
    "02.2": Numbers({"the sum": 1, "P": 1}),
    "02.3": Experiment("02_safe_softmax/attention.cu", {
        "02.3": (every_row_is_zero, "every exponential has become 0, each row is taken for one "
                                    "that sees no key, and O = 0: a relative error of 1")}),
    "02.4": Words(),
    "02.5": Numbers({"the factor": 1.193}, 0.005),
    "02.6": Change("02_safe_softmax/attention.cu", [1_394_432, 1_689_600]),

    "03.1": Numbers({"the last m": 5, "the last l": 2.057}, 0.001),
    "03.2": Numbers({"bytes requested": 144_000}),
    "03.3": Experiment("03_online_softmax/attention.cu", {
        "03.3": ({"": {"o"}, "--seqlen-kv 32": set()},
                 "the default size is wrong, and with --seqlen-kv 32, a single tile of keys, "
                 "nothing is to be noticed")}),
    "03.4": Numbers({"the factor": 2.125}, 0.001),
    "03.5": Numbers({"bytes that `one_pass` saves": 16_711_680}),
    "03.6": Change("03_online_softmax/attention.cu", [652_800, 757_760]),

    "04.1": Numbers({"bytes requested": 274_800}),
    "04.2": Numbers({"the factor": 3.44}, 0.005),
    "04.3": Experiment("04_flash_v1/attention.cu", {
        "04.3": ({"--block-kv 64": {"o"}, "--block-kv 256": set()},
                 "with --block-kv 64 `o` is wrong and `lse` right; with 256 there is one visit, "
                 "and nothing shows")}),
    "04.4": Words(),
    "04.5": Numbers({"keys at d = 64": 43, "keys at d = 128": 71}, 0.03),
    "04.6": Change("04_flash_v1/attention.cu", [639_600, 604_800]),

    "05.1": Numbers({"bytes requested": 73_200}),
    "05.2": Numbers({"the Bc": 320, "the nearest compiled": 256,
                     "the factor it misses by": 1.52}, 0.01),
    "05.3": Numbers({"exponentials at 64 × 128": 270_336}),
    "05.4": Experiment("05_flash_v2/attention.cu", {
        "05.4.sum": (lambda lab, program: both_wrong(lab, program, lambda error: error < 0.28),
                     "l is too large: `o` is too small and `lse` too large"),
        "05.4.both": (lambda lab, program: both_wrong(lab, program, lambda error: error >= 0.28),
                      "without both rescalings `o` and `lse` fail too: the factor does not cancel, "
                      "since the keys before a new maximum count for too much")}),
    "05.5": Numbers({"tiles skipped": 0}),
    "05.6": Change("05_flash_v2/rows.cu", [398_000, 469_120]),
    "05.7": Mask("05_flash_v2/attention.cu", lambda j, last: j > last - WINDOW, [39_488, 9_176]),
    "05.8": Mask("05_flash_v2/attention.cu", lambda j, last: j > last - WINDOW or j < SINKS,
                 [43_584, 11_224]),
    "05.9": Numbers({"bytes requested": 2_218_048}),
    "05.10": Numbers({"8 parts": 67, "32 parts": 19, "64 parts": 22}),
    "05.11": Experiment("05_flash_v2/split_kv.cu", {
        "05.11": (splits_for_nothing, "8 parts instead of one, with a workspace")}),

    "05/hopper.1": Numbers({"bytes requested": 526_364}),
    "05/hopper.2": Numbers({"units": 20}),
    "05/hopper.3": Experiment("05_flash_v2/hopper/fp8.cu", {
        "05.hopper.3": ({"--seqlen-kv 3": {"o"}, "--seqlen-kv 2": set()},
                        "from three keys on `o` fails, and `lse` never does")}),
    "05/hopper.4": Numbers({"below the maximum": 6.93, "O": 0.517}, 0.005),

    "06.1": Numbers({"bytes of the backward pass": 353_280}),
    "06.2": Numbers({"the largest N, a multiple of 128": 128}),
    "06.3": Experiment("06_backward/attention.cu", {
        "06.3": ({"": {"dq", "dk"}}, "dq and dk are wrong and dv is right: dV comes before the "
                                     "softmax's derivative")}),
    "06.4": Words(),
    "06.5": Numbers({"P": 1}),
    "06.6": Numbers({"tiles computed, of 6": 3}),
    "06.7": Change("06_backward/stored.cu", [2_236_800, 2_566_400]),
    "06.8": Numbers({"bytes of an iteration": 229_376}),
}
