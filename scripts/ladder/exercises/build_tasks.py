"""The next step as the exercise. A reader's copy of the step before is compiled in the real step's
place, under its name, and runs the suite's cases on the simulator; what it counts is compared with
what the real one counts. Which steps are offered, and what the step before lacks, the rungs'
exercises.py say."""

from __future__ import annotations

import concurrent.futures
import functools
import math
import os
import re
from typing import Collection, NamedTuple, Sequence

from ladder.exercises.rebuild import compiled, linked
from ladder.base.console import BAD_USAGE, NO_DEVICE, WRONG_RESULT, CommandError
from ladder.base.files import ROOT, course_pages, read
from ladder.base.programs import run_json
from ladder.base.records import Record, uneven_counts
from ladder.base.sources import Diff, Source, defined, find, read_sources
from ladder.exercises.kinds import BuildTask, Verdict, wrong_outputs
from ladder.exercises.lessons import of_rungs
from ladder.exercises.program import Case, Program, ProgramRun

# What is compared: whole tiles, ragged and grouped, causal.
SHAPES = {"whole tiles": "--heads 1 --seqlen 256",
          "ragged": "--batch 2 --heads 2 --kv-heads 1 --seqlen 100 --seqlen-kv 150 --head-dim 40",
          "causal": "--heads 1 --seqlen 300 --head-dim 128 --dtype bf16 --causal"}
TIMED = "--batch 2 --heads 16 --seqlen 2048 --head-dim 128 --dtype bf16 --causal"
RESULTS, SCHEDULES, FORMULA, ACCESSORS = BY_CASES = "results", "schedules", "formula", "accessors"
OTHERS = "other arrays", "sectors of other arrays"


class Check(NamedTuple):
    name: str
    held: bool
    share: float  # how near it is
    text: str
    counts: str = ""  # what it is, and is to be
    better: bool = False  # than in the real step


class Task:
    """A build task with the files that it is about: of the real step and of the step before, for a
    rung's first the last of the rung before that every GPU runs."""

    def __init__(self, task: BuildTask, real: Source, sources: list[Source]) -> None:
        after = re.search(r'\.after = "(\w+)"', real.text)
        self.more = re.findall(r'\.change = \{"(\w+)", "(?:more|from 0)"', real.text)
        self.check, self.real, self.file = task, real, real.path
        self.old = find([source for source in sources if source.step], f"{real.rung}/{after[1]}"
                        if after else f"{int(real.rung[:2]) - 1:02}")
        self.diff = Diff(self.old, real)
        self.title = re.findall(r'\.summary = "(.*)"', real.text)[0]
        self.lesson, self.answer = self.old.path, f"--- {self.old.path}\n+++ {real.path}"
        # Of the head comment what has changed since the step before.
        head = real.text.partition("\n\n#include")[0].partition("// Since ")[2]
        self.task = "Since " + re.sub("^// ?", "", head, flags=re.MULTILINE)
        # Name → text, but of what is in a header of the folder, too.
        shared = {name for text in real.headers.values() for name in defined(text)}
        self.was, self.now = ({name: text for name, text in defined(source.text).items()
                               if "const Register" not in text and name not in shared}
                              for source in (self.old, real))

    def start(self) -> str:
        return self.old.text

    def diffs(self) -> list[str]:
        return ["\n".join([*hunk, ""]) for hunk in self.diff.hunks(context=3)]

    @property
    def hints(self) -> list[str]:
        """Where the lesson has the idea; what changes; the diff of code, hunk by hunk."""
        was, now = self.was, self.now
        changes = [f"{how} {', '.join(sorted(names))}" for how, names in (
            ("new:", now.keys() - was), ("gone:", was.keys() - now),
            ("changed:", {name for name in now.keys() & was if now[name] != was[name]})) if names]
        place = next((f"{os.path.relpath(page, ROOT)}:{number}" for page in course_pages()
                      for number, line in enumerate(read(page).splitlines(), 1)
                      if f"`scripts/exercise {self.real.rung[:2]}/{self.real.step}`" in line),
                     "the lesson, which has no line for it yet")
        return [f"The idea is in {place}.", f"Of {self.old.path}, {'; '.join(changes)}.",
                *(f"\n{hunk}" for hunk in map(code_of, self.diffs()) if hunk)]

    def blanks(self) -> str:
        """The real step's file with what is new in its kernels as in the step before."""
        if not self.check.blanks:
            raise CommandError("there are no blanks: what is new cannot be taken out line by line",
                               BAD_USAGE)
        first, last = (re.split(at, self.real.text)[0].count("\n")
                       for at in ("__(?:global|device)__", r"\nPlan \w+\("))
        lines = [line for tag, i1, i2, j1, j2 in self.diff.matcher.get_opcodes()
                 for line in (self.real.lines[j1:j2] if tag == "equal" or not first <= j1 < last
                              else [f"// yours; new lines here: {j2 - j1}",
                                    *self.old.lines[i1:i2]])]
        # What the old lines use and is no more.
        gone = "".join(text for name, text in self.was.items()
                       if name not in self.now and "(" not in text)
        return "\n".join([*lines, ""]).replace("namespace {\n\n", f"namespace {{\n\n{gone}", 1)

    def registered(self, text: str) -> str:
        """A copy's text whose step is called, and comes, as the real one. Lines stay lines."""
        place = r' \.(?:formerly = \{[^}]*\}|after = "\w+"|aside = true|is_default = [^,]*),'
        now = "".join(re.findall(place, self.real.text))
        text = re.sub(r'\.rung = "\w+",', f'.rung = "{self.real.rung}",', re.sub(place, "", text))
        if ".max_subtracted_by" not in self.real.text:
            text = re.sub(r'\.max_subtracted_by = "\w+",?', "", text)
        text, found = re.subn(r'^( +\.name = )"\w+",', rf'\1"{self.real.step}",{now}', text,
                              count=1, flags=re.MULTILINE)
        if not found:
            raise CommandError("Not yet: the end of the file, which registers the step, is gone: "
                               "`const Register step{{ … }};`", WRONG_RESULT)
        return text


def code_of(hunk: str) -> str:
    """A hunk without the head comment and the registration; "" where what is left changes nothing
    but comments, or one name."""
    at, *lines = hunk.splitlines()
    while lines and re.match(r".(//|$)", lines[0]):
        del lines[0]
    end = next((i for i, line in enumerate(lines) if "const Register step" in line), len(lines))
    lines = lines[:end]
    old, new = (" ".join(line[1:].partition("//")[0] for line in lines if line[:1] == mark).split()
                for mark in "-+")
    renamed = {pair for pair in zip(old, new) if pair[0] != pair[1]}
    if len(old) == len(new) and len(renamed) <= 1:
        return ""
    return "\n".join([at, *lines, ""])


def read_tasks() -> dict[str, Task]:
    """By a step's name as scripts/exercise takes it: "05/skip"."""
    sources = read_sources()
    steps = {(source.rung, source.step): source for source in sources}
    return {f"{rung[:2]}/{task.name}": Task(task, steps[rung, task.name], sources)
            for rung, task in of_rungs("BUILD_TASKS")}


def built(task: Task, build: str, path: str) -> Program:
    """A reader's copy, as the real step."""
    text = read(path)
    raw = re.search(r"^[^/\n]*\b__shared__\b", text, re.MULTILINE)
    if raw:
        line = text.count("\n", 0, raw.start()) + 1
        raise CommandError(f"Not yet: line {line} has __shared__, which the simulator does not "
                           'know: SharedMemory smem; smem.take<T>("K", n) takes n elements by name',
                           WRONG_RESULT)
    included = re.search(r'^#include .*\.cu[">]', text, re.MULTILINE)
    if included:
        raise CommandError(f"Not yet: {included[0]} brings another step's file into the copy: "
                           "write the kernel in it", WRONG_RESULT)
    return Program(build, task.file, path, task.registered(text))


# ---- what is compared ----


def counts_of(record: Record) -> dict[str, int]:
    """A count's name → the count: a record's own, and of each array bytes, and sectors."""
    counts = {key: value for key, value in record.items() if isinstance(value, int)}
    for kernel in record["kernels"]:
        for array, count in kernel["arrays"].items():
            for name, way in ((array, ""), (f"{array} sectors", "_sectors")):
                counts[name] = counts.get(name, 0) + count[f"read{way}"] + count[f"write{way}"]
    return counts


def compared(task: Task, shapes: dict[str, tuple[Record, ...]]) -> dict[str, list[Check]]:
    """Name → a check for each shape, of which there are the records of the copy, of the real step
    and of the step before. A count that the idea is about has to come at least half way from the
    step before to the real step, so that other tiles will do. The workspace, and all other arrays
    together, may rise by half: another sound kernel may spend there."""
    found: dict[str, list[Check]] = {}
    for shape, records in shapes.items():
        counts = [counts_of(record) for record in records]
        arrays = sorted({array for record in records for kernel in record["kernels"]
                         for array in kernel["arrays"]})
        all_bytes = sum(counts[1].get(array, 0) for array in arrays)
        for others, names in zip(OTHERS, (arrays, [f"{array} sectors" for array in arrays])):
            for of_step in counts:
                of_step[others] = sum(of_step.get(name, 0) for name in names
                                      if name not in task.check.fails)
        for name in dict.fromkeys([*task.check.fails, "workspace_bytes", *OTHERS]):
            if name in BY_CASES:
                continue
            mine, real, old = (of_step.get(name, 0) for of_step in counts)
            room = all_bytes // 2 if name == OTHERS[0] else max(real, old) // 2
            if name in task.check.fails and real != old:
                room = abs(old - real) // 2
            rises = real > old if name in task.check.fails else name in task.more
            held = mine >= real - room if rises else mine <= real + room
            share = 1 if held else min(mine, real) / max(mine, real)
            found.setdefault(name, []).append(Check(
                name, held, share, f"{name}{' bytes' if name in arrays else ''}: {mine:,}; "
                f"the step before {old:,}, the step of the course {real:,} ({SHAPES[shape]})",
                f"{old:,} → {real:,}", mine > real if rises else mine < real))
    return found


def uncounted_work(mine: Record, real: Record) -> str:
    """Which input or output a copy's kernels do not reach through its accessor, of those that the
    real step's do, or that they leave the work to the host: "" for neither."""
    for way, done in (("read", "read"), ("write", "written")):
        for array in ("Q", "K", "V", "dO", "O", "LSE", "dQ", "dK", "dV"):
            had, wanted = ([kernel["arrays"][array][f"distinct_{way}"] for kernel in
                            record["kernels"] if array in kernel["arrays"]]
                           for record in (mine, real))
            if sum(had) < max(wanted, default=0):
                return (f"of {array} {sum(had):,} of {max(wanted):,} bytes are {done} through "
                        "Hbm's accessors: a pointer past them is counted by nobody")
    flops, exps = ((mine[count], real[count] // 2) for count in ("matmul_flops", "exp_count"))
    if flops[0] < flops[1] and exps[0] < exps[1]:
        return (f"its kernels do {flops[0]:,} FLOPs of products and {exps[0]:,} exponentials, "
                f"and need {flops[1]:,} and {exps[1]:,} at least: work on the host is counted by "
                "nobody")
    return ""


@functools.lru_cache(maxsize=None)
def counted_by(build: str, step: Source, options: str) -> Record:
    """The last record of a step of the ladder's own."""
    run = Program(build, step.path).run(f"{options} --check off")
    if not run.records:
        raise CommandError(f"{step.name}: {run.last_words()}", NO_DEVICE)
    return run.records[-1]


def lacking(task: Task, build: str) -> dict[str, list[Check]]:
    """The counts that the step before does not hold."""
    found = compared(task, {shape: tuple(counted_by(build, step, options)
                                         for step in (task.old, task.real, task.old))
                            for shape, options in SHAPES.items()})
    return {name: each for name, each in found.items() if not all(one.held for one in each)}


def shown(names: Collection[str]) -> list[str]:
    """Without the sectors of arrays whose bytes are there too."""
    return [name for name in names
            if not name.endswith(" sectors") or name.partition(" ")[0] not in names]


def targets(task: Task, build: str) -> str:
    """A table of what the step before counts and the real one."""
    if RESULTS in task.check.fails:
        return "Its results are wrong, as with " + "; ".join(task.check.cases)
    rows = [["It counts → is to count", *SHAPES]]
    found = lacking(task, build)
    rows += [[found[name][0].text.partition(":")[0], *(one.counts for one in found[name])]
             for name in shown(found)]
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    return "\n".join(["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
                     + [f"({shape}: {options})" for shape, options in SHAPES.items()])


def times(task: Task, build: str, path: str) -> str:
    """On a GPU: the step before, the copy and the real step, a line each."""
    real, lines = task.real, [f"A run of {TIMED}:"]
    mine = built(task, build, path)
    made = linked(build, real.rung, *compiled(build, real.rung, real.path, mine.made, mine.folder,
                                              gpu=True), mine.folder)
    for whose, program, step in ((task.old.name, f"{build}/bin/{task.old.rung}", task.old.step),
                                 ("yours", made, real.step),
                                 (real.name, f"{build}/bin/{real.rung}", real.step)):
        status, records, err = run_json(["sh", "-c", 'ulimit -t 60; exec "$@"', "sh", program,
                                         "--device", "gpu", "--step", step, *TIMED.split()])
        if not records:
            raise CommandError(f"{whose}: {err or f'it ended with status {status}'}",
                               max(status, 1))
        ran = records[-1]
        lines.append(f"{whose:<12}{ran['time_ms']:8.3f} ms"
                     + {True: "", None: "  not decided"}.get(ran["pass"], "  wrong"))
    return "\n".join(lines)


def check(task: Task, copy: Program) -> Verdict:
    """Checks a reader's copy: everything that holds first, then what is nearest to it."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = {name: pool.submit(copy.run, f"{options} --check full") for name, options in
                [*SHAPES.items(), *((case, case) for case in task.check.cases)]}
        wanted = {shape: [pool.submit(counted_by, copy.build, step, options)
                          for step in (task.real, task.old)]
                  for shape, options in SHAPES.items()}
    suite, bits = copy.cases(), copy.bits()
    cases = suite + [Case(name, said_of(run.result()), options=SHAPES.get(name, ""))
                     for name, run in runs.items()]
    counted = compared(task, {
        shape: (runs[shape].result().records[-1], *(record.result() for record in records))
        for shape, records in wanted.items() if runs[shape].result().records})
    uneven = next((f"; {SHAPES[shape]}: {kernel['name']}: {uneven_counts(kernel)}"
                   for shape in SHAPES for record in runs[shape].result().records
                   for kernel in record["kernels"] if uneven_counts(kernel)), "")
    checks = [Check(name, all(good), sum(good) / len(good), text.format(sum(good), len(good)))
              for name, good, text in (
                  (RESULTS, [not case.said for case in cases], "results right in {} of {}"),
                  (SCHEDULES, [not case.said for case in bits],
                   "the same bits in each order of threads: {} of {}"),
                  (FORMULA, [case.formula for case in suite],
                   "its traffic() says what is counted in {} of {}" + uneven))]
    past = next(filter(None, (uncounted_work(runs[shape].result().records[-1],
                                             records[0].result())
                              for shape, records in wanted.items()
                              if runs[shape].result().records)), "")
    checks.append(Check(ACCESSORS, not past, float(not past),
                        past or "its kernels reach each input and output through the accessors"))
    checks += [min(each, key=lambda one: (one.share, one.better)) for each in counted.values()]
    checks += [Check(name, False, 0, f"{name}: not counted, since no run came to its end")
               for name in task.check.fails if name not in {one.name for one in checks}]
    return verdict_of(task, checks, cases + [case for case in bits if case.said])


def said_of(run: ProgramRun) -> str:
    """What is wrong with a run, "" for nothing."""
    if not run.records:
        return run.last_words()
    where = re.search(r"wrong result: (.*)", run.err)
    return "" if "so this failure is expected" in run.err else ", ".join(
        f"{name}: max error {error['max']}" for name, error in wrong_outputs(run).items()
    ) + (f" ({where[1]})" if where else "")


def verdict_of(task: Task, checks: Sequence[Check], cases: Sequence[Case]) -> Verdict:
    """The step before has no points, by what it lacks; what it had is to stay. With wrong results
    there is half at most, and by how many are right."""
    own = [one.held for one in checks if one.name in task.check.fails]
    right = [one for one in checks if one.name in (RESULTS, SCHEDULES)]
    others = [one.held for one in checks if one not in right and one.name not in task.check.fails]
    share = (sum(own) / len(own) * sum(others) / len(others) * math.prod(one.share for one in right)
             / (1 if all(one.held for one in right) else 2))
    lacks = {one.name: one for one in sorted(checks, key=lambda one: -one.share) if not one.held}
    few = shown([one.name for one in checks if one.held and one.name not in BY_CASES])
    lines = [f"✓ {one.text}" for one in checks if one.held and one.name in BY_CASES]
    lines += [f"✓ as few as wanted: {', '.join(few)}"] if few else []
    lines += [f"✓ better than the step of the course: {one.text}" for one in checks if one.better]
    lines += [f"✓ safer than the step of the course: {case.name} {case.options}" for case in cases
              if case.safer][:1]
    lines += [f"✗ {lacks[name].text}" for name in shown(lacks)]
    wrong = {case.said: case for case in reversed(cases) if case.said}  # of each fault the first
    lines += [f"  {case.name} {case.options}".rstrip() + f": {case.said}"
              for case in [*reversed(wrong.values())][:3]]
    failed = [case for case in cases if case.said and case.options]
    if failed and all("--causal" in case.options for case in failed):
        lines.append("  Each wrong case has --causal.")
    lines.append("Right: its results are, and it counts what the step counts" +
                 (f"; not checked: {task.check.unchecked}" if task.check.unchecked else "") + "."
                 if not lacks else
                 f"Not yet: {Verdict(False, '', share=share).points(BuildTask.points)} of "
                 f"{BuildTask.points} points.")
    return Verdict(not lacks, "\n".join(lines), [case[:2] for case in cases], share,
                   [(one.name, one.held, one.text) for one in checks])
