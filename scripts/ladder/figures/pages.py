"""Tables between markers in markdown files: <!-- NAME:begin --> and <!-- NAME:end -->."""

import functools
import os
import re
import sys

from ladder import course
from ladder.console import BAD_USAGE, Stop
from ladder.figures.claims import claims_table
from ladder.figures.errors import fp8_error_table, fp8_times_table
from ladder.figures.gallery import DECODE, FIGURES, PAPER, SIM, figure_data
from ladder.figures.measured import Missing
from ladder.figures.memory import shared_roof_table
from ladder.figures.rates import decode_table
from ladder.figures.tables import (ladder_table, peers_table, profile_table, ratios_table,
                                   steps_table, visits_tables)
from ladder.figures.two_gpus import two_gpus_table
from ladder.files import ROOT, write_whole


def figure_list(files):
    """Those that can be drawn, each with a line."""
    lines = []
    for name, data in figure_data(files).items():
        caption = FIGURES[name].caption
        if data:
            lines += [f"**{data['title']}.** {caption}", "",
                      f"![{caption}](scripts/results/figures/{name}.svg)", ""]
    return lines[:-1]


# How each is made, of the files, and what measures it.
TABLES = {"ladder": (ladder_table, SIM), "peers": (peers_table, PAPER),
          "claims": (claims_table, ""), "figures": (figure_list, ""),
          "visits": (visits_tables, SIM), "shared_roof": (shared_roof_table, SIM),
          "profile": (profile_table, "scripts/figures profile"), "decode": (decode_table, DECODE),
          "fp8_error": (fp8_error_table, SIM), "fp8_times": (fp8_times_table, PAPER),
          **{name: (functools.partial(make, **about), PAPER) for make, tables in (
              (steps_table, course.STEP_TABLES), (ratios_table, course.RATIO_TABLES),
              (two_gpus_table, course.TWO_GPUS_TABLES)) for name, about in tables.items()}}
BLOCK = re.compile(r"(<!-- (\w+):begin -->\n)(.*?)(<!-- \2:end -->)", re.DOTALL)


def table(files, name):
    make, command = TABLES[name]
    try:
        return "\n".join(make(files))
    except Missing:
        return f"*Not measured yet: `{command}` does it.*"


def relinked(text, path):
    """Links of a table, which are from the project's root, as they have to be in a page of it."""
    folder = os.path.relpath(os.path.dirname(os.path.abspath(path)), ROOT)
    if folder.startswith(os.pardir):
        return text
    return re.sub(r"(\]\()((?!https?:|#)[^)]+)", lambda match: match[1] + os.path.relpath(
        match[2], folder), text)


def renewed(path, files):
    """A file's text with its tables made anew, and the names of those that differ."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    whole = [name for _, name, *_ in BLOCK.findall(text)]
    for name in re.findall(r"<!-- (\w+):begin -->", text):
        if name not in TABLES or name not in whole:
            raise Stop(f"{os.path.relpath(path)} has the marker <!-- {name}:begin -->, but " + (
                f"no <!-- {name}:end --> after it" if name in TABLES else
                f"there are only {', '.join(TABLES)}"), BAD_USAGE)
    differ = []

    def new(found):
        begin, name, old, end = found.groups()
        lines = relinked(f"\n{table(files, name)}\n\n", path)
        differ.extend([name] if lines != old else [])
        return begin + lines + end

    return BLOCK.sub(new, text), differ


def write_tables(files, paths):
    """Renews the tables of these markdown files."""
    for path in paths:
        text, differ = renewed(path, files)
        if differ:
            write_whole(path, text)
            print(f"Wrote the tables of {os.path.relpath(path)}: {', '.join(differ)}.",
                  file=sys.stderr)


def stale_tables(files, paths):
    for path in paths:
        for name in renewed(path, files)[1]:
            yield f"the table {name} of {os.path.relpath(path)} is stale"
