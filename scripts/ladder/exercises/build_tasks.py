"""Checks build tasks: a reader turns a copy of the preceding step into the next step of the course,
the real step. The copy is compiled in the real step's place, under its name, and runs the suite's
cases on the simulator; then its counts are compared with the real step's. Each rung's exercises.py
lists its tasks and, for each, the checks that the preceding step fails (BuildTask.fails)."""

from __future__ import annotations

import copy
import functools
import math
import os
import re
import tempfile
from typing import Collection, Mapping, Sequence

from ladder.exercises.rebuild import compiled, linked
from ladder.base.console import BAD_USAGE, NO_DEVICE, WRONG_RESULT, CommandError
from ladder.base.files import ROOT, course_pages, read
from ladder.base.programs import json_lines, run_json
from ladder.base.records import Record
from ladder.base.sources import Diff, Source, defined, find, read_sources
from ladder.exercises.checks import MUST, Check, Judged, Move, judged, wrong_in
from ladder.exercises.kinds import SHAPES, BuildTask, Stage, Verdict
from ladder.exercises.lessons import of_rungs
from ladder.exercises.program import OTHER_BITS, Case, Program, ProgramRun

TIMED = "--batch 2 --heads 16 --seqlen 2048 --head-dim 128 --dtype bf16 --causal"
# Names of checks. BY_CASES are about cases; OTHERS sum up the arrays that a task does not name.
RESULTS, ORDERS, FORMULA = BY_CASES = "results", "orders of threads", "formula"
OTHERS = "other arrays", "sectors of other arrays"
OUTPUT = tuple(f"{name}: " for name in ("o", "lse", "dq", "dk", "dv"))  # prefixes of output errors
ORDER, UNIT = "order of blocks", "work of the tensor cores"
UNJUDGED = "the order of threads is checked once all results are correct"
# Counts of the tensor cores' work, which must reach at least a quarter of the real step's.
UNITS = "products", "sram_operand_bytes", "matmul_flops"

# Code that a copy must not contain: (True to search kernels only, pattern, reason).
NOT_IN_A_COPY = [
    (False, r"\b__shared__\b", "the simulator does not support it. Declare SharedMemory smem; then "
                               'smem.take<T>("K", n) returns n elements under a name'),
    (False, r"\b(this_block|count_flops|take_kernel_counts|all_steps|LADDER_SIM|exec\w*|fork|system"
            r"|popen)\b|\bsim::", "it belongs to the simulator or to the system; a step never "
                                  "needs it"),
    (True, r"\bstd::(vector|map|deque|string)\b|\b(new|malloc|thread_local)\b|\.data\(\)|"
           r"^(__device__ |static |inline )*(?!using|struct|const)[\w:]+ \w+(\[.*\])*( = .*)?;",
     "this memory would not be counted. A kernel may use registers, shared memory, and the "
     "workspace arrays that its plan names")]


class Task:
    """A build task (`check`) with its sources: `real`, the real step's; `old`, the preceding step's
    (for a rung's first step, the previous rung's last portable one); and `begin`, the text that the
    reader starts from."""

    def __init__(self, task: BuildTask, real: Source, sources: list[Source]) -> None:
        after = re.search(r'\.after = "(\w+)"', real.text)
        registered = re.findall(r'\.change = \{"(\w+)", "([\w ]+)"(?:, "(.*?)")?\}', real.text)
        self.moves = {f"{words[0]} {words[1]}": Move(*words)
                      for words in [*(registered if RESULTS not in task.fails else ()),
                                    *task.moves]}
        # The names of the checks that the preceding step fails.
        self.lacks = [*task.fails, *self.moves, *([ORDER] if task.longest_first else [])]
        self.check, self.real, self.file = task, real, real.path
        self.old = find([source for source in sources if source.step], f"{real.rung}/{after[1]}"
                        if after else f"{int(real.rung[:2]) - 1:02}")
        self.begin = self.old
        if task.stages:
            self.begin = copy.copy(real)
            self.begin.text = re.sub(r"(?ms)(__global__[^{;]*\{\n).*?^\}$", r"\1  // yours\n}",
                                     real.text, count=1)
            self.begin.lines = self.begin.text.splitlines()
            self.lacks = [stage.name for stage in task.stages]
        self.diff = Diff(self.begin, real)
        self.title = re.findall(r'\.summary = "(.*)"', real.text)[0]
        self.lesson, self.answer = self.begin.path, f"--- {self.begin.path}\n+++ {real.path}"
        # The part of the head comment that says what changed since the preceding step.
        head = real.text.partition("\n\n#include")[0].partition("// Since ")[2]
        self.task = "Since " + re.sub("^// ?", "", head, flags=re.MULTILINE)
        # Definitions by name, except those also found in one of the folder's headers.
        self.shared = {name for text in real.headers.values() for name in defined(text)}
        self.was, self.now = ({name: text for name, text in defined(source.text).items()
                               if "const Register" not in text and name not in self.shared}
                              for source in (self.old, real))

    def start(self) -> str:
        return self.begin.text

    def diffs(self) -> list[str]:
        """Returns the hunks that turn the text of start() into the real step."""
        return ["\n".join([*hunk, ""]) for hunk in self.diff.hunks(context=3)]

    @property
    def hints(self) -> list[str]:
        """The hints in order: where the lesson explains the idea, the functions that change, and
        each hunk of the diff; for a task with stages, each stage's hint and its lines."""
        was, now = self.was, self.now
        changes = [f"{how} {', '.join(sorted(names))}" for how, names in (
            ("new:", now.keys() - was), ("gone:", was.keys() - now),
            ("changed:", {name for name in now.keys() & was if now[name] != was[name]})) if names]
        place = next((f"{os.path.relpath(page, ROOT)}:{number}" for page in course_pages()
                      for number, line in enumerate(read(page).splitlines(), 1)
                      if f"`scripts/exercise {self.real.rung[:2]}/{self.real.step}`" in line),
                     "the lesson, which has no line for it yet")
        if self.check.stages:
            return [f"The idea is in {place}.", *(hint for stage in self.check.stages for hint in (
                f"{stage.name}: {stage.hint}",
                "\n" + re.sub("(?m)^", "+", "".join(re.findall(stage.lines, self.real.text)))))]
        return [f"The idea is in {place}.", f"In {self.old.path}, {'; '.join(changes)}.",
                *(f"\n{hunk}" for hunk in map(code_of, self.diffs()) if hunk)]

    def blanks(self) -> str:
        """Returns the real step's file after replacing each new stretch of kernel code by a comment
        and the preceding step's lines, unless these have moved into a header. Raises CommandError
        if the file would not compile."""
        if not self.check.blanks:
            raise CommandError(f"{self.real.name} has no --blanks: without its new lines the file "
                               "does not compile. --hint shows the new lines one by one", BAD_USAGE)
        first, last = (re.split(at, self.real.text)[0].count("\n")
                       for at in ("__(?:global|device)__", r"\nPlan \w+\("))
        old = copy.copy(self.old)
        kept = old.text
        for name, text in defined(kept).items():
            kept = kept.replace(text, "") if name in self.shared else kept
        old.lines = kept.splitlines()
        lines = [line for tag, i1, i2, j1, j2 in Diff(old, self.real).matcher.get_opcodes()
                 for line in (self.real.lines[j1:j2] if tag == "equal" or not first <= j1 < last
                              else [f"// yours; new lines here: {j2 - j1}" if j2 > j1 else
                                    "// yours: change these lines, or take them out",
                                    *old.lines[i1:i2]])]
        # The old lines may use definitions that the real step no longer has.
        gone = "".join(text for name, text in self.was.items()
                       if name not in self.now and "(" not in text)
        return "\n".join([*lines, ""]).replace("namespace {\n\n", f"namespace {{\n\n{gone}", 1)

    def registered(self, text: str) -> str:
        """Returns a copy's text, whose step is now registered under the real step's name and after
        its predecessor. Lines keep their numbers. Raises CommandError without a registration."""
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
    """Returns a diff's hunk without the file's head comment and the registration, or "" if the
    other lines change only comments or one name."""
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
    """Returns the build tasks by their steps' names, such as "05/skip"."""
    sources = read_sources()
    steps = {(source.rung, source.step): source for source in sources}
    return {f"{rung[:2]}/{task.name}": Task(task, steps[rung, task.name], sources)
            for rung, task in of_rungs("BUILD_TASKS")}


def built(task: Task, build: str, path: str) -> Program:
    """Builds a reader's copy, the file `path`, as the real step. Raises CommandError for code that
    a copy must not contain (NOT_IN_A_COPY) or include, or with the compiler's first error."""
    text = read(path)
    code = re.sub("//.*", "", text)
    own = re.sub("//.*", "", "\n".join([task.real.text if task.check.stages else "",
                                        *task.real.headers.values()]))
    for within, words, said in NOT_IN_A_COPY:
        kept = {one[0] for one in re.finditer(words, own, re.MULTILINE)}
        found = next((one for one in re.finditer(words, code.partition("\nPlan plan(")[0] if within
                                                 else code, re.MULTILINE) if one[0] not in kept),
                     None)
        if found:
            line = code.count("\n", 0, found.start()) + 1
            raise CommandError(f"Not yet: line {line} uses {found[0].strip()}: {said}",
                               WRONG_RESULT)
    program = Program(build, task.file, path, task.registered(text))
    others = [source for source in program.included
              if source.endswith(".cu") or f"{os.sep}stubs{os.sep}" in source
              or task.check.stages and f"{os.sep}tile{os.sep}" in source]
    if others:
        other = os.path.relpath(others[0], ROOT)
        what = "a part of common/tile" if "tile" in other.split(os.sep) else "another step's file"
        raise CommandError(f"Not yet: your copy includes {other}, {what}. Write the kernel "
                           "yourself instead", WRONG_RESULT)
    return program


# ---- comparing counts ----

def counts_of(record: Record) -> dict[str, int]:
    """Returns a record's counts by name: its own, each array's bytes ("K") and its sectors ("K
    sectors"), each the sum of reads and writes over all kernels."""
    counts = {key: value for key, value in record.items() if type(value) is int}
    for kernel in record.get("kernels", ()):
        for array, count in kernel["arrays"].items():
            for name, way in ((array, ""), (f"{array} sectors", "_sectors")):
                counts[name] = counts.get(name, 0) + count[f"read{way}"] + count[f"write{way}"]
    return counts


def arrays_of(*records: Record) -> list[str]:
    return sorted({array for record in records for kernel in record["kernels"]
                   for array in kernel["arrays"]})


def compared(task: Task, shape: str, *records: Record) -> list[Check]:
    """Checks a copy's counts at a shape. `records` are those of the preceding step, the real step
    and the copy. A count that the step is meant to change must move at least halfway from the
    preceding step's to the real step's, so that other tile sizes pass. The workspace, and the total
    over all other arrays, may each be 1.5 times the real step's: a good kernel may spend more."""
    arrays, checks = arrays_of(*records), []
    counts = [counts_of(record) for record in records]
    others = {name: [array + way for array in arrays if array + way not in task.check.fails]
              for name, way in zip(OTHERS, ("", " sectors"))}
    for of_step in counts:
        of_step |= {name: sum(of_step.get(one, 0) for one in of) for name, of in others.items()}
    for name in dict.fromkeys([*task.check.fails, "workspace_bytes", *OTHERS]):
        if name in (*BY_CASES, UNIT):
            continue
        old, real, mine = (of_step.get(name, 0) for of_step in counts)
        own = name in task.check.fails and real != old
        # How far the copy's count may be from the real step's.
        room = abs(old - real) // 2 if own else max(real, old) // 2
        if name == OTHERS[0]:
            room = sum(counts[1].get(array, 0) for array in arrays) // 2
        rises = real > old if own else any(move.count == name and move.how in ("more", "from 0")
                                           for move in task.moves.values())
        held = mine >= real - room if rises else mine <= real + room
        label = unit(name) if name not in others else (
            f"{'sectors' if name == OTHERS[1] else 'bytes'} of "
            f"{', '.join(one.partition(' ')[0] for one in others[name])} together")
        said = (f"{label}: {mine:,}; {old:,} in the preceding step, {real:,} in the step of the "
                f"course ({SHAPES[shape]})")
        by_kernel = {kernel["name"]: counts_of({**kernel, "kernels": [kernel]}).get(name, 0)
                     for kernel in records[-1]["kernels"]}
        if not held and len(by_kernel) > 1 and any(by_kernel.values()):
            said += "; by kernel: " + ", ".join(
                f"{kernel} {count:,}" for kernel, count in by_kernel.items() if count)
        if not held and name in others:
            most = max(others[name], key=lambda one: counts[2].get(one, 0) - counts[1].get(one, 0))
            said += f"; most of the increase is in {most.partition(' ')[0]}"
        better = name not in others and (mine > real if rises else mine < real)
        checks.append(Check(name, held, 1 if held else min(mine, real) / max(mine, real), said,
                            better))
    # If a copy's products count as almost nothing, it computes them where they are not counted.
    idle = [f"{unit}: {mine:,}; {real:,} in the step of the course" for unit in UNITS
            for real, mine in [(counts[1][unit], counts[2][unit])] if mine < real / 4]
    checks.append(Check(UNIT, not idle, float(not idle), "; ".join(idle) + f" ({SHAPES[shape]})"))
    return checks


def unit(name: str) -> str:
    """Returns a count's name with its unit, which is bytes for an array."""
    return f"{name} bytes" if re.fullmatch(r"[A-Z]\w*|[lm]|d[A-Z]\w*", name) else name


@functools.lru_cache(maxsize=None)
def counted_by(build: str, step: Source, options: str) -> Record:
    """Returns the last record that a step of the course prints. Raises CommandError if it fails."""
    run = Program(build, step.path).run(f"{options} --check off")
    if not run.records:
        raise CommandError(f"{step.name}: {run.last_words()}", NO_DEVICE)
    return run.records[-1]


def compared_all(task: Task, build: str, mine: dict[str, Record]) -> dict[str, list[Check]]:
    """Returns the checks of a copy's counts by name, one per shape; `mine` is {shape: record}."""
    found: dict[str, list[Check]] = {}
    for shape, record in mine.items():
        before, real = (counted_by(build, step, SHAPES[shape]) for step in (task.old, task.real))
        for one in compared(task, shape, before, real, record):
            found.setdefault(one.name, []).append(one)
    return found


def lacking(task: Task, build: str) -> set[str]:
    """Returns the names of the counts whose checks the preceding step fails."""
    found = compared_all(task, build, {shape: counted_by(build, task.old, options)
                                       for shape, options in SHAPES.items()})
    return {name for name, each in found.items() if not all(one.held for one in each)}


def shown(names: Collection[str]) -> list[str]:
    """Returns the names of counts, without an array's sectors if its bytes are listed too."""
    return [name for name in names
            if not name.endswith(" sectors") or name.partition(" ")[0] not in names]


def targets(task: Task, build: str) -> str:
    """Returns what the task demands: a table of the counts that must change or may rise, with the
    preceding step's value and the real step's, and a sentence on the trade-off; or the stages."""
    if task.check.stages:
        return "\n".join(["The kernel's body is empty. Write it in these stages:",
                          *(f"  {stage.name}: {stage.asks}" for stage in task.check.stages),
                          "--check says which one is reached."])
    if RESULTS in task.check.fails:
        return "The copy's results are wrong in these runs: " + "; ".join(task.check.cases)
    counts = [[counts_of(counted_by(build, step, options)) for step in (task.old, task.real)]
              for options in SHAPES.values()]
    arrays = arrays_of(*(counted_by(build, step, options) for step in (task.old, task.real)
                         for options in SHAPES.values()))

    def change(name: str) -> list[tuple[int, int]]:  # (preceding, real step's), one per shape
        return [(old.get(name, 0), real.get(name, 0)) for old, real in counts]
    own = shown([name for name in task.check.fails if name not in (*BY_CASES, UNIT)])
    price = [name for name in [*arrays, "workspace_bytes", "smem_bytes"] if name not in own
             and any(old < real for old, real in change(name))]
    falling = [name for name in own if any(old > real for old, real in change(name))]
    rows = [["", *SHAPES]]
    for what, names in (("must fall", falling),
                        ("must rise", [name for name in own if name not in falling]),
                        ("may rise", price)):
        rows += [[f"{what}: {unit(name)}", *(f"{old:,} → {real:,}" for old, real in change(name))]
                 for name in names]
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    lines = [*(f"{shape}: {options}" for shape, options in SHAPES.items()), "",
             "Counts: in the preceding step → in the step of the course. A count that must change "
             "must move at\nleast halfway.",
             *("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows)]
    more, less = (sum(sign * (real - old) for name in names if name in arrays
                      for old, real in change(name)[:1])
                  for names, sign in ((price, 1), (falling, -1)))
    if more > 0:
        buys = [f"fewer {name}" for name in falling if name not in arrays]
        buys += [f"more {name}" for name in own if name not in falling]
        if less > 0:
            fewer = ", ".join(name for name in falling if name in arrays)
            buys.insert(0, f"{less:,} fewer bytes of {fewer}")
        lines.append(f"The trade: for whole tiles, {more:,} more bytes of "
                     f"{' and '.join(name for name in price if name in arrays)} buy "
                     f"{'; '.join(buys)}.")
    named = {"product_blocks": "product_blocks (blocks of kernels that multiply matrices)"}
    lines += [f"In a run of {move.options}, {named.get(move.count, move.count)} {MUST[move.how]}."
              for move in task.moves.values() if move.count not in task.check.fails]
    lines += ["The blocks with the most work must start first."] if task.check.longest_first else []
    others = [array for array in arrays if array not in task.check.fails]
    lines += [f"{', '.join(others)}: their total bytes, their total sectors and the workspace may "
              "each\nbe at most 1.5 times that of the step of the course."]
    return "\n".join(lines)


def times(task: Task, build: str, path: str) -> str:
    """Times the preceding step, the copy (the file `path`) and the real step on the GPU; returns
    one line for each. Raises CommandError with the message of a run that failed."""
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
    if task.check.stages:
        return check_stages(task, copy)
    of_copy = judged(copy, {**SHAPES, **{case: case for case in task.check.cases}})
    records = [run.records[-1] for run in of_copy.runs.values() if run.records]
    if any(record["block_kv"] and 256 % record["block_kv"] for record in records):
        # These cases' values change at keys 256 and 512, where tiles of the usual sizes end. Other
        # tiles contain both kinds of values, and round P differently.
        of_copy = of_copy._replace(cases=[case for case in of_copy.cases
                                          if not case.name.startswith("tiles_that_")])
    checks = of_results(of_copy)
    counts = compared_all(task, copy.build, {shape: of_copy.runs[shape].records[-1]
                                             for shape in SHAPES if of_copy.runs[shape].records})
    checks += [min(each, key=lambda one: (one.share, one.better)) for each in counts.values()]
    for name, move in task.moves.items():
        run = copy.run(f"{move.options} --check off")
        checks.append(move.check(counted_by(copy.build, task.old, move.options), run.records[-1])
                      if run.records else Check(name, False, 0, f"{name}: {run.last_words()}"))
    if task.check.longest_first:
        checks.append(order_of_blocks(copy))
    checks += [Check(name, False, 0, f"{name}: not counted, because no run finished")
               for name in task.check.fails if name not in {one.name for one in checks}]
    return verdict_of(task, checks, of_copy.cases + [case for case in of_copy.orders if case.said])


def check_stages(task: Task, copy: Program) -> Verdict:
    """Returns the verdict on a copy of a task with stages, which are checked in order up to the
    first that is not reached. Each stage reached earns an equal fraction of the points."""
    lines: list[str] = []
    stages = [(stage.name, False, "not checked yet") for stage in task.check.stages]
    for reached, stage in enumerate(task.check.stages):
        checks, cases = of_stage(task, stage, copy)
        said = [f"{'✗' if not one.held else '–' if one.text == UNJUDGED else '✓'} {one.text}"
                for one in checks]
        held = all(one.held for one in checks)
        stages[reached] = stage.name, held, "; ".join(said)
        lines += [f"✓ {stage.name}"] if held else [f"✗ {stage.name}: {stage.asks}"]
        if not held or stage is task.check.stages[-1]:
            lines += [f"  {one}" for one in said]
        if not held:
            wrong, verdict = smallest(cases), Verdict(False, "", share=reached / len(stages))
            lines += [*(f"  {case.options or case.name}: {case.said}" for case in wrong[:3]),
                      f"Not yet: {verdict.points(BuildTask.points)} of {BuildTask.points} points."]
            return verdict._replace(why="\n".join(lines), cases=[case[:2] for case in cases],
                                    checks=stages, rerun=rerun_of(wrong))
    lines.append(f"Correct: {BuildTask.points} of {BuildTask.points} points.")
    return Verdict(True, "\n".join(lines), share=1, checks=stages)


def of_stage(task: Task, stage: Stage, copy: Program) -> tuple[list[Check], list[Case]]:
    """Returns the checks of one stage of a copy, and the cases that these checks judge."""
    options = stage.runs or [*SHAPES.values()]
    runs: Mapping[str, ProgramRun]
    if stage.right:
        runs = {words: copy.run(f"{words} --check full") for words in options}
        cases = [Case(words, wrong_in(run, stage.right), "", words) for words, run in runs.items()]
        good = sum(not case.said for case in cases)
        checks = [Check(RESULTS, good == len(cases), 0, f"{' and '.join(stage.right)} correct in "
                                                        f"{good} of {len(cases)} runs")]
    else:
        runs, cases, orders = judged(copy, {words: words for words in options})
        checks, cases = of_results(Judged(runs, cases, orders)), cases + orders
    counts = [(counts_of(counted_by(copy.build, task.real, words)), counts_of(run.records[-1]))
              for words, run in runs.items() if run.records]
    checks += [Check(name, mine[name] >= part * real[name], 0,
                     f"{name}: {mine[name]:,}, at least {int(part * real[name]):,} ({options[0]})")
               for real, mine in counts[:1] for name, part in stage.at_least.items()]
    if stage is task.check.stages[-1]:
        other = {unit(name): (number, real.get(name, 0)) for real, mine in counts
                 for name, number in mine.items() if number != real.get(name, 0)}
        checks.append(Check("counts", all(mine <= 1.5 * real for mine, real in other.values()), 0,
                            f"counts equal {task.real.name}'s" + ", except " * bool(other)
                            + ", ".join(f"{name} {mine:,} ({real:,} there)"
                                        for name, (mine, real) in other.items())))
    return checks, cases


def rerun_of(cases: Sequence[Case]) -> str:
    """Returns the options of the first case that options alone can repeat, or ""."""
    return next((case.options for case in cases
                 if case.options and "values of its own" not in case.options), "")


def smallest(cases: Sequence[Case]) -> list[Case]:
    """Returns one case for each distinct fault, the smallest that shows it; smallest first."""
    wrong = {case.said: case for case in sorted(cases, key=size_of, reverse=True) if case.said}
    return [*reversed(wrong.values())]


def of_results(copy: Judged) -> list[Check]:
    """Returns three checks: that results are correct; that they do not depend on the order of
    threads (judged only if all are correct in the usual order); and that traffic() predicts the
    bytes that the simulator counts, in the cases that finished."""
    right = [not case.said for case in copy.cases]
    same = [not (case.said.startswith(OTHER_BITS) or all(right) and case.said)
            for case in copy.orders]
    ended = [case for case in copy.cases if not case.said or case.said.startswith(OUTPUT)]
    uncounted = next((f"; {case.name}: {case.uncounted}" for case in reversed(ended)
                      if case.uncounted), "")
    return [Check(name, bool(good) and all(good), sum(good) / max(1, len(good)),
                  text.format(sum(good), len(good)))
            for name, good, text in (
                (RESULTS, right, "results correct in {} of {} cases"),
                (ORDERS, same, "the same bits in every order of threads: {} of {} cases"
                 if all(right) else UNJUDGED),
                (FORMULA, [not case.uncounted for case in ended],
                 "traffic() equals the count in {} of {} cases that finished" + uncounted))]


def order_of_blocks(copy: Program) -> Check:
    """Checks that, under the causal mask, the blocks with the most work start first. A block's work
    is its FLOPs in matrix products, counted in a trace."""
    name, options = ORDER, "--heads 1 --seqlen 512 --causal"
    with tempfile.NamedTemporaryFile() as trace:
        copy.run(f"{options} --check off", "--trace", trace.name)
        flops: dict[int, int] = {}
        for event in json_lines(read(trace.name), trace.name):
            if "kind" in event:
                work = event.get("counts", {}).get("matmul_flops", 0)
                flops[event["block"]] = flops.get(event["block"], 0) + work
    work = [flops[block] for block in sorted(flops)]
    rises = next((block for block in range(1, len(work)) if work[block] > work[block - 1]), None)
    held = len(work) > 1 and rises is None and work[0] > work[-1]
    said = (f"block {rises} does {work[rises]:,} FLOPs of matrix products, block {rises - 1} only "
            f"{work[rises - 1]:,}; the longest must start first" if rises is not None else
            "the blocks with the most work start first" if held else "all blocks do equal work")
    return Check(name, held, float(held), f"{name}: {said} ({options})")


def verdict_of(task: Task, checks: Sequence[Check], cases: Sequence[Case]) -> Verdict:
    """Returns the verdict, which lists the checks that hold, then the failed ones, nearest first.
    The fraction of the points is the product of three fractions: of the checks that the preceding
    step fails (task.lacks), those that the copy passes; of the other checks, those that it passes;
    and of the results, those that are correct. It is halved if any result is wrong."""
    own = [one.held for one in checks if one.name in task.lacks]
    right = [one for one in checks if one.name in (RESULTS, ORDERS)]
    others = [one.held for one in checks if one not in right and one.name not in task.lacks]
    share = (sum(own) / len(own) * sum(others) / len(others) * math.prod(one.share for one in right)
             / (1 if all(one.held for one in right) else 2))
    lacks = {one.name: one for one in sorted(checks, key=lambda one: -one.share) if not one.held}
    told = {*BY_CASES, *task.moves, ORDER}
    few = shown([one.name for one in checks if one.held and one.name not in told])
    lines = [f"{'–' if one.text == UNJUDGED else '✓'} {one.text}" for one in checks
             if one.held and one.name in told]
    lines += [f"✓ counts of the step of the course, or better: {', '.join(few)}"] if few else []
    lines += [f"✓ better than the step of the course: {one.text}" for one in checks
              if one.better and all(one.held for one in right)]
    lines += [f"✓ safer than the step of the course: {case.name} {case.options}" for case in cases
              if case.safer][:1]
    lines += [f"✗ {lacks[name].text}" for name in shown(lacks)]
    wrong = smallest(cases)
    lines += [f"  {case.name} {case.options}".rstrip() + f": {case.said}" for case in wrong[:3]]
    failed = [case for case in cases if case.said and case.options]
    if failed and all("--causal" in case.options for case in failed):
        lines.append("  All wrong cases have --causal.")
    points = f"{Verdict(not lacks, '', share=share).points(BuildTask.points)} of {BuildTask.points}"
    lines.append(f"Correct, {points} points: all results are correct, and the counts are those of "
                 "the step, or better" +
                 (f"; not checked: {task.check.unchecked}" if task.check.unchecked else "") + "."
                 if not lacks else f"Not yet: {points} points.")
    return Verdict(not lacks, "\n".join(lines), [case[:2] for case in cases], share,
                   [(one.name, one.held, one.text) for one in checks], rerun_of(wrong))


def size_of(case: Case) -> int:
    """Returns roughly how much a case computes; a case without options counts as large."""
    sizes = re.findall(r"--(?:batch|heads|seqlen|seqlen-kv|head-dim) (\d+)", case.options)
    return math.prod(map(int, sizes)) if sizes else 1 << 60
