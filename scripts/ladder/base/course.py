"""Lists the rungs and steps that figures and tables single out. This file holds only data.
Everything else about a step comes from its own registration, through `--list`. A new rung needs an
entry here only if a figure singles it out."""

from __future__ import annotations

import os
from typing import Any

from ladder.base.files import read_lines
from ladder.base.records import Point

# Steps that several figures compare.
FLASH_V1, FLASH_V2 = ("04_flash_v1", "flash_v1"), ("05_flash_v2", "large_tiles")

# ---- workloads ----

# The FlashAttention-2 paper's workload: batch × N = 16k tokens, heads × d = 2048 (hidden size).
TOKENS, HIDDEN = 16 * 1024, 2048
LADDER_LENGTH = 2048  # N in the ladder's table and the speed-up figures
PROFILED_LENGTH = 4096  # N in the runs under Nsight Compute

# A real model's name → its attention shape, measured in the type that --dtype chooses.
MODELS = {line["model"]: Point(*Point.key(line))
          for line in read_lines(os.path.join(os.path.dirname(__file__), "models.jsonl"))}

# Folders of inputs for --load: a trained model's tensors; and 64 queries and 16k keys drawn from
# N(0, 1), with 1 added to V, so that the sums in PV grow with the number of keys.
CAPTURED, SHIFTED_V = "scripts/results/captured", "build/inputs/shifted_v"

# ---- figures ----

# (rung, step, kernel) of the kernels in the figure shared_roof, and PyTorch's backends in it.
SHARED_ROOF = [("06_backward", step, "key_gradients") for step in (
    "split_sums", "wgmma", "producer", "transposed", "bulk_add", "ahead", "split", "sm90")]
SHARED_ROOF_PEERS = ["cudnn", "flash"]

# Steps on the roofline in addition to each rung's default.
ROOFLINE_EXTRA = [("01_tiled_matmul", "tile")]

# The steps whose requested bytes (COUNTED) or times (TIMED) are plotted against Bc, keys per tile.
BLOCK_SIZE_COUNTED = [FLASH_V1, ("05_flash_v2", "swap")]
BLOCK_SIZE_TIMED = [FLASH_V1]

# Rungs whose steps the simulator also counts under the causal mask, to show the tiles they skip.
CAUSAL_COUNTED = ["04_flash_v1", "05_flash_v2"]
# Steps that are also counted with heads of 96: sm90 has tiles for them, q_registers pads them.
PADDED_COUNTED = [("05_flash_v2", "q_registers"), ("05_flash_v2", "sm90")]

# The errors of the FP8 step (`step`) with several settings, compared with those of a step that
# multiplies in the I/O type (`beside`). `rows` are (label, settings): NONE plus one setting shows
# what that setting gains, and ALL minus one shows what is lost without it.
NONE = {"scale": "tensor", "hadamard": "off", "p_scale": "off", "two_level": "off"}
ALL = {"scale": "tile", "hadamard": "on", "p_scale": "on", "two_level": "on"}
QUANTISED: dict[str, Any] = {
    "step": ("05_flash_v2", "fp8"), "beside": FLASH_V2,
    "rows": [("FP8, one scale per tensor", NONE),
             ("… one scale per head", {**NONE, "scale": "head"}),
             ("… one scale per tile", {**NONE, "scale": "tile"}),
             ("… the transform", {**NONE, "hadamard": "on"}),
             ("… P scaled", {**NONE, "p_scale": "on"}),
             ("… two levels of sums", {**NONE, "two_level": "on"}),
             ("all of these", ALL),
             ("all but scales per tile", {**ALL, "scale": "tensor"}),
             ("all but the transform", {**ALL, "hadamard": "off"}),
             ("all but P scaled", {**ALL, "p_scale": "off"}),
             ("all but two levels", {**ALL, "two_level": "off"})],
    # (panel's title, workload, the program's options, `input` in the records)
    "inputs": [
        ("normal, d = 128", Point(1, 8, 1024, 128, False, "fp16"), ["--input", "normal"], "normal"),
        *((f"outliers, d = {d}", Point(1, 8, 1024, d, False, "fp16"), ["--input", "outliers"],
           "outliers") for d in (64, 128)),
        ("captured", Point(1, 2, 256, 64, True, "fp16"), ["--load", CAPTURED], "load"),
        ("V + 1, 16k keys", Point(1, 1, 64, 64, False, "fp16", 1, 16384), ["--load", SHIFTED_V],
         "load")],
    # The head sizes for timing `step`. No other step is timed at the last one.
    "head_dims": [64, 128, 256],
    # FlashAttention-3's own kernel with e4m3 inputs, run on an H200 on another day: TFLOP/s at each
    # length, keyed by (d, causal). `matmul` is cuBLAS's rate in that run, in TFLOP/s.
    "released": {"lengths": [512, 1024, 2048, 4096, 8192, 16384], "matmul": 1285,
                 "tflops": {(64, False): [338, 441, 575, 606, 647, 664],
                            (64, True): [191, 300, 451, 535, 607, 630],
                            (128, False): [536, 707, 752, 838, 889, 916],
                            (128, True): [331, 523, 660, 754, 843, 862]}},
}
