"""Draws what all figures share: colours, axes and labels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any, Sequence

from ladder.base.console import NO_DEVICE, CommandError
from ladder.base.files import ROOT
from ladder.base.text import bytes_text
from ladder.show.measured import Data, length_text

# Types of matplotlib: pyplot, a figure, one of its axes. Any, because it is imported only to draw.
Pyplot = Any
Drawing = Any
Axis = Any

# PyTorch's backend → its line's colour and dashes.
PEER_LINES: dict[str, tuple[str, Any]] = {
    "flash": ("#222222", "-"), "cudnn": ("#222222", (0, (5, 2))),
    "efficient": ("#777777", (0, (1, 1.5))), "math": ("#777777", (0, (4, 2, 1, 2)))}
PANEL, INK, FAINT = "#fafaf7", "#222222", "#8f8f8a"
# matplotlib lays figures out in DejaVu Sans. Verdana is as wide; most systems have one of them.
FONTS = "'DejaVu Sans', Verdana, sans-serif"
DARK_PANEL, DARK_INK = "#0d1117", "#e6edf3"  # the colours of GitHub's dark pages


def mixed(colour: str, share: float, other: int = 0) -> str:
    """Returns a colour such as "#0072b2", mixed with black or, for `other` = 255, with white.
    `share` is the colour's fraction in the mixture, from 0 to 1."""
    return "#" + "".join(f"{round(other + share * (channel - other)):02x}"
                         for channel in channels(colour))


def channels(colour: str) -> list[int]:
    """Returns [red, green, blue] of a colour such as "#0072b2"."""
    return [int(colour[i:i + 2], 16) for i in (1, 3, 5)]


def finished(svg: str) -> str:
    """Returns matplotlib's SVG in the form that is stored: coordinates get two decimals, styles
    become classes, and unused ids are dropped, which cuts the size to a third. On a dark page, dark
    and light greys swap, and coloured text becomes lighter; bars, lines and marks keep their
    colours."""
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r"\s*\n\s*(?=[LMQCz\"])", " ", re.sub(r"\n\s+", "\n", svg))
    named = set(re.findall(r"#([\w.]+)[\")]", svg))
    svg = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in named else "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    looks = dict.fromkeys(re.findall(r'style="([^"]*)"', svg))
    light, dark = [], []
    for i, look in enumerate(looks):
        svg = svg.replace(f'style="{look}"', f'class="c{i}"')
        light.append(f".c{i} {{ {look} }}".replace("'DejaVu Sans'", FONTS))
        words = "font:" in look
        changes = "; ".join(
            f"{part}: {in_the_dark(colour)}" for part, colour in
            re.findall(r"(fill|stroke): (#[0-9a-f]{6})", look) if words or is_grey(colour))
        if changes:
            dark.append(f".c{i} {{ {changes} }}")
    style = "\n".join([*light, "@media (prefers-color-scheme: dark) {", *dark, "}"])
    return svg.replace("</style>", f"\n{style}</style>", 1)


def is_grey(colour: str) -> bool:
    return max(channels(colour)) - min(channels(colour)) < 16


def in_the_dark(colour: str) -> str:
    """Returns what a grey, or the colour of text, becomes on a dark page."""
    if not is_grey(colour):
        return mixed(colour, 0.5, 255)
    panel, ink_of = channels(PANEL)[0], channels(INK)[0]
    share = min(1, max(0, (panel - channels(colour)[0]) / (panel - ink_of)))
    return "#" + "".join(f"{round(dark + share * (light - dark)):02x}" for dark, light
                         in zip(channels(DARK_PANEL), channels(DARK_INK)))


def ink(line: Data) -> str:
    """Returns the colour for text about a line or a point, darker than its own, for contrast."""
    return mixed(line["colour"] if "colour" in line else PEER_LINES[line["rung"]][0], 0.74)


def pyplot() -> Pyplot:
    """Returns matplotlib's pyplot, set up for these figures. If only the system's own Python has
    matplotlib, restarts the command there; if neither has it, raises CommandError."""
    try:
        import matplotlib
    except ImportError as error:
        system = "/usr/bin/python3"
        ladder = os.path.join(ROOT, "scripts/ladder")
        if os.path.exists(system) and subprocess.run(
                [system, "-c", "import matplotlib"], stdin=subprocess.DEVNULL, capture_output=True,
                cwd=ladder, check=False).returncode == 0:
            os.execv(system, [system, ladder, "show.draw", *sys.argv[1:]])
        raise CommandError(f"matplotlib is missing ({error}). Debian and Ubuntu: apt-get install "
                           "python3-matplotlib; elsewhere: python3 -m pip install matplotlib",
                           NO_DEVICE) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    plt.rcdefaults()
    plt.rcParams.update({
        "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9.5,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "figure.facecolor": PANEL,
        "axes.facecolor": PANEL, "text.color": INK, "legend.frameon": False,
        "axes.edgecolor": FAINT, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#dcdcd6", "grid.linewidth": 0.6, "axes.axisbelow": True,
        "lines.linewidth": 1.8, "lines.markersize": 5, "svg.hashsalt": "ladder",
        "svg.fonttype": "none",  # keeps text as text: searchable, and a fifth of the bytes
        "figure.constrained_layout.use": True, "figure.constrained_layout.h_pad": 0.1,
        "figure.constrained_layout.w_pad": 0.1})
    return plt


def plots(plt: Pyplot, data: Data, size: tuple[float, float], note: str = "", columns: int = 0,
          **grid: Any) -> tuple[Drawing, list[tuple[Axis, Data]]]:
    """Returns a figure of `size` (width, height) inches with one axis per panel of `data`, in one
    row or in `columns` columns, with a title and a note at its foot; and [(axis, panel)]."""
    panels = data["panels"]
    columns = columns or len(panels)
    figure, axes = plt.subplots(-(-len(panels) // columns), columns, figsize=size, squeeze=False,
                                **grid)
    figure.suptitle(data["title"], x=0.012, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(note, x=0.012, ha="left", fontsize=8, color="#555555")
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels):
        axis.set_title(panel.get("title", ""))
    return figure, list(zip(axes.flat, panels))


def byte_tick(value: float, _: Any = None) -> str:
    return re.sub(r"\.0+ ", " ", bytes_text(value))


def row_axis(axis: Axis, rows: Sequence[Data]) -> None:
    """Turns the y axis into labelled rows, the first one at the top."""
    axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)


def two_marks(axis: Axis, point: Data, y: float, filled: float | None,
              hollow: float | None) -> None:
    """Draws marks at x = `filled` and x = `hollow` (unless None), with a line between them."""
    tint = point["colour"]
    if filled is not None and hollow is not None:
        axis.plot([filled, hollow], [y, y], color=tint, lw=0.9, zorder=3)
    looks: list[tuple[float | None, Data]] = [
        (hollow, {"mfc": PANEL, "mew": 1.4, "markersize": 7, "zorder": 4}),
        (filled, {"markersize": 8, "zorder": 5})]
    for x, look in looks:
        if x is not None:
            axis.plot(x, y, marker=point["marker"], color=tint, ls="", **look)


def roof(axis: Axis, x: Sequence[float], y: Sequence[float], top: float, text: str,
         text_at: tuple[float, float]) -> None:
    """Draws the line of the largest possible values, its area up to y = `top`, and its name."""
    axis.plot(x, y, color=INK, lw=1.4, zorder=2)
    axis.fill_between(x, y, top, color="#ececE6", zorder=0)
    axis.text(*text_at, text, ha="right", fontsize=8)


def draw_lines(axis: Axis, lines: Sequence[Data], xlabel: str = "N") -> None:
    """Draws lines over a logarithmic x axis, each labelled at its end: thick for a step, thin for a
    backend of PyTorch, dashed if its data say so."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted({x for line in lines for x in line["x"]}))
    axis.xaxis.set_major_formatter(length_text)
    axis.minorticks_off()
    axis.set_xlabel(xlabel)
    for line in lines:
        look = ({"color": line["colour"], "marker": line["marker"], "zorder": 3,
                 "ls": "--" if line.get("dashed") else "-"} if "colour" in line else
                dict(zip(("color", "ls"), PEER_LINES[line["rung"]]), lw=0.9))
        axis.plot(line["x"], line["y"], **look)
    spread(axis, [(line["x"][-1], line["y"][-1], line, line["label"]) for line in lines])


def spread(axis: Axis, labels: Sequence[tuple[float, float, Data, str]]) -> None:
    """Writes labels to the right of the axes, at least 11 points apart. A label is (x, y, line or
    point, text); x and y are in data coordinates."""
    gap = 11 / (axis.get_window_extent().height * 72 / axis.figure.dpi)
    places = []
    for *end, line, text in labels:
        height = axis.transAxes.inverted().transform(axis.transData.transform(end))[1]
        places.append([min(max(height, 0), 1), text, line, end])
    places.sort(key=lambda place: place[:2])
    for _ in range(500):
        for low, high in zip(places, places[1:]):
            apart = gap - (high[0] - low[0])
            if apart > 1e-9:
                low[0], high[0] = low[0] - apart / 2, high[0] + apart / 2
    for height, text, line, end in places:
        axis.annotate(text, xy=end, xytext=(1.03, height), textcoords="axes fraction", fontsize=8,
                      color=ink(line), va="center", annotation_clip=False,
                      fontweight="bold" if "colour" in line else "normal",
                      arrowprops={"arrowstyle": "-", "color": ink(line), "lw": 0.5, "alpha": 0.6,
                                  "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 4})
