"""The tables that scripts/run prints: the story, a row a step with a bar, and all that is known."""

import collections
import math
import re
import sys

from ladder.base.console import (BAD_USAGE, BOLD, CYAN, DIM, GOOD, GREEN, NO_DEVICE, RED, WIDTH,
                                 YELLOW, WRONG_RESULT, Paint, wrap)
from ladder.base.records import error_text, largest_error, requested, shape_text, total
from ladder.base.text import NO_VALUE, bytes_text, rate_text, time_text

# Head → text of a record.
COLUMNS = {"time": lambda record: time_text(record.get("time_ms")),
           "TFLOP/s": lambda record: rate_text(record.get("tflops")),
           "requested": lambda record: bytes_text(requested(record)),
           "distinct": lambda record: bytes_text(total(record, "distinct")),
           "DRAM": lambda record: bytes_text(total(record, "dram")),
           "workspace": lambda record: bytes_text(record.get("workspace_bytes")),
           "error": error_text}

MEANINGS = {"requested": "bytes that the kernels ask of HBM, {}",
            "distinct": "each byte once per kernel",
            "DRAM": "bytes that HBM served, by the GPU's counters",
            "workspace": "HBM beyond inputs and outputs",
            "error": "the largest, against float64"}

# What a table tells of each step: a number, as a bar and against that of the row before, and the
# columns that follow.
Story = collections.namedtuple("Story", "head value text less more columns")
TRAFFIC = Story("requested", requested, bytes_text, "less", "more", ["distinct"])
TIME = Story("time", lambda record: record.get("time_ms"), time_text, "faster", "slower",
             ["TFLOP/s", "DRAM"])


def steps_of(runs, passes=None):
    """[(Run, record)] that have a row: of each run its records, or the last one alone; an empty one
    where a program failed without any, and had not refused to run."""
    return [(run, record) for run in runs for record in run.records[passes:] or
            [{}] * (run.status not in (BAD_USAGE, NO_DEVICE))]


def is_backward(record):
    return record.get("direction") == "bwd"


def name_of(run, record):
    return f"{run.rung[:2]} {run.step.name}{' bwd' * is_backward(record)}"


def known(header, rows):
    """The columns that have a value."""
    columns = [column for column in zip(header, *rows) if set(column[1:]) != {NO_VALUE}]
    return list(map(list, zip(*columns)))


def draw(rows, left, steps, paint, colours=None):
    """Lines of a table, the header's first. Columns in `left` begin at the left; `colours` has for
    each step {column: code}."""
    failed = [False, *(run.status != GOOD for run, _ in steps)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    wide = sum(widths) + 2 * (len(widths) - 1) + 2 * any(failed)
    lines = []
    for row, bad, codes in zip(rows, failed, [{}, *(colours or [{}] * len(steps))]):
        cells = [paint(codes.get(i), text.ljust(width) if i in left else text.rjust(width))
                 for i, (text, width) in enumerate(zip(row, widths))]
        lines.append(("  " if wide <= WIDTH else " ").join(cells).rstrip()
                     + (" " + paint(RED, "✗")) * bad)
    return [paint(BOLD, lines[0]), *lines[1:]]


# ---- the story ----

EIGHTHS = " ▏▎▍▌▋▊▉"
BAR = 2  # the bar's column


def bar(value, scale, width):
    """On a logarithmic scale (low, high)."""
    if not value:
        return ""
    eighths = round(8 * width * math.log(value / scale[0]) / math.log(scale[1] / scale[0]))
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).strip().ljust(width)


def against(story, value, before):
    """How much smaller or larger, and its colour."""
    if not value or not before:
        return "", None
    ratio = before / value
    if round(ratio, 2) == 1:
        return "the same", DIM
    if ratio > 1:
        return f"{rate_text(ratio)}× {story.less}", GREEN
    return f"{rate_text(1 / ratio)}× {story.more}", YELLOW


def ticks(story, scale, width):
    """A scale's powers of ten, over its bars."""
    text, powers = "", round(math.log10(scale[1] / scale[0]))
    for power in range(powers):
        value = scale[0] * 10 ** power
        at = round(width * power / powers)
        mark = "▏" + re.sub(r"\.0+(?= )", "", story.text(int(value) if value >= 1 else value))
        if at >= len(text) and at + len(mark) <= width:
            text = text.ljust(at) + mark
    return text.ljust(width)


def story_table(story, runs, paint):
    """A row for each step, of what it adds to the ladder: the backward pass where it has one."""
    steps = steps_of(runs, -1)
    values = [story.value(record) for _, record in steps]
    if not any(values):
        return None
    low, high = (way(math.log10(of(filter(None, values))))
                 for way, of in ((math.floor, min), (math.ceil, max)))
    scale = 10 ** low, 10 ** max(high, low + 1)
    rows, colours, before = [], [], {}
    for (run, record), value in zip(steps, values):
        brings, colour = against(story, value, before.get(is_backward(record)))
        before[is_backward(record)] = value
        rows.append([name_of(run, record), run.step.idea, story.text(value), brings,
                     *(COLUMNS[head](record) for head in story.columns)])
        colours.append({BAR: CYAN, BAR + 2: colour})
    header, *rows = known(["step", "idea", story.head, "vs above", *story.columns], rows)
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    room = WIDTH - sum(widths) - 2 * len(widths) - 2 * any(run.status for run, _ in steps)
    header.insert(BAR, ticks(story, scale, room))
    for row, value in zip(rows, values):
        row.insert(BAR, bar(value, scale, room))
    return header, draw([header, *rows], (0, 1, BAR, BAR + 2), steps, paint, colours)


# ---- all that is known ----


def details_table(runs, first, paint):
    """A row a record. `first` is the ladder's first step: what the others request is set against
    what it does on that device."""
    steps = steps_of(runs)
    if not steps:
        return None
    base = {run.device: requested(record) for run, record in steps
            if (run.rung, run.step.name) == (first.rung, first.name)}
    rows = []
    for run, record in steps:
        asked, ask_first = requested(record), base.get(run.device)
        # The first step has no backward pass to compare with.
        ratio = asked / ask_first if asked and ask_first and not is_backward(record) else None
        rows.append([name_of(run, record), run.device,
                     *(text(record) for text in COLUMNS.values()), rate_text(ratio)])
    rows = known(["step", "device", *COLUMNS, f"vs {first.rung[:2]}"], rows)
    return rows[0], draw(rows, (0, 1), steps, paint)


def messages(runs, paint):
    """What the failed runs said, once where they said the same."""
    said = {}
    for run in runs:
        if run.status != GOOD:
            text = re.sub(rf"^{re.escape(run.rung)}: *", "", run.message, flags=re.MULTILINE)
            by_rung = said.setdefault((run.status, text), {})
            by_rung.setdefault((run.rung, run.device), []).append(run.step.name)
    what = {WRONG_RESULT: "failed", BAD_USAGE: "refused", NO_DEVICE: "could not run"}
    for (status, text), by_rung in said.items():
        names = "; ".join(f"{rung} {', '.join(steps)} on the {device}"
                          for (rung, device), steps in by_rung.items())
        yield ""
        for line in wrap(f"{names} {what.get(status, 'crashed')} (status {status}):"):
            yield paint(RED, line)
        for part in (text or "the program gave no reason").splitlines():
            yield from wrap(part, "  ")


def print_tables(tables, first):
    """[(title, story or None, [Run])] as tables, what failed, and what the columns mean."""
    paint = Paint(sys.stdout)
    every = [run for _, _, runs in tables for run in runs]
    parts, heads = [], []
    for title, story, runs in tables:
        rows = story_table(story, runs, paint) if story else details_table(runs, first, paint)
        if rows:
            heads += rows[0]
            shown = [record for run in runs for record in run.records]
            title += f": {shape_text(shown[0])}" if shown else ""
            gpu = next((r.get("device_name") for r in shown if r.get("device") == "gpu"), None)
            title += f"; gpu: {gpu}" if gpu else ""
            parts += ["", *(paint(BOLD, line) for line in wrap(title)), "", *rows[1]]
        parts += messages(runs, paint)
    if heads and any(run.records for run in every):
        parts += ["", *(paint(DIM, line) for line in wrap(legend(heads, every)))]
    print("\n".join(parts[1:]))


def legend(heads, runs):
    """What the columns mean, and that the results are right."""
    records = [record for run in runs for record in run.records]
    right = all(run.status == GOOD for run in runs)
    counted = "counted by the sim" + " and equal to each step's formula" * right
    if all(record.get("device") == "gpu" for record in records):
        counted = "by each step's formula"
    parts = [f"{head}: {meaning.format(counted)}" for head, meaning in MEANINGS.items()
             if head in heads]
    if heads[-1].startswith("vs "):
        parts.append(f"{heads[-1]}: requested, against that rung's first step")
    errors = list(map(largest_error, records))
    return "; ".join(parts) + "." + (
        f" All results are right: none is further than {max(errors):.1e} from float64."
        if right and None not in errors else "")
