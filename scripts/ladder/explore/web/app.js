// The clock that all panes share, and what moves it.

// Keys: as they are shown, what they do, and how: of explorer, and whether shift is held.
const KEYS = [
  ["space", "play, pause", { " ": (x) => x.playing ? x.pause() : x.play() }],
  ["← →", "one step back, on; with shift a twentieth",
   { ArrowLeft: (x, far) => x.go(-1, far), ArrowRight: (x, far) => x.go(1, far) }],
  ["Home End", "to the start, the end", { Home: (x) => x.seek(0), End: (x) => x.seek(x.last) }],
  ["W S", "zoom the warps in, out", { w: (x) => x.zoom(0.8), s: (x) => x.zoom(1.25) }],
  ["A D", "pan them", { a: (x) => x.panTo(x.pan - x.span / 8),
                        d: (x) => x.panTo(x.pan + x.span / 8) }],
  ["T", "light, dark", { t: (x) => x.otherTheme() }],
  ["C", "order, model's time", { c: (x) => x.otherClock() }],
  ["B", "the next SM; with shift the one before",
   { b: (x, back) => x.panes[x.shown].stepSm(back ? -1 : 1) }],
  ["G", "each warp of a warpgroup", { g: (x) => x.showEach() }],
  ["1 2", "left, right step, for B and E",
   { 1: (x) => x.show(0), 2: (x) => x.show(x.panes.length - 1) }],
  ["E", "choose the next event at work", { e: (x) => x.panes[x.shown].chooseNext() }],
  ["Esc", "choose none", { Escape: (x) => x.chooseNone() }],
  ["?", "this", { "?": (x) => x.toggleHelp() }],
];

const explorer = {
  panes: [], now: 0, first: 0, last: 1, clock: "order", sms: 4, span: 60, pan: 0, playing: false,
  speed: 1, shown: 0, most: 1, each: false,

  async start() {
    readPalette();
    const data = await unpack(document.getElementById("data"));
    const main = document.getElementById("panes");
    this.panes = data.map((one) => new Pane(new Run(one)));
    main.replaceChildren(...this.panes.map((pane) => pane.element));
    for (const pane of this.panes) pane.start();
    this.controls();
    this.listen();
    this.fromFragment();
    new ResizeObserver(() => this.redraw()).observe(main);
    addEventListener("hashchange", () => this.fromFragment());
    document.documentElement.dataset.ready = "yes";
  },

  // ---- the moment ----

  seek(now, quiet) {
    this.now = clamp(now, this.first, this.last);
    this.redraw();
    if (!quiet) this.announceSoon();
  },
  /// To the next moment, or the one before, at which something begins.
  step(by) {
    this.pause();
    let next = by > 0 ? this.last : this.first;
    for (const { run: { begins } } of this.panes) {
      const at = countUpTo(begins, this.now);
      if (by > 0 && at < begins.length) next = Math.min(next, begins[at]);
      let k = at - 1;
      while (k >= 0 && begins[k] >= this.now) --k;
      if (by < 0 && k >= 0) next = Math.max(next, begins[k]);
    }
    this.seek(next);
  },
  setSpan(span) {
    this.span = clamp(span, 8, this.last - this.first);
    this.panTo(this.pan);
  },
  zoom(by) { this.setSpan(this.span * by); },
  /// By how much the window is ahead of the moment, no further than there is something.
  panTo(pan) {
    const least = this.first - this.now + this.span * 0.6;
    const most = this.last - this.now - this.span * 0.4;
    this.pan = pan > 0 ? Math.min(pan, Math.max(0, most)) : Math.max(pan, Math.min(0, least));
    this.redraw();
  },

  useClock(name, sms) {
    const share = this.now / this.last;
    this.clock = name;
    this.sms = sms;
    for (const pane of this.panes) pane.schedule();
    this.first = least(this.panes, (pane) => pane.run.first);
    this.last = most(this.panes, (pane) => pane.run.last);
    this.most = most(this.panes, (pane) => pane.most);
    this.pan = 0;
    this.now = Math.round(share * this.last);
    this.setSpan(name === "model" ? this.last / 2 : 48);
    const scrubber = document.getElementById("scrubber");
    scrubber.min = this.first;
    scrubber.max = this.last;
    document.getElementById("clock").value = name;
    document.getElementById("sms").value = sms;
    document.getElementById("clock-note").textContent = "Clock: " + (name === "model"
      ? "cycles of the figures' model, not measured; kernels unknown to it take no time. "
      : "the order of the trace, not time. A warp's event is one tick, a wait lasts until what it " +
        "waits for is there. ") + "An SM takes one block after the other." +
      (this.first < 0 ? " Before 0 kernels set things up." : "");
    this.legends();
  },
  showEach() {
    this.each = !this.each;
    for (const button of document.querySelectorAll(".each")) {
      button.setAttribute("aria-pressed", this.each);
    }
    this.redraw();
  },

  // ---- playing ----

  play() {
    if (this.playing) return;
    if (this.now >= this.last) this.now = 0;
    this.playing = true;
    this.chooseNone();
    this.button();
    let before = performance.now(), shown = before;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const frame = (time) => {
      if (!this.playing) return;
      // The whole in half a minute, and no faster than can be followed.
      const rate = Math.min(this.last / 30, this.clock === "order" ? 40 : Infinity) * this.speed;
      this.now = Math.min(this.last, this.now + rate * (time - before) / 1000);
      before = time;
      if (!calm || time - shown > 500) shown = time, this.redraw();
      if (this.now >= this.last) { this.redraw(); this.pause(); }
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  },
  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.button();
    this.announceSoon();
  },
  button() {
    const play = document.getElementById("play");
    play.querySelector("path").setAttribute("d", this.playing
      ? "M3 2h4v12H3zM9 2h4v12H9z" : "M4 2v12l9-6z");
    play.setAttribute("aria-label", this.playing ? "Pause" : "Play");
  },

  // ---- drawing ----

  redraw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      this.draw();
    });
  },
  shownNow() { return this.clock === "order" ? Math.floor(this.now) : this.now; },
  draw() {
    const now = this.shownNow();
    const narrow = matchMedia("(max-width: 900px)").matches;
    this.panes.forEach((pane, i) => {
      pane.element.classList.toggle("shown", i === this.shown);
      if (!narrow || i === this.shown) pane.draw(now);
    });
    document.getElementById("scrubber").value = this.now;
    const unit = this.clock === "model" ? "model cycle" : "tick";
    document.getElementById("moment").textContent =
      `${unit} ${exactly(now)} of ${exactly(this.last)}`;
    document.getElementById("scrubber").setAttribute("aria-valuetext", `${unit} ${exactly(now)}`);
    this.fragmentSoon();
  },
  legends() {
    const swatch = (colour, opacity, words = "") =>
      `<i style="background: var(--${colour}); opacity: ${opacity}"></i>${words}`;
    for (const pane of this.panes) {
      pane.find(".legend").innerHTML = swatch("read", 0.16, "1× to ") +
        swatch("read", 0.7, `${exactly(this.most)}× read `) + swatch("write", 0.5, "written ") +
        swatch("read", 1) + swatch("write", 1, "now");
    }
  },

  /// What is told to those who do not see it: where the clock comes to rest.
  announceSoon() {
    clearTimeout(this.announcing);
    this.announcing = setTimeout(() => {
      document.getElementById("live").textContent =
        this.panes.map((pane) => `${pane.run.title}: ${pane.told || ""}`).join(" ");
    }, 400);
  },

  // ---- the address ----

  fragmentSoon() {
    if (this.writing || this.playing) return;
    this.writing = setTimeout(() => {
      this.writing = null;
      const parts = { t: Math.round(this.now), clock: this.clock, sms: this.sms,
                      span: Math.round(this.span) };
      if (this.pan) parts.pan = Math.round(this.pan);
      if (this.shown) parts.pane = this.shown + 1;
      this.panes.forEach((pane, i) => {
        if (pane.selected) parts["event" + (i + 1)] = pane.selected.index;
        if (pane.sm) parts["sm" + (i + 1)] = pane.sm;
      });
      this.written = "#" + new URLSearchParams(parts);
      if (this.written !== location.hash) history.replaceState(null, "", this.written);
    }, 250);
  },
  fromFragment() {
    if (location.hash && location.hash === this.written) return;
    const parts = new URLSearchParams(location.hash.slice(1));
    const number = (name, otherwise) => Number.isFinite(parseFloat(parts.get(name)))
      ? parseFloat(parts.get(name)) : otherwise;
    const faulty = this.panes.findIndex((pane) => pane.run.fault);
    this.useClock(parts.get("clock") === "model" && this.hasModel() ? "model" : "order",
                  document.querySelector(`#sms [value="${number("sms")}"]`) ? number("sms") : 4);
    if (parts.has("span")) this.setSpan(number("span", this.span));
    this.pan = number("pan", 0);
    this.show(clamp(number("pane", Math.max(faulty, 0) + 1), 1, this.panes.length) - 1);
    this.panes.forEach((pane, i) => {
      pane.selected = pane.run.events[number("event" + (i + 1), -1)] || null;
      const sm = pane.selected ? pane.selected.block.sm : number("sm" + (i + 1), 0);
      pane.sm = clamp(sm, 0, pane.run.lanes - 1);
    });
    this.seek(number("t", faulty < 0 ? 0 : this.panes[faulty].faultAt()), true);
  },
  hasModel() { return this.panes.every((pane) => pane.run.model); },

  // ---- controls ----

  show(index) {
    this.shown = index;
    [...document.getElementById("tabs").children].forEach((tab, i) =>
      tab.setAttribute("aria-pressed", i === index));
    this.redraw();
  },

  controls() {
    const on = (id, event, f) => document.getElementById(id).addEventListener(event, f);
    on("play", "click", () => this.playing ? this.pause() : this.play());
    on("back", "click", () => this.step(-1));
    on("forward", "click", () => this.step(1));
    on("to-start", "click", () => { this.pause(); this.seek(0); });
    on("to-end", "click", () => { this.pause(); this.seek(this.last); });
    on("scrubber", "input", (event) => { this.pause(); this.seek(Number(event.target.value)); });
    on("speed", "change", (event) => { this.speed = Number(event.target.value); });
    on("clock", "change", (event) => this.useClock(event.target.value, this.sms));
    on("sms", "change", (event) => this.useClock(this.clock, Number(event.target.value)));
    on("theme", "click", () => this.otherTheme());
    on("help-button", "click", () => this.toggleHelp());
    const dark = matchMedia("(prefers-color-scheme: dark)");
    this.useTheme(dark.matches ? "dark" : "light");
    dark.addEventListener("change", () => this.useTheme(dark.matches ? "dark" : "light"));
    document.getElementById("clock-choice").hidden = !this.hasModel();
    const tabs = document.getElementById("tabs");
    tabs.innerHTML = this.panes.map((pane) => `<button>${pane.run.title}</button>`).join("");
    [...tabs.children].forEach((tab, i) => { tab.onclick = () => this.show(i); });
    this.fillHelp();
  },

  otherTheme() {
    this.useTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  },
  otherClock() {
    if (this.hasModel()) this.useClock(this.clock === "model" ? "order" : "model", this.sms);
  },
  useTheme(name) {
    document.documentElement.dataset.theme = name;
    readPalette();
    this.redraw();
  },

  listen() {
    const actions = Object.assign({}, ...KEYS.map(([, , action]) => action));
    addEventListener("keydown", (event) => {
      const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.matches("button") && event.key === " ") return;
      if (event.target.matches("select") && event.key !== "Escape") return;
      event.preventDefault();
      action(this, event.shiftKey);
    });
  },
  go(by, far) {
    if (far) this.seek(this.now + by * this.last / 20);
    else this.step(by);
  },
  chooseNone() {
    this.panes.forEach((pane) => { pane.selected = null; });
    this.redraw();
  },

  fillHelp() {
    const kinds = { copy: "copies HBM to shared memory", read: "reads HBM", write: "writes HBM",
                    shared: "shared memory", product: "multiplies", softmax: "exponentials",
                    arithmetic: "other arithmetic", exchange: "lanes exchange", signal: "arrives",
                    wait: "waits" };
    const tiles = { product: "S: made", ink: "S: at work", softmax: "S: made, then masked",
                    line: "S, hatched: skipped" };
    const swatches = (all) => Object.entries(all).map(([kind, what]) =>
      `<span class="legend"><i style="background: var(--${kind})"></i>${what}</span>`);
    document.getElementById("legend").innerHTML = swatches(kinds).join("");
    document.getElementById("help").innerHTML =
      [...KEYS.map(([key, what]) => `<kbd>${key}</kbd> ${what}`), ...swatches(kinds),
       ...swatches(tiles)].map((one) => `<p>${one}</p>`).join("");
  },
  toggleHelp() {
    const help = document.getElementById("help");
    help.hidden = !help.hidden;
    document.getElementById("help-button").setAttribute("aria-expanded", !help.hidden);
    this.redraw();
  },
};

/// Shows a text at a place of the window, if there is one to show.
function tell(words, x, y) {
  const tip = document.getElementById("tip");
  tip.hidden = !words;
  if (!words) return;
  tip.textContent = words;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - width - 4)) + "px";
  tip.style.top = (y + 16 + height > innerHeight ? y - height - 10 : y + 16) + "px";
}
/// By the pointer.
function hover(canvas, text) {
  canvas.addEventListener("pointermove", (event) =>
    tell(text(event.offsetX, event.offsetY), event.clientX, event.clientY));
  canvas.addEventListener("pointerleave", () => tell(""));
}
/// Where the keyboard comes to a view, what it shows in words.
function tellAtFocus(element, text) {
  element.tabIndex = 0;
  element.addEventListener("focus", () => {
    if (!element.matches(":focus-visible")) return;
    const box = element.getBoundingClientRect();
    tell(text(), box.left, box.bottom - 16);
  });
  element.addEventListener("blur", () => tell(""));
}

explorer.start().catch((error) => {
  document.getElementById("panes").textContent = "The trace in this page cannot be shown: " + error;
  console.error(error);
});
