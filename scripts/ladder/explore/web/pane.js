// One step: its views, at the moment of the clock that all share.

const COUNTED = [["requested", "Requested of HBM", "B", ["requestedRead", "requestedWrite"]],
                 ["distinct", "Distinct bytes", "B", ["distinctRead", "distinctWrite"]],
                 ["matmul", "Matmul FLOPs", "", ["matmul"]],
                 ["exps", "Exponentials", "", ["exps"]]];

class Pane {
  constructor(run) {
    this.run = run;
    this.selected = null;
    this.sm = 0;  // whose blocks are shown
    this.element = document.createElement("article");
    this.element.className = "pane";
    this.element.setAttribute("aria-label", run.title);
    this.element.innerHTML = `
      <div class="top"><h2>${run.title}</h2><span class="summary">${this.summary()}</span>
        <span class="verdict" role="status"></span></div>
      <div class="fault-slot"></div>
      <dl class="counters">${COUNTED.map(([key, label]) =>
        `<div><dt>${label}</dt><dd data-counter="${key}"></dd></div>`).join("")}</dl>
      <div class="view"><h3>HBM <small class="legend"></small></h3>
        <div class="maps" role="group" aria-label="Arrays in HBM"></div></div>
      <div class="middle">
        <div class="view scores"><h3>S <small></small></h3><canvas role="img"></canvas></div>
        <div class="view smem">
          <h3>Shared memory <small></small></h3><canvas role="img"></canvas></div></div>
      <div class="view sms"><h3>Blocks <small></small><span class="buttons">
          <button aria-label="The SM before" title="The SM before">▴</button>
          <button aria-label="The next SM" title="The next SM (B)">▾</button></span></h3>
        <canvas role="img"></canvas></div>
      <div class="view timeline"><h3>Warps <small></small><span class="buttons">
          <button class="each" title="All warps of a warpgroup, or the one that does most (G)"
            aria-pressed="false">Each warp</button>Zoom
          <button aria-label="Zoom out" title="Zoom out (S, or the wheel)">−</button>
          <button aria-label="Zoom in" title="Zoom in (W, or the wheel)">+</button></span></h3>
        <div class="box"><canvas tabindex="0" role="img"></canvas></div></div>
      <div class="event"></div>
      <div class="below view"><h3>Source <small></small></h3>
        <div class="source" tabindex="0" role="region" aria-label="Source"></div></div>`;
    this.find(".summary").title = run.command;
    const [before, next] = this.find(".sms").querySelectorAll("button");
    before.onclick = () => this.stepSm(-1);
    next.onclick = () => this.stepSm(1);
    const [each, out, into] = this.find(".timeline").querySelectorAll("button");
    each.hidden = !run.blocks.some((block) => block.inGroups);
    each.onclick = () => explorer.showEach();
    out.onclick = () => explorer.zoom(1.5);
    into.onclick = () => explorer.zoom(1 / 1.5);
    this.faultNote();
  }

  find(selector) { return this.element.querySelector(selector); }

  /// Once it is in the page, and so has a size.
  start() {
    const parts = (view) => [this.find(view + " canvas"), this.find(view + " small")];
    this.memory = new MemoryView(this, this.find(".maps"));
    this.scores = new ScoresView(this, ...parts(".scores"));
    this.shared = new SharedView(this, ...parts(".smem"));
    this.sms = new SmsView(this, ...parts(".sms"));
    this.timeline = new Timeline(this, ...parts(".timeline"));
    this.source = new SourceView(this, this.find(".source"), this.find(".below small"));
    for (const view of [".scores", ".smem", ".sms"]) {
      const [canvas] = parts(view);
      tellAtFocus(canvas, () => canvas.getAttribute("aria-label"));
    }
    tellAtFocus(this.find(".maps"), () => [...this.element.querySelectorAll(".maps canvas")]
      .map((canvas) => canvas.getAttribute("aria-label")).join(". "));
  }

  /// The next of the events at work, warp by warp; after the last the first again.
  chooseNext() {
    const atWork = this.atWork(this.blockAt(explorer.shownNow()), explorer.shownNow());
    if (!atWork.length) return;
    atWork.sort((a, b) => a.warp - b.warp);
    this.selected = atWork[(atWork.indexOf(this.selected) + 1) % atWork.length];
    explorer.announceSoon();
    explorer.redraw();
  }

  summary() {
    const { head, plan } = this.run;
    const tiles = plan.block_q ? `, tiles of ${plan.block_q} × ${plan.block_kv}` : "";
    const heads = head.heads * head.batch;
    return `N = ${head.seqlen}${head.seqlen_kv !== head.seqlen ? ` × ${head.seqlen_kv}` : ""}, ` +
      `d = ${head.head_dim}, ${heads} head${heads > 1 ? "s" : ""}` +
      `${head.causal ? ", causal" : ""}${tiles}`;
  }

  faultNote() {
    if (!this.run.fault) return;
    this.find(".fault-slot").innerHTML =
      "<div class='fault-note' role='alert'><span></span><button>Go there</button></div>";
    this.find(".fault-note span").textContent = this.run.fault.message;
    this.find(".fault-note button").onclick = () => explorer.seek(this.faultAt());
  }

  faultAt() {
    const event = this.run.events[this.run.fault.event];
    return event ? event.from : this.run.last;
  }

  schedule() {
    this.run.schedule(explorer.clock, explorer.sms);
    this.sm = Math.min(this.sm, this.run.lanes - 1);
    const replay = this.replay = new Replay(this.run);
    replay.seek(Infinity);
    this.scores.setFinal(replay);
    this.memory.setFinal(replay);
    this.most = Math.max(1, ...replay.maps.map((map) => Math.max(
      ...[map.read, map.written].map((cells) =>
        cells.reduce((most, bytes, cell) =>
          Math.max(most, bytes / map.inRow[Math.floor(cell / map.columns)]), 0)))));
  }

  /// The last block of the SM that has begun, else its first.
  blockAt(now) {
    const mine = this.run.blocks.filter((block) => block.sm === this.sm);
    return mine.findLast((block) => block.from <= now) || mine[0];
  }

  name(block) {
    const { kernel, blocks } = block.launch;
    return `${kernel}, block ${block.number} of ${blocks.length}` +
      (block.part ? `, ${block.part}` : "") + (block.work ? `: ${block.work}` : "");
  }

  stepSm(by) {
    this.sm = (this.sm + by + this.run.lanes) % this.run.lanes;
    explorer.redraw();
  }
  goTo(block) {
    this.sm = block.sm;
    if (explorer.now < block.from || explorer.now > block.to) explorer.seek(block.from);
    else explorer.redraw();
  }

  /// The last event of each of a block's warps that has begun.
  atWork(block, now) {
    const found = new Map();
    for (const e of block ? block.events : []) {
      const before = found.get(e.warp);
      if (e.from > now || e.file < 0 || (before && e.from < before.from)) continue;
      found.set(e.warp, e);
    }
    return [...found.values()];
  }

  draw(now) {
    const { run, replay } = this;
    replay.seek(now);
    this.count();
    const block = this.blockAt(now), glow = Math.max(explorer.span / 12, 1);
    const atWork = this.atWork(block, now);
    const current = this.selected || atWork.reduce((last, e) =>
      last && last.from >= e.from ? last : e, null);
    this.memory.draw(replay, now, glow);
    this.scores.draw(replay, now, glow, this.headAt(block, now));
    this.shared.draw(block, now);
    this.sms.draw(block, now);
    this.timeline.draw(block, now);
    this.source.draw(current, atWork);
    if (run.fault && !this.selected && now >= this.faultAt()) this.source.drawFault(run.fault);
    this.tell(current, now);
  }

  /// The head whose S is shown: the one that the block worked on last.
  headAt(block, now) {
    const last = block && block.events.findLast((e) => e.tile && e.from <= now);
    return last ? Math.min(this.replay.heads - 1,
                           Math.floor(last.tile[0] / this.run.head.seqlen)) : 0;
  }

  count() {
    const { counts, done } = this.replay, { fault, counted: program, events } = this.run;
    for (const [key, , unit, parts] of COUNTED) {
      const sum = parts.reduce((total, part) => total + counts[part], 0);
      const cell = this.find(`[data-counter="${key}"]`);
      cell.textContent = scaled(sum, unit);
      cell.title = exactly(sum, unit);
      cell.dataset.value = sum;
    }
    const wrong = Object.keys(program || {}).filter((name) => program[name] !== counts[name]);
    const [words, look] = fault ? ["ended with a fault", "differs"]
      : done < events.length ? [`${Math.floor(100 * done / events.length)}% of its events`, ""]
      : !program ? ["at its end", ""]
      : wrong.length ? [`not the program's count: ${wrong.join(", ")}`, "differs"]
      : ["= the program's counts", "same"];
    const verdict = this.find(".verdict");
    verdict.className = "verdict " + look;
    verdict.textContent = words;
    verdict.title = look === "differs" ? wrong.map((name) => `${name}: ${exactly(counts[name])} ` +
      `here, ${exactly(program[name])} by the program`).join("; ") : "";
  }

  tell(current, now) {
    const box = this.find(".event");
    this.told = current ? sentence(current) : "Nothing has begun.";
    const meeting = current && meetingOf(current, now);
    if (meeting) {
      const { title, arrived, missing, waiters } = meeting;
      const all = (list) => list.length ? list.join(", ") : "nobody";
      this.told += arrived.length + missing.length === 0 ? " — nothing was under way."
        : ` — ${title}. Arrived: ${all(arrived)}. Missing: ${all(missing)}.` +
          (waiters.length ? ` Waiting: warp ${waiters.join(", ")}.` : "");
    }
    box.innerHTML = "<b></b><span></span>";
    box.firstChild.textContent = this.selected ? "Chosen: " : "";
    box.lastChild.textContent = this.told;
  }

  select(e) {
    this.selected = e === this.selected ? null : e;
    if (this.selected) explorer.announceSoon();
    explorer.redraw();
  }
}
