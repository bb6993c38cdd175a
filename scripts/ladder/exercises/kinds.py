"""Defines the kinds of exercises that a rung's exercises.py lists: Words, Numbers, Change and
Experiment in EXERCISES, BuildTask in BUILD_TASKS, BugHunt in BUG_HUNTS. Numbers, Change and
Experiment have check(), which returns a Verdict. `asks` says what the reader hands in; `minutes`
and `points` are what the exercise takes and earns; `file` is the file to change, in the rung."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Dict, List, NamedTuple, Sequence, Set, Tuple, Union

from ladder.base.records import requested
from ladder.exercises.checks import judged, uneven_in, wrong_in, wrong_outputs
from ladder.exercises.mistakes import Edits
from ladder.exercises.program import Program, ProgramRun

# The runs whose counts are compared: a shape's name → the program's options.
SHAPES = {"whole tiles": "--heads 1 --seqlen 256",
          "ragged": "--batch 2 --heads 2 --kv-heads 1 --seqlen 100 --seqlen-kv 150 --head-dim 40",
          "causal": "--heads 1 --seqlen 300 --head-dim 128 --dtype bf16 --causal"}


class Verdict(NamedTuple):
    right: bool
    why: str  # what the reader is told
    cases: Sequence[Tuple[str, str]] = ()  # (case, what is wrong with it or "")
    share: float = 0  # the fraction of the points that an incorrect answer earns
    checks: Sequence[Tuple[str, bool, str]] = ()  # of a build task: (name, whether it holds, text)
    rerun: str = ""  # the options of the smallest wrong case

    def points(self, most: int) -> int:
        """Returns the points, a whole number; only a correct answer gets all of them."""
        return most if self.right else int(most * self.share + 1e-9)


def verdict_of(cases: Sequence[Tuple[str, str]], right: str, shared: bool = False) -> Verdict:
    """Returns the verdict on [(case, what is wrong with it or "")]. Its text names the first wrong
    case or, if all are correct, is `right`. With `shared`, each correct case earns an equal
    fraction of the points; otherwise a wrong case leaves none."""
    wrong = [f"Not yet: {case}: {said}." for case, said in cases if said]
    return Verdict(not wrong, wrong[0] if wrong else right, cases,
                   shared * (1 - len(wrong) / len(cases)))


# Two causal runs for checking requested bytes; all that a formula may depend on differs in them.
COUNTED = ("--heads 1 --seqlen 300 --head-dim 80 --causal",
           "--batch 2 --heads 4 --kv-heads 2 --seqlen 100 --seqlen-kv 150 --head-dim 40 --causal")


@dataclasses.dataclass(frozen=True)
class Words:
    """A question answered in words, which only a person can judge."""
    name: str

    asks, file, solutions = "an answer in words", "", ()
    minutes, points = 5, 1


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A calculation, whose answers are one or more numbers. If a program counts them, the lesson's
    answer shows them in a console block, which a test runs and compares."""
    name: str
    answers: dict[str, float]  # the quantity asked for → its value
    tolerance: float = 0  # relative

    file, solutions, minutes = "", (), 10

    @property
    def points(self) -> int:
        return len(self.answers)

    @property
    def asks(self) -> str:
        return f"{len(self.answers)} numbers" if len(self.answers) > 1 else "a number"

    def check(self, given: Sequence[float]) -> Verdict:
        """Compares numbers, in the order of `answers`; the verdict names the first wrong one."""
        return verdict_of([(what, "" if math.isclose(value, right, rel_tol=self.tolerance,
                                                     abs_tol=1e-9) else
                            f"{value:,.10g} is too {'small' if value < right else 'large'}")
                           for (what, right), value in zip(self.answers.items(), given)],
                          "Correct.", shared=True)


@dataclasses.dataclass(frozen=True)
class Change:
    """A change to a file of the rung, after which all cases of the test suite pass and the bytes
    that traffic() predicts equal the bytes that the simulator counts."""
    name: str
    file: str
    predicted: Sequence[int]  # requested bytes in total, for each of COUNTED
    solution: Edits

    asks, minutes, points = "code", 45, 6

    @property
    def solutions(self) -> list[Edits]:
        return [self.solution]

    def check(self, program: Program) -> Verdict:
        """Checks the requested bytes and, if they are correct, all cases. Cases that tolerate no
        additional rounding are left out, because another algorithm may round once more."""
        cases = [(case, wrong_or_unlike(program.run(f"{case} --check full"), predicted))
                 for case, predicted in zip(COUNTED, self.predicted)]
        if not any(said for _, said in cases):
            cases += [(case.options or case.name, case.said or case.uncounted)
                      for case in judged(program, {}).cases
                      if "values of its own" not in case.options]
        return verdict_of(cases, "Correct: all cases pass, and the requested bytes are those "
                                 "predicted.")


class Mistake(NamedTuple):
    """A mistake in an Experiment. `shows` says how to recognise it: {options of a run: the outputs
    that are wrong in it}, or a function that returns whether a program has the mistake."""
    shows: Union[Dict[str, Set[str]], Callable[[Program], bool]]
    seen: str  # the observation, for the verdict
    solution: Edits

    def is_seen(self, program: Program) -> bool:
        """Returns whether the program shows exactly this mistake."""
        if callable(self.shows):
            return self.shows(program)
        runs = {options: program.run(options) for options in self.shows}
        return all(run.records and wrong_outputs(run).keys() == self.shows[options]
                   for options, run in runs.items())


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A task to make one of `mistakes` on purpose in a file of the rung, and to see its effect."""
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
        nothing = "the mistake that the task asks for does not show in the results"
        return Verdict(False, f"Not yet: {nothing}.", [("the mistake", nothing)])


class Stage(NamedTuple):
    """A part of a kernel that a reader writes from an empty body. It is reached if the outputs in
    `right` are correct in all of `runs` and each count in `at_least` is high enough in the first of
    them. In the last stage no count may exceed 1.5 times that of the real step."""
    name: str
    asks: str  # what to write
    hint: str  # where the lesson teaches it
    lines: str  # a pattern that matches the real step's lines for this stage
    at_least: Dict[str, float]  # count → the required fraction of the real step's
    right: Sequence[str] = ()  # outputs that must be correct; if empty, all of the suite's cases
    runs: Sequence[str] = ()  # options; if empty, the shapes of all build tasks


@dataclasses.dataclass(frozen=True)
class BuildTask:
    """The step of this name as an exercise. It starts from the preceding step or, if it has
    `stages`, from the real step with an empty kernel; in that case only the stages are checked."""
    name: str
    minutes: int
    # The counts that the idea is about; the preceding step fails their checks. "K" stands for an
    # array's bytes, "K sectors" for its sectors; others are keys of records. A test compares them.
    fails: Sequence[str]
    moves: Sequence[Tuple[str, str]] = ()  # fields of further Moves besides the registered .change
    longest_first: bool = False  # whether the blocks with the most work must start first
    cases: Sequence[str] = ()  # options of runs that must be correct, besides the suite's cases
    blanks: bool = False  # whether the file compiles with the kernels' new lines taken out
    unchecked: str = ""  # what the task asks for but no check covers
    stages: Sequence[Stage] = ()

    points = 10

    @property
    def asks(self) -> str:
        return "a kernel from an empty body" if self.stages else "the next step, in code"


class BugHunt(NamedTuple):
    """A mistake in a file of the rung, which readers find from its symptoms."""
    name: str
    file: str
    shows: str  # the symptoms, as in bug_hunts.Observed.line; a test compares them
    why: str  # the explanation, shown once the reader has found it
    edits: Edits
    opened: Edits = ()  # edits made before, which replace a library call by its code


Check = Union[Words, Numbers, Change, Experiment]


def wrong_or_unlike(run: ProgramRun, predicted: int) -> str:
    """Returns what is wrong with a run's results, or with its requested bytes, which must equal
    both those that traffic() predicts and `predicted`; "" if nothing is wrong."""
    asked = requested(run.records[-1]) if run.records else predicted
    return wrong_in(run) or uneven_in(run) or (
        "" if asked == predicted else
        f"it requests {asked:,} bytes, but the solution requests {predicted:,}")
