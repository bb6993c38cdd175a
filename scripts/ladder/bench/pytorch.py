"""PyTorch's attention as scripts/figures measure asks for it, in a process of its own."""

import json
import os
import subprocess
import sys
import tempfile

from ladder.files import ROOT


class Pytorch:
    """scripts/figures peers --serve; `why` says why there is none."""

    def __init__(self, options, progress):
        self.why, self.process, self.errors = None, None, None
        if "none" in options.peers or options.sim:
            self.why = "left out"
            return
        progress.at("starting PyTorch")
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ladder.bench.peers", "--serve", "--dtype",
             options.dtype, "--time", f"{options.time:g}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(
                [os.path.join(ROOT, "scripts"), os.environ.get("PYTHONPATH", "")])})
        self.answer()

    def answer(self):
        """The lines up to the one that ends an answer; None where the process has ended."""
        lines = []
        for text in self.process.stdout:
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
            if {"ready", "done", "ceilings"} & set(lines[-1]):
                return lines
        self.process.kill()
        status = self.process.wait()
        self.errors.seek(0)
        said = [line.strip() for line in self.errors if line.strip(" .\n")]
        said = [line for line in said if not line.endswith("...")]  # progress
        self.why = (said[-1] if said else f"it ended with status {status}").removeprefix(
            "scripts/figures peers: ")
        return None

    def ask(self, question):
        if self.why:
            return None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
        except OSError:  # it has ended; answer() finds out why
            pass
        return self.answer()

    def ceilings(self):
        lines = self.ask({"ceilings": True})
        return lines[-1]["ceilings"] if lines else None

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
