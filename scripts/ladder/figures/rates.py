"""What is timed: each step's speed-up, rates against N, and the roofline."""

import math

from ladder import course
from ladder.figures.measured import Missing, flops, need, series
from ladder.figures.names import PAPER_GRID, PEERS, PEER_NAMES, gpu_text, label, number, point_text
from ladder.figures.style import (INK, PANEL, PEER_LINES, darker, ink, length_axis, margins,
                                  marker, spread, title_of)
from ladder.records import requested, total
from ladder.text import rate_text, ratio_text
from ladder.bench.workload import LADDER_LENGTH


def bar(files, step, base, entry):
    value = base.time_ms / entry.time_ms
    return {**files.look(step), "label": label(step, files), "value": value,
            "text": f"{ratio_text(value)}×   {rate_text(entry.tflops)} TFLOP/s",
            "default": files.gpu.is_default(step)}


def speedup(files, missing):
    n, panels = LADDER_LENGTH, []
    against = number(files.base()[0])
    for d in (64, 128):
        entries = files.gpu.paper("fwd", n, d, False)
        base = [e for e in entries if e.step == files.base()]
        if not base:
            missing(f"no time of {against} at N = {n}, d = {d}: {PAPER_GRID}")
            continue
        panels.append({"title": f"forward, d = {d}, against {against}", "bars": [
            bar(files, step, base[0], of[0]) for step, of in files.steps_of(entries)
            if files.own_way(step) == "fwd"]})
    for d in (64, 128):
        steps = files.steps_of(files.gpu.paper("bwd", n, d, False))
        if not steps:
            missing(f"no backward pass at N = {n}, d = {d}: {PAPER_GRID}")
            continue
        panels.append({"title": f"backward, d = {d}, against {label(steps[0][0])}", "bars": [
            bar(files, step, steps[0][1][0], of[0]) for step, of in steps]})
    return {"title": f"Speed-up, step by step (N = {n}, 16k tokens in all, "
                     f"{gpu_text(files)})", "panels": need(panels)}


def both_ways(entries_fwd, entries_bwd):
    """Rate of forward and backward together, by N."""
    forward = {e["seqlen"]: e for e in entries_fwd}
    points = {}
    for r in entries_bwd:
        f = forward.get(r["seqlen"])
        if f:
            points[r["seqlen"]] = ((flops(f) + flops(r)) / (f["time_ms"] + r["time_ms"])) * 1e-9
    return {"x": sorted(points), "y": [points[n] for n in sorted(points)]}


def our_lines(files, direction, d, causal):
    """Forward what stands for each rung, backward all steps but asides."""
    lines = []
    way = "bwd" if direction == "both" else direction
    for step, of in files.steps_of(files.gpu.paper(way, None, d, causal)):
        if way != files.own_way(step) or files.is_aside(step) or (
                way == "fwd" and not files.stands_for_its_rung(step)):
            continue
        if direction == "both":
            forward = [e.record for e in files.gpu.paper("fwd", None, d, causal)
                       if e.step == step]
            line = both_ways(forward, [e.record for e in of])
        else:
            line = series(of, lambda e: e.tflops)
        if line["x"]:
            lines.append({**files.look(step), "label": label(step, files), "peer": False,
                          "thin": not files.gpu.is_default(step), **line})
    return lines


def peer_lines(files, direction, d, causal, missing):
    lines = []
    for backend in PEERS:
        records = files.gpu.paper_peers("bwd" if direction == "both" else direction, backend, d,
                                        causal)
        if direction == "both":
            line = both_ways(files.gpu.paper_peers("fwd", backend, d, causal), records)
        else:
            line = {"x": [r["seqlen"] for r in records], "y": [r["tflops"] for r in records]}
        if line["x"]:
            lines.append({"rung": backend, "label": PEER_NAMES[backend], "peer": True,
                          "thin": True, **line})
        else:
            missing(f"{point_text(d, causal)}: no {PEER_NAMES[backend]}: {PAPER_GRID}, "
                    "where PyTorch is installed")
    return lines


def tflops(files, missing, direction):
    panels = []
    for d in (64, 128):
        for causal in (False, True):
            ours = our_lines(files, direction, d, causal)
            peers = peer_lines(files, direction, d, causal, missing)
            if ours:
                panels.append({"title": point_text(d, causal), "lines": ours + peers})
    what = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}[direction]
    need(panels, f"no times of the {what} pass: {PAPER_GRID}")
    return {"title": f"Rate of the {what} pass: 16k tokens in all, hidden size 2048, "
                     f"{gpu_text(files)}", "panels": panels}


def roofline(files, missing):
    roofs = files.gpu.ceilings
    if not roofs:
        raise Missing(f"no ceilings were measured: {PAPER_GRID}, where PyTorch is installed")
    n, panels = 4096, []
    for d in (64, 128):
        points = []
        for way in ("fwd", "bwd"):
            for step, of in files.steps_of(files.gpu.paper(way, n, d, False)):
                if way != files.own_way(step) or not (
                        files.stands_for_its_rung(step) or step in course.ROOFLINE_EXTRA):
                    continue
                r = of[0].record
                dram = total(r, "dram")
                points.append({**files.look(step), "label": label(step, files) + (
                    " bwd" if way == "bwd" else ""), "y": r["tflops"],
                    "requested": flops(r) / requested(r),
                    "dram": flops(r) / dram if dram else None})
        if points:
            bare = [p["label"] for p in points if p["dram"] is None]
            if bare:
                missing(f"d = {d}: DRAM counters of {', '.join(bare)}, drawn by what is requested "
                        f"alone: {PAPER_GRID}, where they may be read")
            panels.append({"title": f"d = {d}, N = {n}", "points": points})
    return {"title": f"Roofline: {gpu_text(files)}",
            "matmul_tflops": roofs["matmul_tflops"],
            "copy_bytes_per_s": roofs["copy_bytes_per_s"],
            "panels": need(panels, f"no times at N = {n}: {PAPER_GRID}")}


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
    figure.text(0.012, 0.006, "Hollow: by the bytes that the kernels request. Filled: by those "
                "that DRAM served; the line between them is what the caches keep away from it. A "
                "hollow mark may lie above the roof,\nwhich is DRAM's: what is requested again, L2 "
                "serves.",
                fontsize=8, color="#555555")
    title_of(figure, data["title"])
    return figure
