"""The course's pictures of shapes: what stays on chip, what streams past, who owns which part.

Each is drawn by the function of its name, into scripts/results/drawings/NAME.svg.
"""

# Name → what it shows: the text that a page gives with it.
DRAWINGS = {
    "hero":
        "The two loop orders side by side, tile by tile: 04 carries O to HBM and back for every "
        "tile of K and V, 05 writes it once",
    "levels":
        "A GPU's memories, from HBM over L2 and shared memory to the registers of a warp, with "
        "size, rate and latency; and what an SM consists of",
    "loop_nests":
        "Four loop nests side by side: 00 goes through S three times, 03 once per row, 04 has K "
        "and V outside and Q inside, 05 Q outside and K and V inside",
    "coalescing":
        "A thread a row: one load of a warp touches 32 sectors for 64 bytes; a warp a row: 16 "
        "sectors for 512 bytes",
    "matmul_tiles":
        "A block's tile of S, and the tiles of Q and K that go through shared memory, slice by "
        "slice of d",
    "mma_fragments": "Which lane of a warp holds which elements of A, B and C of an mma m16n8k16",
    "swizzle":
        "Shared memory laid out plainly, where a column lies in one bank group, and swizzled, "
        "where it lies in all eight",
    "cp_async_groups":
        "Copies in groups over time: committed one by one, and a wait that leaves the newest in "
        "flight",
    "safe_softmax": "Three passes over a row of S: maximum, sum, and the row of P",
    "merge":
        "Two parts of a row, each with m, l and O of its own, merged into one: the part with the"
        " smaller maximum is scaled down",
    "fused":
        "One pass: a row of Q stays in registers, K and V stream past, m, l and O are carried "
        "along",
    "flash_v1":
        "04: a tile of K and V stays in shared memory, all tiles of Q stream past, and O, l and "
        "m go to HBM and back each time",
    "warps_keys": "04's warps: each has a quarter of the keys, so that a row needs all four",
    "warps_rows": "05's warps: each has a quarter of the rows, and all keys",
    "flash_v2": "05: a tile of Q stays in registers, K and V stream past, and O is written once",
    "causal_tiles": "Tiles of S under the causal mask: full, masked on the diagonal, and skipped",
    "wgmma_fragments":
        "The four warps of a warpgroup have 16 rows of a wgmma's 64 each; which lane holds which"
        " sums",
    "mbarrier": "An mbarrier over time: its phases, their parity, and which wait passes when",
    "ring": "A ring of stages: the producer fills, the consumers empty, two barriers a stage",
    "ping_pong":
        "Two consumers in turn over time: one has the tensor cores while the other has its "
        "softmax",
    "fp8_scales": "Where FP8 has its scales: one a tile of Q, of K and of V, one constant for P",
    "split_kv": "Decoding: the keys are split among blocks, and a second kernel merges their parts",
    "backward_products":
        "The five products of the backward pass, and which of their operands stay on chip",
    "backward_nest":
        "06's loops: a tile of K and V stays, tiles of Q and dO stream past, dK and dV are "
        "summed in registers, dQ in HBM",
    "dq_sum":
        "Three ways for dQ out of a block: each thread adds two floats at a time, TMA adds whole"
        " pieces from shared memory, or a kernel of its own sums dQ in registers",
}
