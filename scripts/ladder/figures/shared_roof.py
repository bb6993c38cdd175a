"""The roof that shared memory is: the bytes of a kernel's step, which the sim counts, against the
time of its products."""

from ladder import course
from ladder.figures.measured import need
from ladder.figures.names import HEADS, gpu_text, library, markdown, number
from ladder.figures.replay import MATMUL_FLOPS
from ladder.figures.style import INK, PEER_LINES, plots, roof, spread, two_marks

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
             for d in HEADS]
    return need([(step, counted) for step, counted in found if counted])


def shared_roof(files):
    """Points: where a step stands by what its products read and by all bytes, and its share of the
    measured matmul rate."""
    roofs, panels = files.gpu.roofs(), []

    def at_the_end(one, d):
        """The rate at the largest N that was measured, and its share."""
        rates = files.gpu.rates("bwd", one, d, False)
        n = max(rates, default=None)
        return rates and {"y": rates[n] / roofs["matmul_tflops"], "tflops": rates[n]}

    for d in HEADS:
        points = [{**files.look(step), "operands": 1 / one["of_operands"],
                   "every": 1 / one["of_every"], **rate} for step, one in steps(files)
                  if one["d"] == d and (rate := at_the_end(step, d))]
        peers = [{"rung": backend, "label": library(backend), **rate}
                 for backend in course.SHARED_ROOF_PEERS if (rate := at_the_end(backend, d))]
        panels.append({"title": f"d = {d}", "points": need(points), "peers": peers})
    return {"title": f"The roof of shared memory: the backward pass, {gpu_text(files)}",
            "matmul_tflops": roofs["matmul_tflops"], "flops": MATMUL_FLOPS, "bytes": SHARED_BYTES,
            "panels": panels}


def draw_shared_roof(plt, data):
    panels = data["panels"]
    figure, pairs = plots(
        plt, data, (1.5 + 4.8 * len(panels), 4.6),
        f"By the sim's count of a step, {data['flops']:,} FLOPs and {data['bytes']} bytes of "
        "shared memory a cycle and SM. Filled, and the dotted line: by all bytes. Hollow: by "
        "those alone\nthat products read. Each at the largest N that was measured.", sharey=True)
    most = 1.1 * max(1.5, *(p["operands"] for panel in panels for p in panel["points"]))
    for axis, panel in pairs:
        axis.set(xlim=(0, most), ylim=(0, 1.12),
                 xlabel="the products' cycles for each cycle of shared memory")
        roof(axis, [0, 1, most], [0, 1, 1], 2, f"cuBLAS {data['matmul_tflops']:.0f} TFLOP/s",
             (most * 0.98, 1.03))
        points = panel["points"]
        for p in points:
            axis.plot([p["every"]] * 2, [0, min(1, p["every"])], color=p["colour"], lw=0.9,
                      ls=(0, (2, 2)), zorder=3)
            two_marks(axis, p, p["y"], p["every"], p["operands"])
        axis.plot([p["every"] for p in points], [p["y"] for p in points], color=INK, lw=0.9)
        for peer in panel["peers"]:
            tint, dashes = PEER_LINES[peer["rung"]]
            axis.axhline(peer["y"], color=tint, lw=0.9, ls=dashes, zorder=1)
        spread(axis, [
            *((p["operands"], p["y"], p, f"{p['label']} {p['tflops']:.0f}") for p in points),
            *((most, peer["y"], peer, peer["label"]) for peer in panel["peers"])], 11)
        axis.yaxis.set_major_formatter("{x:.0%}")
    pairs[0][0].set_ylabel("share of the matmul rate")
    return figure


def shared_roof_table(files):
    """A line a step and head size: bytes of shared memory against the products' time."""
    rows = [[f"{number(step[0])} `{step[1]}`", str(one["d"]), "{} × {}".format(*one["tile"]),
             f"{one['cycles']:,}", f"{one['operands']:,}", f"{one['of_operands']:.2f}",
             f"{one['every']:,}", f"{one['of_every']:.2f}"] for step, one in steps(files)]
    lines = markdown(["step", "d", "tile", "products, cycles", "they read, bytes", "cycles of it",
                      "all bytes", "cycles of it"], rows, range(1, 8))
    return [*lines, "", (
        "A step is one tile of Q against one of K, in one block: what the sim counts at N = 2,048 "
        "less twice that at 1,024, which leaves what grows with N², bf16, no mask. One SM does "
        f"{MATMUL_FLOPS:,} FLOPs of dense 16-bit products a cycle, and reads or writes "
        f"{SHARED_BYTES} bytes of shared memory. “Cycles of it” are multiples of the products': "
        "from 1 on shared memory takes longer.")]
