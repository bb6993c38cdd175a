// Replays a run up to a tick. Every number on the page is counted here, event by event; at the end
// pane.js compares the counts with the program's own.

// A map has at most MAP_ROWS × MAP_COLUMNS cells, and the picture of S at most SCORES × SCORES.
const MAP_ROWS = 128, MAP_COLUMNS = 16, SCORES = 128;

/// Returns the number of cells for n rows: n's largest divisor in (most / 4, most], so that cells
/// stand for equally many rows, or, without one, the smaller of n and `most`.
function parts(n, most) {
  for (let k = Math.min(n, most); k > most / 4; --k) if (n % k === 0) return k;
  return Math.min(n, most);
}

/// A Run (data.js) up to a tick: each array's map, the times each cell of S was computed, counts.
class Replay {
  constructor(run) {
    this.run = run;
    this.heads = run.head.heads * run.head.batch;
    this.scoreRows = parts(run.head.seqlen, SCORES);
    this.scoreColumns = parts(run.head.seqlen_kv, SCORES);
    this.clear();
  }

  clear() {
    this.maps = this.run.arrays.map((array) => {
      const width = array.bytes / array.rows;
      const rows = parts(array.rows, MAP_ROWS);
      const columns = Math.max(1, Math.min(MAP_COLUMNS, Math.floor(width / 8)));
      // Per cell: bytes requested, and the tick of the last access. `seen` has a flag per 2 bytes,
      // because all addresses and sizes are even.
      const side = () => ({
        bytes: new Float64Array(rows * columns), seen: new Uint8Array(Math.ceil(array.bytes / 2)),
        when: new Float64Array(rows * columns).fill(-Infinity) });
      return { array, width, rows, columns, inCell: array.bytes / rows / columns,
               read: side(), write: side() };
    });
    this.scores = new Uint16Array(this.heads * this.scoreRows * this.scoreColumns);
    this.scoresAt = new Float64Array(this.scores.length).fill(-Infinity);
    this.done = 0;  // number of events applied
    this.launch = null;
    this.counts = Object.fromEntries(this.run.counters.map((key) => [key, 0]));
  }

  /// Applies exactly the events that begin at tick `now` or before. Going back starts from 0.
  seek(now) {
    const { order } = this.run;
    if (this.done && order[this.done - 1].begin > now) this.clear();
    while (order[this.done]?.begin <= now) this.apply(order[this.done++]);
    return this;
  }

  apply(e) {
    if (e.launch !== this.launch) {  // distinct bytes are counted per kernel
      this.launch = e.launch;
      for (const { read, write } of this.maps) read.seen.fill(0), write.seen.fill(0);
    }
    for (const [name, amount] of Object.entries(e.counts)) this.counts[name] += amount;
    if (e.ranges) this.access(e);
    if (e.tile) this.score(e.tile, e.begin);
  }

  /// Adds an access to its array's map and to the counts of requested and distinct bytes.
  access(e) {
    const map = this.maps.find(({ array }) => array.name === e.name), side = map[e.direction];
    const touched = e.ranges.reduce((sum, [begin, end]) => sum + end - begin, 0);
    // `times` is how often a byte was requested on average: lanes may request the same bytes.
    const times = e.bytes / touched, perCell = map.width / map.columns;
    let fresh = 0;
    for (const [begin, end] of e.ranges) {
      for (let at = begin; at < end; at += 2) {
        if (!side.seen[at / 2]) side.seen[at / 2] = 1, fresh += 2;
        const row = Math.floor(at / map.width);
        const column = Math.min(map.columns - 1, Math.floor((at - row * map.width) / perCell));
        const cell = Math.floor(row * map.rows / map.array.rows) * map.columns + column;
        side.bytes[cell] += 2 * times;
        side.when[cell] = e.begin;
      }
    }
    this.counts[`requested_${e.direction}_bytes`] += e.bytes;
    this.counts[`distinct_${e.direction}_bytes`] += fresh;
  }

  /// Marks a tile of S, which may contain rows of several query heads that share K and V.
  score([firstRow, lastRow, firstKey, lastKey], now) {
    const { seqlen: N, seqlen_kv: keys, heads, kv_heads } = this.run.head;
    const of = Math.floor(firstKey / keys);  // the head of K, counted over the batch
    const cells = (first, last, size, n) =>
      [Math.floor(Math.max(first, 0) * n / size), Math.ceil(Math.min(last, size) * n / size)];
    const [k0, k1] = cells(firstKey - of * keys, lastKey - of * keys, keys, this.scoreColumns);
    for (let head = Math.floor(firstRow / N); head * N < lastRow; ++head) {
      const its = Math.floor(head / heads) * kv_heads +
        Math.floor(head % heads * kv_heads / heads);
      if (its !== of) continue;  // this head of Q uses another head of K
      const [r0, r1] = cells(firstRow - head * N, lastRow - head * N, N, this.scoreRows);
      for (let r = r0; r < r1; ++r) {
        for (let k = k0; k < k1; ++k) {
          const cell = (head * this.scoreRows + r) * this.scoreColumns + k;
          ++this.scores[cell];
          this.scoresAt[cell] = now;
        }
      }
    }
  }
}
