// Starts the page and runs the clock that all panes share, and the controls that move it.

// Each key's name on the page, meaning, and action, which gets the explorer and whether Shift is
// held. A button performs the action of the key in its data-key.
const KEYS = [
  ["space", "play or pause", { " ": (x) => x.playing ? x.pause() : x.play() }],
  ["← →", "previous, next event; with Shift a twentieth of the run",
   { ArrowLeft: (x, far) => x.go(-1, far), ArrowRight: (x, far) => x.go(1, far) }],
  ["Home End", "to the start, to the end",
   { Home: (x) => x.pause().seek(0), End: (x) => x.pause().seek(x.last) }],
  ["1 2", "use the left, the right step for E",
   { 1: (x) => x.show({ shown: 0 }), 2: (x) => x.show({ shown: x.panes.length - 1 }) }],
  ["E", "select the next warp's current event", { e: (x) => x.panes[x.shown].chooseNext() }],
  ["Esc", "clear the selection", { Escape: (x) => x.chooseNone() }],
  ["?", "show or hide this help", { "?": () => { $("help").open = !$("help").open; } }],
];
const ACTIONS = Object.assign({}, ...KEYS.map(([, , action]) => action));

const explorer = {
  // `now` is the current tick, with a fraction while playing; E acts on the pane number `shown`.
  panes: [], now: 0, playing: false, shown: 0,

  async start() {
    this.panes = (await unpack($("data"))).map((data) => new Pane(new Run(data)));
    this.last = Math.max(1, most(this.panes, (pane) => pane.run.last));
    this.most = most(this.panes, (pane) => pane.most);
    $("scrubber").max = this.last;
    $("panes").replaceChildren(...this.panes.map((pane) => pane.element));
    this.fillHelp();
    this.ask(this.panes.find(({ run }) => run.asked)?.run);
    this.listen();
    this.fromFragment();
    document.documentElement.dataset.ready = "yes";
  },

  /// Asks the lesson's question about this run, if it has one, before the counters are shown.
  ask(run) {
    if (!run) return;
    const form = $("question"), [text, fields, said] = form.children, { asked } = run;
    form.hidden = false;
    text.textContent = "Before you press play: " + asked.lesson;
    fields.innerHTML = `<b>In ${run.title}</b> ` + asked.parts.map(([what]) =>
      `<label>${what} <input type="number" min="0" step="any"> times</label> `).join("") +
      `<button aria-label="Show the counters">Show the counters</button>`;
    document.body.classList.add("asking");
    form.onsubmit = (event) => {
      event.preventDefault();
      const given = [...fields.querySelectorAll("input")].map(({ value }) => value);
      said.textContent = `In ${run.title} ` + asked.parts.map(([what, right], i) =>
        `${what} ${exactly(right)} times` + (given[i] && (Number(given[i]) === right
          ? ", as you answered" : ` (you answered ${given[i]})`))).join("; ") + ". " + asked.answer;
      document.body.classList.remove("asking");
      fields.hidden = true;
      this.redraw();
    };
  },

  seek(now) {
    this.show({ now: clamp(now, 0, this.last) });
  },
  /// Moves to where the next (by = 1) or previous (by = -1) event begins; with `far`, moves by a
  /// twentieth of the run.
  go(by, far) {
    if (far) return this.seek(this.now + by * this.last / 20);
    this.pause();
    // Times −by, so that in both directions the nearest event has the largest number below now.
    const moments = this.panes.flatMap(({ run }) => run.events.map((e) => -by * e.begin));
    this.seek(-by * most(moments.filter((t) => t < -by * this.now), (t) => t));
  },

  play() {
    if (this.now >= this.last) this.now = 0;
    this.playing = true;
    this.chooseNone();
    let before = performance.now();
    const frame = (time) => {
      if (!this.playing) return;
      // Plays the whole run in half a minute, or at 40 ticks per second if that is slower.
      const rate = Math.min(this.last / 30, 40);
      this.now += rate * (time - before) / 1000;
      before = time;
      if (this.now >= this.last) return this.pause().seek(this.last);
      this.redraw();
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  },
  pause() { return this.show({ playing: false }); },

  show(state) {
    Object.assign(this, state);
    this.redraw();
    return this;
  },
  chooseNone() {
    for (const pane of this.panes) pane.choose(null);
  },
  redraw() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = null;
      this.draw();
    });
  },
  draw() {
    const now = Math.floor(this.now);
    for (const pane of this.panes) pane.draw(now);
    const moment = `tick ${exactly(now)}`;
    $("moment").textContent = `${moment} of ${exactly(this.last)}`;
    Object.assign($("scrubber"), { value: this.now, ariaValueText: moment });
    $("play").ariaLabel = this.playing ? "Pause" : "Play";
    $("play").querySelector("path").setAttribute("d", this.playing
      ? "M3 2h4v12H3zM9 2h4v12H9z" : "M4 2v12l9-6z");
    clearTimeout(this.settling);
    this.settling = this.playing ? null : setTimeout(() => this.settle(), 300);
  },

  /// Writes the clock's tick and the selection into the page's address, once the clock stops.
  settle() {
    this.settling = null;
    const parts = { t: Math.round(this.now) };
    this.panes.forEach((pane, i) => {
      if (pane.selected) parts["event" + (i + 1)] = pane.selected.index;
    });
    history.replaceState(null, "", "#" + new URLSearchParams(parts));
  },
  /// Restores what settle() wrote. By default the clock is at the fault, if any, or at tick 0.
  fromFragment() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const number = (name, otherwise) => Number(parts.get(name) ?? otherwise);
    const faulty = this.panes.findIndex((pane) => pane.run.fault);
    this.now = number("t", faulty < 0 ? 0 : this.panes[faulty].faultAt());
    this.shown = Math.max(faulty, 0);
    this.panes.forEach((pane, i) => {
      pane.selected = pane.run.events[number("event" + (i + 1), -1)] || null;
    });
    this.seek(this.now);
  },

  listen() {
    addEventListener("keydown", (event) => {
      const action = ACTIONS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.matches("button, summary") && event.key === " ") return;
      if (event.target.matches("[type=number]") && event.key !== "Escape") return;
      event.preventDefault();
      action(this, event.shiftKey);
    });
    addEventListener("click", ({ target }) => {
      const button = target.closest("[data-key]");
      if (button) ACTIONS[button.dataset.key](this);
    });
    $("scrubber").oninput = (event) => this.pause().seek(Number(event.target.value));
    readPalette();
    DARK.onchange = () => { readPalette(); this.redraw(); };
    new ResizeObserver(() => this.redraw()).observe($("panes"));
    addEventListener("hashchange", () => this.fromFragment());
  },
  fillHelp() {
    const kinds = { copy: "copies to shared memory", read: "global reads", write: "global writes",
                    shared: "shared memory", product: "matrix products", softmax: "exponentials",
                    arithmetic: "other arithmetic", exchange: "lane exchanges", signal: "signals",
                    wait: "waits" };
    const tiles = { product: "S: computed", ink: "S: being computed",
                    softmax: "S: computed, then masked", line: "S, hatched: skipped" };
    const swatches = (all) => Object.entries(all).map((one) => swatch(...one));
    $("legend").innerHTML = swatches(kinds).join("");
    $("keys").innerHTML =
      [...KEYS.map(([key, what]) => `<kbd>${key}</kbd> ${what}`), ...swatches(kinds),
       ...swatches(tiles)].map((one) => `<p>${one}</p>`).join("");
  },
};

explorer.start().catch((error) => {
  $("panes").textContent = "The trace in this page cannot be shown: " + error;
  console.error(error);
});
