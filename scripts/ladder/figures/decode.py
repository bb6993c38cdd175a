"""Decoding: how fast the cache of K and V is read, beside PyTorch and beside a copy."""

from ladder.figures.measured import need
from ladder.figures.names import (PEER_NAMES, at_the_machine, geometric_mean, gpu_text, length_text,
                                  library, markdown)
from ladder.figures.style import FAINT, INK, byte_tick, plots
from ladder.text import NO_VALUE, three_digits

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8A6D00"]
SHAPE = ("batch", "heads", "kv_heads", "seqlen_kv", "head_dim")
BESIDE = ("cudnn", "flash")


def points(files):
    """[{batch, heads, …, shared: how many heads share one of K and V, bytes, copy: its rate, times:
    {peer or "ours": ms}, share: the same of the copy's rate}], as they were measured."""
    found = []
    for entry in files.gpu.decoding():
        batch, heads, kv_heads, keys, d = at = tuple(entry.record[name] for name in SHAPE)
        peers = [r for r in files.gpu.peers
                 if r["seqlen"] == 1 and at == tuple(r.get(name) for name in SHAPE)]
        if not peers:
            continue
        size, copy = 4 * batch * kv_heads * keys * d, peers[0]["copy_bytes_per_s"]
        times = {"ours": entry.time_ms, **{r["variant"]: r["time_ms"] for r in peers}}
        found.append({**dict(zip(SHAPE, at)), "shared": heads // kv_heads, "bytes": size,
                      "copy": copy, "times": times,
                      "share": {name: size / ms * 1e3 / copy for name, ms in times.items()}})
    return need(found)


def decode(files):
    lines = {}
    for one in sorted(points(files), key=lambda one: one["bytes"]):
        name = f"batch {one['batch']}, H/Hk = {one['shared']}"
        for who in {"ours", "cudnn"} & one["share"].keys():
            line = lines.setdefault(name, {}).setdefault(who, {"x": [], "y": []})
            line["x"].append(one["bytes"])
            line["y"].append(one["share"][who])
    return {"title": f"Decoding: one query of each head, {gpu_text(files)}",
            "panels": [dict(sorted(lines.items()))]}


def draw_decode(plt, data):
    figure, [(axis, lines)] = plots(
        plt, data, (8.5, 4.6),
        "Each line: d = 64 and d = 128. Where more heads share one of K and V the same queries "
        "read fewer bytes, and\na cache of few bytes is over before the copy's rate is reached.")
    axis.set(xscale="log", ylim=(0, 1.15), xlabel="bytes of K and V",
             ylabel="share of the device copy's rate")
    axis.xaxis.set_major_formatter(byte_tick)
    axis.axhline(1, color=FAINT, lw=1)
    beside = {"marker": "o", "mfc": "none", "lw": 1, "ls": "--"}
    for (name, line), tint in zip(lines.items(), COLOURS):
        axis.plot(line["ours"]["x"], line["ours"]["y"], color=tint, marker="o", label=name)
        if "cudnn" in line:
            axis.plot(line["cudnn"]["x"], line["cudnn"]["y"], color=tint, **beside)
    axis.plot([], [], color=INK, label=PEER_NAMES["cudnn"], **beside)
    axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=8)
    return figure


def decode_table(files):
    """A line a cache: the time, the share of the copy's rate, and peers' times over ours."""
    found = points(files)
    rows, ratios = {}, {peer: [] for peer in BESIDE}
    for one in found:
        cache = (f"{one['batch']}, {one['heads']} / {one['kv_heads']}, "
                 f"{length_text(one['seqlen_kv'])}")
        ours = one["times"]["ours"]
        cells = [f"{three_digits(1e3 * ours)} ({one['share']['ours']:.2f})"]
        for peer in BESIDE:
            ratio = one["times"][peer] / ours if peer in one["times"] else None
            cells.append(f"{ratio:.2f}" if ratio else NO_VALUE)
            ratios[peer] += [(ratio, f"{cache}, d = {one['head_dim']}")] if ratio else []
        rows.setdefault(cache, {})[one["head_dim"]] = cells
    heads = sorted({one["head_dim"] for one in found}, reverse=True)
    lines = markdown(["batch, heads / of K and V, keys", *(text for d in heads for text in (
        f"d = {d}: µs (share)", *(f"{library(peer)}'s / ours" for peer in BESIDE)))],
        [[cache, *(text for d in heads for text in of.get(d, [NO_VALUE] * 3))]
         for cache, of in rows.items()], range(1, 1 + 3 * len(heads)))
    step = files.gpu.decoding()[0].variant
    text = (f"`{step}`, {files.gpu.dtype}, one query of each head, no mask, L2 "
            f"flushed, medians, on an {at_the_machine(files)}. The share is the rate at which K "
            "and V are read, divided by a device copy's in the same run, "
            f"{found[0]['copy'] / 1e9:,.0f} GB/s read and written. PyTorch's times over ours, "
            "each point in turn with ours:")
    for peer, of in ratios.items():
        if of:
            worst, at = min(of)
            text += (f" {library(peer)} geometric mean {geometric_mean(one[0] for one in of):.2f}, "
                     f"worst {worst:.2f} ({at}), {sum(one[0] >= 1 for one in of)} of {len(of)} are "
                     "1 or more;")
    return [*lines, "", text[:-1] + ".", *sharing(found), "",
            "![Share of the copy's rate against the cache's bytes]"
            "(scripts/results/figures/decode.svg)"]


def sharing(found):
    """GQA's effect: the same queries and keys with fewer heads of K and V."""
    texts = [f"{other['times']['ours'] / one['times']['ours']:.2f} (batch {one['batch']}, "
             f"{length_text(one['seqlen_kv'])}, d = {one['head_dim']}, 1/{other['shared']} of the "
             "bytes)"
             for one in found for other in found if one["shared"] == 1 < other["shared"] and all(
                 one[name] == other[name] for name in SHAPE if name != "kv_heads")]
    return ["", "The time with heads that share K and V over the time without sharing: "
            f"{', '.join(texts)}."] if texts else []
