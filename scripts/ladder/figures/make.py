"""Draws figures, renews tables, and tells what of them is stale."""

import os
import subprocess
import sys

from ladder.console import NO_DEVICE, Stop
from ladder.figures.gallery import FIGURES, digest, figure_data, render, stored_digest
from ladder.figures.pages import renewed
from ladder.figures.style import pyplot
from ladder.files import write_whole


def need_matplotlib():
    """Without it, goes on in the system's own Python if that one has it: another that comes first
    on PATH need not see the system's packages."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        system = "/usr/bin/python3"
        if os.path.exists(system) and subprocess.run(
                [system, "-c", "import matplotlib"], stdin=subprocess.DEVNULL, capture_output=True,
                check=False).returncode == 0:
            os.execv(system, [system, "-m", "ladder.figures.command", *sys.argv[1:]])
        raise Stop(f"matplotlib is missing ({error}). Debian and Ubuntu: apt-get install "
                   "python3-matplotlib; elsewhere: python3 -m pip install matplotlib",
                   NO_DEVICE) from None


def draw(files, out, only=None):
    """Writes what the files have of FIGURES (of `only` alone) into a folder, and removes what an
    earlier file had and this one has not. Says on stderr what is left out."""
    need_matplotlib()
    data = figure_data(files, lambda text: print(text, file=sys.stderr))
    wanted = [name for name in data if name in (only or FIGURES)]
    os.makedirs(out, exist_ok=True)
    plt = pyplot()
    for name in wanted:
        write_whole(os.path.join(out, f"{name}.svg"), render(plt, name, data[name]))
    for name in FIGURES:
        path = os.path.join(out, f"{name}.svg")
        if name not in data and stored_digest(path):
            os.unlink(path)
            print(f"removed {os.path.relpath(path)}: no data for it any more", file=sys.stderr)
    print(f"Wrote {', '.join(wanted) or 'no figure'} (.svg) to {os.path.relpath(out)}.",
          file=sys.stderr)


def write_tables(files, paths):
    """Renews the tables of these markdown files."""
    for path in paths:
        text, differ = renewed(path, files)
        if differ:
            write_whole(path, text)
            print(f"Wrote the tables of {os.path.relpath(path)}: {', '.join(differ)}.",
                  file=sys.stderr)


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
