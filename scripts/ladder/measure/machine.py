"""What lines of results say of the machine: GPU, driver, CUDA, commit, date, the SM's clock."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import statistics
import subprocess
import tempfile

from ladder.base.console import NO_DEVICE, Stop
from ladder.base.files import ROOT, read
from ladder.base.records import Record


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


class Clock:
    """The SM's clock, read once a second while all else runs."""

    def __init__(self) -> None:
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen(
            ["nvidia-smi", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits", "-lms",
             "1000"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.DEVNULL)

    def mhz(self) -> float | None:
        """The median so far, or None."""
        # The last line may be incomplete.
        seen = re.findall(r"^([\d.]+)\n", read(self.log.name), re.MULTILINE)
        return statistics.median(map(float, seen)) if seen else None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()
