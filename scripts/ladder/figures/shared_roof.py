"""The roof that shared memory is: the bytes of a kernel's step, which the sim counts, against the
time of its products."""

from ladder import course
from ladder.figures.measured import Missing, need
from ladder.figures.names import PAPER_GRID, PEER_NAMES, gpu_text, label
from ladder.figures.replay import MATMUL_FLOPS
from ladder.figures.style import (INK, PANEL, PEER_LINES, darker, ink, margins, marker, spread,
                                  title_of)


# Of one SM, per cycle. CUDA C++ Programming Guide: 32 banks of 4 bytes.
SHARED_BYTES = 128
COUNTED = (1024, 2048)  # N and 2N


def step_of(files, rung, variant, kernel, d):
    """What a step of a kernel, one tile of Q against one of K, does to shared memory; None where it
    is not counted. A kernel does a·N² + b·N; twice as many tokens less twice the same leave 2a·N²,
    in which what comes once for a tile, at its begin or end, is not."""
    records = [entry.record for n in COUNTED for entry in files.sim.plain(
        "bwd" if files.about[rung, variant].backward else "fwd", rung=rung, variant=variant,
        seqlen=n, head_dim=d, causal=False)]
    counts = [k for record in records for k in record["kernels"] if k["name"] == kernel]
    if len(counts) != 2 or counts[0].get("sram_operand_bytes") is None:
        return None
    tile = records[0]["block_q"], records[0]["block_kv"]

    def of_a_step(*names):
        once, twice = (sum(count[name] for name in names) for count in counts)
        return (twice - 2 * once) * tile[0] * tile[1] // (2 * COUNTED[0] ** 2)

    cycles = of_a_step("matmul_flops") // MATMUL_FLOPS
    operands = of_a_step("sram_operand_bytes")
    every = of_a_step("sram_read_bytes", "sram_write_bytes")
    return {"d": d, "tile": tile, "cycles": cycles, "operands": operands, "every": every,
            "of_operands": operands / SHARED_BYTES / cycles,
            "of_every": every / SHARED_BYTES / cycles}


def steps(files):
    """[(rung, step), what step_of() says] of all that course.py names and the sim has counted."""
    found = [((rung, variant), step_of(files, rung, variant, kernel, d))
             for rung, variant, kernel in course.SHARED_ROOF if (rung, variant) in files.about
             for d in (64, 128)]
    return [(step, counted) for step, counted in found if counted]


def rate(by_length):
    """The rate at the largest N, in TFLOP/s, and that N."""
    return by_length[max(by_length)], max(by_length)


def shared_roof(files, missing):
    """Points: where a step stands by what its products read and by all bytes, and its share of the
    measured matmul rate; without a rate it has no point."""
    roofs = files.gpu.ceilings
    if not roofs:
        raise Missing(f"no ceilings were measured: {PAPER_GRID}, where PyTorch is installed")
    panels, counted = [], steps(files)
    for d in (64, 128):
        points, peers = [], []
        for step, one in counted:
            if one["d"] != d:
                continue
            rates = {e.seqlen: e.tflops for e in files.gpu.paper(
                files.own_way(step), None, d, False) if e.step == step}
            point = {**files.look(step), "label": label(step, files),
                     "operands": 1 / one["of_operands"], "every": 1 / one["of_every"], "y": None}
            if rates:
                tflops, n = rate(rates)
                point |= {"y": tflops / roofs["matmul_tflops"], "n": n, "tflops": tflops}
            else:
                missing(f"d = {d}: no time of {point['label']}: {PAPER_GRID}")
            points.append(point)
        for backend in course.SHARED_ROOF_PEERS:
            rates = {r["seqlen"]: r["tflops"] for r in files.gpu.paper_peers(
                "bwd", backend, d, False)}
            if rates:
                tflops, n = rate(rates)
                peers.append({"rung": backend, "y": tflops / roofs["matmul_tflops"], "n": n,
                              "label": PEER_NAMES[backend].partition(", ")[2]})
        if points:
            panels.append({"title": f"d = {d}", "points": points, "peers": peers})
    return {"title": f"The roof of shared memory: the backward pass, {gpu_text(files)}",
            "matmul_tflops": roofs["matmul_tflops"], "flops": MATMUL_FLOPS, "bytes": SHARED_BYTES,
            "panels": need(panels, "no counts of shared memory: scripts/figures measure --sim")}


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
