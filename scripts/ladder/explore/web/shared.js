// Draws a block's shared memory: a strip for each array, and in it the stages, each with its rows.

class SharedView extends View {
  draw({ block, now }) {
    this.clear();
    const taken = block?.launch.shared || [], used = taken.filter(([name]) =>
      block.events.some((e) => e.holds?.[name]));
    const gap = used.length > 6 ? 1 : 3;
    const h = Math.min(32, (this.height + gap) / used.length - gap);
    this.left = 8 + this.widest(used.map(([name]) => name));
    const begun = block?.events.filter((e) => e.begin <= now) || [];
    const words = used.map(([name, , bytes], i) => {
      const held = begun.findLast((e) => e.holds?.[name])?.holds[name] || [];
      const stages = held.map(([begin, end, array, first, last, filled]) => {
        const { until, lands } = this.pane.run.events[filled];
        return { begin, end: Math.min(end, bytes), array,
                 inFlight: until > now && lands !== undefined,
                 rows: array ? `${array} ${range([first, last])}`
                   : array === "" ? "zeros" : "computed" };
      });
      this.strip(name, bytes, stages, i * (h + gap), h);
      return `${name}: ` + (stages.map(({ rows, begin, end, inFlight }) =>
        `${rows} in bytes ${range([begin, end - 1])}${inFlight ? " (in flight)" : ""}`)
        .join(", ") || "nothing yet");
    });
    const all = taken.reduce((sum, [, , bytes]) => sum + bytes, 0);
    const others = taken.filter((one) => !used.includes(one)).map(([name]) => name);
    this.say(!all ? "none" : `${scaled(all, "B")} of block ${block.number}` +
      (others.length ? `, ${others.length} arrays not shown` : ""), others.join(", "));
    this.label("Shared memory" + (words.length ? ". " + words.join("; ") : ": none"));
  }

  strip(name, bytes, stages, y, height) {
    const { left } = this, width = this.width - left, x = (at) => left + at / bytes * width;
    this.write(name, 0, y + height / 2, left, "soft");
    this.bar(null, "faint", left, y, width, height);
    for (const { begin, end, array, rows, inFlight } of stages) {
      const colour = array ? "copy" : "shared", size = x(end) - x(begin) - 1;
      this.bar(null, colour, x(begin), y, size, height, inFlight ? 0.18 : 0.5, rows);
    }
  }
}
