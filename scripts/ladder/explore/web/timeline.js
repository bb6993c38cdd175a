// Draws the ticks around the current one, with one row for each engine and each warp of a block.

const SPAN = 48, LEAST = 11;  // ticks shown; smallest height of a row in pixels
const MEETS = ["signal", "exchange", "wait"];  // categories that are not work

/// Returns the rows of a block: its engines, with one row per array for loads, then the warps that
/// do any work. A warpgroup that executes wgmma is shown by its first warp.
function rowsOfBlock({ events, warps, groups }) {
  const engines = new Set(events.map((e) => e.engine).filter(Boolean));
  const rows = [...engines].sort().map((engine) => ({ label: engine, engine }));
  const work = new Set(events.filter((e) => !MEETS.includes(e.category)).map((e) => e.warp));
  for (let warp = 0; warp < warps; ++warp) {
    const group = groups.includes(warp >> 2);
    if (!work.has(warp) || (group && warp % 4)) continue;
    rows.push({ label: group ? `warpgroup ${warp >> 2}` : `warp ${warp}`, warp });
  }
  return rows;
}

class Timeline extends View {
  constructor(...of) {
    super(...of);
    this.canvas.onclick = ({ offsetX, offsetY }) => {
      const hit = this.hits.findLast(({ x, y, width, height }) => offsetX >= x &&
        offsetX < x + width && offsetY >= y && offsetY < y + height)?.of;
      this.pane.choose(hit === this.pane.selected ? null : hit || null);
    };
  }

  rowOf({ warp }) {
    const first = this.block.groups.includes(warp >> 2) ? warp - warp % 4 : warp;
    return this.rows.find((row) => row.warp === first) || {};
  }

  draw({ block, now }) {
    const { run } = this.pane;
    this.block = block;
    this.rows = block ? rowsOfBlock(block) : [];
    this.canvas.parentElement.style.minHeight = `${LEAST * this.rows.length}px`;
    this.clear();
    const name = block ? this.pane.name(block) : "none";
    this.label(`Warps and engines of ${name}`);
    this.say(name);
    if (!block) return;
    const each = clamp(this.height / this.rows.length, LEAST, 32);
    this.rows.forEach((row, i) => Object.assign(row, { y: i * each, height: each }));
    this.left = 8 + this.widest(this.rows.map(({ label }) => label));
    // The window stops at both ends of the run.
    const span = Math.min(SPAN, run.last);
    this.from = clamp(now - span * 0.6, 0, run.last - span);
    this.until = this.from + span;
    this.scale = (this.width - this.left) / span;
    const x = (t) => this.left + (t - this.from) * this.scale;
    for (const e of block.events) {
      if (Math.max(e.end, e.until) < this.from || e.begin > this.until) continue;
      for (const row of this.rows) {
        if (row.warp === e.warp) this.piece(e, row, x(e.begin), x(e.end));
        if (row.engine && row.engine === e.engine) this.flight(e, row, x(e.begin), x(e.until));
      }
    }
    this.box("now", x(now) - 1, 0, 2, this.height);
    this.selection(x);
    this.box("card", 0, 0, this.left, this.height);
    for (const { label, y, height } of this.rows) {
      this.write(label, 0, y + height / 2, this.left, "soft");
    }
  }

  /// Draws an operation in flight on the row of its engine.
  flight(e, { y, height }, from, to) {
    const { kind, rows } = e, width = Math.max(1.5, to - from - 1);
    const colour = e.category === "product" ? "product"
      : e.direction === "write" ? "write" : "copy";
    // Copies by several warps share one row, so their bars are too thin for names.
    const thin = kind === "read", each = (height - 2) / (thin ? this.block.warps : 1);
    this.bar(e, colour, from, y + 1 + (thin ? e.warp * each : 0), width, Math.max(1, each - 0.5),
             0.5, thin ? "" : rows ? `${e.name} ${range(rows)}` : e.name);
  }

  /// Draws an event on the row of its warp; a wait ends in a dark stroke, a signal is a small box.
  piece(e, { y, height }, from, to) {
    const w = Math.max(1.5, to - from), inner = w > 5 ? w - 1 : w, wait = e.category === "wait";
    const small = MEETS.includes(e.category) && !wait;
    this.bar(e, e.category, from, y + 1, inner, height - 2, small ? 0
      : wait ? 0.55 * (e.end - e.begin > 1) : 1);
    if (small) this.box(e.category, from, y + height * 0.3, Math.min(inner, 14), height * 0.4);
    if (wait) this.box("soft", from + inner - 1.5, y + 1, 1.5, height - 2);
  }

  /// Frames the selected event and a fault; marks the events that the selected one waits for.
  selection(x) {
    const { run, selected } = this.pane;
    const mark = (e, colour) => {
      const { y, height } = this.rowOf(e);
      this.frame(colour, x(e.begin), y + 1, Math.max(3, x(e.end) - x(e.begin)), height - 2);
    };
    const fault = run.fault && run.events[run.fault.event];
    if (fault && fault.block === this.block) mark(fault, "bad");
    if (!selected || selected.block !== this.block) return;
    for (const part of run.meetings[selected.awaits]?.[1] || []) {
      const e = run.events[part], { y, height } = this.rowOf(e);
      this.box("ink", x(e.begin), y + height / 2 - 3, 6, 6);
    }
    mark(selected, "ink");
  }
}
