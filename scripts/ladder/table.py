"""The table that scripts/run prints."""

import re

from ladder.console import (BAD_USAGE, BOLD, DIM, GOOD, NO_DEVICE, RED, WIDTH, WRONG_RESULT, Paint,
                            wrap)
from ladder.records import error_text, requested, shape_text, total, uneven_counts
from ladder.text import NO_VALUE, bytes_text, rate_text, ratio_text, time_text

HEADER = ["rung", "variant", "device", "time", "TFLOP/s", "requested", "distinct", "DRAM", "vs {}",
          "workspace", "error"]
DRAM = HEADER.index("DRAM")  # shown where there is any
LEFT_ALIGNED = 3
LEAST_OF_A_RUNG = 8  # of its name is shown: the number and a few letters


def cells(run, record, base):
    """One row. `base` is what the ladder's first step requests on that device."""
    if record is None:
        return [run.rung, run.variant, run.device] + [NO_VALUE] * 7 + ["failed"]
    variant = run.variant
    backward = record.get("direction") == "bwd"
    if len(run.records) > 1 or backward:
        variant += f" {record['direction']}"
    asked = requested(record)
    # The first step has no backward pass to compare with.
    ratio = asked / base if asked is not None and base and not backward else None
    return [run.rung, variant, record.get("device", run.device), time_text(record.get("time_ms")),
            rate_text(record.get("tflops")), bytes_text(asked), bytes_text(total(record, "distinct")),
            bytes_text(total(record, "dram")), ratio_text(ratio),
            bytes_text(record.get("workspace_bytes")), error_text(record)]


def table(runs, first, paint):
    """Lines of at most WIDTH columns; nothing for runs whose options the program refused. `first`
    is the ladder's first step, which the others are set against."""
    base = {run.device: requested(run.records[0]) for run in runs
            if run.records and (run.rung, run.variant) == (first.rung, first.variant)}
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

    header = [name.format(first.rung[:2]) for name in HEADER]
    if all(row[DRAM] == NO_VALUE for row in rows):
        for row in [header, *rows]:
            del row[DRAM]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1
    # Names are of the rungs' choosing. If they are long, the rung's gives way, whose number is
    # enough to know it by, and then the variant's.
    for column, least in ((0, LEAST_OF_A_RUNG), (1, len(header[1]))):
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
          "kernel; {dram}vs {first}: requested against rung {first}; workspace: HBM beyond inputs "
          "and outputs; error: the largest, against float64.")


def print_tables(tables, first, out):
    """[(title, [Run])] as tables, what failed, and what the columns mean."""
    paint = Paint(out)
    every = [run for _, runs in tables for run in runs]
    for i, (title, runs) in enumerate(tables):
        shown = next((record for run in runs for record in run.records), None)
        lines = table(runs, first, paint)
        if lines:
            if i:
                print(file=out)
            if shown:
                title = f"{title}: {shape_text(shown)}"
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
        legend = LEGEND.format(how=how, dram=dram, first=first.rung[:2])
        print("\n".join([""] + [paint(DIM, line) for line in wrap(legend)]), file=out)
