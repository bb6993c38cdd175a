"""The programs that exercises run on the sim: a rung's, as it is or with a changed file."""

from __future__ import annotations

import json
import os
import subprocess
from typing import NamedTuple

from ladder.base.changed import changed
from ladder.base.console import NO_DEVICE, Stop
from ladder.base.records import Record
from ladder.base.sources import Source

SECONDS = 300  # that a run may take


class Run(NamedTuple):
    status: int | None  # None if it took too long
    records: list[Record]
    err: str

    def last_words(self) -> str:
        """Why there is no result: the sim's fault, or what the program says of its options."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1].rstrip(".") if lines else f"ended with status {self.status}"


class Program:
    """A rung's program that runs the step of one file of the repository. With a `copy` it is built
    with that in the file's place; raises Stop with the compiler's first error."""

    def __init__(self, build: str, file: str, copy: str = "") -> None:
        rung = file.split(os.sep)[0]
        self.path = os.path.join(build, "bin", rung)
        if not os.path.exists(self.path):
            raise Stop(f"{rung} is not built yet: scripts/run builds it", NO_DEVICE)
        if copy:
            self.path = changed(build, rung, file, copy, f"{copy}.made")
        self.step = Source(file).step

    def run(self, options: str, *more: str) -> Run:
        """With such options, in which spaces part words, and `more`, words in which they do not."""
        words = ["--step", self.step, *options.split(), *more, "--device", "sim", "--json"]
        try:
            done = subprocess.run(
                [self.path, *words], stdin=subprocess.DEVNULL, capture_output=True,
                encoding="utf-8", errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return Run(None, [], f"ran for more than {SECONDS} s")
        records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Run(done.returncode, records, done.stderr)
