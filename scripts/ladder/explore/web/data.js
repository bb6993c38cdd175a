// Unpacks the steps' runs, which page.py stored in the page as deflated JSON in base64.

async function unpack(element) {
  const packed = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/// A step's run, with the fields of pane_of() in page.py. Launches, blocks and events, which there
/// refer to each other by index, become objects that do so directly.
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
    this.last = most(this.events, (e) => e.end);  // the run's last tick
    this.order = [...this.events].sort((a, b) => a.begin - b.begin || a.index - b.index);
  }
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const most = (all, f) => all.reduce((so, one) => Math.max(so, f(one)), -Infinity);
