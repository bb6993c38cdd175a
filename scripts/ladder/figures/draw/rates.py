"""Draws what is timed."""

import math

from ladder.figures.draw.style import (INK, PANEL, PEER_LINES, darker, ink, length_axis, margins,
                                       marker, spread, title_of)


def draw_speedup(plt, data):
    rows = sum(len(panel["bars"]) for panel in data["panels"])
    pairs = [data["panels"][i:i + 2] for i in range(0, len(data["panels"]), 2)]
    figure, grid = plt.subplots(len(pairs), 2, figsize=(11, 1.5 + 0.16 * rows), squeeze=False,
                                gridspec_kw={"height_ratios": [
                                    max(len(p["bars"]) for p in pair) + 1.5 for pair in pairs]})
    for axes, pair in zip(grid, pairs):
        for axis in axes[len(pair):]:
            axis.set_visible(False)
        for axis, panel in zip(axes, pair):
            bars = panel["bars"]
            least = min(0.8, min(bar["value"] for bar in bars) * 0.8)
            for i, bar in enumerate(bars):
                axis.barh(i, bar["value"] - least, left=least, height=0.72,
                          color=bar["colour"], alpha=1 if bar["default"] else 0.5)
                axis.text(bar["value"] * 1.06, i, bar["text"], va="center", fontsize=8,
                          fontweight="bold" if bar["default"] else "normal")
            axis.set_yticks(range(len(bars)), [bar["label"] for bar in bars])
            for tick, bar in zip(axis.get_yticklabels(), bars):
                tick.set_fontweight("bold" if bar["default"] else "normal")
            axis.invert_yaxis()
            axis.set_xscale("log")
            most = max(bar["value"] for bar in bars)
            axis.set_xlim(least, most * (most / least) ** 0.55)
            if most < 10:
                axis.set_xticks([tick for tick in (1, 2, 3, 5) if least <= tick <= 2 * most])
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
            axis.xaxis.set_minor_formatter("")
            axis.grid(axis="y", visible=False)
            axis.set_title(panel["title"])
    title_of(figure, data["title"])
    figure.text(0.012, 0.008, "Bold and dark: the rung's default. The scale is logarithmic.",
                fontsize=8, color="#555555")
    margins(figure, left=1.4, right=0.2, bottom=0.6, top=0.8, across=1.45, down=0.65)
    return figure


def draw_tflops(plt, data):
    rows = -(-len(data["panels"]) // 2)
    figure, grid = plt.subplots(rows, 2, figsize=(11.5, 1 + 3.9 * rows), squeeze=False, sharey=True)
    for axis in grid.flat[len(data["panels"]):]:
        axis.set_visible(False)
    margins(figure, left=0.6, right=1.75, top=0.8, across=2.1, down=0.85)
    lengths = sorted({n for panel in data["panels"] for line in panel["lines"] for n in line["x"]})
    lowest = min(y for panel in data["panels"] for line in panel["lines"] for y in line["y"])
    highest = max(y for panel in data["panels"] for line in panel["lines"] for y in line["y"])
    for axis, panel in zip(grid.flat, data["panels"]):
        length_axis(axis, lengths)
        axis.set_yscale("log")
        axis.set_ylim(lowest * 0.8, highest * 1.25)
        axis.set_yticks([t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 700)
                         if lowest * 0.8 <= t <= highest * 1.25])
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.tick_params(axis="y", which="minor", length=0)
        axis.yaxis.set_minor_formatter("")
        ends = []
        for line in panel["lines"]:
            end = (line["x"][-1], line["y"][-1], line["label"])
            if line["peer"]:
                tint, dashes = PEER_LINES[line["rung"]]
                axis.plot(line["x"], line["y"], color=tint, lw=0.9, ls=dashes, zorder=2)
                ends.append((*end, darker(tint), "normal"))
            else:
                axis.plot(line["x"], line["y"], color=line["colour"], marker=marker(line),
                          ls="--" if line["thin"] else "-", zorder=3)
                ends.append((*end, ink(line), "bold"))
        spread(axis, ends, 10.5, size=7.5)
        axis.set_title(panel["title"])
        axis.set_xlabel("N")
        axis.yaxis.set_tick_params(labelleft=True)
    for axes in grid:
        axes[0].set_ylabel("TFLOP/s")
    title_of(figure, data["title"])
    return figure


def draw_roofline(plt, data):
    panels = data["panels"]
    figure, grid = plt.subplots(1, len(panels), figsize=(1.5 + 5.4 * len(panels), 5.2),
                                squeeze=False, sharey=True)
    margins(figure, left=0.65, right=1.4, bottom=0.85, top=0.8, across=1.75)
    peak, slope = data["matmul_tflops"], data["copy_bytes_per_s"] / 1e12
    places = [x for panel in panels for p in panel["points"] for x in (p["requested"], p["dram"])
              if x]
    least, most = min(min(places) / 3, peak / slope / 10), max(max(places) * 2, peak / slope * 10)
    lowest = min(p["y"] for panel in panels for p in panel["points"]) / 2
    for axis, panel in zip(grid.flat, panels):
        axis.set_xscale("log")
        axis.set_yscale("log")
        knee = peak / slope
        axis.plot([least, knee, most], [least * slope, peak, peak], color=INK, lw=1.4, zorder=2)
        axis.fill_between([least, knee, most], [least * slope, peak, peak], peak * 4,
                          color="#ececE6", zorder=0)
        axis.text(most / 1.1, peak * 1.08, f"cuBLAS {peak:.0f} TFLOP/s", ha="right", fontsize=8)
        axis.set_xlim(least, most)
        axis.set_ylim(lowest, peak * 2.2)
        low = max(lowest, least * slope)
        angle = math.degrees(math.atan2(*(axis.transData.transform((low / slope * 10, low * 10))
                                          - axis.transData.transform((low / slope, low)))[::-1]))
        axis.text(low / slope * 2.2, low * 2.9, f"device copy {slope:.2f} TB/s", fontsize=8,
                  rotation=angle, rotation_mode="anchor")
        for p in panel["points"]:
            tint, mark = p["colour"], marker(p)
            axis.plot(p["requested"], p["y"], marker=mark, mfc=PANEL, mec=tint, mew=1.4, ls="",
                      markersize=7, zorder=4)
            if p["dram"]:
                axis.plot([p["requested"], p["dram"]], [p["y"]] * 2, color=tint, lw=0.9, zorder=3)
                axis.plot(p["dram"], p["y"], marker=mark, color=tint, ls="", markersize=8,
                          zorder=5)
        spread(axis, [(max(p["requested"], p["dram"] or 0), p["y"], p["label"], ink(p),
                       "bold") for p in panel["points"]], 11)
        axis.set_title(panel["title"])
        axis.set_xlabel("FLOP per byte of HBM traffic")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    grid[0][0].set_ylabel("TFLOP/s")
    figure.text(0.012, 0.012, "Hollow: by the bytes that the kernels request. Filled: by those "
                "that DRAM served; the line between them is what the caches keep away from it.",
                fontsize=8, color="#555555")
    title_of(figure, data["title"])
    return figure


def draw_shared_roof(plt, data):
    panels = data["panels"]
    figure, grid = plt.subplots(1, len(panels), figsize=(1.5 + 4.8 * len(panels), 4.6),
                                squeeze=False, sharey=True)
    margins(figure, left=0.75, right=1.25, bottom=1.0, top=0.8, across=1.4)
    most = 1.1 * max(1.5, *(p["operands"] for panel in panels for p in panel["points"]))
    for axis, panel in zip(grid.flat, panels):
        axis.set_xlim(0, most)
        axis.set_ylim(0, 1.12)
        axis.plot([0, 1, most], [0, 1, 1], color=INK, lw=1.4, zorder=2)
        axis.fill_between([0, 1, most], [0, 1, 1], 2, color="#ececE6", zorder=0)
        axis.text(most * 0.98, 1.03, f"cuBLAS {data['matmul_tflops']:.0f} TFLOP/s", ha="right",
                  fontsize=8)
        ends, lines = [], {}  # a line for all points that share it
        for p in panel["points"]:
            lines.setdefault(round(p["every"], 2), []).append(p)
        for x, (p, *others) in lines.items():
            axis.plot([x] * 2, [0, min(1, x)], color=p["colour"], lw=0.9, ls=(0, (2, 2)), zorder=3)
            right = x == max(lines)  # where no other line is beside it
            axis.text(x + most * (0.006 if right else -0.012), 0.02, ", ".join(
                [p["label"], *(other["label"].split()[-1] for other in others)]), rotation=90,
                ha="left" if right else "right", va="bottom", fontsize=7.5, color=ink(p))
        way = [p for p in panel["points"] if p["y"] is not None]
        axis.plot([p["every"] for p in way], [p["y"] for p in way], color=INK, lw=0.9, zorder=3)
        for p in panel["points"]:
            tint, mark = p["colour"], marker(p)
            if p["y"] is None:
                continue
            axis.plot([p["every"], p["operands"]], [p["y"]] * 2, color=tint, lw=0.9, zorder=3)
            axis.plot(p["operands"], p["y"], marker=mark, mfc=PANEL, mec=tint, mew=1.4, ls="",
                      markersize=7, zorder=4)
            axis.plot(p["every"], p["y"], marker=mark, color=tint, ls="", markersize=8, zorder=5)
            ends.append((p["operands"], p["y"], f"{p['label']} {p['tflops']:.0f}", ink(p), "bold"))
        for peer in panel["peers"]:
            tint, dashes = PEER_LINES[peer["rung"]]
            axis.axhline(peer["y"], color=tint, lw=0.9, ls=dashes, zorder=1)
            ends.append((most, peer["y"], peer["label"], darker(tint), "normal"))
        spread(axis, ends, 11)
        axis.set_title(panel["title"])
        axis.set_xlabel("the products' cycles for each cycle of shared memory")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    grid[0][0].set_ylabel("share of the matmul rate")
    figure.text(0.012, 0.02, f"By the sim's count of a step, {data['flops']:,} FLOPs and "
                f"{data['bytes']} bytes of shared memory a cycle and SM. Filled, and the dotted "
                "line: by all bytes. Hollow: by those alone\nthat products read. Each at the "
                "largest N that was measured; what has no point has no measurement yet.",
                fontsize=8, color="#555555", linespacing=1.35)
    title_of(figure, data["title"])
    return figure
