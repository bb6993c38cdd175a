"""Draws errors."""

from ladder.figures.draw.style import INK, margins, marker, title_of


def draw_error(plt, data):
    from matplotlib.ticker import LogLocator
    panels = data["panels"]
    most = max(len(panel["rows"]) for panel in panels)
    figure, grid = plt.subplots(1, len(panels), figsize=(1 + 5 * len(panels), 1.4 + 0.24 * most),
                                squeeze=False)
    for axis, panel in zip(grid.flat, panels):
        for i, row in enumerate(panel["rows"]):
            tint = row["colour"]
            if row["max"] is None:
                axis.text(row["tolerance"], i, "  not finite", va="center", fontsize=8,
                          color=tint, fontweight="bold")
            elif row["max"] > 0:
                axis.plot([row["max"], row["tolerance"]], [i, i], color=tint, lw=0.9, alpha=0.5)
                axis.plot(row["max"], i, marker=marker(row), color=tint,
                          ls="", markersize=7)
            axis.plot(row["tolerance"], i, marker="|", color=INK, ls="", markersize=11, mew=1.6)
        axis.set_yticks(range(len(panel["rows"])), [row["label"] for row in panel["rows"]])
        axis.set_ylim(len(panel["rows"]) - 0.4, -0.6)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")
                                       .replace("e+00", ""))
        axis.tick_params(axis="x", which="minor", length=0)
        shown = [x for row in panel["rows"] for x in (row["max"], row["tolerance"]) if x]
        axis.set_xlim(min(shown) / 2, max(shown) * 2)
        axis.set_title(panel["title"])
        axis.set_xlabel("max |out - reference|; the bar is the tolerance")
    margins(figure, left=1.45, right=0.2, bottom=0.6, top=0.8, across=1.6)
    title_of(figure, data["title"])
    return figure


def draw_fp8_error(plt, data):
    from matplotlib.ticker import LogLocator
    panels = data["panels"]
    rows = len(panels[0]["rows"])
    figure, grid = plt.subplots(1, len(panels), figsize=(2.4 + 2.6 * len(panels), 1.5 + 0.24 * rows),
                                squeeze=False, sharey=True)
    for axis, panel in zip(grid.flat, panels):
        least = min(row["rms"] for row in panel["rows"]) / 2
        for i, row in enumerate(panel["rows"]):
            axis.plot([least, row["rms"]], [i, i], color=row["colour"], lw=0.9, alpha=0.5)
            axis.plot(row["rms"], i, marker=marker(row), color=row["colour"], ls="", markersize=7)
            axis.text(row["rms"] * 1.25, i, f"{row['rms']:.1e}".replace("e-0", "e-"), va="center",
                      fontsize=7, color=INK)
        axis.set_yticks(range(rows), [row["label"] for row in panels[0]["rows"]])
        axis.set_ylim(rows - 0.4, -0.6)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(numticks=5))
        axis.set_xlim(least, max(row["rms"] for row in panel["rows"]) * 6)
        axis.set_title(panel["title"])
        axis.set_xlabel("RMSE")
    margins(figure, left=1.75, right=0.2, bottom=0.6, top=0.8, across=0.2)
    title_of(figure, data["title"])
    return figure
