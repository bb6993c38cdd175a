"""Two GPUs: how much faster each step is on the one with more bandwidth, beside what a copy and a
matmul gain."""

from __future__ import annotations

import itertools
from typing import Collection, Sequence

from ladder.base.course import LADDER_LENGTH
from ladder.base.files import short_name
from ladder.base.records import Record, total
from ladder.base.text import NO_VALUE, time_text
from ladder.show.measured import Files, need
from ladder.show.names import HEADS, Data, StepKey, markdown, number
from ladder.show.style import INK, Drawing, Pyplot, ink, plots, row_axis, two_marks

CAPTION = ("From one GPU to another: what waits for HBM follows its bandwidth, what computes does "
           "not.")


class Pair:
    """The GPU of the files and another, the one with less bandwidth first."""

    def __init__(self, files: Files) -> None:
        self.first, self.second = self.gpus = sorted(
            (files.gpu, files.other), key=lambda gpu: gpu.roofs()["copy_bytes_per_s"])
        self.copy, self.matmul = (self.second.roofs()[rate] / self.first.roofs()[rate]
                                  for rate in ("copy_bytes_per_s", "matmul_tflops"))
        self.names = [short_name(gpu.name) for gpu in self.gpus]
        # By d, the records of each step that ran on both, in its own direction; and the steps that
        # were not the same there. A file does not say what a kernel was like, but names, tiles,
        # warps and shared memory tell some of what has changed.
        self.steps: dict[int, dict[StepKey, list[Record]]] = {d: {} for d in HEADS}
        self.changed: dict[StepKey, list[Record]] = {}
        for d, step in itertools.product(HEADS, files.order):
            timed = [gpu.timed[files.own_way(step), step] for gpu in self.gpus]
            records = [by_shape[LADDER_LENGTH, d, False] for by_shape in timed
                       if (LADDER_LENGTH, d, False) in by_shape]
            if len(records) == 2:
                same = how(records[0]) == how(records[1])
                (self.steps[d] if same else self.changed)[step] = records

    def share(self, record: Record) -> float | None:
        """The share of the time on the first GPU that the DRAM bytes take at a copy's rate. None
        where they were not counted."""
        dram = total(record, "dram")
        return dram and dram / self.first.roofs()["copy_bytes_per_s"] / record["time_ms"] * 1e3

    def expected(self, share: float | None) -> float | None:
        """How much faster if that share follows the copy, and the rest stays as it is."""
        return 1 / (1 - min(share, 1) + min(share, 1) / self.copy) if share else None


def gain(records: Sequence[Record]) -> float:
    """How much faster the second is: of a step's two records, or of a kernel's."""
    return records[0]["time_ms"] / records[1]["time_ms"]


def when(runs: Sequence[Record]) -> str:
    """The last date, and the commits of all runs from the first date on."""
    runs = sorted(runs, key=lambda r: r["date"])
    return f"on {runs[-1]['date']}, commit {', '.join(dict.fromkeys(r['commit'] for r in runs))}"


def how(record: Record) -> list:
    """Fields and kernels' names that differ if the step was changed between two records."""
    return [record[name] for name in ("block_q", "block_kv", "warps", "stages", "smem_bytes")] + [
        kernel["name"] for kernel in record["kernels"]]


def two_gpus(files: Files) -> Data:
    pair, panels = Pair(files), []
    for d in HEADS:
        rows = []
        for step, records in pair.steps[d].items():
            share = pair.share(records[0])
            rows.append({**files.look(step, " bwd" if files.own_way(step) == "bwd" else ""),
                         "gain": gain(records), "share": share, "expected": pair.expected(share)})
        panels.append({"title": f"d = {d}", "rows": need(rows)})
    gpus = " and ".join(gpu.name for gpu in pair.gpus)
    return {"title": f"From one GPU to another: {gpus}, {files.gpu.dtype}, N = {LADDER_LENGTH}, "
                     "16k tokens in all", "names": pair.names,
            "copy": pair.copy, "matmul": pair.matmul, "panels": panels}


def draw_two_gpus(plt: Pyplot, data: Data) -> Drawing:
    first, second = data["names"]
    rows = [row for panel in data["panels"] for row in panel["rows"]]
    figure, pairs = plots(
        plt, data, (11, 2.15 + 0.12 * len(rows)),
        "Filled: measured. Hollow, and the number at the right: the part of the time on the "
        f"{first} that the step's DRAM bytes take at a copy's rate, and\nwhat is gained if that "
        "part follows the copy and all else takes as long as before.")
    for axis, panel in pairs:
        # The names at two heights: the lines may stand close together.
        for name, dashes, up in (("matmul", (0, (4, 2)), 13), ("copy", "-", 3)):
            axis.axvline(data[name], color=INK, lw=1.1, ls=dashes, zorder=1)
            axis.annotate(f"{name} {data[name]:.2f}×", (data[name], 1), xytext=(0, up), ha="center",
                          xycoords=("data", "axes fraction"), textcoords="offset points",
                          fontsize=8)
        for i, row in enumerate(panel["rows"]):
            two_marks(axis, row, i, row["gain"], row["expected"], size=7)
            if row["expected"]:
                axis.annotate(f"{row['share']:.0%}", (1.01, i), va="center", fontsize=8,
                              xycoords=("axes fraction", "data"), color=ink(row))
        row_axis(axis, panel["rows"])
        axis.xaxis.set_major_formatter("{x:g}×")
        axis.set_title(panel["title"], pad=28)
        axis.set_xlabel(f"time on the {first} over time on the {second}")
    return figure


def two_gpus_table(files: Files, rungs: Collection[str] = ()) -> list[str]:
    """A line a step, or a kernel of these rungs: its time on both GPUs, and what of it is HBM's."""
    pair = Pair(files)
    rows: dict[str, dict[int, Sequence[Record]]] = {}  # by line, of each d that was measured

    def line_of(step: StepKey) -> str:
        backward = " backward" * (files.own_way(step) == "bwd")
        return f"{number(step[0])} `{step[1]}`{backward}"

    for d in HEADS:
        for step, records in pair.steps[d].items():
            if not rungs:
                rows.setdefault(line_of(step), {})[d] = records
            elif step[0] in rungs:
                for both in zip(*(record["kernels"] for record in records)):
                    rows.setdefault(f"{line_of(step)} · `{both[0]['name']}`", {})[d] = both

    def cells(records: Sequence[Record] | None) -> list[str]:
        if not records:
            return [NO_VALUE] * 3
        share = pair.share(records[0])
        return [" → ".join(time_text(record["time_ms"]) for record in records),
                f"{gain(records):.2f}", NO_VALUE if share is None else f"{share:.0%}"]

    first, second = pair.names
    lines = markdown(
        ["", *(head for d in HEADS for head in (f"d = {d}: {first} → {second}", "×", "HBM"))],
        [[line, *(cell for d in HEADS for cell in cells(both_at.get(d)))]
         for line, both_at in need(rows).items()], range(1, 1 + 3 * len(HEADS)))
    near = [line for line, both_at in rows.items()
            if all(abs(gain(both) - pair.copy) < abs(gain(both) - pair.matmul)
                   for both in both_at.values())]
    changed = [step for step in pair.changed if not rungs or step[0] in rungs]
    copies, matmuls = (
        [gpu.roofs()[rate] for gpu in pair.gpus] for rate in ("copy_bytes_per_s", "matmul_tflops"))
    measured = "; ".join(f"the {gpu.name} {when(gpu.runs)}" for gpu in pair.gpus)
    return [*lines, "", (
        f"N = {LADDER_LENGTH:,}, 16k tokens in all, {pair.first.dtype}, no mask; as measured: "
        f"{measured}. ×: how much faster the {second} is. A copy in HBM is {pair.copy:.2f} times "
        f"as fast there ({copies[0] / 1e12:.2f} → {copies[1] / 1e12:.2f} TB/s), a cuBLAS product "
        f"{pair.matmul:.2f} times ({matmuls[0]:.0f} → {matmuls[1]:.0f} TFLOP/s). HBM: the part of "
        f"the time on the {first} that the DRAM bytes take at the rate of its copy. Nearer to the "
        f"copy's × than to the product's: {', '.join(near) or 'none'}."
        + (" Left out, since their kernels or tiles are not the same in both files: "
           f"{', '.join(map(line_of, changed))}." if changed else "")),
        *([] if rungs else ["", f"![{CAPTION}](scripts/results/figures/two_gpus.svg)"])]
