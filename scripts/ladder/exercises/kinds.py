"""What an exercise asks for, and how an answer is checked.

The task and the answer in full stand in the lesson, under "Exercises", hints in hints.md.
"""

import collections
import math

from ladder.exercises.cases import CASES, run_case
from ladder.exercises.masks import wrong_mask

# answers: [(what is asked for, function of a Lab that works it out, relative tolerance)].
Numbers = collections.namedtuple("Numbers", "answers")
# A change to a file, after which a step still passes all cases of cases.py and requests what
# `predicted` says: a function of a record of --json giving {(kernel, array): (read, write)}
# in bytes.
Change = collections.namedtuple("Change", "file predicted")
# A change of the mask: sees(j, last) says whether a query whose last key under the causal mask is
# `last` sees key j. Tiles in which no row sees a key are not to be read.
Mask = collections.namedtuple("Mask", "file sees")
# A mistake made on purpose. outcomes: {name of its patch: (function of a Lab and a program that
# says whether it shows, what has been seen then)}.
Experiment = collections.namedtuple("Experiment", "file outcomes")
# A question answered in words: there is nothing to check.
Words = collections.namedtuple("Words", "")

Verdict = collections.namedtuple("Verdict", "good line")


def patches(number, exercise):
    """The names of an exercise's solutions in scripts/ladder/exercises/patches, without .patch."""
    return list(exercise.outcomes) if isinstance(exercise, Experiment) else [number]


# ---- numbers ----


def number_of(text):
    """4,944,000 and 2.5 as numbers, or None."""
    try:
        value = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def check_numbers(lab, exercise, given):
    """A Verdict on numbers in the order of `answers`; the first that is wrong is named."""
    for (what, how, tolerance), value in zip(exercise.answers, given):
        right = how(lab)
        if not math.isclose(value, right, rel_tol=tolerance, abs_tol=1e-9):
            size = "small" if value < right else "large"
            return Verdict(False, f"Not yet: {what}: {value:,.10g} is too {size}.")
    return Verdict(True, "Right.")


# ---- code ----


def check_change(lab, exercise, program):
    """A Verdict on a program built from the reader's file: the first case in which
    something is wrong, and what."""
    for case in CASES:
        wrong = run_case(lab, program, case, exercise.predicted)
        if wrong:
            return Verdict(False, f"Not yet: {wrong}.")
    return Verdict(True, f"Right: all {len(CASES)} cases pass, and request what was predicted.")


def check_mask(lab, exercise, program):
    wrong = wrong_mask(lab, program, exercise.sees)
    if wrong:
        return Verdict(False, f"Not yet: {wrong}.")
    return Verdict(True, "Right: each query has the keys it should see, and no tile besides theirs "
                         "is read.")


def check_experiment(lab, exercise, program):
    for shows, seen in exercise.outcomes.values():
        if shows(lab, program):
            return Verdict(True, f"Seen: {seen}.")
    return Verdict(False, "Not yet: nothing is to be seen of the mistake.")


CODE = {Change: check_change, Mask: check_mask, Experiment: check_experiment}


def check_code(lab, exercise, program):
    """A Verdict on a program built from the reader's file."""
    return CODE[type(exercise)](lab, exercise, program)
