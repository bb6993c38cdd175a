"""The roof that shared memory is: the bytes of a kernel's step, which the sim counts, against the time
of its products."""

from ladder import course
from ladder.figures.data.missing import Missing, need
from ladder.figures.names import PAPER_GRID, PEER_NAMES, gpu_text, label
from ladder.figures.replay import MATMUL_FLOPS

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
            "panels": need(panels, "no counts of shared memory: scripts/bench.py --sim")}
