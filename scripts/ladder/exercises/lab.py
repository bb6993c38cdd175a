"""Where exercises are done: running programs, and scratch copies of a rung's files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import NamedTuple, Sequence

from ladder.base.changed import changed
from ladder.base.console import NO_DEVICE, Stop
from ladder.base.files import ROOT, read
from ladder.base.records import Record
from ladder.base.sources import Source

PATCHES = os.path.join(ROOT, "scripts/ladder/exercises/patches")
SECONDS = 300  # that a run may take


class Run(NamedTuple):
    status: int | None  # None if it took too long
    records: list[Record]
    err: str

    def last_words(self) -> str:
        """Why there is no result: the sim's fault, or what the program says of its options."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1].rstrip(".") if lines else f"ended with status {self.status}"


class Lab:
    """A build folder, and a folder for scratch copies."""

    def __init__(self, build: str | None = None, folder: str | None = None) -> None:
        self.build = build or next((path for path in (os.path.join(ROOT, "build"),
                                                      os.path.join(ROOT, "build/sim"))
                                    if os.path.exists(os.path.join(path, "bin"))), None)
        self.folder = folder or os.path.join(ROOT, "build/exercise")

    @staticmethod
    def start(program: Sequence[str], options: Sequence[str]) -> Run:
        """Runs a command on the sim, with --json."""
        try:
            done = subprocess.run([*program, *options, "--device", "sim", "--json"],
                                  stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                  errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return Run(None, [], f"ran for more than {SECONDS} s")
        records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Run(done.returncode, records, done.stderr)

    # ---- scratch copies ----

    def scratch(self, name: str, file: str) -> str:
        """The reader's copy of a file of the repository."""
        return os.path.join(self.folder, name, file)

    def copy(self, name: str, file: str) -> bool:
        """Makes the scratch copy unless it is there, and says whether it was made."""
        path = self.scratch(name, file)
        if os.path.exists(path):
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, file), path)
        return True

    # ---- building ----

    def compile(self, name: str, file: str) -> list[str]:
        """Builds the rung's program with the scratch copy in the place of its step; the command
        that runs it. Raises Stop with the compiler's first error."""
        rung = file.split(os.sep)[0]
        if not self.build or not os.path.exists(os.path.join(self.build, "bin", rung)):
            raise Stop(f"{rung} is not built yet: scripts/run builds it", NO_DEVICE)
        program = changed(self.build, rung, file, self.scratch(name, file),
                          os.path.join(self.folder, name, "made"))
        return [program, "--step", Source(file).step]


def patch_text(patch: str) -> str:
    return read(os.path.join(PATCHES, f"{patch}.patch"))
