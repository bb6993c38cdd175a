"""The tables of scripts/peers.py: {point: {label: record}} as text."""

import math
import statistics

from ladder.text import NO_VALUE, rate_text


def table(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths))
            for row in [header, *rows]]


POINT_HEADER = ["direction", "head-dim", "causal", "seqlen", "batch", "heads"]


def point_cells(point):
    return [point.direction, str(point.head_dim), "yes" if point.causal else "no",
            str(point.seqlen), str(point.batch), str(point.heads)]


def rates(results, labels):
    """TFLOP/s of each at every point."""
    rows = [point_cells(point) + [rate_text(records[label]["tflops"]) if label in records
                                  else NO_VALUE for label in labels]
            for point, records in results.items()]
    return table([*POINT_HEADER, *labels], rows)


def ratios(results, ours, peers):
    """The peer's time over ours, so that above 1 we are faster: at every point that ours ran,
    then for each peer the geometric mean and the worst point."""
    by_peer = {peer: {point: records[peer]["time_ms"] / records[ours]["time_ms"]
                      for point, records in results.items() if ours in records and peer in records}
               for peer in peers}
    points = [point for point in results if any(point in of for of in by_peer.values())]
    if not points:
        return []
    rows = [point_cells(point) + [f"{of[point]:.3f}" if point in of else NO_VALUE
                                  for of in by_peer.values()] for point in points]
    lines = [f"{ours} / peer: ratio of TFLOP/s, above 1 where {ours} is faster", "",
             *table([*POINT_HEADER, *peers], rows), ""]
    for peer, of in by_peer.items():
        if of:
            mean = math.exp(statistics.fmean(map(math.log, of.values())))
            worst = min(of, key=of.get)
            lines.append(f"{ours} / {peer}: geometric mean {mean:.3f} over {len(of)} points, "
                         f"worst {of[worst]:.3f} ({worst.text()})")
    return lines


def summary(results, ours, peers):
    """Of the ratios: a table for each of ours and direction."""
    parts = []
    for direction, variants in ours.items():
        here = {point: records for point, records in results.items()
                if point.direction == direction}
        parts += [ratios(here, one.label, [peer.label for peer in peers]) for one in variants]
    return [part for part in parts if part]
