"""Builds a reader's copy in place of a step's file, and runs it on the simulator, with given
options and in all cases of the test suite."""

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

SECONDS = 5  # processor time allowed to a run; the slowest step's runs take a third of it
# Exit status of a run that a signal ended → what the reader is told; {} becomes SECONDS.
ENDS = {-signal.SIGKILL: "it did not end within {} seconds of processor time, or it waits forever",
        -signal.SIGSEGV: "it accesses memory that is not its own, or its stack overflows"}
OTHER_BITS = "another order of threads changes the bits of "
UNLIKE = "its traffic() differs from the bytes that the simulator counts"
NOT_RUN = "it was not run, because an earlier case ended the program"


class ProgramRun(NamedTuple):
    """The result of a run: its exit status (negative for a signal), its records, one per pass, or
    [] if it failed, and its messages; after a failure, their last line gives the reason."""
    status: int
    records: list[Record]
    err: str

    def last_words(self) -> str:
        """Returns why there is no result: the last line, which names the fault or bad option."""
        return self.err.split("\n")[-1].rstrip(".") or f"ended with status {self.status}"


class Case(NamedTuple):
    """The outcome of one case of the test suite, or of a run that is judged like one."""
    name: str
    said: str  # what is wrong with its results; "" if they are correct
    uncounted: str = ""  # what is wrong with its counts, although it finished
    options: str = ""  # the program's options that repeat it
    safer: bool = False  # whether it is correct although the real step's sums overflow here


# What the suite prints about a case. Groups: its name, its messages and, if it finished, the
# outcome and the options. WRONG and UNCOUNTED find the message that becomes said or uncounted.
CASE = re.compile(r"\[ RUN      \] [^\n]*/(\w+)\n(.*?)(?:\[ +(OK|FAILED) +\] [^\n]*/\1\b"
                  r"(?:[^\n]* --step \w+ ([^\n]*) \(\d+ ms\)$)?|\Z)", re.MULTILINE | re.DOTALL)
WRONG = re.compile(r'C\+\+ exception with description "((?:.|\n)*?)" thrown'
                   r"|^(\w+: (?:\d+ not finite, )?max error .*)"
                   r"|^(rows whose sum .*|\w+ decides nothing)|(element \d+)"
                   r"|(\ba\.\w+)(?=\.bits|\.data)", re.MULTILINE)
UNCOUNTED = re.compile(r"^ +(formula)$|^(workspace \w+: .*)", re.MULTILINE)


class Program:
    """A rung's program, limited in time and memory, that runs the step of `file`. With `copy`, the
    path of a reader's file, the program is built with that file's text (or `text`) in its place.
    Raises CommandError if the rung is not built, or with the compiler's first error."""

    def __init__(self, build: str, file: str, copy: str = "", text: str = "") -> None:
        self.build, self.copy, self.folder = build, copy, f"{copy}.made"
        self.source = Source(file)
        self.rung, self.step = self.source.rung, self.source.step
        self.path = os.path.join(build, "bin", self.rung)
        self.stopped = False  # whether the time limit has stopped a run
        if not os.path.exists(self.path):
            raise CommandError(f"{self.rung} is not built yet: scripts/run builds it", NO_DEVICE)
        if copy:
            os.makedirs(self.folder, exist_ok=True)
            lock = os.open(os.path.join(self.folder, ".lock"), os.O_CREAT | os.O_RDWR)
            fcntl.lockf(lock, fcntl.LOCK_EX)  # held until this process ends: one check at a time
            self.made = os.path.join(self.folder, os.path.basename(file))
            name = os.path.abspath(copy)  # traces name this path, so the explorer shows the copy
            with contextlib.suppress(OSError):  # removes an earlier build, so that none looks new
                os.remove(os.path.join(self.folder, self.rung))
            write_whole(self.made, f'#line 1 "{name}"\n{text or read(copy)}')
            try:
                self.objects = compiled(build, self.rung, file, self.made, self.folder,
                                        "-Wno-error")
            except CommandError as stop:
                raise CommandError(str(stop).replace(name, os.path.relpath(copy)),
                                   stop.status) from None
            self.path = linked(build, self.rung, *self.objects, self.folder)
            # The files that the compiler read, without the copy itself.
            listed = read(f"{self.objects[1]}.d").replace("\\\n", " ").split()[1:]
            self.included = [file for file in listed if file != self.made]

    def printed(self, program: str, *options: str, **environment: str) -> tuple[int, str]:
        """Runs `program` within the limits. Returns its status (negative: a signal) and output."""
        if self.stopped:  # another run would only reach the limit again
            return GOOD, NOT_RUN
        with tempfile.TemporaryFile() as out:  # a file, so that the limit on file sizes applies
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
        """Runs the step on the simulator. `options` is split at spaces; `more` are single words."""
        status, said = self.printed(self.path, "--step", self.step, *options.split(), *more,
                                    "--device", "sim", "--json")
        records = []
        for line in re.findall(r'{"rung": .*}$', said, re.MULTILINE):  # skips a copy's own lines
            with contextlib.suppress(ValueError):
                records.append(json.loads(line))
        # Each pass prints one record with all of these keys; other records are the copy's own.
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
        """The path of the rung's tests, linked with the copy. Builds the suite if necessary."""
        if not os.path.exists(f"{self.build}/CMakeFiles/suite.dir/common/tests/suite/"
                              "suite_test.cpp.o"):
            preset = os.path.basename(self.build)
            if not ready("scripts/exercise", "build", "default" if preset == "build" else preset,
                         "suite", self.rung):
                raise CommandError("the test suite could not be built, for the reason above",
                                   NO_DEVICE)
        return linked(self.build, f"{self.rung}_test", *self.objects, self.folder)

    def cases(self) -> list[Case]:
        """Runs the step's cases of the suite, in parallel on all cores."""
        tests, suite, shares = cases_of(read_sources(), self.source), self.suite, 8
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda share: self.some(
                suite, tests.replace("*/", "Sim.*/"), GTEST_TOTAL_SHARDS=str(shares),
                GTEST_SHARD_INDEX=str(share)), range(shares))
            return [case for each in found for case in each]

    def orders(self) -> list[Case]:
        """Runs the step's cases under other orders of threads."""
        return self.some(self.suite, f"Schedules.*/{self.step}")

    def some(self, suite: str, tests: str, **environment: str) -> list[Case]:
        """Runs the cases of a test program that the GoogleTest filter `tests` chooses. The list
        includes the cases that did not run because an earlier one ended the program."""
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
            wrong = re.sub("^element.*", r"\g<0> is not 0, but its query attends to no key", wrong)
            wrong = re.sub(r"^a\.", OTHER_BITS, wrong)
            name = of_order[1] if of_order else name.removeprefix(f"{self.step}_")
            found.append(Case(name, wrong, uncounted, options, safer))
        ran = re.search(r"^\[=+\] Running (\d+) test", said, re.MULTILINE)
        return found + [Case("another", NOT_RUN)] * (int(ran[1]) - len(found) if ran else 1)


def ending(status: int, said: str) -> str:
    """Returns what ended a run with this status and output: a limit, a signal, or its last line."""
    died = ENDS.get(status, f"it ended with status {status}" if status < 0 else "")
    return died.replace("{}", str(SECONDS)) or said.rstrip("\n").split("\n")[-1]
