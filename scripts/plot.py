#!/usr/bin/env python3
"""Draws the figures from the file that scripts/bench.py wrote, as PNG and SVG.

FILE is what was measured on a GPU; the sim's counts (sim.json) and traces (traces.json) are found
beside it. FILE may be sim.json itself. What the files do not have is left out and said.

  speedup       how much faster than 00 each step is
  tflops_fwd, tflops_bwd, tflops_both
                rate against N, PyTorch beside it (figures 4 to 6 of the FlashAttention-2 paper)
  traffic       HBM bytes against N: requested, distinct, and what DRAM served
  roofline      each rung at its own intensity, under the ceilings that were measured
  workspace     memory beyond inputs and outputs against N, and where it runs out
  block_size    04's traffic and time against its tile of keys
  access        which rows 04 and 05 touch, step by step
  pipeline      who does what in a block of 05's sm90, and who waits, in a model's time
  error         each step against float64

--readme writes the tables between the markers of README.md as well (<!-- ladder:begin -->, peers,
claims). --check writes nothing, and names what is stale: each figure carries a digest of its data.

Examples:
  scripts/plot.py
  scripts/plot.py build/mine.json --out build/figures
  scripts/plot.py --readme

Exit status: 0 good (left out counts as good); 1 --check found something stale; 2 bad usage or no
such file; 3 no matplotlib.
"""

import argparse
import hashlib
import io
import json
import math
import os
import re
import statistics
import struct
import subprocess
import sys

import pipeline as model
from ladder import (BAD_USAGE, GOOD, NO_DEVICE, NO_VALUE, ROOT, WRONG_RESULT, Stop, bytes_text,
                    rate_text, ratio_text, requested, time_text, total, write_whole)

RESULTS = os.path.join(ROOT, "scripts/results")
TOKENS, HIDDEN = 16 * 1024, 2048
LADDER_LENGTH = 2048  # where the ladder's table and speed-ups are taken
PEERS = ["flash", "cudnn", "efficient", "math"]
PEER_NAMES = {"flash": "PyTorch, FlashAttention-2", "cudnn": "PyTorch, cuDNN",
              "efficient": "PyTorch, efficient", "math": "PyTorch, plain"}
PAPER_GRID = "scripts/bench.py --grid paper"


# ---- the files ----


class Entry:
    """A record and the command that it came from."""

    def __init__(self, command, record):
        self.command, self.record = command, record
        self.step = (record["rung"], record["variant"])
        self.tiled = "--block-" in command
        self.input = record["input"]

    def __getattr__(self, name):
        return self.record[name]

    def heads_in_all(self):
        return self.record["batch"] * self.record["heads"]

    def is_paper(self, n=None, d=None, causal=None):
        """The paper's workload, 16k tokens in all and hidden size 2048, at this point of it."""
        r = self.record
        return (r["batch"] * r["seqlen"] == TOKENS and r["heads"] * r["head_dim"] == HIDDEN
                and not self.tiled and self.input == "normal" and n in (None, r["seqlen"])
                and d in (None, r["head_dim"]) and causal in (None, r["causal"]))


def flops(r):
    """As the papers count."""
    forward = (4 * r["seqlen"] * r["seqlen_kv"] * r["head_dim"] * r["heads"] * r["batch"]
               / (2 if r["causal"] else 1))
    return forward * (2.5 if r["direction"] == "bwd" else 1)


class Measured:
    """One file of bench.py; empty where there is none."""

    def __init__(self, path):
        self.there = os.path.exists(path)
        self.machine, self.ceilings = {}, None
        self.dtype, self.of_other_types = "", 0
        self.entries, self.peers, self.skipped, self.steps = [], [], [], []
        if not self.there:
            return
        data = read_json(path)
        try:
            self.machine, self.ceilings = data["machine"], data["ceilings"]
            self.entries = [Entry(c, r) for c, r in zip(data["commands"], data["records"])]
            self.peers, self.skipped = data["peers"], data["skipped"]
            # Figures and tables are of one type; a file may have both.
            types = [e.dtype for e in self.entries]
            self.dtype = "bf16" if "bf16" in types else next(iter(types), "")
            self.of_other_types = sum(dtype != self.dtype for dtype in types)
            self.entries = [e for e in self.entries if e.dtype == self.dtype]
            self.peers = [r for r in self.peers if r["dtype"] == self.dtype]
            self.steps = [(s["rung"], s["variant"]) for s in data["steps"]]
            # The default is the last step, unless it is for another GPU than this one.
            ran = {e.step for e in self.entries}
            self.defaults = dict(step for step in self.steps if step in ran)
        except (KeyError, TypeError) as error:
            raise Stop(f"{os.path.relpath(path)} is no file of scripts/bench.py ({error})",
                       BAD_USAGE) from None

    def find(self, direction="fwd", **wanted):
        return [e for e in self.entries if e.direction == direction
                and all(e.record[name] == value for name, value in wanted.items())]

    def paper(self, direction="fwd", n=None, d=None, causal=None):
        return [e for e in self.entries if e.direction == direction and e.is_paper(n, d, causal)
                and e.time_ms is not None]

    def plain(self, direction="fwd", **wanted):
        return [e for e in self.find(direction, **wanted)
                if not e.tiled and e.input == "normal"]

    def paper_peers(self, direction, backend, d, causal):
        return sorted((r for r in self.peers if r["direction"] == direction
                       and r["variant"] == backend and r["head_dim"] == d
                       and r["causal"] == causal and r["batch"] * r["seqlen"] == TOKENS
                       and r["heads"] * d == HIDDEN), key=lambda r: r["seqlen"])

    def is_default(self, step):
        return self.defaults.get(step[0]) == step[1]


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise Stop(f"cannot read {os.path.relpath(path)}: {error.strerror}", BAD_USAGE) from None
    except ValueError as error:
        raise Stop(f"{os.path.relpath(path)} is no JSON: {error}", BAD_USAGE) from None


class Files:
    def __init__(self, path):
        if not os.path.exists(path):
            raise Stop(f"there is no {os.path.relpath(path)}: scripts/bench.py measures it, or "
                       "counts it with --sim", BAD_USAGE)
        first = Measured(path)
        folder = os.path.dirname(os.path.abspath(path))
        sim = os.path.join(folder, "sim.json")
        if first.machine["gpu"] is None:
            self.gpu, self.sim = Measured(os.devnull + "/none"), first
        else:
            self.gpu, self.sim = first, Measured(sim)
        traces = os.path.join(folder, "traces.json")
        traced = read_json(traces) if os.path.exists(traces) else {}
        self.traces, self.pipelines = traced.get("traces", []), traced.get("pipelines", [])
        # The ladder's order: the sim lacks what is for one GPU, and the other way round.
        self.order = list(dict.fromkeys(sorted(self.sim.steps + self.gpu.steps,
                                               key=lambda step: step[0])))

    def steps_of(self, entries):
        """[(step, its entries)] in the ladder's order."""
        found = [(step, [e for e in entries if e.step == step]) for step in self.order]
        return [(step, of) for step, of in found if of]

    def memory(self):
        return self.gpu.machine.get("memory_bytes")


def label(step, files=None):
    """"05 mma"; a rung of one step is its name alone."""
    rung, variant = step
    alone = files and sum(s[0] == rung for s in files.order) == 1
    return rung.replace("_", " ") if alone else f"{rung[:2]} {variant}"


# ---- what each figure shows: plain data, without matplotlib ----


class Missing(Exception):
    """A figure, or a series of one, cannot be drawn, and why."""


def point_text(d, causal):
    return f"d = {d}{', causal' if causal else ''}"


def per_head(entry, value):
    return None if value is None else value / entry.heads_in_all()


def series(entries, value):
    """x and y of a line against N; nothing where the value is not known."""
    points = {e.seqlen: value(e) for e in entries}
    points = {n: y for n, y in points.items() if y is not None}
    return {"x": sorted(points), "y": [points[n] for n in sorted(points)]}


def bar(files, step, base, entry):
    value = base.time_ms / entry.time_ms
    return {"rung": step[0], "label": label(step, files), "value": value,
            "text": f"{ratio_text(value)}×   {rate_text(entry.tflops)} TFLOP/s",
            "default": files.gpu.is_default(step)}


def speedup(files, missing):
    n, panels = LADDER_LENGTH, []
    for d in (64, 128):
        entries = files.gpu.paper("fwd", n, d, False)
        base = [e for e in entries if e.rung.startswith("00")]
        if not base:
            missing(f"no time of 00 at N = {n}, d = {d}: {PAPER_GRID}")
            continue
        panels.append({"title": f"forward, d = {d}, against 00", "bars": [
            bar(files, step, base[0], of[0]) for step, of in files.steps_of(entries)
            if not step[0].startswith("06")]})
    for d in (64, 128):
        steps = files.steps_of(files.gpu.paper("bwd", n, d, False))
        if not steps:
            missing(f"no backward pass at N = {n}, d = {d}: {PAPER_GRID}")
            continue
        panels.append({"title": f"backward, d = {d}, against {label(steps[0][0])}", "bars": [
            bar(files, step, steps[0][1][0], of[0]) for step, of in steps]})
    return {"title": f"Speed-up, step by step (N = {n}, 16k tokens in all, "
                     f"{gpu_text(files)})", "panels": need(panels)}


def gpu_text(files):
    machine = files.gpu.machine
    return f"{machine['gpu']}, {files.gpu.dtype}"


def need(panels, what="nothing to show"):
    if not panels:
        raise Missing(what)
    return panels


def both_ways(entries_fwd, entries_bwd):
    """Rate of forward and backward together, by N."""
    forward = {e["seqlen"]: e for e in entries_fwd}
    points = {}
    for r in entries_bwd:
        f = forward.get(r["seqlen"])
        if f:
            points[r["seqlen"]] = ((flops(f) + flops(r)) / (f["time_ms"] + r["time_ms"])) * 1e-9
    return {"x": sorted(points), "y": [points[n] for n in sorted(points)]}


def tflops(files, missing, direction):
    panels = []
    for d in (64, 128):
        for causal in (False, True):
            lines = []
            way = "bwd" if direction == "both" else direction
            for step, of in files.steps_of(files.gpu.paper(way, None, d, causal)):
                if direction == "fwd" and (step[0].startswith("06") or not (
                        files.gpu.is_default(step) or step == ("05_flash_v2", "mma"))):
                    continue
                if direction == "both":
                    forward = [e.record for e in files.gpu.paper("fwd", None, d, causal)
                               if e.step == step]
                    line = both_ways(forward, [e.record for e in of])
                else:
                    line = series(of, lambda e: e.tflops)
                if line["x"]:
                    lines.append({"rung": step[0], "label": label(step, files), "peer": False,
                                  "thin": not files.gpu.is_default(step), **line})
            for backend in PEERS:
                records = files.gpu.paper_peers(way, backend, d, causal)
                if direction == "both":
                    line = both_ways(files.gpu.paper_peers("fwd", backend, d, causal), records)
                else:
                    line = {"x": [r["seqlen"] for r in records],
                            "y": [r["tflops"] for r in records]}
                if line["x"]:
                    lines.append({"rung": backend, "label": PEER_NAMES[backend], "peer": True,
                                  "thin": True, **line})
                else:
                    missing(f"{point_text(d, causal)}: no {PEER_NAMES[backend]}: {PAPER_GRID}, "
                            "where PyTorch is installed")
            if any(not line["peer"] for line in lines):
                panels.append({"title": point_text(d, causal), "lines": lines})
    what = {"fwd": "forward", "bwd": "backward", "both": "forward and backward"}[direction]
    need(panels, f"no times of the {what} pass: {PAPER_GRID}")
    return {"title": f"Rate of the {what} pass: 16k tokens in all, hidden size 2048, "
                     f"{gpu_text(files)}", "panels": panels}


def traffic_steps(files, entries, measured):
    """Each rung's default, of the forward pass; 06's of the backward."""
    found = []
    for step, of in files.steps_of(entries):
        if measured.is_default(step):
            found.append((step, of))
    return found


def traffic(files, missing):
    kinds = []

    def panel(title, measured, value, what):
        rows = []
        for d in (64, 128):
            lines = []
            for way in ("fwd", "bwd"):
                entries = [e for e in measured.plain(way, head_dim=d, causal=False)
                           if e.device == "sim" or e.is_paper()]
                for step, of in traffic_steps(files, entries, measured):
                    if (way == "bwd") != step[0].startswith("06"):
                        continue
                    line = series(of, value)
                    if line["x"]:
                        lines.append({"rung": step[0], "label": step[0][:2] + (
                            " bwd" if way == "bwd" else ""), **line})
            if lines:
                rows.append({"title": f"d = {d}", "lines": lines})
        if rows:
            kinds.append({"title": title, "rows": rows})
        else:
            missing(what)

    source = files.gpu if files.gpu.paper() else files.sim
    how = "formula" if source is files.gpu else "sim"
    panel(f"requested ({how}): what kernels ask for", source,
          lambda e: per_head(e, requested(e.record)), "nothing requested: scripts/bench.py --sim")
    panel("distinct (sim): each byte once a kernel", files.sim,
          lambda e: per_head(e, total(e.record, "distinct")),
          "no distinct bytes: scripts/bench.py --sim")
    panel("DRAM (counters): what HBM served", files.gpu,
          lambda e: per_head(e, total(e.record, "dram")),
          f"no DRAM counters: {PAPER_GRID}, where they may be read (--dram)")
    return {"title": "HBM traffic of a head against N", "kinds": need(kinds)}


def roofline(files, missing):
    roofs = files.gpu.ceilings
    if not roofs:
        raise Missing(f"no ceilings were measured: {PAPER_GRID}, where PyTorch is installed")
    n, panels = 4096, []
    for d in (64, 128):
        points = []
        for way in ("fwd", "bwd"):
            for step, of in files.steps_of(files.gpu.paper(way, n, d, False)):
                if (way == "bwd") != step[0].startswith("06") or not (
                        files.gpu.is_default(step) or step == ("05_flash_v2", "mma")
                        or step == ("01_tiled_matmul", "tile")):
                    continue
                r = of[0].record
                dram = total(r, "dram")
                points.append({"rung": step[0], "label": label(step, files) + (
                    " bwd" if way == "bwd" else ""), "y": r["tflops"],
                    "requested": flops(r) / requested(r),
                    "dram": flops(r) / dram if dram else None})
        if points:
            bare = [p["label"] for p in points if p["dram"] is None]
            if bare:
                missing(f"d = {d}: DRAM counters of {', '.join(bare)}, drawn by what is requested "
                        f"alone: {PAPER_GRID}, where they may be read")
            panels.append({"title": f"d = {d}, N = {n}", "points": points})
    return {"title": f"Roofline: {gpu_text(files)}",
            "matmul_tflops": roofs["matmul_tflops"],
            "copy_bytes_per_s": roofs["copy_bytes_per_s"],
            "panels": need(panels, f"no times at N = {n}: {PAPER_GRID}")}


def workspace(files, missing):
    d, lines, marks = 128, [], []
    for way in ("fwd", "bwd"):
        # sm90's few bytes are for all heads together, of which the sim has one.
        every = files.gpu.plain(way, head_dim=d, causal=False) + [
            e for e in files.sim.plain(way, head_dim=d, causal=False)
            if not e.step[1].startswith("sm")]
        groups = []
        for step, of in files.steps_of(every):
            if (way == "bwd") != step[0].startswith("06"):
                continue
            line = series(of, lambda e: per_head(e, e.workspace_bytes))
                # Steps that need the same share a line.
            known = dict(zip(line["x"], line["y"]))
            for same in groups:
                common = [n for n in known if n in same["known"]]
                if len(common) > 1 and all(known[n] == same["known"][n] for n in common):
                    same["known"].update(known)
                    same["steps"].append(step)
                    break
            else:
                groups.append({"known": known, "steps": [step]})
        for same in groups:
            lengths = sorted(same["known"])
            lines.append({"rung": same["steps"][0][0], "x": lengths,
                          "label": ", ".join(names_of(same["steps"], files)),
                          "y": [same["known"][n] for n in lengths]})
    for one in files.gpu.skipped:
        needs = re.search(r"needs ([\d.]+) GiB", one["reason"])
        if one["status"] == NO_DEVICE and needs and one["head_dim"] == d and not one["causal"]:
            heads = one["batch"] * one["heads"]
            marks.append({"rung": one["rung"], "label": label((one["rung"], one["variant"])),
                          "x": one["seqlen"], "y": float(needs[1]) * 2**30 / heads})
    if not files.gpu.there:
        missing("no GPU, so nothing runs out of memory: scripts/bench.py --grid long")
    elif not marks:
        missing("nothing ran out of memory: scripts/bench.py --grid long")
    return {"title": f"Device memory beyond inputs and outputs, for each head of {d}",
            "memory_bytes": files.memory(), "heads": 16, "lines": need(
                lines, "no workspace: scripts/bench.py --sim"), "marks": marks}


def names_of(steps, files):
    """["00", "03 from two_pass on"]: a rung whose every step is meant by its number alone."""
    found = []
    for rung in dict.fromkeys(rung for rung, _ in steps):
        mine = [variant for r, variant in steps if r == rung]
        every = [variant for r, variant in files.order if r == rung]
        if mine == every:
            found.append(rung[:2])
        elif len(mine) > 1 and mine == every[-len(mine):]:
            found.append(f"{rung[:2]} from {mine[0]} on")
        else:
            found.append(f"{rung[:2]} {', '.join(mine)}")
    return found


def block_size(files, missing):
    def lines(measured, value, rungs):
        found = []
        for rung, variant in rungs:
            for d in (64, 128):
                of = sorted((e for e in measured.find("fwd", rung=rung, variant=variant,
                                                      head_dim=d, causal=False) if e.tiled),
                            key=lambda e: e.block_kv)
                of = [e for e in of if e.block_q == 64 and value(e) is not None]
                if of:
                    found.append({"rung": rung, "label": f"{rung[:2]}, d = {d}"
                                  if rung.startswith("04") else f"{rung[:2]} {variant}, d = {d}",
                                  "d": d, "n": of[0].seqlen, "x": [e.block_kv for e in of],
                                  "y": [value(e) for e in of]})
        return found

    flash, swap = ("04_flash_v1", "flash_v1"), ("05_flash_v2", "swap")
    panels = []
    counted = lines(files.sim, lambda e: per_head(e, requested(e.record)), [flash, swap])
    if counted:
        panels.append({"title": f"traffic: requested, N = {counted[0]['n']} (sim)",
                       "unit": "bytes", "lines": counted})
    else:
        missing("no traffic by tile size: scripts/bench.py --sim")
    timed = lines(files.gpu, lambda e: e.time_ms, [flash])
    if timed:
        panels.append({"title": f"time, N = {timed[0]['n']}, 16k tokens ({gpu_text(files)})",
                       "unit": "ms", "lines": timed})
    else:
        missing(f"no time by tile size: {PAPER_GRID}")
    return {"title": "FlashAttention-1 against its tile of keys, Bc (Br = 64)",
            "panels": need(panels)}


LANES = ["Q", "K", "V", "O"]


def access(files, missing):
    panels = []
    for trace in files.traces:
        # A slot begins where a tile of Q, K or V arrives and lasts until the next one does; kernels
        # whose blocks do one step each, all at once, take one.
        slot, place, boxes, blocks, kernels = -1, None, [], [], []
        many, arrives = {}, set()
        for kernel, block, step, array, op, *_ in trace["events"]:
            many.setdefault(kernel, set()).add(step)
            if array in ("Q", "K", "V") and op == "r":
                arrives.add((kernel, block, step))
        for kernel, block, step, array, op, first, last in trace["events"]:
            short = len(many[kernel]) == 1
            at = (kernel, 0, 0) if short else (kernel, block, step)
            if at != place and (short or at in arrives or place is None or place[0] != kernel):
                slot += 1
            place = at
            name = trace["kernels"][kernel]
            if not kernels or kernels[-1]["name"] != name:
                kernels.append({"name": name, "at": slot})
            if not short and (not blocks or blocks[-1]["block"] != block):
                blocks.append({"block": block, "at": slot})
            lane = "O" if array.startswith("O") else array
            if lane in LANES:
                boxes.append([slot, LANES.index(lane), op, first, last])
        panels.append({"title": f"{trace['rung'][:2]} {trace['variant']}: " + (
            "K and V outside, Q and O inside" if trace["rung"].startswith("04")
            else "Q outside, K and V inside"), "rung": trace["rung"], "rows": trace["seqlen"],
            "slots": slot + 1, "boxes": merged(boxes), "blocks": blocks, "kernels": kernels,
            "block_q": trace["block_q"], "block_kv": trace["block_kv"]})
    need(panels, "no traces: scripts/bench.py --sim")
    first = files.traces[0]
    return {"title": f"Who touches what, and when: one head, N = {first['seqlen']}, d = "
                     f"{first['head_dim']}, tiles of {first['block_q']}×{first['block_kv']} (sim)",
            "panels": panels}


def pipeline(files, missing):
    """Boxes [lane, kind, text, consumer or None, from, to]; lanes from the top: stages of Q, K and
    V, the tensor cores, the consumers."""
    panels = []
    for trace in files.pipelines:
        played = model.replay(trace["warps"])
        consumers, end, boxes = len(played["consumers"]), played["end"], []
        # Each consumer has a stage of Q of its own: those of a round share a lane.
        stages = sorted({(copy[0], copy[1] // (consumers if copy[0] == "Q" else 1))
                         for copy in played["copies"]}, key=lambda one: ("QKV".index(one[0]), one))
        fills, numbers = {}, {}
        for array, stage, issued, landed, freed in played["copies"]:
            place = (array, stage // consumers if array == "Q" else stage)
            freed = end if freed is None else freed
            last = fills[place][-1] if fills.get(place) else None
            if array == "Q" and last and last[1] == issued:
                last[2], last[3] = max(last[2], landed), max(last[3], freed)
                continue
            numbers[array] = numbers.get(array, -1) + 1
            fills.setdefault(place, []).append([f"{array}{numbers[array]}", issued, landed, freed])
        for place, of in fills.items():
            for text, issued, landed, freed in of:
                boxes.append([stages.index(place), "copy", text, None, issued, landed])
                boxes.append([stages.index(place), "held", "", None, landed, freed])
        for consumer, what, step, begin, until in played["products"]:
            boxes.append([len(stages), what, f"{what}{step}", consumer, begin, until])
        for consumer, spans in enumerate(played["consumers"]):
            for what, step, begin, until in spans:
                text = f"P{step}" if what == "softmax" else "" if what == "scale" else what
                boxes.append([len(stages) + 1 + consumer, what, text, consumer, begin, until])
        busy = sum(until - begin for *_, begin, until in played["products"]) / end
        panels.append({
            "title": f"d = {trace['head_dim']}: {consumers} consumers of "
                     f"{trace['block_q'] // consumers} rows, tiles of {trace['block_kv']} keys; "
                     f"the tensor cores are busy {busy:.0%} of the time",
            "lanes": [f"{array} stage {stage}" for array, stage in stages] + ["tensor cores"] + [
                f"consumer {'ABC'[i]}" for i in range(consumers)],
            "stages": len(stages), "end": end, "boxes": boxes})
    return {"title": "The pipeline of 05 sm90: two tiles of Q in one block, in the time of a "
                     "model, not measured",
            "panels": need(panels, "no traces: scripts/bench.py --sim"),
            "rates": [model.MATMUL_FLOPS, model.EXPS, model.OTHER_FLOPS, model.COPY_LATENCY,
                      model.COPY_BYTES]}


def merged(boxes):
    """Adjoining rows of the same slot, lane and operation as one."""
    found = []
    for box in sorted(boxes):
        last = found[-1] if found else None
        if last and last[:3] == box[:3] and box[3] <= last[4]:
            last[4] = max(last[4], box[4])
        else:
            found.append(list(box))
    return found


def error(files, missing):
    on_gpu = [e for e in files.gpu.entries if "--check full" in e.command]
    source = on_gpu or [e for e in files.sim.find("fwd", head_dim=64, seqlen=512, causal=False)
                        + files.sim.find("bwd", head_dim=64, seqlen=512, causal=False)
                        if not e.tiled]
    where = gpu_text(files) if on_gpu else "sim"
    if not on_gpu:
        missing(f"no errors on a GPU, the sim's instead: {PAPER_GRID}")
    panels = []
    for kind, title in (("normal", "input N(0, 1)"),
                        ("outliers", "1 in 1000 of the input with N(0, 100) added")):
        rows = []
        for step, of in files.steps_of([e for e in source
                                        if e.input == kind and e.record["errors"]]):
            for e in of:
                for name, one in e.record["errors"].items():
                    # 06's forward pass is 05's.
                    if one and one["tolerance"] and name != "lse" and not (
                            step[0].startswith("06") and name == "o"):
                        # JSON has no infinity, so an error without a value is not finite.
                        # dq is dQ to a reader.
                        what = "" if name == "o" else f" {name[0]}{name[1:].upper()}"
                        rows.append({"rung": step[0], "label": label(step, files) + what,
                            "max": one["max"] if not one["nonfinite"] else None,
                            "tolerance": one["tolerance"]})
        if rows:
            r = [e for e in source if e.input == kind][0].record
            panels.append({"title": title, "rows": rows,
                           "workload": f"N = {r['seqlen']}, d = {r['head_dim']}, {r['dtype']}"})
        else:
            missing(f"no errors with --input {kind}: scripts/bench.py --sim")
    need(panels, "no errors: scripts/bench.py --sim")
    return {"title": f"Largest error against float64: {panels[0]['workload']} ({where})",
            "panels": panels}


FIGURES = {
    "speedup": speedup,
    "tflops_fwd": lambda files, missing: tflops(files, missing, "fwd"),
    "tflops_bwd": lambda files, missing: tflops(files, missing, "bwd"),
    "tflops_both": lambda files, missing: tflops(files, missing, "both"),
    "traffic": traffic,
    "roofline": roofline,
    "workspace": workspace,
    "block_size": block_size,
    "access": access,
    "pipeline": pipeline,
    "error": error,
}


def rounded(value):
    """Six digits: what a figure can show, and the same on every machine."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return value


def figure_data(files, say=lambda text: None):
    """{name: data} of what can be drawn; says what is left out."""
    found = {}
    if files.gpu.of_other_types:
        say(f"all figures: left out of them: {files.gpu.of_other_types} records that are not "
            f"{files.gpu.dtype}")
    for name, build in FIGURES.items():
        notes = []
        try:
            if name in ("speedup", "tflops_fwd", "tflops_bwd", "tflops_both",
                        "roofline") and not files.gpu.there:
                raise Missing(f"needs times, which a GPU gives: {PAPER_GRID}")
            found[name] = rounded(build(files, notes.append))
        except Missing as why:
            notes = notes if notes and str(why) == "nothing to show" else [*notes, str(why)]
            say(f"{name} is left out: {'; '.join(dict.fromkeys(notes))}")
            continue
        for note in dict.fromkeys(notes):
            say(f"{name}: left out of it: {note}")
    return found


def digest(name, data):
    """Of the data and of the code that draws it."""
    text = json.dumps([name, data, drawing_code()], sort_keys=True, ensure_ascii=False)
    return "ladder-sha256:" + hashlib.sha256(text.encode()).hexdigest()


def drawing_code():
    with open(os.path.abspath(__file__), encoding="utf-8") as file:
        text = file.read()
    return text.partition("\n# ---- drawing ----\n")[2].partition("\n# ---- the tables ----\n")[0]


# ---- drawing ----

# Apart for colour-blind eyes (Okabe and Ito's, the yellow made darker), each with its own marker.
COLOURS = {"00": "#5a5a5a", "01": "#E69F00", "02": "#8a8d00", "03": "#009E73", "04": "#CC79A7",
           "05": "#0072B2", "06": "#D55E00", "flash": "#222222", "cudnn": "#222222",
           "efficient": "#777777", "math": "#777777"}
MARKERS = {"00": "o", "01": "s", "02": "D", "03": "^", "04": "v", "05": "P", "06": "X"}
DASHES = {"flash": "-", "cudnn": (0, (5, 2)), "efficient": (0, (1, 1.5)),
          "math": (0, (4, 2, 1, 2))}
READ, WRITE = "#0072B2", "#E69F00"
PANEL, INK, FAINT = "#fafaf7", "#222222", "#8f8f8a"


def colour(rung):
    return COLOURS.get(rung, COLOURS.get(rung[:2], INK))


def ink(rung):
    """A rung's colour for words, which need more contrast than lines."""
    return darker(colour(rung))


def darker(value):
    value = value.lstrip("#")
    return "#" + "".join(f"{int(int(value[i:i + 2], 16) * 0.74):02x}" for i in (0, 2, 4))


def pyplot():
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    plt.rcdefaults()
    plt.rcParams.update({
        "font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 9.5,
        "axes.titleweight": "bold", "axes.titlelocation": "left", "figure.facecolor": PANEL,
        "axes.facecolor": PANEL, "savefig.facecolor": PANEL, "text.color": INK,
        "axes.edgecolor": FAINT, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": "#dcdcd6", "grid.linewidth": 0.6, "axes.axisbelow": True,
        "lines.linewidth": 1.8, "lines.markersize": 5, "svg.hashsalt": "ladder",
        "svg.fonttype": "path", "figure.dpi": 100, "savefig.dpi": 110})
    return plt


def title_of(figure, text):
    figure.suptitle(text, x=0.012, ha="left", fontsize=11, fontweight="bold")


def margins(figure, left=0.75, right=0.3, bottom=0.55, top=0.75, across=0.8, down=0.9):
    """All in inches, so that what is written outside of the axes has its room."""
    width, height = figure.get_size_inches()
    grid = figure.axes[0].get_subplotspec().get_gridspec()
    wide = (width - left - right - across * (grid.ncols - 1)) / grid.ncols
    high = (height - top - bottom - down * (grid.nrows - 1)) / grid.nrows
    figure.subplots_adjust(left=left / width, right=1 - right / width, bottom=bottom / height,
                           top=1 - top / height, wspace=across / wide, hspace=down / high)


def length_text(n, _=None):
    return f"{n / 1024:g}k" if n >= 1024 else f"{n:g}"


def length_axis(axis, lengths):
    axis.set_xscale("log", base=2)
    axis.set_xticks(sorted(lengths))
    axis.xaxis.set_major_formatter(length_text)
    axis.minorticks_off()


def byte_tick(value, _=None):
    return re.sub(r"\.0+ ", " ", bytes_text(round(value)))


def byte_axis(axis):
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(byte_tick)
    axis.tick_params(axis="y", which="minor", length=0)


def spread(axis, labels, gap, size=8, x=1.03):
    """Direct labels right of the axes, moved apart: [(x, y of the line's end, text, colour,
    weight)]; `gap` between two in points."""
    height = axis.get_window_extent().height * 72 / axis.figure.dpi
    places = []
    for end, y, text, tint, weight in labels:
        at = axis.transAxes.inverted().transform(axis.transData.transform((end, y)))[1]
        places.append([min(max(at, 0), 1), text, tint, weight, (end, y)])
    places.sort(key=lambda place: (place[0], place[1]))
    step = gap / height
    for _ in range(500):
        moved = False
        for low, high in zip(places, places[1:]):
            if high[0] - low[0] < step - 1e-9:
                middle = (high[0] + low[0]) / 2
                low[0], high[0], moved = middle - step / 2, middle + step / 2, True
        if not moved:
            break
    for at, text, tint, weight, end in places:
        axis.annotate(text, xy=end, xytext=(x, at), xycoords="data", textcoords="axes fraction",
                      fontsize=size, color=tint, fontweight=weight, va="center", ha="left",
                      annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": tint, "lw": 0.5, "alpha": 0.6,
                                  "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 4})


def draw_speedup(plt, data):
    rows = sum(len(panel["bars"]) for panel in data["panels"])
    pairs = [data["panels"][i:i + 2] for i in range(0, len(data["panels"]), 2)]
    figure, grid = plt.subplots(len(pairs), 2, figsize=(11, 1.5 + 0.16 * rows), squeeze=False,
                                gridspec_kw={"height_ratios": [
                                    max(len(p["bars"]) for p in pair) + 1.5 for pair in pairs]})
    for axes, pair in zip(grid, pairs):
        for axis in axes[len(pair):]:
            axis.set_visible(False)
        for axis, panel in zip(axes, pair):
            bars = panel["bars"]
            least = min(0.8, min(bar["value"] for bar in bars) * 0.8)
            for i, bar in enumerate(bars):
                axis.barh(i, bar["value"] - least, left=least, height=0.72,
                          color=colour(bar["rung"]), alpha=1 if bar["default"] else 0.5)
                axis.text(bar["value"] * 1.06, i, bar["text"], va="center", fontsize=8,
                          fontweight="bold" if bar["default"] else "normal")
            axis.set_yticks(range(len(bars)), [bar["label"] for bar in bars])
            for tick, bar in zip(axis.get_yticklabels(), bars):
                tick.set_fontweight("bold" if bar["default"] else "normal")
            axis.invert_yaxis()
            axis.set_xscale("log")
            most = max(bar["value"] for bar in bars)
            axis.set_xlim(least, most * (most / least) ** 0.55)
            if most < 10:
                axis.set_xticks([tick for tick in (1, 2, 3, 5) if least <= tick <= 2 * most])
            axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
            axis.xaxis.set_minor_formatter("")
            axis.grid(axis="y", visible=False)
            axis.set_title(panel["title"])
    title_of(figure, data["title"])
    figure.text(0.012, 0.008, "Bold and dark: the rung's last step. The scale is logarithmic.",
                fontsize=8, color="#555555")
    margins(figure, left=1.4, right=0.2, bottom=0.6, top=0.8, across=1.45, down=0.65)
    return figure


def draw_tflops(plt, data):
    rows = -(-len(data["panels"]) // 2)
    figure, grid = plt.subplots(rows, 2, figsize=(11.5, 1 + 3.9 * rows), squeeze=False, sharey=True)
    for axis in grid.flat[len(data["panels"]):]:
        axis.set_visible(False)
    margins(figure, left=0.6, right=1.75, top=0.8, across=2.1, down=0.85)
    lengths = sorted({n for panel in data["panels"] for line in panel["lines"] for n in line["x"]})
    lowest = min(y for panel in data["panels"] for line in panel["lines"] for y in line["y"])
    highest = max(y for panel in data["panels"] for line in panel["lines"] for y in line["y"])
    for axis, panel in zip(grid.flat, data["panels"]):
        length_axis(axis, lengths)
        axis.set_yscale("log")
        axis.set_ylim(lowest * 0.8, highest * 1.25)
        axis.set_yticks([t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 700)
                         if lowest * 0.8 <= t <= highest * 1.25])
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.tick_params(axis="y", which="minor", length=0)
        axis.yaxis.set_minor_formatter("")
        for line in panel["lines"]:
            if line["peer"]:
                axis.plot(line["x"], line["y"], color=colour(line["rung"]), lw=0.9,
                          ls=DASHES[line["rung"]], zorder=2)
            else:
                axis.plot(line["x"], line["y"], color=colour(line["rung"]),
                          marker=MARKERS.get(line["rung"][:2], "o"),
                          ls="--" if line["thin"] else "-", zorder=3)
        ends = [(line["x"][-1], line["y"][-1], line["label"], ink(line["rung"]),
                 "normal" if line["peer"] else "bold") for line in panel["lines"]]
        spread(axis, ends, 10.5, size=7.5)
        axis.set_title(panel["title"])
        axis.set_xlabel("N")
        axis.yaxis.set_tick_params(labelleft=True)
    for axes in grid:
        axes[0].set_ylabel("TFLOP/s")
    title_of(figure, data["title"])
    return figure


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
                axis.plot(line["x"], line["y"], color=colour(line["rung"]),
                          marker=MARKERS.get(line["rung"][:2], "o"), markersize=4.5,
                          ls="--" if "bwd" in line["label"] else "-")
            spread(axis, [(line["x"][-1], line["y"][-1], line["label"], ink(line["rung"]),
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


def draw_roofline(plt, data):
    panels = data["panels"]
    figure, grid = plt.subplots(1, len(panels), figsize=(1.5 + 5.4 * len(panels), 5.2),
                                squeeze=False, sharey=True)
    margins(figure, left=0.65, right=1.4, bottom=0.85, top=0.8, across=1.75)
    peak, slope = data["matmul_tflops"], data["copy_bytes_per_s"] / 1e12
    places = [x for panel in panels for p in panel["points"] for x in (p["requested"], p["dram"])
              if x]
    least, most = min(min(places) / 3, peak / slope / 10), max(max(places) * 2, peak / slope * 10)
    lowest = min(p["y"] for panel in panels for p in panel["points"]) / 2
    for axis, panel in zip(grid.flat, panels):
        axis.set_xscale("log")
        axis.set_yscale("log")
        knee = peak / slope
        axis.plot([least, knee, most], [least * slope, peak, peak], color=INK, lw=1.4, zorder=2)
        axis.fill_between([least, knee, most], [least * slope, peak, peak], peak * 4,
                          color="#ececE6", zorder=0)
        axis.text(most / 1.1, peak * 1.08, f"cuBLAS {peak:.0f} TFLOP/s", ha="right", fontsize=8)
        axis.set_xlim(least, most)
        axis.set_ylim(lowest, peak * 2.2)
        low = max(lowest, least * slope)
        angle = math.degrees(math.atan2(*(axis.transData.transform((low / slope * 10, low * 10))
                                          - axis.transData.transform((low / slope, low)))[::-1]))
        axis.text(low / slope * 2.2, low * 2.9, f"device copy {slope:.2f} TB/s", fontsize=8,
                  rotation=angle, rotation_mode="anchor")
        for p in panel["points"]:
            tint, mark = colour(p["rung"]), MARKERS.get(p["rung"][:2], "o")
            axis.plot(p["requested"], p["y"], marker=mark, mfc=PANEL, mec=tint, mew=1.4, ls="",
                      markersize=7, zorder=4)
            if p["dram"]:
                axis.plot([p["requested"], p["dram"]], [p["y"]] * 2, color=tint, lw=0.9, zorder=3)
                axis.plot(p["dram"], p["y"], marker=mark, color=tint, ls="", markersize=8,
                          zorder=5)
        spread(axis, [(max(p["requested"], p["dram"] or 0), p["y"], p["label"], ink(p["rung"]),
                       "bold") for p in panel["points"]], 11)
        axis.set_title(panel["title"])
        axis.set_xlabel("FLOP per byte of HBM traffic")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    grid[0][0].set_ylabel("TFLOP/s")
    figure.text(0.012, 0.012, "Hollow: by the bytes that the kernels request. Filled: by those "
                "that DRAM served; the line between them is what the caches keep away from it.",
                fontsize=8, color="#555555")
    title_of(figure, data["title"])
    return figure


def draw_workspace(plt, data):
    figure, axis = plt.subplots(figsize=(9.4, 5.4))
    margins(figure, left=0.95, right=2.4, top=0.6)
    positive = [y for line in data["lines"] for y in line["y"] if y > 0]
    floor = min(positive) / 6
    lengths = {n for line in data["lines"] for n in line["x"]} | {m["x"] for m in data["marks"]}
    length_axis(axis, lengths)
    byte_axis(axis)
    limit = data["memory_bytes"] and data["memory_bytes"] / data["heads"]
    top = max(positive + [m["y"] for m in data["marks"]] + ([limit] if limit else []))
    axis.set_ylim(floor / 1.5, top * 3)
    if limit:
        axis.axhline(limit, color=INK, lw=1, ls=(0, (5, 2)))
        axis.text(min(lengths), limit * 1.15, f"all of {bytes_text(data['memory_bytes'])}, for "
                  f"{data['heads']} heads", fontsize=8)
    ends = []
    for line in data["lines"]:
        shown = [max(y, floor) for y in line["y"]]
        axis.plot(line["x"], shown, color=colour(line["rung"]),
                  marker=MARKERS.get(line["rung"][:2], "o"))
        text = line["label"] + ("" if any(line["y"]) else ": nothing")
        ends.append((line["x"][-1], shown[-1], text if len(text) < 26 else text.replace(
            ", ", ",\n"), ink(line["rung"]), "bold"))
    spread(axis, ends, 24)
    for mark in data["marks"]:
        axis.plot(mark["x"], mark["y"], marker="x", color=colour(mark["rung"]), ls="",
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
            axis.plot(line["x"], line["y"], color=colour(line["rung"]),
                      marker=MARKERS.get(line["rung"][:2], "o"),
                      ls="-" if line["d"] == 64 else "--")
        axis.set_ylim(0, max(y for line in panel["lines"] for y in line["y"]) * 1.12)
        if panel["unit"] == "bytes":
            axis.yaxis.set_major_formatter(byte_tick)
            axis.set_ylabel("bytes a head")
        else:
            axis.set_ylabel("ms")
        spread(axis, [(line["x"][-1], line["y"][-1], line["label"], ink(line["rung"]), "bold")
                      for line in panel["lines"]], 11)
        axis.set_title(panel["title"])
        axis.set_xlabel("Bc, rows of K and V in a tile")
    title_of(figure, data["title"])
    return figure


def draw_access(plt, data):
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    panels = data["panels"]
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 0.9 + 4 * len(panels)), squeeze=False)
    margins(figure, left=0.45, right=0.25, bottom=0.8, top=0.8, down=1.0)
    for axis, panel in zip(axes.flat, panels):
        rows, gap = panel["rows"], panel["rows"] * 0.12
        lane_top = [i * (rows + gap) for i in range(len(LANES))]
        for top in lane_top:
            axis.add_patch(plt.Rectangle((0, top), panel["slots"], rows, fc="#f0f0ea", ec="none",
                                         zorder=0))
        # Where a step reads and writes the same rows, the write takes the later half of it.
        both = {}
        for slot, lane, op, first, last in panel["boxes"]:
            both.setdefault((slot, lane), set()).add(op)
        for op, tint in (("r", READ), ("w", WRITE)):
            shapes = []
            for slot, lane, kind, first, last in panel["boxes"]:
                if kind != op:
                    continue
                half = len(both[slot, lane]) == 2
                left = slot + (0.5 if half and op == "w" else 0)
                right = slot + (0.5 if half and op == "r" else 1)
                top = lane_top[lane]
                shapes.append([(left, top + first), (right, top + first), (right, top + last),
                               (left, top + last)])
            axis.add_collection(PolyCollection(shapes, facecolors=tint, edgecolors="none",
                                               zorder=2))

        def boundary(at):
            axis.plot([at, at], [0, lane_top[-1] + rows], color=INK, lw=0.7, zorder=3)

        if len(panel["blocks"]) > 1:
            for number, block in enumerate(panel["blocks"]):
                if number:
                    boundary(block["at"])
                axis.text(block["at"] + 0.3, -gap * 0.3, f"block {block['block']}", fontsize=7,
                          va="bottom")
        else:
            ends = [kernel["at"] for kernel in panel["kernels"][1:]] + [panel["slots"]]
            for i, (kernel, end) in enumerate(zip(panel["kernels"], ends)):
                # A kernel of one slot has its name beside it, where nothing else is written.
                short, first = end - kernel["at"] <= 1, i == 0
                axis.text((0 if first else panel["slots"]) if short else (kernel["at"] + end) / 2,
                          -gap * 0.3, kernel["name"], fontsize=7, va="bottom",
                          ha=("left" if first else "right") if short else "center")
                if i:
                    boundary(kernel["at"])
        axis.set_xlim(0, panel["slots"])
        axis.set_ylim(lane_top[-1] + rows, -gap * 1.6)
        axis.set_yticks([top + rows / 2 for top in lane_top], LANES)
        axis.tick_params(axis="y", length=0, labelsize=11)
        axis.grid(visible=False)
        axis.spines["left"].set_visible(False)
        axis.spines["bottom"].set_visible(False)
        axis.set_title(panel["title"] + (
            " (one block does it all)" if len(panel["blocks"]) <= 1 else
            f" ({len(panel['blocks'])} blocks, which a GPU runs side by side, here one after the "
            "other)"))
        axis.set_xlabel("time: a step begins where a tile of Q, K or V arrives")
    axes[0][0].legend(handles=[Patch(color=READ, label="read"), Patch(color=WRITE, label="write")],
                      loc="lower right", bbox_to_anchor=(1, 1.0), ncol=2, frameon=False,
                      borderaxespad=0.2)
    figure.text(0.012, 0.006, "Rows 0 to N - 1 run downwards in each band. 04 fetches a tile of Q "
                "while it works on the one before. Its O is the fp32 one, and at the end the "
                "output.", fontsize=8, color="#555555")
    title_of(figure, data["title"])
    return figure


CONSUMERS = ["#0072B2", "#E69F00", "#009E73"]
SHARES = {"S": 1, "softmax": 0.7, "O": 0.42, "scale": 0.25}  # of a consumer's colour
BOXES = {"copy": "#c9a3bb", "held": "#ece4e9", "tile": "#c4c4bd", "turn": "#a3a39c",
         "sums": "#efefea", "store": "#a3a39c"}
WAITED_FOR = {"tile": "a tile", "turn": "its turn", "sums": "a product", "store": "O's store"}


def box_colour(kind, consumer):
    """A wait's or a copy's own; else the consumer's, with white."""
    if kind in BOXES:
        return BOXES[kind]
    value = CONSUMERS[consumer].lstrip("#")
    return "#" + "".join(f"{round(255 - (255 - int(value[i:i + 2], 16)) * SHARES[kind]):02x}"
                         for i in (0, 2, 4))


def draw_pipeline(plt, data):
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch
    panels, low, high, gap = data["panels"], 0.45, 0.86, 0.1
    tall = [sum(low if lane < panel["stages"] else high for lane in range(len(panel["lanes"])))
            + gap * len(panel["lanes"]) for panel in panels]
    figure, axes = plt.subplots(len(panels), 1, figsize=(11, 2 + 0.36 * sum(tall) + 0.75 * (
        len(panels) - 1)), squeeze=False, gridspec_kw={"height_ratios": tall})
    margins(figure, left=0.95, right=0.2, bottom=1.05, top=1.0, down=0.75)
    for axis, panel in zip(axes.flat, panels):
        heights = [low if lane < panel["stages"] else high for lane in range(len(panel["lanes"]))]
        tops = [sum(heights[:lane]) + gap * lane for lane in range(len(heights))]
        letter = panel["end"] * 0.0048  # about as wide as one
        shapes = {}
        for lane, kind, text, consumer, begin, until in panel["boxes"]:
            top, bottom = tops[lane], tops[lane] + heights[lane]
            shapes.setdefault(box_colour(kind, consumer), []).append(
                [(begin, top), (until, top), (until, bottom), (begin, bottom)])
            if until - begin > letter * (len(text) + 0.4):
                axis.text((begin + until) / 2, (top + bottom) / 2, text, ha="center",
                          va="center_baseline", fontsize=6.5 if kind not in BOXES else 6, zorder=3,
                          color="#ffffff" if kind == "S" and consumer != 1 else INK)
        for face, of in shapes.items():
            axis.add_collection(PolyCollection(of, facecolors=face, edgecolors=PANEL,
                                               linewidths=0.5, zorder=2))
        axis.set_xlim(0, panel["end"])
        axis.set_ylim(tops[-1] + high, -gap)
        axis.set_yticks([top + one / 2 for top, one in zip(tops, heights)], panel["lanes"])
        for lane, name in enumerate(axis.get_yticklabels()):
            name.set_fontsize(7 if lane < panel["stages"] else 8.5)
            if lane > panel["stages"]:
                name.set_color(darker(CONSUMERS[lane - panel["stages"] - 1]))
                name.set_fontweight("bold")
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="y", visible=False)
        axis.spines["left"].set_visible(False)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_title(panel["title"])
    axes.flat[-1].set_xlabel("cycles of the model")
    handles = [Patch(color=box_colour(kind, 0), label=text) for kind, text in (
        ("copy", "copy under way"), ("held", "tile there, until its stage is free"),
        ("S", "S: a product QKᵀ"), ("O", "O: a product PV"), ("softmax", "P: a softmax"),
        ("scale", "O scaled"))]
    handles += [Patch(color=BOXES[kind], label=f"waits for {what}")
                for kind, what in WAITED_FOR.items()
                if any(box[1] == kind for panel in panels for box in panel["boxes"])]
    height = figure.get_size_inches()[1]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.006, 1 - 0.29 / height),
                  ncol=5, frameon=False, fontsize=7.5, columnspacing=1.4, handlelength=1.6)
    matmul, exps, other, latency, copy = data["rates"]
    figure.text(0.012, 0.07 / height,
                "Order and amounts are the sim's, the time is a model's. Of one SM: the tensor "
                f"cores do {matmul:,} FLOPs a cycle, one product after the other as they were "
                f"issued; {exps} exponentials\nand {other} other operations a cycle side by side, "
                "which consumers that compute at the same time share equally; tiles come one after "
                f"the other, {copy:.0f} bytes a cycle, each {latency} cycles\nlate (assumed). All "
                "else takes no time. Numbers are those of tiles; tiles 4 to 7 of K and V are for "
                "the second tile of Q.", fontsize=7.5, color="#555555", va="bottom", linespacing=1.35)
    title_of(figure, data["title"])
    return figure


def draw_error(plt, data):
    from matplotlib.ticker import LogLocator
    panels = data["panels"]
    most = max(len(panel["rows"]) for panel in panels)
    figure, grid = plt.subplots(1, len(panels), figsize=(1 + 5 * len(panels), 1.4 + 0.24 * most),
                                squeeze=False)
    for axis, panel in zip(grid.flat, panels):
        for i, row in enumerate(panel["rows"]):
            tint = colour(row["rung"])
            if row["max"] is None:
                axis.text(row["tolerance"], i, "  not finite", va="center", fontsize=8,
                          color=tint, fontweight="bold")
            elif row["max"] > 0:
                axis.plot([row["max"], row["tolerance"]], [i, i], color=tint, lw=0.9, alpha=0.5)
                axis.plot(row["max"], i, marker=MARKERS.get(row["rung"][:2], "o"), color=tint,
                          ls="", markersize=7)
            axis.plot(row["tolerance"], i, marker="|", color=INK, ls="", markersize=11, mew=1.6)
        axis.set_yticks(range(len(panel["rows"])), [row["label"] for row in panel["rows"]])
        axis.set_ylim(len(panel["rows"]) - 0.4, -0.6)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0e}".replace("e-0", "e-")
                                       .replace("e+00", ""))
        axis.tick_params(axis="x", which="minor", length=0)
        shown = [x for row in panel["rows"] for x in (row["max"], row["tolerance"]) if x]
        axis.set_xlim(min(shown) / 2, max(shown) * 2)
        axis.set_title(panel["title"])
        axis.set_xlabel("max |out - reference|; the bar is the tolerance")
    margins(figure, left=1.35, right=0.3, bottom=0.6, top=0.8, across=1.5)
    title_of(figure, data["title"])
    return figure


DRAW = {"speedup": draw_speedup, "tflops_fwd": draw_tflops, "tflops_bwd": draw_tflops,
        "tflops_both": draw_tflops, "traffic": draw_traffic, "roofline": draw_roofline,
        "workspace": draw_workspace, "block_size": draw_block_size, "access": draw_access,
        "pipeline": draw_pipeline, "error": draw_error}


def render(plt, name, data):
    """{"svg": bytes, "png": bytes}, with the digest inside."""
    figure = DRAW[name](plt, data)
    found = {}
    for kind, metadata in (("svg", {"Date": None, "Creator": None, "Title": data["title"],
                                    "Description": digest(name, data)}),
                           ("png", {"Software": None, "Title": data["title"],
                                    "Description": digest(name, data)})):
        out = io.BytesIO()
        figure.savefig(out, format=kind, metadata=metadata)
        found[kind] = out.getvalue()
    plt.close(figure)
    return found


# ---- the tables ----


def markdown(header, rows, right=()):
    """A table; the columns numbered in `right` are figures."""
    lines = ["| " + " | ".join(header) + " |",
             "|" + "|".join("--:" if i in right else "---" for i in range(len(header))) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def without(what, command):
    return [f"*{what}: `{command}` measures {'them' if what.endswith('s') else 'it'}.*"]


def at_the_machine(files):
    machine = files.gpu.machine
    parts = [machine["gpu"], f"driver {machine['driver']}"]
    if machine.get("cuda"):
        parts.append(f"CUDA {machine['cuda']}")
    clocks = (machine.get("clocks") or {}).get("sm_mhz")
    if clocks:
        parts.append(f"SM clock {clocks['median']:.0f} MHz in the median")
    parts.append(machine["date"])
    return ", ".join(parts)


def ladder_table(files):
    """Each step at N = 2k: from the GPU all but what is distinct, which the sim counts."""
    n, d = LADDER_LENGTH, 64
    rows = []
    for way in ("fwd", "bwd"):
        timed = {head: {e.step: e for e in files.gpu.paper(way, n, head, False)}
                 for head in (64, 128)}
        counted = {e.step: e for e in files.sim.plain(way, seqlen=n, head_dim=d, causal=False)}
        base = next((e for step, e in timed[64].items() if step[0].startswith("00")), None)
        for step in files.order:
            gpu, sim, wide = timed[64].get(step), counted.get(step), timed[128].get(step)
            if not gpu and not sim:
                continue
            if step[0].startswith("06") and way == "fwd":
                continue  # 05's, or 02's
            known = gpu or sim
            dram = per_head(gpu, total(gpu.record, "dram")) if gpu else None
            size = per_head(known, known.workspace_bytes)
            rows.append([f"[{step[0]}]({step[0]}/README.md)", f"`{step[1]}`" + (
                " backward" if way == "bwd" else ""),
                time_text(gpu and gpu.time_ms), rate_text(gpu and gpu.tflops),
                rate_text(wide and wide.tflops),
                ratio_text(base.time_ms / gpu.time_ms if gpu and base else None),
                whole_bytes(per_head(known, requested(known.record))),
                whole_bytes(per_head(sim, total(sim.record, "distinct")) if sim else None),
                whole_bytes(dram), whole_bytes(size)])
    if not rows:
        return without("The steps are not counted yet", "scripts/bench.py --sim")
    lines = markdown(["rung", "step", "time", "TFLOP/s", "d = 128", "× 00", "requested",
                      "distinct", "DRAM", "workspace"], rows, range(2, 10))
    about = (f"N = {n:,}, d = 64, not causal; bytes are those of one head: requested by the "
             "kernels, distinct (each byte once a kernel, the sim's count), served by DRAM, and "
             "beyond inputs and outputs.")
    if files.gpu.paper("fwd", n, d, False):
        about += (f" Times of {TOKENS // n} × {HIDDEN // d} heads, {files.gpu.dtype}, and the "
                  f"rate with heads of 128 beside it, on an {at_the_machine(files)}.")
        if not any(total(e.record, "dram") for e in files.gpu.paper("fwd", n, d, False)):
            about += f" DRAM is not measured yet: `{PAPER_GRID}`, where counters may be read."
        return lines + ["", about]
    return lines + ["", about, ""] + without("No GPU has been measured yet, so there are no times",
                                             PAPER_GRID)


def whole_bytes(count):
    return bytes_text(None if count is None else round(count))


def our_line(files, way, d, causal):
    """The rung's default (05's forward, 06's backward) by N."""
    rung = {"fwd": "05_flash_v2", "bwd": "06_backward"}[way]
    return {e.seqlen: e for e in files.gpu.paper(way, None, d, causal)
            if e.rung == rung and files.gpu.is_default(e.step)}


def peers_table(files):
    lengths = sorted({r["seqlen"] for r in files.gpu.peers if r["batch"] * r["seqlen"] == TOKENS})
    rows, ratios = [], {}
    for way in ("fwd", "bwd"):
        for d in (64, 128):
            for causal in (False, True):
                ours = our_line(files, way, d, causal)
                peers = {b: {r["seqlen"]: r for r in files.gpu.paper_peers(way, b, d, causal)}
                         for b in PEERS}
                if not ours or not any(peers.values()):
                    continue
                cells = []
                for n in lengths:
                    cells.append(" / ".join(rate_text(r and r["tflops"]) for r in (
                        ours[n].record if n in ours else None, peers["flash"].get(n),
                        peers["cudnn"].get(n))))
                rows.append(["forward" if way == "fwd" else "backward", str(d),
                             "yes" if causal else "no", *cells])
                for backend, of in peers.items():
                    for n, r in of.items():
                        if n in ours:
                            ratios.setdefault((way, backend), []).append(
                                (r["time_ms"] / ours[n].time_ms, n, d, causal))
    if not rows:
        return without("Ours beside PyTorch's is not measured yet", PAPER_GRID)
    step = {way: files.gpu.defaults.get(rung) for way, rung in (("fwd", "05_flash_v2"),
                                                              ("bwd", "06_backward"))}
    lines = [f"TFLOP/s, ours / FlashAttention-2 / cuDNN, the last two through "
             f"{files.gpu.peers[0]['version']}, in turn in one run on the "
             f"{files.gpu.machine['gpu']}; ours is 05's `{step['fwd']}`"
             + (f" forward and 06's `{step['bwd']}` backward" if step["bwd"] else "") + ".", ""]
    lines += markdown(["", "d", "causal", *(f"N = {length_text(n)}" for n in lengths)], rows,
                      range(3, 3 + len(lengths)))
    lines += ["", "Ours over each of PyTorch's backends, above 1 where ours is faster:", ""]
    summary = []
    for (way, backend), points in ratios.items():
        worst, best = min(points), max(points)
        mean = math.exp(statistics.fmean(math.log(point[0]) for point in points))
        summary.append(["forward" if way == "fwd" else "backward", PEER_NAMES[backend].partition(
            ", ")[2], f"{mean:.2f}", *(f"{p[0]:.2f} (N = {length_text(p[1])}, "
                                       f"{point_text(p[2], p[3])})" for p in (worst, best)),
            str(len(points))])
    return lines + markdown(["", "against", "geometric mean", "worst", "best", "points"], summary,
                            (2, 5))


def speed_range(files, fast, slow, lengths=None):
    """(least, most) of how much faster `fast` is than `slow` over the points both have; each is a
    function (d, causal) → {N: ms}."""
    ratios = []
    for d in (64, 128):
        for causal in (False, True):
            a, b = fast(d, causal), slow(d, causal)
            ratios += [(b[n] / a[n], n, d, causal) for n in a if n in b
                       and (lengths is None or n in lengths)]
    return (min(ratios), max(ratios)) if ratios else None


def range_text(found):
    if found is None:
        return "not measured yet"
    least, most = (ratio_text(one[0]) for one in found)
    at = f"N = {length_text(found[1][1])}, {point_text(*found[1][2:])}"
    return f"{least}× to {most}× (most at {at})" if least != most else f"{most}× ({at})"


def claims_table(files):
    def times(way, rung, variant=None):
        def of(d, causal):
            return {e.seqlen: e.time_ms for e in files.gpu.paper(way, None, d, causal)
                    if e.rung == rung and (e.variant == variant if variant
                                           else files.gpu.is_default(e.step))}
        return of

    def peer(way, backend):
        return lambda d, causal: {r["seqlen"]: r["time_ms"] for r in
                                  files.gpu.paper_peers(way, backend, d, causal)}

    def plus(first, second):
        def of(d, causal):
            a, b = first(d, causal), second(d, causal)
            return {n: a[n] + b[n] for n in a if n in b}
        return of

    plain = times("fwd", "02_safe_softmax")
    # mma: what the papers describe. sm90 is for a GPU that they did not know.
    forward, backward = times("fwd", "05_flash_v2", "mma"), times("bwd", "06_backward", "mma")
    whole = plus(forward, backward)
    plain_torch = plus(peer("fwd", "math"), peer("bwd", "math"))

    def verdict(found, least, most, best_alone):
        if found is None:
            return "not measured yet"
        if found[1][0] < least:
            return "**no**"
        if best_alone:
            return "yes"
        if found[0][0] < least:
            return "in part"
        return "yes, and more" if most and found[0][0] > most else "yes"

    rows = []

    def speed(claim, source, how, found, least, most=None, best_alone=False):
        rows.append([claim, source, how, range_text(found),
                     verdict(found, least, most, best_alone)])

    speed("2–4× faster than plain attention", "FlashAttention [1], as [2] sums it up",
          "04 over 02, forward", speed_range(files, times("fwd", "04_flash_v1"), plain), 2, 4)
    speed("2–7× faster than plain attention, N = 512 to 4k", "FlashAttention [1]",
          "`mma` of 05 and 06 over PyTorch's plain one, forward and backward",
          speed_range(files, whole, plain_torch, (512, 1024, 2048, 4096)), 2, 7)
    speed("7.6× faster on GPT-2's attention (N = 1k, d = 64)", "FlashAttention [1]",
          "05's `mma` over PyTorch's plain one, forward, causal",
          speed_range(files, lambda d, c: forward(d, c) if (d, c) == (64, True) else {},
                      peer("fwd", "math"), (1024,)), 7.6, best_alone=True)
    speed("2× faster than FlashAttention", "FlashAttention-2 [2]", "05's `mma` over 04, forward",
          speed_range(files, forward, times("fwd", "04_flash_v1")), 2)
    speed("up to 9× faster than plain attention", "FlashAttention-2 [2]",
          "05's `mma` over 02, forward", speed_range(files, forward, plain), 9, best_alone=True)
    rows.append(memory_claim(files))
    rows.append(long_claim(files))
    rows.append(matrix_claim(files))
    rows.append(["15% less time for training BERT-large, end to end", "FlashAttention [1]",
                 "–", "this project trains no model", "**no**"])
    return markdown(["claim", "where", "measured here as", "ours", "reproduced"], rows) + [
        "", "*In part*: at some points and not at others. "
        "[1] Dao et al. 2022, [arXiv 2205.14135](https://arxiv.org/abs/2205.14135). "
        "[2] Dao 2023, [arXiv 2307.08691](https://arxiv.org/abs/2307.08691). Both measured on an "
        "A100 and against the plain attention of their day; a range here is over N = 512 … 16k, "
        "d = 64 and 128, causal or not, where both sides could be measured."]


def memory_claim(files):
    """O(N): doubling N at most doubles what 05 (and 06) needs beyond inputs and outputs."""
    row = ["memory O(N), not O(N²)", "FlashAttention [1]", "workspace of 05 and 06 as N doubles"]
    growth = []
    for way, rung in (("fwd", "05_flash_v2"), ("bwd", "06_backward")):
        for source in (files.gpu, files.sim):
            sizes = {e.seqlen: e.workspace_bytes / e.heads_in_all() for e in source.plain(
                way, rung=rung, head_dim=64, causal=False) if source.is_default(e.step)}
            doubled = [n for n in sizes if 2 * n in sizes]
            if doubled:
                n = max(doubled)
                growth.append((rung, sizes[n], sizes[2 * n], n))
                break
    if not growth:
        return [*row, "not measured yet", "not measured yet"]
    texts, good = [], True
    for rung, before, after, n in growth:
        if after == 0:
            texts.append(f"{rung[:2]}: none at any N")
        else:
            good = good and after <= 2.2 * before
            texts.append(f"{rung[:2]}: {whole_bytes(before)} a head at N = {length_text(n)}, "
                         f"{whole_bytes(after)} at {length_text(2 * n)}")
    return [*row, "; ".join(texts), "yes" if good else "**no**"]


def long_claim(files):
    row = ["64k tokens fit", "FlashAttention [1]", "05 and 06 at N = 64k, 16 heads of 128"]
    ran = [(way, e) for way in ("fwd", "bwd") for e in files.gpu.plain(
        way, seqlen=65536, head_dim=128) if files.gpu.is_default(e.step)
        and e.rung[:2] in ("05", "06") and (way == "bwd") == e.rung.startswith("06")]
    if not ran:
        return [*row, "not measured yet", "not measured yet"]
    plain = [one for one in files.gpu.skipped if one["seqlen"] == 65536 and one["status"] ==
             NO_DEVICE and one["rung"][:2] in ("01", "02")]
    text = "; ".join(f"{e.rung[:2]} {'causal ' if e.causal else ''}in {time_text(e.time_ms)}"
                     for _, e in ran)
    if plain:
        need_text = re.search(r"needs ([\d.]+ GiB)", plain[0]["reason"])
        text += f"; {plain[0]['rung'][:2]} would need {need_text[1]}" if need_text else ""
    return [*row, text, "yes"]


def matrix_claim(files):
    row = ["an N×N matrix in fp16 takes 8 GB at 64k", "FlashAttention [1]",
           "what 02 keeps of S and P, by element"]
    for source in (files.gpu, files.sim):
        of = [e for e in source.plain("fwd", rung="02_safe_softmax", causal=False)]
        if of:
            e = max(of, key=lambda e: e.seqlen)
            each = e.workspace_bytes / e.heads_in_all() / e.seqlen**2 / 2
            return [*row, f"{each:g} bytes at N = {length_text(e.seqlen)}, so "
                    f"{each * 2**32 / 2**30:g} GiB at 64k, twice, for each head",
                    "yes" if abs(each - 2) < 0.1 else "**no**"]
    return [*row, "not measured yet", "not measured yet"]


CAPTIONS = {
    "speedup": "How much each step brings, on a logarithmic scale.",
    "tflops_fwd": "The forward pass against N, PyTorch's in thin lines.",
    "tflops_bwd": "The backward pass.",
    "tflops_both": "Both together: what a training step pays for attention.",
    "traffic": "HBM traffic: what the kernels ask for, each byte once, and what DRAM served.",
    "roofline": "Each rung at its own intensity, under the ceilings that were measured.",
    "workspace": "Memory beyond inputs and outputs: S and P grow with N², the rest with N or not "
                 "at all.",
    "block_size": "04 against its tile of keys: the larger, the fewer visits of Q and O.",
    "access": "The two loop orders: 04 leads all of Q and O past each tile of K and V, 05 all of K "
              "and V past each tile of Q.",
    "pipeline": "Copies, tensor cores and consumers side by side: the order is the sim's, the time "
                "a model's.",
    "error": "The largest error of each step against float64, and its tolerance.",
}


def figure_list(files):
    """Those that can be drawn, each with a line."""
    found = figure_data(files)
    lines = []
    for name in found:
        path = f"scripts/results/figures/{name}.svg"
        lines += [f"**{found[name]['title']}.** {CAPTIONS[name]}", "",
                  f"![{CAPTIONS[name]}]({path})", ""]
    return lines[:-1]


TABLES = {"ladder": ladder_table, "peers": peers_table, "claims": claims_table,
          "figures": figure_list}


def with_tables(text, files):
    """The README's text with each table that has markers renewed."""
    for name, table in TABLES.items():
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not pattern.search(text):
            raise Stop(f"README.md lacks the markers <!-- {name}:begin --> and <!-- {name}:end -->",
                       BAD_USAGE)
        new = "\n".join(["", *table(files), "", ""])
        text = pattern.sub(lambda match: match[1] + new + match[2], text)
    return text


# ---- all of it ----


def stored_digest(path):
    """The digest in an SVG or a PNG, None where there is none."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return None
    if path.endswith(".png"):
        at = 8
        while at + 8 <= len(data):
            length, kind = struct.unpack(">I4s", data[at:at + 8])
            if kind == b"tEXt" and data[at + 8:].startswith(b"Description\0"):
                return data[at + 20:at + 8 + length].decode("latin-1")
            at += 12 + length
        return None
    found = re.search(rb"ladder-sha256:[0-9a-f]{64}", data)
    return found and found[0].decode()


def write_bytes(path, data):
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except OSError as error:
        raise Stop(f"cannot write {os.path.relpath(path)}: {error.strerror}", BAD_USAGE) from None


def need_matplotlib():
    """Without it, goes on in the system's own Python if that one has it: another that comes first
    on PATH need not see the system's packages."""
    try:
        import matplotlib  # noqa: F401
        return
    except ImportError as error:
        why = error
    system = "/usr/bin/python3"
    if os.path.exists(system) and not os.environ.get("LADDER_PYTHON_TRIED"):
        there = subprocess.run([system, "-c", "import matplotlib"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if there.returncode == 0:
            os.environ["LADDER_PYTHON_TRIED"] = "1"
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(system, [system, os.path.abspath(__file__), *sys.argv[1:]])
    raise Stop(f"matplotlib is missing ({why}). Debian and Ubuntu: apt-get install "
               "python3-matplotlib; elsewhere: python3 -m pip install matplotlib", NO_DEVICE)


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def stale(files, out, readme):
    """What does not show what the files say."""
    found, data = [], figure_data(files)
    for name in FIGURES:
        for kind in ("svg", "png"):
            path = os.path.join(out, f"{name}.{kind}")
            if name in data:
                if stored_digest(path) != digest(name, data[name]):
                    found.append(f"{os.path.relpath(path)} is "
                                 f"{'stale' if os.path.exists(path) else 'missing'}")
            elif os.path.exists(path):
                found.append(f"{os.path.relpath(path)} shows what the files no longer have")
    if readme and read_text(readme) != with_tables(read_text(readme), files):
        found.append(f"the tables of {os.path.relpath(readme)} are stale")
    return found


def default_file():
    """What was measured on the H100, or else the sim's counts."""
    measured = os.path.join(RESULTS, "h100.json")
    return measured if os.path.exists(measured) else os.path.join(RESULTS, "sim.json")


def parse(arguments=None):
    description, epilog = __doc__.split("\n\n", 1)
    parser = argparse.ArgumentParser(prog="scripts/plot.py", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=epilog)
    parser.add_argument("file", nargs="?", metavar="FILE",
                        help="(default scripts/results/h100.json, or else sim.json)")
    parser.add_argument("--out", metavar="DIR", default=os.path.join(RESULTS, "figures"),
                        help="where figures go (default scripts/results/figures)")
    parser.add_argument("--only", metavar="NAME,...", type=lambda text: text.split(","),
                        help="these figures alone")
    parser.add_argument("--readme", nargs="?", const=os.path.join(ROOT, "README.md"),
                        metavar="PATH", help="also the tables of README.md")
    parser.add_argument("--check", action="store_true", help="write nothing, name what is stale")
    options = parser.parse_args(arguments)
    for name in options.only or []:
        if name not in FIGURES:
            parser.error(f"--only {name}: there are {', '.join(FIGURES)}")
    return options


def plot(options):
    files = Files(options.file or default_file())
    if options.check:
        found = stale(files, options.out, options.readme)
        for line in found:
            print(line)
        if found:
            print("scripts/plot.py --readme renews them", file=sys.stderr)
        return WRONG_RESULT if found else GOOD

    need_matplotlib()
    data = figure_data(files, lambda text: print(text, file=sys.stderr))
    wanted = [name for name in data if name in (options.only or FIGURES)]
    os.makedirs(options.out, exist_ok=True)
    plt = pyplot()
    for name in wanted:
        for kind, content in render(plt, name, data[name]).items():
            write_bytes(os.path.join(options.out, f"{name}.{kind}"), content)
    for name in FIGURES:  # what an earlier file had and this one has not
        for kind in ("svg", "png"):
            path = os.path.join(options.out, f"{name}.{kind}")
            if name not in data and stored_digest(path):
                os.unlink(path)
                print(f"removed {os.path.relpath(path)}: no data for it any more", file=sys.stderr)
    print(f"Wrote {', '.join(wanted) or 'no figure'} (.svg, .png) to "
          f"{os.path.relpath(options.out)}.", file=sys.stderr)
    if options.readme:
        write_whole(options.readme, with_tables(read_text(options.readme), files))
        print(f"Wrote the tables of {os.path.relpath(options.readme)}.", file=sys.stderr)
    return GOOD


def main():
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")
    try:
        return plot(parse())
    except Stop as stop:
        print(f"scripts/plot.py: {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("\nscripts/plot.py: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
