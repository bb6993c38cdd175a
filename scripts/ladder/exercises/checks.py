"""What is checked of code, for every kind of exercise and for the steps themselves: what is wrong
with a run, what is wrong with the test suite's cases, and whether a count moves as it should."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import re
from typing import Mapping, NamedTuple

from ladder.base.records import MOVES, Record, count_of, uneven_counts
from ladder.exercises.program import Case, Program, ProgramRun


class Check(NamedTuple):
    """One thing that is checked of a copy, and what is said of it."""

    name: str
    held: bool
    share: float  # how near it is, from 0 to 1
    text: str
    better: bool = False  # than in the real step


@dataclasses.dataclass(frozen=True)
class Move:
    """That a count moves from the step before, in a run of 256 queries with these options: what a
    step registers as its `.change`, and what a build task asks for beside it. A build task may also
    ask for `product_blocks`, the blocks of those kernels that multiply matrices."""

    count: str
    how: str
    more: str = ""

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
                     f"{self.count} goes from {old:,} in the step before to {new:,} "
                     f"({self.options}); it is to be {self.how}")


def wrong_outputs(run: ProgramRun) -> dict[str, Record]:
    """Name → error, of those beyond their tolerance."""
    return {name: error for record in run.records
            for name, error in (record["errors"] or {}).items()
            if error["tolerance"] is not None and (error["nonfinite"] or error["max"] is None
                                                   or error["max"] > error["tolerance"])}


def said_of_outputs(run: ProgramRun) -> str:
    """Each wrong output with its error, "" for none."""
    return "; ".join(f"{name}: " + (f"{error['nonfinite']} not finite, "
                                    if error["nonfinite"] else "")
                     + f"max error {error['max']}, tolerance {error['tolerance']}"
                     for name, error in wrong_outputs(run).items())


def wrong_in(run: ProgramRun) -> str:
    """What is wrong with a run's results, and where; "" for nothing. A step that subtracts no
    maximum is not wrong where its sums overflow."""
    if not run.records:
        return run.last_words()
    if "so this failure is expected" in run.err:
        return ""
    where = re.search(r"wrong result: (.*)", run.err)
    return said_of_outputs(run) + (f" ({where[1]})" if where and wrong_outputs(run) else "")


def uneven_in(run: ProgramRun) -> str:
    """The kernel whose count is not what traffic() says, and both; "" for none."""
    return next((f"{kernel['name']}: {uneven_counts(kernel)}" for record in run.records
                 for kernel in record["kernels"] if uneven_counts(kernel)), "")


class Judged(NamedTuple):
    """A copy's runs with options, by their names; these and the suite's cases; and the cases under
    other orders of threads."""

    runs: Mapping[str, ProgramRun]
    cases: list[Case]
    orders: list[Case]


def judged(copy: Program, options: Mapping[str, str]) -> Judged:
    """Runs a copy with each options, as many at once as there are cores, and then in the suite."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = dict(zip(options, pool.map(lambda words: copy.run(f"{words} --check full"),
                                          options.values())))
    return Judged(runs, copy.cases() + [Case(name, wrong_in(run), uneven_in(run), options[name])
                                        for name, run in runs.items()], copy.orders())
