"""Exercises that change which keys a query sees. What they compute is held against the softmax over
those keys, written out here: the suite's reference knows the causal mask alone."""

import functools
import math
import os
import random

from ladder.npy import npy, read_npy
from ladder.records import uneven_counts

D = 8
SHAPES = ((400, 400), (70, 400))  # queries and keys


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


@functools.lru_cache(maxsize=None)
def inputs(n, n_kv):
    """Rows of Q, K and V, exact in 16 bits."""
    draw = random.Random(0)
    return [[[draw.randint(-16, 16) / 8 for _ in range(D)] for _ in range(rows)]
            for rows in (n, n_kv, n_kv)]


def attention(n, n_kv, sees):
    """For each query its LSE and row of O over the keys j for which sees(j, last) is true; `last`
    is the last key that the causal mask leaves it."""
    q, k, v = inputs(n, n_kv)
    for i in range(n):
        last = i + n_kv - n
        keys = [j for j in range(last + 1) if sees(j, last)]
        weights = [math.exp(dot(q[i], k[j]) / math.sqrt(D)) for j in keys]
        total = sum(weights)
        yield math.log(total), [sum(w * v[j][c] for w, j in zip(weights, keys)) / total
                                for c in range(D)]


def rows_read(record, sees):
    """Of K, and of V, in the tiles of keys that a tile of queries sees anything of."""
    n, n_kv, tile = record["seqlen"], record["seqlen_kv"], record["block_kv"]
    read = 0
    for row in range(0, n, record["block_q"]):
        last = min(row + record["block_q"], n) - 1 + n_kv - n
        seen = {j // tile for end in range(row + n_kv - n, last + 1) for j in range(end + 1)
                if sees(j, end)}
        read += sum(min(tile, last + 1 - tile * at) for at in seen)
    return read


def wrong_mask(lab, program, sees):
    """None, or in a line what is wrong."""
    for n, n_kv in SHAPES:
        folder = os.path.join(os.path.dirname(program), f"masked_{n}")
        os.makedirs(folder, exist_ok=True)
        for name, rows in zip("qkv", inputs(n, n_kv)):
            with open(os.path.join(folder, f"{name}.npy"), "wb") as file:
                file.write(npy((1, 1, len(rows), D), [x for row in rows for x in row]))
        run = lab.start(program, ["--load", folder, "--save", folder, "--causal", "--check", "off"])
        where = f"{n} queries, {n_kv} keys, causal"
        if not run.records:
            return f"{where}: {run.last_words()}"
        lse, o = (read_npy(os.path.join(folder, f"{name}.npy")) for name in ("lse", "o"))
        for i, (right, row) in enumerate(attention(n, n_kv, sees)):
            if not abs(lse[i] - right) < 1e-4:
                return (f"{where}: query {i} has an LSE of {lse[i]:.4f}, and the keys that it "
                        f"should see have {right:.4f}")
            if not all(abs(a - b) < 1e-2 for a, b in zip(o[D * i:], row)):
                return f"{where}: query {i} has the right LSE, and a wrong row of O"
        for name in "KV":
            counted = run.records[0]["kernels"][0]["arrays"][name]["read"]
            wanted = 2 * D * rows_read(run.records[0], sees)
            if counted != wanted:
                return (f"{where}: O is right, but {counted:,} bytes of {name} are requested; the "
                        f"tiles in which a row sees a key have {wanted:,}")
        if uneven_counts(run.records[0]):
            return f"{where}: {uneven_counts(run.records[0])}"
    return None
