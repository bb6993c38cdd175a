// The kernel's source, with the line that is at work.

class SourceView {
  constructor(pane, box, note) {
    this.pane = pane;
    this.box = box;
    this.note = note;
    this.file = -1;
    this.marked = [];
  }

  show(file) {
    if (file === this.file) return;
    this.file = file;
    const { path, text } = this.pane.run.files[file];
    this.note.textContent = path + (text ? "" : ": not to be read here");
    const list = document.createElement("ol");
    text.split("\n").forEach((line, i) => {
      const item = document.createElement("li");
      item.textContent = line || " ";
      item.dataset.line = i + 1;
      list.append(item);
    });
    this.box.replaceChildren(list);
    this.lines = list.children;
    this.marked = [];
    const fault = this.pane.run.fault;
    if (fault && fault.file === file && this.lines[fault.line - 1]) {
      this.lines[fault.line - 1].classList.add("fault");
    }
  }

  /// current: the event that began last; others: those of the other warps.
  draw(current, others) {
    if (!current || current.file < 0) return;
    this.show(current.file);
    for (const line of this.marked) line.classList.remove("now", "near");
    this.marked = [];
    const mark = (first, last, name) => {
      for (const item of [...this.lines].slice(first - 1, last)) {
        item.classList.add(name);
        this.marked.push(item);
      }
    };
    for (const e of others) if (e.file === this.file) mark(e.line, e.line, "near");
    // What is computed lies between two places.
    mark(Math.min(current.line, current.since), Math.max(current.line, current.since), "now");
    this.scrollTo(current.line);
  }

  /// Where the run ended.
  drawFault({ file, line }) {
    if (file < 0) return;
    this.show(file);
    this.scrollTo(line);
  }

  scrollTo(line) {
    const item = this.lines[line - 1];
    if (!item) return;
    this.box.scrollTop = item.offsetTop - this.box.offsetTop - this.box.clientHeight * 0.4;
  }
}
