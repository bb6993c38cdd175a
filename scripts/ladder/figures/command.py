"""Draws the figures from the file that scripts/figures measure wrote, as SVG.

FILE is what was measured on a GPU, by default in scripts/results the file with the newest date of
its own; the sim's counts (sim.json) and traces (traces.json) are found beside it, and the marks of
scripts/figures clock (clock.json). What the files do not have is left out and said.

{figures}

What is compared, where no rule gives it, stands in scripts/ladder/course.py; the papers' claims in
figures/claims.py beside it.

--readme renews the tables as well: in README.md and the lessons, wherever there are markers for one
(<!-- ladder:begin --> and <!-- ladder:end -->, peers, claims, figures). --check writes nothing, and
names what is stale: each figure carries a digest of its data.

Examples:
  scripts/figures draw
  scripts/figures draw build/mine.json --out build/figures
  scripts/figures draw --readme

Exit status: 0 good (left out counts as good); 1 --check found something stale; 2 bad usage or no
such file; 3 no matplotlib.
"""

import os
import sys
import textwrap

from ladder.console import GOOD, WRONG_RESULT, Parser, run_command
from ladder.figures.gallery import FIGURES, draw, stale_figures
from ladder.figures.measured import Files
from ladder.figures.pages import stale_tables, write_tables
from ladder.files import RESULTS, course_pages, newest_measured


def parse(arguments=None):
    figures = "\n".join(textwrap.fill(
        f"{figure.name:18}{figure.caption}", 100, initial_indent="  ",
        subsequent_indent=" " * 20) for figure in FIGURES.values())
    parser = Parser("scripts/figures draw", __doc__.format(figures=figures))
    parser.add_argument("file", nargs="?", metavar="FILE",
                        help="(default the newest in scripts/results)")
    parser.add_argument("--out", metavar="DIR",
                        help="where figures go (default scripts/results/figures)")
    parser.add_argument("--only", metavar="NAME,...", type=lambda text: text.split(","),
                        help="these figures alone")
    parser.add_argument("--readme", nargs="?", const=True, metavar="PATH",
                        help="also the tables of README.md and the lessons, or of PATH alone")
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    options = parser.parse_args(arguments)
    for name in options.only or []:
        if name not in FIGURES:
            parser.error(f"--only {name}: there are {', '.join(FIGURES)}")
    return options


def plot(options):
    out = options.out or os.path.join(RESULTS, "figures")
    files = Files(options.file or newest_measured() or RESULTS)
    pages = course_pages() if options.readme is True else [options.readme] * bool(options.readme)
    if options.check:
        found = [*stale_figures(files, out), *stale_tables(files, pages)]
        if found:
            print("\n".join(found))
            print("scripts/figures draw --readme renews them", file=sys.stderr)
        return WRONG_RESULT if found else GOOD
    draw(files, out, options.only)
    write_tables(files, pages)
    return GOOD


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures draw", lambda: plot(parse())))
