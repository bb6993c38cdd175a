"""Which pieces of S the events of a trace make: found by following rows of Q and K into shared
memory and on to the products that meet them there; and so what shared memory holds. No kernel says
it."""

import collections
import itertools

from ladder.trace.read import Kind

PIECE = 64  # bytes of shared memory that are followed as one

# From a first row of an array to the one past the last.
Rows = collections.namedtuple("Rows", "array first last")
COMPUTED = Rows(None, 0, 1)  # did not come from HBM
ZEROS = Rows("", 0, 1)       # past an array's last row


def joined(rows, others):
    if others is None or others.array != rows.array:
        return rows
    return Rows(rows.array, min(rows.first, others.first), max(rows.last, others.last))


def put_tiles(trace, meetings):
    """Gives each product of rows of Q with rows of K its tile of S, in rows of all heads; and each
    event what is, after its tick, in the arrays of shared memory that it writes."""
    width = {name: size // trace.rows_of(name) for name, size in trace.arrays.items()}
    for (launch, _), events in trace.blocks().items():
        starts = {name: begin for name, begin, _ in trace.launches[launch]["shared"]}
        held, seen = collections.defaultdict(dict), collections.defaultdict(dict)
        for _, tick in itertools.groupby(events, key=lambda event: event.order[0]):
            written = {}
            for event in tick:
                # A product by Hopper's engines is of all four warps.
                warp = event.warp // 4 if event.kind is Kind.WGMMA else event.warp
                written[event] = follow(event, starts, held, seen[warp], width)
            for event, names in written.items():
                event.holds = {name: stages(held[name], meetings) for name in names}


def rows_of(array, begin, end, width):
    return Rows(array, begin // width[array], -(-end // width[array]))


def follow(event, starts, held, seen, width):
    """held: array of shared memory → its pieces → (Rows that are there, the event that wrote them).
    seen: array → Rows that the warp has read, the last to be read at the end. The arrays of shared
    memory that it writes."""
    reads, written = {}, []
    if event.ranges:
        rows = rows_of(event.name, event.ranges[0][0], event.ranges[-1][1], width)
        event.rows = [rows.first, rows.last - 1]
        if event.direction == "read":
            reads[event.name] = rows
    for (name, writes), ranges in event.shared.items():
        start = starts.get(name, 0)
        found = [(begin - start, end - start) for begin, end in ranges]
        if writes:
            written.append(name)
            for begin, end, rows in contents(event.source or event, found, width):
                fill(held[name], begin, end, rows, event)
            continue
        event.reads[name] = [min(found)[0], max(end for _, end in found)]
        for begin, end in found:
            for place in range(begin // PIECE, -(-end // PIECE)):
                rows, _ = held[name].get(place, (COMPUTED, None))
                if rows is not ZEROS:
                    reads[rows.array] = joined(rows, reads.get(rows.array))
    for array, rows in reads.items():
        seen.pop(array, None)
        seen[array] = rows
    if event.counts["matmul_flops"]:
        event.tile = tile_of(list(seen.values()))
    return written


def fill(held, begin, end, rows, event):
    for place in range(begin // PIECE, -(-end // PIECE)):
        partial = begin > place * PIECE or end < (place + 1) * PIECE
        there, _ = held.get(place, (None, None))
        held[place] = joined(rows, there) if partial and rows is not ZEROS else rows, event


def stages(held, meetings):
    """[[begin, end, array, first row, last, event]] of neighbouring pieces that were filled
    together: by what a barrier waits for, or the copies of a group, or by no copy."""
    found, before = [], None
    for place, (rows, event) in sorted(held.items()):
        together = event.lands is not None and meetings[event.lands].title.partition(" of warp ")[0]
        if (place * PIECE, rows.array, together) == before:
            last = found[-1]
            last[1:] = [last[1] + PIECE, rows.array, min(last[3], rows.first),
                        max(last[4], rows.last - 1), event]
        else:
            found.append([place * PIECE, (place + 1) * PIECE, rows.array, rows.first,
                          rows.last - 1, event])
        before = (place + 1) * PIECE, rows.array, together
    return found


def contents(event, places, width):
    """[(begin, end, Rows)] of what is written to `places`. It comes from HBM where the event reads
    as many bytes there, place by place; else it was computed."""
    if event.direction != "read" or not event.ranges:
        return [(*place, ZEROS if event.kind is Kind.ZEROS else COMPUTED) for place in places]
    source = event.ranges
    if sum(end - begin for begin, end in source) != sum(end - begin for begin, end in places):
        rows = rows_of(event.name, source[0][0], source[-1][1], width)
        return [(*place, rows) for place in places]
    found, left = [], iter(source)
    begin = end = 0
    for first, last in places:
        while first < last:
            if begin == end:
                begin, end = next(left)
            size = min(last - first, end - begin)
            found.append((first, first + size, rows_of(event.name, begin, begin + size, width)))
            first, begin = first + size, begin + size
    return found


def tile_of(seen):
    """The tile of S that a product of what was read last makes, or None if it is no product of Q
    and K. Between the two others may have been read, but nothing that was computed."""
    if seen and seen[-1].array in ("Q", "K"):
        for rows in reversed(seen[:-1]):
            if rows.array in ("Q", "K"):
                q, k = sorted((rows, seen[-1]), reverse=True)
                return [q.first, q.last, k.first, k.last]
            if rows.array in ("S", "P", None):
                return None
    return None
