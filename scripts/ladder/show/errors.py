"""Plots errors against float64, and tabulates the throughput that FP8 gains in exchange for its
errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ladder.base import course
from ladder.base.records import Point, Record, flops
from ladder.base.text import NO_VALUE, rate_text
from ladder.show.measured import (Data, Files, Measured, StepKey, need, over_lengths,
                                  step_key)
from ladder.show.style import INK, Axis, Drawing, Pyplot, plots, row_axis


def error(files: Files) -> Data:
    """Returns a panel per kind of input, with a row per output of each step: its largest error and
    its tolerance. A step with a backward pass shows only gradients; O is another rung's."""
    source = [r for r in files.gpu.records if "--check full" in r["options"]]
    panels = []
    for kind, title in (("normal", "input N(0, 1)"),
                        ("outliers", "N(0, 100) added to 1 input in 1000")):
        rows = []
        for step, name, values in (
                (step, *error) for step in files.order for r in source
                if step_key(r) == step and r["input"] == kind for error in r["errors"].items()):
            if values and values["tolerance"] and name != "lse" and not (
                    name == "o" and files.own_way(step) == "bwd"):
                what = "" if name == "o" else f" {name[0]}{name[1:].upper()}"  # dq becomes dQ
                # None stands for an error that is not finite, because JSON lacks infinity.
                rows.append({**files.look(step, what), "tolerance": values["tolerance"],
                             "max": values["max"] if not values["nonfinite"] else None})
        if rows:
            panels.append({"title": title, "rows": rows})
    r = need(source)[0]
    return {"title": "Largest error against float64: N = {seqlen}, d = {head_dim}, {dtype} "
                     "({gpu})".format(gpu=files.gpu.text(), **r), "panels": panels}


def draw_error(plt: Pyplot, data: Data) -> Drawing:
    figure, pairs = plots(plt, data, (
        11, 1.4 + 0.24 * max(len(panel["rows"]) for panel in data["panels"])))
    for axis, panel in pairs:
        rows = panel["rows"]
        row_axis(axis, rows)
        axis.set(xscale="log", xlabel="max |out - reference|; the bar is the tolerance")
        for i, row in enumerate(rows):
            if row["max"] is None:
                axis.text(row["tolerance"], i, "  not finite", va="center", fontsize=8,
                          color=row["colour"], fontweight="bold")
            elif row["max"] > 0:
                line_to_mark(axis, row, i, row["max"], row["tolerance"])
            axis.plot(row["tolerance"], i, marker="|", color=INK, ls="", markersize=11, mew=1.6)
    return figure


def line_to_mark(axis: Axis, row: Data, y: float, x: float, end: float) -> None:
    """Draws a row's mark at (x, y), and a thin line from it to x = `end`."""
    axis.plot([x, end], [y, y], color=row["colour"], lw=0.9, alpha=0.5)
    axis.plot(x, y, marker=row["marker"], color=row["colour"], ls="", markersize=7)


def fp8_error(files: Files) -> Data:
    """Returns a panel per input in course.QUANTISED with root mean square errors of O: of the step
    in the I/O type, and of FP8 with each choice of settings. Raises Missing if any is missing."""
    about, counted = course.QUANTISED, Measured(files.sim.path, "fp16")
    look = files.look(about["step"])

    def error_of(step: StepKey, point: Point, kind: str, settings: Record) -> float:
        errors = need([r["errors"] for r in counted.find(
            rung=step[0], step=step[1], input=kind, **dataclasses.asdict(point), **settings)
            if "errors" in r])[0]
        # For a step that rounds its inputs, o_full is the error against the unrounded inputs.
        return (errors.get("o_full") or errors["o"])["rms"]

    rows: list[tuple[str, StepKey, Record]] = [
        (f"fp16, {about['beside'][1]}", about["beside"], {}), *(
            (text, about["step"], {"settings": chosen}) for text, chosen in about["rows"])]
    return {"title": "Root mean square error of O against float64, FP8 and fp16 (simulator)",
            "panels": [{"title": title, "rows": [
                {**look, "label": text, "rms": error_of(step, point, kind, settings)}
                for text, step, settings in rows]}
                for title, point, _, kind in about["inputs"]]}


def draw_fp8_error(plt: Pyplot, data: Data) -> Drawing:
    panels = data["panels"]
    figure, pairs = plots(plt, data, (2 + 1.8 * len(panels),
                                      1.5 + 0.24 * len(panels[0]["rows"])), sharey=True)
    for axis, panel in pairs:
        errors = [row["rms"] for row in panel["rows"]]
        least = min(errors) / 2
        row_axis(axis, panel["rows"])
        axis.set(xscale="log", xlim=(least, max(errors) * 20), xlabel="RMSE")
        for i, (row, error_) in enumerate(zip(panel["rows"], errors)):
            line_to_mark(axis, row, i, error_, least)
            axis.text(error_ * 1.6, i, f"{error_:.1e}".replace("e-0", "e-"), va="center",
                      fontsize=7)
    return figure


def fp8_errors(files: Files) -> list[str]:
    """Returns a table with one column per input in course.QUANTISED: FP8's error with each setting
    alone and with all of them, as a percentage of its error without any; and with all of them as a
    multiple of the I/O type's error."""
    panels = fp8_error(files)["panels"]
    settings = [chosen for _, chosen in course.QUANTISED["rows"]]

    def row(label: str, chosen: Record, over: int, text: Callable[[float], str]) -> str:
        errors = [[row["rms"] for row in panel["rows"]] for panel in panels]
        return f"| {label} | " + " | ".join(
            text(by_row[1 + settings.index(chosen)] / by_row[over]) for by_row in errors) + " |"

    def percent(ratio: float) -> str:
        return f"{ratio:.0%}"

    return ["| remedy | " + " | ".join(panel["title"] for panel in panels) + " |",
            "|---|" + "--:|" * len(panels),
            *(row(f"`{name}={value}`", {**course.NONE, name: value}, 1, percent)
              for name, value in course.ALL.items()),
            row("all four", course.ALL, 1, percent),
            row("all four, divided by the error of fp16", course.ALL, 0, rate_text)]


def fp8_times_table(files: Files) -> list[str]:
    """Returns two tables with one row per head size and mask. The first has three rates: of the FP8
    step's attention kernel alone, of all its kernels, and of the step that it follows. The second
    has two: of that kernel and of FlashAttention-3's, as fractions of cuBLAS's rate."""
    step, released = course.QUANTISED["step"], course.QUANTISED["released"]
    timed = files.gpu.timed["fwd", step]
    rates = {shape: flops(r) / kernel["time_ms"] * 1e-9 for shape, r in timed.items()
             for kernel in r["kernels"] if kernel["name"] == "attention"}
    before = need(files.ladder.before(files.about[step]))
    base = files.gpu.rates("fwd", before.key)
    cells = {shape: " · ".join(map(rate_text, (rate, timed[shape]["tflops"], base.get(shape))))
             for shape, rate in rates.items()}
    matmul: float = need(files.gpu.roofs().get("matmul_e4m3_tflops"))

    def theirs(n: int, *point: int) -> str:
        known = dict(zip(released["lengths"], released["tflops"].get(point, [])))
        return f"{known[n] / released['matmul']:.2f}" if n in known else NO_VALUE

    shares = {shape: f"{rate / matmul:.2f} · {theirs(*shape)}" for shape, rate in rates.items()}
    return [
        f"Each cell has three rates in TFLOP/s: `{step[1]}`'s attention kernel alone · "
        f"`{step[1]}` with `quantise` · `{before.name}`, with {files.gpu.dtype} products. They "
        f"are for the paper's workload with {files.gpu.dtype} inputs, on an {files.gpu.machine()}. "
        f"{NO_VALUE}: not measured.", "", *over_lengths(need(cells)), "",
        f"Each cell has two rates as fractions of cuBLAS's rate: `{step[1]}`'s attention kernel "
        "alone · FlashAttention-3's own kernel. cuBLAS multiplied e4m3 matrices of 8,192 × "
        f"8,192 at {matmul:,.0f} TFLOP/s. FlashAttention-3's kernel takes inputs that are in e4m3 "
        "already; it ran on the same kind of GPU on another day, when cuBLAS reached "
        f"{released['matmul']:,} TFLOP/s. {NO_VALUE}: not known.", "", *over_lengths(shares)]
