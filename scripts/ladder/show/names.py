"""What steps, points and amounts are called in figures and tables, and parts of tables."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any, Container, Dict, Mapping, Sequence, Tuple, Union

from ladder.base.text import NO_VALUE

Data = Dict[str, Any]            # what a figure shows, or a panel, a line, a point or a row of it
StepKey = Tuple[str, str]        # a step's rung and its name
Contender = Union[StepKey, str]  # a step, or a backend of PyTorch
Shape = Tuple[int, int, bool]    # N, d, causal

PEER_NAMES = {"flash": "PyTorch, FlashAttention-2", "cudnn": "PyTorch, cuDNN",
              "efficient": "PyTorch, efficient", "math": "PyTorch, plain"}
PEERS = list(PEER_NAMES)
WAYS = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}
HEADS = (64, 128)
POINTS = [(d, causal) for d in HEADS for causal in (False, True)]


def number(rung: str) -> str:
    """"05" of 05_flash_v2."""
    return rung.partition("_")[0]


def label(step: StepKey) -> str:
    """"05 mma"."""
    return f"{number(step[0])} {step[1]}"


def library(backend: str) -> str:
    """"cuDNN" of cudnn, which is used through PyTorch."""
    return PEER_NAMES[backend].partition(", ")[2]


def point_text(d: int, causal: bool) -> str:
    return f"d = {d}{', causal' if causal else ''}"


def where(shape: Shape) -> str:
    n, d, causal = shape
    return f"N = {length_text(n)}, {point_text(d, causal)}"


def length_text(n: float, _: Any = None) -> str:
    return f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"


# ---- tables ----


def ratios_text(ratios: Mapping[str, float]) -> str:
    worst = min(ratios, key=ratios.__getitem__)
    return (f"geometric mean {geometric_mean(ratios.values()):.2f}, worst {ratios[worst]:.2f} "
            f"({worst}), {sum(r >= 1 for r in ratios.values())} of {len(ratios)} are 1 or more")

def markdown(header: Sequence[str], rows: Sequence[Sequence[str]],
             right: Container[int] = ()) -> list[str]:
    """The lines of a table; the columns numbered in `right` hold figures."""
    lines = ["| " + " | ".join(header) + " |",
             "|" + "|".join("--:" if i in right else "---" for i in range(len(header))) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def over_lengths(cells: Mapping[Shape, str]) -> list[str]:
    """A line for each head size and mask, a column for each N."""
    lengths, points = sorted({n for n, *_ in cells}), sorted({shape[1:] for shape in cells})
    return markdown(["", *(f"N = {length_text(n)}" for n in lengths)], [
        [point_text(*point), *(cells.get((n, *point), NO_VALUE) for n in lengths)]
        for point in points], range(1, 1 + len(lengths)))
