"""The next step as the exercise. A reader's copy of the step before is compiled in the real step's
place, under its name, and runs the suite's cases on the sim; what it counts is compared with what
the real one counts. Which steps are offered, and what the step before lacks, the rungs'
exercises.py say."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import queue
import re
import signal
import subprocess
from typing import Iterable, Iterator, NamedTuple

from ladder.base.changed import compiled, linked
from ladder.base.console import GOOD, NO_DEVICE, WRONG_RESULT, Stop
from ladder.base.diffs import compare, hunks
from ladder.base.files import ROOT, read, write_whole
from ladder.base.programs import json_lines, run_quietly
from ladder.base.records import Record
from ladder.base.sources import DEFINITION, Source, find, names_of, read_sources
from ladder.exercises.kinds import Climb, Judged, Run, wrong_outputs
from ladder.exercises.lessons import of_rungs

GUARD = os.path.join(ROOT, "scripts/ladder/exercises/guard.h")
SECONDS = 5  # of a core, for a share of the cases; the slowest step's take a third
# What is compared: whole tiles, ragged and grouped, causal. A climb may add to each.
SHAPES = {"whole tiles": "--heads 1 --seqlen 256",
          "ragged": "--batch 2 --heads 2 --kv-heads 1 --seqlen 100 --seqlen-kv 150 --head-dim 40",
          "causal": "--heads 1 --seqlen 300 --head-dim 128 --dtype bf16 --causal"}
TIMED = "--batch 2 --heads 16 --seqlen 2048 --head-dim 128 --dtype bf16 --causal"
RESULTS, SCHEDULES, FORMULA = BY_CASES = "results", "schedules", "formula"
# Of all else less is better, or as good.
EXACT = ("products", "blocks", "atomics")
MORE = ("flops_under_copies", "exps_under_products", "exps_between_turns", "stores_under_products")


class Check(NamedTuple):
    name: str
    held: bool
    share: float  # how near it is
    text: str
    counts: str = ""  # what it is, and is to be


def before(sources: list[Source], step: Source) -> Source:
    """The file of the step that it follows; of a rung's first the last of the rung before that
    every GPU runs."""
    after = re.search(r'^ +\.after = "(\w+)"', step.text, re.MULTILINE)
    if after:
        return next(other for other in sources
                    if (other.rung, other.step) == (step.rung, after[1]))
    return find(sources, f"{int(step.rung[:2]) - 1:02}")


class Task:
    """A climb with the files that it is about."""

    def __init__(self, climb: Climb, real: Source, sources: list[Source]) -> None:
        self.climb, self.real, self.old = climb, real, before(sources, real)
        self.matcher = compare(self.old, self.real)

    def title(self) -> str:
        summary = re.search(r'\.summary = "(.*)"', self.real.text)
        return summary[1] if summary else self.real.step

    def idea(self) -> str:
        """Of the head comment what has changed since the step before."""
        head = self.real.text.partition("\n\n#include")[0].partition("// Since ")[2]
        return "Since " + re.sub("^// ?", "", head, flags=re.MULTILINE)

    def definitions(self) -> list[dict[str, str]]:
        """Name → text, of the step before and of the real one."""
        return [{name: text for text in DEFINITION.findall(source.text)
                 if "const Register" not in text for name in names_of(text)}
                for source in (self.old, self.real)]

    def hints(self) -> list[str]:
        """Where the lesson has the idea; what changes; the diff, hunk by hunk."""
        old, new = self.definitions()
        changes = [f"{how} {', '.join(names)}" for how, names in (
            ("new:", [name for name in new if name not in old]),
            ("changed:", [name for name in new if name in old and new[name] != old[name]]),
            ("gone:", [name for name in old if name not in new])) if names]
        return [f"The idea is in {self.lesson()}.", f"Of {self.old.path}, {'; '.join(changes)}.",
                *("\n".join(["", *hunk]) for hunk in hunks(self.old, self.real, self.matcher, 3))]

    def lesson(self) -> str:
        """Where a lesson names it first: a heading, or else its file."""
        folder = os.path.dirname(os.path.join(ROOT, self.real.path))
        pages = [os.path.join(folder, page) for page in sorted(os.listdir(folder))
                 if page.endswith(".md") and page != "notes.md"]
        for mark in (f"### Step `{self.real.step}`", f"({os.path.basename(self.real.path)})"):
            for page in pages:
                for number, line in enumerate(read(page).splitlines(), 1):
                    if mark in line:
                        return f"{os.path.relpath(page, ROOT)}:{number}"
        return self.real.path

    def solution(self) -> list[str]:
        return [f"--- {self.old.path}", f"+++ {self.real.path}",
                *(line for hunk in hunks(self.old, self.real, self.matcher, 3) for line in hunk)]

    def blanks(self) -> str:
        """The real step's file with what is new in its kernels as in the step before."""
        first, last = (re.search(at, self.real.text, re.MULTILINE)
                       for at in ("__global__", r"^Plan \w+\("))
        code = range(*(self.real.text[:at.start()].count("\n") for at in (first, last) if at))
        lines = []
        for tag, i1, i2, j1, j2 in self.matcher.get_opcodes():
            new = self.real.lines[j1:j2]
            if tag != "equal" and j1 in code:
                new = [f"// yours: {j2 - j1} lines are new here", *self.old.lines[i1:i2]]
            lines += new
        # What the old lines use and is no more.
        old, real = self.definitions()
        gone = "".join(text for name, text in old.items() if name not in real and "(" not in text)
        return "\n".join([*lines, ""]).replace("namespace {\n\n", f"namespace {{\n\n{gone}", 1)


def read_tasks() -> dict[str, Task]:
    """By a step's name as scripts/exercise takes it: "05/skip"."""
    sources = read_sources()
    steps = {(source.rung, source.step): source for source in sources}
    return {f"{rung[:2]}/{climb.name}": Task(climb, steps[rung, climb.name], sources)
            for rung, climb in of_rungs("CLIMBS")}


# ---- a copy, built and run ----

ENDS: dict[int, str] = {
    signal.SIGXCPU: "it had not ended after {} seconds of a core",
    signal.SIGTERM: "it had not ended after {} seconds of a core, or many of waiting",
    signal.SIGSEGV: "it touches memory that is not its own, or its stack is full",
    signal.SIGXFSZ: "it prints more than 30 MB", signal.SIGABRT: "it aborts",
    signal.SIGKILL: "it was killed"}
NOT_RUN = "it did not run any more"


class Case(NamedTuple):
    name: str
    said: str  # what is wrong with its results, "" for nothing
    formula: bool = True  # whether its formula is what was counted


class Copy:
    """A reader's copy, built as the real step of its rung."""

    def __init__(self, build: str, task: Task, path: str) -> None:
        self.build, self.path, self.task = build, path, task
        made, self.folder = placed(task, path)
        rung = task.real.rung
        both = compiled(build, f"{rung}_test", task.real.path, made, self.folder,
                        "-Wno-error", "-Werror=frame-larger-than=60000", "-include", GUARD)
        self.suite, self.program = (linked(build, name, *both, self.folder)
                                    for name in (f"{rung}_test", rung))
        self.ended = False  # by a limit of time
        self.cores: queue.SimpleQueue[int] = queue.SimpleQueue()
        for core in cores_of_mine():
            self.cores.put(core)

    def run(self, program: str, *options: str, **environment: str) -> tuple[int, str]:
        """Status, negative for a signal, and what was printed: on a core that no other of these
        has, and within the bounds that guard.h sets."""
        core = self.cores.get()
        if self.ended:  # as it would again, after as long
            self.cores.put(core)
            return GOOD, NOT_RUN
        path = os.path.join(self.folder, f"said.{core}")
        with open(path, "wb") as out, subprocess.Popen(
                [program, *options], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                cwd=self.folder, env={**os.environ, "LADDER_CORE": str(core),
                                      "LADDER_SECONDS": str(SECONDS), **environment}) as process:
            for seconds, end in ((6 * SECONDS, process.terminate), (2, process.kill)):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
                    break
                end()
            process.wait()
        said = read(path)
        self.ended |= -process.returncode in (signal.SIGXCPU, signal.SIGTERM, signal.SIGKILL)
        self.cores.put(core)
        return process.returncode, said

    def wrong(self, status: int, said: str, fault: str = "") -> str:
        """What ended a run, or a case, and the line of the copy where it did; "" for nothing."""
        died = fault or status and ENDS.get(
            -status, f"it ended with status {status}").format(SECONDS) or ""
        program = self.suite if f"{self.suite}(" in said else self.program
        calls = re.findall(rf"^{re.escape(program)}\(\w*(?:\+(0x\w+))?\) ?\[(0x\w+)\]$",
                           said.rpartition("[where]\n")[2], re.MULTILINE)
        if not died or f"({os.path.basename(self.path)}:" in died or not calls:
            return died
        lines = ""
        with contextlib.suppress(FileNotFoundError):  # where there is no such tool
            lines = run_quietly(["addr2line", "-i", "-e", program,
                                 *(near or at for near, at in calls)], "addr2line")[1]
        at = re.search(rf"(?:^|/){re.escape(os.path.relpath(self.path))}:(\d+)", lines, re.M)
        return f"{died} ({os.path.basename(self.path)}:{at[1]})" if at else died

    def suite_cases(self, tests: str, share: int = 0, shares: int = 1) -> list[Case]:
        """Those of the suite's tests that are a share's, those that did not run any more too."""
        status, said = self.run(self.suite, f"--gtest_filter={tests}",
                                GTEST_TOTAL_SHARDS=str(shares), GTEST_SHARD_INDEX=str(share))
        cases = []
        for name, text, end in CASE.findall(said):
            fault = re.search(r'C\+\+ exception with description "(.*?)" thrown', text, re.DOTALL)
            error = re.search(r"^(\w+: max error .*)|(rows whose sum .*)|Which is.*\n.*"
                              r"(element \d+)|(\.bits)$", text, re.MULTILINE)
            what = fault[1] if fault else ("" if not error else error[1] or error[2] or (
                "a query that sees no key has an output" if error[3] else
                "another schedule gives other bits"))
            cases.append(Case(name.removeprefix(f"{self.task.real.step}_"),
                              self.wrong(0, text, what) if end else self.wrong(status, text) or
                              "it ends the program",
                              not re.search(r"^ +formula$", text, re.MULTILINE)))
        ran = re.search(r"^\[=+\] Running (\d+) test", said, re.MULTILINE)
        left = int(ran[1]) - len(cases) if ran else 1
        return cases + [Case("another", NOT_RUN)] * left

    def record(self, options: str) -> tuple[Record | None, str]:
        """That of a run of the copy's program with such options, and what is wrong with it."""
        status, said = self.run(self.program, "--device", "sim", "--json", "--step",
                                self.task.real.step, *options.split())
        records = json_lines("\n".join(re.findall("^{.*}$", said, re.MULTILINE)), self.program)
        if status not in (GOOD, WRONG_RESULT) or not records:
            last = re.findall(r"^\w+: (.*)", said, re.MULTILINE)
            return None, NOT_RUN if said == NOT_RUN else self.wrong(
                status, said, last[-1] if last else f"status {status}")
        wrong = [] if "so this failure is expected" in said else [
            f"{name}: max error {error['max']}, tolerance {error['tolerance']}"
            for name, error in wrong_outputs(Run(status, records, said)).items()]
        return records[-1], ", ".join(wrong)


# A case that the suite ran: its name, what it said, and "" where it did not come to an end.
CASE = re.compile(r"^\[ RUN      \] [^\n]*/(\w+)\n(.*?)(?:^\[ +(OK|FAILED) +\]|\Z)",
                  re.MULTILINE | re.DOTALL)


def cores_of_mine() -> list[int]:
    """Of as many processes as there are to be at once."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else \
        list(range(os.cpu_count() or 1))


def placed(task: Task, path: str) -> tuple[str, str]:
    """The copy as it is compiled, and the folder for what is made of it."""
    folder = f"{path}.made"
    made = os.path.join(folder, f"{task.real.step}.cu")
    os.makedirs(folder, exist_ok=True)
    write_whole(made, f'#line 1 "{os.path.relpath(path)}"\n{registered(read(path), task.real)}')
    return made, folder


def registered(text: str, real: Source) -> str:
    """A copy's text whose step is called, and comes, as the real one. Lines stay lines."""
    name = re.compile(r'^( +)\.name = "\w+",', re.MULTILINE)
    after = re.search(r' \.after = "\w+",', real.text)
    text = re.sub(r' \.after = "\w+",', "", text)
    text = re.sub(r'\.rung = "\w+",', f'.rung = "{real.rung}",', text)
    if ".max_subtracted_by" not in real.text:
        text = re.sub(r'\.max_subtracted_by = "\w+",?', "", text)
    text, found = name.subn(rf'\1.name = "{real.step}",{after[0] if after else ""}', text, 1)
    if not found:
        raise Stop("Not yet: the end of the file, which registers the step, is gone: "
                   "`const Register step{{ … }};`", WRONG_RESULT)
    return text


# ---- what is compared ----


def counts_of(record: Record) -> dict[str, int]:
    """A count's name → the count: a record's own, and of each array bytes, and sectors."""
    counts = {key: value for key, value in record.items() if isinstance(value, int)}
    for kernel in record["kernels"]:
        for array, count in kernel["arrays"].items():
            for name, keys in ((array, ("read", "write")),
                               (f"{array} sectors", ("read_sectors", "write_sectors"))):
                counts[name] = counts.get(name, 0) + sum(count[key] for key in keys)
    return counts


def times_read(record: Record, array: str) -> str:
    """", read 4 times (N/64)" where an array is read whole, and so often, by whole tiles."""
    all_of = [kernel["arrays"][array] for kernel in record["kernels"] if array in kernel["arrays"]]
    size = max((one["distinct_read"] for one in all_of), default=0)
    times, rest = divmod(sum(one["read"] for one in all_of), size or 1)
    if not size or rest:
        return ""
    each, more = divmod(record["seqlen"], times or 1)
    return f", read {times} times" + f" (N/{each})" * (times > 1 and not more)


def compared(task: Task, got: Record, wanted: Record, shape: str) -> Iterator[Check]:
    """A check for each count that is compared, in one shape."""
    ours, real = counts_of(got), counts_of(wanted)
    arrays = {array for record in (got, wanted) for kernel in record["kernels"]
              for array in kernel["arrays"]}
    for name in dict.fromkeys([*sorted(arrays), *(f"{array} sectors" for array in sorted(arrays)),
                               "workspace_bytes", *task.climb.fails]):
        if name in BY_CASES:
            continue
        a, b = ours.get(name, 0), real.get(name, 0)
        held = a == b if name in EXACT else a >= b if name in MORE else a <= b
        said = [f"{count:,}{times_read(record, name) * (shape == 'whole tiles')}"
                for count, record in ((a, got), (b, wanted))]
        yield Check(name, held, 1 if held else min(a, b) / max(a, b),
                    f"{name}{' bytes' * (name in arrays)}: {said[0]}; wanted {said[1]} ({shape})",
                    f"{a:,} → {b:,}")


def shown(checks: Iterable[Check]) -> list[str]:
    """The lines of those that do not hold, the nearest first, and what their shapes are. Sectors
    are left out where they are as far off as the bytes."""
    lacking = sorted((one for one in checks if not one.held), key=lambda one: -one.share)
    shares = {one.name: one.share for one in lacking}
    lines = [one.text for one in lacking
             if abs(shares.get(one.name.partition(" ")[0], 2) - one.share) > 0.01
             or not one.name.endswith(" sectors")]
    return lines + [f"  {shape}: {options}" for shape, options in SHAPES.items()
                    if any(f"({shape})" in line for line in lines)]


@functools.lru_cache(maxsize=None)
def counted_by(build: str, step: Source, options: str) -> Record | None:
    """The last record of a step of the ladder's own; None where it does not run so."""
    program = os.path.join(build, "bin", step.rung)
    if not os.path.exists(program):
        raise Stop(f"{step.rung} is not built yet: scripts/run builds it", NO_DEVICE)
    status, out, _ = run_quietly([program, "--device", "sim", "--json", "--check", "off", "--step",
                                  step.step, *options.split()], step.name)
    return json_lines(out, step.name)[-1] if status == GOOD else None


def lacking(task: Task, build: str) -> dict[str, list[Check]]:
    """The counts that the step before does not hold: name → a check for each of SHAPES."""
    found: dict[str, list[Check]] = {}
    for shape, options in SHAPES.items():
        old, real = (counted_by(build, step, f"{options} {task.climb.on}")
                     for step in (task.old, task.real))
        for one in compared(task, old, real, shape) if old and real else ():
            found.setdefault(one.name, []).append(one)
    return {name: each for name, each in found.items() if not all(one.held for one in each)}


def targets(task: Task, build: str) -> str:
    """A table of what the step before counts and the real one."""
    if RESULTS in task.climb.fails:
        return "Its results are wrong, as in the case " + "; ".join(task.climb.cases)
    rows = [["It counts → is to count", *SHAPES]]
    rows += [[each[0].text.partition(":")[0], *(one.counts for one in each)]
             for name, each in lacking(task, build).items()
             if not name.endswith(" sectors") or name.partition(" ")[0] not in task.climb.fails]
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    return "\n".join([*("   ".join(f"{cell:{width}}" for cell, width in zip(row, widths)).rstrip()
                        for row in rows), *(f"({shape}: {options} {task.climb.on}".rstrip() + ")"
                                            for shape, options in SHAPES.items())])


def times(task: Task, build: str, path: str) -> str:
    """On a GPU: the step before, the copy and the real step, a line each."""
    lines = []
    for whose, step in ((task.old.name, task.old), ("yours", None), (task.real.name, task.real)):
        program = os.path.join(build, "bin", (step or task.real).rung)
        if not step:
            made, folder = placed(task, path)
            program = linked(build, task.real.rung, *compiled(
                build, task.real.rung, task.real.path, made, folder, gpu=True), folder)
        status, out, err = run_quietly(
            ["sh", "-c", 'ulimit -t 60; exec "$@"', "sh", program, "--device", "gpu", "--json",
             "--step", (step or task.real).step, *TIMED.split(), *task.climb.on.split()], whose)
        if status not in (GOOD, WRONG_RESULT) or not out.strip():
            raise Stop(f"{whose}: {err or f'it ended with status {status}'}", max(status, 1))
        ran = json_lines(out, whose)[-1]
        lines.append(f"{whose:<12}{ran['time_ms']:8.3f} ms{'' if ran['pass'] else '  wrong'}")
    return "\n".join([f"A run of {f'{TIMED} {task.climb.on}'.strip()}:", *lines])


def check(copy: Copy) -> Judged:
    """Checks a reader's copy: everything that holds first, then what is nearest to it."""
    task, real = copy.task, copy.task.real
    longer = [f"Sim.*/{other.step}_*" for other in read_sources()
              if other.rung == real.rung and other.step.startswith(f"{real.step}_")]
    cores = len(cores_of_mine())
    shares = max(4, cores)
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        suite = [pool.submit(copy.suite_cases, f"Sim.*/{real.step}_*-{':'.join(longer)}", share,
                             shares) for share in range(shares)]
        bits = pool.submit(copy.suite_cases, f"Schedules.*/{real.step}")
        options = {shape: f"{words} {task.climb.on}" for shape, words in SHAPES.items()}
        runs = {shape: pool.submit(copy.record, f"{words} --check full") for shape, words in
                [*options.items(), *((words, words) for words in task.climb.cases)]}
        wanted = {shape: pool.submit(counted_by, copy.build, real, words)
                  for shape, words in options.items()}
    ran = [case for share in suite for case in share.result()]
    cases = ran + [Case(shape, run.result()[1]) for shape, run in runs.items()]
    checks = [Check(name, all(good), sum(good) / len(good), text.format(sum(good), len(good)))
              for name, good, text in (
                  (RESULTS, [not case.said for case in cases], "results right in {} of {}"),
                  (SCHEDULES, [not case.said for case in bits.result()],
                   "the same bits in each order of threads: {} of {}"),
                  (FORMULA, [case.formula for case in ran],
                   "its traffic() says what is counted in {} of {}"))]
    counted: dict[str, list[Check]] = {}
    for shape, line in wanted.items():
        got, want = runs[shape].result()[0], line.result()
        for one in compared(task, got, want, shape) if got and want else ():
            counted.setdefault(one.name, []).append(one)
    checks += [min(each, key=lambda one: one.share) for each in counted.values()]
    checks += [Check(name, False, 0, f"{name}: not counted, since no run came to its end")
               for name in task.climb.fails if name not in {one.name for one in checks}]
    return judged_by(task, checks, cases + [case for case in bits.result() if case.said])


def judged_by(task: Task, checks: list[Check], cases: list[Case]) -> Judged:
    """The step before has no points, by what it lacks; what it had is to stay."""
    own = [one.held for one in checks if one.name in task.climb.fails]
    others = [one.share if one.name == RESULTS else one.held for one in checks
              if one.name not in task.climb.fails]
    share = sum(own) / len(own) * sum(others) / len(others)
    good = all(one.held for one in checks)
    held = [one for one in checks if one.held]
    lines = [f"✓ {one.text}" for one in held if one.name in BY_CASES]
    as_wanted = [one.name for one in held if one.name not in BY_CASES]
    lines += [f"✓ as few as wanted: {', '.join(as_wanted)}"] if as_wanted else []
    lines += [("" if line.startswith(" ") else "✗ ") + line for line in shown(checks)]
    wrong = [case for case in cases if case.said]
    lines += [f"  {case.name}: {case.said}" for case in wrong[:3]]
    if len(wrong) > 3:
        lines.append(f"  and {len(wrong) - 3} cases more")
    points = int(Climb.points * share)
    lines.append("Right: this is the step." if good else
                 f"Not yet: {points} of {Climb.points} points.")
    return Judged(good, "\n".join(lines), [(case.name, not case.said, case.said)
                                           for case in cases], share,
                  [(one.name, one.held, one.text) for one in checks])
