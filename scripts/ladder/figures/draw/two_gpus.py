"""Draws what a step gains from one GPU to another."""

from ladder.figures.draw.style import INK, PANEL, ink, margins, marker, title_of


def draw_two_gpus(plt, data):
    panels, (first, second) = data["panels"], data["names"]
    most = max(len(panel["rows"]) for panel in panels)
    figure, grid = plt.subplots(1, len(panels), figsize=(1 + 5 * len(panels), 2.15 + 0.24 * most),
                                squeeze=False)
    known = [data["copy"], data["matmul"], 1] + [
        row[name] for panel in panels for row in panel["rows"] for name in ("gain", "expected")
        if row[name]]
    room = 0.06 * (max(known) - min(known))
    for axis, panel in zip(grid.flat, panels):
        rows = panel["rows"]
        # The names at two heights: the lines may stand close together.
        for name, value, dashes, up in (("matmul", data["matmul"], (0, (4, 2)), 13),
                                        ("copy in HBM", data["copy"], "-", 3)):
            axis.axvline(value, color=INK, lw=1.1, ls=dashes, zorder=1)
            axis.annotate(f"{name} {value:.2f}×", (value, 1), xytext=(0, up), ha="center",
                          va="bottom", xycoords=("data", "axes fraction"),
                          textcoords="offset points", fontsize=8)
        for i, row in enumerate(rows):
            tint, mark = row["colour"], marker(row)
            axis.plot(row["gain"], i, marker=mark, color=tint, ls="", markersize=7, zorder=4)
            if row["expected"]:
                axis.plot([row["gain"], row["expected"]], [i, i], color=tint, lw=0.9, zorder=2)
                axis.plot(row["expected"], i, marker=mark, mfc=PANEL, mec=tint, mew=1.4, ls="",
                          markersize=7, zorder=3)
                axis.annotate(f"{row['share']:.0%}", (1, i), xytext=(4, 0), va="center",
                              xycoords=("axes fraction", "data"), textcoords="offset points",
                              fontsize=8, color=ink(row))
        axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_xlim(min(known) - room, max(known) + room)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        axis.set_title(panel["title"], pad=28)
        axis.set_xlabel(f"time on the {first} over time on the {second}")
    figure.text(0.012, 0.02, f"Filled: measured. Hollow, and the number at the right: the part of the "
                f"time on the {first} that the step's DRAM bytes take at a copy's rate, and\nwhat is "
                "gained if that part follows the copy and all else takes as long as before.",
                fontsize=8, color="#555555", linespacing=1.35)
    margins(figure, left=1.45, right=0.6, bottom=1.0, top=1.1, across=1.95)
    title_of(figure, data["title"])
    return figure
