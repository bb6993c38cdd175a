"""Runs the tests on a mutant, the quickest first, until one fails."""

import concurrent.futures
import glob
import hashlib
import itertools
import json
import math
import os
import queue
import re
import resource
import signal
import subprocess
import tempfile
import threading
import time

from ladder.console import WRONG_RESULT, Stop

MEMORY = 8 << 30  # of a program: a mutant may want to fill the machine's
PATIENCE = 10  # seconds of a core's time for any test to begin with
# Tests run in rounds by how long they take on the sound program: most mutants fall in the first.
TURNS = (0.1, 1, float("inf"))
# What tests the checks themselves, and what of the sim checks nothing: how it switches between
# threads, and what it tells a trace.
TESTS_OF_REFERENCE = ("reference_test", "quantised_test")
TESTS_OF_SIM = ("sim_test", "races_test", "hopper_faults_test", "tile_test", "hopper_test",
                "fp8_test")
NO_CHECKS = r"/(?:fiber|recorder|mapped)\."
# A step's own tests.
OF_STEP = ("Sim.*/{0}_*:Schedules.*/{0}:Verification.*/{0}:SmallerSharedMemory.*/{0}:"
           "EachSetting.*/{0}")


def includes(root, file):
    """The headers of common/tile that a source includes, directly or not."""
    found, todo = set(), [file]
    while todo:
        with open(os.path.join(root, todo.pop()), encoding="utf-8") as source:
            for header in re.findall(r'^#include "(tile/[^"]+)"', source.read(), re.M):
                path = f"common/{header}"
                if path not in found:
                    found.add(path)
                    todo.append(path)
    return found


class Suites:
    """Which tests there are for which file: for a rung's the suite of its steps, for a header of
    common/tile its own tests and then the suites of the rungs that use it."""

    def __init__(self, root):
        self.root = root
        self.rungs = self.found("[0-9][0-9]_*/**/*.cu")
        self.tile_tests = self.found("common/tests/*/*_test.cu")
        self.uses = {file: includes(root, file) for file in self.rungs + self.tile_tests}
        self.headers = self.found("common/tile/*.h")
        self.checks = self.found("common/machine/sim/*.h") + \
            self.found("common/machine/sim/*.cpp") + self.found("common/harness/reference.cpp")
        self.checks = [file for file in self.checks if not re.search(NO_CHECKS, file)]

    def found(self, pattern):
        return sorted(os.path.relpath(path, self.root)
                      for path in glob.glob(os.path.join(self.root, pattern),
                                        recursive=True))

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
        with open(os.path.join(self.root, file), encoding="utf-8") as source:
            steps = re.findall(r'\.name = "(\w+)"', source.read())
        return [(f"{file.split('/')[0]}_test", ":".join(map(OF_STEP.format, steps)))]

    def programs(self, files):
        return sorted({program for file in files for program, *_ in self.of(file)})


class Judge:
    """`bin`: the folder of the programs with the mutants; `folder`: for what is learnt of them.
    Judges `jobs` mutants at a time, each on a core of its own, or one on all of them."""

    def __init__(self, bin_folder, folder, progress, jobs=1):
        self.bin = bin_folder
        self.progress = progress
        self.folder = folder
        self.jobs = jobs
        self.idle = queue.SimpleQueue()
        for i, core in zip(range(jobs), itertools.cycle(cores())):
            self.idle.put({core} if jobs > 1 else set(cores()))
        self.width = 1 if jobs > 1 else len(cores())  # cores of a program
        self.stopped = threading.Event()
        self.what = "the tests without a mutant"
        self.times = {}  # program → {test: seconds without a mutant}

    def each(self, work, todo):
        """Calls work for all of them, so many at a time, and yields each as it is done."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            running = {pool.submit(work, one): one for one in todo}
            try:
                for done in concurrent.futures.as_completed(running):
                    yield running[done], done.result()
            except BaseException:
                self.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise

    def learn(self, suites):
        """Runs the tests of the suites without a mutant. They must pass."""
        filters = {}
        for program, pattern, _ in suites:
            filters.setdefault(program, set()).add(pattern)
        shards = [(program, ":".join(sorted(patterns)), shard)
                  for program, patterns in sorted(filters.items()) for shard in range(self.jobs)]
        for (program, *_), times in self.each(lambda shard: self.learn_shard(*shard), shards):
            self.times.setdefault(program, {}).update(times)

    def learn_shard(self, program, pattern, shard):
        name = hashlib.sha256(f"{pattern} {shard} {self.jobs}".encode()).hexdigest()[:8]
        path = os.path.join(self.folder, f"{program}.{name}.json")
        binary = os.path.join(self.bin, program)
        if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(binary):
            status, said, _ = self.run(program, pattern, None, 3600,
                                       [f"--gtest_output=json:{path}.part"],
                                       GTEST_TOTAL_SHARDS=str(self.jobs),
                                       GTEST_SHARD_INDEX=str(shard))
            if status:
                raise Stop(f"{program} fails without a mutant:\n{said[-2000:]}", WRONG_RESULT)
            os.replace(f"{path}.part", path)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)["testsuites"]
        return {f"{suite['name']}.{test['name']}": float(test["time"][:-1])
                for suite in found for test in suite["testsuite"]
                if test.get("result") == "COMPLETED"}

    def turns(self, suites):
        """[(program, [tests], seconds)]: what to run, in this order."""
        turns, had = [], set()
        for least, most in zip((0,) + TURNS, TURNS):
            for program, pattern, longest in suites:
                chosen = [test for test, seconds in self.times[program].items()
                          if matches(test, pattern) and least <= seconds < min(most, longest)
                          and (program, test) not in had]
                had.update((program, test) for test in chosen)
                if chosen:
                    turns.append((program, chosen,
                                  sum(self.times[program][test] for test in chosen)))
        return turns

    def verdict(self, number, suites):
        """How the tests take a mutant: "found" and by what, "survived", "not reached" where nothing
        ran what it changes, or "does not compile" where that shows only now."""
        reached = False
        for program, tests, seconds in self.turns(suites):
            limit = PATIENCE + 5 * self.width * seconds
            status, said, hung = self.run(program, ":".join(tests), number, limit,
                                          ["--gtest_fail_fast"])
            reached |= "mutant reached" in said
            if "mutant does not fit" in said:
                return "does not compile", "the types differ"
            if hung:
                return "found", f"{program}: no end within {limit:.0f} s of a core's time"
            if status:
                return "found", f"{program}: {reason(said, status)}"
        return ("survived", "") if reached else ("not reached", "")

    def run(self, program, tests, number, limit, more, **environment):
        """(status, all it said, whether it had to be ended). The limit is of a core's time, so that
        a machine under load makes no mutant hang; one that waits for nothing is ended as well."""
        environment = {**os.environ, **environment}
        environment.pop("LADDER_MUTANT", None)
        if number is not None:
            environment["LADDER_MUTANT"] = str(number)
        if self.stopped.is_set():
            raise KeyboardInterrupt
        mine = self.idle.get()
        try:
            return self.run_on(mine, program, tests, limit, more, environment)
        finally:
            self.idle.put(mine)

    def run_on(self, mine, program, tests, limit, more, environment):
        with tempfile.TemporaryFile() as out:
            flags = out.fileno()
            with subprocess.Popen([os.path.join(self.bin, program), f"--gtest_filter={tests}",
                                   "--gtest_brief=1", *more], stdin=subprocess.DEVNULL,
                                  stdout=flags, stderr=flags, env=environment,
                                  preexec_fn=lambda: set_limits(limit, mine)) as process:
                try:
                    end, waited = time.monotonic() + 3600 + 100 * limit, False
                    while process.poll() is None:
                        self.progress.at(self.what)
                        waited = time.monotonic() > end
                        if waited or self.stopped.is_set():
                            process.kill()
                        try:
                            process.wait(timeout=0.05)
                        except subprocess.TimeoutExpired:
                            continue
                except BaseException:
                    process.kill()
                    raise
            out.seek(0)
            hung = waited or process.returncode == -signal.SIGXCPU
            return process.returncode, out.read().decode(errors="replace"), hung


def cores():
    """The numbers of those that this process may use."""
    has = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if has else list(range(os.cpu_count()))


def set_limits(seconds, mine):
    seconds = math.ceil(seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, mine)


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
