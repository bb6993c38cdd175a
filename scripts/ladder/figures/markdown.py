"""Parts of tables in markdown."""

import math
import statistics

from ladder.figures.names import length_text


def markdown(header, rows, right=()):
    """A table; the columns numbered in `right` are figures."""
    lines = ["| " + " | ".join(header) + " |",
             "|" + "|".join("--:" if i in right else "---" for i in range(len(header))) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def over_lengths(lengths, rows, before=("",)):
    """A table with a column for each N, after those of `before`."""
    return markdown([*before, *(f"N = {length_text(n)}" for n in lengths)], rows,
                    range(len(before), len(before) + len(lengths)))


def without(what, command):
    return [f"*{what}: `{command}` measures {'them' if what.endswith('s') else 'it'}.*"]


def at_the_machine(files):
    machine = files.gpu.machine
    parts = [machine["gpu"], f"driver {machine['driver']}"]
    if machine.get("cuda"):
        parts.append(f"CUDA {machine['cuda']}")
    clocks = (machine.get("clocks") or {}).get("sm_mhz")
    if clocks:
        parts.append(f"SM clock {clocks['median']:.0f} MHz in the median")
    return ", ".join([*parts, machine["date"]])


def geometric_mean(ratios):
    return math.exp(statistics.fmean(map(math.log, ratios)))
