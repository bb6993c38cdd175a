// Draws on canvases, sharp at any pixel density, in the page's colours.

const $ = (id) => document.getElementById(id);
/// Returns the HTML of a legend's entry: a patch of a colour of the palette, and its meaning.
const swatch = (colour, words, opacity = 1) => `<span class="legend">` +
  `<i style="background: var(--${colour}); opacity: ${opacity}"></i>${words}</span>`;

const DARK = matchMedia("(prefers-color-scheme: dark)");
const palette = {}, rgb = {};  // name → colour in CSS, and as [red, green, blue]
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const property of document.styleSheets[0].cssRules[0].style) {
    if (!property.startsWith("--")) continue;
    const name = property.slice(2), colour = style.getPropertyValue(property).trim();
    palette[name] = colour;
    rgb[name] = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
  }
}
/// Returns [red, green, blue] of a colour blended over an empty cell's; `opacity` is from 0 to 1.
function mixed(name, opacity) {
  return rgb[name].map((part, k) => part * opacity + rgb.faint[k] * (1 - opacity));
}

/// A canvas in a pane, with an optional note in its heading. Positions are in CSS pixels; colours
/// are names in the palette. `hits` lists the bars drawn, each with the event that it stands for.
class View {
  constructor(pane, canvas, note) {
    Object.assign(this, { pane, canvas, note, context: canvas.getContext("2d") });
  }
  say(words, title = words) { Object.assign(this.note, { textContent: words, title }); }
  /// Describes the drawing in words, for the tooltip and for screen readers.
  label(words) { this.canvas.title = this.canvas.ariaLabel = words; }

  clear() {
    const { canvas, context } = this, ratio = window.devicePixelRatio || 1;
    this.hits = [];
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.height * ratio);
    context.scale(ratio, ratio);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
  }
  box(colour, x, y, width, height, opacity = 1) {
    this.context.globalAlpha = opacity;
    this.context.fillStyle = palette[colour];
    this.context.fillRect(x, y, width, height);
    this.context.globalAlpha = 1;
  }
  frame(colour, x, y, width, height, line = 2) {
    this.context.strokeStyle = palette[colour];
    this.context.lineWidth = line;
    this.context.strokeRect(x, y, width, height);
  }
  widest(texts) { return most(texts, (text) => this.context.measureText(text).width); }
  /// Writes a text or, if only its first word fits into `width`, that word; else nothing.
  write(text, x, y, width, colour = "ink") {
    this.context.fillStyle = palette[colour];
    const shown = [text, text.split(" ")[0]].find((some) => this.widest([some]) <= width);
    this.context.fillText(shown || "", x, y);
  }
  /// Draws a box that stands for an event (`of`), with its name inside.
  bar(of, colour, x, y, width, height, opacity, name = "") {
    this.hits.push({ of, x, y, width: Math.max(3, width), height });
    if (opacity) this.box("card", x - 1, y, width + 1, height);  // hides what is below
    this.box(colour, x, y, width, height, opacity);
    const from = Math.max(x, this.left), until = Math.min(x + width, this.width);
    this.write(name, from + 3, y + height / 2, until - from - 6);
  }
  /// Draws cells, numbered row by row, without seams; colourOf(cell) returns [red, green, blue].
  picture(x, width, height, columns, rows, colourOf) {
    const canvas = new OffscreenCanvas(columns, rows), own = canvas.getContext("2d");
    const image = own.createImageData(columns, rows);
    for (let cell = 0; cell < rows * columns; ++cell) {
      image.data.set([...colourOf(cell), 255], 4 * cell);
    }
    own.putImageData(image, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(canvas, x, 0, width, height);
  }
}
