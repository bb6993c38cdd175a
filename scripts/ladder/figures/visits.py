"""The tables of who visits which array how often, out of the sim's counts.

A visit is one going through all of an array: the bytes requested of it over the bytes that it has.
Over the lengths counted visits are a straight line, a·N + b, and so the table shows a formula.
"""

import fractions

from ladder.figures.measured import need
from ladder.figures.names import WAYS, markdown, number

LENGTHS, HEAD = (512, 1024, 2048), 64
SIZES = [*((n, HEAD) for n in LENGTHS), (LENGTHS[0], 2 * HEAD)]
COLUMNS = {"fwd": ["S", "P", "Q", "K", "V", "O"],
           "bwd": ["P", "dP, dS", "Q", "K", "V", "O, dO", "dQ", "dK, dV"]}
# What an array is called in a column: dS takes dP's place, sums are what they are sums of.
COLUMN_OF = {"O_fp32": "O", "dQ_sum": "dQ", "dP": "dP, dS", "dK": "dK, dV", "dV": "dK, dV"}
COLUMN_OF_BACKWARD = {"O": "O, dO", "dO": "O, dO"}


def visits_tables(files):
    lines = []
    for way, title in WAYS.items():
        rows = []
        for step in files.order if way in COLUMNS else ():
            at = {(n, d): visits(e.record, way) for n, d in SIZES for e in files.sim.plain(
                way, rung=step[0], variant=step[1], seqlen=n, head_dim=d, causal=False)[:1]}
            # Of the steps that any GPU runs, with all that is needed.
            if (way == files.own_way(step) and not files.about[step].exact_architecture
                    and all(size in at for size in SIZES[:3])):
                rows.append([f"{number(step[0])} `{step[1]}`", *cells(at, way)])
        if rows:
            lines += markdown([title, *COLUMNS[way]], rows) + [""]
    return need(lines)[:-1]


def cells(at, way):
    for column in COLUMNS[way]:
        parts = []
        for direction in ("read", "write"):
            *counts, wide = (at.get(size, {}).get((column, direction), 0) for size in SIZES)
            if any(counts):
                parts.append(f"{formula(counts, wide)} {direction[0]}")
        yield ", ".join(parts) or "–"


def visits(record, way):
    """{(column, "read" or "write"): how often}, of the arrays with at least N·d elements. Where a
    column has two arrays, the larger number is taken."""
    n, d = record["seqlen"], record["head_dim"]
    sums = {}
    for kernel in record["kernels"]:
        for array, of in kernel["arrays"].items():
            size = max(of["distinct_read"], of["distinct_write"])  # each kernel goes over all of it
            if size < n * d:
                continue
            for direction in ("read", "write"):
                key = array, direction
                sums[key] = sums.get(key, 0) + fractions.Fraction(of[direction], size)
    found = {}
    for (array, direction), count in sums.items():
        names = {**COLUMN_OF, **(COLUMN_OF_BACKWARD if way == "bwd" else {})}
        key = names.get(array, array), direction
        # An array and the fp32 sums that it is rounded from are one; two of a pair are not.
        found[key] = (found.get(key, 0) + count if key[0] in ("O", "dQ")
                      else max(found.get(key, 0), count))
    return found


def formula(counts, wide):
    """The text of a·N + b through the counts at LENGTHS; `wide` is the count at twice the head
    size and the first length."""
    a = (counts[1] - counts[0]) / fractions.Fraction(LENGTHS[1] - LENGTHS[0])
    b = counts[0] - a * LENGTHS[0]
    if counts[2] != a * LENGTHS[2] + b:
        return f"{float(counts[2]):g} at N = {LENGTHS[2]:,}"
    parts = []
    if a:
        parts.append(over("N", a))
    if b:
        # What doubles with the head size is a part of it.
        parts.append(over("d", b / HEAD) if not a and wide == 2 * b else f"{float(b):g}")
    return " + ".join(parts)


def over(name, share):
    """"N/128" of a share of 1/128."""
    if share == 1:
        return name
    return f"{name}/{1 / share}" if share < 1 else f"{share}·{name}"
