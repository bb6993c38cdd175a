"""What an exercise asks for, and how an answer is checked: check() says whether it is right, and in
a line why.

The task, the hints and the answer stand in the lesson, under "Exercises", the solutions of those
that ask for code in patches.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import os
import random
from typing import Callable, Dict, Iterator, Sequence, Set, Tuple, Union

from ladder.base.npy import read_npy, write_rows
from ladder.base.records import Record, requested, uneven_counts
from ladder.exercises.lab import Lab, Run

Command = Sequence[str]
Judged = Tuple[bool, str]          # whether an answer is right, and in a line why
Sees = Callable[[int, int], bool]  # of a key, and the last that the causal mask leaves a query

# The kinds of cases that the test suite has, as options; well under a second together.
CASES = """\
--batch 2 --heads 2 --kv-heads 1 --seqlen 64 --seqlen-kv 40 --head-dim 48 --input outliers
--heads 1 --seqlen 50 --head-dim 256 --dtype bf16 --input outliers --causal
--batch 2 --heads 2 --kv-heads 1 --seqlen 33 --seqlen-kv 70 --head-dim 128 --dtype bf16
--batch 2 --heads 1 --seqlen 33 --head-dim 200
--heads 4 --kv-heads 2 --seqlen 50 --seqlen-kv 33 --head-dim 96 --dtype bf16 --causal
--heads 2 --kv-heads 1 --seqlen 270 --seqlen-kv 258
--heads 1 --seqlen 300 --head-dim 80 --causal
--batch 2 --heads 2 --seqlen 1
--heads 4 --kv-heads 1 --seqlen 1 --seqlen-kv 217 --head-dim 128 --dtype bf16 --causal
--batch 2 --heads 2 --kv-heads 1 --seqlen 7 --seqlen-kv 1 --head-dim 8 --dtype bf16
--heads 9 --kv-heads 3 --seqlen 7 --head-dim 40 --dtype bf16 --input outliers --causal
--heads 2 --kv-heads 1 --seqlen 130 --seqlen-kv 65 --head-dim 16 --dtype bf16
--heads 2 --seqlen 34 --seqlen-kv 224 --head-dim 144 --causal
--heads 2 --kv-heads 1 --seqlen 217 --seqlen-kv 70 --dtype bf16 --causal
--heads 2 --seqlen 66 --seqlen-kv 70 --head-dim 24 --scale 2e-45 --dtype bf16 --causal
--heads 2 --kv-heads 1 --seqlen 113 --seqlen-kv 128 --scale 6.25
--heads 2 --seqlen 65 --seqlen-kv 66 --head-dim 128 --scale 1.77 --dtype bf16 --causal
""".splitlines()
# All that a formula depends on, and the mask.
COUNTED = ("--heads 1 --seqlen 300 --head-dim 80 --causal",
           "--batch 2 --heads 4 --kv-heads 2 --seqlen 100 --seqlen-kv 150 --head-dim 40 --causal")


class Words:
    """A question answered in words: there is nothing to check."""

    asks, file = "an answer in words", None


@dataclasses.dataclass(frozen=True)
class Numbers:
    answers: dict[str, float]  # what is asked for → the number
    tolerance: float = 0  # relative

    file = None

    @property
    def asks(self) -> str:
        return f"{len(self.answers)} numbers" if len(self.answers) > 1 else "a number"

    def check(self, _: Lab | None, given: Sequence[float]) -> Judged:
        """Compares numbers in the order of `answers`; the first that is wrong is named."""
        for (what, right), value in zip(self.answers.items(), given):
            if not math.isclose(value, right, rel_tol=self.tolerance, abs_tol=1e-9):
                size = "small" if value < right else "large"
                return False, f"Not yet: {what}: {value:,.10g} is too {size}."
        return True, "Right."


@dataclasses.dataclass(frozen=True)
class Change:
    """A change to a file, after which a step still passes all cases and requests what its own
    formula says."""

    file: str
    predicted: Sequence[int]  # bytes that are requested in all for each of COUNTED

    asks = "code"

    def check(self, lab: Lab, program: Command) -> Judged:
        for case in CASES:
            wrong = wrong_in(lab, program, case)
            if wrong:
                return False, f"Not yet: {case}: {wrong}."
        for case, predicted in zip(COUNTED, self.predicted):
            wrong = wrong_counts(lab.start(program, case.split()).records[-1], predicted)
            if wrong:
                return False, f"Not yet: {case}: {wrong}."
        return True, f"Right: all {len(CASES)} cases pass, and request what was predicted."


@dataclasses.dataclass(frozen=True)
class Mask:
    """A change of the mask. Tiles in which no row sees a key are not to be read."""

    file: str
    sees: Sees
    predicted: Sequence[int]  # bytes that are requested in all for each of SHAPES

    asks = "code"

    def check(self, lab: Lab, program: Command) -> Judged:
        for shape, predicted in zip(SHAPES, self.predicted):
            wrong = wrong_mask(lab, program, self.sees, predicted, *shape)
            if wrong:
                return False, f"Not yet: {shape[0]} queries, {shape[1]} keys, causal: {wrong}."
        return True, "Right: each query has the keys it should see, and no other tile is read."


# A mistake shows if runs with these options have these wrong outputs, or if a function says so.
Shows = Union[Dict[str, Set[str]], Callable[[Lab, Command], bool]]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A mistake made on purpose."""

    file: str
    outcomes: dict[str, tuple[Shows, str]]  # by the name of its patch, and what has been seen then

    asks = "a mistake, in code"

    def check(self, lab: Lab, program: Command) -> Judged:
        for shows, seen in self.outcomes.values():
            if shows(lab, program) if callable(shows) else all(
                    wrong_outputs(lab.start(program, options.split())) == names
                    for options, names in shows.items()):
                return True, f"Seen: {seen}."
        return False, "Not yet: nothing is to be seen of the mistake."


Exercise = Union[Words, Numbers, Change, Mask, Experiment]


def patches(name: str, exercise: Exercise) -> list[str]:
    """The names of an exercise's solutions in scripts/ladder/exercises/patches, without .patch."""
    return list(exercise.outcomes) if isinstance(exercise, Experiment) else [
        name.replace("/", ".")]


def is_wrong(error: Record) -> bool:
    return error["tolerance"] is not None and (
        error["nonfinite"] or error["max"] is None or error["max"] > error["tolerance"])


def wrong_outputs(run: Run) -> set[str] | None:
    """The wrong outputs of the last record; None if there is none."""
    return {name for name, error in run.records[-1]["errors"].items() if is_wrong(error)} \
        if run.records else None


def wrong_in(lab: Lab, program: Command, case: str) -> str | None:
    """None, or in a line what is wrong."""
    run = lab.start(program, [*case.split(), "--check", "full"])
    if not run.records or run.status not in (0, 1):
        return run.last_words()
    # 00 and 01 are expected to fail on large logits, and say so.
    expected_to_fail = "so this failure is expected" in run.err
    for record in run.records:
        wrong = wrong_counts(record)
        if wrong:
            return wrong
        for output, error in record["errors"].items():
            if is_wrong(error) and not expected_to_fail:
                return (f"{output} is wrong: its error is {error['max']}, the tolerance "
                        f"{error['tolerance']}, {error['nonfinite']} not finite")
    return None


def wrong_counts(record: Record, predicted: int | None = None) -> str | None:
    """What is wrong with a record whose kernels are to request what the formula says, and the
    predicted bytes in all."""
    for kernel in record["kernels"]:
        if uneven_counts(kernel):
            return f"{kernel['name']}: {uneven_counts(kernel)}"
    asked = requested(record)
    if predicted not in (None, asked):
        return f"it requests {asked:,} bytes; predicted are {predicted:,}"
    return None


# ---- which keys a query sees: the suite's reference knows the causal mask alone ----

D = 8
SHAPES = ((400, 400), (70, 400))  # queries and keys


@functools.lru_cache(maxsize=None)
def inputs(n: int, n_kv: int) -> list[list[list[float]]]:
    """Rows of Q, K and V, exact in 16 bits."""
    draw = random.Random(0)
    return [[[draw.randint(-16, 16) / 8 for _ in range(D)] for _ in range(rows)]
            for rows in (n, n_kv, n_kv)]


def attention(n: int, n_kv: int, sees: Sees) -> Iterator[tuple[float, list[float]]]:
    """For each query its LSE and row of O over the keys that it sees."""
    q, k, v = inputs(n, n_kv)
    for i in range(n):
        last = i + n_kv - n
        keys = [j for j in range(last + 1) if sees(j, last)]
        weights = [math.exp(sum(map(operator.mul, q[i], k[j])) / math.sqrt(D)) for j in keys]
        total = sum(weights)
        yield math.log(total), [sum(w * v[j][c] for w, j in zip(weights, keys)) / total
                                for c in range(D)]


def wrong_mask(lab: Lab, program: Command, sees: Sees, predicted: int, n: int,
               n_kv: int) -> str | None:
    """None, or in a line what is wrong. The softmax over the keys that are seen is written out."""
    folder = os.path.join(os.path.dirname(program[0]), f"masked_{n}")
    write_rows(folder, **dict(zip("qkv", inputs(n, n_kv))))
    run = lab.start(program, ["--load", folder, "--save", folder, "--causal", "--check", "off"])
    if not run.records:
        return run.last_words()
    lse, o = (read_npy(os.path.join(folder, f"{name}.npy")) for name in ("lse", "o"))
    for i, (right, row) in enumerate(attention(n, n_kv, sees)):
        if not abs(lse[i] - right) < 1e-4:
            return (f"query {i} has an LSE of {lse[i]:.4f}, and the keys that it should see have "
                    f"{right:.4f}")
        if not all(abs(a - b) < 1e-2 for a, b in zip(o[D * i:], row)):
            return f"query {i} has the right LSE, and a wrong row of O"
    return wrong_counts(run.records[0], predicted)
