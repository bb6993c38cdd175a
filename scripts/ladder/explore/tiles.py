"""Which pieces of S the events of a trace make: found by following rows of Q and K into shared
memory and on to the products that meet them there. No kernel says it."""

from ladder.explore.trace import bytes_of, pieces

PIECE = 64  # bytes of shared memory that are followed as one


class Rows:
    """From a first row of an array to the one past the last."""

    def __init__(self, array, first, last):
        self.array, self.first, self.last = array, first, last

    def joined(self, other):
        if other is None or other.array != self.array:
            return self
        return Rows(self.array, min(self.first, other.first), max(self.last, other.last))


def put_tiles(trace):
    """Gives each product of rows of Q with rows of K its tile of S, in rows of all heads."""
    if "Q" not in trace.arrays or "K" not in trace.arrays:
        return
    width = {name: size // trace.rows_of(name) for name, size in trace.arrays.items()}
    for events in trace.blocks().values():
        held, seen = {}, {}
        for event in events:
            follow(event, held, seen.setdefault(group_of(event), []), width)


def group_of(event):
    return event.warp // 4 if event.what == "wgmma" else event.warp


def rows_of(array, begin, end, width):
    return Rows(array, begin // width[array], -(-end // width[array]))


def follow(event, held, seen, width):
    """held: place in shared memory → Rows that are there. seen: [Rows] that the warp has read,
    the last to be read at the end."""
    reads = {}
    if event.direction == "read":
        source = pieces(event.ranges)
        if source:
            rows = rows_of(event.array, source[0][0], source[-1][1], width)
            reads[event.array] = rows
    for name, written, ranges in event.shared:
        places = [place for begin, end in pieces(ranges)
                  for place in range(begin // PIECE, -(-end // PIECE))]
        if written:
            fill(event, held, name, places, ranges, width)
            continue
        for place in places:
            rows = held.get(place) or Rows(name + " in shared memory", 0, 1)
            reads[rows.array] = rows.joined(reads.get(rows.array))
    for array, rows in reads.items():
        before = next((one for one in seen if one.array == array), None)
        if before:
            seen.remove(before)
        # What passes in pieces, such as columns of the same rows, continues where it was.
        seen.append(rows)
    if event.amounts[0]:
        event.tile = tile_of(seen)


def fill(event, held, name, places, ranges, width):
    """What is written comes from HBM where the event reads as many bytes there, place by place;
    else it was computed."""
    event = event.source or event
    if event.direction != "read" or not event.ranges:
        for place in places:
            held[place] = Rows(name + " in shared memory", 0, 1)
        return
    if bytes_of(event.ranges) != bytes_of(ranges):
        source = pieces(event.ranges)
        for place in places:
            held[place] = rows_of(event.array, source[0][0], source[-1][1], width)
        return
    source = iter(pieces(event.ranges))
    begin = end = 0
    for first, last in pieces(ranges):
        while first < last:
            if begin == end:
                begin, end = next(source)
            size = min(last - first, end - begin)
            rows = rows_of(event.array, begin, begin + size, width)
            for place in range(first // PIECE, -(-(first + size) // PIECE)):
                there = held.get(place)
                partial = first % PIECE or (first + size) % PIECE
                held[place] = rows.joined(there) if partial and there else rows
            first, begin = first + size, begin + size


def tile_of(seen):
    """The tile of S that a product of what was read last makes, or None if it is no product of Q
    and K. Between the two others may have been read, but nothing that was computed."""
    if not seen or seen[-1].array not in ("Q", "K"):
        return None
    last = seen[-1]
    other = {"Q": "K", "K": "Q"}[last.array]
    for rows in reversed(seen[:-1]):
        if rows.array == other:
            q, k = (last, rows) if last.array == "Q" else (rows, last)
            return [q.first, q.last, k.first, k.last]
        if rows.array.endswith("in shared memory") or rows.array in ("S", "P"):
            return None
    return None
