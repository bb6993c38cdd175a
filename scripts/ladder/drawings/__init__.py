"""The course's pictures of shapes: what stays on chip, what streams past, who owns which part.

Each is drawn by the function of its name, into scripts/results/drawings/NAME.svg.
"""

# Name → what it shows: the text that a page gives with it.
DRAWINGS = {
    "hero": "The two loop orders tile by tile: 04 carries O to HBM and back, 05 writes it once",
    "levels": "A GPU's memories with size, rate and latency, and what an SM consists of",
    "loop_nests": "The loop nests of 00, 03, 04 and 05 side by side, and what each sends to HBM",
    "coalescing":
        "One load of a warp: a thread a row touches 32 sectors, a warp a row 16 full ones",
    "matmul_tiles":
        "A block's tile of S, and the tiles of Q and K that it takes through shared memory",
    "mma_fragments": "Which lane of a warp holds which elements of A, B and C of an mma m16n8k16",
    "swizzle": "A column of a tile in one bank group, and swizzled into all eight",
    "cp_async_groups": "Copies in groups over time, and a wait that leaves the newest in flight",
    "safe_softmax": "Three passes over a row of S: maximum, sum, and the row of P",
    "merge": "Two parts of a row, each with its own m, l and O, scaled to one maximum and added",
    "fused": "One pass: rows of Q stay, K and V stream past, m, l and O are carried along",
    "flash_v1": "04: K and V stay in shared memory, Q streams past, O, l and m go to HBM and back",
    "warps_keys": "04's warps: each has a quarter of the keys, so that a row needs all four",
    "warps_rows": "05's warps: each has a quarter of the rows, and all keys",
    "flash_v2": "05: a tile of Q stays on chip, K and V stream past, and O is written once",
    "causal_tiles": "Tiles of S under the causal mask: full, masked on the diagonal, and skipped",
    "wgmma_fragments":
        "A warpgroup's sums: 16 of 64 rows for each warp, and which lane holds which",
    "mbarrier": "An mbarrier over time: its phases, their parity, and which wait passes when",
    "ring": "A ring of stages: the producer fills, the consumers empty, two barriers a stage",
    "ping_pong": "Two consumers in turn: one has the tensor cores while the other has its softmax",
    "fp8_scales": "Where FP8 has its scales: one a tile of Q, of K and of V, one constant for P",
    "split_kv": "Decoding: the keys are split among blocks, and a second kernel merges their parts",
    "backward_products": "The five products of the backward pass, and where their operands are",
    "backward_nest": "06's loops: K and V stay, Q and dO stream past, dQ is added up in HBM",
    "dq_sum": "Three ways for dQ out of a block: atomics by threads, additions by TMA, none",
}
