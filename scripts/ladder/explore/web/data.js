// The runs as the script packed them: JSON, deflated, in base64.

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
    for (const block of this.blocks) {  // in the order in which they were started
      const launch = block.launch = this.launches[block.launch];
      launch.blocks.push(block);
      block.events = this.events.slice(...block.events);
      for (const e of block.events) {
        Object.assign(e, { run: this, launch, block, counts: e.counts || {} });
        launch.multiplies ||= e.counts.matmul_flops > 0;
      }
    }
  }

  /// Gives the events their times, e.begin and e.end, and until when what they start is under way,
  /// e.until. An SM has one block at a time and takes the next when that is done; a kernel starts
  /// when the one before has ended. At 0 the first kernel with a product starts: those before it
  /// set things up.
  schedule(sms) {
    let start = 0, zero = null;
    for (const launch of this.launches) {
      const free = Array(sms).fill(start);
      if (launch.multiplies) zero ??= start;
      for (const block of launch.blocks) {
        block.sm = free.indexOf(Math.min(...free));
        block.begin = free[block.sm];
        for (const e of block.events) {
          [e.begin, e.end, e.until] = e.ticks.map((t) => t + block.begin);
        }
        block.end = free[block.sm] = most(block.events, (e) => e.end);
      }
      start = Math.max(...free);
    }
    for (const one of [...this.events, ...this.blocks]) {
      one.begin -= zero, one.end -= zero, one.until -= zero;
    }
    this.first = 0 - zero;
    this.last = Math.max(start - zero, 1);
    this.lanes = Math.max(1, most(this.blocks, (block) => block.sm + 1));
    this.order = [...this.events].sort((a, b) => a.begin - b.begin || a.index - b.index);
  }
}

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const least = (all, f) => all.reduce((so, one) => Math.min(so, f(one)), Infinity);
const most = (all, f) => all.reduce((so, one) => Math.max(so, f(one)), -Infinity);
