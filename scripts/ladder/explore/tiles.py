"""Finds which tiles of S the events of a trace compute, and what shared memory holds. Kernels do
not report this, so put_tiles() follows the rows of Q and K, event by event, into shared memory and
on to the products that read them."""

from __future__ import annotations

import collections
import itertools
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from ladder.explore.times import Meeting
from ladder.trace.read import Event, Ranges, Trace

PIECE = 64  # bytes of shared memory that are followed as one unit


class Rows(NamedTuple):
    """Rows [first, last) of an array in HBM, or COMPUTED or ZEROS."""
    array: str | None
    first: int
    last: int


COMPUTED = Rows(None, 0, 1)  # values that did not come from HBM
ZEROS = Rows("", 0, 1)       # zeros past an array's last row
# Index of a piece of a shared-memory array → the rows that it holds, and the event that wrote them.
Pieces = Dict[int, Tuple[Rows, Event]]
# Start and end in bytes, array, first row, last row (included), the last event that wrote there.
Stage = Tuple[int, int, Optional[str], int, int, Event]
# Array → the rows of it that a warp has read. The array read most recently comes last.
RowsSeen = Dict[Optional[str], Rows]


def union_rows(rows: Rows, others: Rows | None) -> Rows:
    """Returns the range that covers both, or `rows` alone if the others belong to another array."""
    if others is None or others.array != rows.array:
        return rows
    return Rows(rows.array, min(rows.first, others.first), max(rows.last, others.last))


def put_tiles(trace: Trace, meetings: Sequence[Meeting]) -> None:
    """Sets `tile` in events that multiply rows of Q and K (numbered across all heads) and, in all
    events, `holds`: what the shared-memory arrays that an event writes contain afterwards."""
    width = {name: size // trace.rows_of(name) for name, size in trace.arrays.items()}
    for (launch, _), events in trace.blocks().items():
        starts = {name: begin for name, begin, _ in trace.launches[launch]["shared"]}
        held: dict[str, Pieces] = collections.defaultdict(dict)
        seen: dict[int, RowsSeen] = collections.defaultdict(dict)
        for _, tick in itertools.groupby(events, key=lambda event: event.ticks[0]):
            written = {}
            for event in tick:
                # A wgmma belongs to all four warps of its warpgroup.
                warp = event.warp // 4 if event.kind == "wgmma" else event.warp
                written[event] = follow(event, starts, held, seen[warp], width)
            for event, names in written.items():
                event.holds = {name: stages(held[name], meetings) for name in names}


def rows_of(array: str, begin: int, end: int, width: dict[str, int]) -> Rows:
    """Returns the rows that contain bytes [begin, end); `width` is each array's bytes per row."""
    return Rows(array, begin // width[array], -(-end // width[array]))


def follow(event: Event, starts: dict[str, int], held: dict[str, Pieces], seen: RowsSeen,
           width: dict[str, int]) -> list[str]:
    """Sets an event's rows and tile, and records its reads in `seen` (its warp's) and its writes in
    `held` (its block's). `starts` are the shared arrays' offsets in bytes, `width` the bytes of a
    row of each array in HBM. Returns the names of the shared arrays that the event writes."""
    reads: RowsSeen = {}
    written: list[str] = []
    if event.ranges:
        rows = rows_of(event.name, event.ranges[0][0], event.ranges[-1][1], width)
        event.rows = [rows.first, rows.last - 1]
        if event.direction == "read":
            reads[event.name] = rows
    for (name, writes), ranges in event.shared.items():
        start = starts.get(name, 0)
        in_array = [(begin - start, end - start) for begin, end in ranges]
        if writes:
            written.append(name)
            for begin, end, rows in contents(event.source or event, in_array, width):
                fill(held[name], begin, end, rows, event)
            continue
        for begin, end in in_array:
            for place in range(begin // PIECE, -(-end // PIECE)):
                rows = held[name][place][0] if place in held[name] else COMPUTED
                if rows is not ZEROS:
                    reads[rows.array] = union_rows(rows, reads.get(rows.array))
    for array, rows in reads.items():
        seen.pop(array, None)
        seen[array] = rows
    if event.counts["matmul_flops"]:
        event.tile = tile_of(list(seen.values()))
    return written


def fill(pieces: Pieces, begin: int, end: int, rows: Rows, event: Event) -> None:
    """Puts rows into bytes [begin, end). A piece filled only in part keeps its other rows."""
    for place in range(begin // PIECE, -(-end // PIECE)):
        partial = begin > place * PIECE or end < (place + 1) * PIECE
        earlier = pieces[place][0] if place in pieces else None
        pieces[place] = union_rows(rows, earlier) if partial and rows is not ZEROS else rows, event


def stages(pieces: Pieces, meetings: Sequence[Meeting]) -> list[Stage]:
    """Returns the pieces as stages: neighbours that hold rows of one array are joined if one wait
    completes both, or if no copy filled either."""
    filled: list[Stage] = []
    before = None
    for place, (rows, event) in sorted(pieces.items()):
        together = event.lands is not None and meetings[event.lands].title.partition(" of warp ")[0]
        begin, first, last = place * PIECE, rows.first, rows.last - 1
        if (begin, rows.array, together) == before:
            begin, _, _, first, last, _ = filled.pop()
            first, last = min(first, rows.first), max(last, rows.last - 1)
        filled.append((begin, (place + 1) * PIECE, rows.array, first, last, event))
        before = (place + 1) * PIECE, rows.array, together
    return filled


def contents(event: Event, places: Ranges, width: dict[str, int]) -> list[tuple[int, int, Rows]]:
    """Returns [(begin, end, rows)]: the rows that an event writes to the ranges of bytes `places`.
    The bytes come from the ranges that the event reads in HBM, in order if the sizes agree; if it
    reads none, they are computed values or zeros."""
    if event.direction != "read" or not event.ranges:
        return [(begin, end, ZEROS if event.kind == "zeros" else COMPUTED)
                for begin, end in places]
    source = event.ranges
    if sum(end - begin for begin, end in source) != sum(end - begin for begin, end in places):
        rows = rows_of(event.name, source[0][0], source[-1][1], width)
        return [(begin, end, rows) for begin, end in places]
    parts, left = [], iter(source)
    begin = end = 0
    for first, last in places:
        while first < last:
            if begin == end:
                begin, end = next(left)
            size = min(last - first, end - begin)
            parts.append((first, first + size, rows_of(event.name, begin, begin + size, width)))
            first, begin = first + size, begin + size
    return parts


def tile_of(seen: Sequence[Rows]) -> list[int] | None:
    """Returns the tile of S that a product computes: [first query, past the last, first key, past
    the last] from the rows that its warp read last, or None if these are not rows of Q and K.
    Between the two, the warp may have read other arrays, but not S, P or computed values."""
    if seen and seen[-1].array in ("Q", "K"):
        for rows in reversed(seen[:-1]):
            if rows.array in ("Q", "K"):
                q, k = sorted((rows, seen[-1]), reverse=True)
                return [q.first, q.last, k.first, k.last]
            if rows.array in ("S", "P", None):
                return None
    return None
