"""Bytes: HBM traffic, memory beyond inputs and outputs, and what tiles make of it."""

import re

from ladder import course
from ladder.console import NO_DEVICE
from ladder.figures.measured import need, series
from ladder.figures.names import PAPER_GRID, gpu_text, label, number, per_head
from ladder.figures.style import (FAINT, INK, byte_axis, byte_tick, ink, length_axis, margins,
                                  marker, spread, title_of)
from ladder.files import short_name
from ladder.records import requested, total
from ladder.text import bytes_text


def gpu_name(files):
    return short_name(files.gpu.machine["gpu"]) if files.gpu.there else None


def traffic(files, missing):
    """Each rung's default."""
    kinds = []

    def panel(title, measured, value, what):
        rows = []
        for d in (64, 128):
            lines = []
            for way in ("fwd", "bwd"):
                entries = [e for e in measured.plain(way, head_dim=d, causal=False)
                           if e.device == "sim" or e.is_paper()]
                for step, of in files.steps_of(entries):
                    if way != files.own_way(step) or not files.is_default(step):
                        continue
                    line = series(of, value)
                    if line["x"]:
                        lines.append({**files.look(step), "backward": way == "bwd",
                                      "label": number(step[0]) + (" bwd" if way == "bwd" else ""),
                                      **line})
            if lines:
                rows.append({"title": f"d = {d}", "lines": lines})
        if rows:
            kinds.append({"title": title, "rows": rows})
        else:
            missing(what)

    source = files.gpu if files.gpu.paper() else files.sim
    how = "formula" if source is files.gpu else "sim"
    panel(f"requested ({how}): what kernels ask for", source,
          lambda e: per_head(e, requested(e.record)),
          "nothing requested: scripts/figures measure --sim")
    panel("distinct (sim): each byte once a kernel", files.sim,
          lambda e: per_head(e, total(e.record, "distinct")),
          "no distinct bytes: scripts/figures measure --sim")
    panel(f"DRAM ({gpu_name(files)}'s counters): what HBM served", files.gpu,
          lambda e: per_head(e, total(e.record, "dram")),
          f"no DRAM counters: {PAPER_GRID}, where they may be read (--dram)")
    return {"title": "HBM traffic of a head against N", "kinds": need(kinds)}


def alike(steps, value):
    """[[steps], {N: bytes}]: steps that need the same share a line."""
    groups = []
    for step, of in steps:
        line = series(of, value)
        known = dict(zip(line["x"], line["y"]))
        for together, same in groups:
            common = [n for n in known if n in same]
            if len(common) > 1 and all(known[n] == same[n] for n in common):
                same.update(known)
                together.append(step)
                break
        else:
            groups.append(([step], known))
    return groups


def workspace(files, missing):
    d, lines, marks = 128, [], []
    # The few bytes of a step for one architecture are for all heads together, of which the sim has
    # one.
    portable = [step for step in files.order if not files.about[step].exact_architecture]
    there = {e.step for e in files.gpu.entries} | {e.step for e in files.sim.entries
                                                   if e.step in portable}
    every, steps = [step for step in files.order if step in there], []
    for way in ("fwd", "bwd"):
        entries = files.gpu.plain(way, head_dim=d, causal=False) + [
            e for e in files.sim.plain(way, head_dim=d, causal=False) if e.step in portable]
        steps += [(step, of) for step, of in files.steps_of(entries) if way == files.own_way(step)]
    # A counter for all heads together is nothing for each of them.
    for together, known in alike(steps, lambda e: per_head(
            e, e.workspace_bytes if e.workspace_bytes > 64 else 0)):
        lengths = sorted(known)
        lines.append({**files.look(together[0]), "x": lengths,
                      "label": ", ".join(names_of(together, every)),
                      "y": [known[n] for n in lengths]})
    for one in files.gpu.skipped:
        needs = re.search(r"needs ([\d.]+) GiB", one["reason"])
        step = (one["rung"], one["variant"])
        if (one["status"] == NO_DEVICE and needs and step in files.about
                and one["head_dim"] == d and not one["causal"]):
            marks.append({**files.look(step), "label": label(step), "x": one["seqlen"],
                          "y": float(needs[1]) * 2**30 / (one["batch"] * one["heads"])})
    if not files.gpu.there:
        missing("no GPU, so nothing runs out of memory: scripts/figures measure --grid long")
    elif not marks:
        missing("nothing ran out of memory: scripts/figures measure --grid long")
    return {"title": f"Device memory beyond inputs and outputs, for each head of {d}",
            "memory_bytes": files.memory(), "gpu": gpu_name(files), "heads": 16, "lines": need(
                lines, "no workspace: scripts/figures measure --sim"), "marks": marks}


def names_of(steps, every):
    """["00", "03 from two_pass on", "05 defer to mma"]: a rung by its number alone where all of its
    steps in `every` are meant."""
    found = []
    for rung in dict.fromkeys(rung for rung, _ in steps):
        mine = [variant for r, variant in steps if r == rung]
        its = [variant for r, variant in every if r == rung]
        if mine == its:
            found.append(number(rung))
        elif len(mine) > 1 and mine == its[-len(mine):]:
            found.append(f"{number(rung)} from {mine[0]} on")
        elif len(mine) > 2 and mine == its[its.index(mine[0]):][:len(mine)]:
            found.append(f"{number(rung)} {mine[0]} to {mine[-1]}")
        elif len(its) < 2 * len(mine):
            found.append(f"{number(rung)} without "
                         f"{', '.join(variant for variant in its if variant not in mine)}")
        else:
            found.append(f"{number(rung)} {', '.join(mine)}")
    return found


def block_size(files, missing):
    def lines(measured, value, steps):
        found = []
        for step in steps:
            rung, variant = step
            for d in (64, 128):
                of = sorted((e for e in measured.find("fwd", rung=rung, variant=variant,
                                                      head_dim=d, causal=False) if e.tiled),
                            key=lambda e: e.block_kv)
                of = [e for e in of if e.block_q == 64 and value(e) is not None]
                if of:
                    name = number(rung) if len(files.variants(rung)) == 1 else label(step)
                    found.append({**files.look(step), "label": f"{name}, d = {d}", "d": d,
                                  "n": of[0].seqlen, "x": [e.block_kv for e in of],
                                  "y": [value(e) for e in of]})
        return found

    panels = []
    counted = lines(files.sim, lambda e: per_head(e, requested(e.record)),
                    course.BLOCK_SIZE_COUNTED)
    if counted:
        panels.append({"title": f"traffic: requested, N = {counted[0]['n']} (sim)",
                       "unit": "bytes", "lines": counted})
    else:
        missing("no traffic by tile size: scripts/figures measure --sim")
    timed = lines(files.gpu, lambda e: e.time_ms, course.BLOCK_SIZE_TIMED)
    if timed:
        panels.append({"title": f"time, N = {timed[0]['n']}, 16k tokens ({gpu_text(files)})",
                       "unit": "ms", "lines": timed})
    else:
        missing(f"no time by tile size: {PAPER_GRID}")
    return {"title": course.BLOCK_SIZE_TITLE, "panels": need(panels)}


def draw_traffic(plt, data):
    kinds, rows = data["kinds"], max(len(kind["rows"]) for kind in data["kinds"])
    figure, grid = plt.subplots(rows, len(kinds), figsize=(1.2 + 3.9 * len(kinds), 1 + 3.7 * rows),
                                squeeze=False, sharey=True)
    margins(figure, left=0.75, right=0.75, top=0.95, across=0.85, down=1.05)
    every = [y for kind in kinds for row in kind["rows"] for line in row["lines"]
             for y in line["y"] if y > 0]
    for column, kind in enumerate(kinds):
        for axis, row in zip(grid[:, column], kind["rows"]):
            length_axis(axis, {n for line in row["lines"] for n in line["x"]})
            byte_axis(axis)
            axis.set_ylim(min(every) / 4, max(every) * 2)
            for line in row["lines"]:
                axis.plot(line["x"], line["y"], color=line["colour"],
                          marker=marker(line), markersize=4.5,
                          ls="--" if line["backward"] else "-")
            spread(axis, [(line["x"][-1], line["y"][-1], line["label"], ink(line),
                           "bold") for line in row["lines"]], 10)
            slopes(axis, min(line["x"][0] for line in row["lines"]),
                   max(line["x"][-1] for line in row["lines"]), min(every))
            axis.set_title(f"{kind['title']}\n{row['title']}")
            axis.set_xlabel("N")
            axis.yaxis.set_tick_params(labelleft=column == 0)
    title_of(figure, data["title"])
    return figure


def slopes(axis, first, last, bottom):
    """What grows with N and with N², for the eye."""
    for power, text in ((1, "∝ N"), (2, "∝ N²")):
        top = bottom * 0.4 * (last / first) ** power
        axis.plot([first, last], [bottom * 0.4, top], color=FAINT, lw=0.8, ls=":", zorder=1)
        axis.text(last, top, f"{text} ", fontsize=7, color="#666660", ha="right", va="bottom")


def draw_workspace(plt, data):
    figure, axis = plt.subplots(figsize=(10.3, 5.4))
    margins(figure, left=0.95, right=3.3, top=0.6)
    positive = [y for line in data["lines"] for y in line["y"] if y > 0]
    floor = min(positive) / 8  # where nothing is drawn, which the logarithm does not have
    lengths = {n for line in data["lines"] for n in line["x"]} | {m["x"] for m in data["marks"]}
    length_axis(axis, lengths)
    byte_axis(axis)
    limit = data["memory_bytes"] and data["memory_bytes"] / data["heads"]
    top = max(positive + [m["y"] for m in data["marks"]] + ([limit] if limit else []))
    axis.set_ylim(floor / 2, top * 12)
    axis.set_yticks([floor, *(10.0**e for e in range(3, 13) if floor < 10.0**e < top * 12)])
    axis.yaxis.set_major_formatter(lambda y, _: byte_tick(y) if y > floor else "0")
    if limit:
        axis.axhline(limit, color=INK, lw=1, ls=(0, (5, 2)))
        axis.text(min(lengths), limit * 1.15, f"all of the {data['gpu']}'s "
                  f"{bytes_text(data['memory_bytes'])}, for "
                  f"{data['heads']} heads", fontsize=8)
    ends = []
    for line in data["lines"]:
        shown = [max(y, floor) for y in line["y"]]
        axis.plot(line["x"], shown, color=line["colour"],
                  marker=marker(line))
        ends.append((line["x"][-1], shown[-1], line["label"], ink(line), "bold"))
    spread(axis, ends, 13)
    for mark in data["marks"]:
        axis.plot(mark["x"], mark["y"], marker="x", color=mark["colour"], ls="",
                  markersize=10, mew=2.2, zorder=5)
    if data["marks"]:
        axis.text(max(m["x"] for m in data["marks"]), max(m["y"] for m in data["marks"]) * 1.5,
                  "✕ does not fit", ha="right", fontsize=8)
    axis.set_xlabel("N")
    axis.set_ylabel("bytes a head")
    title_of(figure, data["title"])
    return figure


def draw_block_size(plt, data):
    panels = data["panels"]
    figure, grid = plt.subplots(1, len(panels), figsize=(1.5 + 4.8 * len(panels), 4.4),
                                squeeze=False)
    margins(figure, left=0.85, right=1.25, top=0.8, across=2.0)
    for axis, panel in zip(grid.flat, panels):
        length_axis(axis, {x for line in panel["lines"] for x in line["x"]})
        for line in panel["lines"]:
            axis.plot(line["x"], line["y"], color=line["colour"],
                      marker=marker(line),
                      ls="-" if line["d"] == 64 else "--")
        axis.set_ylim(0, max(y for line in panel["lines"] for y in line["y"]) * 1.12)
        if panel["unit"] == "bytes":
            axis.yaxis.set_major_formatter(byte_tick)
            axis.set_ylabel("bytes a head")
        else:
            axis.set_ylabel("ms")
        spread(axis, [(line["x"][-1], line["y"][-1], line["label"], ink(line), "bold")
                      for line in panel["lines"]], 11)
        axis.set_title(panel["title"])
        axis.set_xlabel("Bc, rows of K and V in a tile")
    title_of(figure, data["title"])
    return figure
