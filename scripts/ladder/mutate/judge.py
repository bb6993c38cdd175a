"""Runs the tests on a mutant, the quickest first, until one fails."""

import bisect
import concurrent.futures
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import resource
import signal
import subprocess

from ladder.console import WRONG_RESULT, Stop

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
# A step's own tests.
OF_STEP = ("Sim.*/{0}_*:Schedules.*/{0}:Verification.*/{0}:SmallerSharedMemory.*/{0}:"
           "EachSetting.*/{0}")


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
        self.uses = {file: self.included(file) for file in self.rungs + self.tile_tests}

    def found(self, *patterns):
        return [str(path.relative_to(self.root)) for pattern in patterns
                for path in sorted(self.root.glob(pattern))]

    def read(self, file):
        return (self.root / file).read_text(encoding="utf-8")

    def included(self, file):
        """The headers of common/tile that a source includes, directly or not."""
        found, todo = set(), {file}
        while todo:
            text = self.read(todo.pop())
            new = {f"common/{name}" for name in re.findall(r'^#include "(tile/.+)"', text, re.M)}
            todo |= new - found
            found |= new
        return found

    def files(self):
        """All that mutants are planted in: kernels, common/tile, and what checks them."""
        return self.rungs + self.headers + self.checks

    def of(self, file):
        """[(program, filter, longest)] for a mutant of the file, in the order to try them. A header
        has tests of its own, so of its many users' those alone that take less than a second."""
        if file in self.checks:
            own = TESTS_OF_REFERENCE if "reference" in file else TESTS_OF_SIM
            return [(program, "*", float("inf")) for program in own] + [("broken_test", "*", 5)]
        if file in self.rungs:
            return [(*suite, float("inf")) for suite in self.of_step(file)]
        own = [(os.path.basename(test)[:-3], "Sim*", float("inf")) for test in self.tile_tests
               if file in self.uses[test]]
        return own + [(*suite, 1) for rung in reversed(self.rungs) if file in self.uses[rung]
                      for suite in self.of_step(rung)]

    def of_step(self, file):
        steps = re.findall(r'\.name = "(\w+)"', self.read(file))
        return [(f"{file.split('/')[0]}_test", ":".join(map(OF_STEP.format, steps)))]


class Judge:
    """`bin`: the folder of the programs with the mutants; `folder`: for what is learnt of them.
    Judges `jobs` mutants at a time, each on one core."""

    def __init__(self, bin_folder, folder, progress, jobs=1):
        self.bin = bin_folder
        self.progress = progress
        self.folder = folder
        self.jobs = jobs
        self.running = set()
        self.what = "the tests without a mutant"
        self.times = {}  # program → {test: seconds without a mutant}

    def each(self, work, todo):
        """Calls work for all of them, so many at a time, and yields each as it is done."""
        with concurrent.futures.ThreadPoolExecutor(
                self.jobs, initializer=stay_on_one_of, initargs=[itertools.cycle(cores())]) as pool:
            waiting = {pool.submit(work, one): one for one in todo}
            try:
                while waiting:
                    self.progress.at(self.what)
                    done, _ = concurrent.futures.wait(waiting, 0.5,
                                                      concurrent.futures.FIRST_COMPLETED)
                    for future in done:
                        yield waiting.pop(future), future.result()
            except BaseException:
                for future in waiting:
                    future.cancel()
                for process in list(self.running):
                    process.kill()
                raise

    def learn(self, suites):
        """Runs the tests of the suites without a mutant. They must pass."""
        todo = {(program, pattern) for program, pattern, _ in suites}
        for (program, _), times in self.each(lambda suite: self.learn_suite(*suite), sorted(todo)):
            self.times.setdefault(program, {}).update(times)

    def learn_suite(self, program, pattern):
        name = hashlib.sha256(pattern.encode()).hexdigest()[:8]
        path = pathlib.Path(self.folder, f"{program}.{name}.json")
        binary = pathlib.Path(self.bin, program)
        if not path.exists() or path.stat().st_mtime < binary.stat().st_mtime:
            part = f"{path}.part"
            status, said, _ = self.run(program, pattern, -1, 3600, f"--gtest_output=json:{part}")
            if status:
                raise Stop(f"{program} fails without a mutant:\n{said[-2000:]}", WRONG_RESULT)
            os.replace(part, path)
        return {f"{suite['name']}.{test['name']}": float(test["time"][:-1])
                for suite in json.loads(path.read_text(encoding="utf-8"))["testsuites"]
                for test in suite["testsuite"]
                if test.get("result") == "COMPLETED"}

    def turns(self, suites):
        """[(program, {test: seconds})]: what to run, in this order; each test with the first suite
        that has it."""
        turns, had = {}, set()
        for place, (program, pattern, longest) in enumerate(suites):
            for test, seconds in self.times[program].items():
                if seconds < longest and (program, test) not in had and matches(test, pattern):
                    had.add((program, test))
                    turn = bisect.bisect(ROUNDS, seconds), place, program
                    turns.setdefault(turn, {})[test] = seconds
        return [(turn[-1], tests) for turn, tests in sorted(turns.items())]

    def verdict(self, number, suites):
        """How the tests take a mutant: "found" and by what, "survived", "not reached" where nothing
        ran what it changes, or "does not compile" where that shows only now."""
        reached = False
        for program, tests in self.turns(suites):
            limit = PATIENCE + 5 * sum(tests.values())
            status, said, hung = self.run(program, ":".join(tests), number, limit,
                                          "--gtest_fail_fast")
            reached |= "mutant reached" in said
            if "mutant does not fit" in said:
                return "does not compile", "the types differ"
            if hung:
                return "found", f"{program}: no end within {limit:.0f} s of a core's time"
            if status:
                return "found", f"{program}: {reason(said, status)}"
        return ("survived", "") if reached else ("not reached", "")

    def run(self, program, tests, number, limit, option):
        """(status, all it said, whether it had to be ended). The limit is of a core's time, so that
        a machine under load makes no mutant hang; one that waits for nothing is ended as well."""
        with subprocess.Popen([os.path.join(self.bin, program), f"--gtest_filter={tests}",
                               "--gtest_brief=1", option], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              encoding="utf-8", errors="replace",
                              env={**os.environ, "LADDER_MUTANT": str(number)},
                              preexec_fn=lambda: set_limits(math.ceil(limit))) as process:
            self.running.add(process)
            waited = False
            try:
                said, _ = process.communicate(timeout=3600 + 100 * limit)
            except subprocess.TimeoutExpired:
                process.kill()
                waited, (said, _) = True, process.communicate()
            finally:
                self.running.remove(process)
        return process.returncode, said, waited or process.returncode == -signal.SIGXCPU


def cores():
    """The numbers of those that this process may use."""
    has = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if has else list(range(os.cpu_count()))


def stay_on_one_of(free):
    """Takes a core for this thread and the programs that it starts."""
    core = next(free)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def set_limits(seconds):
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def matches(test, pattern):
    return any(re.fullmatch(part.replace(".", r"\.").replace("*", ".*"), test)
               for part in pattern.split(":"))


def reason(said, status):
    """In a few words, what failed."""
    failed = re.search(r"\[  FAILED  \] (\S+?),? ", said)
    if status < 0:
        return f"signal {-status}"
    fault = re.search(r'description: "(?:C\+\+ exception|.*?) ?(rung .*?)"', said) or \
        re.search(r"(?:rung \w+, kernel .*?): (.*)", said)
    return (failed[1] if failed else f"status {status}") + (f": {fault[1][:160]}" if fault else "")
