// The kernel's source, with the line that is at work.

class SourceView {
  constructor(pane, box, note) { Object.assign(this, { pane, box, note }); }

  show(file) {
    if (file === this.file) return;
    this.file = file;
    const { files, fault } = this.pane.run;
    this.note.textContent = file + (files[file] ? "" : ": not to be read here");
    this.box.innerHTML = "<ol></ol>";
    for (const line of files[file].split("\n")) {
      this.box.firstChild.append(document.createElement("li"));
      this.box.firstChild.lastChild.textContent = line || " ";
    }
    this.lines = [...this.box.firstChild.children];
    if (fault?.file === file) this.lines[fault.line - 1]?.classList.add("fault");
  }

  /// current: the event that began last; others: those of the other warps.
  draw(current, others) {
    if (!current?.file) return;
    this.show(current.file);
    for (const line of this.lines) line.classList.remove("now", "near");
    for (const e of others) {
      if (e.file === this.file) this.lines[e.line - 1]?.classList.add("near");
    }
    // What is computed lies between two places.
    const [first, last] = [current.line, current.since].sort((a, b) => a - b);
    for (const line of this.lines.slice(first - 1, last)) line.classList.add("now");
    this.scrollTo(current.line);
  }

  /// Where the run ended.
  drawFault({ file, line }) {
    if (!file) return;
    this.show(file);
    this.scrollTo(line);
  }

  scrollTo(line) {
    const item = this.lines[line - 1];
    if (!item) return;
    this.box.scrollTop = item.offsetTop - this.box.offsetTop - this.box.clientHeight * 0.4;
  }
}
