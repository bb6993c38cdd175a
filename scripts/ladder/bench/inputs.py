"""Inputs that no option of the programs makes, as files that --load takes."""

import os
import random

from ladder.files import ROOT
from ladder.npy import npy

CAPTURED = "scripts/results/captured"  # tensors of a trained model
# 64 queries of 16k keys, one head of 64, N(0, 1), and 1 added to V: sums that grow with N.
SHIFTED_V = "build/inputs/shifted_v"
SHIFTED_SHAPE = {"q": (64, 0), "k": (16384, 0), "v": (16384, 1)}  # rows, mean


def make_shifted_v():
    folder = os.path.join(ROOT, SHIFTED_V)
    os.makedirs(folder, exist_ok=True)
    draw = random.Random(0).gauss
    for name, (rows, mean) in SHIFTED_SHAPE.items():
        with open(os.path.join(folder, f"{name}.npy"), "wb") as file:
            file.write(npy((1, 1, rows, 64), [mean + draw(0, 1) for _ in range(rows * 64)]))


def loaded(words):
    """A command's words with the folders of --load where they are; what is missing is made."""
    if SHIFTED_V in words and not os.path.exists(os.path.join(ROOT, SHIFTED_V, "v.npy")):
        make_shifted_v()
    return [os.path.join(ROOT, word) if word in (CAPTURED, SHIFTED_V) else word for word in words]
