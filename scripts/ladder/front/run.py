"""Runs every rung of the ladder and prints the table, after scripts/run has built the programs:
`PROGRAM --list` names a rung's steps, and `PROGRAM --json` runs them and prints their counts and
times, which table.py formats."""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import signal
import sys

from ladder.base.console import (BAD_USAGE, GOOD, NO_DEVICE, SEVERITY, WRONG_RESULT, CommandError,
                                 Parser, show, wrap)
from ladder.base.files import ROOT
from ladder.base.programs import Step, programs_in, refuse_output, run_json, steps_of
from ladder.base.records import Record, uneven_counts
from ladder.front.table import MACHINES, TIME, TRAFFIC, StepRun, Table, print_tables

COMMAND = "scripts/run"
# The FlashAttention-2 paper's workload: 16k tokens in total, hidden size 2048, bf16.
PAPER_2K = ["--batch", "8", "--seqlen", "2048", "--heads", "32", "--head-dim", "64",
            "--time", "50", "--dtype"]
DRAM = ["--dram"]  # without access to the GPU's counters, a program prints a note instead


def judge(run: StepRun, status: int, records: list[Record], message: str) -> None:
    """Stores what run_json() returned in the run. The run's status is WRONG_RESULT for a wrong
    result or count, 128 plus the signal's number for a crash, and `status` otherwise."""
    lines = (line.removeprefix(f"{run.step.rung}: ") for line in message.splitlines())
    run.status, run.records, run.message = status, records, "\n".join(lines)
    if status < 0:
        crash = signal.Signals(-status).name
        run.status, run.message = 128 - status, f"{run.message}\nkilled by {crash}".strip()
    elif status == GOOD:
        faults = [uneven_counts(record) or ("wrong result" if record.get("pass") is False else "")
                  for record in records] or ["the program reported nothing"]
        if any(faults):
            run.status, run.message = WRONG_RESULT, next(filter(None, faults))


def go(runs: list[StepRun], options: list[str]) -> None:
    """Does the runs, of one program's steps on one device, in one process, so that the steps share
    inputs and reference. If it fails, reruns each alone, to find out which step failed and why."""
    step, device, names = runs[0].step, runs[0].device, [run.step.name for run in runs]
    show(f"Running {step.rung} on the {MACHINES[device]} ...")
    status, records, message = run_json(
        [step.program, *options, "--step", ",".join(names), "--device", device])
    if status and len(runs) > 1:
        for run in runs:
            go([run], options)
        return
    for run in runs:
        judge(run, status, [record for record in records
                            if len(runs) == 1 or record["step"] == run.step.name], message)


def parse(words: list[str]) -> argparse.Namespace:
    """Returns the options that scripts/run itself uses: `device` and `all`. `passed` holds the
    arguments for the programs, and `words` all arguments except --all."""
    parser = Parser(COMMAND, usage="scripts/run [options]", add_help=False,
                    allow_abbrev=False)
    parser.add_argument("--device", choices=["gpu", "sim", "auto"], default="auto")
    parser.add_argument("--all", action="store_true")
    options, passed = parser.parse_known_args(words)
    options.passed, options.words = passed, [word for word in words if word != "--all"]
    return options


def gpu_answers(program: str) -> tuple[str, str]:
    """Returns (I/O type to measure with on a GPU, "") or, if none is usable, ("", the reason)."""
    for dtype in ("bf16", "fp16"):  # GPUs before 8.0 refuse bf16
        status, _, message = run_json(
            [program, "--device", "gpu", "--seqlen", "1", "--heads", "1", "--dtype", dtype,
             "--check", "off"])
        if status == NO_DEVICE:
            return "", message.removeprefix(f"{os.path.basename(program)}: ")
        if status != BAD_USAGE:
            break
    return dtype, ""


def plan(steps: list[Step], options: argparse.Namespace, gpu: str) -> list[Table]:
    """Returns the tables to print, with runs that are still to be done: one table for the user's
    options or, without any, one of requested bytes on the simulator and, on a GPU, one of times.
    `gpu` is the I/O type from gpu_answers()."""
    def runs(device: str) -> list[StepRun]:
        return [StepRun(step, device) for step in steps if step.device == device
                and (options.all or not step.by_name_only)]

    if options.words:
        device = options.device
        if device == "auto":
            device = "gpu" if gpu else "sim"
        # A build without CUDA lists no steps for the GPU. The program itself explains that best.
        chosen = runs(device) or [StepRun(step, device) for step in steps]
        return [Table(f"scripts/run {shlex.join(options.words)}",
                      options.passed + DRAM * (device == "gpu"), None, chosen)]

    counted = [run for run in runs("sim") if options.all or not run.step.exact_architecture]
    captured = os.path.relpath(os.path.join(ROOT, "scripts/results/captured"))
    traffic = Table("Global-memory requests, q, k, v of a trained model",
                    ["--load", captured],
                    None if options.all else TRAFFIC, counted)
    times = Table("Time, the FlashAttention-2 paper's workload at N = 2k", [*PAPER_2K, gpu, *DRAM],
                  None if options.all else TIME, runs("gpu"))
    return [traffic, times] if gpu else [traffic]


def next_steps(steps: list[Step]) -> list[str]:
    """Returns the lines that suggest, after a run without options, what to do next."""
    sim = [step for step in steps if step.device == "sim"]
    others = sum(step.by_name_only or step.exact_architecture for step in sim)
    first, second = (f"{step.rung[:2]}/{step.name}" for step in sim[:2])
    lines = [(f"{sim[0].rung}/README.md", "the first lesson"),
             ("scripts/explore", "two steps running, in your browser"),
             (f"scripts/diff {first[:2]} {second}", "the lines that the next step changes"),
             ("scripts/run --all", f"all columns and all steps ({others} more)")]
    return [f"{'' if i else 'Next:':6}{what:<25} {why}" for i, (what, why) in enumerate(lines)]


def main(words: list[str]) -> int:
    programs = programs_in(os.path.join(ROOT, "build/bin"))
    refuse_output(programs[min(programs)], words, "--step")
    options = parse(words)

    gpu, why_not = gpu_answers(programs[min(programs)])
    steps = [step for program in programs.values() for step in steps_of(program)]
    tables = plan(steps, options, gpu)
    finished = []
    for table in tables:
        for _, group in itertools.groupby(table.runs, key=lambda run: run.step.program):
            go(list(group), table.options)
            show("")
        # Without options, steps for another kind of GPU are left out instead of reported.
        finished.append(table._replace(runs=[
            run for run in table.runs if options.words or run.status != NO_DEVICE
            or not run.step.exact_architecture]))

    shown = [run for table in finished for run in table.runs]
    if len({(run.status, run.message) for run in shown}) == 1 and shown[0].status == BAD_USAGE:
        raise CommandError(f"{shown[0].message}\nbuild/bin/{shown[0].step.rung} --help lists the "
                           f"programs' options, {COMMAND} --help its own.", BAD_USAGE)
    print_tables(finished)
    if not options.words and not options.all and any(run.records for run in shown):
        print("\n".join(["", *next_steps(steps)]))
    sys.stdout.flush()
    if not gpu and options.device == "auto":
        print("\n".join(wrap(f"Counts only, no times: {why_not}")), file=sys.stderr)
    return max((run.status for run in shown), key=lambda s: (SEVERITY.get(s, 4), s), default=GOOD)
