"""A file that scripts/figures measures into: lines of JSON, each with all its fields."""

from __future__ import annotations

import argparse
import os
import re

from ladder.base.console import BAD_USAGE, Stop
from ladder.base.files import ROOT, json_text, read_lines, write_whole
from ladder.base.gpu import output_of
from ladder.base.records import Record
from ladder.measure.grid import Key, key


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
