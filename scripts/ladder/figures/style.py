"""Colours, axes and labels that figures share."""

import itertools
import os
import re
import subprocess
import sys

from ladder.console import NO_DEVICE, Stop
from ladder.figures.names import length_text
from ladder.text import bytes_text

# A rung's colour is its registration's; the marker goes by its place in the ladder.
MARKERS = ["o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h", "*"]
# PyTorch's backends: colour and dashes.
PEER_LINES = {"flash": ("#222222", "-"), "cudnn": ("#222222", (0, (5, 2))),
              "efficient": ("#777777", (0, (1, 1.5))), "math": ("#777777", (0, (4, 2, 1, 2)))}
READ, WRITE = "#0072B2", "#E69F00"
PANEL, INK, FAINT = "#fafaf7", "#222222", "#8f8f8a"


def marker(one):
    """Of a line, a point or a row of a figure's data."""
    return MARKERS[one["place"] % len(MARKERS)]


def ink(one):
    """Its colour for words, which need more contrast than lines."""
    return darker(one["colour"] if "colour" in one else PEER_LINES[one["rung"]][0])


def darker(value):
    value = value.lstrip("#")
    return "#" + "".join(f"{int(int(value[i:i + 2], 16) * 0.74):02x}" for i in (0, 2, 4))


def pyplot():
    """Without matplotlib, goes on in the system's own Python if that one has it: another that comes
    first on PATH need not see the system's packages."""
    try:
        import matplotlib
    except ImportError as error:
        system = "/usr/bin/python3"
        if os.path.exists(system) and subprocess.run(
                [system, "-c", "import matplotlib"], stdin=subprocess.DEVNULL, capture_output=True,
                check=False).returncode == 0:
            os.execv(system, [system, "-m", "ladder.figures.command", *sys.argv[1:]])
        raise Stop(f"matplotlib is missing ({error}). Debian and Ubuntu: apt-get install "
                   "python3-matplotlib; elsewhere: python3 -m pip install matplotlib",
                   NO_DEVICE) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    plt.rcdefaults()
    plt.rcParams.update({
        "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9.5,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "figure.facecolor": PANEL,
        "axes.facecolor": PANEL, "savefig.facecolor": PANEL, "text.color": INK,
        "axes.edgecolor": FAINT, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#dcdcd6", "grid.linewidth": 0.6, "axes.axisbelow": True,
        "lines.linewidth": 1.8, "lines.markersize": 5, "svg.hashsalt": "ladder",
        "svg.fonttype": "path", "figure.dpi": 100, "savefig.dpi": 110})
    return plt


def plots(plt, panels, size, room, columns=None, **grid):
    """A figure with a plot for each panel, under its title, all in a row or in so many columns, and
    [(axis, panel)]. Where the panel is None nothing is shown. `room`: of margins()."""
    columns = columns or len(panels)
    figure, axes = plt.subplots(-(-len(panels) // columns), columns, figsize=size, squeeze=False,
                                **grid)
    margins(figure, **room)
    pairs = list(itertools.zip_longest(axes.flat, panels))
    for axis, panel in pairs:
        axis.set_visible(panel is not None)
        axis.set_title((panel or {}).get("title", ""))
    return figure, [pair for pair in pairs if pair[1] is not None]


def margins(figure, left=0.75, right=0.3, bottom=0.55, top=0.75, across=0.8, down=0.9):
    """All in inches, so that what is written outside of the axes has its room."""
    width, height = figure.get_size_inches()
    grid = figure.axes[0].get_subplotspec().get_gridspec()
    wide = (width - left - right - across * (grid.ncols - 1)) / grid.ncols
    high = (height - top - bottom - down * (grid.nrows - 1)) / grid.nrows
    figure.subplots_adjust(left=left / width, right=1 - right / width, bottom=bottom / height,
                           top=1 - top / height, wspace=across / wide, hspace=down / high)


def title_of(figure, text):
    figure.suptitle(text, x=0.012, ha="left", fontsize=11, fontweight="bold")


def note(figure, text, y=0.02, **changes):
    """At the foot of a figure."""
    figure.text(0.012, y, text, **{"fontsize": 8, "color": "#555555", "linespacing": 1.35,
                                   **changes})


def length_axis(axis, lengths):
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(lengths))
    axis.xaxis.set_major_formatter(length_text)
    axis.minorticks_off()


def byte_tick(value, _=None):
    return re.sub(r"\.0+ ", " ", bytes_text(round(value)))


def byte_axis(axis):
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(byte_tick)
    axis.tick_params(axis="y", which="minor", length=0)


def row_axis(axis, rows):
    """A row for each, from the top."""
    axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)


def two_marks(axis, one, y, filled, hollow, size=8, over=3):
    """Of a point with two places, either of which may be None, with a line between them."""
    tint = one["colour"]
    if filled is not None and hollow is not None:
        axis.plot([filled, hollow], [y, y], color=tint, lw=0.9, zorder=over)
    if hollow is not None:
        axis.plot(hollow, y, marker=marker(one), mfc=PANEL, mec=tint, mew=1.4, ls="", markersize=7,
                  zorder=over + 1)
    if filled is not None:
        axis.plot(filled, y, marker=marker(one), color=tint, ls="", markersize=size,
                  zorder=over + 2)


def roof(axis, x, y, top, text, at):
    """The most that can be reached, and its name above its end."""
    axis.plot(x, y, color=INK, lw=1.4, zorder=2)
    axis.fill_between(x, y, top, color="#ececE6", zorder=0)
    axis.text(*at, text, ha="right", fontsize=8)


def line_of(axis, line, **look):
    """Of a figure's data, in its colour and with its marker."""
    axis.plot(line["x"], line["y"], color=line["colour"], marker=marker(line), **look)


def name_ends(axis, lines, gap, size=8):
    """The lines' names at their ends."""
    spread(axis, [(line["x"][-1], line["y"][-1], line, line["label"]) for line in lines], gap, size)


def spread(axis, labels, gap, size=8):
    """Direct labels right of the axes, moved apart: [(x, y of the line's end, line or point,
    text)]; `gap` between two in points."""
    height = axis.get_window_extent().height * 72 / axis.figure.dpi
    places = []
    for *end, one, text in labels:
        at = axis.transAxes.inverted().transform(axis.transData.transform(end))[1]
        places.append([min(max(at, 0), 1), text, one, end])
    places.sort(key=lambda place: place[:2])
    step = gap / height
    for _ in range(500):
        moved = False
        for low, high in zip(places, places[1:]):
            if high[0] - low[0] < step - 1e-9:
                middle = (high[0] + low[0]) / 2
                low[0], high[0], moved = middle - step / 2, middle + step / 2, True
        if not moved:
            break
    for at, text, one, end in places:
        axis.annotate(text, xy=end, xytext=(1.03, at), xycoords="data", textcoords="axes fraction",
                      fontsize=size, color=ink(one), va="center", ha="left", annotation_clip=False,
                      fontweight="bold" if "colour" in one else "normal",
                      arrowprops={"arrowstyle": "-", "color": ink(one), "lw": 0.5, "alpha": 0.6,
                                  "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 4})
