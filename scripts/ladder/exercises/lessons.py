"""Exercises as the lessons have them, title, task and answer, with the hints of hints.md."""

import collections
import os
import re

from ladder.base.files import ROOT, course_pages, read

Written = collections.namedtuple("Written", "title task answer lesson hints")

ONE = re.compile(r"^\*\*(\d+)\. (.*?)\*\*(.*?)"
                 r"^<details><summary>Answer</summary>\n(.*?)^</details>",
                 re.MULTILINE | re.DOTALL)


def written():
    """{"03.2": Written} of what stands under "## Exercises" in each lesson, by its folder:
    "05/hopper.1". Two lessons in one folder count on."""
    found = {}
    hints = {head.strip(): re.findall(r"^- (.*)", text, re.MULTILINE) for head, _, text in (
        part.partition("\n") for part in
        read(os.path.join(ROOT, "scripts/ladder/exercises/hints.md")).split("\n## "))}
    for path in course_pages():
        section = re.search(r"^## Exercises\n(.*?)(?=^## |\Z)", read(path),
                            re.MULTILINE | re.DOTALL)
        lesson = os.path.relpath(path, ROOT)
        where = "/".join([lesson[:2], *lesson.split(os.sep)[1:-1]])
        for number, title, task, answer in ONE.findall(section[1] if section else ""):
            name = f"{where}.{number}"
            found[name] = Written(title.rstrip("."), plain(task), plain(answer), lesson,
                                  hints.get(name, []))
    return found


def plain(text):
    """Markdown as a terminal shows it best: formulas and code without their marks."""
    parts = re.split(r"^```.*\n", text, flags=re.MULTILINE)
    for i in range(0, len(parts), 2):  # every second one is fenced
        part = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", parts[i])
        parts[i] = re.sub(r"\$([^$]+)\$", lambda match: formula(match[1]), part).replace("`", "")
    return "".join(parts).strip("\n ")


def formula(tex):
    tex = re.sub(r"\\frac(\w|\{\w+\})(\w|\{\w+\})", r"\1/\2", tex)
    for old, new in (("\\cdot", "·"), ("\\infty", "∞"), ("\\mathrm", ""), ("\\circ", "∘"),
                     ("\\le", "≤"), ("\\approx", "≈"), ("\\lVert", "‖"), ("\\rVert", "‖"),
                     ("\\alpha", "α"), ("\\hat O", "Ô"), ("\\sqrt", "√"), ("^\\top", "ᵀ"),
                     ("\\hat V", "V̂"), ("{,}", ","), ("\\", ""), ("{", ""), ("}", "")):
        tex = tex.replace(old, new)
    return tex
