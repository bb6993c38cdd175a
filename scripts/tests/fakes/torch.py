"""Stands in for PyTorch, as far as ladder/bench/peers.py uses it, where PYTHONPATH has this folder.

The GPU's clock, in ms, advances by what is queued: a flush takes 0.05, attention its FLOPs by
100 TFLOP/s times the backend's factor. FAKE says what goes wrong; FAKE_LOG gets what is asked.
"""

import contextlib
import os
import sys
import types
import warnings

FAKE = os.environ.get("FAKE", "")
if FAKE == "broken":
    raise OSError("libtorch_cuda.so: cannot open shared object file")
__version__ = "2.11.0"
float16, bfloat16, uint8, float8_e4m3fn = "fp16", "bf16", "uint8", "e4m3"
version = types.SimpleNamespace(cuda="12.8")
state = types.SimpleNamespace(clock=0.0, grad=True, backend=None)


def log(text):
    with open(os.environ["FAKE_LOG"], "a") as file:
        print(text, file=file)


def take(ms):
    state.clock += ms


class Tensor:
    def __init__(self, shape, dtype, requires_grad=False):
        self.shape, self.dtype, self.requires_grad = shape, dtype, requires_grad

    def zero_(self):
        log(f"flush {self.shape[0]}")
        take(0.05)

    def to(self, dtype):
        return Tensor(self.shape, dtype)

    def t(self):
        return Tensor(self.shape[::-1], self.dtype)

    def copy_(self, source):
        take(2 * self.shape[0] / 3e9)  # 3 TB/s


def randn(*shape, device, dtype, requires_grad=False):
    assert device == "cuda"
    log(f"randn {shape} {dtype} {requires_grad}")
    return Tensor(shape, dtype, requires_grad)


def empty(*shape, device, dtype):
    return Tensor(shape, dtype)


def ones(shape, device):
    return Tensor(shape, "fp32")


def mm(a, b, out):
    if FAKE == "no ceilings":
        raise OutOfMemoryError("CUDA out of memory")
    take(2 * a.shape[0]**3 / 700e9)  # 700 TFLOP/s


def _scaled_mm(a, b, scale_a, scale_b, out_dtype, use_fast_accum):
    assert (a.dtype, b.dtype, out_dtype, use_fast_accum) == ("e4m3", "e4m3", "bf16", True)
    take(2 * a.shape[0]**3 / 1300e9)


@contextlib.contextmanager
def no_grad():
    state.grad = False
    try:
        yield
    finally:
        state.grad = True


class OutOfMemoryError(RuntimeError):
    pass


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = state.clock

    def elapsed_time(self, end):
        return end.at - self.at


cuda = types.SimpleNamespace(
    OutOfMemoryError=OutOfMemoryError, Event=Event, is_available=lambda: FAKE != "no GPU",
    get_device_name=lambda index: "Fake H100",
    get_device_capability=lambda: (8, 0) if FAKE == "no e4m3" else (9, 0),
    get_device_properties=lambda index: types.SimpleNamespace(L2_cache_size=1000),
    empty_cache=lambda: None, synchronize=lambda: log("wait"),
    _sleep=lambda cycles: log(f"sleep {cycles}"))
backends = types.SimpleNamespace(cudnn=types.SimpleNamespace(version=lambda: 91900))


def grad(outputs, inputs, grad_outputs, retain_graph):
    assert retain_graph and all(x.requires_grad for x in inputs)
    assert grad_outputs.shape == outputs.shape
    take(2.5 * outputs.ms)
    return inputs


@contextlib.contextmanager
def sdpa_kernel(backend):
    state.backend = backend
    yield


def scaled_dot_product_attention(q, k, v, is_causal, enable_gqa=False):
    factor = state.backend
    if factor == 4 and FAKE == "no cudnn":
        for text in ("Flash attention kernel not used because:",
                     "Flash attention has been runtime disabled.",
                     "cuDNN attention requires sm80."):
            warnings.warn(text + " (Triggered internally at sdp_utils.cpp:3.)")
        raise RuntimeError("No available kernel. Aborting execution.\nmore")
    if factor == 4 and FAKE == "cudnn memory":
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate")
    b, h, n, d = q.shape
    assert k.shape == v.shape and enable_gqa == (k.shape[1] != h)
    log(f"attention {factor} causal {is_causal}")
    out = Tensor(q.shape, q.dtype)
    out.ms = 4 * b * h * n * k.shape[2] * d * (0.5 if is_causal else 1) / (100e9 * factor)
    assert state.grad == q.requires_grad
    take(out.ms)
    return out


autograd = types.SimpleNamespace(grad=grad)
sys.modules["torch.nn.attention"] = types.SimpleNamespace(
    sdpa_kernel=sdpa_kernel, SDPBackend=types.SimpleNamespace(
        MATH=0.1, EFFICIENT_ATTENTION=2, FLASH_ATTENTION=3, CUDNN_ATTENTION=4))
sys.modules["torch.nn.functional"] = types.SimpleNamespace(
    scaled_dot_product_attention=scaled_dot_product_attention)
