// Shows the kernel's source, with the current line highlighted.

class SourceView {
  constructor(pane, box, note) { Object.assign(this, { pane, box, note }); }

  show(file) {
    if (file === this.file) return;
    this.file = file;
    const { files, fault } = this.pane.run;
    this.note.textContent = file;
    this.lines = files[file].split("\n").map((line) =>
      Object.assign(document.createElement("li"), { textContent: line || " " }));
    this.box.firstChild.replaceChildren(...this.lines);
    if (fault?.file === file) this.lines[fault.line - 1]?.classList.add("fault");
  }

  /// Scrolls to the line of `at` and marks the lines of `current`, the event that began last, and
  /// of `others`, the other warps' events.
  draw(at, current, others) {
    if (!at?.file) return;
    this.show(at.file);
    for (const line of this.lines) line.classList.remove("now", "near");
    const mark = (e, name, start = e.line) => {
      const [first, last] = [e.line, start].sort((a, b) => a - b);
      const lines = e.file === this.file ? this.lines.slice(first - 1, last) : [];
      for (const line of lines) line.classList.add(name);
    };
    for (const e of others) mark(e, "near");
    // A computation spans the lines between two events.
    if (current) mark(current, "now", current.start_line);
    const item = this.lines[at.line - 1];
    if (item) this.box.scrollTop = item.offsetTop - this.box.offsetTop - this.box.clientHeight * 0.4;
  }
}
