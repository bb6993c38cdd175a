// Drawing: canvases that are sharp at any pixel density, and the page's colours for them.

const $ = (id) => document.getElementById(id);
/// A colour of the page, and what it stands for.
const swatch = (colour, words, opacity = 1) => `<span class="legend">` +
  `<i style="background: var(--${colour}); opacity: ${opacity}"></i>${words}</span>`;

const palette = {}, rgb = {};  // as CSS says it; red, green and blue
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const property of document.styleSheets[0].cssRules[0].style) {
    if (!property.startsWith("--")) continue;
    const name = property.slice(2), colour = style.getPropertyValue(property).trim();
    palette[name] = colour;
    rgb[name] = [1, 3, 5].map((k) => parseInt(colour.slice(k, k + 2), 16));
  }
}
/// The parts of a colour over that of what is empty.
function mixed(name, opacity) {
  return rgb[name].map((part, k) => part * opacity + rgb.faint[k] * (1 - opacity));
}

/// A context whose unit is a CSS pixel, cleared, with the canvas's size in those.
function sheet(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  return { context, width, height };
}

/// A canvas of a pane, maybe with a note in its title; told(x, y) says what is at a place of it.
class View {
  constructor(pane, canvas, note) {
    Object.assign(this, { pane, canvas, note });
    canvas.addEventListener("pointermove", (event) =>
      tell(this.told(event.offsetX, event.offsetY), event.clientX, event.clientY));
    canvas.addEventListener("pointerleave", () => tell(""));
  }
  set label(words) { this.canvas.setAttribute("aria-label", words); }
  get label() { return this.canvas.getAttribute("aria-label"); }
}

/// Shows a text at a place of the window, if there is one to show.
function tell(words, x, y) {
  const tip = $("tip");
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - width - 4)) + "px";
  tip.style.top = (y + 16 + height > innerHeight ? y - height - 10 : y + 16) + "px";
}
/// Where the keyboard comes to a view, what it shows in words.
function tellAtFocus(element, ...views) {
  element.tabIndex = 0;
  element.addEventListener("focus", () => {
    if (!element.matches(":focus-visible")) return;
    const box = element.getBoundingClientRect();
    tell(views.map((view) => view.label).join(". "), box.left, box.bottom - 16);
  });
  element.addEventListener("blur", () => tell(""));
}

/// A picture of a pixel a cell, to be drawn at any size without seams.
class Cells {
  constructor(columns, rows) {
    this.canvas = new OffscreenCanvas(columns, rows);
    this.context = this.canvas.getContext("2d");
    this.image = this.context.createImageData(columns, rows);
  }
  put(cell, colour) {
    this.image.data.set(colour, 4 * cell);
    this.image.data[4 * cell + 3] = 255;
  }
  draw(context, x, y, width, height) {
    this.context.putImageData(this.image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.canvas, x, y, width, height);
  }
}

function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -height; at < width; at += 5) {
    context.moveTo(x + at, y + height);
    context.lineTo(x + at + height, y);
  }
  context.stroke();
  context.restore();
}

/// How strongly a cell is coloured that was asked for so many times, of at most so many.
function strength(times, most) {
  if (times <= 0) return 0;
  const steps = Math.max(1, Math.log2(Math.max(most, 2)));
  return 0.16 + 0.54 * Math.min(1, Math.max(0, Math.log2(Math.max(times, 1))) / steps);
}

function textThatFits(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  for (let n = text.length - 1; n > 0; --n) {
    const cut = text.slice(0, n) + "…";
    if (context.measureText(cut).width <= width) return cut;
  }
  return "";
}
