"""Decoding: how fast the cache of K and V is read, beside PyTorch and beside a copy."""

from ladder.figures.measured import Missing
from ladder.figures.names import PEER_NAMES, gpu_text
from ladder.figures.rates import roofline as roofline_of_rungs
from ladder.figures.style import FAINT, INK, byte_tick, margins, title_of

DECODE_GRID = "scripts/figures measure --grid decode"
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8A6D00"]


def points(files):
    """[{batch, heads, …, record, times: {peer: ms}, share: {peer or "ours": of the copy's rate}}],
    as they were measured."""
    names = ("batch", "heads", "kv_heads", "seqlen_kv", "head_dim")

    def decodes(record):
        return record["seqlen"] == 1 < record.get("seqlen_kv", 1)

    peers = {}
    for record in filter(decodes, files.gpu.peers):
        peers.setdefault(tuple(record[name] for name in names), []).append(record)
    found = []
    for entry in files.gpu.plain(seqlen=1, causal=False):
        at = tuple(entry.record[name] for name in names)
        if not decodes(entry.record) or at not in peers:
            continue
        one = dict(zip(names, at))
        one["bytes"] = 4 * one["batch"] * one["kv_heads"] * one["seqlen_kv"] * one["head_dim"]
        one["times"] = {"ours": entry.time_ms, **{r["variant"]: r["time_ms"] for r in peers[at]}}
        copy = peers[at][0]["copy_bytes_per_s"]
        one["share"] = {name: one["bytes"] / ms * 1e3 / copy for name, ms in one["times"].items()}
        found.append({**one, "copy": copy, "record": entry.record})
    if not found:
        raise Missing(f"decoding is not measured: {DECODE_GRID}, where PyTorch is installed")
    return found


def shared_by(one):
    """How many heads share one of K and V."""
    return one["heads"] // one["kv_heads"]


def decode(files, missing):
    lines = {}
    for one in sorted(points(files), key=lambda one: one["bytes"]):
        name = f"batch {one['batch']}, H/Hk = {shared_by(one)}"
        for who in ("ours", "cudnn"):
            if who not in one["share"]:
                missing(f"no {PEER_NAMES[who]} at every point: {DECODE_GRID}")
                continue
            line = lines.setdefault(name, {}).setdefault(who, {"x": [], "y": []})
            line["x"].append(one["bytes"])
            line["y"].append(one["share"][who])
    return {"title": f"Decoding: one query of each head, {gpu_text(files)}",
            "lines": dict(sorted(lines.items()))}


def roofline(files, missing):
    """The rungs', and decoding at its intensity H/Hk: of each the largest cache."""
    data = roofline_of_rungs(files, missing)
    try:
        found = points(files)
    except Missing:
        return data
    for panel in data["panels"]:
        largest = {shared_by(one): one for one in sorted(found, key=lambda one: one["bytes"])
                   if panel["title"].startswith(f"d = {one['head_dim']},")}
        for ratio, one in sorted(largest.items()):
            rung = one["record"]["rung"]
            panel["points"].append({
                **files.look(next(step for step in files.order if step[0] == rung)),
                "label": f"decode, H/Hk = {ratio}", "y": one["record"]["tflops"],
                "requested": ratio, "dram": None})
    return data


def draw_decode(plt, data):
    figure, axis = plt.subplots(figsize=(8.5, 4.6))
    margins(figure, left=0.7, right=2.1, bottom=0.85, top=0.8)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(byte_tick)
    axis.axhline(1, color=FAINT, lw=1)
    for (name, line), tint in zip(data["lines"].items(), COLOURS):
        axis.plot(line["ours"]["x"], line["ours"]["y"], color=tint, marker="o", label=name)
        if "cudnn" in line:
            axis.plot(line["cudnn"]["x"], line["cudnn"]["y"], color=tint, marker="o", mfc="none",
                      lw=1, ls="--")
    axis.plot([], [], color=INK, lw=1, ls="--", marker="o", mfc="none", label=PEER_NAMES["cudnn"])
    axis.set_ylim(0, 1.15)
    axis.set_xlabel("bytes of K and V")
    axis.set_ylabel("share of the device copy's rate")
    axis.legend(loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False, fontsize=8)
    figure.text(0.012, 0.012, "Each line: heads of 64 and 128. Where more heads share one of K and "
                "V the same queries read fewer bytes, and\na cache of few bytes is over before "
                "the copy's rate is reached.", fontsize=8, color="#555555")
    title_of(figure, data["title"])
    return figure
