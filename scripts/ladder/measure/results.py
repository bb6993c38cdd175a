"""A file that scripts/figures measures into: lines of JSON, each with all its fields."""

from __future__ import annotations

import os
from typing import Any

from ladder.base.console import BAD_USAGE, CommandError
from ladder.base.course import SHARED_ROOF
from ladder.base.files import json_text, read_lines, write_whole
from ladder.base.records import Record
from ladder.measure.grid import SIM_LENGTHS, Key, key


def counted_anew(run: Record) -> bool:
    """Whether results_test runs it on the simulator and compares all counts: those at the least N,
    those under the mask, which say what is skipped, and those by tile size."""
    return run["seqlen"] == min(SIM_LENGTHS) or "--block-q" in run["options"] or (
        run["causal"] and not run["options"])


def kept(run: Record) -> Record:
    """What a file has of a program's record: what figures, tables and tests read. A value that the
    record lacks (null) is left out. Of its kernels a GPU's file has name and time. The simulator's
    has those of runs that results_test counts anew, and those that the figure shared_roof shows,
    with all their counts but those that are 0."""
    if run["device"] == "gpu":
        kernels = [{name: kernel[name] for name in ("name", "time_ms")}
                   for kernel in run["kernels"]]
    else:
        kernels = [filled(kernel) for kernel in run["kernels"] if counted_anew(run)
                   or (run["rung"], run["step"], kernel["name"]) in SHARED_ROOF]
    return {**{name: value for name, value in run.items() if value is not None},
            "kernels": kernels}


def filled(counts: dict[str, Any]) -> dict[str, Any]:
    """Without what is null or 0, in the objects inside too."""
    return {name: filled(count) if isinstance(count, dict) else count
            for name, count in counts.items() if count}


class Results:
    """The lines of a file by key(): each text is that of a run's lines. What is put there is
    written at once, all of it or nothing."""

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
                                       f"{gpu or 'the simulator'}; --out names another file",
                                       BAD_USAGE)
        except (AttributeError, KeyError, TypeError) as error:
            raise CommandError(f"{os.path.relpath(path)} is no file of this script's ({error}); "
                               "--out names another", BAD_USAGE) from None

    def put(self, name: Key, lines: list[Record]) -> None:
        self.texts[name] = json_text(lines)
        self.save()

    def save(self) -> None:
        write_whole(self.path, "".join(self.texts.values()))
