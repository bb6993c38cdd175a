// The runs as the script packed them: JSON, deflated, in base64.

async function unpack(element) {
  const packed = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/// A step's run: its events as scripts/ladder/explore/trace.py describes them, and their blocks.
class Run {
  constructor(data) {
    Object.assign(this, data);
    this.blocks = [];  // in the order in which they were started; the events come block by block
    for (const launch of this.launches) launch.blocks = [], launch.multiplies = false;
    for (const e of this.events) {
      const launch = this.launches[e.launch];
      let block = launch.blocks.at(-1);
      if (block?.number !== e.block) {
        block = { launch, number: e.block, events: [], warps: 0 };
        launch.blocks.push(block);
        this.blocks.push(block);
      }
      Object.assign(e, { run: this, launch, block, counts: e.counts || {} });
      block.events.push(e);
      block.warps = Math.max(block.warps, e.warp + 1);
      launch.multiplies ||= e.counts.matmul_flops > 0;
    }
    for (const block of this.blocks) this.describe(block);
  }

  array(name) { return this.arrays.find((array) => array.name === name); }

  /// Which warpgroups of a block multiply together, and what it works on: rows of Q and K, or what
  /// it writes.
  describe(block) {
    block.groups = new Set(block.events.filter((e) => e.what === "wgmma").map((e) => e.warp >> 2));
    const tiles = block.events.filter((e) => e.tile).map((e) => e.tile);
    const written = block.events.filter((e) =>
      e.direction === "write" && this.array(e.name).rows > 1);
    if (tiles.length) {
      block.firstRow = tiles[0][0];
      block.work = `Q ${ranges(joined(tiles.map(([first, end]) => [first, end - 1])))}, ` +
        `K ${ranges(joined(tiles.map(([, , first, end]) => [first, end - 1])))}`;
    } else if (written.length) {
      const { name } = written[0];
      block.work = `${name} ` +
        ranges(joined(written.filter((e) => e.name === name).map((e) => [...e.rows])));
    }
  }

  /// Gives the events their times, e.from and e.to, and until when what they start is under way,
  /// e.until. An SM has one block at a time and takes the next when that is done; a kernel starts
  /// when the one before has ended. At 0 the first kernel with a product starts: those before it
  /// set things up.
  schedule(clock, sms) {
    let start = 0, zero = null;
    for (const launch of this.launches) {
      const free = Array(sms).fill(start);
      if (launch.multiplies) zero ??= start;
      for (const block of launch.blocks) {
        block.sm = free.indexOf(Math.min(...free));
        const by = free[block.sm] - least(block.events, (e) => e[clock][0]);
        for (const e of block.events) [e.from, e.to, e.until] = e[clock].map((t) => t + by);
        block.from = free[block.sm];
        block.to = free[block.sm] = most(block.events, (e) => e.to);
      }
      start = Math.max(...free);
    }
    for (const one of [...this.events, ...this.blocks]) {
      one.from -= zero, one.to -= zero, one.until -= zero;
    }
    this.first = 0 - zero;
    this.last = Math.max(start - zero, 1);
    this.lanes = Math.max(1, most(this.blocks, (block) => block.sm + 1));
    this.order = [...this.events].sort((a, b) => a.from - b.from || a.index - b.index);
  }
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const least = (all, f) => all.reduce((so, one) => Math.min(so, f(one)), Infinity);
const most = (all, f) => all.reduce((so, one) => Math.max(so, f(one)), -Infinity);

/// Ranges [first, last] in order, those that touch as one.
function joined(all) {
  const found = [];
  for (const [first, last] of all.sort(([a], [b]) => a - b)) {
    const before = found.at(-1);
    if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else found.push([first, last]);
  }
  return found;
}
