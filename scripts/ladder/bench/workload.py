"""Workloads, and how the commands take them."""

import argparse
import math

# The FlashAttention-2 paper's: 16k tokens in all, hidden size 2048.
TOKENS, HIDDEN = 16 * 1024, 2048
LADDER_LENGTH = 2048  # where the ladder's table and the speed-ups are taken


def paper_batch(seqlen):
    return max(1, TOKENS // seqlen)


def paper_heads(head_dim):
    return max(1, HIDDEN // head_dim)


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
