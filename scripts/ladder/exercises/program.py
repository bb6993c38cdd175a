"""A reader's copy of a step's file, built and run in the place of that file: alone, and in all of
the test suite's cases."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import functools
import json
import os
import re
import signal
import subprocess
import tempfile
from typing import NamedTuple

from ladder.exercises.rebuild import compiled, limited, linked
from ladder.base.console import GOOD, NO_DEVICE, WRONG_RESULT, CommandError
from ladder.base.files import read, write_whole
from ladder.base.programs import ready
from ladder.base.records import Record
from ladder.base.sources import Source, cases_of, read_sources

SECONDS = 5  # of a core, for a run; those of the slowest step take a third
ENDS = {-signal.SIGKILL: "it had not ended after {} seconds of a core, or waits for ever",
        -signal.SIGSEGV: "it touches memory that is not its own, or its stack is full"}
OTHER_BITS = "another order of threads gives other bits of "
UNLIKE = "its traffic() says other bytes than are counted"
NOT_RUN = "it did not run, since a case before it ended the program"


class ProgramRun(NamedTuple):
    status: int
    records: list[Record]
    err: str

    def last_words(self) -> str:
        """Why there is no result: the simulator's fault, or what the program says of its
        options."""
        return self.err.split("\n")[-1].rstrip(".") or f"ended with status {self.status}"


class Case(NamedTuple):
    name: str
    said: str  # what is wrong with its results, "" for nothing
    uncounted: str = ""  # what is wrong with its counts, though it came to its end
    options: str = ""  # those that run it again
    safer: bool = False  # right where the real step's sums overflow


# What the suite prints of a case: its name, what it says, and, where it ended, how and of what.
CASE = re.compile(r"\[ RUN      \] [^\n]*/(\w+)\n(.*?)(?:\[ +(OK|FAILED) +\] [^\n]*/\1\b"
                  r"(?:[^\n]* --step \w+ ([^\n]*) \(\d+ ms\)$)?|\Z)", re.MULTILINE | re.DOTALL)
WRONG = re.compile(r'C\+\+ exception with description "((?:.|\n)*?)" thrown'
                   r"|^(\w+: (?:\d+ not finite, )?max error .*)"
                   r"|^(rows whose sum .*|\w+ decides nothing)|(element \d+)"
                   r"|(\ba\.\w+)(?=\.bits|\.data)", re.MULTILINE)
UNCOUNTED = re.compile(r"^ +(formula)$|^(workspace \w+: .*)", re.MULTILINE)


class Program:
    """A rung's program that runs the step of one file of the repository. With a `copy`, whose text
    may be given, it is built with that in the file's place; raises CommandError with the compiler's
    first error. What it does is bounded."""

    def __init__(self, build: str, file: str, copy: str = "", text: str = "") -> None:
        self.build, self.copy, self.folder = build, copy, f"{copy}.made"
        self.source = Source(file)
        self.rung, self.step = self.source.rung, self.source.step
        self.path = os.path.join(build, "bin", self.rung)
        self.stopped = False  # by the limit of time
        if not os.path.exists(self.path):
            raise CommandError(f"{self.rung} is not built yet: scripts/run builds it", NO_DEVICE)
        if copy:
            os.makedirs(self.folder, exist_ok=True)
            lock = os.open(os.path.join(self.folder, ".lock"), os.O_CREAT | os.O_RDWR)
            fcntl.lockf(lock, fcntl.LOCK_EX)  # until this process ends: one check at a time
            self.made = os.path.join(self.folder, os.path.basename(file))
            name = os.path.abspath(copy)  # by which the explorer finds it
            with contextlib.suppress(OSError):  # of an earlier version
                os.remove(os.path.join(self.folder, self.rung))
            write_whole(self.made, f'#line 1 "{name}"\n{text or read(copy)}')
            try:
                self.objects = compiled(build, self.rung, file, self.made, self.folder,
                                        "-Wno-error")
            except CommandError as stop:
                raise CommandError(str(stop).replace(name, os.path.relpath(copy)),
                                   stop.status) from None
            self.path = linked(build, self.rung, *self.objects, self.folder)
            # The files that the compiler read, but for the copy itself.
            listed = read(f"{self.objects[1]}.d").replace("\\\n", " ").split()[1:]
            self.included = [file for file in listed if file != self.made]

    def printed(self, program: str, *options: str, **environment: str) -> tuple[int, str]:
        """Status, negative for a signal, and what was printed."""
        if self.stopped:  # as it would be again, after as long
            return GOOD, NOT_RUN
        with tempfile.TemporaryFile() as out:  # which a limit bounds
            try:
                status = subprocess.run(
                    limited(SECONDS, program, *options), stdin=subprocess.DEVNULL, stdout=out,
                    stderr=out, env={**os.environ, "LADDER_CORES": "1", **environment},
                    check=False, timeout=6 * SECONDS).returncode
            except subprocess.TimeoutExpired:
                status = -signal.SIGKILL
            out.seek(0)
            self.stopped |= status == -signal.SIGKILL
            return status, out.read().decode(errors="replace")

    def run(self, options: str, *more: str) -> ProgramRun:
        """With such options, in which spaces part words, and `more`, words in which they do not."""
        status, said = self.printed(self.path, "--step", self.step, *options.split(), *more,
                                    "--device", "sim", "--json")
        records = []
        for line in re.findall(r'{"rung": .*}$', said, re.MULTILINE):  # a copy may print before it
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        # A pass has one, with all of these; others are a copy's own print.
        passes = {record.get("direction") for record in records}
        if len(passes) < len(records) or not all({"kernels", "errors", "pass"} <= record.keys()
                                                 for record in records):
            records = []
        err = "\n".join(line for line in said.splitlines() if line and '{"rung": ' not in line
                        and not line.endswith("…"))
        good = status in (GOOD, WRONG_RESULT) and bool(records)
        return ProgramRun(status, records if good else [], err if good else ending(status, err))

    @functools.cached_property
    def suite(self) -> str:
        """The rung's tests, with the copy; their cases are compiled first where nobody has."""
        if not os.path.exists(f"{self.build}/CMakeFiles/suite.dir/common/tests/suite/"
                              "suite_test.cpp.o"):
            preset = os.path.basename(self.build)
            if not ready("scripts/exercise", "build", "default" if preset == "build" else preset,
                         "suite", self.rung):
                raise CommandError("the suite of tests could not be built", NO_DEVICE)
        return linked(self.build, f"{self.rung}_test", *self.objects, self.folder)

    def cases(self) -> list[Case]:
        """The suite's at each shape, as many at once as there are cores."""
        tests, suite, shares = cases_of(read_sources(), self.source), self.suite, 8
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda share: self.some(
                suite, tests.replace("*/", "Sim.*/"), GTEST_TOTAL_SHARDS=str(shares),
                GTEST_SHARD_INDEX=str(share)), range(shares))
            return [case for each in found for case in each]

    def orders(self) -> list[Case]:
        """The step's cases under other orders of threads."""
        return self.some(self.suite, f"Schedules.*/{self.step}")

    def some(self, suite: str, tests: str, **environment: str) -> list[Case]:
        """The cases that a filter chooses, those that did not run any more too."""
        status, said = self.printed(suite, f"--gtest_filter={tests}", **environment)
        found = []
        for name, text, end, options in CASE.findall(said):
            count = UNCOUNTED.search(text)
            uncounted = (count[2] or UNLIKE) if count else ""
            wrong = "".join(next(iter(WRONG.findall(text)), ()))
            safer = wrong.startswith("rows whose sum")
            if not end:
                wrong = ending(status, text) or "it ends the program"
            elif safer:
                wrong = ""
            elif end == "FAILED" and not uncounted and not wrong:
                wrong = "it fails"
            of_order = re.search(r"^\S+suite_test\.cpp:\d+: \w+ (\w+)$", text, re.MULTILINE)
            wrong = re.sub("^element.*", r"\g<0> is not 0, and its query attends to no key", wrong)
            wrong = re.sub(r"^a\.", OTHER_BITS, wrong)
            name = of_order[1] if of_order else name.removeprefix(f"{self.step}_")
            found.append(Case(name, wrong, uncounted, options, safer))
        ran = re.search(r"^\[=+\] Running (\d+) test", said, re.MULTILINE)
        return found + [Case("another", NOT_RUN)] * (int(ran[1]) - len(found) if ran else 1)


def ending(status: int, said: str) -> str:
    """What ended a run: a limit or a signal, or else its last words; "" for nothing."""
    died = ENDS.get(status, f"it ended with status {status}" if status < 0 else "")
    return died.replace("{}", str(SECONDS)) or said.rstrip("\n").split("\n")[-1]
