"""Bytes: HBM traffic, memory beyond inputs and outputs, and what tiles make of it."""

import itertools

from ladder import course
from ladder.figures.measured import need, of_the_paper, series
from ladder.figures.names import HEADS, PAPER_GRID, SIM, gpu_text, label, number, per_head
from ladder.figures.style import (FAINT, INK, byte_axis, byte_tick, length_axis, line_of, name_ends,
                                  plots)
from ladder.files import short_name
from ladder.records import requested, total
from ladder.text import bytes_text


def gpu_name(files):
    return short_name(files.gpu.machine["gpu"]) if files.gpu.there else None


def traffic_lines(files, measured, value, d):
    """Of each rung's default."""
    lines = []
    for way in ("fwd", "bwd"):
        entries = [e for e in measured.plain(way, head_dim=d, causal=False)
                   if e.device == "sim" or of_the_paper(e.record)]
        lines += [{**files.look(step), "backward": way == "bwd",
                   "label": number(step[0]) + (" bwd" if way == "bwd" else ""),
                   **series(of, value)}
                  for step, of in files.steps_of(entries, way) if files.is_default(step)]
    return [line for line in lines if line["x"]]


def traffic(files, missing):
    kinds = []
    source = files.gpu if files.gpu.paper() else files.sim
    for title, measured, count, what in (
            (f"requested ({'formula' if source is files.gpu else 'sim'}): what kernels ask for",
             source, requested, f"nothing requested: {SIM}"),
            ("distinct (sim): each byte once a kernel", files.sim,
             lambda record: total(record, "distinct"),
             f"no distinct bytes: {SIM}"),
            (f"DRAM ({gpu_name(files)}'s counters): what HBM served", files.gpu,
             lambda record: total(record, "dram"),
             f"no DRAM counters: {PAPER_GRID}, where they may be read (--dram)")):
        rows = [{"title": f"d = {d}", "lines": traffic_lines(
            files, measured, lambda e, count=count: per_head(e, count(e.record)), d)}
            for d in HEADS]
        rows = [row for row in rows if row["lines"]]
        if rows:
            kinds.append({"title": title, "rows": rows})
        else:
            missing(what)
    return {"title": "HBM traffic of a head against N", "kinds": need(kinds)}


def alike(steps, value):
    """[[steps], {N: bytes}]: steps that need the same share a line."""
    groups = []
    for step, of in steps:
        line = series(of, value)
        known = dict(zip(line["x"], line["y"]))
        for together, same in groups:
            common = known.keys() & same.keys()
            if len(common) > 1 and all(known[n] == same[n] for n in common):
                same.update(known)
                together.append(step)
                break
        else:
            groups.append(([step], known))
    return groups


def workspace(files, missing):
    d, lines, steps = 128, [], []
    # The few bytes of a step for one architecture are for all heads together, of which the sim has
    # one.
    portable = [step for step, about in files.about.items() if not about.exact_architecture]
    there = {e.step for e in files.gpu.entries} | {
        e.step for e in files.sim.entries if e.step in portable}
    every = [step for step in files.order if step in there]
    for way in ("fwd", "bwd"):
        steps += files.steps_of(files.gpu.plain(way, head_dim=d, causal=False) + [
            e for e in files.sim.plain(way, head_dim=d, causal=False) if e.step in portable], way)
    # A counter for all heads together is nothing for each of them.
    for together, known in alike(steps, lambda e: per_head(
            e, e.workspace_bytes if e.workspace_bytes > 64 else 0)):
        lengths = sorted(known)
        lines.append({**files.look(together[0]), "x": lengths,
                      "label": ", ".join(names_of(together, every)),
                      "y": [known[n] for n in lengths]})
    marks = [{**files.look(step), "label": label(step), "x": one["seqlen"],
              "y": gib * 2**30 / (one["batch"] * one["heads"])}
             for step, one, gib in files.gpu.did_not_fit()
             if step in files.about and one["head_dim"] == d and not one["causal"]]
    if not files.gpu.there:
        missing("no GPU, so nothing runs out of memory: scripts/figures measure --grid long")
    elif not marks:
        missing("nothing ran out of memory: scripts/figures measure --grid long")
    return {"title": f"Device memory beyond inputs and outputs, for each head of {d}",
            "memory_bytes": files.gpu.machine.get("memory_bytes"), "gpu": gpu_name(files),
            "heads": 16, "lines": need(lines, f"no workspace: {SIM}"),
            "marks": marks}


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


def tile_lines(files, measured, value, steps):
    lines = []
    for rung, variant in steps:
        for d in HEADS:
            of = sorted((e for e in measured.find("fwd", rung=rung, variant=variant, head_dim=d,
                                                  block_q=64, causal=False)
                         if e.tiled and value(e) is not None), key=lambda e: e.block_kv)
            if of:
                name = number(rung) if len(files.variants(rung)) == 1 else label((rung, variant))
                lines.append({**files.look((rung, variant)), "label": f"{name}, d = {d}", "d": d,
                              "n": of[0].seqlen, "x": [e.block_kv for e in of],
                              "y": [value(e) for e in of]})
    return lines


def block_size(files, missing):
    panels = []
    counted = tile_lines(files, files.sim, lambda e: per_head(e, requested(e.record)),
                         course.BLOCK_SIZE_COUNTED)
    if counted:
        panels.append({"title": f"traffic: requested, N = {counted[0]['n']} (sim)",
                       "unit": "bytes", "lines": counted})
    else:
        missing(f"no traffic by tile size: {SIM}")
    timed = tile_lines(files, files.gpu, lambda e: e.time_ms, course.BLOCK_SIZE_TIMED)
    if timed:
        panels.append({"title": f"time, N = {timed[0]['n']}, 16k tokens ({gpu_text(files)})",
                       "unit": "ms", "lines": timed})
    else:
        missing(f"no time by tile size: {PAPER_GRID}")
    return {"title": course.BLOCK_SIZE_TITLE, "panels": need(panels)}


def draw_traffic(plt, data):
    kinds = data["kinds"]
    every = [y for kind in kinds for row in kind["rows"] for line in row["lines"]
             for y in line["y"] if y > 0]
    rows = list(itertools.zip_longest(*(
        [{"title": f"{kind['title']}\n{row['title']}", "lines": row["lines"]}
         for row in kind["rows"]] for kind in kinds)))
    figure, pairs = plots(
        plt, sum(rows, ()), (1.2 + 3.9 * len(kinds), 1 + 3.7 * len(rows)),
        {"left": 0.75, "right": 0.75, "top": 0.95, "across": 0.85, "down": 1.05},
        columns=len(kinds), sharey=True)
    for axis, panel in pairs:
        lines = panel["lines"]
        lengths = {n for line in lines for n in line["x"]}
        length_axis(axis, lengths)
        byte_axis(axis)
        axis.set_ylim(min(every) / 4, max(every) * 2)
        for line in lines:
            line_of(axis, line, markersize=4.5, ls="--" if line["backward"] else "-")
        name_ends(axis, lines, 10)
        slopes(axis, min(lengths), max(lengths), min(every))
        axis.set_xlabel("N")
    return figure


def slopes(axis, first, last, bottom):
    """What grows with N and with N², for the eye."""
    for power, text in ((1, "∝ N"), (2, "∝ N²")):
        top = bottom * 0.4 * (last / first) ** power
        axis.plot([first, last], [bottom * 0.4, top], color=FAINT, lw=0.8, ls=":", zorder=1)
        axis.text(last, top, f"{text} ", fontsize=7, color="#666660", ha="right", va="bottom")


def draw_workspace(plt, data):
    marks = data["marks"]
    figure, [(axis, _)] = plots(plt, [{}], (10.3, 5.4), {"left": 0.95, "right": 3.3, "top": 0.6})
    positive = [y for line in data["lines"] for y in line["y"] if y > 0]
    floor = min(positive) / 8  # where nothing is drawn, which the logarithm does not have
    lengths = {n for line in data["lines"] for n in line["x"]} | {m["x"] for m in marks}
    length_axis(axis, lengths)
    byte_axis(axis)
    limit = data["memory_bytes"] and data["memory_bytes"] / data["heads"]
    top = 12 * max(positive + [m["y"] for m in marks] + ([limit] if limit else []))
    axis.set_ylim(floor / 2, top)
    axis.set_yticks([floor, *(10.0**e for e in range(3, 13) if floor < 10.0**e < top)])
    axis.yaxis.set_major_formatter(lambda y, _: byte_tick(y) if y > floor else "0")
    if limit:
        axis.axhline(limit, color=INK, lw=1, ls=(0, (5, 2)))
        axis.text(min(lengths), limit * 1.15, f"all of the {data['gpu']}'s "
                  f"{bytes_text(data['memory_bytes'])}, for {data['heads']} heads", fontsize=8)
    lines = [{**line, "y": [max(y, floor) for y in line["y"]]} for line in data["lines"]]
    for line in lines:
        line_of(axis, line)
    name_ends(axis, lines, 13)
    for mark in marks:
        axis.plot(mark["x"], mark["y"], marker="x", color=mark["colour"], ls="", markersize=10,
                  mew=2.2, zorder=5)
    if marks:
        axis.text(max(m["x"] for m in marks), max(m["y"] for m in marks) * 1.5, "✕ does not fit",
                  ha="right", fontsize=8)
    axis.set_xlabel("N")
    axis.set_ylabel("bytes a head")
    return figure


def draw_block_size(plt, data):
    panels = data["panels"]
    figure, pairs = plots(plt, panels, (1.5 + 4.8 * len(panels), 4.4), {
        "left": 0.85, "right": 1.25, "top": 0.8, "across": 2.0})
    for axis, panel in pairs:
        lines = panel["lines"]
        length_axis(axis, {x for line in lines for x in line["x"]})
        for line in lines:
            line_of(axis, line, ls="-" if line["d"] == 64 else "--")
        axis.set_ylim(0, max(y for line in lines for y in line["y"]) * 1.12)
        axis.set_ylabel("ms")
        if panel["unit"] == "bytes":
            axis.yaxis.set_major_formatter(byte_tick)
            axis.set_ylabel("bytes a head")
        name_ends(axis, lines, 11)
        axis.set_xlabel("Bc, rows of K and V in a tile")
    return figure
