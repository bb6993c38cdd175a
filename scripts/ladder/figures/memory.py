"""Bytes: HBM traffic, memory beyond inputs and outputs, and what tiles make of it."""

from ladder import course
from ladder.figures.measured import need, of_the_paper, series
from ladder.figures.names import HEADS, gpu_text, number
from ladder.figures.style import FAINT, INK, byte_tick, draw_lines, plots
from ladder.files import short_name
from ladder.records import requested, total
from ladder.text import bytes_text


def traffic(files):
    """Of each rung's default, by head size in rows and by kind in columns."""
    panels = []
    for d in HEADS:
        for title, measured, count in (
                ("requested (formula): what kernels ask for", files.gpu, requested),
                ("distinct (sim): each byte once a kernel", files.sim,
                 lambda record: total(record, "distinct")),
                (f"DRAM ({short_name(files.gpu.name)}'s counters): what HBM served", files.gpu,
                 lambda record: total(record, "dram"))):
            lines = []
            for way, more in (("fwd", ""), ("bwd", " bwd")):
                entries = [e for e in measured.plain(way, head_dim=d, causal=False)
                           if e.device == "sim" or of_the_paper(e.record)]
                lines += [{**files.look(step), "dashed": bool(more),
                           "label": number(step[0]) + more,
                           **series(of, lambda e: e.per_head(count(e.record)))}
                          for step, of in files.steps_of(entries, way)
                          if files.gpu.is_default(step)]
            panels.append({"title": f"{title}\nd = {d}",
                           "lines": [line for line in lines if line["x"]]})
    need(any(panel["lines"] for panel in panels))
    return {"title": "HBM traffic of a head against N", "panels": panels}


def draw_traffic(plt, data):
    figure, pairs = plots(plt, data, (12.9, 8.4), columns=3, sharey=True)
    every = [y for _, panel in pairs for line in panel["lines"] for y in line["y"] if y > 0]
    for axis, panel in pairs:
        axis.set_visible(bool(panel["lines"]))
        if panel["lines"]:
            axis.set(yscale="log", ylim=(min(every) / 4, max(every) * 2))
            axis.yaxis.set_major_formatter(byte_tick)
            draw_lines(axis, panel["lines"])
            slopes(axis, *axis.get_xticks()[[0, -1]], min(every))
    return figure


def slopes(axis, first, last, bottom):
    """What grows with N and with N², for the eye."""
    for power, text in ((1, "∝ N"), (2, "∝ N²")):
        top = bottom * 0.4 * (last / first) ** power
        axis.plot([first, last], [bottom * 0.4, top], color=FAINT, lw=0.8, ls=":", zorder=1)
        axis.text(last, top, f"{text} ", fontsize=7, color="#666660", ha="right", va="bottom")


def workspace(files):
    """Of each rung's last portable step, rungs that need the same in a line."""
    d, lines = 128, []
    for way in ("fwd", "bwd"):
        entries = [e for measured in (files.gpu, files.sim)
                   for e in measured.plain(way, head_dim=d, causal=False)]
        for step, of in files.steps_of(entries, way):
            if files.about[step] != files.ladder.last_portable(step[0]):
                continue
            line = series(of, lambda e: e.per_head(e.workspace_bytes))
            known = dict(zip(line["x"], line["y"]))
            for together, sizes in lines:
                if all(known.get(n, size) == size for n, size in sizes.items()):
                    sizes |= known
                    together.append(step)
                    break
            else:
                lines.append(([step], known))
    lines = [{**files.look(together[0]), "label": ", ".join(number(rung) for rung, _ in together),
              "x": sorted(sizes), "y": [sizes[n] for n in sorted(sizes)]}
             for together, sizes in lines]
    marks = [{**files.look(step), "x": one["seqlen"],
              "y": gib * 2**30 / (one["batch"] * one["heads"])}
             for step, one, gib in files.gpu.did_not_fit()
             if step in files.about and one["head_dim"] == d and not one["causal"]]
    return {"title": f"Device memory beyond inputs and outputs, for each head of {d}",
            "memory_bytes": files.gpu.machine.get("memory_bytes"),
            "gpu": short_name(files.gpu.name), "heads": 16,
            "panels": [{"lines": need(lines), "marks": marks}]}


def draw_workspace(plt, data):
    figure, [(axis, panel)] = plots(plt, data, (10.3, 5.4))
    lines, marks = panel["lines"], panel["marks"]
    axis.set_yscale("symlog", linthresh=1e4)  # which has a place for nothing
    axis.yaxis.set_major_formatter(byte_tick)
    limit = (data["memory_bytes"] or 0) / data["heads"]
    most = max(limit, *(y for line in lines for y in line["y"]), *(mark["y"] for mark in marks))
    axis.set(ylim=(-2e3, 12 * most), ylabel="bytes a head")
    if limit:
        axis.axhline(limit, color=INK, lw=1, ls=(0, (5, 2)))
        axis.text(lines[0]["x"][0], limit * 1.15, f"all of the {data['gpu']}'s "
                  f"{bytes_text(data['memory_bytes'])}, for {data['heads']} heads", fontsize=8)
    draw_lines(axis, lines)
    for mark in marks:
        axis.plot(mark["x"], mark["y"], marker="x", color=mark["colour"], ls="", markersize=10,
                  mew=2.2, zorder=5)
    if marks:
        axis.text(mark["x"], mark["y"] * 1.5, "✕ does not fit", ha="right", fontsize=8)
    return figure


def block_size(files):
    panels = []
    for title, unit, measured, value, steps in (
            ("traffic: requested, N = {} (sim)", "bytes a head", files.sim,
             lambda e: e.per_head(requested(e.record)), course.BLOCK_SIZE_COUNTED),
            (f"time, N = {{}}, 16k tokens ({gpu_text(files)})", "ms", files.gpu,
             lambda e: e.time_ms, course.BLOCK_SIZE_TIMED)):
        lines = []
        for step in steps:
            for d in HEADS:
                of = sorted((e for e in measured.find(rung=step[0], variant=step[1], head_dim=d,
                                                      block_q=64, causal=False)
                             if e.tiled and value(e) is not None), key=lambda e: e.block_kv)
                if of:
                    n, look = of[0].seqlen, files.look(step)
                    lines.append({**look, "label": f"{look['label']}, d = {d}", "dashed": d != 64,
                                  "x": [e.block_kv for e in of], "y": [value(e) for e in of]})
        if lines:
            panels.append({"title": title.format(n), "unit": unit, "lines": lines})
    return {"title": course.BLOCK_SIZE_TITLE, "panels": need(panels)}


def draw_block_size(plt, data):
    figure, pairs = plots(plt, data, (1.5 + 4.8 * len(data["panels"]), 4.4))
    for axis, panel in pairs:
        axis.set(ylim=(0, max(y for line in panel["lines"] for y in line["y"]) * 1.12),
                 ylabel=panel["unit"])
        draw_lines(axis, panel["lines"], xlabel="Bc, rows of K and V in a tile")
        if panel["unit"] != "ms":
            axis.yaxis.set_major_formatter(byte_tick)
    return figure
