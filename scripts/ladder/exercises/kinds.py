"""What an exercise asks for, and how an answer is checked: check() says whether it is right, and in
a line why. Each rung's exercises.py has its own; what a program counts also stands in the lesson's
answer, in a console block, which a test runs and compares.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import Callable, Dict, List, NamedTuple, Sequence, Set, Tuple, Union

from ladder.base.changed import compiled, limited, linked
from ladder.base.console import GOOD, NO_DEVICE, WRONG_RESULT, Stop
from ladder.base.files import ROOT, read, write_whole
from ladder.base.programs import json_lines, run_quietly
from ladder.base.records import Record, requested, undecided, uneven_counts
from ladder.base.sources import Source

class Judged(NamedTuple):
    """Whether an answer is right, and in a line why; what is wrong with each case, "" for nothing;
    and of what a climb compares with the real step whether it holds, and what was said."""

    right: bool
    why: str
    cases: Sequence[Tuple[str, str]] = ()
    share: float = 0  # of the points, where it is not right
    checks: Sequence[Tuple[str, bool, str]] = ()

    def points(self, most: int) -> int:
        """Whole ones, all for what is right alone."""
        return most if self.right else int(most * self.share + 1e-9)


def judged(cases: Sequence[Tuple[str, str]], right: str, shared: bool = False) -> Judged:
    """By what is wrong with each case; the first is named. `shared`: each has its share of the
    points."""
    wrong = [f"Not yet: {case}: {said}." for case, said in cases if said]
    return Judged(not wrong, wrong[0] if wrong else right, cases,
                  shared * (1 - len(wrong) / len(cases)))


# A solution: texts of the file, each of which stands there once, and what takes their place.
Edits = Sequence[Tuple[str, str]]


def as_options(row: str) -> str:
    """A row of the test suite's kCases, as options where there are such."""
    words = re.split(r",\s+", row)
    options = [f"--{name} {word}" for name, word in zip(
        ("batch", "heads", "kv-heads", "seqlen", "seqlen-kv", "head-dim"), words)]
    options += ["--causal"] * ("true" in words) + ["--dtype bf16"] * ("bf" in words)
    options += ["--input outliers"] * ("Input::outliers" in words)
    if len(words) == 10:
        options.append(f"--scale {float(words[9].rstrip('f')) / math.sqrt(int(words[5])):.6g}")
    return " ".join(options) + ", with values of its own" * (len(words) > 10)


CASES = {name: as_options(row) for name, row in re.findall(
    r'^    \{"(\w+)", ([^}]*)\}', read(f"{ROOT}/common/tests/suite/cases.h"), re.MULTILINE)}
# All that a formula depends on, and the mask.
COUNTED = ("--heads 1 --seqlen 300 --head-dim 80 --causal",
           "--batch 2 --heads 4 --kv-heads 2 --seqlen 100 --seqlen-kv 150 --head-dim 40 --causal")


SECONDS = 5  # of a core, for a run; those of the slowest step take a third
ENDS: dict[int, str] = {
    -signal.SIGXCPU: "it had not ended after {} seconds of a core",
    -signal.SIGKILL: "it had not ended after {} seconds of a core, or waits for ever",
    -signal.SIGSEGV: "it touches memory that is not its own, or its stack is full",
    -signal.SIGXFSZ: "it prints more than 100 MB", -signal.SIGABRT: "it aborts"}
NOT_RUN = "it did not run any more"
GUARD = os.path.join(ROOT, "scripts/ladder/exercises/guard.h")


class Run(NamedTuple):
    status: int
    records: list[Record]
    err: str

    def last_words(self) -> str:
        """Why there is no result: the sim's fault, or what the program says of its options."""
        return self.err.split("\n")[-1].rstrip(".") or f"ended with status {self.status}"


class Program:
    """A rung's program that runs the step of one file of the repository. With a `copy`, whose text
    may be given, it is built with that in the file's place; raises Stop with the compiler's first
    error. What it does is bounded."""

    def __init__(self, build: str, file: str, copy: str = "", text: str = "") -> None:
        self.build, self.copy, self.folder = build, copy, f"{copy}.made"
        self.rung = file.split(os.sep)[0]
        self.path = os.path.join(build, "bin", self.rung)
        self.stopped = False  # by a limit of time
        if not os.path.exists(self.path):
            raise Stop(f"{self.rung} is not built yet: scripts/run builds it", NO_DEVICE)
        self.step = Source(file).step
        if copy:
            os.makedirs(self.folder, exist_ok=True)
            self.made = os.path.join(self.folder, os.path.basename(file))
            write_whole(self.made, f'#line 1 "{os.path.relpath(copy)}"\n{text or read(copy)}')
            self.objects = compiled(build, self.rung, file, self.made, self.folder, "-Wno-error",
                                    "-Werror=frame-larger-than=60000", "-include", GUARD)
            self.path = self.linked(self.rung)

    def linked(self, program: str) -> str:
        """With what guard.h wraps, where linkers can."""
        return linked(self.build, program, *self.objects, self.folder,
                      *["-Wl,--wrap=__cxa_throw"] * (sys.platform == "linux"))

    def printed(self, program: str, *options: str, **environment: str) -> tuple[int, str]:
        """Status, negative for a signal, and what was printed. On one core: then all is done by
        the first thread, which has a stack for handlers from guard.h."""
        if self.stopped:  # as it would be again, after as long
            return GOOD, NOT_RUN
        with tempfile.TemporaryFile() as out:
            try:
                status = subprocess.run(
                    limited(SECONDS, program, *options), stdin=subprocess.DEVNULL, stdout=out,
                    stderr=out, env={**os.environ, "LADDER_CORES": "1", **environment},
                    check=False, timeout=6 * SECONDS).returncode
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
            out.seek(0)
            self.stopped |= status in (-signal.SIGXCPU, -signal.SIGKILL)
            return status, out.read().decode(errors="replace")

    def ending(self, status: int, said: str, fault: str = "") -> str:
        """What ended a run, and the line of the copy where it did; "" for nothing."""
        died = fault or ENDS.get(status, f"it ended with status {status}" * bool(status))
        name, *calls = os.path.basename(self.copy), *re.findall(
            r"^(/.*)\(\w*(?:\+(0x\w+))?\) ?\[(0x\w+)\]$", said.rpartition("[where]\n")[2], re.M)
        if died and calls and f"({name}:" not in died:
            lines = run_quietly(["sh", "-c", 'addr2line "$@"', "sh", "-i", "-e", calls[0][0],
                                 *(near or far for program, near, far in calls
                                   if program == calls[0][0])], "addr2line")[1]
            for line in re.findall(rf"(?:^|/){re.escape(os.path.relpath(self.copy))}:(\d+)", lines,
                                   re.M)[:1]:
                died += f" ({name}:{line})"
        return died.replace("{}", str(SECONDS))

    def run(self, options: str, *more: str) -> Run:
        """With such options, in which spaces part words, and `more`, words in which they do not."""
        status, said = self.printed(self.path, "--step", self.step, *options.split(), *more,
                                    "--device", "sim", "--json")
        records = json_lines("\n".join(re.findall("^{.*}$", said, re.M)), self.path)
        err = "\n".join(line for line in said.splitlines()
                        if line and not re.match(r"\{|\[where\]|.*\[0x\w+\]$|.*…$", line))
        if status in (GOOD, WRONG_RESULT) and records:
            return Run(status, records, err)
        return Run(status, [], NOT_RUN if said == NOT_RUN else
                   self.ending(status, said, err.split("\n")[-1]))


@dataclasses.dataclass(frozen=True)
class Words:
    """A question answered in words: there is nothing to check."""

    name: str

    asks, file, solutions = "an answer in words", "", ()
    minutes, points = 5, 1


@dataclasses.dataclass(frozen=True)
class Numbers:
    name: str
    answers: dict[str, float]  # what is asked for → the number
    tolerance: float = 0  # relative

    file, solutions, minutes = "", (), 10

    @property
    def points(self) -> int:
        return len(self.answers)

    @property
    def asks(self) -> str:
        return f"{len(self.answers)} numbers" if len(self.answers) > 1 else "a number"

    def check(self, given: Sequence[float]) -> Judged:
        """Compares numbers in the order of `answers`; the first that is wrong is named."""
        return judged([(what, "" if math.isclose(value, right, rel_tol=self.tolerance,
                                                 abs_tol=1e-9) else
                        f"{value:,.10g} is too {'small' if value < right else 'large'}")
                       for (what, right), value in zip(self.answers.items(), given)],
                      "Right.", shared=True)


@dataclasses.dataclass(frozen=True)
class Change:
    """A change to a file of the rung: all cases still pass, and the formula is still the count."""

    name: str
    file: str
    predicted: Sequence[int]  # bytes that are requested in all for each of COUNTED
    solution: Edits

    asks, minutes, points = "code", 45, 6

    @property
    def solutions(self) -> list[Edits]:
        return [self.solution]

    def check(self, program: Program) -> Judged:
        # Where the scale is the least, or large with outliers, no check of dQ and dK decides.
        cases = [(case, None) for name, case in CASES.items() if "own" not in case
                 and not re.search("outliers --scale|--scale .*e-", case)
                 and (name == "long_ragged" or not re.match("long|many", name))]  # a second in all
        return judged([(case, wrong_in(program.run(f"{case} --check full"), predicted))
                       for case, predicted in [*cases, *zip(COUNTED, self.predicted)]],
                      "Right: all cases pass, and request what was predicted.")


class Mistake(NamedTuple):
    """It shows if runs with these options have these wrong outputs, or if a function says so."""
    shows: Union[Dict[str, Set[str]], Callable[[Program], bool]]
    seen: str  # what has been seen then
    solution: Edits

    def is_seen(self, program: Program) -> bool:
        if callable(self.shows):
            return self.shows(program)
        runs = {options: program.run(options) for options in self.shows}
        return all(run.records and wrong_outputs(run).keys() == self.shows[options]
                   for options, run in runs.items())


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A mistake made on purpose in a file of the rung, or one of several."""

    name: str
    file: str
    mistakes: List[Mistake]

    asks, minutes, points = "a mistake, in code", 20, 3

    @property
    def solutions(self) -> list[Edits]:
        return [mistake.solution for mistake in self.mistakes]

    def check(self, program: Program) -> Judged:
        for mistake in self.mistakes:
            if mistake.is_seen(program):
                return Judged(True, f"Seen: {mistake.seen}.", [("the mistake", "")])
        nothing = "nothing is to be seen of the mistake"
        return Judged(False, f"Not yet: {nothing}.", [("the mistake", nothing)])


@dataclasses.dataclass(frozen=True)
class Climb:
    """The step of that name as an exercise. `fails`: which checks the step before fails, of those
    that all have, the bytes and sectors of each array and workspace_bytes, and of other counts of
    a record, which are compared for this step alone; a test holds it. `cases`: options of
    runs besides the suite's cases, whose results have to be right. `unchecked`: what the task asks
    for, and no check holds."""

    name: str
    minutes: int
    fails: Sequence[str]
    cases: Sequence[str] = ()
    blanks: bool = False  # whether what is new in kernels can be taken out, and the rest compiles
    unchecked: str = ""

    asks, points = "the next step, in code", 10


class Break(NamedTuple):
    """A mistake in a file of the rung, to be found by what it does. `shows`: that, in the line that
    breaks.Seen has; a test holds it. `why`: what it is, when it has been found."""

    name: str
    file: str
    shows: str
    why: str
    edits: Edits


Check = Union[Words, Numbers, Change, Experiment]


def edited(text: str, edits: Edits) -> str:
    """A text with the edits made. Raises Stop with the one whose place is not there, or twice."""
    for old, new in edits:
        if text.count(old) != 1:
            raise Stop(f"a solution's edit is to find this once, and it stands {text.count(old)} "
                       f"times in the file:\n{old}", WRONG_RESULT)
        text = text.replace(old, new)
    return text


def wrong_outputs(run: Run) -> dict[str, Record]:
    """Name → error, of those beyond their tolerance."""
    return {name: error for record in run.records
            for name, error in (record["errors"] or {}).items()
            if error["tolerance"] is not None and (error["nonfinite"] or error["max"] is None
                                                   or error["max"] > error["tolerance"])}


def wrong_in(run: Run, predicted: int | None = None) -> str:
    """"", or in a line what is wrong with a run: with its results, or with what its kernels
    request, which is to be what the formula says, and the predicted bytes in all."""
    if not run.records:
        return run.last_words()
    for kernel in (kernel for record in run.records for kernel in record["kernels"]):
        if uneven_counts(kernel):
            return f"{kernel['name']}: {uneven_counts(kernel)}"
    # 00 and 01 are expected to fail on large logits, and say so.
    if "so this failure is expected" not in run.err:
        for output, error in wrong_outputs(run).items():
            return (f"{output} is wrong: its error is {error['max']}, the tolerance "
                    f"{error['tolerance']}, {error['nonfinite']} not finite")
    for record in run.records:
        for output in undecided(record):
            if record["errors"][output]["rel"]:  # else all should be 0, but for what cancels
                return f"the check of {output} decides nothing: zeros are as near"
    asked = requested(run.records[-1])
    if predicted not in (None, asked):
        return f"it requests {asked:,} bytes; predicted are {predicted:,}"
    return ""
