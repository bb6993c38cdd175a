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
from ladder.exercises.kinds import Check, edited

sys.path.append(ROOT)  # a rung's exercises.py is imported


class Exercise(NamedTuple):
    title: str
    task: str
    answer: str
    lesson: str  # its path
    hints: list[str]
    check: Check
    file: str  # that it asks to change, "" for none

    def solutions(self) -> list[str]:
        """The text of the file, changed in each way that is right."""
        return [edited(read(os.path.join(ROOT, self.file)), edits)
                for edits in self.check.solutions]

    def diffs(self) -> list[str]:
        old = read(os.path.join(ROOT, self.file)).splitlines(True) if self.file else []
        return ["".join(difflib.unified_diff(old, new.splitlines(True), self.file, self.file))
                for new in self.solutions()]


WRITTEN = re.compile(r"^\*\*`(\w+)`\. (.*?)\*\*(.*?)"
                     r"^<details><summary>Hints</summary>\n(.*?)^</details>\n\n"
                     r"^<details><summary>Answer</summary>\n(.*?)^</details>",
                     re.MULTILINE | re.DOTALL)


def read_exercises() -> dict[str, Exercise]:
    """All that stand under "## Exercises" in the lessons, by the rung's number and a name, as steps
    are called: "05/window". Raises Stop where a name is taken, or an exercise has no check."""
    steps = [(f"{source.rung[:2]}/{source.step}", source.path, source)
             for source in read_sources() if source.step]
    written = []
    for path in course_pages():
        section = re.search(r"^## Exercises\n(.*?)(?=^## |\Z)", read(path),
                            re.MULTILINE | re.DOTALL)
        lesson = os.path.relpath(path, ROOT)
        for name, *texts in WRITTEN.findall(section[1] if section else ""):
            written.append((f"{lesson[:2]}/{name}", lesson, texts))
    checks = by_name((f"{rung[:2]}/{check.name}", f"{rung}/exercises.py", (rung, check))
                     for rung in rungs()
                     if os.path.exists(os.path.join(ROOT, rung, "exercises.py"))
                     for check in importlib.import_module(f"{rung}.exercises").EXERCISES)
    by_name([*steps, *written])
    alone = {name for name, *_ in written} ^ set(checks)
    if alone:
        raise Stop(f"{min(alone)} is to have a task in a lesson and a check in its rung's "
                   "exercises.py, and lacks one of them", WRONG_RESULT)
    exercises = {}
    for name, lesson, (title, task, hints, answer) in written:
        rung, check = checks[name]
        exercises[name] = Exercise(title.rstrip("."), plain(task), plain(answer), lesson,
                                   re.findall("^- (.*)", hints, re.MULTILINE), check,
                                   check.file and os.path.join(rung, check.file))
    return exercises


def by_name(named: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    """Name → thing, of (name, the file that has it, thing)."""
    found: dict[str, tuple[str, Any]] = {}
    for name, path, thing in named:
        if name in found:
            raise Stop(f"{path}: {name} is the name of another in {found[name][0]}; a step or an "
                       "exercise has one of its own", WRONG_RESULT)
        found[name] = path, thing
    return {name: thing for name, (_, thing) in found.items()}


def plain(text: str) -> str:
    """Markdown as a terminal shows it best: formulas and code without their marks."""
    parts = re.split(r"^```.*\n", text, flags=re.MULTILINE)
    for i in range(0, len(parts), 2):  # every second one is fenced
        part = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", parts[i])
        parts[i] = re.sub(r"\$([^$]+)\$", lambda match: formula(match[1]), part).replace("`", "")
    return "".join(parts).strip("\n ")


def formula(tex: str) -> str:
    """TeX as a terminal shows it."""
    tex = re.sub(r"\\frac(\w|\{\w+\})(\w|\{\w+\})", r"\1/\2", tex)
    for old, new in (("\\cdot", "·"), ("\\infty", "∞"), ("\\mathrm", ""), ("\\circ", "∘"),
                     ("\\le", "≤"), ("\\approx", "≈"), ("\\lVert", "‖"), ("\\rVert", "‖"),
                     ("\\alpha", "α"), ("\\hat O", "Ô"), ("\\sqrt", "√"), ("^\\top", "ᵀ"),
                     ("\\hat V", "V̂"), ("{,}", ","), ("\\", ""), ("{", ""), ("}", "")):
        tex = tex.replace(old, new)
    return tex
