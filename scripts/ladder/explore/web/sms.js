// The blocks on their SMs, a row each, over the whole time: which run together, which wait.

class SmsView extends View {
  clicked(block) {
    if (block) this.pane.goTo(block);
  }

  words(block) {
    return block ? `SM ${block.sm}: ${this.pane.name(block)}, ${exactly(block.begin)} to ` +
      exactly(block.end) : "";
  }

  draw({ block: shown, now }) {
    this.clear();
    const { run } = this.pane, { first, last, sms } = explorer;
    const at = (t) => (t - first) / (last - first) * this.width;
    const lane = this.height / run.lanes, h = Math.max(1, lane - 1);
    for (const block of run.blocks) {
      const x = at(block.begin), y = block.sm * lane, w = Math.max(1, at(block.end) - x - 1);
      this.bar(block, block.launch.multiplies ? "accent" : "soft", x, y, w, h,
               block.end <= now ? 0.25 : block.begin <= now ? 0.75 : 0.45,
               h > 9 && w > 60 ? this.pane.name(block) : "");
      if (block === shown) this.frame("ink", x + 0.5, y + 0.5, w - 1, h - 1, 1);
    }
    this.box("now", Math.min(this.width - 2, at(now)), 0, 2, this.height);
    const atWork = run.blocks.filter((block) => block.begin <= now && block.end > now);
    this.say(`${atWork.length} at work on ${sms} SM${sms > 1 ? "s" : ""}`);
    this.canvas.ariaLabel = "Blocks at work: " +
      (atWork.map((block) => this.words(block)).join("; ") || "none");
  }
}
