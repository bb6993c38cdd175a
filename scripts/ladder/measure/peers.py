"""Times PyTorch's scaled_dot_product_attention with its backends math, efficient, flash and cudnn.

scripts/figures measure runs them in turn with our programs, seconds apart, and keeps both in one
file. FLOPs are counted as in the papers: 4·N²·d·heads·batch forward, half of that if causal, and
2.5 times that backward."""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from typing import Any, Callable

from ladder.base.console import NO_DEVICE, CommandError
from ladder.base.records import Point, Record, flops
from ladder.measure.grid import Peer

# Our name for a backend → PyTorch's. PyTorch itself is imported only where it is needed, because
# all other measurements work without it; therefore its types are Any.
OF_PYTORCH = {"math": "MATH", "efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION",
              "cudnn": "CUDNN_ATTENTION"}

COPIED = 1 << 30  # bytes of the device copy whose rate is measured


def import_torch() -> Any:
    """Returns PyTorch; raises CommandError if it is missing, or finds no GPU."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        raise CommandError(f"PyTorch is missing ({error}). To install it: python3 -m pip install "
                           "torch", NO_DEVICE) from None
    if not torch.cuda.is_available():
        raise CommandError(f"PyTorch {torch.__version__} finds no CUDA GPU", NO_DEVICE)
    return torch


class Gpu:
    """The GPU, used through PyTorch, with a buffer larger than its L2, for flushing the L2."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        l2 = getattr(properties, "L2_cache_size", 64 << 20)
        self.flush = torch.empty(2 * l2, dtype=torch.uint8, device="cuda")

    def time(self, run: Callable[[], Any], budget_ms: float) -> list[float]:
        """Returns run()'s times in ms, from 3 × `budget_ms` of samples after a warm-up of 2 ×
        `budget_ms`. A batch repeats: flush the L2, record an event, run(), record an event. The
        host waits only at its end."""
        run_ms = self.batch(run, 2)[0][-1]
        size = min(max(int(20 / max(run_ms, 1e-3)), 3), 50)  # about 20 ms of runs
        _, queueing_ms, span_ms = self.batch(run, size)
        # If Python is slower than the kernel, the GPU waits before each batch until the batch is
        # queued, so that no gap between launches is measured.
        head_start_ms = queueing_ms if queueing_ms > 0.5 * span_ms else 0.0
        # Warm-up and samples always take the longest time that our programs allow themselves
        # (common/machine/gpu/sampling.h), so that the GPU is equally warm for both.
        times: list[float] = []
        for budgets in (2, 3):
            start, times = time.monotonic(), []
            while not times or 1000 * (time.monotonic() - start) < budgets * budget_ms:
                times += self.batch(run, size, head_start_ms)[0]
        return times

    @functools.lru_cache(maxsize=None)
    def copy_bytes_per_s(self, budget_ms: float) -> float:
        """Returns a device copy's rate, bytes read plus written per second; measures it once."""
        source, target = (self.torch.empty(COPIED, device="cuda", dtype=self.torch.uint8)
                          for _ in range(2))
        times = self.time(functools.partial(target.copy_, source), budget_ms)
        return 2 * COPIED / statistics.median(times) * 1e3

    def free(self) -> None:
        """Frees PyTorch's cached memory, because our programs need memory too."""
        with contextlib.suppress(RuntimeError):  # raised if a backend has crashed the GPU
            self.torch.cuda.empty_cache()

    def batch(self, run: Callable[[], Any], size: int,
              head_start_ms: float = 0.0) -> tuple[list[float], float, float]:
        """Queues run() `size` times; first, the GPU waits for `head_start_ms`. Returns, in ms, each
        run's time, the host's time to queue all, and the GPU's time from first to last."""
        cuda = self.torch.cuda
        events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(size)]
        if head_start_ms:
            cuda._sleep(int(head_start_ms * 2e6))  # in clock cycles, at most 2e6 per ms
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


def measure(gpu: Gpu, peer: Peer, budget_ms: float) -> tuple[Record, str]:
    """Returns (record, ""), with our programs' keys except for those in peer.fields(), or ({},
    reason) if the backend did not run."""
    try:
        times = timed(gpu, *peer, budget_ms)
        copy = gpu.copy_bytes_per_s(budget_ms) if peer.point.decoding() else None
    except Exception as error:  # any error of a backend, so that the others still run
        return {}, reason(error)
    median = statistics.median(times)
    record = {"device": "gpu", "device_name": gpu.torch.cuda.get_device_name(0),
              "version": version(gpu.torch), "time_ms": median, "time_ms_min": min(times),
              "time_ms_max": max(times), "samples": len(times),
              "tflops": flops(peer.fields()) / median * 1e-9}
    if copy:  # decoding is compared with the copy rate of the same run
        record["copy_bytes_per_s"] = copy
    return record, ""


def timed(gpu: Gpu, library: str, direction: str, point: Point, budget_ms: float) -> list[float]:
    """Returns a backend's times in ms at a workload, for the "fwd" or the "bwd" pass."""
    torch = gpu.torch
    from torch.nn.attention import SDPBackend, bias, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backward = direction == "bwd"
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[point.dtype]

    def make(heads: int, rows: int, requires_grad: bool = False) -> Any:
        return torch.randn(point.batch, heads, rows, point.head_dim, device="cuda", dtype=dtype,
                           requires_grad=requires_grad)

    queries, cache = (point.heads, point.seqlen), (point.kv_heads, point.seqlen_kv)
    q, k, v = (make(*shape, requires_grad=backward) for shape in (queries, cache, cache))
    shared = {"enable_gqa": True} if point.kv_heads != point.heads else {}
    mask: dict[str, Any] = {"is_causal": point.causal}
    if point.causal and point.seqlen_kv != point.seqlen:  # is_causal aligns at the top left
        mask = {"attn_mask": bias.causal_lower_right(point.seqlen, point.seqlen_kv)}
    attention = functools.partial(scaled_dot_product_attention, q, k, v, **mask, **shared)
    with sdpa_kernel(getattr(SDPBackend, OF_PYTORCH[library])):
        if not backward:
            with torch.no_grad():
                return gpu.time(attention, budget_ms)
        o, do = attention(), make(*queries)
        return gpu.time(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), budget_ms)


def reason(error: Exception) -> str:
    """Returns the first line of an error's text or, if that is empty, the error's type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def version(torch: Any) -> str:
    cudnn = torch.backends.cudnn.version() or 0  # 91900 is 9.19.0
    return (f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
            f"cuDNN {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}")


def ceilings(gpu: Gpu, budget_ms: float) -> Record:
    """Returns the roofs of a roofline: cuBLAS's rates for a large matrix product in bf16 and e4m3
    (None if the GPU has no e4m3), in TFLOP/s, and a device copy's rate in bytes per second."""
    torch, size = gpu.torch, 8192

    def tflops(product: Callable[..., Any], *operands: Any, **more: Any) -> float:
        times = gpu.time(functools.partial(product, *operands, **more), budget_ms)
        return 2 * size**3 / statistics.median(times) * 1e-9

    a, b, c = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    roofs = {"matmul_tflops": tflops(torch.mm, a, b, out=c),
             "matmul": f"bf16, {size}×{size}×{size}, cuBLAS, {version(torch)}",
             "matmul_e4m3_tflops": None,
             "copy_bytes_per_s": gpu.copy_bytes_per_s(budget_ms),
             "copy": f"{COPIED >> 20} MiB on the device, bytes read and written"}
    if torch.cuda.get_device_capability() >= (8, 9):
        scale = torch.ones((), device="cuda")
        a, b = (operand.to(torch.float8_e4m3fn) for operand in (a, b))
        roofs["matmul_e4m3_tflops"] = tflops(
            torch._scaled_mm, a, b.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16,
            use_fast_accum=True)
    return roofs
