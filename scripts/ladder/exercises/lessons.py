"""Exercises as the lessons have them: title, task, hints and answer."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ladder.base.files import ROOT, course_pages, read


class Written(NamedTuple):
    title: str
    task: str
    answer: str
    lesson: str  # its path
    hints: list[str]


EXERCISE = re.compile(r"^\*\*`(\w+)`\. (.*?)\*\*(.*?)"
                      r"^<details><summary>Hints</summary>\n(.*?)^</details>\n\n"
                      r"^<details><summary>Answer</summary>\n(.*?)^</details>",
                      re.MULTILINE | re.DOTALL)


def written() -> dict[str, Written]:
    """What stands under "## Exercises" in each lesson, by the rung's number and a name, as steps
    are called: "05/window"."""
    exercises = {}
    for path in course_pages():
        section = re.search(r"^## Exercises\n(.*?)(?=^## |\Z)", read(path),
                            re.MULTILINE | re.DOTALL)
        lesson = os.path.relpath(path, ROOT)
        for name, title, task, hints, answer in EXERCISE.findall(section[1] if section else ""):
            name = f"{lesson[:2]}/{name}"
            exercises[name] = Written(title.rstrip("."), plain(task), plain(answer), lesson,
                                      re.findall("^- (.*)", hints, re.MULTILINE))
    return exercises


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
