// The blocks on their SMs, a row each, over the whole time: which run side by side, and which wait
// for their turn.

class SmsView extends View {
  constructor(...parts) {
    super(...parts);
    this.canvas.addEventListener("click", (event) => {
      const block = this.hitAt(event.offsetX, event.offsetY);
      if (block) this.pane.goTo(block);
    });
  }

  words(block) {
    return block ? `SM ${block.sm}: ${this.pane.name(block)}, ${exactly(block.from)} to ` +
      exactly(block.to) : "";
  }

  draw({ block: shown, now }) {
    const { run } = this.pane, { context, width, height } = sheet(this.canvas);
    const at = (t) => (t - explorer.first) / (explorer.last - explorer.first) * width;
    const lane = height / run.lanes, gap = lane > 4 ? 1 : 0, h = lane - gap;
    this.hits = [];
    context.font = "10px system-ui, sans-serif";
    for (const block of run.blocks) {
      const x = at(block.from), y = block.sm * lane, w = Math.max(1, at(block.to) - x - gap);
      this.hit(block, x, y, w, lane);
      box(context, block.launch.multiplies ? palette.accent : palette.soft, x, y, w, h,
          block.to <= now ? 0.25 : block.from <= now ? 0.75 : 0.45);
      const { kernel } = block.launch, does = block.work || kernel;
      const text = h > 9 && [this.pane.name(block), `${kernel}: ${does}`, does, kernel].find(
        (one) => context.measureText(one).width < w - 6);
      if (text) write(context, text, x + 3, y + h / 2, w);
      if (block === shown) {
        frame(context, palette.ink, x + 0.5, y + 0.5, Math.max(2, w - 1), Math.max(2, h - 1), 1);
      }
    }
    box(context, palette.now, Math.min(width - 2, at(now)), 0, 2, height);
    const atWork = run.blocks.filter((block) => block.from <= now && block.to > now);
    // Of an order that surprises.
    const [one, two] = run.launches.find(({ multiplies }) => multiplies)?.blocks || [];
    this.say(`${atWork.length} at work on ${explorer.sms} SM${explorer.sms > 1 ? "s" : ""}` +
      (two?.firstRow < one?.firstRow
        ? "; the last rows of Q first: under a mask they have the most keys" : ""));
    this.label = "Blocks at work: " +
      (atWork.map((block) => this.words(block)).join("; ") || "none");
  }
}
