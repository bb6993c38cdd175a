"""Finds the facts that all lines of a GPU's results repeat: GPU, driver, CUDA, commit and date."""

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
    """Returns 12 digits of HEAD's hash, or None outside a git checkout. "+changes" follows if any
    tracked file is modified, except results and pages, which no measurement uses."""
    head = output_of("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
    changes = output_of("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--",
                        ".", ":(exclude)scripts/results", ":(exclude)*.md")
    return f"{head}{'+changes' if changes else ''}" or None


def machine(given_commit: str | None) -> tuple[str, Record]:
    """Returns the first GPU's name, and a record with driver, cuda, commit and date (UTC). The
    commit is `given_commit` or else git's. Raises CommandError if there is no GPU."""
    gpus = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = gpus.partition("\n")[0].partition(", ")
    if not driver:
        raise CommandError("no GPU answers (nvidia-smi lists none); scripts/figures measure --sim "
                           "counts on the simulator", NO_DEVICE)
    cuda = re.search(r"release ([\d.]+)", output_of("nvcc", "--version"))
    return name, {
        "driver": driver, "cuda": cuda and cuda[1], "commit": given_commit or commit(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}
