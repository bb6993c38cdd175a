"""Exercises as the lessons have them: title, task and answer."""

import collections
import glob
import os
import re

from ladder.files import ROOT

Written = collections.namedtuple("Written", "title task answer lesson")

ONE = re.compile(r"^\*\*(\d+)\. (.*?)\*\*(.*?)^<details><summary>Answer</summary>\n(.*?)^</details>",
                 re.MULTILINE | re.DOTALL)


def written():
    """{"03.2": Written} of what stands under "## Exercises" in each rung's lesson."""
    found = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "[0-9][0-9]_*/README.md"))):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        section = re.search(r"^## Exercises\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        lesson = os.path.relpath(path, ROOT)
        for number, title, task, answer in ONE.findall(section[1] if section else ""):
            found[f"{lesson[:2]}.{number}"] = Written(title.rstrip("."), plain(task),
                                                      plain(answer), lesson)
    return found


def plain(text):
    """Markdown as a terminal shows it best: formulas and code without their marks."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\$([^$\n]+)\$", lambda match: formula(match[1]), text)
    return text.replace("`", "").strip("\n ")


def formula(tex):
    for old, new in (("\\cdot", "·"), ("\\times", "×"), ("\\infty", "∞"), ("\\lceil", "⌈"),
                     ("\\rceil", "⌉"), ("\\mathrm{scale}", "scale"), ("\\circ", "∘"),
                     ("\\max", "max"), ("\\ln", "ln"), ("\\le", "≤"), ("\\approx", "≈"),
                     ("\\lVert", "‖"), ("\\rVert", "‖"), ("\\alpha", "α"), ("\\hat O", "Ô"),
                     ("\\sqrt{d}", "√d"), ("{,}", ","), ("\\", ""), ("{", ""), ("}", "")):
        tex = tex.replace(old, new)
    return tex
