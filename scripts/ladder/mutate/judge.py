"""Runs the tests on a mutant, the quickest first, until one fails."""

import bisect
import collections
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile

from ladder.console import WRONG_RESULT, Stop
from ladder.programs import cores

MEMORY = 8 << 30  # of a program: a mutant may want to fill the machine's
PATIENCE = 10  # seconds of a core's time for any test to begin with
# Tests run in rounds by how long they take on the sound program: most mutants fall in the first.
ROUNDS = (0.1, 1)
# What tests the checks themselves, and what of the sim checks nothing: how it switches between
# threads, and what it tells a trace.
TESTS_OF_REFERENCE = ("reference_test", "quantised_test")
TESTS_OF_SIM = ("sim_test", "races_test", "hopper_faults_test", "hopper_copies_test", "tile_test",
                "hopper_test", "fp8_test")
NO_CHECKS = r"/(?:fiber|recorder|mapped)\."


class Suites:
    """Which tests there are for which file: for a rung's the suite of its steps, for a header of
    common/tile its own tests and then the suites of the rungs that use it."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.rungs = self.found("[0-9][0-9]_*/**/*.cu")
        self.tile_tests = self.found("common/tests/*/*_test.cu")
        self.headers = self.found("common/tile/*.h")
        self.checks = [file for file in self.found(
            "common/machine/sim/*.h", "common/machine/sim/*.cpp", "common/harness/reference*.cpp")
            if not re.search(NO_CHECKS, file)]

    def found(self, *patterns):
        return [str(path.relative_to(self.root)) for pattern in patterns
                for path in sorted(self.root.glob(pattern))]

    def read(self, file):
        return (self.root / file).read_text(encoding="utf-8")

    def uses(self, source, header):
        """Whether a source includes a header of common/tile, directly or not."""
        names = re.findall(r'^#include "(tile/.+)"', self.read(source), re.M)
        return any(header == f"common/{name}" or self.uses(f"common/{name}", header)
                   for name in names)

    def files(self):
        """All that mutants are planted in: kernels, common/tile, and what checks them."""
        return self.rungs + self.headers + self.checks

    def of(self, file):
        """[(program, filter, longest)] for a mutant of the file, in the order to try them. A header
        has tests of its own, so of its many users' those alone that take less than a second."""
        if file in self.checks:
            own = TESTS_OF_REFERENCE if "reference" in file else TESTS_OF_SIM
            return [(program, "*", math.inf) for program in own]
        if file in self.rungs:
            return [(*self.of_steps(file), math.inf)]
        own = [(os.path.basename(test)[:-3], "Sim*", math.inf) for test in self.tile_tests
               if self.uses(test, file)]
        return own + [(*self.of_steps(rung), 1) for rung in reversed(self.rungs)
                      if self.uses(rung, file)]

    def of_steps(self, file):
        steps = re.findall(r'\.name = "(\w+)"', self.read(file))
        return f"{file.split('/')[0]}_test", ":".join(f"*/{step}:*/{step}_*" for step in steps)


class Judge:
    """Judges `jobs` mutants at a time, each on one core, in the programs of a folder."""

    def __init__(self, bin_folder, progress, jobs=1):
        self.bin = bin_folder
        self.progress = progress
        self.jobs = jobs
        self.what = "the tests without a mutant"
        self.times = {}  # (program, filter) → {test: seconds without a mutant}

    def each(self, work, todo):
        """Calls work for all of them, so many at a time, and yields each as it is done."""
        free = itertools.cycle(cores())

        def stay_on_one():
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {next(free)})

        with concurrent.futures.ThreadPoolExecutor(self.jobs, initializer=stay_on_one) as pool:
            waiting = {pool.submit(work, one): one for one in todo}
            try:
                for future in concurrent.futures.as_completed(waiting):
                    self.progress.at(self.what)
                    yield waiting[future], future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def learn(self, suites):
        """Runs the tests of the suites without a mutant. They must pass."""
        self.times = dict(self.each(self.time_tests, sorted({suite[:2] for suite in suites})))

    def time_tests(self, suite):
        program, pattern = suite
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            status, said = self.run(program, pattern, -1, 3600, f"--gtest_output=json:{file.name}")
            if status:
                raise Stop(f"{program} fails without a mutant:\n{said[-2000:]}", WRONG_RESULT)
            suites = json.load(file)["testsuites"]
        return {f"{suite['name']}.{test['name']}": float(test["time"][:-1])
                for suite in suites for test in suite["testsuite"]
                if test.get("result") == "COMPLETED"}

    def turns(self, suites):
        """[(program, {test: seconds})]: what to run, in this order."""
        turns = collections.defaultdict(dict)
        for place, (program, pattern, longest) in enumerate(suites):
            for test, seconds in self.times[program, pattern].items():
                if seconds < longest:
                    turns[bisect.bisect(ROUNDS, seconds), place, program][test] = seconds
        return [(turn[-1], tests) for turn, tests in sorted(turns.items())]

    def verdict(self, number, suites):
        """How the tests take a mutant: "found" and by what, "survived", "not reached" where nothing
        ran what it changes, or "does not compile" where that shows only now."""
        reached = False
        for program, tests in self.turns(suites):
            limit = PATIENCE + 5 * sum(tests.values())
            status, said = self.run(program, ":".join(tests), number, limit, "--gtest_fail_fast")
            reached |= "mutant reached" in said
            if "mutant does not fit" in said:
                return "does not compile", "the types differ"
            if status == -signal.SIGXCPU:
                return "found", f"{program}: no end within {limit:.0f} s of a core's time"
            if status:
                failed = re.search(r"\[  FAILED  \] (\S+?),? ", said)
                return "found", f"{program}: {failed[1] if failed else f'status {status}'}"
        return ("survived", "") if reached else ("not reached", "")

    def run(self, program, tests, number, limit, option):
        """Its status, and all it said. The limit is of a core's time, so that a machine under load
        makes no mutant hang; one that waits for nothing is ended as if it had used that up."""
        def set_limits():
            seconds = math.ceil(limit)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        try:
            done = subprocess.run([os.path.join(self.bin, program), f"--gtest_filter={tests}",
                                   "--gtest_brief=1", option], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  encoding="utf-8", errors="replace", check=False,
                                  env={**os.environ, "LADDER_MUTANT": str(number)},
                                  timeout=3600 + 100 * limit, preexec_fn=set_limits)
        except subprocess.TimeoutExpired:
            return -signal.SIGXCPU, ""
        return done.returncode, done.stdout
