"""The page: its parts, which stand in scripts/ladder/explore/web, and the runs, in one file."""

import base64
import html
import json
import os
import zlib

from ladder.files import ROOT

FOLDER = os.path.join(ROOT, "scripts/ladder/explore/web")
SCRIPTS = ("data.js", "replay.js", "words.js", "paint.js", "memory.js", "scores.js", "shared.js",
           "sms.js", "timeline.js", "source.js", "pane.js", "app.js")


def part(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return file.read().strip()


def page_of(panes):
    """A page that needs nothing else."""
    packed = zlib.compress(json.dumps(panes, separators=(",", ":")).encode(), 9)
    parts = {"title": html.escape(" beside ".join(pane["title"] for pane in panes)),
             "style": part("style.css"), "script": "\n\n".join(part(name) for name in SCRIPTS),
             "data": base64.b64encode(packed).decode()}
    page = part("page.html") + "\n"
    for name, text in parts.items():
        page = page.replace("{{" + name + "}}", text)
    return page
