"""Workloads, and how the commands take them."""

import collections
import os
import random

from ladder.files import ROOT
from ladder.npy import npy

# The FlashAttention-2 paper's: 16k tokens in all, hidden size 2048.
TOKENS, HIDDEN = 16 * 1024, 2048
LADDER_LENGTH = 2048  # where the ladder's table and the speed-ups are taken


class Point(collections.namedtuple("Point", "batch heads seqlen head_dim causal dtype kv_heads "
                                   "seqlen_kv", defaults=(None, None))):
    """A workload; the last two where they are not `heads` and `seqlen`."""

    def text(self):
        keys = f" of {self.seqlen_kv} keys" if self.seqlen_kv else ""
        return f"d {self.head_dim}, {'causal, ' if self.causal else ''}N {self.seqlen}{keys}"

    def cache(self):
        """Heads and length of K and V."""
        return self.kv_heads or self.heads, self.seqlen_kv or self.seqlen


def paper_point(n, d, causal, dtype, batch=None, heads=None):
    return Point(batch or max(1, TOKENS // n), heads or max(1, HIDDEN // d), n, d, causal, dtype)


# ---- inputs that no option of the programs makes, as files that --load takes ----

CAPTURED = "scripts/results/captured"  # tensors of a trained model
# 64 queries of 16k keys, one head of 64, N(0, 1), and 1 added to V: sums that grow with N.
SHIFTED_V = "build/inputs/shifted_v"
SHIFTED_SHAPE = {"q": (64, 0), "k": (16384, 0), "v": (16384, 1)}  # rows, mean


def loaded(words):
    """A command's words with the folders of --load where they are; what is missing is made."""
    folder = os.path.join(ROOT, SHIFTED_V)
    if SHIFTED_V in words and not os.path.exists(os.path.join(folder, "v.npy")):
        os.makedirs(folder, exist_ok=True)
        draw = random.Random(0).gauss
        for name, (rows, mean) in SHIFTED_SHAPE.items():
            with open(os.path.join(folder, f"{name}.npy"), "wb") as file:
                file.write(npy((1, 1, rows, 64), [mean + draw(0, 1) for _ in range(rows * 64)]))
    return [os.path.join(ROOT, word) if word in (CAPTURED, SHIFTED_V) else word for word in words]
