"""Finds and runs the rungs' programs, and reads their lists of steps."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
from typing import Any, Iterable, Sequence

from ladder.base.console import BAD_USAGE, WRONG_RESULT, CommandError
from ladder.base.files import ROOT, paths_in
from ladder.base.records import Record


@dataclasses.dataclass(frozen=True)
class Step:
    """A step as built for one device: a line of --list (Step in common/rung.h), and `program`."""
    rung: str  # "05_flash_v2"
    name: str
    device: str  # "gpu" or "sim"
    default: bool  # whether the program runs this step if --step names none
    by_name_only: bool  # whether it is an aside: no default step builds on it
    summary: str
    colour: str
    backward: bool  # whether it includes a backward pass
    deterministic: bool
    needs: str  # compute capability: "7.5" or newer; "9.x" for an exact architecture
    exact_architecture: bool  # whether it runs only on GPUs of one major version
    tiles: list[list[int]]  # [max_d, Br, Bc]
    grid_limit: list[int]  # the largest N to measure: [without mask, causal]; 0: no limit
    settings: Sequence[Any] = ()  # [name, [value]]
    idea: str = ""
    change: Sequence[str] = ("", "", "")  # a count, how the idea moves it, options that show it
    after: str = ""  # the step that it follows in its rung; "" for the rung's first
    decoding: bool = False
    source: str = ""
    program: str = ""  # path of the program; "" if the step comes from a result file

    @property
    def key(self) -> tuple[str, str]:
        return self.rung, self.name

    @property
    def repeats(self) -> bool:
        """Returns whether the step only rewrites another step in a different form, as 05/flat does:
        it is an aside without a count of its own. Grids and tables of times leave it out."""
        return self.by_name_only and not self.decoding and not self.change[0]

    def tiles_for(self, head_dim: int) -> list[tuple[int, int]]:
        """Returns the compiled tiles [(Br, Bc)] with the smallest max_d not below `head_dim`."""
        least = min((d for d, _, _ in self.tiles if d >= head_dim), default=None)
        return [(rows, keys) for d, rows, keys in self.tiles if d == least]

    def registered(self) -> Record:
        """Returns the fields that a result file keeps, under its names ("step" for `name`)."""
        left_out = ("device", "idea", "decoding", "source", "program")
        return {"step" if name == "name" else name: value for name, value in vars(self).items()
                if name not in left_out}


def step_of(line: Record, **more: Any) -> Step:
    """Returns the Step with the fields of a line of --list or of a result file, and `more`."""
    fields = dict(line)
    return Step(name=fields.pop("step"), **fields, **more)


class Ladder:
    """All steps for one device, in the order of the rungs."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = list(steps)

    def rungs(self) -> list[str]:
        return list(dict.fromkeys(step.rung for step in self.steps))

    def of(self, rung: str) -> list[Step]:
        return [step for step in self.steps if step.rung == rung]

    def before(self, step: Step) -> Step | None:
        """Returns the step that `step` follows, or None. A rung's first step follows the last step
        of the earlier rungs that every GPU runs, is no aside and is about the same pass."""
        for other in reversed(self.steps[:self.steps.index(step)]):
            if (other.name == step.after if other.rung == step.rung else
                    not other.exact_architecture and not other.by_name_only
                    and other.backward == step.backward):
                return other
        return None

    def last_portable(self, rung: str) -> Step | None:
        """Returns the rung's last step that every GPU runs, or None."""
        portable = [step for step in self.of(rung)
                    if not step.by_name_only and not step.exact_architecture]
        return portable[-1] if portable else None

    def stands_for_its_rung(self, step: Step) -> bool:
        """Returns whether comparisons of rungs show this step. Other steps appear only where the
        gain of each step is shown."""
        return step.default or step == self.last_portable(step.rung)

    def beside_peers(self) -> dict[str, str]:
        """Returns the rungs that are compared with PyTorch's attention: under "fwd" the last rung
        without a backward pass, under "bwd" the last rung with one."""
        compared = {}
        for rung in self.rungs():
            compared["bwd" if any(step.backward for step in self.of(rung)) else "fwd"] = rung
        return compared


def steps_of(program: str) -> list[Step]:
    """Returns a Step for each line of --list: one per step and device that the program was built
    for. Raises CommandError if --list fails or prints unexpected fields."""
    name = os.path.basename(program)
    status, out, err = run_quietly([program, "--list"])
    if status:
        raise CommandError(f"{name} --list ended with status {status}: {err}", status)
    try:
        return [step_of(line, program=program) for line in json_lines(out, name)]
    except TypeError:
        raise CommandError(f"{name} --list prints fields that these scripts do not expect; "
                           "scripts/run rebuilds the program", WRONG_RESULT) from None


def refuse_output(program: str, words: Iterable[str], *more: str) -> None:
    """Raises CommandError if `words` contain --list, one of `more`, or an option under Output in
    --help, because scripts parse what programs print, and all programs would save to one file."""
    _, shown, _ = run_quietly([program, "--help"])
    refused = re.findall(r"\n  (--\w+)", shown.partition("\nOutput")[2].partition("\n\n")[0])
    for option in (word.partition("=")[0] for word in words):
        if option in (*refused, "--list", *more):
            raise CommandError(f"{option} works with a single program only: give it to the program "
                               "itself, such as build/bin/00_naive", BAD_USAGE)


def json_lines(text: str, name: str) -> list[Record]:
    """Parses lines of JSON objects; for other text, raises CommandError with a program's `name`."""
    try:
        # Python accepts NaN and Infinity, which are not JSON; int() rejects them.
        return [json.loads(line, parse_constant=int) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise CommandError(f"{name} printed a line that is not JSON: {error}",
                           WRONG_RESULT) from None


def run_json(command: Sequence[str]) -> tuple[int, list[Record], str]:
    """Runs a program with --json. Returns its status (negative for a signal), its records, and the
    last lines of stderr. If it succeeded but its output is not JSON, the status is WRONG_RESULT. (A
    program that fails may leave a line unfinished.)"""
    status, out, message = run_quietly([*command, "--json"])
    try:
        return status, json_lines(out, os.path.basename(command[0])), message
    except CommandError as stop:
        return status or stop.status, [], message if status else str(stop)


def rungs() -> list[str]:
    """Returns the names of the rungs' folders, in order."""
    return [os.path.basename(os.path.dirname(source))
            for source in paths_in(ROOT, "[0-9][0-9]_*/attention.cu")]


def programs_in(folder: str) -> dict[str, str]:
    """Returns {"00_naive": path, …} for the rungs' programs in a folder, without test programs.
    Raises CommandError if there are none."""
    programs = {os.path.basename(path): path
                for path in paths_in(folder, "[0-9][0-9]_*")
                if not path.endswith("_test") and os.access(path, os.X_OK)}
    if not programs:
        raise CommandError(f"{os.path.relpath(folder)} has no rung's program; scripts/run builds "
                           "them into build/bin", BAD_USAGE)
    return programs


def ladder_of(programs: dict[str, str], device: str) -> Ladder:
    """Returns all steps that the programs list for a device, "gpu" or "sim"."""
    return Ladder(step for program in programs.values() for step in steps_of(program)
                  if step.device == device)


def ready(command: str, *words: str) -> bool:
    """Runs a function of ready.sh, words[0], with the other words as arguments; returns whether it
    succeeded. Messages start with `command`."""
    path = os.path.join(ROOT, "scripts/ladder/front/ready.sh")
    return not subprocess.run(["bash", "-eo", "pipefail", "-c", 'source "$1"; "${@:2}"', command,
                               path, *words], check=False).returncode


def run_quietly(command: Sequence[str]) -> tuple[int, str, str]:
    """Runs a program. Returns its status (negative for a signal), its stdout, and the last six
    lines of its stderr, among which is the error message."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          encoding="utf-8", errors="replace")
    lines = [line.rstrip() for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, done.stdout, "\n".join(lines[-6:])
