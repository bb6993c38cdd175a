"""What the course compares, by rung and step: tables alone, which generic code reads.

All else that scripts say of a step comes from the step's own registration, through `--list`. A rung
that is added needs nothing here, unless a claim or a figure is to single it out.
"""

# ---- the sim's traces ----

# Which array is touched when: of the figure `access`, (rung, step).
TRACED = [("04_flash_v1", "flash_v1"), ("05_flash_v2", "mma")]

# What happens in a block: (figure, rung, step, kernel, options). Forward two pieces of work for
# block 0, of four tiles of K and V each, with two consumers and with three; backward one tile of K
# and V, and three of Q.
ONE_HEAD = ["--device", "sim", "--heads", "1", "--check", "off"]
PIPELINED = [
    ("pipeline", "05_flash_v2", "sm90", "attention",
     [*ONE_HEAD, "--seqlen", "512", "--seqlen-kv", "512", "--head-dim", "128"]),
    ("pipeline", "05_flash_v2", "sm90", "attention",
     [*ONE_HEAD, "--seqlen", "768", "--seqlen-kv", "512", "--head-dim", "64"]),
    ("pipeline_bwd", "06_backward", "sm90", "key_gradients",
     [*ONE_HEAD, "--seqlen", "192", "--seqlen-kv", "128", "--head-dim", "128"]),
    ("pipeline_bwd", "06_backward", "sm90", "key_gradients",
     [*ONE_HEAD, "--seqlen", "384", "--seqlen-kv", "128", "--head-dim", "64"]),
]

# Kernel → the products of its warpgroups, by the array of the right operand, in turn.
PRODUCTS = {"attention": {"K": ["S"], "V": ["O"]},
            "key_gradients": {"Q": ["S", "dK"], "dO": ["dP", "dV"], "K": ["dQ"]}}

# ---- figures ----

# The order of a traced step's loops, which is what `access` is about.
LOOPS = {("04_flash_v1", "flash_v1"): "K and V outside, Q and O inside",
         ("05_flash_v2", "mma"): "Q outside, K and V inside"}
ACCESS_NOTE = ("04 fetches a tile of Q while it works on the one before. Its O is the fp32 one, "
               "and at the end the output.")

# A pipeline's figure. `own`: arrays of which each consumer has stages of its own. Of a panel's
# title what a consumer has. What the boxes of a consumer's arithmetic are called, {} being the
# step. The legend: of products, of that arithmetic, and what a wait is for.
PIPELINES = {
    "pipeline": {
        "what": "two tiles of Q in one block", "own": ["Q"],
        "share": "{rows} rows, tiles of {block_kv} keys",
        "texts": {"softmax": "P{}", "scale": ""},
        "legend": {"S": "S: a product QKᵀ", "O": "O: a product PV", "softmax": "P: a softmax",
                   "scale": "O scaled"},
        "waits": {"tile": "a tile", "turn": "its turn", "sums": "a product",
                  "store": "O's store"},
        "note": "Numbers are those of tiles; tiles 4 to 7 of K and V are for the second tile of Q.",
    },
    "pipeline_bwd": {
        "what": "backward, one tile of K and V in one block", "own": [],
        "share": "64 of {block_kv} keys, tiles of {block_q} rows of Q",
        "texts": {"softmax": "P{}", "scale": "dS{}", "turn": "barrier"},
        "legend": {"S": "S: Sᵀ = KQᵀ", "dP": "dP: dPᵀ = VdOᵀ − D", "dV": "dV += PᵀdO",
                   "dK": "dK += dSᵀQ", "dQ": "dQ: a product dS·K", "softmax": "P = exp(S − LSE)",
                   "scale": "dS = P∘dP"},
        "waits": {"tile": "a tile", "turn": "the other's dS", "sums": "a product",
                  "store": "what it stores to be read"},
        "note": "Numbers are those of tiles of Q. LSE comes with Q, D with dO. Shared memory takes "
                "no time here, and is what runs short: see the lesson.",
    },
}

# The kernels that are set beside shared memory's rate, (rung, step, kernel); and in the figure what
# has a rate alone.
SHARED_ROOF = [("06_backward", step, "key_gradients") for step in (
    "mma", "wgmma", "tma", "producer", "transposed", "bulk_add", "sm90")]
SHARED_ROOF_PEERS = ["cudnn", "flash"]
# The kernels whose cycles are counted, (rung, step, kernel).
PROFILED = [("05_flash_v2", "sm90", "attention"), ("05_flash_v2", "fp8", "attention"),
            ("06_backward", "sm90", "key_gradients")]

# Shown on the roofline beside each rung's default.
ROOFLINE_EXTRA = [("01_tiled_matmul", "tile")]

# Against their tile of keys: what they request, and the time.
BLOCK_SIZE_TITLE = "FlashAttention-1 against its tile of keys, Bc (Br = 64)"
BLOCK_SIZE_COUNTED = [("04_flash_v1", "flash_v1"), ("05_flash_v2", "swap")]
BLOCK_SIZE_TIMED = [("04_flash_v1", "flash_v1")]

# Errors of a step with settings, beside those of a step in the I/O type: from `none`, what each
# setting brings; from `all`, what it costs to leave it out. (text, settings)
NONE = {"scale": "tensor", "hadamard": "off", "p_scale": "off", "two_level": "off"}
ALL = {"scale": "tile", "hadamard": "on", "p_scale": "on", "two_level": "on"}
QUANTISED = {
    "step": ("05_flash_v2", "fp8"), "beside": ("05_flash_v2", "mma"),
    "rows": [("FP8, one scale a tensor", NONE),
             ("… a scale a head", {**NONE, "scale": "head"}),
             ("… a scale a tile", {**NONE, "scale": "tile"}),
             ("… the transform", {**NONE, "hadamard": "on"}),
             ("… P scaled", {**NONE, "p_scale": "on"}),
             ("… two levels of sums", {**NONE, "two_level": "on"}),
             ("all of these", ALL),
             ("all but scales a tile", {**ALL, "scale": "tensor"}),
             ("all but the transform", {**ALL, "hadamard": "off"}),
             ("all but P scaled", {**ALL, "p_scale": "off"}),
             ("all but two levels", {**ALL, "two_level": "off"})],
    # (title, head size, --input), at 8 heads of N = 1k; or None and a name in grid.LOADED.
    "inputs": [("normal, d = 128", 128, "normal"), ("outliers, d = 64", 64, "outliers"),
               ("outliers, d = 128", 128, "outliers"), ("captured", None, "captured"),
               ("V + 1, 16k keys", None, "shifted_v")],
    # It is timed at these head sizes, of which the last only here.
    "head_dims": [64, 128, 256],
    # FlashAttention-3's own kernel, of inputs in e4m3 already, on an H200 of another day: TFLOP/s
    # by head size and mask, and cuBLAS's in that run.
    "released": {"lengths": [512, 1024, 2048, 4096, 8192, 16384], "matmul": 1285,
                 "tflops": {(64, False): [338, 441, 575, 606, 647, 664],
                            (64, True): [191, 300, 451, 535, 607, 630],
                            (128, False): [536, 707, 752, 838, 889, 916],
                            (128, True): [331, 523, 660, 754, 843, 862]}},
}

# ---- tables of lessons ----

# TFLOP/s of a rung's steps, from `first` on, and of peers.
STEP_TABLES = {
    "hopper_steps": {"rung": "05_flash_v2", "first": "mma", "way": "fwd", "peers": ["cudnn"]},
}
# What two GPUs make of these rungs, or without `rungs` of all: a line a kernel, or a line a step.
TWO_GPUS_TABLES = {
    "two_gpus_kernels": {"rungs": ["00_naive", "01_tiled_matmul"], "kernels": True},
    "two_gpus_steps": {"kernels": False},
}
# A step over peers and other steps, at every N; of the figures' type unless `dtype` says another.
RATIO_TABLES = {
    "mma_beside_flash": {"step": ("05_flash_v2", "mma"), "way": "fwd", "over": ["flash"]},
    "mma_backward_beside_flash": {"step": ("06_backward", "mma"), "way": "bwd", "over": ["flash"]},
    "sm90_beside_cudnn": {"step": ("05_flash_v2", "sm90"), "way": "fwd",
                          "over": ["cudnn", ("05_flash_v2", "mma")]},
    "sm90_beside_cudnn_fp16": {"step": ("05_flash_v2", "sm90"), "way": "fwd", "over": ["cudnn"],
                               "dtype": "fp16"},
    "backward_beside_others": {"step": ("06_backward", "sm90"), "way": "bwd",
                               "over": ["cudnn", "flash", ("06_backward", "mma")]},
    "backward_beside_cudnn_fp16": {"step": ("06_backward", "sm90"), "way": "bwd",
                                   "over": ["cudnn"], "dtype": "fp16"},
    "training_beside_others": {"step": ("06_backward", "sm90"), "way": "both",
                               "over": ["cudnn", "flash", ("06_backward", "mma")]},
}

# ---- the claims of the papers ----

V1, V2, V3 = "FlashAttention [1]", "FlashAttention-2 [2]", "FlashAttention-3 [3]"

# What is timed: a sum of (direction, rung, step); PyTorch's backends are steps of "pytorch".
PLAIN = [("fwd", "02_safe_softmax", "safe")]
FLASH_V1 = [("fwd", "04_flash_v1", "flash_v1")]
# mma: what the papers describe. sm90 is for a GPU that they did not know.
FLASH_V2 = [("fwd", "05_flash_v2", "mma")]
FLASH_V3 = [("fwd", "05_flash_v2", "sm90")]
PRODUCER, PING_PONG = ([("fwd", "05_flash_v2", step)] for step in ("producer", "ping_pong"))
RELEASED_V2 = [("fwd", "pytorch", "flash")]
TRAINING = [*FLASH_V2, ("bwd", "06_backward", "mma")]
PYTORCH = [("fwd", "pytorch", "math")]
PYTORCH_TRAINING = [*PYTORCH, ("bwd", "pytorch", "math")]

# In the table's order; `id` is the row's anchor. By `kind`:
#   speed      how much faster `fast` is than `slow`, over the points (N in `lengths`, `head_dim`,
#              `causal`; each where given) that both have: at least `least`, at most `most`;
#              with best_alone the best point has to reach `least`, without it all of them
#   less       the same ratio gains less at the second of `head_dims` than at the first
#   growth     what the defaults of `rungs` keep beyond inputs and outputs as N doubles, at most
#              `factor` times
#   length     the defaults of `rungs` ran at `seqlen`, with `beside`, which did not fit
#   matrix     what a step keeps for each element of S is `bytes` in each of two matrices
#   error      `slow`'s root mean square error is at least `least` times that of `fast`; a step
#              may have settings as its third part
#   not_here   nothing here can show it, and why
NO_TRAINING = {"kind": "not_here", "how": "–", "why": "this project trains no model"}
CLAIMS = [
    {"kind": "speed", "id": "2-4x",
     "claim": "2–4× faster than plain attention",
     "source": f"{V1} v2, App. E.5 (d = 64); {V2}, abstract", "how": "04 over 02, forward",
     "fast": FLASH_V1, "slow": PLAIN, "least": 2, "most": 4},
    {"kind": "less", "id": "less-at-128",
     "claim": "less gained at d = 128 than at 64",
     "source": f"{V1} v2, App. E.5", "how": "04 over 02, forward, the best of each",
     "fast": FLASH_V1, "slow": PLAIN, "head_dims": (64, 128)},
    {"kind": "speed", "id": "3x-short",
     "claim": "up to 3× faster than plain attention, N = 128 to 2k",
     "source": f"{V1}, §1 and §4.3",
     "how": "`mma` of 05 and 06 over PyTorch's plain one, forward and backward, from N = 512",
     "fast": TRAINING, "slow": PYTORCH_TRAINING, "lengths": [512, 1024, 2048],
     "least": 3, "best_alone": True},
    {"kind": "speed", "id": "7.6x-gpt2",
     "claim": "7.6× faster on GPT-2's attention (N = 1k, d = 64)",
     "source": f"{V1}, Fig. 1",
     "how": "05's `mma` over PyTorch's plain one, forward, causal", "fast": FLASH_V2,
     "slow": PYTORCH, "lengths": [1024], "head_dim": 64, "causal": True, "least": 7.6,
     "best_alone": True},
    {"kind": "speed", "id": "2x-over-v1",
     "claim": "about 2× faster than FlashAttention (1.7–3.0×)",
     "source": f"{V2}, abstract (§4)",
     "how": "05's `mma` over 04, forward", "fast": FLASH_V2, "slow": FLASH_V1, "least": 1.7,
     "most": 3},
    {"kind": "speed", "id": "3-10x",
     "claim": "3–10× faster than plain attention", "source": f"{V2}, §4",
     "how": "05's `mma` over 02, forward, no mask", "fast": FLASH_V2, "slow": PLAIN,
     "causal": False, "least": 3, "most": 10},
    {"kind": "speed", "id": "10x-causal",
     "claim": "up to 10× faster than plain attention", "source": f"{V2}, §4.1",
     "how": "05's `mma` over 02, forward, causal: 05 skips hidden tiles, 02 skips nothing",
     "fast": FLASH_V2, "slow": PLAIN, "causal": True, "least": 10, "best_alone": True},
    {"kind": "speed", "id": "1.5-2x-over-v2",
     "claim": "1.5–2.0× faster than FlashAttention-2, forward, on an H100",
     "source": f"{V3}, abstract and §4.1", "how": "05's `sm90` over PyTorch's FlashAttention-2",
     "fast": FLASH_V3, "slow": RELEASED_V2, "least": 1.5, "most": 2},
    {"kind": "speed", "id": "ping-pong",
     "claim": "ping-pong and softmax under products: 570 → 640–660 TFLOP/s (d = 128), so "
              "1.12–1.16×",
     "source": f"{V3}, §3.1 and §3.2", "how": "05's `ping_pong` over `producer`, no mask",
     "fast": PING_PONG, "slow": PRODUCER, "head_dim": 128, "causal": False, "least": 1.12,
     "most": 1.16},
    {"kind": "error", "id": "fp16-error",
     "claim": "fp16 RMSE 1.7× below that of standard attention",
     "source": f"{V3}, §4.3", "how": "02's over that of 05's `sm90`, on the paper's distribution "
     "(`--input outliers`), on the sim", "fast": ("05_flash_v2", "sm90"),
     "slow": ("02_safe_softmax", "safe"), "dtype": "fp16", "input": "outliers", "least": 1.7},
    {"kind": "error", "id": "fp8-error",
     "claim": "FP8 RMSE 2.6× below that of one scale a tensor (9.1e-3, 2.4e-2)",
     "source": f"{V3}, §4.3", "how": "05's `fp8` with nothing but a scale a tensor over it with "
     "all settings, on the paper's distribution, on the sim",
     "fast": ("05_flash_v2", "fp8", ALL), "slow": ("05_flash_v2", "fp8", NONE), "dtype": "fp16",
     "input": "outliers", "head_dim": 128, "least": 2.6},
    {"kind": "growth", "id": "memory",
     "claim": "memory O(N), not O(N²)", "source": f"{V1}, Theorem 1",
     "how": "workspace of 05 and 06 as N doubles",
     "rungs": [("fwd", "05_flash_v2"), ("bwd", "06_backward")], "head_dim": 64, "factor": 2.2},
    {"kind": "length", "id": "64k",
     "claim": "64k tokens fit", "source": f"{V1}, §4.3",
     "how": "05 and 06 at N = 64k, 16 heads of 128",
     "rungs": [("fwd", "05_flash_v2"), ("bwd", "06_backward")], "seqlen": 65536, "head_dim": 128,
     "beside": ["01_tiled_matmul", "02_safe_softmax"]},
    {"kind": "matrix", "id": "8gb",
     "claim": "an N×N matrix in fp16 takes 8 GB at 64k",
     "source": "none of the papers: arithmetic, often quoted",
     "how": "what 02 keeps of S and P, by element", "step": ("02_safe_softmax", "safe"),
     "seqlen": 65536, "bytes": 2},
    {**NO_TRAINING, "id": "bert",
     "claim": "BERT-large trains 15% faster, end to end: 17.4 min for 20.0, so 13% "
                             "less time", "source": f"{V1}, Table 1"},
    {**NO_TRAINING, "id": "gpt2-training",
     "claim": "GPT-2 trains up to 3× faster, end to end (small: 3.5×)",
     "source": f"{V1}, Table 2"},
    {**NO_TRAINING, "id": "gpt-training",
     "claim": "GPT-style models train up to 1.3× faster than with FlashAttention, "
                             "2.8× faster than without", "source": f"{V2}, §4.2 and Table 1"},
]
CLAIMS_NOTE = (
    "*In part*: at some points and not at others. "
    "[1] Dao et al. 2022, [arXiv 2205.14135](https://arxiv.org/abs/2205.14135), whose versions 1 "
    "and 2 differ in figures and appendices. "
    "[2] Dao 2023, [arXiv 2307.08691](https://arxiv.org/abs/2307.08691). "
    "[3] Shah et al. 2024, [arXiv 2407.08608](https://arxiv.org/abs/2407.08608). [1] and [2] "
    "measured on an A100, against the plain attention of their day. PyTorch's plain one here "
    "computes in fp32 inside, whatever the inputs, so the ratios over it are large; 02 keeps to "
    "16 bits and the tensor cores. A range is over N = 512 … 16k, d = 64 and 128, causal or not, "
    "unless the row says otherwise, where both sides could be measured. [3] adds ping-pong first "
    "(570 → 620–640), then the overlap with the softmax; this course the other way round, so both "
    "are judged together. (In its Table 2 the 570 is without warp specialisation, and without the "
    "overlap alone it has 582 for 661, 1.14×.) “Up to 9×” for FlashAttention-2 is Dao's own "
    "announcement of it; “2–7×” for FlashAttention is secondary literature's. Neither paper has "
    "them.")
