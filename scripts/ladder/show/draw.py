"""Draws the figures as SVG, from a file that scripts/figures measure wrote.

FILE holds the measurements of one GPU; the default is the file in scripts/results with the newest
date in its lines. The simulator's counts are read from sim.jsonl in the same folder. A figure whose
data are missing is left out, and a message says so.

scripts/ladder/base/course.py lists the steps that figures single out.

--readme also rewrites the tables of README.md and the lessons, between their markers
(<!-- ladder:begin --> and <!-- ladder:end -->).

Examples:
  scripts/figures draw
  scripts/figures draw build/mine.jsonl --out build/figures
  scripts/figures draw --readme

Exit status: 0 good, even if figures were left out; 2 bad usage or no such file; 3 no matplotlib.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import io
import json
import os
import re
import sys
from typing import Iterable, Iterator

from ladder.base.console import GOOD, Parser
from ladder.base.files import RESULTS, course_pages, newest_measured, read, write_whole
from ladder.show import style
from ladder.show.gallery import FIGURES, HELP, Figure, figure_data, table
from ladder.show.measured import Data, Files

COMMAND = "scripts/figures draw"
BLOCK = re.compile(r"(<!-- ([\w /]+):begin -->\n)(.*?)(<!-- \2:end -->)", re.DOTALL)


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(COMMAND, __doc__)
    parser.add_argument("file", nargs="?", metavar="FILE",
                        help="measurements (default the newest file in scripts/results)")
    parser.add_argument("--out", metavar="DIR",
                        help="folder for the figures (default scripts/results/figures)")
    parser.add_argument("--readme", action="store_true",
                        help="also rewrite the tables of README.md and the lessons")
    return parser.parse_args(words)


def draw(files: Files, out: str) -> None:
    """Writes all FIGURES whose data are in `files` to the folder `out`, and reports each on stderr.
    An unchanged figure is not redrawn, because another matplotlib would move its lines slightly."""
    for name, data in figure_data(files).items():
        path, marks = os.path.join(out, f"{name}.svg"), marks_of(name, data)
        if data and os.path.exists(path) and marks in read(path):
            message = f"{os.path.relpath(path)} shows these measurements already."
        elif data:
            write_whole(path, svg_of(FIGURES[name], data, marks))
            message = f"Wrote {os.path.relpath(path)}."
        else:
            message = f"{name} is left out: {HELP}"
            if os.path.exists(path):
                os.unlink(path)
        print(message, file=sys.stderr)


def marks_of(name: str, data: Data | None) -> str:
    """Returns the digests of a figure's data and of the code that draws it, for its metadata."""
    code = [inspect.getsourcefile(FIGURES[name].draw) or "", style.__file__]
    texts = (json.dumps([name, data], sort_keys=True), "".join(map(read, code)))
    return "ladder-sha256:" + " ".join(hashlib.sha256(t.encode()).hexdigest() for t in texts)


def svg_of(figure: Figure, data: Data, marks: str) -> str:
    """Returns a figure as SVG, with the marks in its metadata."""
    plt, svg = style.pyplot(), io.BytesIO()
    drawing = figure.draw(plt, data)
    drawing.savefig(svg, format="svg", metadata={
        "Date": None, "Creator": None, "Title": data["title"], "Description": marks})
    plt.close(drawing)
    return style.finished(svg.getvalue().decode())


def renewed(path: str, files: Files) -> tuple[str, list[str]]:
    """Returns a page's text with its tables regenerated, and the names of those that changed."""
    differ: list[str] = []

    def new(block: re.Match[str]) -> str:
        begin, name, old, end = block.groups()
        lines = f"\n{table(files, name)}\n\n"
        differ.extend([name] if lines != old else [])
        return begin + lines + end

    return BLOCK.sub(new, read(path)), differ


def stale(files: Files, out: str, pages: Iterable[str]) -> Iterator[str]:
    """Yields a line for each figure in the folder `out`, and for each table on the pages, that does
    not match the measurements or the code that makes it."""
    for name, data in figure_data(files).items():
        drawn = os.path.join(out, f"{name}.svg")
        text = read(drawn) if os.path.exists(drawn) else ""
        if text and not data:
            yield f"{os.path.relpath(drawn)} shows data that the files no longer have"
        elif data and marks_of(name, data) not in text:
            yield f"{os.path.relpath(drawn)} is {'stale' if text else 'missing'}"
    for path in pages:
        for name in renewed(path, files)[1]:
            yield f"the table {name} of {os.path.relpath(path)} is stale"


def main(words: list[str]) -> int:
    options = parse(words)
    out = options.out or os.path.join(RESULTS, "figures")
    files = Files(options.file or newest_measured() or os.path.join(RESULTS, "GPU.jsonl"))
    draw(files, out)
    for path in course_pages() if options.readme else ():
        text, differ = renewed(path, files)
        if differ:
            write_whole(path, text)
            print(f"Wrote the tables of {os.path.relpath(path)}: {', '.join(differ)}.",
                  file=sys.stderr)
    return GOOD
