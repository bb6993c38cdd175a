"""Two GPUs: how much faster each step is on the one with more bandwidth, beside what a copy and a
matmul gain."""

from ladder.figures.measured import Missing, need
from ladder.figures.names import PAPER_GRID, label
from ladder.figures.style import INK, PANEL, ink, margins, marker, title_of
from ladder.files import short_name
from ladder.records import total
from ladder.bench.workload import LADDER_LENGTH

HEADS = (64, 128)


class Pair:
    """The GPU of the files and another, the one with less bandwidth first."""

    def __init__(self, files):
        if not files.other.there:
            raise Missing(f"no second GPU was measured: {PAPER_GRID} on another")
        both = files.gpu, files.other
        if not all(gpu.ceilings for gpu in both):
            raise Missing(f"no ceilings of both GPUs were measured: {PAPER_GRID}, where PyTorch is "
                          "installed")
        self.files = files
        self.first, self.second = self.gpus = sorted(
            both, key=lambda gpu: gpu.ceilings["copy_bytes_per_s"])
        self.copy, self.matmul = (self.second.ceilings[rate] / self.first.ceilings[rate]
                                  for rate in ("copy_bytes_per_s", "matmul_tflops"))

    def names(self):
        """Short where they differ."""
        whole = [gpu.machine["gpu"] for gpu in self.gpus]
        short = [short_name(name) for name in whole]
        return short if len(set(short)) == 2 else whole

    def steps(self, d):
        """{step: (record, record)} of each step in the ladder's order, in its own direction, that
        ran on both; without records where it was not the same there. A file does not say what a
        kernel was like, but names, tiles, warps and shared memory tell some of what has changed."""
        found = {}
        for step in self.files.order:
            records = [e.record for gpu in self.gpus
                       for e in gpu.paper(self.files.own_way(step), LADDER_LENGTH, d, False)
                       if e.step == step]
            if len(records) == 2:
                found[step] = tuple(records) if how(records[0]) == how(records[1]) else ()
        return found

    def gain(self, records):
        """Of a step's two records, or of a kernel's."""
        return records[0]["time_ms"] / records[1]["time_ms"]

    def share(self, record):
        """Of its time on the first GPU: what its DRAM bytes take at a copy's rate. None where they
        were not counted."""
        dram = total(record, "dram")
        return dram and dram / self.first.ceilings["copy_bytes_per_s"] / record["time_ms"] * 1e3

    def expected(self, share):
        """How much faster if that share follows the copy, and the rest stays as it is."""
        share = min(share, 1)
        return 1 / (1 - share + share / self.copy)

    def follows_the_copy(self, gain):
        """Whether it is nearer to the copy's gain than to the matmul's."""
        return abs(gain - self.copy) < abs(gain - self.matmul)


def how(record):
    return [record[name] for name in ("block_q", "block_kv", "warps", "stages", "smem_bytes")] + [
        kernel["name"] for kernel in record["kernels"]]


def two_gpus(files, missing):
    pair, panels = Pair(files), []
    for d in HEADS:
        rows = []
        for step, records in pair.steps(d).items():
            if not records:
                missing(f"d = {d}: {label(step)}, which is not the same in both files")
                continue
            share = pair.share(records[0])
            rows.append({**files.look(step), "label": label(step, files) + (
                " bwd" if files.own_way(step) == "bwd" else ""), "gain": pair.gain(records),
                "share": share, "expected": pair.expected(share) if share else None})
        if rows:
            panels.append({"title": f"d = {d}", "rows": rows})
    gpus = " and ".join(gpu.machine["gpu"] for gpu in pair.gpus)
    return {"title": f"From one GPU to another: {gpus}, {files.gpu.dtype}, N = {LADDER_LENGTH}, "
                     "16k tokens in all", "names": pair.names(),
            "copy": pair.copy, "matmul": pair.matmul,
            "panels": need(panels, "no step was measured on both: " + PAPER_GRID)}


def draw_two_gpus(plt, data):
    panels, (first, second) = data["panels"], data["names"]
    most = max(len(panel["rows"]) for panel in panels)
    figure, grid = plt.subplots(1, len(panels), figsize=(1 + 5 * len(panels), 2.15 + 0.24 * most),
                                squeeze=False)
    known = [data["copy"], data["matmul"], 1] + [
        row[name] for panel in panels for row in panel["rows"] for name in ("gain", "expected")
        if row[name]]
    room = 0.06 * (max(known) - min(known))
    for axis, panel in zip(grid.flat, panels):
        rows = panel["rows"]
        # The names at two heights: the lines may stand close together.
        for name, value, dashes, up in (("matmul", data["matmul"], (0, (4, 2)), 13),
                                        ("copy in HBM", data["copy"], "-", 3)):
            axis.axvline(value, color=INK, lw=1.1, ls=dashes, zorder=1)
            axis.annotate(f"{name} {value:.2f}×", (value, 1), xytext=(0, up), ha="center",
                          va="bottom", xycoords=("data", "axes fraction"),
                          textcoords="offset points", fontsize=8)
        for i, row in enumerate(rows):
            tint, mark = row["colour"], marker(row)
            axis.plot(row["gain"], i, marker=mark, color=tint, ls="", markersize=7, zorder=4)
            if row["expected"]:
                axis.plot([row["gain"], row["expected"]], [i, i], color=tint, lw=0.9, zorder=2)
                axis.plot(row["expected"], i, marker=mark, mfc=PANEL, mec=tint, mew=1.4, ls="",
                          markersize=7, zorder=3)
                axis.annotate(f"{row['share']:.0%}", (1, i), xytext=(4, 0), va="center",
                              xycoords=("axes fraction", "data"), textcoords="offset points",
                              fontsize=8, color=ink(row))
        axis.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axis.set_ylim(len(rows) - 0.4, -0.6)
        axis.set_xlim(min(known) - room, max(known) + room)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        axis.set_title(panel["title"], pad=28)
        axis.set_xlabel(f"time on the {first} over time on the {second}")
    figure.text(0.012, 0.02, f"Filled: measured. Hollow, and the number at the right: the part of "
                f"the time on the {first} that the step's DRAM bytes take at a copy's rate, "
                "and\nwhat is gained if that part follows the copy and all else takes as long as "
                "before.",
                fontsize=8, color="#555555", linespacing=1.35)
    margins(figure, left=1.45, right=0.6, bottom=1.0, top=1.1, across=1.95)
    title_of(figure, data["title"])
    return figure
