// A block's shared memory: its arrays by name, in each the stages that are there and the rows that
// they hold.

class SharedView extends View {
  words(text) { return text; }

  draw({ block, now }) {
    this.clear();
    const taken = block ? block.launch.shared : [];
    const regions = taken.length ? sharedContents(block, now) : [];
    const gap = regions.length > 6 ? 1 : 3;
    const h = Math.min(32, (this.height + gap) / regions.length - gap);
    regions.forEach((region, i) => this.strip(region, 74, i * (h + gap), this.width - 74, h));
    const all = taken.reduce((sum, [, , bytes]) => sum + bytes, 0);
    const others = taken.filter((one) => !block.arrays.includes(one)).map(([name]) => name);
    this.say(!all ? "none" : `${scaled(all, "B")} of block ${block.number}` +
      (others.length ? `, with ${others.join(", ")}` : ""));
    this.canvas.ariaLabel = "Shared memory. " + (regions.map((region) => `${region.name}: ` +
      (segmentsOf(region).map((segment) => this.rows(segment)).join(", ") || "nothing yet"))
      .join("; ") || "None");
  }

  strip(region, x, y, width, height) {
    const scale = width / region.bytes;
    this.write(region.name, 0, y + height / 2, x - 6, "soft");
    this.bar(`${region.name}: ${exactly(region.bytes, "B")}`, "faint", x, y, width, height);
    for (const segment of segmentsOf(region)) {
      const begin = segment.first * CELL;
      const end = Math.min((segment.last + 1) * CELL, region.bytes);
      const from = x + begin * scale, size = (end - begin) * scale - 1;
      const colour = segment.name ? "copy" : "shared";
      for (let at = 0; segment.underWay && at < size; at += 4) {
        this.box(colour, from + at, y, 1, height, 0.5);
      }
      this.bar(`${region.name}, bytes ${exactly(begin)} to ${exactly(end - 1)}: ` +
               this.rows(segment) + (segment.underWay ? ", on its way" : ""),
               colour, from, y, size, height, segment.underWay ? 0.18 : 0.5, this.rows(segment));
    }
    if (region.reading) {
      const [begin, end] = region.reading;
      this.frame("now", x + begin * scale + 1, y + 1,
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
      last.row = hull(last.row, cell.row);
    } else {
      segments.push({ ...cell, first: i, last: i });
    }
  });
  return segments;
}
