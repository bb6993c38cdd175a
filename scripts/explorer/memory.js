// HBM's arrays as maps, one canvas each: a row is a row of the array, or a few.

class MemoryView {
  constructor(pane, box) {
    this.pane = pane;
    this.figures = pane.run.arrays.map((array, index) => {
      const figure = document.createElement("figure");
      figure.innerHTML = "<figcaption></figcaption><canvas tabindex='-1'></canvas>";
      const canvas = figure.querySelector("canvas");
      figure.querySelector("figcaption").innerHTML = `<b></b> <span>${scaled(array.bytes, "B")}</span>`;
      figure.querySelector("b").textContent = array.name;
      canvas.setAttribute("role", "img");
      figure.classList.toggle("small", array.bytes < 4096);
      figure.style.flexGrow = array.bytes < 4096 ? 0.4 : 1;
      box.append(figure);
      hover(canvas, (x, y) => this.told(index, x / canvas.clientWidth, y / canvas.clientHeight));
      return canvas;
    });
  }

  draw(replay, now, glow) {
    this.replay = replay;
    this.figures.forEach((canvas, index) => {
      const map = replay.maps[index];
      // Two pixels a cell: left what was read, right what was written.
      const image = new Cells(2 * map.columns, map.rows);
      const colour = (times, when, name) => times <= 0 ? null
        : [name, when > now - glow ? 1 : strength(times, explorer.most)];
      for (let cell = 0; cell < map.rows * map.columns; ++cell) {
        const size = map.inRow[Math.floor(cell / map.columns)];
        const read = colour(map.read[cell] / size, map.readAt[cell], "read");
        const written = colour(map.written[cell] / size, map.writtenAt[cell], "write");
        image.put(2 * cell, ...(read || written || ["faint", 1]));
        image.put(2 * cell + 1, ...(written || read || ["faint", 1]));
      }
      const { context, width, height } = sheet(canvas);
      image.draw(context, 0, 0, width, height);
      let read = 0, written = 0;
      for (const bytes of map.read) read += bytes;
      for (const bytes of map.written) written += bytes;
      canvas.setAttribute("aria-label", `${map.array.name}: ${exactly(read, "B")} read, ` +
        `${exactly(written, "B")} written so far`);
    });
  }

  told(index, x, y) {
    const map = this.replay.maps[index];
    const row = Math.min(map.rows - 1, Math.floor(y * map.rows));
    const column = Math.min(map.columns - 1, Math.floor(x * map.columns));
    const cell = row * map.columns + column, size = map.inRow[row];
    const per = map.array.rows / map.rows, first = Math.floor(row * per);
    const last = Math.max(first, Math.ceil((row + 1) * per) - 1);
    const times = (bytes) => `${(bytes / size).toLocaleString("en", { maximumFractionDigits: 1 })}×`;
    return `${map.array.name}, ${first === last ? "row " + first : `rows ${first} to ${last}`}: ` +
      `${scaled(size, "B")} here, read ${times(map.read[cell])}, written ${times(map.written[cell])}`;
  }
}
