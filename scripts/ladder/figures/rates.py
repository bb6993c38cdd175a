"""What is timed: each step's speed-up, rates against N, and the roofline."""

import math

from ladder import course
from ladder.figures.measured import need
from ladder.figures.names import (HEADS, PAPER_GRID, PEERS, PEER_NAMES, POINTS, WAYS, gpu_text,
                                  label, number, point_text)
from ladder.figures.style import (PEER_LINES, length_axis, line_of, name_ends, note, plots, roof,
                                  spread, two_marks)
from ladder.records import flops, requested, total
from ladder.text import rate_text, ratio_text
from ladder.bench.workload import LADDER_LENGTH


def speedup(files, missing):
    n, panels = LADDER_LENGTH, []
    for way, what in (("fwd", f"time of {number(files.base()[0])}"), ("bwd", "backward pass")):
        for d in HEADS:
            timed = {step: of[0] for step, of in files.steps_of(
                files.gpu.paper(way, seqlen=n, head_dim=d, causal=False))}
            base = files.base() if way == "fwd" else next(iter(timed), None)
            if base not in timed:
                missing(f"no {what} at N = {n}, d = {d}: {PAPER_GRID}")
                continue
            bars = []
            for step, entry in timed.items():
                if way == files.own_way(step):
                    value = timed[base].time_ms / entry.time_ms
                    bars.append({**files.look(step), "value": value, "text": (
                        f"{ratio_text(value)}×   {rate_text(entry.tflops)} TFLOP/s"),
                        "default": files.gpu.is_default(step)})
            against = number(base[0]) if way == "fwd" else label(base)
            panels.append({"title": f"{WAYS[way]}, d = {d}, against {against}", "bars": bars})
    return {"title": f"Speed-up, step by step (N = {n}, 16k tokens in all, "
                     f"{gpu_text(files)})", "panels": need(panels)}


def rate_line(files, direction, one, point):
    rates = files.gpu.rates(direction, one, *point)
    return {"x": list(rates), "y": list(rates.values())}


def our_lines(files, direction, d, causal):
    """Forward what stands for each rung, backward all steps but asides."""
    way = "fwd" if direction == "fwd" else "bwd"
    lines = [{**files.look(step), "peer": False, "thin": not files.gpu.is_default(step),
              **rate_line(files, direction, step, (d, causal))}
             for step, _ in files.steps_of(files.gpu.paper(way, head_dim=d, causal=causal), way)
             if (files.stands_for_its_rung(step) if way == "fwd" else
                 not files.about[step].by_name_only)]
    return [line for line in lines if line["x"]]


def tflops(files, missing, direction):
    panels = []
    for point in POINTS:
        lines = our_lines(files, direction, *point)
        if lines:
            panels.append({"title": point_text(*point), "lines": lines})
        for backend in PEERS:
            line = rate_line(files, direction, backend, point)
            if line["x"]:
                lines.append({"rung": backend, "label": PEER_NAMES[backend], "peer": True,
                              "thin": True, **line})
            else:
                missing(f"{point_text(*point)}: no {PEER_NAMES[backend]}: {PAPER_GRID}, where "
                        "PyTorch is installed")
    need(panels, f"no times of the {WAYS[direction]} pass: {PAPER_GRID}")
    return {"title": f"Rate of the {WAYS[direction]} pass: 16k tokens in all, hidden size 2048, "
                     f"{gpu_text(files)}", "panels": panels}


def roofline(files, missing):
    roofs, n, panels = files.gpu.roofs(), 4096, []
    for d in HEADS:
        points = []
        for way in ("fwd", "bwd"):
            for step, (entry, *_) in files.steps_of(
                    files.gpu.paper(way, seqlen=n, head_dim=d, causal=False), way):
                if files.stands_for_its_rung(step) or step in course.ROOFLINE_EXTRA:
                    r = entry.record
                    dram = total(r, "dram")
                    points.append({**files.look(step, " bwd" if way == "bwd" else ""),
                                   "y": r["tflops"], "requested": flops(r) / requested(r),
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
    panels = data["panels"]
    tall = [1.5 + max(len(panel["bars"]) for panel in panels[i:i + 2])
            for i in range(0, len(panels), 2)]
    figure, pairs = plots(
        plt, panels, (11, 1.5 + 0.16 * sum(len(panel["bars"]) for panel in panels)),
        {"left": 1.4, "right": 0.2, "bottom": 0.6, "top": 0.8, "across": 1.45, "down": 0.65},
        columns=2, gridspec_kw={"height_ratios": tall})
    for axis, panel in pairs:
        bars = panel["bars"]
        least = min(0.8, min(bar["value"] for bar in bars) * 0.8)
        most = max(bar["value"] for bar in bars)
        weights = ["bold" if bar["default"] else "normal" for bar in bars]
        for i, bar in enumerate(bars):
            axis.barh(i, bar["value"] - least, left=least, height=0.72, color=bar["colour"],
                      alpha=1 if bar["default"] else 0.5)
            axis.text(bar["value"] * 1.06, i, bar["text"], va="center", fontsize=8,
                      fontweight=weights[i])
        axis.set_yticks(range(len(bars)), [bar["label"] for bar in bars])
        for tick, weight in zip(axis.get_yticklabels(), weights):
            tick.set_fontweight(weight)
        axis.invert_yaxis()
        axis.set(xscale="log", xlim=(least, most * (most / least) ** 0.55))
        if most < 10:
            axis.set_xticks([tick for tick in (1, 2, 3, 5) if least <= tick <= 2 * most])
        axis.xaxis.set_major_formatter("{x:g}×")
        axis.xaxis.set_minor_formatter("")
        axis.grid(axis="y", visible=False)
    note(figure, "Bold and dark: the rung's default. The scale is logarithmic.", 0.008)
    return figure


def draw_tflops(plt, data):
    panels = data["panels"]
    rows = -(-len(panels) // 2)
    figure, pairs = plots(plt, panels, (11.5, 1 + 3.9 * rows), {
        "left": 0.6, "right": 1.75, "top": 0.8, "across": 2.1, "down": 0.85},
        columns=2, sharey=True)
    lengths, rates = ({value for panel in panels for line in panel["lines"] for value in line[name]}
                      for name in "xy")
    lowest, highest = 0.8 * min(rates), 1.25 * max(rates)
    for i, (axis, panel) in enumerate(pairs):
        length_axis(axis, lengths)
        axis.set(yscale="log", ylim=(lowest, highest), xlabel="N",
                 ylabel="" if i % 2 else "TFLOP/s")
        axis.set_yticks([t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 700)
                         if lowest <= t <= highest])
        axis.yaxis.set_major_formatter("{x:g}")
        axis.tick_params(axis="y", which="minor", length=0)
        axis.yaxis.set_minor_formatter("")
        for line in panel["lines"]:
            if line["peer"]:
                tint, dashes = PEER_LINES[line["rung"]]
                axis.plot(line["x"], line["y"], color=tint, lw=0.9, ls=dashes, zorder=2)
            else:
                line_of(axis, line, ls="--" if line["thin"] else "-", zorder=3)
        name_ends(axis, panel["lines"], 10.5, size=7.5)
        axis.yaxis.set_tick_params(labelleft=True)
    return figure


def draw_roofline(plt, data):
    panels = data["panels"]
    figure, pairs = plots(plt, panels, (1.5 + 5.4 * len(panels), 5.2), {
        "left": 0.65, "right": 1.4, "bottom": 0.85, "top": 0.8, "across": 1.75}, sharey=True)
    peak, slope = data["matmul_tflops"], data["copy_bytes_per_s"] / 1e12
    knee = peak / slope
    places = [x for panel in panels for p in panel["points"] for x in (p["requested"], p["dram"])
              if x]
    least, most = min(min(places) / 3, knee / 10), max(max(places) * 2, knee * 10)
    lowest = min(p["y"] for panel in panels for p in panel["points"]) / 2
    low = max(lowest, least * slope)
    for axis, panel in pairs:
        axis.set(xscale="log", yscale="log", xlabel="FLOP per byte of HBM traffic")
        roof(axis, [least, knee, most], [least * slope, peak, peak], peak * 4,
             f"cuBLAS {peak:.0f} TFLOP/s", (most / 1.1, peak * 1.08))
        axis.set(xlim=(least, most), ylim=(lowest, peak * 2.2))
        angle = math.degrees(math.atan2(*(axis.transData.transform((low / slope * 10, low * 10))
                                          - axis.transData.transform((low / slope, low)))[::-1]))
        axis.text(low / slope * 2.2, low * 2.9, f"device copy {slope:.2f} TB/s", fontsize=8,
                  rotation=angle, rotation_mode="anchor")
        for p in panel["points"]:
            two_marks(axis, p, p["y"], p["dram"], p["requested"])
        spread(axis, [(max(p["requested"], p["dram"] or 0), p["y"], p, p["label"])
                      for p in panel["points"]], 11)
        axis.yaxis.set_major_formatter("{x:g}")
    pairs[0][0].set_ylabel("TFLOP/s")
    note(figure, "Hollow: by the bytes that the kernels request. Filled: by those that DRAM "
         "served; the line between them is what the caches keep away from it. A hollow mark may "
         "lie above the roof,\nwhich is DRAM's: what is requested again, L2 serves.", 0.006,
         linespacing=1.2)
    return figure
