"""The table of decoding: each cache's time, beside a copy's rate and PyTorch's times."""

import math
import statistics

from ladder.figures.decode import DECODE_GRID, points, shared_by
from ladder.figures.measured import Missing
from ladder.figures.names import PEER_NAMES, length_text
from ladder.figures.tables import at_the_machine, markdown, without
from ladder.text import NO_VALUE, three_digits

BESIDE = ("cudnn", "flash")


def decode_table(files, _):
    """A line a cache: the time, the share of the copy's rate, and peers' times over ours."""
    try:
        found = points(files)
    except Missing:
        return without("Decoding is not measured yet", DECODE_GRID)
    rows, ratios = {}, {peer: [] for peer in BESIDE}
    for one in found:
        cache = (f"{one['batch']}, {one['heads']} / {one['kv_heads']}, "
                 f"{length_text(one['seqlen_kv'])}")
        over = [one["times"][peer] / one["times"]["ours"] if peer in one["times"] else None
                for peer in BESIDE]
        for peer, ratio in zip(BESIDE, over):
            ratios[peer] += [(ratio, f"{cache}, d = {one['head_dim']}")] if ratio else []
        rows.setdefault(cache, {})[one["head_dim"]] = [
            f"{three_digits(1e3 * one['times']['ours'])} ({one['share']['ours']:.2f})",
            *(f"{ratio:.2f}" if ratio else NO_VALUE for ratio in over)]
    heads = sorted({one["head_dim"] for one in found}, reverse=True)
    names = [PEER_NAMES[peer].partition(", ")[2] for peer in BESIDE]
    step = found[0]["record"]["variant"]
    lines = markdown(["batch, heads / of K and V, keys", *(text for d in heads for text in (
        f"d = {d}: µs (share)", *(f"{name}'s / ours" for name in names)))],
        [[cache, *(text for d in heads for text in of.get(d, [NO_VALUE] * 3))]
         for cache, of in rows.items()], range(1, 1 + 3 * len(heads)))
    text = (f"`{step}`, {found[0]['record']['dtype']}, one query of each head, no mask, L2 "
            f"flushed, medians, on an {at_the_machine(files)}. The share is the rate at which K "
            "and V are read over that of a device copy in the same run, "
            f"{found[0]['copy'] / 1e9:,.0f} GB/s read and written. PyTorch's times over ours, "
            "each point in turn:")
    for name, of in zip(names, ratios.values()):
        if of:
            mean, (worst, at) = math.exp(statistics.fmean(math.log(one[0]) for one in of)), min(of)
            text += (f" {name} geometric mean {mean:.2f}, worst {worst:.2f} ({at}), "
                     f"{sum(one[0] >= 1 for one in of)} of {len(of)} are 1 or more;")
    return [*lines, "", text[:-1] + ".", *sharing(found), "",
            "![Share of the copy's rate against the cache's bytes]"
            "(scripts/results/figures/decode.svg)"]


def sharing(found):
    """GQA's effect: the same queries and keys with fewer heads of K and V."""
    texts = []
    for one in found:
        for other in found:
            if shared_by(one) == 1 < shared_by(other) and all(
                    one[name] == other[name]
                    for name in ("batch", "heads", "seqlen_kv", "head_dim")):
                texts.append(f"{other['times']['ours'] / one['times']['ours']:.2f} (batch "
                             f"{one['batch']}, {length_text(one['seqlen_kv'])}, d = "
                             f"{one['head_dim']}, 1/{shared_by(other)} of the bytes)")
    return ["", f"Where heads share K and V, the time over that without: {', '.join(texts)}."] \
        if texts else []
