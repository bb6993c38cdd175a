"""Counts how busy a kernel keeps the tensor cores, shared memory and the special function units.

By Nsight Compute (ncu), which comes with the CUDA Toolkit: one launch of each kernel that takes a
tenth of its step's time or more, at the papers' 16k tokens in all and hidden size 2048, N = 4k,
bf16, without the mask, heads of 64 and 128. Beside the counts stands the kernel's time in a run
without ncu, so that cycles over time is the SM's clock at its own speed. What the file has already
is kept.

Examples:
  scripts/figures profile                      all steps, some twenty minutes
  scripts/figures profile 05/sm90 06/sm90

Exit status: 0 good; 1 a program or ncu failed; 2 bad usage; 3 no GPU, no ncu, or no such counter.
"""

from __future__ import annotations

import csv
import os
import shutil
import sys
import tempfile

from ladder.base.console import GOOD, NO_DEVICE, WRONG_RESULT, Parser, Progress, Stop
from ladder.base.course import PROFILED_LENGTH
from ladder.base.files import RESULTS, read
from ladder.base.gpu import machine
from ladder.base.programs import ladder_of, programs_in, run_json, run_quietly
from ladder.base.records import Record
from ladder.base.sources import named
from ladder.measure.grid import HEAD_DIMS, UNCHECKED, Measurement, key, paper_point
from ladder.measure.results import Results, add_options

COMMAND = "scripts/figures profile"
# Field → ncu's metric. Sums are over the GPU; other cycles, and shared memory's wavefronts (a cycle
# each), are an SM's, on average.
METRICS = {
    "cycles": "sm__cycles_active.avg", "cycles_of_all": "sm__cycles_active.sum",
    "products_busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg",
    "instructions_special": "sm__inst_executed_pipe_xu.sum"}


def values_of(text: str, kernel: str) -> dict[str, float]:
    """The metrics that ncu wrote of a launch, --csv --page raw: lines of names, units, values."""
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))[1:]
    if len(rows) != 1:
        raise Stop(f"ncu profiled {len(rows)} launches in NVTX's range {kernel} where one was "
                   "asked for", WRONG_RESULT)
    try:
        return {name: float(rows[0][metric].replace(",", "")) for name, metric in METRICS.items()}
    except (KeyError, ValueError) as error:
        raise Stop(f"ncu lacks something of METRICS in scripts/ladder/measure/profile.py, {error}; "
                   "`ncu --query-metrics` says what there is", NO_DEVICE) from None


def counted(words: list[str], kernel: str, what: str, progress: Progress) -> dict[str, float]:
    """The metrics of a kernel's first launch in a command, `what` in messages."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "ncu.csv")
        # By the NVTX range around a launch: kernels of two names may be one template's.
        status, _, message = run_quietly(
            ["ncu", "--csv", "--page", "raw", "--log-file", log, "--clock-control", "none",
             "--metrics", ",".join(METRICS.values()), "--nvtx", "--nvtx-include", f"{kernel}/",
             "--launch-count", "1", *words, "--time", "1"], f"{what} {kernel}", progress)
        text = read(log) if os.path.exists(log) else ""
    if status:  # ncu says itself how a user comes to read the GPU's counters
        raise Stop(f"ncu {what} failed:\n{message}\n{text}", WRONG_RESULT)
    return values_of(text, kernel)


def profiled(measurement: Measurement, progress: Progress) -> list[Record]:
    """The lines of a step's own pass: the backward one, where it has one."""
    words, what = measurement.command(), measurement.text()
    status, records, message = run_json(words, what, progress)
    if status:
        raise Stop(f"{what}: status {status}: {message}", status)
    record = records[-1]
    return [{"kind": "profile", **measurement.fields(), "kernel": kernel["name"],
             **{name: record[name] for name in ("direction", "device", "device_name", "block_q",
                                                "block_kv")}, "time_ms": kernel["time_ms"],
             **counted(words, kernel["name"], what, progress)}
            for kernel in record["kernels"] if kernel["time_ms"] >= 0.1 * record["time_ms"]]


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
    for step in named(options.steps, steps) or steps:
        for head_dim in HEAD_DIMS:
            measurement = Measurement(
                step, paper_point(PROFILED_LENGTH, head_dim, False, "bf16"), UNCHECKED)
            name = key(measurement.fields())
            if options.again or not results.texts.get(name):
                results.put(name, [{**line, **about}
                                   for line in profiled(measurement, progress)])
    print(f"Wrote {os.path.relpath(path)}.", file=sys.stderr)
    return GOOD
