// The warps of a block and the engines beside them, a row each, around the moment that is shown.

const ENGINES = [["read", "cp.async"], ["tma_load", "TMA loads"],
                 ["bulk_load", "TMA loads"], ["tma_store", "TMA stores"],
                 ["bulk_add", "TMA additions"], ["wgmma", "tensor cores"]];

/// The rows of a block's engines, [what, array or null, label]: loads have one for each array.
function engineRows(run, block) {
  const rows = [];
  for (const [what, label] of ENGINES) {
    const started = block.events.filter((i) => run.what(i) === what && run.columns.lands[i] >= 0);
    if (LOADS.includes(what)) {
      const names = new Set(started.map((i) => run.name(i)));
      for (const name of names) rows.push([what, name, `TMA ${name}`]);
    } else if (started.length) {
      rows.push([what, null, label]);
    }
  }
  return rows;
}

class Timeline {
  constructor(pane, canvas) {
    this.pane = pane;
    this.canvas = canvas;
    this.pan = 0;  // of the window's middle from the moment
    hover(canvas, (x, y) => {
      const i = this.eventAt(x, y);
      return i < 0 ? "" : sentence(pane.run, i) + this.lasts(i);
    });
    this.listen();
  }

  lasts(i) {
    const clock = this.pane.clock, span = clock.to[i] - clock.from[i];
    return ` · ${exactly(clock.from[i])} to ${exactly(clock.to[i])} ` +
      (explorer.clock === "model" ? `(${exactly(span)} cycles of the model)` : "in the order");
  }

  listen() {
    let held = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      held = { x: event.offsetX, pan: this.pan, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      const by = event.offsetX - held.x;
      if (Math.abs(by) > 3) held.moved = true;
      if (held.moved) explorer.panTo(held.pan - by / this.scale);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (held && !held.moved) this.pane.select(this.eventAt(event.offsetX, event.offsetY));
      held = null;
    });
    this.canvas.addEventListener("pointercancel", () => { held = null; });
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      explorer.zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2);
    }, { passive: false });
  }

  layout(block, height) {
    const run = this.pane.run;
    block.engines ||= engineRows(run, block);
    this.engines = block.engines;
    // Engines' rows have words in them; warps share what is left.
    const top = 16, all = this.engines.length + block.warps;
    this.engineHeight = Math.max(12, Math.min(26, (height - top - 2) / all));
    this.top = top;
    this.warpsTop = top + this.engines.length * this.engineHeight;
    this.rowHeight = Math.max(3, Math.min(40, (height - this.warpsTop - 2) / block.warps));
  }
  warpY(warp) { return this.warpsTop + warp * this.rowHeight; }

  draw(block, now) {
    const { context, width, height } = sheet(this.canvas);
    this.block = block;
    this.canvas.setAttribute("aria-label", "Warps and engines" + (block
      ? ` of block ${block.block} of ${this.pane.run.launches[block.launch].kernel}` : ": none"));
    if (!block) return;
    const run = this.pane.run, clock = this.pane.clock;
    this.layout(block, height);
    const h = this.rowHeight;
    this.gutter = Math.min(92, width * 0.25);
    const middle = now + explorer.pan, from = middle - explorer.span * 0.6;
    this.from = from;
    this.scale = (width - this.gutter) / explorer.span;
    const x = (t) => this.gutter + (t - from) * this.scale;
    this.labels(context, block, width);
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, width - this.gutter, height);
    context.clip();
    this.axis(context, from, width, x);
    this.blocks = this.blocksAround(block, from);
    for (const other of this.blocks) {
      for (const i of other.events) {
        const begin = clock.from[i], end = clock.to[i], until = clock.until(i);
        if (Math.max(end, until) < from || begin > from + explorer.span) continue;
        const engine = this.engineOf(i);
        if (engine >= 0) this.flight(context, i, engine, x(begin), x(until));
        if (run.columns.warp[i] < block.warps) {
          this.piece(context, i, x(begin), x(end), this.warpY(run.columns.warp[i]), h);
        }
      }
      if (other === block) continue;
      const [first, last] = clock.spans.get(other.key);
      context.globalAlpha = 0.65;
      context.fillStyle = palette.card;
      context.fillRect(x(first), this.top, x(last) - x(first), height);
      context.globalAlpha = 1;
    }
    context.strokeStyle = palette.now;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x(now), 0);
    context.lineTo(x(now), height);
    context.stroke();
    context.lineWidth = 1;
    this.selection(context, x);
    if (from > clock.last) {
      context.fillStyle = palette.soft;
      context.fillText(`done at ${exactly(clock.last)}`, this.gutter + 8, this.warpsTop + 12);
    }
    context.restore();
  }

  /// The block and, where they come one after the other, its neighbours.
  blocksAround(block, from) {
    if (explorer.clock === "model") return [block];
    return [...this.pane.run.blocks.values()].filter((other) => {
      const [first, last] = this.pane.clock.spans.get(other.key);
      return last >= from && first <= from + explorer.span;
    });
  }

  labels(context, block, width) {
    const h = this.rowHeight, begin = this.warpsTop;
    context.fillStyle = palette.soft;
    const label = (name, y) =>
      context.fillText(textThatFits(context, name, this.gutter - 6), 0, y);
    this.engines.forEach(([, , name], i) => label(name, this.top + (i + 0.5) * this.engineHeight));
    const each = block.inGroups ? 4 : Math.max(1, Math.ceil(11 / h));
    for (let warp = 0; warp < block.warps; warp += each) {
      const name = block.inGroups ? `warpgroup ${warp / 4}` : `warp ${warp}`;
      const rows = block.inGroups ? 4 : 1;
      label(name, begin + (warp + rows / 2) * h);
    }
    context.strokeStyle = palette.line;
    context.beginPath();
    for (let warp = 0; warp <= block.warps; warp += block.inGroups ? 4 : 1) {
      const y = Math.round(begin + warp * h) + 0.5;
      if (h < 6 && !block.inGroups && warp % each) continue;
      context.moveTo(this.gutter, y);
      context.lineTo(width, y);
    }
    context.stroke();
  }

  axis(context, from, width, x) {
    const rough = explorer.span / 6, power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
    const step = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough) || power);
    context.fillStyle = palette.soft;
    context.strokeStyle = palette.faint;
    context.beginPath();
    for (let t = Math.ceil(Math.max(from, 0) / step) * step; t < from + explorer.span; t += step) {
      context.moveTo(x(t), 14);
      context.lineTo(x(t), 1e4);
      context.fillText(exactly(t), x(t) + 2, 7);
    }
    context.stroke();
  }

  engineOf(i) {
    const run = this.pane.run;
    return run.columns.lands[i] < 0 ? -1
      : this.engines.findIndex(([what, name]) =>
        what === run.what(i) && (name === null || name === run.name(i)));
  }

  flight(context, i, engine, from, to) {
    const what = this.engines[engine][0], y = this.top + engine * this.engineHeight;
    if (what === "read") {  // each warp's, one below the other
      const each = (this.engineHeight - 2) / this.block.warps;
      context.fillStyle = palette.copy;
      context.globalAlpha = 0.7;
      context.fillRect(from, y + 1 + this.pane.run.columns.warp[i] * each,
                       Math.max(1.5, to - from - 1), Math.max(1, each - 0.5));
      context.globalAlpha = 1;
      return;
    }
    context.globalAlpha = 0.75;
    context.fillStyle = what === "wgmma" ? palette.product
      : STORES.includes(what) ? palette.write : palette.copy;
    context.fillRect(from, y + 1, Math.max(1.5, to - from - 1), this.engineHeight - 2);
    context.globalAlpha = 1;
    const run = this.pane.run;
    if (to - from > 22) {
      const rows = run.rowsOf(i);
      const text = rows ? `${run.name(i)} ${rows[0]}–${rows[1]}` : run.name(i);
      context.fillStyle = palette.ink;
      context.fillText(textThatFits(context, text, to - from - 6), from + 3,
                       y + this.engineHeight / 2);
    }
  }

  piece(context, i, from, to, y, h) {
    const kind = this.pane.run.kind(i), w = Math.max(1.5, to - from);
    const gap = w > 5 ? 1 : 0;
    if (kind === "wait") {
      if (this.pane.clock.to[i] - this.pane.clock.from[i] > 1 || h < 8) {
        context.fillStyle = palette.wait;
        context.globalAlpha = 0.55;
        context.fillRect(from, y + 1, w - gap, h - 2);
        context.globalAlpha = 1;
      }
      context.fillStyle = palette.soft;  // where it ends
      context.fillRect(from + w - gap - 1.5, y + 1, 1.5, h - 2);
      return;
    }
    context.fillStyle = palette[kind];
    const thin = kind === "signal" || kind === "exit" || kind === "exchange";
    if (thin) context.fillRect(from, y + h * 0.3, Math.min(w - gap, 14), Math.max(2, h * 0.4));
    else context.fillRect(from, y + 1, w - gap, h - 2);
  }

  selection(context, x) {
    const run = this.pane.run, clock = this.pane.clock;
    const mark = (i, colour) => {
      const y = this.warpY(run.columns.warp[i]);
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.strokeRect(x(clock.from[i]), y + 1,
                         Math.max(3, x(clock.to[i]) - x(clock.from[i])), this.rowHeight - 2);
      context.lineWidth = 1;
    };
    const fault = run.fault;
    if (fault && fault.event >= 0 && run.place(fault.event) === this.block.key) {
      mark(fault.event, palette.bad);
    }
    const selected = this.pane.selected;
    if (selected < 0 || run.place(selected) !== this.block.key) return;
    const meeting = run.columns.meeting[selected];
    if (meeting >= 0) {
      for (const part of run.barriers[meeting][2]) {
        const y = this.warpY(run.columns.warp[part] + 0.5);
        context.fillStyle = palette.ink;
        context.beginPath();
        context.arc(x(clock.from[part]) + 2, y, 3, 0, 7);
        context.fill();
      }
    }
    mark(selected, palette.ink);
  }

  eventAt(px, py) {
    if (!this.block || px < this.gutter) return -1;
    const run = this.pane.run, clock = this.pane.clock;
    const t = this.from + (px - this.gutter) / this.scale, near = 2 / this.scale;
    const engine = py < this.warpsTop ? Math.floor((py - this.top) / this.engineHeight) : -1;
    const warp = Math.floor((py - this.warpsTop) / this.rowHeight);
    let best = -1;
    for (const i of this.blocks.flatMap((block) => block.events)) {
      if (py < this.warpsTop) {
        if (engine >= 0 && this.engineOf(i) === engine && clock.from[i] <= t &&
            clock.until(i) >= t) best = i;
      } else if (run.columns.warp[i] === warp &&
                 clock.from[i] - near <= t && Math.max(clock.to[i], clock.from[i]) + near > t) {
        if (best < 0 || clock.from[i] <= t) best = i;
      }
    }
    return best;
  }
}
