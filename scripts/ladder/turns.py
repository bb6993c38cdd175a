"""Our programs beside PyTorch's attention, in turn."""

import os
import signal
import statistics

from ladder.console import BAD_USAGE, GOOD, NO_DEVICE, Stop
from ladder.programs import json_lines, programs_in, run_quietly
from ladder.sdpa import Unavailable
from ladder.steps import ladder_of


class Ours:
    """A variant of one of our programs."""

    def __init__(self, path, variant, options, progress):
        self.path = path
        self.rung = os.path.basename(path)
        self.variant = variant
        self.label = f"{self.rung[:2]} {variant}"
        self.options = options
        self.progress = progress

    def measure(self, point, what):
        options = self.options
        command = [self.path, "--device", "gpu", "--variant", self.variant, "--batch",
                   point.batch, "--heads", point.heads, "--seqlen", point.seqlen, "--head-dim",
                   point.head_dim, "--dtype", options.dtype, "--seed", options.seed, "--time",
                   f"{options.time:g}", "--check", "off", "--json"]
        command += ["--causal"] if point.causal else []
        status, out, message = run_quietly(list(map(str, command)), what, self.progress)
        if status != GOOD:
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            message = message.removeprefix(f"{self.rung}: ") or "it gave no reason"
            raise Unavailable(f"{ended}: {message}", failed=status != NO_DEVICE)
        try:
            records = json_lines(out, self.rung)
        except Stop as stop:
            raise Unavailable(str(stop), failed=True) from None
        for record in records:
            if record["direction"] == point.direction:  # a backward run has a forward pass first
                return record
        raise Unavailable("it reported nothing", failed=True)


def find_ours(options, directions, progress):
    """Direction → what to measure there: of the rung that is compared with PyTorch, the variants
    given, by default its last portable step."""
    programs = programs_in(options.ours)
    ladder = ladder_of(programs.values(), "gpu")
    if not ladder.steps:
        raise Stop(f"the programs in {options.ours} were built without CUDA", NO_DEVICE)
    rungs = ladder.beside_peers()
    found, known = {}, {}
    for direction in directions:
        rung = rungs.get(direction)
        if not rung:
            raise Stop(f"{options.ours} has no rung with{'out' if direction == 'fwd' else ''} a "
                       "backward pass: scripts/run builds the programs into build/bin; "
                       "--direction chooses one", BAD_USAGE)
        known[rung] = [step.variant for step in ladder.of(rung)]
        wanted = options.variant or [step.variant for step in ladder.of(rung)
                                     if step == ladder.last_portable(rung)]
        found[direction] = [Ours(programs[rung].path, variant, options, progress)
                            for variant in wanted if variant in known[rung]]
    for variant in options.variant or []:
        if not any(variant in steps for steps in known.values()):
            there = "; ".join(f"{rung}: {', '.join(steps)}" for rung, steps in known.items())
            raise Stop(f"--variant {variant}: there are {there}", BAD_USAGE)
    return found


def combine(records, point):
    """One record for several runs of the same: the median of their medians."""
    time_ms = statistics.median(record["time_ms"] for record in records)
    return {**records[0], "time_ms": time_ms,
            "time_ms_min": min(record["time_ms_min"] for record in records),
            "time_ms_max": max(record["time_ms_max"] for record in records),
            "samples": sum(record["samples"] for record in records),
            "tflops": point.flops() / time_ms * 1e-9}


def measure_point(point, contenders, rounds, what):
    """({label: record}, {label: Unavailable}). All take turns, so that each meets the GPU about
    as warm as the others do."""
    runs, missing = {}, {}
    for _ in range(rounds):
        for contender in contenders:
            label = contender.label
            if label in missing:
                continue
            try:
                record = contender.measure(point, f"{what}: {label}")
            except Unavailable as error:
                missing[label] = error
                continue
            runs.setdefault(label, []).append(record)
    return {label: combine(records, point) for label, records in runs.items()}, missing
