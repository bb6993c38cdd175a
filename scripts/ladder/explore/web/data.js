// The runs as the script packed them: JSON, deflated, in base64.

async function unpack(element) {
  const packed = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/// A step's run: its events in columns, sorted by when they begin in the order of the trace.
class Run {
  constructor(data) {
    Object.assign(this, data);
    this.n = data.columns.begin.length;
    this.columns = {};
    for (const [name, deltas] of Object.entries(data.columns)) {
      const values = new Float64Array(this.n);
      for (let i = 0, sum = 0; i < this.n; ++i) values[i] = sum += deltas[i];
      this.columns[name] = values;
    }
    const head = this.head;
    this.queries = head.seqlen * head.heads * head.batch;
    this.byName = new Map(this.arrays.map((array, i) => [array.name, i]));
    this.findPlaces();
    this.clocks = { order: this.clockOf("begin", "end", this.ticks) };
    if (this.cycles) this.clocks.model = this.clockOf("modelBegin", "modelEnd", this.cycles);
  }

  /// What belongs together: the events of each block, those that wait at a meeting.
  findPlaces() {
    const { launch, block, warp, meeting } = this.columns;
    this.blocks = new Map();
    this.waiters = this.barriers.map(() => []);
    for (let i = 0; i < this.n; ++i) {
      const key = this.place(i);
      let of = this.blocks.get(key);
      if (!of) {
        of = { key, launch: launch[i], block: block[i], warps: 0, events: [] };
        this.blocks.set(key, of);
      }
      of.events.push(i);
      of.warps = Math.max(of.warps, warp[i] + 1);
      if (meeting[i] >= 0) this.waiters[meeting[i]].push(i);
    }
    for (const of of this.blocks.values()) {
      of.inGroups = of.events.some((i) => this.whats[this.columns.what[i]] === "wgmma");
    }
  }

  place(i) {
    return this.columns.launch[i] + ":" + this.columns.block[i];
  }

  /// A clock: when events begin and end, in what order they come, and when it ends.
  clockOf(begin, end, last) {
    const order = Uint32Array.from({ length: this.n }, (_, i) => i);
    const from = this.columns[begin], to = this.columns[end];
    order.sort((a, b) => from[a] - from[b] || a - b);
    const begins = Float64Array.from(order, (i) => from[i]);
    // What is started is under way until the first wait for it is over.
    const over = this.waiters.map((waiters) =>
      waiters.reduce((least, i) => Math.min(least, to[i]), Infinity));
    const until = (i) => {
      const meeting = this.columns.lands[i];
      return meeting >= 0 && over[meeting] < Infinity ? Math.max(over[meeting], from[i]) : to[i];
    };
    const spans = new Map();  // of the blocks
    for (const [key, { events }] of this.blocks) {
      const span = [Infinity, 0];
      for (const i of events) {
        span[0] = Math.min(span[0], from[i]);
        span[1] = Math.max(span[1], to[i]);
      }
      spans.set(key, span);
    }
    return { from, to, order, begins, until, last, spans };
  }

  what(i) { return this.whats[this.columns.what[i]]; }
  kind(i) { return this.kinds[this.columns.kind[i]]; }
  name(i) { return this.names[this.columns.name[i]]; }
  rowsOf(i) {
    const array = this.arrays[this.byName.get(this.name(i))];
    const ranges = this.ranges[i];
    if (!array || !ranges) return null;
    const width = array.bytes / array.rows;
    const at = ranges.length - 4;
    const end = ranges[at] + (ranges[at + 3] - 1) * ranges[at + 2] + ranges[at + 1];
    return [Math.floor(ranges[0] / width), Math.ceil(end / width) - 1];
  }
}

/// Calls f(begin, end) for each piece of [begin, bytes, step, count, …].
function eachPiece(ranges, f) {
  for (let r = 0; r < ranges.length; r += 4) {
    for (let k = 0; k < ranges[r + 3]; ++k) {
      const begin = ranges[r] + k * ranges[r + 2];
      f(begin, begin + ranges[r + 1]);
    }
  }
}

/// How many of the sorted numbers are at most x.
function countUpTo(sorted, x) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}
