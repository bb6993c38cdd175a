"""Ready-made mistakes to find. A copy of a step's file with a mistake in it is built in the step's
place and runs on the sim; what is seen from outside is shown, and the mistake when its line has been
found. The mistakes stand in the rungs' exercises.py."""

from __future__ import annotations

import concurrent.futures
import difflib
import os
from typing import NamedTuple

from ladder.base.files import ROOT, read, write_whole
from ladder.base.sources import Source
from ladder.exercises.climb import SHAPES as CLIMBED
from ladder.exercises.climb import counted_by, counts_of
from ladder.exercises.kinds import Break, Program, Run, edited, wrong_outputs
from ladder.exercises.lessons import of_rungs

SHAPES = {**CLIMBED, "ragged": "--batch 2 --heads 4 --kv-heads 2 --seqlen 100 --seqlen-kv 150 "
                               "--head-dim 40",
          "few keys": "--heads 1 --seqlen 130 --seqlen-kv 65 --causal"}
ORDERS = ("forward", "reverse", "random:7")
COUNTED = ("matmul_flops", "barriers", "workspace_bytes")  # beside each array's bytes
FAULT, ENDLESS, RIGHT = "a fault", "never ends", "right"


class Seen(NamedTuple):
    """Of runs with one shape: in short, in numbers, by order of threads; each array's bytes, and
    other counts, that are not the step's, which has the second; the sim's own words."""

    short: str
    orders: dict[str, str]
    counts: dict[str, tuple[int, int]]
    fault: str


def read_breaks() -> dict[str, Broken]:
    """By name: "05/hasty"."""
    return {f"{rung[:2]}/{one.name}": Broken(one, os.path.join(rung, one.file))
            for rung, one in of_rungs("BREAKS")}


class Broken:
    """A mistake in a file of the repository."""

    def __init__(self, mistake: Break, path: str) -> None:
        self.mistake, self.path = mistake, path
        self.old = read(os.path.join(ROOT, path))
        self.text = edited(self.old, mistake.edits)

    def lines(self) -> range:
        """Those of the copy that are the mistake; of what is missing those on both sides."""
        old, new = self.old.splitlines(), self.text.splitlines()
        same = len(os.path.commonprefix([old, new]))
        after = len(os.path.commonprefix([old[same:][::-1], new[same:][::-1]]))
        missing = after == len(new) - same
        return range(same + 1 - missing, len(new) - after + 1 + missing)

    def placed(self, folder: str) -> str:
        """The copy's path; it is made there, where it is not."""
        path = os.path.join(folder, os.path.basename(self.path))
        os.makedirs(folder, exist_ok=True)
        write_whole(path, self.text)
        return path

    def seen(self, build: str, copy: str) -> dict[str, Seen]:
        """A shape's name → what is seen of it."""
        program, step = Program(build, self.path, copy), Source(self.path)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            ran = {shape: {order: pool.submit(program.run, f"{options} --check full --schedule "
                                              f"{order}") for order in ORDERS}
                   for shape, options in SHAPES.items()}
            real = {shape: pool.submit(counted_by, build, step, options)
                    for shape, options in SHAPES.items()}
        seen = {}
        for shape, each in ran.items():
            runs = {order: run.result() for order, run in each.items()}
            hows = {order: outcome(run) for order, run in runs.items()}
            short = dict.fromkeys(how for how, _ in hows.values())
            bits = {str(run.records[0]["errors"]) for run in runs.values() if run.records}
            first = next(iter(runs["forward"].records), None)
            got, want = (counts_of(one) if one else {} for one in (first, real[shape].result()))
            names = dict.fromkeys([*(array for kernel in (first or {"kernels": ()})["kernels"]
                                     for array in kernel["arrays"]), *COUNTED])
            seen[shape] = Seen(
                " or ".join(short) + (", in other bits" if len(bits) > 1 and len(short) == 1
                                      else ", by the order of threads" if len(short) > 1 else ""),
                {order: text for order, (_, text) in hows.items()},
                {name: (got[name], want[name]) for name in names
                 if want and got and got[name] != want[name]},
                next((run.last_words().partition(": ")[2] for run in runs.values()
                      if not run.records), ""))
        return seen

    def solution(self, seen: dict[str, Seen]) -> str:
        """The line, what is wrong with it, and what the sim says of it itself."""
        said = dict.fromkeys(one.fault for one in seen.values() if one.fault)
        return "\n".join([
            "Right.", *list(difflib.unified_diff(self.old.splitlines(), self.text.splitlines(),
                                                 lineterm="", n=1))[2:],
            self.mistake.why, *(f"The sim says: {fault}" for fault in said or (
                "no access is at fault: only what comes out shows it",))])


def outcome(run: Run) -> tuple[str, str]:
    """In short, and with its numbers."""
    if not run.records:
        return (ENDLESS, "no thread can run on") if "deadlock" in run.err else \
            (FAULT, "the sim stops with a fault")
    wrong = wrong_outputs(run)
    return (f"{', '.join(wrong)} wrong" if wrong else RIGHT), "; ".join(
        f"{name}: max error {error['max']}, tolerance {error['tolerance']}"
        + f", {error['nonfinite']} not finite" * bool(error["nonfinite"])
        for name, error in wrong.items()) or RIGHT


def summary(seen: dict[str, Seen]) -> str:
    """In a line. What is the same in all shapes is said once."""
    counts = dict.fromkeys(name for one in seen.values() for name in one.counts)
    shorts = {shape: one.short for shape, one in seen.items()}
    same: dict[str, list[str]] = {}
    for shape, short in shorts.items():
        same.setdefault(short, []).append(shape)
    said = [f"{', '.join(shapes) if len(same) > 1 else 'always'}: {short}"
            for short, shapes in same.items()]
    return "; ".join(said + [f"counts differ: {', '.join(counts)}"] * bool(counts))


def symptoms(seen: dict[str, Seen]) -> str:
    """All that is seen from outside."""
    lines = []
    for shape, one in seen.items():
        each = {text: [order for order, said in one.orders.items() if said == text]
                for text in one.orders.values()}
        lines += [f"  {shape:<12}{text}" + f"  ({', '.join(orders)})" * (len(each) > 1)
                  for text, orders in each.items()]
        lines += [f"  {'':<12}counted {name}: {got:,}; the step itself {want:,}"
                  for name, (got, want) in one.counts.items()]
    return "\n".join([*lines, *(f"({shape}: {options})" for shape, options in SHAPES.items())])
