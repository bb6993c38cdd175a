"""Formats the tables that scripts/run prints. A table with a story shows one main number and a bar
per step; a table of details has all columns (scripts/run with options or --all)."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from typing import Callable, Iterator, NamedTuple

from ladder.base.console import (BAD_USAGE, BOLD, DIM, GOOD, NO_DEVICE, RED, WIDTH, WRONG_RESULT,
                                 Paint, wrap)
from ladder.base.programs import Step
from ladder.base.records import (Record, count_of, error_text, largest_error, requested,
                                 shape_text, total)
from ladder.base.text import NO_VALUE, bytes_text, counts_text, rate_text, time_text


@dataclasses.dataclass
class StepRun:
    """A step's run on one device: its records, one per pass, or a message why there are none."""
    step: Step
    device: str  # a key of MACHINES
    status: int = GOOD
    records: list[Record] = dataclasses.field(default_factory=list)
    message: str = ""


MACHINES = {"gpu": "GPU", "sim": "simulator"}

# A column's heading → the function that formats a record's cell in that column.
COLUMNS: dict[str, Callable[[Record], str]] = {
    "time": lambda record: time_text(record.get("time_ms")),
    "TFLOP/s": lambda record: rate_text(record.get("tflops")),
    "requested": lambda record: bytes_text(requested(record)),
    "distinct": lambda record: bytes_text(total(record, "distinct")),
    "DRAM": lambda record: bytes_text(total(record, "dram")),
    "workspace": lambda record: bytes_text(record.get("workspace_bytes")),
    "error": error_text}

# A column's heading → its explanation below the tables; {} becomes the way bytes were counted.
MEANINGS = {"requested": "bytes that the kernels read from and write to global memory, {}",
            "distinct": "the same, but each byte once per kernel, as if caches were perfect",
            "DRAM": "bytes that HBM served, by the GPU's counters",
            "workspace": "bytes of memory beyond inputs and outputs",
            "error": "the largest difference from float64"}


class Story(NamedTuple):
    """What a table tells about each step: a main number, also shown as a bar and compared with the
    row above, and the columns that follow."""
    head: str
    value: Callable[[Record], float | None]
    text: Callable[[float | None], str]  # formats the number
    less: str  # the word for a smaller number, as in "12.9× less"
    more: str
    columns: list[str]  # keys of COLUMNS
    counts: bool  # whether a step whose idea changes another count is compared by that count


class Table(NamedTuple):
    """A table of scripts/run; without a story, it has all columns."""
    title: str
    options: list[str]  # for the programs
    story: Story | None
    runs: list[StepRun]


TRAFFIC = Story("requested", requested, bytes_text, "less", "more", ["distinct"], True)
TIME = Story("time", lambda record: record.get("time_ms"), time_text, "faster", "slower",
             ["TFLOP/s", "DRAM"], False)
# The key of a count that a step's idea is about → its name in the table, and its explanation below.
CHANGED = {
    "hbm_sectors": ("sectors", "32-byte pieces of global memory that the warps' accesses touch"),
    "sram_read_bytes": ("loaded", "bytes read from shared memory"),
    "products": ("products", "matrix instructions on the tensor cores"),
    "bank_conflicts": ("conflicts", "additional passes over shared memory, because lanes of a warp "
                       "need different words of one bank"),
    "flops_under_copies": ("under copies", "FLOPs computed while a copy to shared memory is in "
                           "flight"),
    "workspace_bytes": ("workspace", MEANINGS["workspace"]),
    "matmul_flops": ("FLOPs", "floating-point operations in matrix products"),
    "other_flops": ("other FLOPs", "floating-point operations outside matrix products, such as the "
                    "softmax's"),
    "barriers": ("barriers", "times that a whole block waits for all its threads"),
    "blocks": ("blocks", "thread blocks launched"),
    "consumer_copies": ("own copies", "copies started by warps that also compute products"),
    "exps_under_products": ("under products", "exponentials computed while a product runs"),
    "exps_between_turns": ("between turns", "exponentials computed while another warpgroup has the "
                           "tensor cores"),
    "atomics": ("atomics", "atomic additions to global memory"),
    "sram_operand_bytes": ("operands", "bytes that products read from shared memory"),
    "sram_write_bytes": ("stored", "bytes written to shared memory"),
    "stores_under_products": ("stores under products", "bytes written to shared memory while a "
                              "product runs")}


def records_of(runs: list[StepRun], begin: int = 0) -> list[tuple[StepRun, Record]]:
    """Returns (run, record) for each row of a table: a run's records from index `begin` on, or one
    empty record if its program failed. Runs that were refused or lack a device get no row."""
    return [(run, record) for run in runs for record in run.records[begin:] or
            ([{}] if run.status not in (BAD_USAGE, NO_DEVICE) else [])]


def is_backward(record: Record) -> bool:
    return record.get("direction") == "bwd"


def name_of(run: StepRun, record: Record) -> str:
    """Returns a row's name, such as "06 stored bwd"."""
    return f"{run.step.rung[:2]} {run.step.name}{' bwd' if is_backward(record) else ''}"


def known(header: list[str], rows: list[list[str]]) -> list[list[str]]:
    """Returns [header, *rows] without the columns that are empty in all rows."""
    columns = [column for column in zip(header, *rows) if set(column[1:]) != {NO_VALUE}]
    return list(map(list, zip(*columns)))


def draw(rows: list[list[str]], left: tuple[int, ...], steps: list[tuple[StepRun, Record]],
         paint: Paint) -> list[str]:
    """Returns the lines of a table, with the first row as its header and ✗ after a failed step.
    Columns whose index is in `left` are left-aligned, the others right-aligned."""
    failed = [False, *(run.status != GOOD for run, _ in steps)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(text.ljust(width) if i in left else text.rjust(width)
                       for i, (text, width) in enumerate(zip(row, widths))).rstrip()
             + (" " + paint(RED, "✗")) * bad for row, bad in zip(rows, failed)]
    return [paint(BOLD, lines[0]), *lines[1:]]


# ---- the story: one number and a bar per step ----

EIGHTHS = " ▏▎▍▌▋▊▉"
BAR = 2  # the index of the bar's column


def bar(value: float | None, low: int, high: int, width: int) -> str:
    """Returns a value's bar on a logarithmic scale: `width` columns for 10^high, 0 for 10^low."""
    if not value:
        return ""
    eighths = round(8 * width * (math.log10(value) - low) / (high - low))
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).strip().ljust(width)


def change_of(step: Step, record: Record, before: Record) -> str:
    """Returns how a step changes the count that its idea is about, such as "conflicts 100,352 → 0".
    `before` is the record of the step that it follows. Returns "" if that count is requested bytes,
    is unknown, or does not change."""
    count = step.change[0]
    if count in ("", "requested_bytes") or not before or not record:
        return ""
    old, new = count_of(before, count), count_of(record, count)
    if old is None or new is None or old == new:
        return ""
    name = CHANGED[count][0] if count in CHANGED else count.replace("_", " ")
    return f"{name} {' → '.join(counts_text(count, old, new))}"


def against(story: Story, value: float | None, before: float | None) -> str:
    """Returns how many times less or more than `before` a value is, such as "12.9× less"."""
    if not value or not before:
        return ""
    ratio = before / value
    if round(ratio, 2) == 1:
        return "the same"
    return (f"{rate_text(ratio)}× {story.less}" if ratio > 1 else
            f"{rate_text(1 / ratio)}× {story.more}")


def story_table(story: Story, runs: list[StepRun],
                paint: Paint) -> tuple[list[str], list[str]] | None:
    """Returns the header and the table's lines, or None if nothing was measured. Each step fills
    one row, for its backward pass if there is one. "vs above" compares the story's number or, for a
    step whose idea changes another count, that count; if the story's number rose as well, both."""
    steps = records_of(runs, -1)
    values = [story.value(record) for _, record in steps]
    measured = [value for value in values if value]
    if not measured:
        return None
    low = math.floor(math.log10(min(measured)))
    high = max(math.ceil(math.log10(max(measured))), low + 1)
    rows: list[list[str]] = []
    above: dict[bool, Record] = {}
    for (run, record), value in zip(steps, values):
        before = above.get(is_backward(record), {})
        brings = against(story, value, story.value(before))
        # Another count is compared only if the row above is the step that this one follows.
        follows = run.step.after in ("", before.get("step"))
        change = change_of(run.step, record, before) if story.counts and follows else ""
        if change:  # a rise of the story's number is shown too, as the cost
            brings = f"{brings}, {change}" if brings.endswith(story.more) else change
        above[is_backward(record)] = record
        rows.append([name_of(run, record), run.step.idea, story.text(value), brings,
                     *(COLUMNS[head](record) for head in story.columns)])
    header, *rows = known(["step", "idea", story.head, "vs above", *story.columns], rows)
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    room = WIDTH - sum(widths) - 2 * len(widths) - 2 * any(run.status for run, _ in steps)
    header.insert(BAR, "")
    for row, value in zip(rows, values):
        row.insert(BAR, bar(value, low, high, room))
    return header, draw([header, *rows], (0, 1, BAR, BAR + 2), steps, paint)


def details_table(runs: list[StepRun], paint: Paint) -> tuple[list[str], list[str]] | None:
    """Returns the header and the table's lines, one row per record; None if there are no rows."""
    steps = records_of(runs)
    if not steps:
        return None
    rows = known(["step", "device", *COLUMNS], [
        [name_of(run, record), run.device, *(text(record) for text in COLUMNS.values())]
        for run, record in steps])
    return rows[0], draw(rows, (0, 1), steps, paint)


def messages(runs: list[StepRun], paint: Paint) -> Iterator[str]:
    """Yields the lines of the failed runs' messages, each distinct message once."""
    failures: dict[tuple[int, str], list[str]] = {}
    for run in runs:
        if run.status != GOOD:
            failures.setdefault((run.status, run.message), []).append(
                f"{run.step.rung} {run.step.name}")
    what = {WRONG_RESULT: "failed", BAD_USAGE: "refused", NO_DEVICE: "could not run"}
    for (status, text), steps in failures.items():
        names = f"{', '.join(steps)} on the {MACHINES[runs[0].device]}"
        yield ""
        for line in wrap(f"{names} {what.get(status, 'crashed')} (status {status}):"):
            yield paint(RED, line)
        for part in (text or "the program gave no reason").splitlines():
            yield from wrap(part, "  ")


def print_tables(tables: list[Table]) -> None:
    paint = Paint(sys.stdout)
    all_runs = [run for table in tables for run in table.runs]
    parts: list[str] = []
    heads: list[str] = []
    text = ""
    for title, _, story, runs in tables:
        rows = story_table(story, runs, paint) if story else details_table(runs, paint)
        if rows:
            heads += rows[0]
            shown = [record for run in runs for record in run.records]
            title += f": {shape_text(shown[0])}" if shown else ""
            gpu = next((r.get("device_name") for r in shown if r.get("device") == "gpu"), None)
            title += f"; gpu: {gpu}" if gpu else ""
            parts += ["", *(paint(BOLD, line) for line in wrap(title)), "", *rows[1]]
            text += "\n".join(rows[1])
        parts += messages(runs, paint)
    if heads and any(run.records for run in all_runs):
        parts += ["", *(paint(DIM, line) for line in legend(heads, text, all_runs))]
    print("\n".join(parts[1:]))


def legend(heads: list[str], text: str, runs: list[StepRun]) -> list[str]:
    """Returns lines that explain the headings `heads`, and the counts of CHANGED that the tables'
    text contains. If all results were checked and are correct, a last line says so."""
    records = [record for run in runs for record in run.records]
    right = all(run.status == GOOD for run in runs)
    counted = "counted by the simulator" + (" and equal to each step's formula" if right else "")
    if all(record.get("device") == "gpu" for record in records):
        counted = "by each step's formula"
    meanings = {head: meaning.format(counted) for head, meaning in MEANINGS.items()
                if head in heads}
    for name, meaning in CHANGED.values():
        if re.search(rf"  (?:[^ ]+× \w+, )?{name} \d.*→", text):
            meanings.setdefault(name, meaning)
    width = max(map(len, meanings), default=0) + 2
    lines: list[str] = []
    for name, meaning in meanings.items():
        first, *more = wrap(meaning, " " * width)
        lines += [name.ljust(width) + first.lstrip(), *more]
    if right and all(record["pass"] for record in records):  # None: not checked or not decided
        most = max(error for record in records if (error := largest_error(record)) is not None)
        lines += ["", "All results are correct: the largest difference from float64 is "
                  f"{most:.1e}."]
    return lines
