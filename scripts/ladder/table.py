"""The tables that scripts/run prints: the story, a row a step with a bar, and all that is known."""

import math
import re

from ladder.console import (BAD_USAGE, BOLD, CYAN, DIM, GOOD, GREEN, NO_DEVICE, RED, WIDTH, YELLOW,
                            WRONG_RESULT, Paint, wrap)
from ladder.records import error_text, largest_error, requested, shape_text, total, uneven_counts
from ladder.text import NO_VALUE, bytes_text, rate_text, ratio_text, time_text

HEADER = ["rung", "variant", "device", "time", "TFLOP/s", "requested", "distinct", "DRAM", "vs {}",
          "workspace", "error"]
DRAM = HEADER.index("DRAM")  # shown where there is any
LEFT_ALIGNED = range(3)
LEAST_OF_A_RUNG = 8  # of its name is shown: the number and a few letters


# ---- the story ----


class Story:
    """What a table tells of each step: a number, as a bar and against that of the row before."""

    def __init__(self, head, value, text, less, more, columns):
        self.head, self.value, self.text, self.less, self.more = head, value, text, less, more
        self.columns = columns  # [(head, text of a record)] that follow


TRAFFIC = Story("requested", requested, bytes_text, "less", "more",
                [("distinct", lambda record: bytes_text(total(record, "distinct")))])
TIME = Story("time", lambda record: record.get("time_ms"), time_text, "faster", "slower",
             [("TFLOP/s", lambda record: rate_text(record.get("tflops"))),
              ("DRAM", lambda record: bytes_text(total(record, "dram")))])

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
        return f"{ratio_text(ratio)}× {story.less}", GREEN
    return f"{ratio_text(1 / ratio)}× {story.more}", YELLOW


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
            rate_text(record.get("tflops")), bytes_text(asked),
            bytes_text(total(record, "distinct")),
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

    lines = [paint(BOLD, (" " * gap).join(laid_out(header, widths, LEFT_ALIGNED)))]
    for row, bad in zip(rows, failed):
        shown = laid_out(row, widths, LEFT_ALIGNED)
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


STORY_LEGEND = {
    TRAFFIC: "requested: bytes that the kernels ask of HBM, counted by the sim{formula}; distinct: "
             "each byte once per kernel.",
    TIME: "DRAM: bytes that HBM served, by the GPU's counters."}


def print_tables(tables, first, out):
    """[(title, story or None, [Run])] as tables, what failed, and what the columns mean."""
    paint = Paint(out)
    every = [run for _, _, runs in tables for run in runs]
    for i, (title, story, runs) in enumerate(tables):
        shown = next((record for run in runs for record in run.records), None)
        lines = story_table(story, runs, paint) if story else table(runs, first, paint)
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
        legend = story_legend(tables) if tables[0][1] else detail_legend(records, first)
        print("\n".join([""] + [paint(DIM, line) for line in wrap(legend)]), file=out)


def story_legend(tables):
    """What the columns mean, and that the results are right."""
    parts = []
    for _, story, runs in tables:
        records = [record for run in runs for record in run.records]
        if story is TIME and all(total(record, "dram") is None for record in records):
            continue
        even = not any(uneven_counts(record) for record in records)
        parts.append(STORY_LEGEND[story].format(formula=" and equal to each step's formula" * even))
    every = [run for _, _, runs in tables for run in runs]
    errors = [largest_error(record) for run in every for record in run.records]
    if all(run.status == GOOD for run in every) and None not in errors:
        parts.append(f"All results are right: none is further than {max(errors):.1e} from float64.")
    return " ".join(parts)


def detail_legend(records, first):
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
    return LEGEND.format(how=how, dram=dram, first=first.rung[:2])
