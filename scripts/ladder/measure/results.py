"""A file that scripts/figures measures into: lines of JSON, each with all its fields; and what they
say of the machine: GPU, driver, CUDA, commit, date, the SM's clock."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import subprocess

from ladder.base.console import BAD_USAGE, NO_DEVICE, Stop
from ladder.base.files import ROOT, json_text, read_lines, write_whole
from ladder.base.records import Record
from ladder.measure.grid import Key, key


def output_of(*command: str) -> str:
    """What a command printed; nothing where it failed."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
                              timeout=60, check=True).stdout.strip()
    return ""


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    """What measure and profile both have to be told; `out`: the name of the file by default."""
    parser.add_argument("steps", nargs="*", metavar="STEP", help="such as 05/sm90 (default all)")
    parser.add_argument("--out", metavar="FILE", help=f"(default scripts/results/{out})")
    parser.add_argument("--again", action="store_true",
                        help="drop what the file has of these, and measure it again; "
                        "interrupted, it goes on without --again; the ceilings too, unless steps "
                        "are chosen")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs (default build/bin; scripts/run builds them)")


def commit() -> str | None:
    """Marked where more is changed than results and texts, which do not change what is measured."""
    head = output_of("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
    changes = output_of("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--",
                        ".", ":(exclude)scripts/results", ":(exclude)*.md")
    return f"{head}{'+changes' * bool(changes)}" or None


def machine(given_commit: str | None) -> tuple[str, Record]:
    """The GPU's name, and the rest that each line has."""
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = gpus.partition("\n")[0].partition(", ")
    if not driver:
        raise Stop("no GPU answers (nvidia-smi); scripts/figures measure --sim counts on the sim",
                   NO_DEVICE)
    cuda = re.search(r"release ([\d.]+)", output_of("nvcc", "--version"))
    return name, {
        "driver": driver, "cuda": cuda and cuda[1], "commit": given_commit or commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}


def sm_mhz() -> float | None:
    """The SM's clock now, or None where there is none to read."""
    said = output_of("nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits")
    first = said.partition("\n")[0]
    return float(first) if re.fullmatch(r"[\d.]+", first) else None


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
                    raise Stop(f"{os.path.relpath(path)} was measured on {was or 'the sim'}, and "
                               f"this is {gpu or 'the sim'}; --out names another file", BAD_USAGE)
        except (AttributeError, KeyError, TypeError) as error:
            raise Stop(f"{os.path.relpath(path)} is no file of this script's ({error}); "
                       "--out names another", BAD_USAGE) from None

    def put(self, name: Key, lines: list[Record]) -> None:
        self.texts[name] = json_text(lines)
        self.save()

    def save(self) -> None:
        write_whole(self.path, "".join(self.texts.values()))
