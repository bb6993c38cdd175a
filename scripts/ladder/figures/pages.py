"""Tables between markers in markdown files: <!-- NAME:begin --> and <!-- NAME:end -->."""

import os
import re
import sys

from ladder import course
from ladder.console import BAD_USAGE, Stop
from ladder.figures.claims import claims_table
from ladder.figures.decode import decode_table
from ladder.figures.errors import fp8_error_table, fp8_times_table
from ladder.figures.gallery import FIGURES, digest, figure_data, stored_digest
from ladder.figures.profile import profile_table
from ladder.figures.shared_roof import shared_roof_table
from ladder.figures.tables import ladder_table, peers_table, ratios_table, steps_table
from ladder.figures.two_gpus import two_gpus_table
from ladder.figures.visits import visits_tables
from ladder.files import ROOT, write_whole


def figure_list(files, _):
    """Those that can be drawn, each with a line."""
    lines = []
    for name, data in figure_data(files).items():
        lines += [f"**{data['title']}.** {course.CAPTIONS[name]}", "",
                  f"![{course.CAPTIONS[name]}](scripts/results/figures/{name}.svg)", ""]
    return lines[:-1]


# How each is made, of the files and its name.
TABLES = {"ladder": ladder_table, "peers": peers_table, "claims": claims_table,
          "figures": figure_list, "visits": visits_tables, "shared_roof": shared_roof_table,
          "profile": profile_table, "decode": decode_table,
          "fp8_error": fp8_error_table, "fp8_times": fp8_times_table,
          **dict.fromkeys(course.STEP_TABLES, steps_table),
          **dict.fromkeys(course.RATIO_TABLES, ratios_table),
          **dict.fromkeys(course.TWO_GPUS_TABLES, two_gpus_table)}


def tables_in(path):
    """A file's text, and the names of the tables that it has."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    names, whole = (re.findall(pattern, text, re.DOTALL) for pattern in (
        r"<!-- (\w+):begin -->", r"<!-- (\w+):begin -->\n.*?<!-- \1:end -->"))
    for name in names:
        if name not in TABLES:
            raise Stop(f"{os.path.relpath(path)} has the marker <!-- {name}:begin -->, but there "
                       f"are only {', '.join(TABLES)}", BAD_USAGE)
        if name not in whole:
            raise Stop(f"{os.path.relpath(path)} lacks the marker <!-- {name}:end --> after "
                       f"<!-- {name}:begin -->", BAD_USAGE)
    return text, names


def relinked(text, path):
    """Links of a table, which are from the project's root, as they have to be in a page of it."""
    folder = os.path.relpath(os.path.dirname(os.path.abspath(path)), ROOT)
    if folder.startswith(os.pardir):
        return text
    return re.sub(r"(\]\()((?!https?:|#)[^)]+)", lambda match: match[1] + os.path.relpath(
        match[2], folder), text)


def renewed(path, files):
    """A file's text with its tables made anew, and the names of those that differ."""
    text, names = tables_in(path)
    differ = []
    for name in names:
        new = relinked("\n".join(["", *TABLES[name](files, name), "", ""]), path)
        before, begin, rest = text.partition(f"<!-- {name}:begin -->\n")
        old, end, after = rest.partition(f"<!-- {name}:end -->")
        differ += [name] if new != old else []
        text = before + begin + new + end + after
    return text, differ


def write_tables(files, paths):
    """Renews the tables of these markdown files."""
    for path in paths:
        text, differ = renewed(path, files)
        if differ:
            write_whole(path, text)
            print(f"Wrote the tables of {os.path.relpath(path)}: {', '.join(differ)}.",
                  file=sys.stderr)


def need_places(paths, files):
    """Each table has to stand in one of the files; one without data need not."""
    there = {name for path in paths for name in tables_in(path)[1]}
    for name in TABLES:
        if name not in there and not TABLES[name](files, name)[0].startswith("*"):
            raise Stop(f"no markdown file has the markers <!-- {name}:begin --> and "
                       f"<!-- {name}:end -->", BAD_USAGE)


def stale(files, out, paths):
    """What does not show what the files say: figures of a folder, and tables of markdown files."""
    found, data = [], figure_data(files)
    for name in FIGURES:
        path = os.path.join(out, f"{name}.svg")
        there = os.path.exists(path)
        if name not in data and there:
            found.append(f"{os.path.relpath(path)} shows what the files no longer have")
        elif name in data and stored_digest(path) != digest(name, data[name]):
            found.append(f"{os.path.relpath(path)} is {'stale' if there else 'missing'}")
    return found + [f"the table {name} of {os.path.relpath(path)} is stale"
                    for path in paths for name in renewed(path, files)[1]]
