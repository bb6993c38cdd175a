"""A module that stands in for PyTorch, and keeps a clock of its own."""

import textwrap

from base import write

# What peers.py uses of PyTorch. The GPU's clock advances by what is queued: a flush takes 0.05 ms,
# attention FLOPs / (100 TFLOP/s · the backend's factor). FAKE says what goes wrong,
# and what is asked of it goes to FAKE_LOG.
TORCH = {
    "__init__.py": '''
        import contextlib, os
        FAKE = os.environ.get("FAKE", "")
        if FAKE == "broken":
            raise OSError("libtorch_cuda.so: cannot open shared object file")
        __version__ = "2.11.0"
        float16, bfloat16, uint8, float8_e4m3fn = "fp16", "bf16", "uint8", "e4m3"
        class version:
            cuda = "12.8"
        from . import autograd, backends, cuda

        def log(text):
            with open(os.environ["FAKE_LOG"], "a") as file:
                print(text, file=file)

        class Tensor:
            def __init__(self, shape, dtype, requires_grad=False):
                self.shape, self.dtype, self.requires_grad = shape, dtype, requires_grad
            def zero_(self):
                log(f"flush {self.shape[0]}")
                cuda.clock += 0.05
            def to(self, dtype):
                return Tensor(self.shape, dtype)
            def t(self):
                return Tensor(self.shape[::-1], self.dtype)
            def copy_(self, source):
                cuda.clock += 2 * self.shape[0] / 3e9  # 3 TB/s

        def randn(*shape, device, dtype, requires_grad=False):
            assert device == "cuda"
            log(f"randn {shape} {dtype} {requires_grad}")
            return Tensor(shape, dtype, requires_grad)

        def empty(*shape, device, dtype):
            return Tensor(shape, dtype)

        def mm(a, b, out):
            if FAKE == "no ceilings":
                raise cuda.OutOfMemoryError("CUDA out of memory")
            cuda.clock += 2 * a.shape[0]**3 / 700e9  # 700 TFLOP/s

        def ones(shape, device):
            return Tensor(shape, "fp32")

        def _scaled_mm(a, b, scale_a, scale_b, out_dtype, use_fast_accum):
            assert (a.dtype, b.dtype, out_dtype, use_fast_accum) == ("e4m3", "e4m3", "bf16", True)
            cuda.clock += 2 * a.shape[0]**3 / 1300e9  # 1300 TFLOP/s

        def manual_seed(seed):
            log(f"seed {seed}")

        grad_enabled = True

        @contextlib.contextmanager
        def no_grad():
            global grad_enabled
            grad_enabled = False
            yield
            grad_enabled = True
    ''',
    "cuda.py": '''
        import os
        clock = 0.0

        class OutOfMemoryError(RuntimeError):
            pass

        class Properties:
            L2_cache_size = 1000

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
            def record(self):
                self.at = clock
            def elapsed_time(self, end):
                return end.at - self.at

        def is_available():
            return os.environ.get("FAKE", "") != "no GPU"
        def get_device_name(index):
            return "Fake H100"
        def get_device_capability():
            return (8, 0) if os.environ.get("FAKE", "") == "no e4m3" else (9, 0)
        def get_device_properties(index):
            return Properties()
        def mem_get_info():
            return 70e9, 80e9
        def empty_cache():
            pass
        def synchronize():
            import torch
            torch.log("wait")
        def _sleep(cycles):
            import torch
            torch.log(f"sleep {cycles}")
    ''',
    "backends.py": '''
        class cudnn:
            @staticmethod
            def version():
                return 91900
    ''',
    "autograd.py": '''
        def grad(outputs, inputs, grad_outputs, retain_graph):
            import torch
            assert retain_graph and all(x.requires_grad for x in inputs)
            assert grad_outputs.shape == outputs.shape
            torch.cuda.clock += 2.5 * outputs.ms
            return inputs
    ''',
    "nn/__init__.py": "",
    "nn/attention.py": '''
        import contextlib

        class SDPBackend:
            MATH, EFFICIENT_ATTENTION, FLASH_ATTENTION = 0.1, 2, 3
            CUDNN_ATTENTION = 4

        chosen = None

        @contextlib.contextmanager
        def sdpa_kernel(backend):
            global chosen
            chosen = backend
            yield
            chosen = None
    ''',
    "nn/functional.py": '''
        import os, time, warnings
        import torch
        from torch.nn import attention

        def scaled_dot_product_attention(q, k, v, is_causal, enable_gqa=False):
            fake = os.environ.get("FAKE", "")
            factor = attention.chosen
            if factor == 4:
                if fake == "no cudnn":
                    for text in ("Flash attention kernel not used because:",
                                 "Flash attention has been runtime disabled.",
                                 "cuDNN attention kernel not used because:",
                                 "cuDNN attention requires sm80."):
                        warnings.warn(text + " (Triggered internally at sdp_utils.cpp:3.)")
                    raise RuntimeError("No available kernel. Aborting execution.\\nmore")
                if fake == "cudnn memory":
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            if fake == "nothing":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if fake == "slow host":
                time.sleep(0.002)
            if fake == "slow":
                time.sleep(0.1)
            b, h, n, d = q.shape
            assert k.shape == v.shape and enable_gqa == (k.shape[1] != h)
            ms = 4 * b * h * n * k.shape[2] * d * (0.5 if is_causal else 1) / (100e9 * factor)
            torch.log(f"attention {factor} causal {is_causal}")
            out = torch.Tensor(q.shape, q.dtype)
            out.ms = ms
            if torch.grad_enabled and q.requires_grad:
                return out
            assert not torch.grad_enabled
            torch.cuda.clock += ms
            return out
    ''',
}


def install(folder):
    """Puts it where PYTHONPATH=folder finds it."""
    for path, text in TORCH.items():
        write(folder, "torch", path, text=textwrap.dedent(text))
