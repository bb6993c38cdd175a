"""What steps, points and amounts are called in figures and tables, and parts of tables."""

from statistics import median

from ladder.base.text import NO_VALUE, bytes_text

PEER_NAMES = {"flash": "PyTorch, FlashAttention-2", "cudnn": "PyTorch, cuDNN",
              "efficient": "PyTorch, efficient", "math": "PyTorch, plain"}
PEERS = list(PEER_NAMES)
WAYS = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}
HEADS = (64, 128)
POINTS = [(d, causal) for d in HEADS for causal in (False, True)]


def number(rung):
    """"05" of 05_flash_v2."""
    return rung.partition("_")[0]


def label(step, files=None):
    """"05 mma"; a rung of one step is its name alone."""
    rung, name = step
    alone = files and len(files.ladder.of(rung)) == 1
    return rung.replace("_", " ") if alone else f"{number(rung)} {name}"


def library(backend):
    """"cuDNN" of cudnn, which is used through PyTorch."""
    return PEER_NAMES[backend].partition(", ")[2]


def point_text(d, causal):
    return f"d = {d}{', causal' if causal else ''}"


def where(at):
    n, *point = at
    return f"N = {length_text(n)}, {point_text(*point)}"


def length_text(n, _=None):
    return f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"


def gpu_text(files):
    return f"{files.gpu.name}, {files.gpu.dtype}"


def whole_bytes(count):
    return bytes_text(None if count is None else round(count))


# ---- tables ----


def markdown(header, rows, right=()):
    """A table; the columns numbered in `right` are figures."""
    lines = ["| " + " | ".join(header) + " |",
             "|" + "|".join("--:" if i in right else "---" for i in range(len(header))) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def over_lengths(cells):
    """A line for each head size and mask, a column for each N, of {(N, d, causal): text}."""
    lengths, points = sorted({n for n, *_ in cells}), sorted({at[1:] for at in cells})
    return markdown(["", *(f"N = {length_text(n)}" for n in lengths)], [
        [point_text(*point), *(cells.get((n, *point), NO_VALUE) for n in lengths)]
        for point in points], range(1, 1 + len(lengths)))


def at_the_machine(files):
    newest = max(files.gpu.runs, key=lambda r: r["date"])
    clock = [r["sm_mhz"] for r in files.gpu.runs if r["sm_mhz"]]
    return ", ".join(filter(None, (
        files.gpu.name, f"driver {newest['driver']}", f"CUDA {newest['cuda']}",
        clock and f"SM clock {median(clock):.0f} MHz in the median", newest["date"])))
