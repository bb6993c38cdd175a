// Draws an array in HBM as a map; each row of the map stands for one or a few rows of the array. An
// array that is both read and written gets two maps: reads on the left, writes on the right.

class MemoryView extends View {
  constructor(pane, array, box) {
    const figure = document.createElement("figure");
    figure.innerHTML = `<figcaption><b>${array.name}</b> ` +
      `<span>${scaled(array.bytes, "B")}</span></figcaption><canvas role="img"></canvas>`;
    box.append(figure);
    super(pane, figure.lastChild);
    this.index = pane.run.arrays.indexOf(array);
  }

  /// Returns the maps to draw: "read" if the whole run reads the array, "write" if it writes it.
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
        // Darker means requested more often, relative to the most requested cell in all panes.
        const times = bytes[cell] / map.inCell;
        return mixed(side, !times ? 0 : when[cell] > now - glow ? 1 : 0.16 + 0.54 *
          Math.max(0, Math.log2(times)) / Math.max(1, Math.log2(explorer.most)));
      });
    });
    const [read, written] = [map.read, map.write].map(({ bytes }) =>
      exactly(bytes.reduce((sum, n) => sum + n, 0), "B"));
    this.label(`${map.array.name}, requested so far: ${read} read, ${written} written`);
  }
}
