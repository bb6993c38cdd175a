"""Exercises: what the lessons say of them, and the rungs' own checks."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from typing import Any, Iterable, NamedTuple

from ladder.base.console import WRONG_RESULT, Stop
from ladder.base.files import ROOT, course_pages, read
from ladder.base.programs import rungs
from ladder.base.sources import read_sources
from ladder.base.text import plain
from ladder.exercises.kinds import Check, edited

sys.path.append(ROOT)  # a rung's exercises.py is imported


class Exercise(NamedTuple):
    title: str
    task: str
    answer: str
    lesson: str  # its path
    hints: list[str]
    rung: str
    check: Check

    @property
    def file(self) -> str:
        """That it asks to change, "" for none."""
        return self.check.file and os.path.join(self.rung, self.check.file)

    def start(self) -> str:
        """The text of the file."""
        return read(os.path.join(ROOT, self.file)) if self.file else ""

    def solutions(self) -> list[str]:
        """The text of the file, changed in each way that is right."""
        return [edited(self.start(), edits) for edits in self.check.solutions]

    def diffs(self) -> list[str]:
        old = self.start().splitlines(True)
        return ["".join(difflib.unified_diff(old, new.splitlines(True), self.file, self.file))
                for new in self.solutions()]


WRITTEN = re.compile(r"^\*\*`(\w+)`\. (.*?)\*\*(.*?)"
                     r"^<details><summary>Hints</summary>\n(.*?)^</details>\n\n"
                     r"^<details><summary>Answer</summary>\n(.*?)^</details>",
                     re.MULTILINE | re.DOTALL)


def read_exercises() -> dict[str, Exercise]:
    """All that stand under "## Exercises" in the lessons, by the rung's number and a name, as steps
    are called: "05/window". Raises Stop where a name is taken, or an exercise has no check."""
    tasks = []
    for path in course_pages():
        lesson, section = os.path.relpath(path, ROOT), read(path).partition("\n## Exercises\n")[2]
        for name, *texts in WRITTEN.findall(section.partition("\n## ")[0]):
            tasks.append((f"{lesson[:2]}/{name}", lesson, texts))
    by_name([*((f"{source.rung[:2]}/{source.step}", source.path, None)
               for source in read_sources() if source.step), *tasks])
    checks = by_name((f"{rung[:2]}/{check.name}", f"{rung}/exercises.py", (rung, check))
                     for rung, check in of_rungs("EXERCISES"))
    alone = {name for name, *_ in tasks} ^ set(checks)
    if alone:
        has = "check" if min(alone) in checks else "task"
        raise Stop(f"{min(alone)} has a {has} alone: the task of an exercise is in a lesson, and "
                   "its check in the rung's exercises.py", WRONG_RESULT)
    return {name: Exercise(title.rstrip("."), plain(task), plain(answer), lesson,
                           re.findall("^- (.*)", hints, re.MULTILINE), *checks[name])
            for name, lesson, (title, task, hints, answer) in tasks}


def of_rungs(what: str) -> list[tuple[str, Any]]:
    """(rung, each that a list in its exercises.py has)."""
    return [(rung, one) for rung in rungs() if os.path.exists(f"{ROOT}/{rung}/exercises.py")
            for one in getattr(importlib.import_module(f"{rung}.exercises"), what, ())]


def by_name(named: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Name → thing, of (name, the file that has it, thing)."""
    found: dict[str, tuple[str, Any]] = {}
    for name, path, thing in named:
        if name in found:
            raise Stop(f"{path}: {name} is the name of another in {found[name][0]}; a step or an "
                       "exercise has one of its own", WRONG_RESULT)
        found[name] = path, thing
    return {name: thing for name, (_, thing) in found.items()}
