"""Reads the exercises: their texts from the lessons, their checks from the rungs' exercises.py. A
text and a check belong together if they have the same rung and name."""

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

sys.path.append(ROOT)  # makes a rung's exercises.py importable


class Exercise(NamedTuple):
    """An exercise: its texts as plain text, the lesson's path, its rung and its check."""
    title: str
    task: str
    answer: str
    lesson: str
    hints: list[str]
    rung: str
    check: Check

    @property
    def file(self) -> str:
        """The path of the file to change, or "" if the exercise asks for no code."""
        return self.check.file and os.path.join(self.rung, self.check.file)

    def start(self) -> str:
        """Returns the text of the file before the reader's changes."""
        return read(os.path.join(ROOT, self.file)) if self.file else ""

    def solutions(self) -> list[str]:
        """Returns the file's text after each of the correct changes, one text per change."""
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
    """Returns the exercises under "## Exercises" in the lessons by name, such as "05/window".
    Raises CommandError for a task without a check, or a check without a task."""
    checks = {f"{rung[:2]}/{check.name}": (rung, check) for rung, check in of_rungs("EXERCISES")}
    tasks = {f"{lesson[:2]}/{name}": (lesson, texts) for lesson, name, *texts in written()}
    alone = min(checks.keys() ^ tasks.keys(), default="")
    if alone:
        has, lacks = ("check", "task") if alone in checks else ("task", "check")
        raise CommandError(f"{alone} has a {has} but no {lacks}: an exercise needs a task in a "
                           "lesson and a check in its rung's exercises.py", WRONG_RESULT)
    return {name: Exercise(title.rstrip("."), plain(task), plain(answer), lesson,
                           re.findall("^- (.*)", hints, re.MULTILINE), *checks[name])
            for name, (lesson, (title, task, hints, answer)) in tasks.items()}


def written() -> list[list[str]]:
    """Returns [lesson, *WRITTEN's groups: name, title, task, hints, answer] for each exercise."""
    return [[os.path.relpath(path, ROOT), *texts] for path in course_pages() for texts in
            WRITTEN.findall(read(path).partition("\n## Exercises\n")[2].partition("\n## ")[0])]


def of_rungs(what: str) -> list[tuple[str, Any]]:
    """Returns (rung, entry) for each entry of the rungs' lists of this name, such as EXERCISES."""
    return [(rung, one) for rung in rungs() if os.path.exists(f"{ROOT}/{rung}/exercises.py")
            for one in getattr(importlib.import_module(f"{rung}.exercises"), what, ())]
