// One step: its views, at the moment of the clock that all share.

const COUNTED = [["requested", "Requested of HBM", "B", ["requestedRead", "requestedWrite"]],
                 ["distinct", "Distinct bytes", "B", ["distinctRead", "distinctWrite"]],
                 ["matmul", "Matmul FLOPs", "", ["matmul"]],
                 ["exps", "Exponentials", "", ["exps"]]];

class Pane {
  constructor(run, index) {
    this.run = run;
    this.index = index;
    this.selected = -1;
    this.chosenBlock = null;
    this.element = document.createElement("article");
    this.element.className = "pane";
    this.element.setAttribute("aria-label", run.title);
    this.element.innerHTML = `
      <div class="top"><h2></h2><span class="summary"></span>
        <span class="verdict" role="status"></span></div>
      <div class="fault-slot"></div>
      <dl class="counters"></dl>
      <div class="view"><h3>HBM <small class="legend"></small></h3><div class="maps"></div></div>
      <div class="view timeline">
        <h3>Warps and engines <small></small><span class="blocks"></span></h3>
        <div class="box"><canvas tabindex="0" role="img"></canvas></div></div>
      <div class="event"></div>
      <div class="below view"></div>`;
    const middle = document.createElement("div");
    middle.className = "middle";
    middle.innerHTML = `
      <div class="view scores"><h3>S <small></small></h3><canvas role="img"></canvas></div>
      <div class="view smem">
        <h3>Shared memory <small></small></h3><canvas role="img"></canvas></div>`;
    this.find(".timeline").before(middle);
    this.find(".below").innerHTML = `<h3>Source <small></small></h3>
      <div class="source" tabindex="0" role="region" aria-label="Source"></div>`;
    this.find("h2").textContent = run.title;
    this.find(".summary").textContent = this.summary();
    this.find(".summary").title = run.command;
    this.fillCounters();
    this.faultNote();
  }

  find(selector) { return this.element.querySelector(selector); }

  /// Once it is in the page, and so has a size.
  start() {
    this.memory = new MemoryView(this, this.find(".maps"));
    this.scores = new ScoresView(this, this.find(".scores canvas"), this.find(".scores small"));
    this.shared = new SharedView(this, this.find(".smem canvas"), this.find(".smem small"));
    this.timeline = new Timeline(this, this.find(".timeline canvas"));
    this.source = new SourceView(this, this.find(".source"), this.find(".below small"));
    const label = (selector) => this.find(selector).getAttribute("aria-label");
    for (const selector of [".scores canvas", ".smem canvas"]) {
      tellAtFocus(this.find(selector), () => label(selector));
    }
    const maps = this.find(".maps");
    maps.setAttribute("role", "group");
    maps.setAttribute("aria-label", "Arrays in HBM");
    tellAtFocus(maps, () => [...maps.querySelectorAll("canvas")]
      .map((canvas) => canvas.getAttribute("aria-label")).join(". "));
    this.useClock("order");
  }

  /// The next of the events at work, warp by warp; after the last the first again.
  chooseNext() {
    const block = this.blockAt();
    const atWork = this.atWork(block, explorer.shownNow());
    if (!atWork.length) return;
    const { warp } = this.run.columns;
    atWork.sort((a, b) => warp[a] - warp[b]);
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

  fillCounters() {
    for (const [key, label] of COUNTED) {
      const div = document.createElement("div");
      div.innerHTML = `<dt>${label}</dt><dd data-counter="${key}">0</dd>`;
      this.find(".counters").append(div);
    }
  }

  faultNote() {
    const fault = this.run.fault;
    if (!fault) return;
    const note = document.createElement("div");
    note.className = "fault-note";
    note.setAttribute("role", "alert");
    note.innerHTML = "<span></span><button>Go there</button>";
    note.querySelector("span").textContent = fault.message;
    note.querySelector("button").onclick = () => explorer.seek(this.faultAt());
    this.find(".fault-slot").append(note);
  }

  faultAt() {
    const { fault, clocks } = this.run;
    return fault.event >= 0 ? clocks.order.from[fault.event] : clocks.order.last;
  }

  useClock(name) {
    this.clock = this.run.clocks[name] || this.run.clocks.order;
    this.replay = new Replay(this.run, this.run.clocks[name] ? name : "order");
    this.replay.seek(Infinity);
    this.scores.setFinal(this.replay);
    this.memory.setFinal(this.replay);
    this.finalCounts = { ...this.replay.counts };
    this.most = 1;
    for (const map of this.replay.maps) {
      for (const cells of [map.read, map.written]) {
        cells.forEach((bytes, cell) => {
          this.most = Math.max(this.most, bytes / map.inRow[Math.floor(cell / map.columns)]);
        });
      }
    }
  }

  /// The block whose warps are shown: the one chosen, else the one that did something last.
  blockAt() {
    if (this.chosenBlock) return this.run.blocks.get(this.chosenBlock);
    if (!this.run.n) return null;  // a launch that was refused has none
    const last = this.replay.last >= 0 ? this.replay.last : this.clock.order[0];
    return this.run.blocks.get(this.run.place(last));
  }

  stepBlock(by) {
    const keys = [...this.run.blocks.keys()], now = keys.indexOf(this.blockAt().key);
    const next = keys[Math.min(keys.length - 1, Math.max(0, now + by))];
    const [first, last] = this.clock.spans.get(next);
    this.chosenBlock = explorer.clock === "model" ? next : null;
    if (explorer.now < first || explorer.now > last) explorer.seek(first);
    else explorer.redraw();
  }

  /// The last event of each of a block's warps that has begun.
  atWork(block, now) {
    const found = new Map();
    for (const i of block ? block.events : []) {
      if (this.clock.from[i] > now || this.run.columns.file[i] < 0) continue;
      const before = found.get(this.run.columns.warp[i]);
      if (before === undefined || this.clock.from[i] >= this.clock.from[before]) {
        found.set(this.run.columns.warp[i], i);
      }
    }
    return [...found.values()];
  }

  draw(now) {
    const { run, replay, clock } = this;
    replay.seek(now);
    this.count();
    const block = this.blockAt(), glow = Math.max(explorer.span / 12, 1);
    const atWork = this.atWork(block, now);
    let current = this.selected;
    for (const i of atWork) {
      if (this.selected < 0 && (current < 0 || clock.from[i] > clock.from[current])) current = i;
    }
    this.memory.draw(replay, now, glow);
    this.scores.draw(replay, now, glow, this.headAt());
    this.shared.draw(block, clock, now);
    this.timeline.draw(block, now);
    this.source.draw(current, atWork);
    if (run.fault && this.selected < 0 && now >= this.faultAt()) this.source.drawFault(run.fault);
    this.tell(current, now, block);
    this.blockNote(block);
  }

  /// The head whose S is shown: the one that was worked on last.
  headAt() {
    for (let k = this.replay.done - 1; k >= 0 && k > this.replay.done - 400; --k) {
      const tile = this.run.tiles[this.clock.order[k]];
      if (tile) return Math.min(this.replay.heads - 1, Math.floor(tile[0] / this.run.head.seqlen));
    }
    return 0;
  }

  count() {
    const counts = this.replay.counts;
    for (const [key, , unit, parts] of COUNTED) {
      const sum = parts.reduce((total, part) => total + counts[part], 0);
      const cell = this.find(`[data-counter="${key}"]`);
      cell.textContent = scaled(sum, unit);
      cell.title = exactly(sum, unit);
      cell.dataset.value = sum;
    }
    const verdict = this.find(".verdict"), over = this.replay.done === this.run.n;
    const program = this.run.counted;
    verdict.className = "verdict";
    if (this.run.fault) {
      verdict.textContent = "ended with a fault";
      verdict.classList.add("differs");
    } else if (!over) {
      verdict.textContent = `${Math.floor(100 * this.replay.done / this.run.n)}% of its events`;
    } else if (!program) {
      verdict.textContent = "at its end";
    } else {
      const wrong = Object.keys(program).filter((name) => program[name] !== counts[name]);
      verdict.textContent = wrong.length ? `not the program's count: ${wrong.join(", ")}`
        : "= the program's counts";
      verdict.classList.add(wrong.length ? "differs" : "same");
      verdict.title = wrong.map((name) => `${name}: ${exactly(counts[name])} here, ` +
        `${exactly(program[name])} by the program`).join("; ");
    }
  }

  tell(current, now, block) {
    const box = this.find(".event");
    if (current < 0) {
      box.textContent = "Nothing has begun.";
      return;
    }
    const text = sentence(this.run, current);
    box.innerHTML = "<b></b><span></span>";
    box.querySelector("b").textContent = this.selected >= 0 ? "Chosen: " : "";
    let more = "";
    const meeting = meetingOf(this.run, current, this.clock, now);
    if (meeting) {
      const none = (list) => list.length ? list.join(", ") : "nobody";
      more = meeting.arrived.length + meeting.missing.length === 0 ? " — nothing was under way."
        : ` — ${meeting.title}. Arrived: ${none(meeting.arrived)}. ` +
          `Missing: ${none(meeting.missing)}.` +
          (meeting.waiters.length ? ` Waiting: warp ${meeting.waiters.join(", ")}.` : "");
    }
    box.querySelector("span").textContent = text + more;
    this.told = text + more;
  }

  blockNote(block) {
    if (!block) return;
    const launch = this.run.launches[block.launch];
    const blocks = launch.grid[0] * launch.grid[1] * launch.grid[2];
    this.find(".timeline small").textContent =
      `${launch.kernel}, block ${block.block} of ${blocks}`;
    const box = this.find(".blocks");
    if (!box.childElementCount && this.run.blocks.size > 1) {
      box.innerHTML = "<button aria-label='The block before'>◂</button>" +
        "<button aria-label='The next block'>▸</button>";
      box.children[0].onclick = () => this.stepBlock(-1);
      box.children[1].onclick = () => this.stepBlock(1);
    }
  }

  select(i) {
    this.selected = i === this.selected ? -1 : i;
    if (this.selected >= 0 && this.told !== undefined) explorer.announceSoon();
    explorer.redraw();
  }
}
