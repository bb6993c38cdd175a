// The warps of an SM's blocks and the engines beside them, a row each, around the moment that is
// shown.

/// The rows of a block: its engines, loads with one for each array, then its warps. Where four are
/// a warpgroup, the one that does most stands for it.
function rowsOfBlock(block) {
  const engines = Object.keys(BESIDE).flatMap((what) =>
    block.events.filter((e) => e.what === what && e.engine).map((e) => e.engine));
  const rows = [...new Set(engines)].map((engine) =>
    ({ label: engine, engine, warps: [], shows: (e) => e.engine === engine }));
  const size = block.inGroups && !explorer.each ? 4 : 1, does = Array(block.warps).fill(0);
  for (const e of block.events) ++does[e.warp];
  for (let first = 0; first < block.warps; first += size) {
    const warps = Array.from({ length: size }, (_, i) => first + i);
    const shown = [...warps].sort((a, b) => does[b] - does[a])[0];
    rows.push({ label: size > 1 ? `warpgroup ${first / size}` : `warp ${first}`, warps,
                shows: (e) => e.warp === shown });
  }
  return rows;
}

const TOP = 16, LEAST = 11;  // pixels above the rows, and of one

class Timeline extends View {
  constructor(...parts) {
    super(...parts);
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, pan: explorer.pan };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const by = held ? event.offsetX - held.x : 0;
      if (Math.abs(by) > 3) explorer.panTo(held.pan - by / this.scale);
    });
    canvas.addEventListener("pointerup", (event) => {
      const e = this.hitAt(event.offsetX, event.offsetY) || null;
      if (Math.abs(event.offsetX - held?.x) <= 3) {
        this.pane.choose(e === this.pane.selected ? null : e);
      }
      held = null;
    });
    canvas.addEventListener("pointercancel", () => { held = null; });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      ACTIONS[event.deltaY > 0 ? "s" : "w"](explorer);
    }, { passive: false });
  }

  words(e) {
    return !e ? "" : `${sentence(e)} · ${exactly(e.from)} to ${exactly(e.to)} ` +
      (explorer.clock === "model" ? `(${exactly(e.to - e.from)} cycles of the model)`
        : "in the order");
  }

  rowOf(e) { return this.rows.find((row) => row.warps.includes(e.warp)); }

  draw({ block, now }) {
    const { run } = this.pane;
    this.block = block;
    this.rows = block ? rowsOfBlock(block) : [];
    this.canvas.parentElement.style.minHeight = `${TOP + LEAST * this.rows.length}px`;
    const { context, width, height } = sheet(this.canvas);
    this.label = "Warps and engines" + (block ? ` of ${this.pane.name(block)}` : ": none");
    this.say(block ? `SM ${block.sm}: ${this.pane.name(block)}` : "");
    this.hits = [];
    if (!block) return;
    const each = clamp((height - TOP) / this.rows.length, LEAST, 32);
    this.rows.forEach((row, i) => Object.assign(row, { y: TOP + i * each, height: each }));
    this.gutter = Math.min(92, width * 0.25);
    // All that is shown is of the run: the window stops at its ends.
    const span = Math.min(explorer.span, run.last - run.first);
    this.from = Math.max(run.first, Math.min(now + explorer.pan - span * 0.6, run.last - span));
    this.until = this.from + span;
    this.scale = (width - this.gutter) / span;
    const x = (t) => this.gutter + (t - this.from) * this.scale;
    for (const { label, engine, y, height } of this.rows) {
      write(context, label, 0, y + height / 2, this.gutter - 6, palette.soft);
      if (!engine) box(context, palette.line, this.gutter, Math.round(y), width, 1);
    }
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, width - this.gutter, height);
    context.clip();
    this.axis(context, span, x);
    // Before and after it the SM's other blocks.
    this.blocks = run.blocks.filter((one) =>
      one.sm === block.sm && one.to >= this.from && one.from <= this.until);
    for (const other of this.blocks) {
      for (const e of other.events) {
        if (Math.max(e.to, e.until) < this.from || e.from > this.until) continue;
        for (const row of this.rows.filter((row) => row.shows(e))) {
          if (row.engine) this.flight(context, e, row, x(e.from), x(e.until));
          else this.piece(context, e, row, x(e.from), x(e.to));
        }
      }
      const wide = x(other.to) - x(other.from);
      if (other !== block) box(context, palette.card, x(other.from), TOP, wide, height, 0.65);
    }
    box(context, palette.now, x(now) - 1, 0, 2, height);
    this.selection(context, x);
    context.restore();
  }

  axis(context, span, x) {
    const rough = span / 6, power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough) || power);
    for (let t = Math.ceil(this.from / step) * step; t < this.until; t += step) {
      box(context, palette.faint, x(t), 14, 1, 1e4);
      write(context, exactly(t || 0), x(t) + 2, 7, Infinity, palette.soft);
    }
  }

  flight(context, e, { y, height }, from, to) {
    const { what } = e, width = Math.max(1.5, to - from - 1);
    this.hit(e, from, y, width, height);
    const colour = what === "wgmma" ? palette.product
      : e.direction === "write" ? palette.write : palette.copy;
    // Copies by warps are one below the other.
    const each = what === "read" ? (height - 2) / this.block.warps : height - 2;
    box(context, colour, from, y + 1 + (what === "read" ? e.warp * each : 0), width,
        Math.max(1, each - 0.5), 0.75);
    if (what === "read" || width < 22) return;
    const rows = rowsOf(e);
    write(context, rows ? `${e.name} ${range(rows)}` : e.name, from + 3, y + height / 2, width - 6);
  }

  piece(context, e, { y, height }, from, to) {
    const w = Math.max(1.5, to - from), gap = w > 5 ? 1 : 0;
    const short = ["signal", "exit", "exchange"].includes(e.kind);
    this.hit(e, from, y, w, height);
    const colour = palette[e.kind], wait = e.kind === "wait", inner = height - 2;
    if (short) box(context, colour, from, y + height * 0.3, Math.min(w - gap, 14), height * 0.4);
    else if (!wait || e.to - e.from > 1) {
      box(context, colour, from, y + 1, w - gap, inner, wait ? 0.55 : 1);
    }
    if (wait) box(context, palette.soft, from + w - gap - 1.5, y + 1, 1.5, inner);
  }

  selection(context, x) {
    const { run, selected } = this.pane;
    const mark = (e, colour) => {
      const { y, height } = this.rowOf(e);
      frame(context, colour, x(e.from), y + 1, Math.max(3, x(e.to) - x(e.from)), height - 2);
    };
    const fault = run.fault && run.events[run.fault.event];
    if (fault && fault.block === this.block) mark(fault, palette.bad);
    if (!selected || selected.block !== this.block) return;
    for (const part of run.meetings[selected.awaits]?.[1] || []) {
      const e = run.events[part], { y, height } = this.rowOf(e);
      context.fillStyle = palette.ink;
      context.beginPath();
      context.arc(x(e.from) + 2, y + height / 2, 3, 0, 7);
      context.fill();
    }
    mark(selected, palette.ink);
  }
}
