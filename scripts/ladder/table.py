"""The tables that scripts/run prints: the story, a row a step with a bar, and all that is known."""

import collections
import math
import re

from ladder.console import (BAD_USAGE, BOLD, CYAN, DIM, GOOD, GREEN, NO_DEVICE, RED, WIDTH, YELLOW,
                            WRONG_RESULT, Paint, wrap)
from ladder.records import error_text, largest_error, requested, shape_text, total
from ladder.text import NO_VALUE, bytes_text, rate_text, time_text

HEADER = ["rung", "variant", "device", "time", "TFLOP/s", "requested", "distinct", "DRAM", "vs {}",
          "workspace", "error"]
DRAM = HEADER.index("DRAM")  # shown where there is any
LEFT_ALIGNED = range(3)
LEAST_OF_A_RUNG = 8  # of its name is shown: the number and a few letters


# ---- the story ----


# What a table tells of each step: a number, as a bar and against that of the row before. columns:
# [(head, text of a record)] that follow.
Story = collections.namedtuple("Story", "head value text less more columns legend")
TRAFFIC = Story("requested", requested, bytes_text, "less", "more",
                [("distinct", lambda record: bytes_text(total(record, "distinct")))],
                "requested: bytes that the kernels ask of HBM, counted by the sim{}; distinct: "
                "each byte once per kernel.")
TIME = Story("time", lambda record: record.get("time_ms"), time_text, "faster", "slower",
             [("TFLOP/s", lambda record: rate_text(record.get("tflops"))),
              ("DRAM", lambda record: bytes_text(total(record, "dram")))],
             "DRAM: bytes that HBM served, by the GPU's counters.")
LEGEND = ("requested: bytes that the kernels ask of HBM (counted by the sim{}; on a GPU the "
          "formula's); distinct: each byte once per kernel; DRAM: what HBM served, by the GPU's "
          "counters; vs {}: requested against rung {}; workspace: HBM beyond inputs and outputs; "
          "error: the largest, against float64.")

EIGHTHS = " ▏▎▍▌▋▊▉"
BAR, LEFT = 2, (0, 1, 2, 4)  # the bar's column, and those that begin at the left


def bar(value, scale, width):
    """On a logarithmic scale (low, high)."""
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


def laid_out(row, widths, left):
    """A row's texts at their columns' widths, those of the columns in `left` from the left. Names
    are of the rungs' choosing: too long, they are cut."""
    cut = [text if len(text) <= width else text[:width - 1] + "…"
           for text, width in zip(row, widths)]
    return [text.ljust(width) if i in left else text.rjust(width)
            for i, (text, width) in enumerate(zip(cut, widths))]


def ticks(story, scale, width):
    """A scale's powers of ten, over its bars."""
    text, powers = "", round(math.log10(scale[1] / scale[0]))
    for power in range(powers):
        value = scale[0] * 10 ** power
        at = round(width * power / powers)
        mark = "▏" + re.sub(r"\.0+(?= )", "", story.text(int(value) if value >= 1 else value))
        if at >= len(text) and at + len(mark) <= width:
            text = text.ljust(at) + mark
    return text


def story_table(story, runs, paint):
    """A row for each step, of what it adds to the ladder: the backward pass where it has one."""
    rows, values, colours, before = [], [], [], {}
    for run in runs:
        record = run.records[-1] if run.records else {}
        backward = record.get("direction") == "bwd"
        value = story.value(record) if record else None
        brings, colour = against(story, value, before.get(backward))
        before[backward] = value
        rows.append([f"{run.rung[:2]} {run.variant}{' bwd' if backward else ''}", run.idea, "",
                     story.text(value), brings,
                     *(text(record) if record else NO_VALUE for _, text in story.columns)])
        values.append(value)
        colours.append(colour)
    known = list(filter(None, values))
    if not known:
        return []
    scale = [10 ** math.floor(math.log10(min(known))), 10 ** math.ceil(math.log10(max(known)))]
    if scale[0] == scale[1]:
        scale[1] *= 10

    header = ["step", "idea", "", story.head, "vs above", *(head for head, _ in story.columns)]
    columns = [column for i, column in enumerate(zip(header, *rows))
               if i < 5 or set(column[1:]) != {NO_VALUE}]
    header, *rows = map(list, zip(*columns))
    widths = [max(map(len, column)) for column in columns]
    room = WIDTH - sum(widths) - 2 * (len(widths) - 1) - 2 * any(run.status for run in runs)
    widths[BAR] = max(8, room)
    widths[0] = max(8, widths[0] - max(0, widths[BAR] - room))
    header[BAR] = ticks(story, scale, widths[BAR])
    lines = [paint(BOLD, "  ".join(laid_out(header, widths, LEFT)))]
    for run, row, value, colour in zip(runs, rows, values, colours):
        row[BAR] = bar(value, scale, widths[BAR]) if value else ""
        texts = laid_out(row, widths, LEFT)
        texts[BAR], texts[BAR + 2] = paint(CYAN, texts[BAR]), paint(colour, texts[BAR + 2])
        lines.append("  ".join(texts).rstrip() + (
            " " + paint(RED, "✗") if run.status != GOOD else ""))
    return lines


# ---- all that is known ----


def details_table(runs, first, paint):
    """A row a record; nothing for runs whose options the program refused. `first` is the ladder's
    first step: what the others request is set against what it does on that device."""
    base = {run.device: requested(run.records[0]) for run in runs
            if run.records and (run.rung, run.variant) == (first.rung, first.variant)}
    rows = []
    for run in runs:
        for record in run.records:
            backward = record.get("direction") == "bwd"
            variant = run.variant
            if len(run.records) > 1 or backward:
                variant += f" {record['direction']}"
            asked, ask_first = requested(record), base.get(run.device)
            # The first step has no backward pass to compare with.
            ratio = asked / ask_first if asked is not None and ask_first and not backward else None
            rows.append([run.rung, variant, record.get("device", run.device),
                         time_text(record.get("time_ms")), rate_text(record.get("tflops")),
                         bytes_text(asked), bytes_text(total(record, "distinct")),
                         bytes_text(total(record, "dram")), rate_text(ratio),
                         bytes_text(record.get("workspace_bytes")),
                         error_text(record) + " ✗" * (run.status != GOOD)])
        if not run.records and run.status not in (BAD_USAGE, NO_DEVICE):
            rows.append([run.rung, run.variant, run.device, *[NO_VALUE] * 7, "failed ✗"])
    if not rows:
        return []

    rows.insert(0, [name.format(first.rung[:2]) for name in HEADER])
    if all(row[DRAM] == NO_VALUE for row in rows[1:]):
        for row in rows:
            del row[DRAM]
    widths = [max(map(len, column)) for column in zip(*rows)]
    gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= WIDTH else 1
    # If names are long the rung's gives way, whose number is enough to know it by, and then the
    # variant's.
    for column, least in ((0, LEAST_OF_A_RUNG), (1, len(HEADER[1]))):
        excess = sum(widths) + gap * (len(widths) - 1) - WIDTH
        widths[column] = max(min(least, widths[column]), widths[column] - max(0, excess))
    lines = []
    for row in rows:
        shown = laid_out(row, widths, LEFT_ALIGNED)
        shown[-1] = paint(RED, shown[-1]) if row[-1].endswith("✗") else shown[-1]
        lines.append((" " * gap).join(shown))
    return [paint(BOLD, lines[0]), *lines[1:]]


def messages(runs, paint):
    """What the failed runs said, once where they said the same."""
    said = {}
    for run in runs:
        if run.status != GOOD:
            text = re.sub(rf"^{re.escape(run.rung)}: *", "", run.message, flags=re.MULTILINE)
            by_rung = said.setdefault((run.status, text), {})
            by_rung.setdefault((run.rung, run.device), []).append(run.variant)
    what = {WRONG_RESULT: "failed", BAD_USAGE: "refused", NO_DEVICE: "could not run"}
    for (status, text), by_rung in said.items():
        names = "; ".join(f"{rung} {', '.join(variants)} on the {device}"
                          for (rung, device), variants in by_rung.items())
        yield ""
        for line in wrap(f"{names} {what.get(status, 'crashed')} (status {status}):"):
            yield paint(RED, line)
        for part in (text or "the program gave no reason").splitlines():
            yield from wrap(part, "  ")


def print_tables(tables, first, out):
    """[(title, story or None, [Run])] as tables, what failed, and what the columns mean."""
    paint = Paint(out)
    every = [run for _, _, runs in tables for run in runs]
    records = [record for run in every for record in run.records]
    parts = []
    for title, story, runs in tables:
        lines = story_table(story, runs, paint) if story else details_table(runs, first, paint)
        if lines:
            shown = [record for run in runs for record in run.records]
            title += f": {shape_text(shown[0])}" if shown else ""
            gpu = next((r.get("device_name") for r in shown if r.get("device") == "gpu"), None)
            title += f"; gpu: {gpu}" if gpu else ""
            parts += ["", *(paint(BOLD, line) for line in wrap(title)), "", *lines]
        parts += messages(runs, paint)
    if records:
        parts += ["", *(paint(DIM, line) for line in wrap(legend(tables, first, every, records)))]
    print("\n".join(parts[1:]), file=out)


def legend(tables, first, every, records):
    """What the columns mean, and that the results are right."""
    right = all(run.status == GOOD for run in every)
    formula = " and equal to each step's formula" * right
    if not tables[0][1]:
        return LEGEND.format(formula, *[first.rung[:2]] * 2)
    errors = list(map(largest_error, records))
    parts = [story.legend.format(formula) for _, story, runs in tables if story is not TIME
             or any(total(record, "dram") for run in runs for record in run.records)]
    if right and None not in errors:
        parts.append(f"All results are right: none is further than {max(errors):.1e} from float64.")
    return " ".join(parts)
