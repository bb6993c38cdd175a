"""Finds the facts stated in every line of results: GPU, driver, CUDA version, commit and date."""

from __future__ import annotations

import contextlib
import datetime
import re
import subprocess

from ladder.base.console import NO_DEVICE, CommandError
from ladder.base.files import ROOT
from ladder.base.records import Record


def output_of(*command: str) -> str:
    """Runs a command; returns its stdout, or "" if it fails or takes longer than a minute."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
                              timeout=60, check=True).stdout.strip()
    return ""


def commit() -> str | None:
    """Returns the hash of HEAD, or None outside a git checkout. "+changes" follows if tracked files
    differ, other than results and pages, which do not affect measurements."""
    head = output_of("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
    changes = output_of("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--",
                        ".", ":(exclude)scripts/results", ":(exclude)*.md")
    return f"{head}{'+changes' if changes else ''}" or None


def machine(given_commit: str | None) -> tuple[str, Record]:
    """Returns the first GPU's name and the other facts. Raises CommandError if there is no GPU."""
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = gpus.partition("\n")[0].partition(", ")
    if not driver:
        raise CommandError("no GPU answers (nvidia-smi lists none); scripts/figures measure --sim "
                           "counts on the simulator", NO_DEVICE)
    cuda = re.search(r"release ([\d.]+)", output_of("nvcc", "--version"))
    return name, {
        "driver": driver, "cuda": cuda and cuda[1], "commit": given_commit or commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}
