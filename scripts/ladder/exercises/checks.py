"""Checks code, for every kind of exercise and for the steps themselves: whether a run's results are
correct, whether the cases of the test suite pass, and whether a count changes as it should."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import re
from typing import Collection, Mapping, NamedTuple

from ladder.base.records import MOVES, Record, count_of, uneven_counts
from ladder.exercises.program import Case, Program, ProgramRun


MUST = {"less": "must fall", "more": "must rise", "to 0": "must fall to 0",
        "from 0": "must rise from 0"}  # a key of MOVES → the demand in words


class Check(NamedTuple):
    """The outcome of one check of a reader's copy, and the line about it that the reader gets."""
    name: str
    held: bool
    share: float  # the fraction that holds, from 0 to 1
    text: str
    better: bool = False  # whether the count is better than the real step's


@dataclasses.dataclass(frozen=True)
class Move:
    """A demand that a count differ from the preceding step's, in a run with 256 queries: a step's
    registered `.change`, or an additional demand of its build task."""
    count: str  # a key of records, or product_blocks: the blocks of kernels that multiply matrices
    how: str  # a key of MOVES
    more: str = ""  # options in addition to --seqlen 256

    @property
    def options(self) -> str:
        return f"--seqlen 256 {self.more}".rstrip()

    def value(self, record: Record) -> int:
        if self.count == "product_blocks":
            return sum(kernel["blocks"] for kernel in record["kernels"] if kernel["matmul_flops"])
        return count_of(record, self.count) or 0

    def check(self, before: Record, after: Record) -> Check:
        old, new = self.value(before), self.value(after)
        held = MOVES[self.how](old, new)
        return Check(f"{self.count} {self.how}", held, float(held),
                     f"{self.count} goes from {old:,} in the preceding step to {new:,} "
                     f"({self.options}); it {MUST[self.how]}")


def wrong_outputs(run: ProgramRun) -> dict[str, Record]:
    """Returns {output: its errors} for the outputs that exceed a tolerance or are not finite."""
    return {name: error for record in run.records
            for name, error in (record["errors"] or {}).items()
            if error["tolerance"] is not None and (error["nonfinite"] or error["max"] is None
                                                   or error["max"] > error["tolerance"])}


def said_of_outputs(run: ProgramRun, of: Collection[str] = ()) -> str:
    """Returns a line with each wrong output and its error, or "" if none is wrong; if `of` names
    outputs, only these count."""
    return "; ".join(f"{name}: " + (f"{error['nonfinite']} not finite, "
                                    if error["nonfinite"] else "")
                     + f"max error {error['max']}, tolerance {error['tolerance']}"
                     for name, error in wrong_outputs(run).items() if not of or name in of)


def wrong_in(run: ProgramRun, of: Collection[str] = ()) -> str:
    """Returns what is wrong with a run's results, and where, or ""; if `of` names outputs, only
    these count. A step that subtracts no maximum may be wrong where its sums overflow."""
    if not run.records:
        return run.last_words()
    if "so this failure is expected" in run.err:
        return ""
    where = re.search(r"wrong result: (.*)", run.err)
    said = said_of_outputs(run, of)
    places = [place for place in where[1].split("; ") if not of or place.split()[0] in of
              ] if where else []
    return said + (f" ({'; '.join(places)})" if said and places else "")


def uneven_in(run: ProgramRun) -> str:
    """Returns the name of the first kernel whose requested bytes differ from those that traffic()
    predicts, with both numbers; "" if there is none."""
    return next((f"{kernel['name']}: {uneven_counts(kernel)}" for record in run.records
                 for kernel in record["kernels"] if uneven_counts(kernel)), "")


class Judged(NamedTuple):
    """The outcomes of a copy's runs and cases."""
    runs: Mapping[str, ProgramRun]  # run with given options, keyed by name
    cases: list[Case]   # the suite's cases, then `runs` as cases
    orders: list[Case]  # the cases under other orders of threads


def judged(copy: Program, options: Mapping[str, str]) -> Judged:
    """Runs a copy with each of the options, in parallel on all cores, then in the suite's cases."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = dict(zip(options, pool.map(lambda words: copy.run(f"{words} --check full"),
                                          options.values())))
    return Judged(runs, copy.cases() + [Case(name, wrong_in(run), uneven_in(run), options[name])
                                        for name, run in runs.items()], copy.orders())
