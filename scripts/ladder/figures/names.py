"""What steps, points and amounts are called in figures and tables."""

from ladder.text import bytes_text

PEERS = ["flash", "cudnn", "efficient", "math"]
PEER_NAMES = {"flash": "PyTorch, FlashAttention-2", "cudnn": "PyTorch, cuDNN",
              "efficient": "PyTorch, efficient", "math": "PyTorch, plain"}
WAYS = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}
HEADS = (64, 128)
POINTS = [(d, causal) for d in HEADS for causal in (False, True)]
PAPER_GRID = "scripts/figures measure --grid paper"
SIM = "scripts/figures measure --sim"


def number(rung):
    """"05" of 05_flash_v2."""
    return rung.partition("_")[0]


def label(step, files=None):
    """"05 mma"; a rung of one step is its name alone."""
    rung, variant = step
    alone = files and len(files.variants(rung)) == 1
    return rung.replace("_", " ") if alone else f"{number(rung)} {variant}"


def library(backend):
    """"cuDNN" of cudnn, which is used through PyTorch."""
    return PEER_NAMES[backend].partition(", ")[2]


def point_text(d, causal):
    return f"d = {d}{', causal' if causal else ''}"


def length_text(n, _=None):
    return f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"


def gpu_text(files):
    return f"{files.gpu.machine['gpu']}, {files.gpu.dtype}"


def per_head(entry, value):
    return None if value is None else value / entry.heads_in_all()


def whole_bytes(count):
    return bytes_text(None if count is None else round(count))
