// Drawing: canvases that are sharp at any pixel density, and the page's colours for them.

const $ = (id) => document.getElementById(id);
/// A colour of the page, and what it stands for.
const swatch = (colour, words, opacity = 1) => `<span class="legend">` +
  `<i style="background: var(--${colour}); opacity: ${opacity}"></i>${words}</span>`;

const DARK = matchMedia("(prefers-color-scheme: dark)");
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

/// A canvas of a pane, maybe with a note in its title. What is drawn for something is in `hits`, so
/// that told(x, y) can say what is at a place.
class View {
  hits = [];
  constructor(pane, canvas, note) {
    Object.assign(this, { pane, canvas, note });
    canvas.addEventListener("pointermove", (event) =>
      tell(this.told(event.offsetX, event.offsetY), event.clientX, event.clientY));
    canvas.addEventListener("pointerleave", () => tell(""));
  }
  hit(of, x, y, width, height) { this.hits.push({ of, x, y, width: Math.max(3, width), height }); }
  hitAt(px, py) {
    return this.hits.findLast(({ x, y, width, height }) =>
      px >= x && px < x + width && py >= y && py < y + height)?.of;
  }
  told(x, y) { return this.words(this.hitAt(x, y)); }
  say(words) { this.note.textContent = this.note.title = words; }
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

/// A picture of a pixel a cell, at any size without seams; colourOf(cell) is [red, green, blue].
function picture(context, x, width, height, columns, rows, colourOf) {
  const canvas = new OffscreenCanvas(columns, rows), own = canvas.getContext("2d");
  const image = own.createImageData(columns, rows);
  for (let cell = 0; cell < rows * columns; ++cell) {
    image.data.set([...colourOf(cell), 255], 4 * cell);
  }
  own.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(canvas, x, 0, width, height);
}

function box(context, colour, x, y, width, height, opacity = 1) {
  context.globalAlpha = opacity;
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
  context.globalAlpha = 1;
}
function frame(context, colour, x, y, width, height, line = 2) {
  context.strokeStyle = colour;
  context.lineWidth = line;
  context.strokeRect(x, y, width, height);
}
/// As much of a text as there is room for.
function write(context, text, x, y, width, colour = palette.ink) {
  const fits = (some) => context.measureText(some).width <= width;
  let shown = text;
  for (let n = text.length - 1; n > 0 && !fits(shown); --n) shown = text.slice(0, n) + "…";
  context.fillStyle = colour;
  if (fits(shown)) context.fillText(shown, x, y);
}
