"""Counts where the cycles of the last steps' kernels go, with Nsight Compute, on a Hopper GPU.

One launch of each kernel at the papers' N = 4k without the mask, bf16, heads of 64 and 128: cycles,
instructions by the unit that executes them, what warps wait for, and what shared memory serves.
Nsight Compute (ncu) comes with the CUDA Toolkit, and fixes the clock: cycles compare, rates do not.

Examples:
  scripts/figures profile
  scripts/figures profile --out build/profile.json

Exit status: 0 good; 1 a program or ncu failed; 2 bad usage; 3 no ncu, or no such counter.
"""

import csv
import os
import shutil
import sys
import tempfile

from ladder import course
from ladder.bench import hopper
from ladder.bench.machine import machine
from ladder.console import NO_DEVICE, WRONG_RESULT, Stop, run_command
from ladder.files import read
from ladder.programs import json_lines, programs_in

PIPES = {"products": "tensor_op_gmma", "fp32": "fma", "integers": "alu", "uniform": "uniform",
         "special": "xu", "memory": "lsu", "branches": "cbu", "barriers": "adu"}
STALLS = ("wait", "gmma", "barrier", "long_scoreboard", "short_scoreboard", "mio_throttle",
          "math_pipe_throttle", "dispatch_stall", "branch_resolving", "no_instruction",
          "not_selected")
# What profile.json calls it → ncu's metric. Sums are over the GPU; cycles and shared memory's
# wavefronts (a cycle each) are an SM's, on average.
METRICS = {
    "cycles": "sm__cycles_active.avg", "cycles_of_all": "sm__cycles_active.sum",
    "products_busy": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "issuing": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "instructions": "smsp__inst_executed.sum",
    **{f"instructions_{name}": f"sm__inst_executed_pipe_{pipe}.sum"
       for name, pipe in PIPES.items()},
    "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg",
    "shared_products": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.avg",
    "shared_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.avg",
    **{f"stall_{name}": f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"
       for name in STALLS},
}


def values_of(text, kernel):
    """The metrics in what ncu wrote of one launch, --csv --page raw: a line of names, one of
    units, and one a kernel."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    rows = list(csv.DictReader(lines[start:]))[1:] if start is not None else []
    if len(rows) != 1:
        raise Stop(f"ncu profiled {len(rows)} launches of {kernel} where one was asked for",
                   WRONG_RESULT)
    try:
        return {name: float(rows[0][metric].replace(",", "")) for name, metric in METRICS.items()}
    except (KeyError, ValueError) as error:
        raise Stop(f"ncu lacks something of METRICS in scripts/ladder/bench/profile.py, {error}; "
                   "`ncu --query-metrics` says what there is", NO_DEVICE) from None


def profiled(program, variant, kernel, head_dim):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "ncu.csv")
        status, out, said = hopper.run(
            ["ncu", "--csv", "--page", "raw", "--log-file", log,
             "--metrics", ",".join(METRICS.values()), "--kernel-name", f"regex:{kernel}",
             "--launch-count", "1", program, *hopper.options_of(variant, head_dim), "--time", "1"],
            f"{variant} {kernel}, d {head_dim}")
        text = read(log) if os.path.exists(log) else ""
    if status:  # ncu says itself how a user comes to read the GPU's counters
        raise Stop(f"ncu {os.path.relpath(program)} failed:\n{said}\n{text}", WRONG_RESULT)
    record = json_lines("\n".join(line for line in out.splitlines() if line.startswith("{")),
                        os.path.relpath(program))[-1]  # of the backward pass, where there is one
    return {"rung": record["rung"], "variant": variant, "kernel": kernel, "head_dim": head_dim,
            **{name: record[name] for name in ("batch", "heads", "block_q", "block_kv")},
            **values_of(text, kernel)}


def measure(options):
    if not shutil.which("ncu"):
        raise Stop("there is no ncu on PATH: Nsight Compute, of the CUDA Toolkit", NO_DEVICE)
    programs, about = programs_in(options.bin), machine(False, options.commit)
    found = [profiled(programs[rung].path, variant, kernel, head_dim)
             for rung, variant, kernel in course.PROFILED if rung in programs
             for head_dim in (64, 128)]
    return hopper.write(options, about, seqlen=hopper.SEQLEN, kernels=found)


def parse(arguments=None):
    return hopper.parse("profile", __doc__, "profile.json", arguments)


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures profile", lambda: measure(parse())))
