"""Runs every rung of the ladder and prints one table; scripts/run builds, then calls this.

The programs do the work, this only gathers: `PROGRAM --list` names a rung's steps, and
`PROGRAM --json` measures one. Everything they reported goes to build/results.json as
{"records": [objects of --json], "failures": [{rung, variant, device, status, message}]}.
"""

import contextlib
import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time


# The FlashAttention-2 paper's workload: 16k tokens in all, hidden size 2048.
PAPER_2K = ["--batch", "8", "--seqlen", "2048", "--heads", "32", "--head-dim", "64",
            "--dtype", "bf16"]

# These would make all programs write, or print, the same thing.
FOR_ONE_PROGRAM = ["--save", "--trace", "--list", "--version"]



# ---- numbers that people read ----


# ---- what a record says ----


# ---- the programs ----


class Run:
    """One step on one device: its records (06 has two), or why there are none."""

    def __init__(self, program, step, device, counters=False):
        self.rung = program.name
        self.path = program.path
        self.variant = step["variant"]
        self.device = device
        self.options = ["--dram"] if counters and device == "gpu" else []
        self.records = []
        self.status = GOOD
        self.message = ""

    def go(self, options, progress, label):
        command = [self.path, *options, *self.options, "--variant", self.variant, "--device", self.device,
                   "--json"]
        self.status, out, self.message = run_quietly(
            command, f"{label} {self.rung} {self.variant} on the {self.device}", progress)
        if self.status < 0:
            crash = signal.Signals(-self.status).name
            self.message = f"{self.message}\nkilled by {crash}".strip()
            self.status = 128 - self.status
        # Some lines of a program that crashed may be cut short.
        with contextlib.nullcontext() if self.status <= NO_DEVICE else contextlib.suppress(Stop):
            self.records = json_lines(out, self.rung)
        if self.status == GOOD:
            self.judge()
        return self

    def judge(self):
        if not self.records:
            self.status, self.message = WRONG_RESULT, "the program reported nothing"
        for record in self.records:
            uneven = uneven_counts(record)
            if record.get("pass") is False:
                self.status, self.message = WRONG_RESULT, "wrong result"
            elif uneven:
                self.status, self.message = WRONG_RESULT, uneven

    def failure(self):
        return {"rung": self.rung, "variant": self.variant, "device": self.device,
                "status": self.status, "message": self.message}


# ---- the table ----


HEADER = ["rung", "variant", "device", "time", "TFLOP/s", "requested", "distinct", "DRAM", "vs 00",
          "workspace", "error"]
DRAM = HEADER.index("DRAM")  # shown where there is any
LEFT_ALIGNED = 3


def cells(run, record, base):
    """One row. `base` is what 00 requests on that device."""
    if record is None:
        return [run.rung, run.variant, run.device] + [NO_VALUE] * 7 + ["failed"]
    variant = run.variant
    backward = record.get("direction") == "bwd"
    if len(run.records) > 1 or backward:
        variant += f" {record['direction']}"
    asked = requested(record)
    # 00 has no backward pass to compare with.
    ratio = asked / base if asked is not None and base and not backward else None
    return [run.rung, variant, record.get("device", run.device), time_text(record.get("time_ms")),
            rate_text(record.get("tflops")), bytes_text(asked), bytes_text(total(record, "distinct")),
            bytes_text(total(record, "dram")), ratio_text(ratio), bytes_text(record.get("workspace_bytes")), error_text(record)]


def table(runs, paint):
    """Lines of at most WIDTH columns; nothing for runs whose options the program refused."""
    base = {}
    for run in runs:
        for record in run.records:
            if run.rung.startswith("00"):
                base.setdefault(run.device, requested(record))
    rows, failed = [], []
    for run in runs:
        records = run.records or ([None] if run.status not in (BAD_USAGE, NO_DEVICE) else [])
        for record in records:
            row = cells(run, record, base.get(run.device))
            if run.status != GOOD:
                row[-1] += " ✗"
            rows.append(row)
            failed.append(run.status != GOOD)
    if not rows:
        return []

    header = list(HEADER)
    if all(row[DRAM] == NO_VALUE for row in rows):
        for row in [header, *rows]:
            del row[DRAM]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1
    # Names are of the rungs' choosing. If they are long, the rung's gives way, whose number is
    # enough to know it by, and then the variant's.
    for column, least in ((0, len("00_naive")), (1, len(header[1]))):
        excess = sum(widths) + gap * (len(widths) - 1) - WIDTH
        if excess > 0:
            widths[column] = max(least, widths[column] - excess)

    def line(row):
        shown = []
        for i, (text, width) in enumerate(zip(row, widths)):
            if len(text) > width:
                text = text[:width - 1] + "…"
            shown.append(text.ljust(width) if i < LEFT_ALIGNED else text.rjust(width))
        return shown

    lines = [paint(BOLD, (" " * gap).join(line(header)))]
    for row, bad in zip(rows, failed):
        shown = line(row)
        if bad:
            shown[-1] = paint(RED, shown[-1])
        lines.append((" " * gap).join(shown))
    return lines


def messages(runs, paint):
    """What the failed runs said, once where they said the same."""
    said = {}
    for run in runs:
        if run.status == GOOD:
            continue
        text = re.sub(rf"^{re.escape(run.rung)}: *", "", run.message, flags=re.MULTILINE)
        said.setdefault((run.status, text), []).append(run)
    lines = []
    for (status, text), group in said.items():
        by_rung = {}
        for run in group:
            by_rung.setdefault((run.rung, run.device), []).append(run.variant)
        names = [f"{rung} {', '.join(variants)} on the {device}"
                 for (rung, device), variants in by_rung.items()]
        what = {WRONG_RESULT: "failed", BAD_USAGE: "refused", NO_DEVICE: "could not run"}
        said_so = what.get(status, "crashed")
        lines.append("")
        lines += [paint(RED, line) for line in wrap(f"{'; '.join(names)} {said_so}"
                                                    f" (status {status}):")]
        for part in (text or "the program gave no reason").splitlines():
            lines += wrap(part, "  ")
    return lines


LEGEND = ("requested: bytes that the kernels ask of HBM ({how}); distinct: each byte once per "
          "kernel; {dram}vs 00: requested against rung 00; workspace: HBM beyond inputs and outputs; "
          "error: the largest, against float64.")


def print_tables(tables, out):
    paint = Paint(out)
    every = [run for _, runs in tables for run in runs]
    for i, (title, runs) in enumerate(tables):
        first = next((record for run in runs for record in run.records), None)
        lines = table(runs, paint)
        if lines:
            if i:
                print(file=out)
            if first:
                title = f"{title}: {shape_text(first)}"
                gpu = next((r.get("device_name") for run in runs for r in run.records
                            if r.get("device") == "gpu"), None)
                if gpu:
                    title += f"; gpu: {gpu}"
            print("\n".join([paint(BOLD, line) for line in wrap(title)] + [""] + lines), file=out)
        if any(run.status for run in runs):
            said = messages(runs, paint)
            print("\n".join(said if lines else said[1:]), file=out)
    records = [record for run in every for record in run.records]
    if records:
        counted = any(total(record, "requested") is not None for record in records)
        uneven = any(uneven_counts(record) for record in records)
        formula = any(total(record, "requested") is None for record in records)
        how = "counted by the sim" if counted else ""
        if counted and not uneven:
            how += " and equal to the rung's formula"
        if formula:
            how += ", for the gpu that formula" if counted else "the rung's formula"
        dram = ("DRAM: what HBM served, by the GPU's counters; "
                if any(total(record, "dram") is not None for record in records) else "")
        legend = LEGEND.format(how=how, dram=dram)
        print("\n".join([""] + [paint(DIM, line) for line in wrap(legend)]), file=out)


# ---- results.json ----


# ---- all of it ----


def take(options, name, shortest):
    """Removes `name VALUE` or `name=VALUE` from the options and returns the last value. As in
    getopt_long, a name may be cut short, here down to `shortest`."""
    value, kept = None, []
    rest = iter(options)
    for option in rest:
        spelled, equals, attached = option.partition("=")
        if not (name.startswith(spelled) and len(spelled) >= len(shortest)):
            kept.append(option)
        elif equals:
            value = attached
        else:
            value = next(rest, None)
            if value is None:
                raise Stop(f"{name} needs a value", BAD_USAGE)
    options[:] = kept
    return value


def gpu_answers(program, progress):
    """Whether there is a GPU to run on, whether its DRAM counters may be read, and if not, why."""
    status, out, message = run_quietly(
        [program.path, "--device", "gpu", "--seqlen", "1", "--heads", "1", "--dram", "--check",
         "off", "--json"], "looking for a GPU", progress)
    progress.clear()
    if status == NO_DEVICE:
        return False, False, message.removeprefix(f"{program.name}: ")
    with contextlib.suppress(Stop):
        if any(total(record, "dram") is not None for record in json_lines(out, program.name)):
            return True, True, ""
    said = [line for line in message.splitlines() if line.startswith("--dram: ")]
    return True, False, "".join(said[-1:]).removeprefix("--dram: ")


def plan(found, given, gpu, counters):
    """The tables to make: (title, options of the programs, [Run])."""
    steps = [(program, step) for program in found for step in program.steps()]

    def runs(device):
        return [Run(program, step, device, counters and "--dram" not in given)
                for program, step in steps if step["device"] == device]

    if given:
        options = list(given)
        variant = take(options, "--variant", "--var")
        device = take(options, "--device", "--dev")
        if device in (None, "auto"):
            device = "gpu" if gpu else "sim"
        elif device not in ("gpu", "sim"):
            raise Stop(f"--device {device}: the devices are gpu, sim and auto", BAD_USAGE)
        if variant:
            names = sorted({step["variant"] for _, step in steps})
            if variant not in names:
                raise Stop(f"--variant {variant}: no rung has it; there are {', '.join(names)}",
                           BAD_USAGE)
            steps = [(program, step) for program, step in steps if step["variant"] == variant]
        chosen = runs(device)
        if not chosen:  # built without CUDA: the program says so better
            chosen = [Run(program, step, device) for program, step in steps]
        return [(f"scripts/run {shlex.join(given)}", options, chosen)]

    captured = os.path.join(ROOT, "scripts/captured")
    if os.path.exists(os.path.join(captured, "q.npy")):
        title = "q, k, v captured from a trained model"
        options = ["--load", os.path.relpath(captured)]
    else:
        title = "random q, k, v (no capture in scripts/captured)"
        options = []
    both = []
    for program in found:
        mine = runs("sim") + (runs("gpu") if gpu else [])
        both += [run for run in mine if run.rung == program.name]
    tables = [(title, options, both)]
    if gpu:
        tables.append(("the FlashAttention-2 paper's workload at N = 2k", PAPER_2K, runs("gpu")))
    return tables


def ladder(options):
    for option in options:
        for name in FOR_ONE_PROGRAM:
            if option.partition("=")[0] == name:
                raise Stop(f"{name} is for one program alone, such as build/bin/00_naive {option}",
                           BAD_USAGE)
    json_out = "--json" in options
    given = [option for option in options if option != "--json"]

    progress = Progress()
    found = programs()
    gpu, counters, why_not = gpu_answers(found[0], progress)
    tables = plan(found, given, gpu, counters)
    count = sum(len(runs) for _, _, runs in tables)
    done = 0
    finished = []
    for title, program_options, runs in tables:
        for run in runs:
            done += 1
            run.go(program_options, progress, f"[{done}/{count}]")
        progress.clear()
        # A step for a GPU of another kind is no failure where nobody asked for it.
        finished.append((title, [run for run in runs if given or run.status != NO_DEVICE
                                 or not run.variant.startswith("sm")]))

    every = [run for _, runs in finished for run in runs]
    records = [record for run in every for record in run.records]
    if json_out:
        for record in records:
            print(json.dumps(record, ensure_ascii=False))
        sys.stdout.flush()
    print_tables(finished, sys.stderr if json_out else sys.stdout)
    sys.stdout.flush()
    if not gpu and not any(option.startswith("--dev") for option in given):
        print("\n".join(wrap(f"Counts only, no times: {why_not}")), file=sys.stderr)
    elif gpu and not counters and why_not and any(run.device == "gpu" for run in every):
        print("\n".join(wrap(f"No DRAM column: {why_not}")), file=sys.stderr)
    if records:
        path = os.path.join(ROOT, "build/results.json")
        results = {"records": records,
                   "failures": [run.failure() for run in every if run.status != GOOD]}
        write_whole(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        print(f"Wrote {os.path.relpath(path)} ({len(records)} records).", file=sys.stderr)
    return max((run.status for run in every), key=lambda s: (SEVERITY.get(s, 4), s), default=GOOD)


def main():
    def terminated(*_):
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
    for stream in (sys.stdout, sys.stderr):
        # The table has a few characters that not every locale knows.
        stream.reconfigure(errors="replace")
    try:
        return ladder(sys.argv[1:])
    except Stop as stop:
        print(f"scripts/run: {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("\nscripts/run: interrupted; build/results.json is as it was.", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has seen enough, like head.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
