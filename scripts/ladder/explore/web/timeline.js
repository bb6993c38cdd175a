// The warps of an SM's blocks and the engines beside them, a row each, around the moment that is
// shown.

const ENGINES = { read: "cp.async", tma_load: "TMA", bulk_load: "TMA", tma_store: "TMA stores",
                  bulk_add: "TMA additions", wgmma: "tensor cores" };

/// The rows of a block's engines, [what, array or null, label]: loads have one for each array.
function engineRows(block) {
  const rows = new Map();
  for (const e of block.events.filter((e) => ENGINES[e.what] && e.lands !== undefined)) {
    const name = LOADS.includes(e.what) ? e.name : null, label = ENGINES[e.what];
    rows.set(`${e.what} ${name}`, [e.what, name, name ? `${label} ${name}` : label]);
  }
  const order = Object.keys(ENGINES);
  return [...rows.values()].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
}

/// The rows of a block's warps, [warp, label]. Where four are a warpgroup, the one that does most
/// stands for it.
function warpRows(block) {
  const warps = Array.from({ length: block.warps }, (_, warp) => [warp, `warp ${warp}`]);
  if (!block.inGroups || explorer.each) return warps;
  const does = (warp) => block.events.filter((e) => e.warp === warp).length;
  return warps.filter(([warp]) => warp % 4 === 0).map(([first]) => {
    const group = [first, first + 1, first + 2, first + 3];
    return [group.sort((a, b) => does(b) - does(a) || a - b)[0], `warpgroup ${first / 4}`];
  });
}

const LEAST = 10;  // pixels of a warp's row

class Timeline extends View {
  constructor(...parts) {
    super(...parts);
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, pan: explorer.pan, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      const by = event.offsetX - held.x;
      if (Math.abs(by) > 3) held.moved = true;
      if (held.moved) explorer.panTo(held.pan - by / this.scale);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.pane.select(this.eventAt(event.offsetX, event.offsetY));
      held = null;
    });
    canvas.addEventListener("pointercancel", () => { held = null; });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      explorer.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2);
    }, { passive: false });
  }

  told(x, y) {
    const e = this.eventAt(x, y);
    return !e ? "" : `${sentence(e)} · ${exactly(e.from)} to ${exactly(e.to)} ` +
      (explorer.clock === "model" ? `(${exactly(e.to - e.from)} cycles of the model)`
        : "in the order");
  }

  layout(height) {
    this.top = 16;
    // Engines' rows have words in them; warps share what is left.
    this.engineHeight =
      Math.max(12, Math.min(26, (height - 18) / (this.engines.length + this.rows.length)));
    this.warpsTop = this.top + this.engines.length * this.engineHeight;
    this.rowHeight = Math.max(LEAST, Math.min(40, (height - this.warpsTop - 2) / this.rows.length));
  }
  warpY(warp) {
    const own = this.rows.findIndex(([shown]) => shown === warp);
    const row = own >= 0 || !this.block.inGroups ? own : Math.floor(warp / 4);
    return this.warpsTop + row * this.rowHeight;
  }

  draw(block, now) {
    const { run } = this.pane;
    this.block = block;
    this.engines = block ? block.engines ||= engineRows(block) : [];
    this.rows = block ? warpRows(block) : [];
    this.canvas.parentElement.style.minHeight =
      `${18 + 12 * this.engines.length + LEAST * this.rows.length}px`;
    const { context, width, height } = sheet(this.canvas);
    this.canvas.setAttribute("aria-label", "Warps and engines" +
      (block ? ` of ${this.pane.name(block)}` : ": none"));
    const name = block ? `SM ${block.sm}: ${this.pane.name(block)}` : "";
    this.note.textContent = this.note.title = name;
    if (!block) return;
    this.layout(height);
    this.gutter = Math.min(92, width * 0.25);
    // All that is shown is of the run: the window stops at its ends.
    const span = Math.min(explorer.span, run.last - run.first);
    this.from = Math.max(run.first, Math.min(now + explorer.pan - span * 0.6, run.last - span));
    this.until = this.from + span;
    this.scale = (width - this.gutter) / span;
    const x = (t) => this.gutter + (t - this.from) * this.scale;
    this.labels(context, width);
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
        const engine = this.engineOf(e);
        if (engine >= 0) this.flight(context, e, engine, x(e.from), x(e.until));
        if (this.rows.some(([warp]) => warp === e.warp)) {
          this.piece(context, e, x(e.from), x(e.to), this.warpY(e.warp));
        }
      }
      if (other === block) continue;
      context.globalAlpha = 0.65;
      context.fillStyle = palette.card;
      context.fillRect(x(other.from), this.top, x(other.to) - x(other.from), height);
      context.globalAlpha = 1;
    }
    context.fillStyle = palette.now;
    context.fillRect(x(now) - 1, 0, 2, height);
    this.selection(context, x);
    context.restore();
  }

  labels(context, width) {
    const h = this.rowHeight;
    context.fillStyle = palette.soft;
    const label = (name, y) =>
      context.fillText(textThatFits(context, name, this.gutter - 6), 0, y);
    this.engines.forEach(([, , name], i) => label(name, this.top + (i + 0.5) * this.engineHeight));
    const each = Math.max(1, Math.ceil(10 / h));
    context.fillStyle = palette.soft;
    this.rows.forEach(([, name], i) => {
      if (i % each === 0) label(name, this.warpsTop + (i + 0.5) * h);
    });
    context.fillStyle = palette.line;
    for (let i = 0; i <= this.rows.length; i += each) {
      context.fillRect(this.gutter, Math.round(this.warpsTop + i * h), width, 1);
    }
  }

  axis(context, span, x) {
    const rough = span / 6, power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough) || power);
    for (let t = Math.ceil(this.from / step) * step; t < this.until; t += step) {
      context.fillStyle = palette.faint;
      context.fillRect(x(t), 14, 1, 1e4);
      context.fillStyle = palette.soft;
      context.fillText(exactly(t || 0), x(t) + 2, 7);
    }
  }

  engineOf(e) {
    return e.lands === undefined ? -1 : this.engines.findIndex(([what, name]) =>
      what === e.what && (name === null || name === e.name));
  }

  flight(context, e, engine, from, to) {
    const what = this.engines[engine][0], y = this.top + engine * this.engineHeight;
    const width = Math.max(1.5, to - from - 1);
    context.globalAlpha = 0.75;
    context.fillStyle = what === "wgmma" ? palette.product
      : STORES.includes(what) ? palette.write : palette.copy;
    if (what === "read") {  // each warp's, one below the other
      const each = (this.engineHeight - 2) / this.block.warps;
      context.fillRect(from, y + 1 + e.warp * each, width, Math.max(1, each - 0.5));
    } else {
      context.fillRect(from, y + 1, width, this.engineHeight - 2);
    }
    context.globalAlpha = 1;
    if (what === "read" || width < 22) return;
    const rows = rowsOf(e);
    context.fillStyle = palette.ink;
    context.fillText(textThatFits(context, rows ? `${e.name} ${range(rows)}` : e.name, width - 6),
                     from + 3, y + this.engineHeight / 2);
  }

  piece(context, e, from, to, y) {
    const h = this.rowHeight, w = Math.max(1.5, to - from), gap = w > 5 ? 1 : 0;
    if (e.kind === "wait") {
      if (e.to - e.from > 1 || h < 8) {
        context.fillStyle = palette.wait;
        context.globalAlpha = 0.55;
        context.fillRect(from, y + 1, w - gap, h - 2);
        context.globalAlpha = 1;
      }
      context.fillStyle = palette.soft;  // where it ends
      context.fillRect(from + w - gap - 1.5, y + 1, 1.5, h - 2);
      return;
    }
    context.fillStyle = palette[e.kind];
    if (["signal", "exit", "exchange"].includes(e.kind)) {
      context.fillRect(from, y + h * 0.3, Math.min(w - gap, 14), Math.max(2, h * 0.4));
    } else {
      context.fillRect(from, y + 1, w - gap, h - 2);
    }
  }

  selection(context, x) {
    const { run, selected } = this.pane;
    const mark = (e, colour) => {
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.strokeRect(x(e.from), this.warpY(e.warp) + 1, Math.max(3, x(e.to) - x(e.from)),
                         this.rowHeight - 2);
      context.lineWidth = 1;
    };
    const fault = run.fault && run.events[run.fault.event];
    if (fault && fault.block === this.block) mark(fault, palette.bad);
    if (!selected || selected.block !== this.block) return;
    const meeting = run.meetings[selected.awaits];
    for (const part of meeting ? meeting[2].map((index) => run.events[index]) : []) {
      context.fillStyle = palette.ink;
      context.beginPath();
      context.arc(x(part.from) + 2, this.warpY(part.warp) + this.rowHeight / 2, 3, 0, 7);
      context.fill();
    }
    mark(selected, palette.ink);
  }

  eventAt(px, py) {
    if (!this.block || px < this.gutter) return null;
    const t = this.from + (px - this.gutter) / this.scale, near = 2 / this.scale;
    const engine = Math.floor((py - this.top) / this.engineHeight);
    const row = this.rows[Math.floor((py - this.warpsTop) / this.rowHeight)];
    let best = null;
    for (const e of this.blocks.flatMap((block) => block.events)) {
      if (py < this.warpsTop) {
        if (engine >= 0 && this.engineOf(e) === engine && e.from <= t && e.until >= t) best = e;
      } else if (row && e.warp === row[0] && e.from - near <= t && e.to + near > t) {
        if (!best || e.from <= t) best = e;
      }
    }
    return best;
  }
}
