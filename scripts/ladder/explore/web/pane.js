// Shows one step in several views, drawn at the current tick of the clock that all panes share.

// A counter's label, its unit, and the counts of the replay that it adds up.
const COUNTED = [["Requested bytes", "B", "requested_read_bytes", "requested_write_bytes"],
                 ["Distinct bytes", "B", "distinct_read_bytes", "distinct_write_bytes"],
                 ["Sectors", "", "hbm_read_sectors", "hbm_write_sectors"],
                 ["Matmul FLOPs", "", "matmul_flops"], ["Exponentials", "", "exp_count"]];

class Pane {
  constructor(run) {
    this.run = run;
    this.replay = new Replay(run);
    this.final = new Replay(run).seek(Infinity);
    this.most = Math.max(1, ...this.final.maps.map(({ read, write, inCell }) =>
      Math.max(...read.bytes, ...write.bytes) / inCell));
    this.selected = null;
    this.element = document.createElement("article");
    this.element.className = "pane";
    this.element.ariaLabel = run.title;
    this.element.innerHTML = `
      <div class="top"><h2>${run.title}</h2><span class="summary">${this.summary()}</span>
        <span class="verdict" role="status"></span></div>
      <div class="fault-note" role="alert" hidden></div>
      <dl class="counters">${COUNTED.map(([label]) =>
        `<div><dt>${label}</dt><dd></dd></div>`).join("")}</dl>
      <div class="view hbm"><h3>HBM <small class="legend">
          ${swatch("read", "1× to", 0.16)} ${swatch("read", "<span class='most'></span>", 0.7)}
          ${swatch("write", "written", 0.5)} ${swatch("read", "")} ${swatch("write", "now")}
        </small></h3><div class="maps" role="group" aria-label="Arrays in HBM"></div></div>
      <div class="middle">
        <div class="view scores"><h3>S <small></small></h3><canvas role="img"></canvas></div>
        <div class="view smem">
          <h3>Shared memory <small></small></h3><canvas role="img"></canvas></div></div>
      <div class="view timeline"><h3>Warps of ${run.title} <small></small></h3><div class="box"><canvas role="img"></canvas></div></div>
      <div class="event"></div>
      <div class="below view"><h3>Source <small></small></h3>
        <div class="source" tabindex="0" role="region" aria-label="Source"><ol></ol></div></div>`;
    this.find(".summary").title = run.command;
    this.find(".fault-note").hidden = !run.fault;
    this.find(".fault-note").textContent = run.fault?.message;
    this.maps = run.arrays.map((array) => new MemoryView(this, array, this.find(".maps")));
    this.views = [...this.maps];
    for (const [name, Kind] of [["scores", ScoresView], ["smem", SharedView],
                                ["timeline", Timeline]]) {
      this.views.push(this[name] = new Kind(this, this.find(`.${name} canvas`),
                                            this.find(`.${name} small`)));
    }
    this.source = new SourceView(this, this.find(".source"), this.find(".below small"));
  }

  find(selector) { return this.element.querySelector(selector); }

  /// Selects the current event of the next warp, or of the first warp after the last one.
  chooseNext() {
    const all = this.atWork.sort((a, b) => a.warp - b.warp);
    this.choose(all[(all.indexOf(this.selected) + 1) % all.length] || null);
  }
  choose(e) {
    this.selected = e;
    explorer.redraw();
  }

  summary() {
    const { head, plan } = this.run, heads = head.heads * head.batch;
    return [`N = ${head.seqlen}` + (head.seqlen_kv !== head.seqlen ? ` × ${head.seqlen_kv}` : ""),
            `d = ${head.head_dim}`, `${heads} head${heads > 1 ? "s" : ""}`, head.causal && "causal",
            plan.block_q && `tiles of ${plan.block_q} × ${plan.block_kv}`]
      .filter(Boolean).join(", ");
  }

  faultAt() { return this.run.events[this.run.fault.event]?.begin ?? this.run.last; }

  /// Returns the block to show from the last kernel that has begun: the block of the selected
  /// event, else of the fault, else the first one.
  blockAt(now) {
    const { run, selected } = this, of = (selected || run.events[run.fault?.event])?.block;
    const each = run.launches.map(({ blocks }) => blocks.includes(of) ? of : blocks[0]);
    return each.findLast((block) => block?.events[0].begin <= now) || run.blocks[0];
  }

  name(block) {
    const { kernel, blocks } = block.launch;
    return `${kernel}, block ${block.number} of ${blocks.length}`;
  }

  draw(now) {
    const { run, replay } = this;
    replay.seek(now);
    this.count();
    const block = this.blockAt(now), glow = SPAN / 12;  // ticks that an access stays bright
    const begun = new Map();  // warp → its last event that has begun
    for (const e of block?.events || []) {
      if (e.begin <= now && e.file && !(e.begin < begun.get(e.warp)?.begin)) begun.set(e.warp, e);
    }
    this.atWork = [...begun.values()];
    const current = this.selected || this.atWork.reduce((last, e) =>
      last && last.begin >= e.begin ? last : e, null);
    const most = document.body.matches(".asking") ? "?" : exactly(explorer.most);
    this.find(".most").textContent = `${most}× read`;
    for (const view of this.views) view.draw({ block, now, glow, replay });
    const ended = run.fault && !this.selected && now >= this.faultAt();
    const first = block?.events.find((e) => e.file);  // the line to show before anything begins
    this.source.draw(ended ? run.fault : current || first, current, this.atWork);
    this.find(".event").textContent = (this.selected ? "Selected: " : "") +
      (current ? sentence(current) + meetingOf(current, now) : "Nothing has begun yet.");
  }

  count() {
    const { counts, done } = this.replay, { fault, counted: program, events } = this.run;
    this.element.querySelectorAll("dd").forEach((cell, i) => {
      const [, unit, ...parts] = COUNTED[i];
      const sum = parts.reduce((total, part) => total + counts[part], 0);
      cell.textContent = scaled(sum, unit);
      cell.title = exactly(sum, unit);
    });
    const wrong = Object.keys(program || {}).filter((name) => program[name] !== counts[name]);
    const [words, look] = fault ? ["ended with a fault", "differs"]
      : done < events.length ? [`${Math.floor(100 * done / events.length)}% of all events`, ""]
      : !program ? ["at the end", ""]
      : wrong.length ? [`differs from the program's count: ${wrong.join(", ")}`, "differs"]
      : ["= the program's counts", "same"];
    const verdict = this.find(".verdict");
    verdict.className = "verdict " + look;
    verdict.textContent = words;
  }
}
