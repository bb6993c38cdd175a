"""Tables of what two GPUs make of the ladder's steps, or of their kernels."""

from ladder import course
from ladder.figures.measured import Missing
from ladder.figures.two_gpus import HEADS, Pair
from ladder.figures.names import PAPER_GRID, number
from ladder.figures.tables import markdown, without
from ladder.text import NO_VALUE, time_text
from ladder.bench.workload import LADDER_LENGTH


def two_gpus_table(files, name):
    """A line a step or a kernel: its time on both GPUs, and what of it is HBM's."""
    about = course.TWO_GPUS_TABLES[name]
    missing = without("A second GPU, with the rates of both, is not measured yet", PAPER_GRID)
    try:
        pair = Pair(files)
    except Missing:
        return missing
    rows, changed = {}, {}  # by line, of each d that was measured
    for d in HEADS:
        for step, records in pair.steps(d).items():
            if step[0] not in about.get("rungs", [step[0]]):
                continue
            line = f"{number(step[0])} `{step[1]}`" + (
                " backward" if files.own_way(step) == "bwd" else "")
            if not records:
                changed[line] = True
            elif about["kernels"]:
                for kernels in zip(*(record["kernels"] for record in records)):
                    rows.setdefault(f"{line} · `{kernels[0]['name']}`", {})[d] = kernels
            else:
                rows.setdefault(line, {})[d] = records
    if not rows:
        return missing
    first, second = pair.names()
    lines = markdown(
        ["", *(head for d in HEADS for head in (f"d = {d}: {first} → {second}", "×", "HBM"))],
        [[line, *(cell for d in HEADS for cell in cells(pair, of.get(d)))]
         for line, of in rows.items()], range(1, 1 + 3 * len(HEADS)))
    picture = [] if about["kernels"] else ["", (
        f"![{course.CAPTIONS['two_gpus']}](scripts/results/figures/two_gpus.svg)")]
    return [*lines, "", about_the_pair(pair) + which(pair, rows, changed), *picture]


def cells(pair, records):
    if not records:
        return [NO_VALUE] * 3
    share = pair.share(records[0])
    return [" → ".join(time_text(record["time_ms"]) for record in records),
            f"{pair.gain(records):.2f}", NO_VALUE if share is None else f"{share:.0%}"]


def about_the_pair(pair):
    first, second = pair.names()
    copies, matmuls = (
        [gpu.ceilings[rate] for gpu in pair.gpus] for rate in ("copy_bytes_per_s", "matmul_tflops"))
    measured = "; ".join(f"the {gpu.machine['gpu']} on {gpu.machine['date']}, commit "
                         f"{gpu.machine['commit']}" for gpu in pair.gpus)
    return (f"N = {LADDER_LENGTH:,}, 16k tokens in all, {pair.first.dtype}, no mask; as measured: "
            f"{measured}. ×: how much faster the {second} is. A copy in HBM is {pair.copy:.2f} "
            f"times as fast there ({copies[0] / 1e12:.2f} → {copies[1] / 1e12:.2f} TB/s), a cuBLAS "
            f"product {pair.matmul:.2f} times ({matmuls[0]:.0f} → {matmuls[1]:.0f} TFLOP/s). HBM: "
            f"the part of the time on the {first} that the DRAM bytes take at the rate of its "
            "copy.")


def which(pair, rows, changed):
    """Of the lines of a table."""
    near = [line for line, of in rows.items()
            if all(pair.follows_the_copy(pair.gain(records)) for records in of.values())]
    text = f" Nearer to the copy's × than to the product's: {', '.join(near) or 'none'}."
    if changed:
        text += (" Left out, since their kernels or tiles are not the same in both files: "
                 f"{', '.join(changed)}.")
    return text
