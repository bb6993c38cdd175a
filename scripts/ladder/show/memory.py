"""Plots bytes of global and shared memory against N, the tile size and the time of products."""

from __future__ import annotations

import itertools

from ladder.base import course
from ladder.base.files import short_name
from ladder.base.hardware import MATMUL_FLOPS, SHARED_BYTES
from ladder.show.measured import (HEADS, Contender, Data, Files, bytes_a_head, length_text,
                                  library, need, number, of_the_paper, series)
from ladder.show.style import (FAINT, INK, PEER_LINES, Drawing, Pyplot, byte_tick, draw_lines,
                               plots, roof, spread, two_marks)


def traffic(files: Files) -> Data:
    """Returns, for each rung's default step, a line of bytes per head against N: one row of panels
    per head size, one column per kind of count."""
    panels = []
    for d in HEADS:
        for kind, title, measured in (
                ("requested", "requested (formula): from global memory", files.gpu),
                ("distinct", "distinct (simulator): each byte once per kernel", files.sim),
                ("dram", f"DRAM ({short_name(files.gpu.name)}'s counters): bytes that HBM served",
                 files.gpu)):
            lines = []
            for way, more in (("fwd", ""), ("bwd", " bwd")):
                lines += [{**files.look(step), "dashed": bool(more),
                           "label": number(step[0]) + more,
                           **series({r["seqlen"]: bytes_a_head(r, kind) for r in measured.plain(
                               way, rung=step[0], step=step[1], head_dim=d, causal=False)
                               if r["device"] == "sim" or of_the_paper(r)})}
                          for step in files.order
                          if files.gpu.is_default(step) and files.own_way(step) == way]
            panels.append({"title": f"{title}\nd = {d}",
                           "lines": [line for line in lines if line["x"]]})
    return {"title": "Bytes per head against N", "panels": panels}


def draw_traffic(plt: Pyplot, data: Data) -> Drawing:
    figure, pairs = plots(plt, data, (12.9, 8.4), columns=3, sharey=True)
    amounts = [y for _, panel in pairs for line in panel["lines"] for y in line["y"] if y > 0]
    for axis, panel in pairs:
        axis.set_visible(bool(panel["lines"]))
        if panel["lines"]:
            axis.set(yscale="log", ylim=(min(amounts) / 4, max(amounts) * 2))
            axis.yaxis.set_major_formatter(byte_tick)
            draw_lines(axis, panel["lines"])
            first, last = axis.get_xticks()[[0, -1]]
            for power, text in ((1, "∝ N"), (2, "∝ N²")):  # slopes to compare with
                ends = [min(amounts) * 0.4 * (n / first) ** power for n in (first, last)]
                axis.plot([first, last], ends, color=FAINT, lw=0.8, ls=":", zorder=1)
                axis.text(last, ends[1], f"{text} ", fontsize=7, color="#666660", ha="right",
                          va="bottom")
    return figure


def block_size(files: Files) -> Data:
    """Returns two panels against Bc, with a line per step and d: requested bytes, and time."""
    panels = []
    for title, unit, measured, value, steps in (
            ("requested bytes, N = {} (simulator)", "bytes per head", files.sim,
             lambda r: bytes_a_head(r, "requested"), course.BLOCK_SIZE_COUNTED),
            (f"time, N = {{}}, 16k tokens ({files.gpu.text()})", "ms", files.gpu,
             lambda r: r["time_ms"], course.BLOCK_SIZE_TIMED)):
        lines = []
        for step, d in itertools.product(steps, HEADS):
            tiled = [r for r in measured.find(rung=step[0], step=step[1], head_dim=d, block_q=64,
                                              causal=False) if "--block-" in r["options"]]
            line = series({r["block_kv"]: value(r) for r in tiled})
            if line["x"]:
                n = tiled[0]["seqlen"]
                lines.append({**files.look(step, f", d = {d}"), "dashed": d != 64, **line})
        if lines:
            panels.append({"title": title.format(n), "unit": unit, "lines": lines})
    return {"title": "FlashAttention-1 against the keys per tile, Bc (Br = 64)",
            "panels": need(panels)}


def draw_block_size(plt: Pyplot, data: Data) -> Drawing:
    figure, pairs = plots(plt, data, (1.5 + 4.8 * len(data["panels"]), 4.4))
    for axis, panel in pairs:
        axis.set(ylim=(0, max(y for line in panel["lines"] for y in line["y"]) * 1.12),
                 ylabel=panel["unit"])
        draw_lines(axis, panel["lines"], xlabel="Bc, rows of K and V per tile")
        if panel["unit"] != "ms":
            axis.yaxis.set_major_formatter(byte_tick)
    return figure


# ---- shared memory as a roof: a kernel's bytes against the time of its products ----

COUNTED = (512, 1024, 2048)  # N, 2N and 4N in shares()


def shares(files: Files, key: tuple[str, str, str], d: int) -> tuple[float, float] | None:
    """Returns the time that shared memory needs in an iteration (one tile of Q with one of K),
    divided by the time of its products: for the bytes that products read, and for all bytes.
    Returns None if the kernel `key`, (rung, step, name), is not counted. A count is a·N² + b·N + c,
    where a comes from iterations, b from tiles and c from persistent blocks. To find a: the count
    at 4N, minus three times that at 2N, plus twice that at N, is 6a·N²."""
    rung, step, name = key
    counts = [kernel for n in COUNTED for record in files.sim.plain(
        "bwd", rung=rung, step=step, seqlen=n, head_dim=d, causal=False)
        for kernel in record["kernels"] if kernel["name"] == name]
    if len(counts) < len(COUNTED):
        return None
    flops, operands, *accesses = (
        counts[2][name] - 3 * counts[1][name] + 2 * counts[0][name]
        for name in ("matmul_flops", "sram_operand_bytes", "sram_read_bytes", "sram_write_bytes"))
    per_byte = MATMUL_FLOPS / SHARED_BYTES / flops
    return operands * per_byte, sum(accesses) * per_byte


def shared_roof(files: Files) -> Data:
    """Returns each step's shares() and fraction of the matmul rate, and the peers' fractions, at
    the largest N for which all of these steps are measured."""
    roofs, panels = files.gpu.roofs(), []
    for d in HEADS:
        contenders: list[Contender] = [key[:2] for key in course.SHARED_ROOF]
        contenders += course.SHARED_ROOF_PEERS
        rates = {who: files.gpu.rates_by_n("bwd", who, d, False) for who in contenders}
        steps = need([(rates[key[:2]], key[:2], counted) for key in course.SHARED_ROOF
                      if rates[key[:2]] and (counted := shares(files, key, d))])
        n = max(need(set.intersection(*(set(by_n) for by_n, *_ in steps))))
        points = [{**files.look(step), "operands": operands, "every": every, "tflops": by_n[n],
                   "y": by_n[n] / roofs["matmul_tflops"]}
                  for by_n, step, (operands, every) in steps]
        peers = [{"rung": backend, "label": library(backend),
                  "y": rates[backend][n] / roofs["matmul_tflops"]}
                 for backend in course.SHARED_ROOF_PEERS if n in rates[backend]]
        panels.append({"title": f"d = {d}, N = {length_text(n)}", "points": points,
                       "peers": peers})
    return {"title": f"The roof set by shared memory: backward pass, {files.gpu.text()}",
            "matmul_tflops": roofs["matmul_tflops"], "flops": MATMUL_FLOPS, "bytes": SHARED_BYTES,
            "panels": panels}


def draw_shared_roof(plt: Pyplot, data: Data) -> Drawing:
    panels = data["panels"]
    figure, pairs = plots(
        plt, data, (1.5 + 4.8 * len(panels), 4.6),
        f"From the simulator's counts per iteration, with {data['flops']:,} FLOPs and "
        f"{data['bytes']} bytes of shared memory per cycle and SM. Filled marks and dotted lines: "
        "all bytes. Hollow marks: only\nthe bytes that products read.", sharey=True)
    most = 1.25 * max(1.5, *(p["every"] for panel in panels for p in panel["points"]))
    for axis, panel in pairs:
        axis.set(xlim=(0, most), ylim=(0, 1.12),
                 xlabel="shared-memory cycles per cycle of the products")
        full = [1 + (most - 1) * i / 40 for i in range(41)]  # from x = 1 on, shared memory is full
        roof(axis, [0, *full], [1, *(1 / x for x in full)], 2,
             f"cuBLAS {data['matmul_tflops']:.0f} TFLOP/s", (most * 0.98, 1.03))
        points = panel["points"]
        for p in points:
            axis.plot([p["every"]] * 2, [0, min(1, 1 / p["every"])], color=p["colour"], lw=0.9,
                      ls=(0, (2, 2)), zorder=3)
            two_marks(axis, p, p["y"], p["every"], p["operands"])
        axis.plot([p["every"] for p in points], [p["y"] for p in points], color=INK, lw=0.9)
        for peer in panel["peers"]:
            tint, dashes = PEER_LINES[peer["rung"]]
            axis.axhline(peer["y"], color=tint, lw=0.9, ls=dashes, zorder=1)
        spread(axis, [
            *((p["every"], p["y"], p, f"{p['label']} {p['tflops']:.0f}") for p in points),
            *((most, peer["y"], peer, peer["label"]) for peer in panel["peers"])])
        axis.yaxis.set_major_formatter("{x:.0%}")
    pairs[0][0].set_ylabel("fraction of the matmul rate")
    return figure
