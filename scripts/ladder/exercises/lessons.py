"""Exercises: what the lessons say of them, and the rungs' own checks."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from typing import Any, NamedTuple

from ladder.base.console import WRONG_RESULT, CommandError
from ladder.base.files import ROOT, course_pages, read
from ladder.base.programs import rungs
from ladder.base.text import plain
from ladder.exercises.kinds import Check
from ladder.exercises.mistakes import edited

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
    are called: "05/window". Raises CommandError where one has no task there, or no check in its
    rung."""
    checks = {f"{rung[:2]}/{check.name}": (rung, check) for rung, check in of_rungs("EXERCISES")}
    tasks = {f"{lesson[:2]}/{name}": (lesson, texts) for lesson, name, *texts in written()}
    alone = min(checks.keys() ^ tasks.keys(), default="")
    if alone:
        raise CommandError(f"{alone} has a {'check' if alone in checks else 'task'} alone: an "
                           "exercise's task is in a lesson, and its check in the rung's "
                           "exercises.py", WRONG_RESULT)
    return {name: Exercise(title.rstrip("."), plain(task), plain(answer), lesson,
                           re.findall("^- (.*)", hints, re.MULTILINE), *checks[name])
            for name, (lesson, (title, task, hints, answer)) in tasks.items()}


def written() -> list[list[str]]:
    """[lesson, name, title, task, hints, answer] of each exercise in the lessons."""
    return [[os.path.relpath(path, ROOT), *texts] for path in course_pages() for texts in
            WRITTEN.findall(read(path).partition("\n## Exercises\n")[2].partition("\n## ")[0])]


def of_rungs(what: str) -> list[tuple[str, Any]]:
    """(rung, each that a list in its exercises.py has)."""
    return [(rung, one) for rung in rungs() if os.path.exists(f"{ROOT}/{rung}/exercises.py")
            for one in getattr(importlib.import_module(f"{rung}.exercises"), what, ())]
