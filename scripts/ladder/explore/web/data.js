// Unpacks the runs, which page.py stored as deflated JSON in base64.

async function unpack(element) {
  const packed = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/// A step's run: its events as scripts/ladder/trace/read.py describes them, and their blocks.
class Run {
  constructor(data) {
    Object.assign(this, data);
    for (const launch of this.launches) launch.blocks = [];
    for (const block of this.blocks) {
      const launch = block.launch = this.launches[block.launch];
      launch.blocks.push(block);
      block.events = this.events.slice(...block.events);
      for (const e of block.events) {
        const [begin, end, until] = e.ticks;
        Object.assign(e, { run: this, launch, block, counts: e.counts || {}, begin, end, until });
      }
    }
    this.last = most(this.events, (e) => e.end);
    this.order = [...this.events].sort((a, b) => a.begin - b.begin || a.index - b.index);
  }
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const most = (all, f) => all.reduce((so, one) => Math.max(so, f(one)), -Infinity);
