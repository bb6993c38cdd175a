// HBM's arrays as maps, one canvas each: a row is a row of the array, or a few.

class MemoryView {
  constructor(pane, box) {
    this.pane = pane;
    this.figures = pane.run.arrays.map((array, index) => {
      const figure = document.createElement("figure");
      figure.innerHTML = `<figcaption><b>${array.name}</b> ` +
        `<span>${scaled(array.bytes, "B")}</span></figcaption><canvas></canvas>`;
      const canvas = figure.querySelector("canvas");
      canvas.setAttribute("role", "img");
      figure.classList.toggle("small", array.bytes < 4096);
      figure.style.flexGrow = array.bytes < 4096 ? 0.4 : 1;
      box.append(figure);
      hover(canvas, (x, y) => this.told(index, x / canvas.clientWidth, y / canvas.clientHeight));
      return canvas;
    });
  }

  /// An array that is read and written is drawn twice: left what is read, right what is written.
  setFinal(replay) {
    this.twice = replay.maps.map((map) => map.read.some(Boolean) && map.written.some(Boolean));
  }

  draw(replay, now, glow) {
    this.replay = replay;
    this.figures.forEach((canvas, index) => {
      const map = replay.maps[index], twice = this.twice[index];
      const { context, width, height } = sheet(canvas);
      const w = twice ? (width - 2) / 2 : width;
      const picture = (amount, when, name, x) => {
        const image = new Cells(map.columns, map.rows);
        amount.forEach((bytes, cell) => {
          const times = bytes / map.inRow[Math.floor(cell / map.columns)];
          image.put(cell, mixed(name, bytes <= 0 ? 0 : when[cell] > now - glow ? 1
            : strength(times, explorer.most)));
        });
        image.draw(context, x, 0, w, height);
      };
      const onlyWritten = !twice && map.written.some(Boolean);
      if (!onlyWritten) picture(map.read, map.readAt, "read", 0);
      if (twice || onlyWritten) picture(map.written, map.writtenAt, "write", width - w);
      const [read, written] = [map.read, map.written].map((cells) =>
        exactly(cells.reduce((sum, bytes) => sum + bytes, 0), "B"));
      canvas.setAttribute("aria-label",
                          `${map.array.name}: ${read} read, ${written} written so far`);
    });
  }

  told(index, x, y) {
    const map = this.replay.maps[index];
    if (this.twice[index]) x = x * 2 % 1;
    const row = Math.min(map.rows - 1, Math.floor(y * map.rows));
    const column = Math.min(map.columns - 1, Math.floor(x * map.columns));
    const cell = row * map.columns + column, size = map.inRow[row];
    const per = map.array.rows / map.rows, first = Math.floor(row * per);
    const rows = [first, Math.max(first, Math.ceil((row + 1) * per) - 1)];
    const times = (bytes) =>
      (bytes / size).toLocaleString("en", { maximumFractionDigits: 1 }) + "×";
    return `${map.array.name}, ${rowsInWords(map.array, rows)}: ` +
      `${scaled(size, "B")} here, read ${times(map.read[cell])}, ` +
      `written ${times(map.written[cell])}`;
  }
}
