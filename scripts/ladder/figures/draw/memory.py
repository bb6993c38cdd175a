"""Draws bytes against N and against tiles."""

from ladder.figures.draw.style import (FAINT, INK, byte_axis, byte_tick, ink, length_axis, margins,
                                       marker, spread, title_of)
from ladder.text import bytes_text


def draw_traffic(plt, data):
    kinds, rows = data["kinds"], max(len(kind["rows"]) for kind in data["kinds"])
    figure, grid = plt.subplots(rows, len(kinds), figsize=(1.2 + 3.9 * len(kinds), 1 + 3.7 * rows),
                                squeeze=False, sharey=True)
    margins(figure, left=0.75, right=0.75, top=0.95, across=0.85, down=1.05)
    every = [y for kind in kinds for row in kind["rows"] for line in row["lines"]
             for y in line["y"] if y > 0]
    for column, kind in enumerate(kinds):
        for axis, row in zip(grid[:, column], kind["rows"]):
            length_axis(axis, {n for line in row["lines"] for n in line["x"]})
            byte_axis(axis)
            axis.set_ylim(min(every) / 4, max(every) * 2)
            for line in row["lines"]:
                axis.plot(line["x"], line["y"], color=line["colour"],
                          marker=marker(line), markersize=4.5,
                          ls="--" if line["backward"] else "-")
            spread(axis, [(line["x"][-1], line["y"][-1], line["label"], ink(line),
                           "bold") for line in row["lines"]], 10)
            slopes(axis, min(line["x"][0] for line in row["lines"]),
                   max(line["x"][-1] for line in row["lines"]), min(every))
            axis.set_title(f"{kind['title']}\n{row['title']}")
            axis.set_xlabel("N")
            axis.yaxis.set_tick_params(labelleft=column == 0)
    title_of(figure, data["title"])
    return figure


def slopes(axis, first, last, bottom):
    """What grows with N and with N², for the eye."""
    for power, text in ((1, "∝ N"), (2, "∝ N²")):
        top = bottom * 0.4 * (last / first) ** power
        axis.plot([first, last], [bottom * 0.4, top], color=FAINT, lw=0.8, ls=":", zorder=1)
        axis.text(last, top, f"{text} ", fontsize=7, color="#666660", ha="right", va="bottom")


def draw_workspace(plt, data):
    figure, axis = plt.subplots(figsize=(9.4, 5.4))
    margins(figure, left=0.95, right=2.4, top=0.6)
    positive = [y for line in data["lines"] for y in line["y"] if y > 0]
    floor = min(positive) / 6
    lengths = {n for line in data["lines"] for n in line["x"]} | {m["x"] for m in data["marks"]}
    length_axis(axis, lengths)
    byte_axis(axis)
    limit = data["memory_bytes"] and data["memory_bytes"] / data["heads"]
    top = max(positive + [m["y"] for m in data["marks"]] + ([limit] if limit else []))
    axis.set_ylim(floor / 1.5, top * 3)
    if limit:
        axis.axhline(limit, color=INK, lw=1, ls=(0, (5, 2)))
        axis.text(min(lengths), limit * 1.15, f"all of the {data['gpu']}'s "
                  f"{bytes_text(data['memory_bytes'])}, for "
                  f"{data['heads']} heads", fontsize=8)
    ends = []
    for line in data["lines"]:
        shown = [max(y, floor) for y in line["y"]]
        axis.plot(line["x"], shown, color=line["colour"],
                  marker=marker(line))
        text = line["label"] + ("" if any(line["y"]) else ": nothing")
        ends.append((line["x"][-1], shown[-1], text if len(text) < 26 else text.replace(
            ", ", ",\n"), ink(line), "bold"))
    spread(axis, ends, 24)
    for mark in data["marks"]:
        axis.plot(mark["x"], mark["y"], marker="x", color=mark["colour"], ls="",
                  markersize=10, mew=2.2, zorder=5)
    if data["marks"]:
        axis.text(max(m["x"] for m in data["marks"]), max(m["y"] for m in data["marks"]) * 1.5,
                  "✕ does not fit", ha="right", fontsize=8)
    axis.set_xlabel("N")
    axis.set_ylabel("bytes a head")
    title_of(figure, data["title"])
    return figure


def draw_block_size(plt, data):
    panels = data["panels"]
    figure, grid = plt.subplots(1, len(panels), figsize=(1.5 + 4.8 * len(panels), 4.4),
                                squeeze=False)
    margins(figure, left=0.85, right=1.25, top=0.8, across=2.0)
    for axis, panel in zip(grid.flat, panels):
        length_axis(axis, {x for line in panel["lines"] for x in line["x"]})
        for line in panel["lines"]:
            axis.plot(line["x"], line["y"], color=line["colour"],
                      marker=marker(line),
                      ls="-" if line["d"] == 64 else "--")
        axis.set_ylim(0, max(y for line in panel["lines"] for y in line["y"]) * 1.12)
        if panel["unit"] == "bytes":
            axis.yaxis.set_major_formatter(byte_tick)
            axis.set_ylabel("bytes a head")
        else:
            axis.set_ylabel("ms")
        spread(axis, [(line["x"][-1], line["y"][-1], line["label"], ink(line), "bold")
                      for line in panel["lines"]], 11)
        axis.set_title(panel["title"])
        axis.set_xlabel("Bc, rows of K and V in a tile")
    title_of(figure, data["title"])
    return figure
