"""The rungs' programs: finding and running them, and what their steps say of themselves."""

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
    """A line of --list: a step for a device. common/rung.h says what each field means; `program` is
    the path of the program that has it."""
    rung: str
    name: str
    device: str
    default: bool
    by_name_only: bool
    summary: str
    colour: str
    backward: bool
    deterministic: bool
    needs: str
    exact_architecture: bool
    tiles: list[list[int]]  # [max_d, Br, Bc]
    grid_limit: list[int]  # without and with the causal mask
    settings: Sequence[Any] = ()  # [name, [value]]
    idea: str = ""
    change: Sequence[str] = ("", "", "")  # what its idea is about: a count, how, options
    after: str = ""
    decoding: bool = False
    source: str = ""
    program: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.rung, self.name

    def tiles_for(self, head_dim: int) -> list[tuple[int, int]]:
        """[(Br, Bc)] compiled for heads of this size: those of the smallest max_d that holds it."""
        least = min((d for d, _, _ in self.tiles if d >= head_dim), default=None)
        return [(rows, keys) for d, rows, keys in self.tiles if d == least]

    def registered(self) -> Record:
        """What a results file keeps of it."""
        left_out = ("device", "idea", "decoding", "source", "program")
        return {"step" if name == "name" else name: value for name, value in vars(self).items()
                if name not in left_out}


def step_of(line: Record, **more: Any) -> Step:
    """A step from its fields as --list and results files have them."""
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
        """The step that it follows; of a rung's first the last of the rung before on every
        machine."""
        for other in reversed(self.steps[:self.steps.index(step)]):
            if (other.name == step.after if other.rung == step.rung else
                    not other.exact_architecture and not other.by_name_only
                    and other.backward == step.backward):
                return other
        return None

    def last_portable(self, rung: str) -> Step | None:
        """The rung's last step that every GPU runs, or None."""
        portable = [step for step in self.of(rung)
                    if not step.by_name_only and not step.exact_architecture]
        return portable[-1] if portable else None

    def stands_for_its_rung(self, step: Step) -> bool:
        """Whether rungs are compared by this step; the others only show what a step gains."""
        return step.default or step == self.last_portable(step.rung)

    def beside_peers(self) -> dict[str, str]:
        """Direction → the rung that is compared with PyTorch's attention: the last without a
        backward pass, the last with one."""
        compared = {}
        for rung in self.rungs():
            compared["bwd" if any(step.backward for step in self.of(rung)) else "fwd"] = rung
        return compared


def steps_of(program: str) -> list[Step]:
    """What --list says: a Step for each step and device that the program was built for."""
    name = os.path.basename(program)
    status, out, err = run_quietly([program, "--list"])
    if status:
        raise CommandError(f"{name} --list ended with status {status}: {err}", status)
    try:
        return [step_of(line, program=program) for line in json_lines(out, name)]
    except TypeError:
        raise CommandError(f"{name} --list says other things than these scripts read: scripts/run "
                           "builds it anew", WRONG_RESULT) from None


def refuse_output(program: str, words: Iterable[str], *more: str) -> None:
    """Raises CommandError for an option under Output in the program's --help, or one more: scripts
    read what programs print, and run several, which would write to one place."""
    _, shown, _ = run_quietly([program, "--help"])
    refused = re.findall(r"\n  (--\w+)", shown.partition("\nOutput")[2].partition("\n\n")[0])
    for option in (word.partition("=")[0] for word in words):
        if option in (*refused, "--list", *more):
            raise CommandError(f"{option} is for one program alone, such as build/bin/00_naive",
                               BAD_USAGE)


def json_lines(text: str, name: str) -> list[Record]:
    try:
        # Python would read NaN and Infinity, which are no JSON; int refuses them.
        return [json.loads(line, parse_constant=int) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise CommandError(f"{name} printed something that is no JSON: {error}",
                           WRONG_RESULT) from None


def run_json(command: Sequence[str]) -> tuple[int, list[Record], str]:
    """Runs a program with --json to its end: status (negative for a signal), records, last lines of
    stderr. What is no JSON is a wrong result, but of a program that failed by itself, whose lines
    may be cut short."""
    status, out, message = run_quietly([*command, "--json"])
    try:
        return status, json_lines(out, os.path.basename(command[0])), message
    except CommandError as stop:
        return status or stop.status, [], message if status else str(stop)


def rungs() -> list[str]:
    """The names of the folders that hold a rung."""
    return [os.path.basename(os.path.dirname(source))
            for source in paths_in(ROOT, "[0-9][0-9]_*/attention.cu")]


def programs_in(folder: str) -> dict[str, str]:
    """Name → path, of a folder that has the tests' programs too."""
    programs = {os.path.basename(path): path
                for path in paths_in(folder, "[0-9][0-9]_*")
                if not path.endswith("_test") and os.access(path, os.X_OK)}
    if not programs:
        raise CommandError(f"{os.path.relpath(folder)} has no rung: scripts/run builds the "
                           "programs into build/bin", BAD_USAGE)
    return programs


def ladder_of(programs: dict[str, str], device: str) -> Ladder:
    """What the programs list for a device."""
    return Ladder(step for program in programs.values() for step in steps_of(program)
                  if step.device == device)


def ready(command: str, *words: str) -> bool:
    """Calls a function of ready.sh for a command of scripts; whether it went well."""
    path = os.path.join(ROOT, "scripts/ladder/front/ready.sh")
    return not subprocess.run(["bash", "-eo", "pipefail", "-c", 'source "$1"; "${@:2}"', command,
                               path, *words], check=False).returncode


def run_quietly(command: Sequence[str]) -> tuple[int, str, str]:
    """Runs a program to its end: status (negative for a signal), stdout, and the last lines of
    stderr: an error is a line or a few."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False,
                          encoding="utf-8", errors="replace")
    lines = [line.rstrip() for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, done.stdout, "\n".join(lines[-6:])
