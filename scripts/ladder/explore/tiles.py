"""Which pieces of S the events of a trace make: found by following rows of Q and K into shared
memory and on to the products that meet them there; and so what shared memory holds. No kernel says
it."""

import collections

from ladder.bench.traces import pieces

PIECE = 64  # bytes of shared memory that are followed as one

# From a first row of an array to the one past the last.
Rows = collections.namedtuple("Rows", "array first last")
COMPUTED = Rows(None, 0, 1)  # did not come from HBM
ZEROS = Rows("", 0, 1)       # past an array's last row


def joined(rows, others):
    if others is None or others.array != rows.array:
        return rows
    return Rows(rows.array, min(rows.first, others.first), max(rows.last, others.last))


def put_tiles(trace):
    """Gives each product of rows of Q with rows of K its tile of S, in rows of all heads."""
    width = {name: size // trace.rows_of(name) for name, size in trace.arrays.items()}
    for events in trace.blocks().values():
        held, seen = {}, collections.defaultdict(dict)
        for event in events:
            # A product by Hopper's engines is of all four warps.
            follow(event, held, seen[event.warp // (4 if event.what == "wgmma" else 1)], width)


def rows_of(array, begin, end, width):
    return Rows(array, begin // width[array], -(-end // width[array]))


def follow(event, held, seen, width):
    """held: place in shared memory → Rows that are there. seen: array → Rows that the warp has
    read, the last to be read at the end."""
    reads = {}
    if event.direction == "read" and event.ranges:
        source = pieces(event.ranges)
        reads[event.name] = rows_of(event.name, source[0][0], source[-1][1], width)
    for (_, written), ranges in event.shared.items():
        found = pieces(ranges)
        if written:
            fill(event, held, found, width)
            continue
        event.reads.append([min(found)[0], max(end for _, end in found)])
        for begin, end in found:
            for place in range(begin // PIECE, -(-end // PIECE)):
                rows = held.get(place, COMPUTED)
                if rows is not ZEROS:
                    reads[rows.array] = joined(rows, reads.get(rows.array))
    for array, rows in reads.items():
        seen.pop(array, None)
        seen[array] = rows
    if event.counts["matmul_flops"]:
        event.tile = tile_of(list(seen.values()))


def fill(event, held, places, width):
    """Says what is where in shared memory, to `held` and in event.fills."""
    for begin, end, rows in contents(event.source or event, places, width):
        last = event.fills[-1] if event.fills else [None] * 5
        if last[1:3] == [begin, rows.array]:
            last[1], last[3:] = end, [min(last[3], rows.first), max(last[4], rows.last - 1)]
        else:
            event.fills.append([begin, end, rows.array, rows.first, rows.last - 1])
        for place in range(begin // PIECE, -(-end // PIECE)):
            partial = begin > place * PIECE or end < (place + 1) * PIECE
            held[place] = joined(rows, held.get(place)) if partial and rows is not ZEROS else rows


def contents(event, places, width):
    """[(begin, end, Rows)] of what is written to `places`. It comes from HBM where the event reads
    as many bytes there, place by place; else it was computed."""
    if event.direction != "read" or not event.ranges:
        return [(*place, ZEROS if event.what == "zeros" else COMPUTED) for place in places]
    source = pieces(event.ranges)
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
