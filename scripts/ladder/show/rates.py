"""Plots times: the speed-up of rungs and steps, rates against N, the roofline, and decoding."""

from __future__ import annotations

import itertools
import math

from ladder.base import course
from ladder.base.records import Point, Record, flops, requested, total
from ladder.base.text import rate_text
from ladder.show.measured import (HEADS, PEERS, PEER_NAMES, POINTS, WAYS, Contender, Data, Files,
                                  label, library, need, number, point_text, series)
from ladder.show.style import (FAINT, INK, Axis, Drawing, Pyplot, byte_tick, draw_lines, plots,
                               roof, row_axis, spread, two_marks)


def speedup(files: Files) -> Data:
    """Returns a bar, TFLOP/s, per pass, d and step that stands for its rung, and per peer."""
    panels = []
    for way, d in itertools.product(("fwd", "bwd"), HEADS):
        timed = files.at(way, course.LADDER_LENGTH, d)
        base = timed.get(files.base)
        bars = []
        for step, record in timed.items():
            if way == files.own_way(step) and files.stands_for_its_rung(step):
                times = (f" ({rate_text(base['time_ms'] / record['time_ms'])}×)"
                         if base and way == "fwd" and step != files.base else "")
                bars.append({**files.look(step), "value": record["tflops"],
                             "text": rate_text(record["tflops"]) + times})
        for backend in PEERS[:2]:
            rate = files.gpu.rates(way, backend).get((course.LADDER_LENGTH, d, False))
            if rate and bars:
                bars.append({"label": library(backend), "colour": FAINT, "value": rate,
                             "text": rate_text(rate)})
        if bars:
            panels.append({"title": f"{WAYS[way]}, d = {d}", "bars": bars})
    return {"title": f"TFLOP/s of each rung's last step (N = {course.LADDER_LENGTH}, "
                     f"{files.gpu.text()})", "panels": need(panels)}


def draw_speedup(plt: Pyplot, data: Data) -> Drawing:
    figure, pairs = bar_panels(
        plt, data, "In brackets: how many times as fast as the first rung. Grey: "
        f"{' and '.join(map(library, PEERS[:2]))}, through PyTorch.")
    most = max(bar["value"] for _, panel in pairs for bar in panel["bars"])
    for axis, panel in pairs:
        for i, bar in enumerate(panel["bars"]):
            axis.barh(i, bar["value"], height=0.72, color=bar["colour"])
            axis.text(bar["value"] + most * 0.015, i, bar["text"], va="center")
        axis.set(xlim=(0, most * 1.25), xlabel="TFLOP/s")
    return figure


def bar_panels(plt: Pyplot, data: Data, note: str) -> tuple[Drawing, list[tuple[Axis, Data]]]:
    """Returns a figure with panels in two columns, one row per bar, and [(axis, panel)]."""
    panels = data["panels"]
    tall = [1.5 + max(len(panel["bars"]) for panel in panels[i:i + 2])
            for i in range(0, len(panels), 2)]
    figure, pairs = plots(plt, data, (11, 1.5 + 0.32 * sum(tall)), note, columns=2,
                          gridspec_kw={"height_ratios": tall})
    for axis, panel in pairs:
        row_axis(axis, panel["bars"])
        axis.grid(axis="y", visible=False)
    return figure, pairs


def speedup_steps(files: Files) -> Data:
    """Returns a bar per pass, d and step: how many times as fast as the first step it is."""
    panels = []
    for way, d in itertools.product(("fwd", "bwd"), HEADS):
        timed = files.at(way, course.LADDER_LENGTH, d)
        base = files.base if way == "fwd" else next(iter(timed), files.base)
        if base in timed:
            against = number(base[0]) if way == "fwd" else label(base)
            values = {step: timed[base]["time_ms"] / record["time_ms"]
                      for step, record in timed.items() if way == files.own_way(step)}
            panels.append({"title": f"{WAYS[way]}, d = {d}, against {against}", "bars": [
                {**files.look(step), "value": value, "default": files.gpu.is_default(step),
                 "text": f"{rate_text(value)}×   {rate_text(timed[step]['tflops'])} TFLOP/s"}
                for step, value in values.items()]})
    return {"title": f"Speed-up, step by step (N = {course.LADDER_LENGTH}, 16k tokens in total, "
                     f"{files.gpu.text()})", "panels": need(panels)}


def draw_speedup_steps(plt: Pyplot, data: Data) -> Drawing:
    figure, pairs = bar_panels(plt, data,
                               "Bold and dark: the rung's default. The scale is logarithmic.")
    for axis, panel in pairs:
        bars = panel["bars"]
        values = [bar["value"] for bar in bars]
        least, most = min(0.8, min(values) * 0.8), max(values)
        for i, (bar, tick) in enumerate(zip(bars, axis.get_yticklabels())):
            axis.barh(i, bar["value"] - least, left=least, height=0.72, color=bar["colour"],
                      alpha=1 if bar["default"] else 0.5)
            name = axis.text(bar["value"] * 1.06, i, bar["text"], va="center", fontsize=8)
            for text in (name, tick):
                text.set_fontweight("bold" if bar["default"] else "normal")
        axis.set(xscale="log", xlim=(least, most * (most / least) ** 0.55))
        if most < 10:
            axis.set_xticks([tick for tick in (1, 2, 3, 5) if least <= tick <= 2 * most])
        axis.xaxis.set_major_formatter("{x:g}×")
        axis.xaxis.set_minor_formatter("")
    return figure


def tflops(files: Files, way: str) -> Data:
    """Returns the rates of a pass against N: forward those of the steps that stand for their rungs,
    backward those of all steps except asides."""
    panels = []
    for d, causal in POINTS:
        steps = [step for step in files.order
                 if files.own_way(step) == way and files.gpu.rates_by_n(way, step, d, causal)
                 and (files.stands_for_its_rung(step) if way == "fwd" else
                      not files.about[step].by_name_only)]
        looks: dict[Contender, Data] = {
            step: {**files.look(step), "dashed": not files.gpu.is_default(step)} for step in steps}
        looks |= {backend: {"rung": backend, "label": name} for backend, name in PEER_NAMES.items()}
        lines = [{**look, **series(files.gpu.rates_by_n(way, contender, d, causal))}
                 for contender, look in looks.items()]
        if steps:
            panels.append({"title": point_text(d, causal),
                           "lines": [line for line in lines if line["x"]]})
    return {"title": f"Rate of the {WAYS[way]} pass: 16k tokens in total, hidden size 2048, "
                     f"{files.gpu.text()}", "panels": need(panels)}


def draw_tflops(plt: Pyplot, data: Data) -> Drawing:
    panels = data["panels"]
    figure, pairs = plots(plt, data, (11.5, 1 + 3.9 * -(-len(panels) // 2)), columns=2, sharey=True)
    rates = [y for panel in panels for line in panel["lines"] for y in line["y"]]
    lowest, highest = 0.8 * min(rates), 1.25 * max(rates)
    for axis, panel in pairs:
        axis.set(yscale="log", ylim=(lowest, highest), ylabel="TFLOP/s")
        axis.set_yticks([t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 700)
                         if lowest <= t <= highest])
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
        axis.tick_params(axis="y", which="minor", length=0)
        draw_lines(axis, panel["lines"])
    return figure


def roofline(files: Files) -> Data:
    """Returns the points of the roofline: one for each step that stands for its rung and, for
    decoding, one for each ratio H/Hk, at that intensity, with the largest cache measured."""
    roofs, n, panels = files.gpu.roofs(), 4096, []
    for d in HEADS:
        points = []
        for way in ("fwd", "bwd"):
            for step, r in files.at(way, n, d).items():
                if files.own_way(step) == way and (
                        files.stands_for_its_rung(step) or step in course.ROOFLINE_EXTRA):
                    dram = total(r, "dram")
                    points.append({**files.look(step, " bwd" if way == "bwd" else ""),
                                   "y": r["tflops"], "requested": flops(r) / need(requested(r)),
                                   "dram": flops(r) / dram if dram else None})
        if points:
            largest = {r["heads"] // r["kv_heads"]: r for r in sorted(
                files.gpu.decoding(), key=lambda r: r["batch"] * r["kv_heads"] * r["seqlen_kv"])
                if r["head_dim"] == d}
            for ratio, r in sorted(largest.items()):
                step = next(step for step in files.order if step[0] == r["rung"])  # for its colour
                points.append({**files.look(step), "label": f"decode, H/Hk = {ratio}",
                               "y": r["tflops"], "requested": ratio, "dram": None})
            panels.append({"title": f"d = {d}, N = {n}", "points": points})
    return {"title": f"Roofline: {files.gpu.text()}", "matmul_tflops": roofs["matmul_tflops"],
            "copy_bytes_per_s": roofs["copy_bytes_per_s"], "panels": need(panels)}


def draw_roofline(plt: Pyplot, data: Data) -> Drawing:
    panels = data["panels"]
    figure, pairs = plots(
        plt, data, (1.5 + 5.4 * len(panels), 5.2),
        "Hollow marks: FLOPs per requested byte. Filled marks: FLOPs per byte that DRAM served. "
        "The line between them shows the effect of the caches. A hollow mark may be above\nthe "
        "roof, because the roof is DRAM's, and L2 serves repeated requests.", sharey=True)
    peak, slope = data["matmul_tflops"], data["copy_bytes_per_s"] / 1e12
    knee = peak / slope
    points = [p for panel in panels for p in panel["points"]]
    places = [x for p in points for x in (p["requested"], p["dram"]) if x]
    least, most = min(min(places) / 3, knee / 10), max(max(places) * 2, knee * 10)
    lowest = min(p["y"] for p in points) / 2
    low = max(lowest, least * slope)
    for axis, panel in pairs:
        axis.set(xscale="log", yscale="log", xlabel="FLOPs per byte")
        roof(axis, [least, knee, most], [least * slope, peak, peak], peak * 4,
             f"cuBLAS {peak:.0f} TFLOP/s", (most / 1.1, peak * 1.08))
        axis.set(xlim=(least, most), ylim=(lowest, peak * 2.2))
        x, y = low / slope * 2.2, low * 2.9  # above the roof and parallel to it
        axis.text(x, y, f"device copy {slope:.2f} TB/s", fontsize=8, rotation_mode="anchor",
                  rotation=math.degrees(math.atan2(y, x)), transform_rotates_text=True)
        for p in panel["points"]:
            two_marks(axis, p, p["y"], p["dram"], p["requested"])
        spread(axis, [(max(p["requested"], p["dram"] or 0), p["y"], p, p["label"])
                      for p in panel["points"]])
        axis.yaxis.set_major_formatter("{x:g}")
    pairs[0][0].set_ylabel("TFLOP/s")
    return figure


# ---- decoding: how fast the cache of K and V is read, compared with PyTorch and with a copy ----

CACHE_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8A6D00"]


def decode(files: Files) -> Data:
    """Returns lines through the caches of one batch and H/Hk: the bytes of K and V, and how fast
    our step and cuDNN read them, as fractions of a device copy's rate."""
    theirs = {Point.key(r): r
              for r in files.gpu.peers if r["library"] == "cudnn" and r["direction"] == "fwd"}
    lines: dict[str, dict[str, list[float]]] = {}
    for record in sorted(files.gpu.decoding(), key=cache_bytes):
        peer = theirs.get(Point.key(record))
        if peer:
            name = f"batch {record['batch']}, H/Hk = {record['heads'] // record['kv_heads']}"
            line = lines.setdefault(name, {"bytes": [], "ours": [], "cudnn": []})
            line["bytes"].append(cache_bytes(record))
            for who, ms in (("ours", record["time_ms"]), ("cudnn", peer["time_ms"])):
                line[who].append(cache_bytes(record) / ms * 1e3 / peer["copy_bytes_per_s"])
    return {"title": f"Decoding: one query per head, {files.gpu.text()}",
            "panels": [dict(sorted(need(lines).items()))]}


def cache_bytes(record: Record) -> int:
    """Returns the bytes of K and V together, at two bytes per element."""
    return 4 * record["batch"] * record["kv_heads"] * record["seqlen_kv"] * record["head_dim"]


def draw_decode(plt: Pyplot, data: Data) -> Drawing:
    figure, [(axis, lines)] = plots(
        plt, data, (8.5, 4.6),
        "Each line joins d = 64 and d = 128. If more query heads share a head of K and V, the same "
        "queries read\nfewer bytes, and a small cache is read before the copy's rate is reached.")
    axis.set(xscale="log", ylim=(0, 1.15), xlabel="bytes of K and V",
             ylabel="fraction of the device copy's rate")
    axis.xaxis.set_major_formatter(byte_tick)
    axis.axhline(1, color=FAINT, lw=1)
    beside = {"marker": "o", "mfc": "none", "lw": 1, "ls": "--"}
    for (name, line), tint in zip(lines.items(), CACHE_COLOURS):
        axis.plot(line["bytes"], line["ours"], color=tint, marker="o", label=name)
        axis.plot(line["bytes"], line["cudnn"], color=tint, **beside)
    axis.plot([], [], color=INK, label=PEER_NAMES["cudnn"], **beside)
    axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=8)
    return figure
