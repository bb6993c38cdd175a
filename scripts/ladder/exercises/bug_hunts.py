"""Runs the bug hunts in the rungs' exercises.py. A copy of a step's file with a ready-made mistake
runs on the simulator. The reader sees the symptoms and looks for the wrong line; once that line has
been found, the mistake is explained."""

from __future__ import annotations

import concurrent.futures
import json
import os
import sys
from typing import Any, NamedTuple

from ladder.base.console import BAD_USAGE, GOOD, WRONG_RESULT, CommandError, suggestion
from ladder.base.files import ROOT, read, write_whole
from ladder.base.sources import defined
from ladder.exercises import build_tasks
from ladder.exercises.checks import said_of_outputs, wrong_outputs
from ladder.exercises.kinds import BugHunt
from ladder.exercises.lessons import of_rungs
from ladder.exercises.mistakes import edited
from ladder.exercises.program import Program, ProgramRun

SHAPES = {**build_tasks.SHAPES, "few keys": "--heads 1 --seqlen 130 --seqlen-kv 65 --causal",
          "ragged": "--batch 2 --heads 4 --kv-heads 2 --seqlen 100 --seqlen-kv 150 --head-dim 40"}
ORDERS = ("forward", "reverse", "random:7")  # of threads


class Observed(NamedTuple):
    """The symptoms of a step with a mistake."""
    line: str          # all of them in one line, as a rung's BUG_HUNTS lists them
    text: str          # one line per shape, without the simulator's messages
    faults: list[str]  # the simulator's messages


class MutatedSource:
    """The repository's file `path` with a bug hunt's mistake. `text` holds its lines, `was` the
    original's lines that differ, and `lines` the line numbers, from 1, that are correct answers."""

    def __init__(self, mistake: BugHunt, path: str) -> None:
        self.mistake, self.path = mistake, path
        self.old = edited(read(os.path.join(ROOT, path)), mistake.opened).splitlines()
        self.text = edited("\n".join(self.old), mistake.edits).splitlines()
        both = self.old, self.text
        same = len(os.path.commonprefix(both))  # equal lines before the mistake
        end = len(os.path.commonprefix([lines[same:][::-1] for lines in both]))  # and after it
        missing = end == len(self.text) - same
        self.was = self.old[same:len(self.old) - end]
        # The copy's wrong lines or, where lines are missing, the lines on both sides of the gap.
        self.lines = range(same + 1 - missing, len(self.text) - end + 1 + missing)

    def seen(self, build: str, copy: str) -> Observed:
        """Builds the file `copy`, runs it at all SHAPES and ORDERS, and returns what went wrong."""
        program = Program(build, self.path, copy)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            ran = {shape: [pool.submit(program.run, f"{options} --check full --schedule {order}")
                           for order in ORDERS] for shape, options in SHAPES.items()}
        lines: list[str] = []
        shapes: dict[str, list[str]] = {}  # short symptom → the shapes that show it
        faults: dict[str, str] = {}  # one message of each kind
        for shape in SHAPES:
            runs = [run.result() for run in ran[shape]]
            told = [said_of_outputs(run) or short_of(run) for run in runs]
            ordered = len(set(told)) > 1  # whether the symptom depends on the order of threads
            for run in runs:
                if not run.records:
                    faults.setdefault(short_of(run), run.last_words().partition(": ")[2])
            lines += [f"  {shape:<12}{text}" + (f"  ({order})" if ordered else "")
                      for order, text in zip(ORDERS, told)][:len(told) if ordered else 1]
            shapes.setdefault(" or ".join(dict.fromkeys(map(short_of, runs)))
                              + ordered * ", depending on thread order", []).append(shape)
        line = "; ".join(f"{', '.join(shapes[short]) if len(shapes) > 1 else 'always'}: {short}"
                         for short in shapes)
        lines += [f"({shape}: {options})" for shape, options in SHAPES.items()]
        return Observed(line, "\n".join(lines), list(faults.values()))

    def found(self, seen: Observed) -> str:
        """Returns what the reader is told after finding the line."""
        new = self.text[self.lines[0] - 1:self.lines[-1]]
        return "\n".join(["Correct.", *(f"The step:   {text}" for text in self.was),
                          *(f"This copy:  {text}" for text in new
                            if len(self.text) >= len(self.old)),
                          self.mistake.why,
                          *(f"The simulator says: {fault}" for fault in seen.faults or
                            ["no access is at fault; only the results show this mistake"])])


def short_of(run: ProgramRun) -> str:
    """Returns a run's symptom in a few words, such as "o, lse wrong", "a fault" or "never ends"."""
    if not run.records:
        return "never ends" if "deadlock" in run.err else "a fault"
    return f"{', '.join(wrong_outputs(run))} wrong" if wrong_outputs(run) else "correct"


def read_bug_hunts() -> dict[str, MutatedSource]:
    """Returns all bug hunts by name, such as "05/parity"."""
    return {f"{rung[:2]}/{one.name}": MutatedSource(one, os.path.join(rung, one.file))
            for rung, one in of_rungs("BUG_HUNTS")}


def as_json(name: str, hunt: MutatedSource, more: dict[str, Any]) -> str:
    """Returns the JSON object that --json prints for a bug hunt, with the fields `more`."""
    return json.dumps({"exercise": name, "file": hunt.path, "asks": "the wrong line",
                       "shows": hunt.mistake.shows, **more}, ensure_ascii=False)


def find(name: str) -> MutatedSource:
    """Returns the bug hunt with this name; raises CommandError if there is none."""
    known = read_bug_hunts()
    if name not in known:
        raise CommandError(f"there is no bug hunt {name}.{suggestion(name, known)} "
                           "scripts/exercise --break lists all.", BAD_USAGE)
    return known[name]


def show_hint(name: str) -> int:
    """Prints the function with the mistake, and a range of about twenty lines around it."""
    hunt = find(name)
    line = hunt.lines[0]
    inside = next((function for function, text in defined("\n".join([*hunt.text, ""])).items()
                   if hunt.text[line - 1] in text.splitlines()), "the head of the file")
    first = max(1, (line - 5) // 10 * 10)
    print(f"It is in {inside}, between lines {first} and {min(first + 20, len(hunt.text))}.")
    return GOOD


def show(name: str, line: int | None, build: str, folder: str, command: str,
         in_json: bool = False) -> int:
    """Prints a bug hunt's symptoms or, if `line` is a correct answer, the mistake. If `name` is "",
    prints the list. Returns the exit status; raises CommandError for a wrong line (except in JSON).
    The copy is written below `folder`, and `command` is scripts/exercise, for messages."""
    known = read_bug_hunts()
    if not name:
        print("\n".join(as_json(name, one, {}) if in_json else f"{name:<14}{one.mistake.shows}"
                        for name, one in known.items()))
        return GOOD
    hunt = find(name)
    copy = os.path.join(folder, "break", name, os.path.basename(hunt.path))
    write_whole(copy, "\n".join([*hunt.text, ""]))
    right = line is None or line in hunt.lines
    if line is not None and not right and not in_json:
        raise CommandError(f"Not yet: line {line} of {os.path.relpath(copy)} is not the mistake"
                           + ("." if 0 < line <= len(hunt.text) else
                              f"; the file has {len(hunt.text)} lines."), WRONG_RESULT)
    seen = Observed("", "", [])
    if right:
        print("Building and running …", file=sys.stderr)
        seen = hunt.seen(build, copy)
    if in_json:
        answered = {} if line is None else {"line": line, "right": right}
        print(as_json(name, hunt, {"copy": os.path.relpath(copy), "seen": seen.text, **answered,
                                   **({"said": hunt.found(seen)} if line and right else {})}))
        return GOOD if right else WRONG_RESULT
    print(hunt.found(seen) if line else
          f"{name} · {hunt.path} with a mistake\n{seen.line}.\n\n{seen.text}\n\nThe copy:  "
          f"{os.path.relpath(copy)}\nWhich line is wrong, or next to a missing line?"
          f"  {command} --break {name} --answer LINE")
    return GOOD
