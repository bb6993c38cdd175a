// A block's shared memory: its arrays by name, in each the stages that are there and the rows that
// they hold.

class SharedView extends View {
  words(text) { return text; }

  draw({ block, now }) {
    const { context, width, height } = sheet(this.canvas);
    this.hits = [];
    const taken = block ? block.launch.shared : [];
    if (!taken.length) {
      this.say(block ? "this kernel uses none" : "");
      this.label = "Shared memory: none";
      return;
    }
    const all = taken.reduce((sum, [, , bytes]) => sum + bytes, 0);
    const regions = sharedContents(block, now), label = 74, gap = regions.length > 6 ? 1 : 3;
    const h = Math.min(32, (height + gap) / regions.length - gap);
    regions.forEach((region, i) =>
      this.strip(context, region, label, i * (h + gap), width - label, h));
    const others = taken.filter((one) => !block.arrays.includes(one)).map(([name]) => name);
    this.say(`${scaled(all, "B")} of block ${block.number}` +
      (others.length ? `, with ${others.join(", ")}` : ""));
    const words = regions.map((r) => `${r.name}: ` +
      (segmentsOf(r).map((s) => this.rows(s)).join(", ") || "nothing yet"));
    this.label = "Shared memory. " + words.join("; ");
  }

  strip(context, region, x, y, width, height) {
    const scale = width / region.bytes;
    write(context, region.name, 0, y + height / 2, x - 6, palette.soft);
    box(context, palette.faint, x, y, width, height);
    this.hit(`${region.name}: ${exactly(region.bytes, "B")}`, 0, y, x, height);
    for (const segment of segmentsOf(region)) {
      const begin = segment.first * CELL;
      const end = Math.min((segment.last + 1) * CELL, region.bytes);
      const from = x + begin * scale, size = (end - begin) * scale;
      const colour = segment.name ? palette.copy : palette.shared;
      box(context, colour, from, y, size - 1, height, segment.underWay ? 0.18 : 0.5);
      for (let at = 0; segment.underWay && at < size - 1; at += 4) {
        box(context, colour, from + at, y, 1, height, 0.5);
      }
      if (size > 24) write(context, this.rows(segment), from + 3, y + height / 2, size - 6);
      this.hit(`${region.name}, bytes ${exactly(begin)} to ${exactly(end - 1)}: ` +
               this.rows(segment) + (segment.underWay ? ", on its way" : ""),
               from, y, size, height);
    }
    if (region.reading) {
      const [begin, end] = region.reading;
      frame(context, palette.now, x + begin * scale + 1, y + 1,
            Math.max(3, (end - begin) * scale - 2), height - 2);
    }
  }

  rows({ name, row }) {
    return name ? `${name} ${range(row)}` : name === "" ? "zeros" : "computed";
  }
}

/// Neighbouring cells that were filled together: a stage.
function segmentsOf(region) {
  const segments = [];
  region.cells.forEach((cell, i) => {
    const last = segments.at(-1);
    if (!cell) return;
    if (last && last.last === i - 1 && last.name === cell.name &&
        last.underWay === cell.underWay && last.together === cell.together) {
      last.last = i;
      if (cell.name) last.row = hull(last.row, cell.row);
    } else {
      segments.push({ ...cell, first: i, last: i });
    }
  });
  return segments;
}
