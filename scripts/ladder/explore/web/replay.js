// What has happened up to a moment. Every figure on the page is counted here, event by event; the
// program's own counts are only compared with, at the end.

const MAP_ROWS = 128, MAP_COLUMNS = 16, SCORES = 128, SNAPSHOTS = 40;

/// The most parts, up to `most`, that n can be shared out to evenly, if that is not very few.
function parts(n, most) {
  for (let k = Math.min(n, most); k > most / 4; --k) if (n % k === 0) return k;
  return Math.min(n, most);
}

class Replay {
  constructor(run, clock) {
    this.run = run;
    this.clock = run.clocks[clock];
    this.maps = run.arrays.map((array) => {
      const width = array.bytes / array.rows;
      const rows = parts(array.rows, MAP_ROWS);
      const columns = Math.max(1, Math.min(MAP_COLUMNS, Math.floor(width / 8)));
      const n = rows * columns;
      // Places in HBM are even, as are all element sizes.
      const inRow = new Float32Array(rows);  // bytes of a cell
      for (let r = 0; r < array.rows; ++r) {
        inRow[Math.floor(r * rows / array.rows)] += width / columns;
      }
      return { array, width, rows, columns, inRow,
               read: new Float32Array(n), written: new Float32Array(n),
               readAt: new Float64Array(n), writtenAt: new Float64Array(n),
               seen: new Uint8Array(Math.ceil(array.bytes / 2)) };
    });
    const head = run.head;
    this.heads = head.heads * head.batch;
    this.scoreRows = parts(head.seqlen, SCORES);
    this.scoreColumns = parts(head.seqlen_kv, SCORES);
    this.scores = new Uint16Array(this.heads * this.scoreRows * this.scoreColumns);
    this.scoresAt = new Float64Array(this.scores.length);
    this.buffers = [this.scores, this.scoresAt];
    for (const m of this.maps) this.buffers.push(m.read, m.written, m.readAt, m.writtenAt, m.seen);
    this.snapshots = [];
    this.every = Math.max(1, Math.ceil(run.n / SNAPSHOTS));
    this.clear();
  }

  clear() {
    for (const buffer of this.buffers) buffer.fill(0);
    for (const m of this.maps) m.readAt.fill(-Infinity), m.writtenAt.fill(-Infinity);
    this.scoresAt.fill(-Infinity);
    this.done = 0;  // events
    this.launch = -1;
    this.counts = { requestedRead: 0, requestedWrite: 0, distinctRead: 0, distinctWrite: 0,
                    matmul: 0, exps: 0, other: 0, sramRead: 0, sramWrite: 0 };
  }

  /// To the moment at which what has begun is all that begins until `now`.
  seek(now) {
    const wanted = countUpTo(this.clock.begins, now);
    if (wanted < this.done) {
      const snapshot = this.snapshots[Math.floor(wanted / this.every)];
      if (snapshot && snapshot.done <= wanted) this.restore(snapshot);
      else this.clear();
    }
    while (this.done < wanted) {
      if (this.done % this.every === 0 && !this.snapshots[this.done / this.every]) this.save();
      this.apply(this.clock.order[this.done++]);
    }
  }

  save() {
    this.snapshots[this.done / this.every] = {
      done: this.done, launch: this.launch, counts: { ...this.counts },
      buffers: this.buffers.map((buffer) => buffer.slice()) };
  }
  restore(snapshot) {
    this.done = snapshot.done;
    this.launch = snapshot.launch;
    this.counts = { ...snapshot.counts };
    this.buffers.forEach((buffer, i) => buffer.set(snapshot.buffers[i]));
  }

  apply(i) {
    const { columns, ranges, tiles } = this.run;
    if (columns.launch[i] !== this.launch) {  // distinct bytes are those of each kernel
      this.launch = columns.launch[i];
      for (const m of this.maps) m.seen.fill(0);
    }
    const counts = this.counts;
    counts.matmul += columns.matmul[i];
    counts.exps += columns.exps[i];
    counts.other += columns.other[i];
    counts.sramRead += columns.sramRead[i];
    counts.sramWrite += columns.sramWrite[i];
    if (ranges[i]) this.access(i, ranges[i]);
    if (tiles[i]) this.score(tiles[i], this.clock.from[i]);
  }

  access(i, ranges) {
    const { columns } = this.run, writes = columns.direction[i] === 2;
    const map = this.maps[this.run.byName.get(this.run.name(i))];
    const bytes = columns.bytes[i], now = this.clock.from[i];
    let touched = 0, fresh = 0;
    const bit = writes ? 2 : 1, seen = map.seen;
    eachPiece(ranges, (begin, end) => {
      touched += end - begin;
      for (let at = begin >> 1; at < end >> 1; ++at) {
        if (!(seen[at] & bit)) seen[at] |= bit, fresh += 2;
      }
    });
    this.counts[writes ? "requestedWrite" : "requestedRead"] += bytes;
    this.counts[writes ? "distinctWrite" : "distinctRead"] += fresh;
    // Where lanes asked for the same bytes, each piece was asked for so many times.
    const times = bytes / touched, amount = writes ? map.written : map.read;
    const when = writes ? map.writtenAt : map.readAt;
    const perCell = map.width / map.columns;
    eachPiece(ranges, (begin, end) => {
      while (begin < end) {
        const row = Math.floor(begin / map.width), inRow = begin - row * map.width;
        const column = Math.min(map.columns - 1, Math.floor(inRow / perCell));
        const next = Math.min(end, row * map.width + Math.max((column + 1) * perCell, inRow + 1));
        const cell = Math.floor(row * map.rows / map.array.rows) * map.columns + column;
        amount[cell] += (next - begin) * times;
        when[cell] = now;
        begin = next;
      }
    });
  }

  score([firstRow, lastRow, firstKey, lastKey], now) {
    const head = this.run.head, N = head.seqlen, keys = head.seqlen_kv;
    const index = Math.floor(firstRow / N);
    const group = head.heads / head.kv_heads;
    const of = Math.floor(firstKey / keys);  // head of K
    if (Math.floor(index / head.heads) * head.kv_heads +
        Math.floor(index % head.heads / group) !== of) return;  // different heads never meet
    const cells = (first, last, size, n) =>
      [Math.floor(first * n / size), Math.max(Math.ceil(last * n / size), 1)];
    const [r0, r1] = cells(firstRow - index * N, Math.min(lastRow - index * N, N), N,
                           this.scoreRows);
    const [k0, k1] = cells(firstKey - of * keys, Math.min(lastKey - of * keys, keys), keys,
                           this.scoreColumns);
    for (let r = r0; r < r1; ++r) {
      for (let k = k0; k < k1; ++k) {
        const cell = (index * this.scoreRows + r) * this.scoreColumns + k;
        ++this.scores[cell];
        this.scoresAt[cell] = now;
      }
    }
  }

  /// The last event that has begun; -1 before the first.
  get last() { return this.done ? this.clock.order[this.done - 1] : -1; }
}

/// What is in a block's shared memory at a moment: cells of each array, of which each knows what
/// event filled it and with which rows.
function sharedContents(run, block, clock, now) {
  const regions = run.launches[block.launch].shared.map(([name, begin, bytes]) => {
    let size = 64;  // of a cell; tiles begin at multiples of larger powers of two
    while (bytes / size > 512) size *= 2;
    return { name, begin, bytes, size, cells: Array(Math.ceil(bytes / size)).fill(null),
             reading: null };
  });
  for (const i of block.events) {
    if (clock.from[i] > now) continue;
    for (const [name, written, ranges] of run.shared[i] || []) {
      const region = regions.find((r) => ranges[0] >= r.begin && ranges[0] < r.begin + r.bytes);
      if (!region) continue;
      if (!written) {
        if (clock.to[i] > now || clock.from[i] === now) {
          region.reading = [ranges[0] - region.begin, ranges[0] + ranges[1] - region.begin];
        }
        continue;
      }
      fillCells(run, i, region, ranges, clock.until(i) > now && run.columns.lands[i] >= 0);
    }
  }
  return regions;
}

/// What was filled together: where it is not told by a barrier, the copies of a group.
function fillOf(run, i) {
  const meeting = run.columns.lands[i];
  if (meeting < 0) return "";
  const [name, number] = run.barriers[meeting];
  return name.replace(/ of warp .*/, "") + number;
}

function fillCells(run, event, region, ranges, underWay) {
  const size = region.size, fill = fillOf(run, event);
  const i = run.sources[event] ?? event;
  const source = run.columns.direction[i] === 1 && run.ranges[i];
  const array = source && run.arrays[run.byName.get(run.name(i))];
  const width = array && array.bytes / array.rows;
  const rows = [];  // bytes of HBM in the order in which they go to shared memory
  if (source) eachPiece(source, (begin, end) => rows.push([begin, end]));
  let piece = 0, used = 0;
  const fits = source && total(source) === total(ranges);
  eachPiece(ranges, (begin, end) => {
    let at = begin - region.begin;
    const stop = end - region.begin;
    while (at < stop) {
      const cell = Math.min(region.cells.length - 1, Math.floor(at / size));
      let step = Math.min(stop - at, Math.max((cell + 1) * size - at, 1));
      let row = null;
      if (fits) {
        const [from, to] = rows[piece];
        step = Math.min(step, to - from - used);
        row = [Math.floor((from + used) / width), Math.floor((from + used + step - 1) / width)];
        used += step;
        if (used === to - from) used = 0, ++piece;
      } else if (source) {
        row = [Math.floor(rows[0][0] / width), Math.floor((rows[rows.length - 1][1] - 1) / width)];
      }
      const before = region.cells[cell];
      const goesOn = before && row && before.row && before.name === run.name(i) &&
        before.fill === fill && (before.event === i || fill);
      region.cells[cell] = {
        event: i, name: row ? run.name(i) : null, fill, underWay,
        row: goesOn ? [Math.min(row[0], before.row[0]), Math.max(row[1], before.row[1])] : row };
      at += step;
    }
  });
}

function total(ranges) {
  let sum = 0;
  for (let r = 0; r < ranges.length; r += 4) sum += ranges[r + 1] * ranges[r + 3];
  return sum;
}
