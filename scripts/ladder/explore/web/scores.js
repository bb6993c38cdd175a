// Draws one head's tiles of S, coloured by state: computed, being computed, to come, computed but
// masked, or skipped.

// State → colour and opacity.
const LOOKS = { "computed": ["product", 0.6], "being computed": ["ink", 1],
                "masked": ["softmax", 0.8], "skipped": ["card", 1], "hatched": ["soft", 0.6],
                "to come": ["faint", 1] };

class ScoresView extends View {
  /// Returns whether the causal mask hides all of a cell: its last query precedes its first key.
  masked(row, column, replay) {
    const { head } = this.pane.run;
    if (!head.causal) return false;
    const i = Math.ceil((row + 1) * head.seqlen / replay.scoreRows) - 1;  // the cell's last query
    const j = Math.floor(column * head.seqlen_kv / replay.scoreColumns);  // its first key
    return j > i + head.seqlen_kv - head.seqlen;
  }

  draw({ block, replay, now, glow }) {
    // Shows the head that the block worked on last.
    const last = block?.events.findLast((e) => e.tile && e.begin <= now);
    const head = last ? Math.floor(last.tile[0] / this.pane.run.head.seqlen) : 0;
    this.clear();
    const side = Math.min(this.width, this.height);
    const rows = replay.scoreRows, columns = replay.scoreColumns;
    Object.assign(this, { replay, head });
    if (!this.pane.final.scores.some(Boolean)) {
      this.box("faint", 0, 0, side, side);
      this.say("this trace has no product of Q and K");
      return;
    }
    const counts = {};
    const colours = Object.fromEntries(Object.entries(LOOKS)
      .map(([state, look]) => [state, mixed(...look)]));
    this.picture(0, side, side, columns, rows, (cell) => {
      const row = Math.floor(cell / columns), column = cell % columns;
      const state = this.stateOf(row, column, now, glow);
      counts[state] = (counts[state] || 0) + 1;
      const line = state === "skipped" && (row + columns - column) % 8 === 0;
      return colours[line ? "hatched" : state];
    });
    this.frame("line", 0.5, 0.5, side - 1, side - 1, 1);
    const share = (...states) => Math.round(100 / (rows * columns) *
      states.reduce((sum, state) => sum + (counts[state] || 0), 0)) + "%";
    this.say((replay.heads > 1 ? `head ${head}: ` : "") +
             `${share("computed", "being computed", "masked")} computed`);
    this.label(`Tiles of S of head ${head}: ${share("computed", "being computed")} computed, ` +
               `${share("masked")} computed but masked, ${share("skipped")} skipped`);
  }

  stateOf(row, column, now, glow) {
    const replay = this.replay;
    const cell = (this.head * replay.scoreRows + row) * replay.scoreColumns + column;
    if (replay.scores[cell]) {
      if (replay.scoresAt[cell] > now - glow) return "being computed";
      return this.masked(row, column, replay) ? "masked" : "computed";
    }
    // After a fault, tiles that the run did not reach do not count as skipped.
    return this.pane.final.scores[cell] || this.pane.run.fault ? "to come" : "skipped";
  }
}
