"""All exercises by number, such as 03.2, or 05/hopper.1 of the lesson in a folder of a rung."""

import math

from ladder.exercises.kinds import Change, Experiment, Mask, Numbers, Words, wrong_outputs

SMALL = "--heads 3 --seqlen 100 --seqlen-kv 50 --head-dim 40"


# ---- 00 ----


def scores_bytes(lab, options, name):
    return lab.run(f"00_naive {options}")["kernels"][0][name]


# ---- 01 ----

TILE, MMA = "01_tiled_matmul --variant tile", "01_tiled_matmul --variant mma"
HBM_TB_S, MATMUL_TFLOPS = 4.8, 989  # an H200's, by the lesson's table


def depends_on_the_order(lab, program):
    """Wrong, or not the same under two orders of threads, and no access is wrong by itself."""
    runs = [lab.start(program, ["--schedule", order]) for order in ("forward", "reverse")]
    return all(run.records for run in runs) and (
        any(run.status for run in runs)
        or runs[0].records[0]["errors"] != runs[1].records[0]["errors"])


# ---- 02 ----

NARROW = "--heads 1 --seqlen 1024 --head-dim 8"


def every_row_is_zero(lab, program):
    run = lab.start(program, [])
    error = run.records and run.records[0]["errors"]["o"]
    return bool(error) and not error["nonfinite"] and math.isclose(error["rel"], 1, rel_tol=1e-3)


# ---- 03 ----


def bytes_of_K(lab, head_dim):
    return lab.run(f"03_online_softmax --heads 1 --head-dim {head_dim}")["kernels"][0][
        "arrays"]["K"]["read"]


# ---- 04 and 05 ----

LONG = "--heads 1 --seqlen 1024 --head-dim 128"
WINDOW, SINKS = 96, 4
CACHE = "--variant split_kv --seqlen 1 --seqlen-kv 1000 --heads 16 --kv-heads 4 --head-dim 128"
MANY_HEADS = "--seqlen 1 --seqlen-kv 512 --heads 150 --head-dim 128 --check off"
MASKED = "05_flash_v2 --variant mma --heads 1 --seqlen 128 --seqlen-kv 1024"


def both_wrong(lab, program, o_error):
    run = lab.start(program, [])
    return wrong_outputs(run) == {"o", "lse"} and o_error(run.records[0]["errors"]["o"]["max"])


def share_of_flops(lab, command):
    """What --causal leaves of them."""
    everything, causal = (lab.run(f"{command}{more}")["matmul_flops"] for more in ("", " --causal"))
    return causal / everything


def splits_for_nothing(lab, program):
    """150 rows have m, l and O in fp32 for each of 8 parts."""
    run = lab.start(program, MANY_HEADS.split())
    return bool(run.records) and run.records[0]["workspace_bytes"] == 8 * 150 * (128 + 2) * 4


# ---- 05 on Hopper ----

SM90 = "05_flash_v2 --variant sm90 --heads 1 --seqlen 512"


# ---- 06 ----

WIDE = "06_backward --heads 1 --head-dim 128"


def longest_where_stored_requests_less(lab):
    n = 128
    while (lab.requested(f"{WIDE} --variant stored --seqlen {n}") <
           lab.requested(f"{WIDE} --variant mma --seqlen {n}")):
        n += 128
    return n - 128


EXERCISES = {
    "00.1": Numbers({"bytes requested in all": f"00_naive {SMALL}"}),
    "00.2": Numbers({"bytes fewer with --causal": lambda lab:
                     lab.requested("00_naive") - lab.requested("00_naive --causal")}),
    "00.3": Numbers({
        "by how many bytes the requested ones of `scores` change": lambda lab:
        scores_bytes(lab, "--heads 8 --kv-heads 1", "requested_read_bytes") -
        scores_bytes(lab, "--heads 8", "requested_read_bytes"),
        "distinct bytes that `scores` then reads": lambda lab:
        scores_bytes(lab, "--heads 8 --kv-heads 1", "distinct_read_bytes")}),
    # As the lesson's console has it.
    "00.4": Numbers({"the smallest multiple of 0.25 that fails": 2.5}),
    "00.5": Numbers({"rows that are right": 512 - 302}),
    "00.6": Change("00_naive/attention.cu", [44_016_000, 33_088_000]),

    "01.1": Numbers({"bytes of `tile`": f"{TILE} {SMALL}", "bytes of `mma`": f"{MMA} {SMALL}"}),
    "01.2": Numbers({
        "matmul FLOPs of `tile`": lambda lab: lab.run(f"{TILE} {SMALL}")["matmul_flops"],
        "matmul FLOPs of `mma`": lambda lab: lab.run(f"{MMA} {SMALL}")["matmul_flops"],
        "FLOPs needed": 3 * 4 * 100 * 50 * 40}),
    "01.3": Experiment("01_tiled_matmul/tile.cu", {
        "01.3.first": (lambda lab, program: "unwritten" in lab.start(program, []).last_words(),
                       "without the first barrier the sim faults: a byte is read that nobody "
                       "wrote"),
        "01.3.second": (depends_on_the_order,
                        "without the second barrier every access is right by itself, but the "
                        "result is wrong, or changes with the order of the threads")}),
    "01.4": Numbers({"bank_conflicts of `mma` with d = 128": lambda lab:
                     lab.run(f"{MMA} --head-dim 128")["bank_conflicts"]}),
    "01.5": Numbers({
        "from which d on": math.ceil(MATMUL_TFLOPS / HBM_TB_S - 0.5),
        "bytes requested of P at d = 256, one head": lambda lab: lab.run(
            f"{MMA} --heads 1 --head-dim 256")["kernels"][2]["arrays"]["P"]["read"]}, 0.01),
    "01.6": Change("01_tiled_matmul/tile.cu", [2_748_000, 2_592_000]),

    "02.1": Numbers({"bytes requested": f"02_safe_softmax {SMALL}"}),
    "02.2": Numbers({"the sum": math.exp(0), "P": 1 / math.exp(0)}),
    "02.3": Experiment("02_safe_softmax/attention.cu", {
        "02.3": (every_row_is_zero, "every exponential has become 0, each row is taken for one "
                                    "that sees no key, and O = 0: a relative error of 1")}),
    "02.4": Words(),
    "02.5": Numbers({"the factor": lambda lab: lab.requested(f"02_safe_softmax {NARROW}") /
                     lab.requested(f"01_tiled_matmul {NARROW}")}, 0.005),
    "02.6": Change("02_safe_softmax/attention.cu", [1_394_432, 1_689_600]),

    # Of the logits 2, 0, 5, 5.
    "03.1": Numbers({"the last m": 5, "the last l": math.exp(-3) + math.exp(-5) + 2}, 0.001),
    "03.2": Numbers({"bytes requested": f"03_online_softmax {SMALL}"}),
    "03.3": Experiment("03_online_softmax/attention.cu", {
        "03.3": ({"": {"o"}, "--seqlen-kv 32": set()},
                 "the default size is wrong, and with --seqlen-kv 32, a single tile of keys, "
                 "nothing is to be noticed")}),
    "03.4": Numbers({"the factor": lambda lab: bytes_of_K(lab, 136) / bytes_of_K(lab, 128)}, 0.001),
    "03.5": Numbers({"bytes that `one_pass` saves": lambda lab:
                     lab.requested("03_online_softmax --variant one_pass") -
                     lab.requested("03_online_softmax --variant one_pass --causal")}),
    "03.6": Change("03_online_softmax/attention.cu", [652_800, 757_760]),

    "04.1": Numbers({"bytes requested": f"04_flash_v1 {SMALL} --block-kv 64"}),
    "04.2": Numbers({"the factor": lambda lab: lab.requested(f"04_flash_v1 {LONG}") /
                     lab.requested("04_flash_v1 --heads 1 --seqlen 1024 --head-dim 64")}, 0.005),
    "04.3": Experiment("04_flash_v1/attention.cu", {
        "04.3": ({"--block-kv 64": {"o"}, "--block-kv 256": set()},
                 "with --block-kv 64 `o` is wrong and `lse` right; with 256 there is one visit, "
                 "and nothing shows")}),
    "04.4": Words(),
    # 10·d/Bc = 3·d/64 + 12.
    "04.5": Numbers({f"keys at d = {d}": round(10 * d / (3 * d / 64 + 12))
                     for d in (64, 128)}, 0.03),
    "04.6": Change("04_flash_v1/attention.cu", [639_600, 604_800]),

    "05.1": Numbers({"bytes requested": f"05_flash_v2 --variant mma {SMALL}"}),
    "05.2": Numbers({"the Bc": 2.5 * 128, "the nearest compiled": 256,
                     "the factor it misses by": lambda lab:
                     lab.requested(f"04_flash_v1 {LONG} --block-kv 256") /
                     lab.requested(f"05_flash_v2 --variant mma {LONG}")}, 0.01),
    "05.3": Numbers({"exponentials at 64 × 128": lambda lab: lab.run(
        "05_flash_v2 --variant defer --heads 1 --seqlen 512 --block-kv 128")["exp_count"]}),
    "05.4": Experiment("05_flash_v2/attention.cu", {
        "05.4.sum": (lambda lab, program: both_wrong(lab, program, lambda error: error < 0.28),
                     "l is too large: `o` is too small and `lse` too large"),
        "05.4.both": (lambda lab, program: both_wrong(lab, program, lambda error: error >= 0.28),
                      "without both rescalings `o` and `lse` fail too: the factor does not cancel, "
                      "since the keys before a new maximum count for too much")}),
    "05.5": Numbers({"tiles skipped": lambda lab: 16 * (1 - share_of_flops(lab, MASKED))}),
    "05.6": Change("05_flash_v2/rows.cu", [398_000, 469_120]),
    "05.7": Mask("05_flash_v2/attention.cu", lambda j, last: j > last - WINDOW, [39_488, 9_176]),
    "05.8": Mask("05_flash_v2/attention.cu", lambda j, last: j > last - WINDOW or j < SINKS,
                 [43_584, 11_224]),
    "05.9": Numbers({"bytes requested": f"05_flash_v2 {CACHE} --set splits=8"}),
    # Of 8 heads of 512 tiles of keys, with places for 264 blocks.
    "05.10": Numbers({f"{parts} parts": math.ceil(8 * parts / 264) * (512 // parts + 3)
                      for parts in (8, 32, 64)}),
    "05.11": Experiment("05_flash_v2/split_kv.cu", {
        "05.11": (splits_for_nothing, "8 parts instead of one, with a workspace")}),

    "05/hopper.1": Numbers({"bytes requested": SM90}),
    # Of 64 rows × 128 keys of both products, at d = 64.
    "05/hopper.2": Numbers({"units": lambda lab: lab.run(
        f"{SM90} --causal")["matmul_flops"] / (4 * 64 * 128 * 64)}),
    "05/hopper.3": Experiment("05_flash_v2/hopper/fp8.cu", {
        "05.hopper.3": ({"--seqlen-kv 3": {"o"}, "--seqlen-kv 2": set()},
                        "from three keys on `o` fails, and `lse` never does")}),
    # 1,023 keys of weight exp(-7) are in l alone.
    "05/hopper.4": Numbers({"below the maximum": 10 * math.log(2),
                            "O": 1 / (1 + 1023 * math.exp(-7))}, 0.005),

    "06.1": Numbers({"bytes of the backward pass": "06_backward --variant mma --heads 3 "
                     "--seqlen 96 --seqlen-kv 50 --head-dim 40"}),
    "06.2": Numbers({"the largest N, a multiple of 128": longest_where_stored_requests_less}),
    "06.3": Experiment("06_backward/attention.cu", {
        "06.3": ({"": {"dq", "dk"}}, "dq and dk are wrong and dv is right: dV comes before the "
                                     "softmax's derivative")}),
    "06.4": Words(),
    "06.5": Numbers({"P": math.exp(0)}),
    "06.6": Numbers({"tiles computed, of 6": lambda lab: 6 * share_of_flops(
        lab, "06_backward --variant mma --heads 1 --seqlen 384 --seqlen-kv 256")}),
    "06.7": Change("06_backward/stored.cu", [2_140_800, 2_438_400]),
    "06.8": Numbers({"bytes of a step": lambda lab: lab.run(
        "06_backward --variant sm90 --heads 1 --seqlen 128")["sram_operand_bytes"]}),
}
