"""What is timed: each step's speed-up, rates against N, and the roofline."""

from ladder import course
from ladder.figures.data.missing import Missing, need, series
from ladder.figures.measured import flops
from ladder.figures.names import (PAPER_GRID, PEER_NAMES, PEERS, gpu_text, label, number,
                                  point_text)
from ladder.records import requested, total
from ladder.text import rate_text, ratio_text
from ladder.workload import LADDER_LENGTH


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
