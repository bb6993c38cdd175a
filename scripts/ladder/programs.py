"""The rungs' programs: finding and running them."""

import glob
import json
import os
import subprocess

from ladder.console import BAD_USAGE, WRONG_RESULT, Stop
from ladder.files import ROOT


class Program:
    def __init__(self, path):
        self.path = path
        self.name = os.path.basename(path)

    def steps(self):
        """What --list says: one {rung, variant, device, default, summary} for each step and
        device that the program was built for."""
        status, out, err = run_quietly([self.path, "--list"], self.name)
        if status:
            raise Stop(f"{self.name} --list ended with status {status}: {err}", status)
        return json_lines(out, self.name)


def json_lines(text, name):
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise Stop(f"{name} printed something that is no JSON: {error}", WRONG_RESULT) from None


def programs():
    """One for each folder that holds a rung; build/bin has the tests' programs too."""
    sources = sorted(glob.glob(os.path.join(ROOT, "[0-9][0-9]_*", "attention.cu")))
    found = [Program(os.path.join(ROOT, "build/bin", os.path.basename(os.path.dirname(source))))
             for source in sources]
    missing = [program.name for program in found if not os.access(program.path, os.X_OK)]
    if missing or not found:
        raise Stop(f"build/bin lacks {', '.join(missing) or 'every rung'}: scripts/run builds them",
                   BAD_USAGE)
    return found


def run_quietly(command, what, progress=None):
    """Runs a program to its end: status (negative for a signal), stdout, last lines of stderr."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", errors="replace") as process:
        try:
            while True:
                if progress:
                    progress.at(what)
                try:
                    out, err = process.communicate(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.kill()
            raise
    # An error is a line or a few; what ends in an ellipsis is progress.
    lines = [line.rstrip() for line in err.splitlines()]
    lines = [line for line in lines if line and not line.endswith("…")]
    return process.returncode, out, "\n".join(lines[-6:])
