"""Builds the table of steps' tiles and blocks per SM on each kind of GPU, from gpu_plans.jsonl. The
suite's test GpuPlansAreAsWritten compares that file with the plans that the steps make."""

from __future__ import annotations

import collections
import os
import re
from typing import Any

from ladder.base.files import ROOT, read_lines
from ladder.show.measured import HEADS, Files, StepKey, linked, markdown, need

PLANS = os.path.join(ROOT, "common/tests/suite/gpu_plans.jsonl")
PLAN = re.compile(r"([1-9]\d*)x(\d+) (\d+) \d+ ([1-9]\d*);")  # Br, Bc, warps, (parts,) smem_bytes
GPUS = {"7.5": "T4, RTX 20", "8.0": "A100", "8.6": "RTX 30, A10, A40", "8.9": "RTX 40, L4, L40",
        "9.0": "H100, H200", "12.0": "RTX 50"}
WARPS = 8  # an SM's 65,536 registers suffice for eight warps if each thread uses 255, the maximum
TWO_BLOCKS = ("01_tiled_matmul", "02_safe_softmax")  # of 8 warps, as __launch_bounds__ requires


def blocks_of_sm(rung: str, kib: int, warps: int, smem_bytes: int) -> int:
    """Returns the number of blocks, of `warps` warps and `smem_bytes`, that are sure to fit on an
    SM. A block can get `kib` KiB of shared memory. GPUs from 8.0 on (kib > 64) add 1 KiB per
    SM, and reserve 1 KiB per block. (An SM runs at least 32 warps, so their number is no limit.)"""
    reserved = 1024 if kib > 64 else 0
    room = (1024 * kib + reserved) // (smem_bytes + reserved)
    return min(room, 2 if rung in TWO_BLOCKS else max(1, WARPS // warps))


def cards_table(files: Files) -> list[str]:
    """Returns a table of each rung's last portable step and of all steps whose tile depends on the
    GPU, for each step's last pass (backward, if it has one). Each step fills one line per head
    size, each kind of GPU one column. Equal lines of steps are merged, and so are equal columns."""
    memory: dict[str, int] = {}
    texts: dict[StepKey, dict[str, str]] = collections.defaultdict(dict)
    for step, capability, kib, _, *shapes in need(read_lines(PLANS)):
        memory[capability] = kib
        rung, name = step.split()
        texts[rung, name][capability] = " ".join(shapes[:len(HEADS)])
    rows: dict[tuple[tuple[str, ...], ...], list[str]] = collections.defaultdict(list)
    for key in files.order:
        tiles: set[tuple[tuple[int, ...], ...]] = set()
        row: list[tuple[str, ...]] = []  # for each GPU, the cells for all head sizes
        for capability, text in texts[key].items():
            plans = [tuple(map(int, plan)) for plan in PLAN.findall(text)]
            plans = plans[1::2] if len(plans) > len(HEADS) else plans  # the backward pass's
            tiles.add(tuple(plan[:2] for plan in plans))
            blocks = [blocks_of_sm(key[0], memory[capability], *plan[2:]) for plan in plans]
            row.append(tuple(f"{plan[0]}×{plan[1]} ({n} block{'s' * (n > 1)})"
                             for plan, n in zip(plans, blocks)))
        if len(tiles) > 1 or any(row) and files.about[key] == files.ladder.last_portable(key[0]):
            rows[tuple(row)].append(linked(key, "../"))
    columns: dict[tuple[Any, ...], list[str]] = collections.defaultdict(list)
    for capability, *column in zip(memory, *rows):
        columns[(memory[capability], *column)].append(capability)
    heads = (f"{', '.join(same)}<br>{kib} KB<br>{', '.join(map(GPUS.__getitem__, same))}"
             for (kib, *_), same in columns.items())
    return markdown(
        ["step", "*d*", *heads],
        [[", ".join(steps) if d == HEADS[0] else "", str(d), *(column[i][j] for column in columns)]
         for i, steps in enumerate(rows.values(), 1) for j, d in enumerate(HEADS)])
