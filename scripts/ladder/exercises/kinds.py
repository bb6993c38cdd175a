"""What an exercise asks for, and how an answer is checked: check() says whether it is right, and in
a line why. Each rung's exercises.py has its own; what a program counts also stands in the lesson's
answer, in a console block, which a test runs and compares.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Dict, List, NamedTuple, Sequence, Set, Tuple, Union

from ladder.base.records import requested
from ladder.exercises.checks import judged, uneven_in, wrong_in, wrong_outputs
from ladder.exercises.mistakes import Edits
from ladder.exercises.program import Program, ProgramRun


class Verdict(NamedTuple):
    """Whether an answer is right, and in a line why; what is wrong with each case, "" for nothing;
    and of what a build task compares with the real step whether it holds, and what was said."""

    right: bool
    why: str
    cases: Sequence[Tuple[str, str]] = ()
    share: float = 0  # of the points, where it is not right
    checks: Sequence[Tuple[str, bool, str]] = ()
    rerun: str = ""  # options of the smallest case that is wrong

    def points(self, most: int) -> int:
        """Whole ones, all for what is right alone."""
        return most if self.right else int(most * self.share + 1e-9)


def verdict_of(cases: Sequence[Tuple[str, str]], right: str, shared: bool = False) -> Verdict:
    """By what is wrong with each case; the first is named. `shared`: each has its share of the
    points."""
    wrong = [f"Not yet: {case}: {said}." for case, said in cases if said]
    return Verdict(not wrong, wrong[0] if wrong else right, cases,
                   shared * (1 - len(wrong) / len(cases)))


# All that a formula depends on, and the mask.
COUNTED = ("--heads 1 --seqlen 300 --head-dim 80 --causal",
           "--batch 2 --heads 4 --kv-heads 2 --seqlen 100 --seqlen-kv 150 --head-dim 40 --causal")


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

    def check(self, given: Sequence[float]) -> Verdict:
        """Compares numbers in the order of `answers`; the first that is wrong is named."""
        return verdict_of([(what, "" if math.isclose(value, right, rel_tol=self.tolerance,
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

    def check(self, program: Program) -> Verdict:
        """By what it requests; and where that is right, by all cases, but those made to show each
        rounding that the step does not need: another algorithm may need it."""
        cases = [(case, wrong_or_unlike(program.run(f"{case} --check full"), predicted))
                 for case, predicted in zip(COUNTED, self.predicted)]
        if not any(said for _, said in cases):
            cases += [(case.options or case.name, case.said or case.uncounted)
                      for case in judged(program, {}).cases
                      if "values of its own" not in case.options]
        return verdict_of(cases, "Right: all cases pass, and request what was predicted.")


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

    def check(self, program: Program) -> Verdict:
        for mistake in self.mistakes:
            if mistake.is_seen(program):
                return Verdict(True, f"Observed: {mistake.seen}.", [("the mistake", "")])
        nothing = "nothing is to be seen of the mistake"
        return Verdict(False, f"Not yet: {nothing}.", [("the mistake", nothing)])


@dataclasses.dataclass(frozen=True)
class BuildTask:
    """The step of that name as an exercise. `fails`: the counts that its idea is about, which
    the step before fails: the bytes or sectors of an array, workspace_bytes, or another count of a
    record; a test holds it. `moves`: counts that go up or down besides the registered one, as
    Move has them. `longest_first`: whether blocks with the most work start first. `cases`: options
    of runs besides the suite's cases, whose results have to be right. `unchecked`: what the task
    asks for, and no check holds."""

    name: str
    minutes: int
    fails: Sequence[str]
    moves: Sequence[Tuple[str, str]] = ()
    longest_first: bool = False
    cases: Sequence[str] = ()
    blanks: bool = False  # whether what is new in kernels can be taken out, and the rest compiles
    unchecked: str = ""

    asks, points = "the next step, in code", 10


class BugHunt(NamedTuple):
    """A mistake in a file of the rung, to be found by what it does. `shows`: that, in the line that
    bug_hunts.Observed has; a test holds it. `why`: what it is, when it has been found."""

    name: str
    file: str
    shows: str
    why: str
    edits: Edits


Check = Union[Words, Numbers, Change, Experiment]


def wrong_or_unlike(run: ProgramRun, predicted: int) -> str:
    """What is wrong with a run, or with its count, which is to be what traffic() says and the
    predicted bytes; "" for nothing."""
    asked = requested(run.records[-1]) if run.records else predicted
    return wrong_in(run) or uneven_in(run) or (
        "" if asked == predicted else
        f"it requests {asked:,} bytes; predicted are {predicted:,}")
