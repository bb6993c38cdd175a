"""Two GPUs: how much faster each step is on the one with more bandwidth, beside what that of a copy
and of a matmul is."""

from ladder.figures.data.missing import Missing, need
from ladder.figures.names import PAPER_GRID, label
from ladder.files import short_name
from ladder.records import total
from ladder.workload import LADDER_LENGTH

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
    return {"title": f"From one GPU to another: {gpus}, {files.gpu.dtype}, N = {LADDER_LENGTH}, 16k "
                     "tokens in all", "names": pair.names(),
            "copy": pair.copy, "matmul": pair.matmul,
            "panels": need(panels, "no step was measured on both: " + PAPER_GRID)}
