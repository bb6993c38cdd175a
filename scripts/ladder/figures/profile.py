"""Where the cycles of the last steps' kernels go, by the GPU's counters."""

from ladder.figures.measured import need
from ladder.figures.names import markdown, number

# [(what a line says, the sum of which counts, of what)]
LINES = [
    ("cycles", ["cycles"], "sm"),
    ("tensor cores busy", ["products_busy"], "share"),
    ("cycles of shared memory, without what TMA writes", ["shared"], "sm"),
    ("… for products", ["shared_products"], "sm"),
    ("… for bank conflicts", ["shared_conflicts"], "sm"),
    ("instructions of warps", ["instructions"], "gpu"),
    ("… wgmma", ["instructions_products"], "gpu"),
    ("… fp32", ["instructions_fp32"], "gpu"),
    ("… integers, comparisons, conversions", ["instructions_integers"], "gpu"),
    ("… of the uniform unit: addresses, descriptors", ["instructions_uniform"], "gpu"),
    ("… exponentials", ["instructions_special"], "gpu"),
    ("… loads and stores", ["instructions_memory"], "gpu"),
    ("… branches, and waits at barriers", ["instructions_branches", "instructions_barriers"],
     "gpu"),
    ("slots to issue that are used", ["issuing"], "share"),
    ("a warp waits, in slots an instruction: for its last one (`wait`)", ["stall_wait"], "ratio"),
    ("… for wgmma", ["stall_gmma"], "ratio"),
    ("… at a barrier of threads", ["stall_barrier"], "ratio"),
    ("… for an mbarrier or global memory (`long_scoreboard`)", ["stall_long_scoreboard"], "ratio"),
    ("… for shared memory or exponentials (`short_scoreboard`, `mio_throttle`)",
     ["stall_short_scoreboard", "stall_mio_throttle"], "ratio"),
    ("… for its turn (`not_selected`)", ["stall_not_selected"], "ratio"),
]


def steps_of_all(one, seqlen):
    """Tiles of Q times tiles of K, over all heads."""
    return (one["batch"] * one["heads"] * -(-seqlen // one["block_q"])
            * -(-seqlen // one["block_kv"]))


def cell(one, seqlen, names, of):
    value, steps = sum(one[name] for name in names), steps_of_all(one, seqlen)
    if of == "share":
        return f"{value:.0f}%"
    if of == "ratio":
        return f"{value:.2f}"
    # The SMs are what the sum of cycles is over their average.
    multiprocessors = one["cycles_of_all"] / one["cycles"]
    return f"{value / steps * (multiprocessors if of == 'sm' else 1):,.0f}"


def profile_table(files):
    data = need(files.profile)
    kernels, about = data["kernels"], data["measured_on"]
    rows = [[text, *(cell(one, data["seqlen"], names, of) for one in kernels)]
            for text, names, of in LINES]
    heads = [f"{number(one['rung'])} `{one['variant']}`, d = {one['head_dim']}" for one in kernels]
    tiles = ", ".join(f"{one['block_q']} × {one['block_kv']}" for one in kernels)
    return [*markdown(["a step", *heads], rows, range(1, 1 + len(kernels))), "", (
        f"A step is one tile of Q against one of K, in the columns' order {tiles}; its cycles are "
        f"an SM's. `ncu`, fixed clock, N = {data['seqlen']:,}, no mask, bf16, on an "
        f"{about['gpu']}, driver {about['driver']}, CUDA {about['cuda']}, {about['date']}.")]
