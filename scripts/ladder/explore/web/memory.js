// An array of HBM as a map: a row is a row of the array, or a few. One that is read and written is
// drawn twice: left what is read, right what is written.

class MemoryView extends View {
  constructor(pane, array, box) {
    const figure = document.createElement("figure");
    figure.innerHTML = `<figcaption><b>${array.name}</b> ` +
      `<span>${scaled(array.bytes, "B")}</span></figcaption><canvas role="img"></canvas>`;
    box.append(figure);
    super(pane, figure.lastChild);
    this.index = pane.run.arrays.indexOf(array);
  }

  /// The sides that the whole run has.
  get sides() {
    const map = this.pane.final.maps[this.index];
    const used = ["read", "write"].filter((side) => map[side].bytes.some(Boolean));
    return used.length ? used : ["read"];
  }

  draw({ replay, now, glow }) {
    const map = replay.maps[this.index], { sides } = this;
    this.clear();
    const w = sides.length > 1 ? (this.width - 2) / 2 : this.width;
    sides.forEach((side, i) => {
      const { bytes, when } = map[side];
      this.picture(i * (w + 2), w, this.height, map.columns, map.rows, (cell) => {
        // The darker, the more often it was asked for, of as many times as any was.
        const times = bytes[cell] / map.inCell;
        return mixed(side, !times ? 0 : when[cell] > now - glow ? 1 : 0.16 + 0.54 *
          Math.max(0, Math.log2(times)) / Math.max(1, Math.log2(explorer.most)));
      });
    });
    const [read, written] = [map.read, map.write].map(({ bytes }) =>
      exactly(bytes.reduce((sum, n) => sum + n, 0), "B"));
    this.label(`${map.array.name}: ${read} read, ${written} written so far`);
  }
}
