"""Counts the cycles of a step's longest kernel, and how busy it keeps the tensor cores.

By Nsight Compute (ncu), which comes with the CUDA Toolkit: one launch at the papers' 16k tokens in
all and hidden size 2048, N = 4k, bf16, without the mask, heads of 64 and 128. Beside the counts
stands the kernel's time in a run without ncu, so that cycles over time is the SM's clock at its own
speed. What the file has already is kept.

Examples:
  scripts/figures profile             what the lessons on Hopper compare: 05's steps for it, and the
                                      last for every GPU (some ten minutes)
  scripts/figures profile 06/sm90

Exit status: 0 good; 1 a program or ncu failed; 2 bad usage; 3 no GPU or no ncu.
"""

from __future__ import annotations

import csv
import os
import shutil
import sys

from ladder.base.console import GOOD, NO_DEVICE, WRONG_RESULT, Parser, Progress, Stop
from ladder.base.course import FLASH_V2, PROFILED_LENGTH
from ladder.base.files import RESULTS
from ladder.base.gpu import machine
from ladder.base.programs import ladder_of, programs_in, run_json, run_quietly
from ladder.base.records import Record
from ladder.base.sources import named
from ladder.measure.grid import HEAD_DIMS, UNCHECKED, Measurement, key, paper_point
from ladder.measure.results import Results, add_options

COMMAND = "scripts/figures profile"
# Field → ncu's metric: cycles of an SM on average and of all of them, and the tensor cores' share.
METRICS = {
    "cycles": "sm__cycles_active.avg", "cycles_of_all": "sm__cycles_active.sum",
    "products_busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"}


def profiled(measurement: Measurement, progress: Progress) -> Record:
    """The line of a step's own pass: the backward one, where it has one."""
    words, what = measurement.command(), measurement.text()
    status, records, message = run_json(words, what, progress)
    if status:
        raise Stop(f"{what}: status {status}: {message}", status)
    kernel = max(records[-1]["kernels"], key=lambda kernel: kernel["time_ms"])
    # By the NVTX range around a launch: kernels of two names may be one template's.
    status, said, message = run_quietly(
        ["ncu", "--csv", "--page", "raw", "--clock-control", "none",
         "--metrics", ",".join(METRICS.values()), "--nvtx", "--nvtx-include", f"{kernel['name']}/",
         "--launch-count", "1", *words, "--time", "1"], what, progress)
    # Lines of names, units and values, between what the program and ncu say.
    rows = list(csv.DictReader(line for line in said.splitlines() if line.startswith('"')))
    if status or len(rows) != 2:  # ncu says itself how a user comes to read the GPU's counters
        raise Stop(f"ncu {what} failed:\n{message}\n{said}", WRONG_RESULT)
    return {"kind": "profile", **measurement.fields(), "kernel": kernel["name"],
            **{name: records[-1][name] for name in ("direction", "device", "device_name")},
            "time_ms": kernel["time_ms"],
            **{name: float(rows[1][metric].replace(",", "")) for name, metric in METRICS.items()}}


def main(words: list[str]) -> int:
    parser = Parser(COMMAND, __doc__)
    add_options(parser, "profile.jsonl")
    options = parser.parse_args(words)
    if not shutil.which("ncu"):
        raise Stop("there is no ncu on PATH: Nsight Compute, of the CUDA Toolkit", NO_DEVICE)
    programs, (gpu, about) = programs_in(options.bin), machine(options.commit)
    steps = [step for step in ladder_of(programs, "gpu").steps if not step.decoding]
    path = os.path.abspath(options.out or os.path.join(RESULTS, "profile.jsonl"))
    results, progress = Results(path, gpu), Progress()
    for step in named(options.steps, steps) or [
            step for step in steps if step.rung == FLASH_V2[0] and not step.by_name_only
            and (step.exact_architecture or step.key == FLASH_V2)]:
        for head_dim in HEAD_DIMS:
            measurement = Measurement(
                step, paper_point(PROFILED_LENGTH, head_dim, False, "bf16"), UNCHECKED)
            name = key(measurement.fields())
            if options.again or not results.texts.get(name):
                results.put(name, [{**profiled(measurement, progress), **about}])
    print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
    return GOOD
