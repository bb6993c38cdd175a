"""Which pieces of S the events of a trace make: found by following rows of Q and K into shared
memory and on to the products that meet them there; and so what shared memory holds. No kernel says
it."""

import collections

from ladder.bench.traces import pieces

PIECE = 64  # bytes of shared memory that are followed as one
COMPUTED = " in shared memory"  # after an array's name: what did not come from HBM

# From a first row of an array to the one past the last.
Rows = collections.namedtuple("Rows", "array first last")
ZEROS = Rows(COMPUTED, 0, 1)  # past an array's last row: neither read nor computed


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
    for name, written, ranges in event.shared:
        if written:
            fill(event, held, name, pieces(ranges), width)
            continue
        found = pieces(ranges)
        event.reads.append([min(found)[0], max(end for _, end in found)])
        for begin, end in found:
            for place in range(begin // PIECE, -(-end // PIECE)):
                rows = held.get(place) or Rows(name + COMPUTED, 0, 1)
                if rows is not ZEROS:
                    reads[rows.array] = joined(rows, reads.get(rows.array))
    for array, rows in reads.items():
        # What passes in pieces, such as columns of the same rows, continues where it was.
        seen.pop(array, None)
        seen[array] = rows
    if event.counts["matmul_flops"]:
        event.tile = tile_of(list(seen.values()))


def fill(event, held, name, places, width):
    """Says what is where in shared memory, to `held` and in event.fills."""
    for begin, end, rows in contents(event.source or event, name, places, width):
        last = event.fills[-1] if event.fills else None
        what = ([""] if rows is ZEROS else [None] if rows.array.endswith(COMPUTED)
                else [rows.array, rows.first, rows.last - 1])
        if last and last[1] == begin and last[2] == what[0]:
            last[1] = end
            last[3:] = [min(last[3], what[1]), max(last[4], what[2])] if what[1:] else []
        else:
            event.fills.append([begin, end, *what])
        for place in range(begin // PIECE, -(-end // PIECE)):
            partial = begin > place * PIECE or end < (place + 1) * PIECE
            held[place] = joined(rows, held.get(place)) if partial and rows is not ZEROS else rows


def contents(event, name, places, width):
    """[(begin, end, Rows)] of what is written to `places`. It comes from HBM where the event reads
    as many bytes there, place by place; else it was computed."""
    if event.direction != "read" or not event.ranges:
        rows = ZEROS if event.what == "zeros" else Rows(name + COMPUTED, 0, 1)
        return [(*place, rows) for place in places]
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
    if not seen or seen[-1].array not in ("Q", "K"):
        return None
    for rows in reversed(seen[:-1]):
        if rows.array in ("Q", "K"):
            q, k = sorted((rows, seen[-1]), reverse=True)
            return [q.first, q.last, k.first, k.last]
        if rows.array in ("S", "P") or rows.array.endswith(COMPUTED):
            return None
    return None
