"""Workloads, and how the commands take them."""

import argparse
import collections
import math

# The FlashAttention-2 paper's: 16k tokens in all, hidden size 2048.
TOKENS, HIDDEN = 16 * 1024, 2048
LADDER_LENGTH = 2048  # where the ladder's table and the speed-ups are taken


def paper_batch(seqlen):
    return max(1, TOKENS // seqlen)


def paper_heads(head_dim):
    return max(1, HIDDEN // head_dim)


class Point(collections.namedtuple("Point", "batch heads seqlen head_dim causal dtype kv_heads "
                                   "seqlen_kv", defaults=(None, None))):
    """A workload; the last two where they are not `heads` and `seqlen`."""

    def key(self):
        return tuple(value for value in self if value is not None)

    def text(self):
        keys = f" of {self.seqlen_kv} keys" if self.seqlen_kv else ""
        return f"d {self.head_dim}, {'causal, ' if self.causal else ''}N {self.seqlen}{keys}"

    def cache(self):
        """Heads and length of K and V."""
        return self.kv_heads or self.heads, self.seqlen_kv or self.seqlen

    def flops(self, direction):
        """As the papers count them."""
        forward = 4 * self.seqlen * self.cache()[1] * self.head_dim * self.heads * self.batch
        return forward * (0.5 if self.causal else 1) * (2.5 if direction == "bwd" else 1)


def paper_point(n, d, causal, dtype, batch=None, heads=None):
    return Point(batch or paper_batch(n), heads or paper_heads(d), n, d, causal, dtype)


# ---- types of options ----


def words(text):
    return [word for word in text.split(",") if word]


def lengths(text):
    """512,4k → [512, 4096]."""
    found = []
    for word in text.split(","):
        thousands = word[-1:] in ("k", "K")
        number = word[:-1] if thousands else word
        if not number.isdecimal() or int(number) == 0:
            raise argparse.ArgumentTypeError(
                f"{word!r} is not a positive number such as 512 or 16k")
        found.append(int(number) * (1024 if thousands else 1))
    return found


def length(text):
    if "," in text:
        raise argparse.ArgumentTypeError("one number, please")
    return lengths(text)[0]


def positive(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return value
