"""Reads and writes result files. Each line is a JSON object that is complete by itself: its `kind`
("run", "peer", "step", …), workload, results and machine (scripts/results/README.md)."""

from __future__ import annotations

import os
from typing import Any

from ladder.base.console import BAD_USAGE, CommandError
from ladder.base.course import SHARED_ROOF
from ladder.base.files import json_text, read_lines, write_whole
from ladder.base.records import Record
from ladder.measure.grid import SIM_LENGTHS, Key, key


def counted_again(run: Record) -> bool:
    """Returns whether scripts/tests/results_test.py repeats this run on the simulator and compares
    all counts. It does so at the smallest N, under the causal mask, and with other tile sizes."""
    return run["seqlen"] == min(SIM_LENGTHS) or "--block-q" in run["options"] or (
        run["causal"] and not run["options"])


def kept(run: Record) -> Record:
    """Returns the part of a program's record that figures, tables and tests read: all values except
    null, and of the kernels, on a GPU, the names and times; on the simulator, the counts above 0 of
    those in runs that are counted_again() or in the figure shared_roof."""
    if run["device"] == "gpu":
        kernels = [{name: kernel[name] for name in ("name", "time_ms")}
                   for kernel in run["kernels"]]
    else:
        kernels = [filled(kernel) for kernel in run["kernels"] if counted_again(run)
                   or (run["rung"], run["step"], kernel["name"]) in SHARED_ROOF]
    return {**{name: value for name, value in run.items() if value is not None},
            "kernels": kernels}


def filled(counts: dict[str, Any]) -> dict[str, Any]:
    """Returns the counts without those that are null or 0, in nested objects too."""
    return {name: filled(count) if isinstance(count, dict) else count
            for name, count in counts.items() if count}


class Results:
    """The result file of `gpu`, or of the simulator if that is None; `texts` holds each run's lines
    by key(). Changes are written at once. Raises CommandError for another GPU's file or format."""

    def __init__(self, path: str, gpu: str | None) -> None:
        self.path = path
        self.texts: dict[Key, str] = {}
        try:
            for line in read_lines(path):
                name = key(line)
                self.texts[name] = self.texts.get(name, "") + json_text([line])
                was = {"gpu": line.get("device_name"), "sim": None}.get(line.get("device"), gpu)
                if was != gpu:
                    raise CommandError(f"{os.path.relpath(path)} was measured on "
                                       f"{was or 'the simulator'}, and this is "
                                       f"{gpu or 'the simulator'}: choose another file with --out",
                                       BAD_USAGE)
        except (AttributeError, KeyError, TypeError) as error:
            raise CommandError(f"{os.path.relpath(path)} was not written by scripts/figures "
                               f"measure ({error}): choose another with --out", BAD_USAGE) from None

    def put(self, name: Key, lines: list[Record]) -> None:
        self.texts[name] = json_text(lines)
        self.save()

    def save(self) -> None:
        write_whole(self.path, "".join(self.texts.values()))
