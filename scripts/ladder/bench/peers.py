"""Times PyTorch's scaled_dot_product_attention.

Each backend (math, efficient, flash, cudnn) runs on the FlashAttention-2 paper's workload: 16k
tokens in all and hidden size 2048, so that batch = 16k / seqlen and heads = 2048 / head-dim. It
prints a table, or with --json the objects that our programs print, one a line, with rung "pytorch"
and the backend as variant.

scripts/figures measure takes them in turn with our programs, seconds apart, and keeps both in one
file.

FLOPs are counted as in the papers: forward 4·N²·d·heads·batch, halved if causal; backward 2.5×.

Examples:
  scripts/figures peers --backend flash,cudnn --seqlen 512,4k
  scripts/figures measure --seqlen 4k --rung 05 --peers flash --out build/mine.json

Exit status: 0 good (a backend that cannot run is reported and left out), 1 nothing could be
measured; 2 bad usage; 3 no PyTorch or no GPU.
"""

import argparse
import collections
import contextlib
import functools
import json
import math
import statistics
import sys
import time
import warnings

from ladder.console import GOOD, NO_DEVICE, WRONG_RESULT, Parser, Progress, Stop, run_command
from ladder.records import flops
from ladder.text import NO_VALUE, rate_text
from ladder.bench.workload import length, lengths, paper_point, positive

# PyTorch itself is imported where it is needed alone: who imports this module may do without.
BACKENDS = {"math": "MATH", "efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION",
            "cudnn": "CUDNN_ATTENTION"}

# What a program says and a peer cannot.
NOT_KNOWN = ["model_read_bytes", "model_write_bytes", "requested_read_bytes",
             "requested_write_bytes", "distinct_read_bytes", "distinct_write_bytes",
             "sram_read_bytes", "sram_write_bytes", "sram_operand_bytes", "matmul_flops",
             "exp_count", "other_flops", "barriers", "bank_conflicts", "dram_read_bytes",
             "dram_write_bytes", "l2_bytes", "l1_bytes", "workspace_bytes", "kernels", "errors",
             "pass"]

COPIED = 1 << 30  # bytes

Timing = collections.namedtuple("Timing", "median least most samples")  # in ms


def import_torch():
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        raise Stop(f"PyTorch is missing ({error}). To install: python3 -m pip install torch",
                   NO_DEVICE) from None
    if not torch.cuda.is_available():
        raise Stop(f"PyTorch {torch.__version__} finds no CUDA GPU", NO_DEVICE)
    return torch


# ---- timing, as common/machine/gpu times our kernels ----


def sample(budget_ms, batch, clock_ms):
    """Times of repeated runs in ms, by the rule of common/machine/gpu/sampling.h: ours and theirs
    must be equally warm. batch() makes some runs and returns their times.

    It warms up for the budget, and on while batches get faster, at most twice as long. Then it
    samples for the budget, and on until three batches in turn have moved the median of all samples
    by 0.2% at most, at most three times as long."""
    start = clock_ms()
    last = statistics.median(batch())
    while clock_ms() - start < 2 * budget_ms:
        now = statistics.median(batch())
        if now > 0.99 * last and clock_ms() - start >= budget_ms:
            break
        last = now
    samples, before, stable = [], 0, 0
    start = clock_ms()
    while not samples or clock_ms() - start < budget_ms or (
            stable < 3 and clock_ms() - start < 3 * budget_ms):
        samples += batch()
        now = statistics.median(samples)
        stable = stable + 1 if abs(now - before) <= 0.002 * now else 0
        before = now
    return samples


class Gpu:
    def __init__(self, torch):
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        l2 = getattr(properties, "L2_cache_size", 64 << 20)
        self.flush = torch.empty(2 * l2, dtype=torch.uint8, device="cuda")
        self.copied = None

    def time(self, run, budget_ms):
        """Batches of flush, event, run, event, queued without a wait of the host in between."""
        once = self.batch(run, 2)[0][-1]  # how many runs make a batch
        size = min(max(int(20 / max(once, 1e-3)), 3), 50)
        _, queueing_ms, span_ms = self.batch(run, size)
        # Python may be slower than a short kernel. Then the GPU waits before each batch until it
        # is queued, so that no gap between launches is measured.
        head_start_ms = queueing_ms if queueing_ms > 0.5 * span_ms else 0
        samples = sample(budget_ms, lambda: self.batch(run, size, head_start_ms)[0],
                         lambda: 1000 * time.monotonic())
        return Timing(statistics.median(samples), min(samples), max(samples), len(samples))

    def copy_bytes_per_s(self, budget_ms):
        """Of a copy of 1 GiB, read and written; measured once."""
        if not self.copied:
            source, target = (self.torch.empty(COPIED, device="cuda", dtype=self.torch.uint8)
                              for _ in range(2))
            copy = self.time(functools.partial(target.copy_, source), budget_ms)
            self.copied = 2 * COPIED / copy.median * 1e3
        return self.copied

    def free(self):
        """Our programs need memory too."""
        with contextlib.suppress(RuntimeError):  # of a GPU that a backend has brought down
            self.torch.cuda.empty_cache()

    def batch(self, run, size, head_start_ms=0):
        """Each run's time; the host's time to queue them all; the GPU's from first to last."""
        cuda = self.torch.cuda
        events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(size)]
        if head_start_ms:
            cuda._sleep(int(head_start_ms * 2e6))  # in clock cycles, of which a ms has 2e6 at most
        started = time.perf_counter()
        for begin, end in events:
            self.flush.zero_()
            begin.record()
            run()
            end.record()
        queueing_ms = 1000 * (time.perf_counter() - started)
        cuda.synchronize()
        return ([begin.elapsed_time(end) for begin, end in events], queueing_ms,
                events[0][0].elapsed_time(events[-1][1]))


# ---- what is measured ----


def measure(gpu, point, direction, names, options, progress, what):
    """Of these backends of scaled_dot_product_attention: ({name: record}, {name: why there is
    none})."""
    records, missing = {}, {}
    for name in names:
        progress.at(f"{what}: {name}")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                records[name] = record_of(gpu, point, direction, name, options,
                                          timed(gpu, point, direction, name, options))
            except Exception as error:  # whatever a backend may throw: the others go on
                missing[name] = reason(gpu.torch, error, warned)
        # Only here, because an exception keeps the frames that it went through, and so would keep
        # that backend's tensors.
        gpu.free()
    return records, missing


def timed(gpu, point, direction, name, options):
    torch = gpu.torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(options.seed)
    backward = direction == "bwd"
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[point.dtype]

    def make(heads, rows, requires_grad=False):
        return torch.randn(point.batch, heads, rows, point.head_dim, device="cuda", dtype=dtype,
                           requires_grad=requires_grad)

    queries, cache = (point.heads, point.seqlen), point.cache()
    q, k, v = (make(*shape, requires_grad=backward) for shape in (queries, cache, cache))
    shared = {"enable_gqa": True} if cache[0] != point.heads else {}
    attention = functools.partial(scaled_dot_product_attention, q, k, v, is_causal=point.causal,
                                  **shared)
    with sdpa_kernel(getattr(SDPBackend, BACKENDS[name])):
        if not backward:
            with torch.no_grad():
                return gpu.time(attention, options.time)
        o, do = attention(), make(*queries)
        return gpu.time(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True),
                        options.time)


def record_of(gpu, point, direction, name, options, timing):
    """In the keys of our programs."""
    record = {
        "rung": "pytorch", "variant": name, "direction": direction, "device": "gpu",
        "device_name": gpu.torch.cuda.get_device_name(0), "dtype": point.dtype, "input": "normal",
        "seed": options.seed, "batch": point.batch, "heads": point.heads,
        "kv_heads": point.cache()[0], "seqlen": point.seqlen, "seqlen_kv": point.cache()[1],
        "head_dim": point.head_dim, "causal": point.causal,
        "scale": 1 / math.sqrt(point.head_dim), "deterministic": False, "settings": {},
        "block_q": None, "block_kv": None, "warps": None, "stages": None, "smem_bytes": None,
        "time_ms": timing.median, "time_ms_min": timing.least, "time_ms_max": timing.most,
        "samples": timing.samples}
    record["tflops"] = flops(record) / timing.median * 1e-9
    if point.seqlen_kv:  # decoding is judged by the rate of its own run
        record["copy_bytes_per_s"] = gpu.copy_bytes_per_s(options.time)
    return {**record, **dict.fromkeys(NOT_KNOWN), "version": version(gpu.torch)}


def reason(torch, error, warned):
    """A line that says why a backend did not run."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "the GPU's memory is used up"
    # PyTorch raises that there is no kernel and warns why; it also warns that the backends that
    # were not asked for are disabled.
    texts = [str(w.message).partition(" (Triggered internally")[0].strip() for w in warned]
    why = [text for text in texts if "not used because" not in text and "disabled" not in text]
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return "; ".join([first, *why[:2]])


def version(torch):
    parts = [f"PyTorch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    cudnn = torch.backends.cudnn.version()
    if cudnn:  # 91900 is 9.19.0
        parts.append(f"cuDNN {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}")
    return ", ".join(parts)


def e4m3_product(torch, size):
    """Runs cuBLAS on e4m3 numbers; None where the GPU has no such products."""
    if torch.cuda.get_device_capability() < (8, 9):
        return None
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)
            for _ in range(2))
    one = torch.ones((), device="cuda")
    return functools.partial(torch._scaled_mm, a, b.t(), scale_a=one, scale_b=one,
                             out_dtype=torch.bfloat16, use_fast_accum=True)


def ceilings(gpu, options):
    """What the roofs of a roofline are: cuBLAS on a large matrix product, and a device copy. And
    that product of e4m3 numbers, null where the GPU has none."""
    torch = gpu.torch
    size = 8192
    a, b, c = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    product = gpu.time(functools.partial(torch.mm, a, b, out=c), options.time)
    run_e4m3 = e4m3_product(torch, size)
    e4m3 = run_e4m3 and 2 * size**3 / gpu.time(run_e4m3, options.time).median * 1e-9
    return {"matmul_tflops": 2 * size**3 / product.median * 1e-9,
            "matmul": f"bf16, {size}×{size}×{size}, cuBLAS, {version(torch)}",
            "matmul_e4m3_tflops": e4m3,
            "copy_bytes_per_s": gpu.copy_bytes_per_s(options.time),
            "copy": f"{COPIED >> 20} MiB on the device, bytes read and written"}


# ---- the command ----


def backends(text):
    words = text.split(",")
    for word in words:
        if word not in BACKENDS:
            raise argparse.ArgumentTypeError(f"{word!r}: there are {', '.join(BACKENDS)}")
    return words


def parse(arguments=None):
    parser = Parser("scripts/figures peers", __doc__)
    parser.add_argument("--seqlen", type=lengths, default=lengths("512,1k,2k,4k,8k,16k"),
                        metavar="N,...", help="(default 512,1k,2k,4k,8k,16k)")
    parser.add_argument("--head-dim", type=lengths, default=[64, 128], metavar="D,...",
                        help="(default 64,128)")
    mask = parser.add_mutually_exclusive_group()
    mask.add_argument("--causal", dest="causal", action="store_const", const=[True],
                      default=[False, True], help="with the causal mask alone (default: without, "
                                                  "then with)")
    mask.add_argument("--no-causal", dest="causal", action="store_const", const=[False],
                      help="without it alone")
    parser.add_argument("--backend", type=backends, default=list(BACKENDS), metavar="NAME,...",
                        help=f"(default {','.join(BACKENDS)})")
    parser.add_argument("--direction", choices=["fwd", "bwd", "both"], default="both",
                        help="(default both)")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default="bf16", help="(default bf16)")
    parser.add_argument("--batch", type=length, help="(default: 16k / seqlen)")
    parser.add_argument("--heads", type=length, help="(default: 2048 / head-dim)")
    parser.add_argument("--seed", type=int, default=0, help="of the input (default 0)")
    parser.add_argument("--time", type=positive, default=200, metavar="MS",
                        help="time per measurement (default 200); as much warms up before")
    parser.add_argument("--json", action="store_true",
                        help="one object a line on stdout, all else on stderr")
    return parser.parse_args(arguments)


def grid(options):
    directions = ["fwd", "bwd"] if options.direction == "both" else [options.direction]
    return [(direction, paper_point(n, d, causal, options.dtype, options.batch, options.heads))
            for direction in directions for d in options.head_dim for causal in options.causal
            for n in options.seqlen]


def run(options):
    points = grid(options)
    progress = Progress()
    torch = import_torch()
    gpu = Gpu(torch)
    names = list(dict.fromkeys(options.backend))
    print(f"{torch.cuda.get_device_name(0)}, {version(torch)}", file=sys.stderr)

    results = {}
    for number, (direction, point) in enumerate(points, 1):
        what = f"{direction}, {point.text()}"
        records, missing = measure(gpu, point, direction, names, options, progress,
                                   f"[{number}/{len(points)}] {what}")
        results[direction, point] = records
        progress.clear()
        for name, why in missing.items():
            print(f"{what}: {name} left out: {why}", file=sys.stderr)
        if options.json:
            for record in records.values():
                print(json.dumps(record, ensure_ascii=False), flush=True)

    if not any(results.values()):
        print("scripts/figures peers: nothing could be measured", file=sys.stderr)
        return WRONG_RESULT
    if not options.json:
        print(f"TFLOP/s: median, L2 flushed; {options.dtype}; {torch.cuda.get_device_name(0)}; "
              f"{version(torch)}\n")
        print("\n".join(table(results, names)))
    return GOOD


def table(results, names):
    """TFLOP/s of each at every point."""
    rows = [["direction", "head-dim", "causal", "seqlen", "batch", "heads", *names]]
    for (direction, point), records in results.items():
        rows.append([direction, str(point.head_dim), "yes" if point.causal else "no",
                     str(point.seqlen), str(point.batch), str(point.heads),
                     *(rate_text(records[name]["tflops"]) if name in records else NO_VALUE
                       for name in names)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures peers", lambda: run(parse())))
