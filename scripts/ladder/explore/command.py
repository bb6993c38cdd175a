"""Implements scripts/explore: runs one or two steps with --trace and writes the explorer's page."""

from __future__ import annotations

import argparse
import html
import os
import pathlib
import re
import shlex
import sys
import webbrowser
from typing import Any, NamedTuple

from ladder.base.console import BAD_USAGE, GOOD, WRONG_RESULT, CommandError, show
from ladder.base.files import ROOT, course_pages, read, write_whole
from ladder.base.programs import Step, ladder_of, programs_in, refuse_output
from ladder.base.records import Record
from ladder.base.sources import named
from ladder.base.text import plain
from ladder.explore.page import page_of, pane_of
from ladder.trace.read import Trace

COMMAND = "scripts/explore"
DEFAULT_STEPS = ["04", "05/large_tiles"]
SMALL = ["--seqlen", "256", "--heads", "1", "--head-dim", "64"]
SMALL_TILES = ["--block-q", "64", "--block-kv", "64"]
# For a step that decodes: one query per head, and four query heads per head of K and V.
DECODING = ["--seqlen", "1", "--seqlen-kv", "1024", "--heads", "8", "--kv-heads", "2",
            "--head-dim", "64", "--set", "splits=4"]
# A lesson that asks for numbers first → (index of the step on the page, what the reader counts).
ASKED = {"00_naive/README.md": (0, ["K is read"]),
         "01_tiled_matmul/README.md": (0, ["each of Q, K, P and V is read"]),
         "01_tiled_matmul/tensor_cores.md": (1, ["K is read"]),
         "04_flash_v1/README.md": (0, ["O_fp32 is read", "O_fp32 is written"]),
         "05_flash_v2/decode.md": (0, ["a row of K is read", "a row of Q is read"])}


class Shown(NamedTuple):
    """An explorer command in a lesson: its words, and the question about it, if any, and answer."""
    lesson: str
    title: str
    words: list[str]
    question: str
    answer: str


def shown_in_lessons() -> list[Shown]:
    found = []
    for path in course_pages():
        text, lesson = read(path), os.path.relpath(path, ROOT)
        for command in re.finditer(r"^(?:\$ |`)scripts/explore *([^`\n]*)", text, re.MULTILINE):
            asked = re.search(r"\*\*Before\syou\spress\splay:\*\*\s(.*?)\n\n<.*?\n\n(.*?)\n\n</",
                              text[command.end():].partition("\n## ")[0], re.DOTALL)
            parts = asked.groups() if asked else ("", "")
            found.append(Shown(lesson, text.partition("\n")[0][2:], shlex.split(command[1]),
                               *(plain(part).replace("\n", " ") for part in parts)))
    return found


def asked_of(words: list[str]) -> argparse.Namespace:
    """Parses a command line into `steps` (the leading words), this script's options, and `options`
    (all other words, which are for the programs)."""
    own = argparse.ArgumentParser(COMMAND, add_help=False, allow_abbrev=False,
                                  usage="%(prog)s [STEP [STEP]] [options] [program options]")
    for name in ("--out", "--bin", "--pages"):
        own.add_argument(name)
    own.add_argument("--no-open", action="store_true")
    asked, words = own.parse_known_args(words)
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    asked.steps, asked.options = words[:first], words[first:]
    if len(asked.steps) > 2:
        raise CommandError(f"{len(asked.steps)} steps given ({' '.join(asked.steps)}): the page "
                           "shows one or two", BAD_USAGE)
    return asked


def main(words: list[str]) -> int:
    asked = asked_of(words)
    if asked.pages:
        if asked.steps or asked.options or asked.out:
            given = [*asked.steps, *asked.options, *(["--out"] if asked.out else [])]
            raise CommandError("--pages writes the pages of all lessons, and takes no steps and no "
                               f"options but --bin; given: {' '.join(given)}", BAD_USAGE)
        return write_pages(asked.pages, asked.bin)
    text, status = made(asked)
    out = asked.out or os.path.join(ROOT, "build/explore.html")
    write_whole(out, text)
    print(os.path.relpath(out))
    screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get(
        "WAYLAND_DISPLAY")
    if screen and sys.stdout.isatty() and not asked.no_open:
        webbrowser.open(pathlib.Path(out).absolute().as_uri())
    return status


INDEX = """<!doctype html>\n<html lang="en">\n<meta charset="utf-8">
<meta name="viewport" content="width=device-width">\n<title>The kernel ladder at work</title>
<h1>The kernel ladder at work</h1>\n<ol>\n{}\n</ol>\n</html>\n"""


def write_pages(folder: str, programs: str | None) -> int:
    """Writes a page for each command that a lesson shows, and an index. Returns the exit status."""
    rows, status = [], GOOD
    for number, shown in enumerate(shown_in_lessons(), 1):
        text, ended = made(asked_of([*shown.words, *(["--bin", programs] if programs else [])]))
        status = max(status, ended)
        name = f"{number:02}-{shown.lesson[:-len('.md')].replace(os.sep, '-')}.html"
        write_whole(os.path.join(folder, name), text)
        rows.append(f'<li><a href="{name}">{html.escape(shown.title)}</a> <code>'
                    f"{html.escape(shlex.join([COMMAND, *shown.words]))}</code>")
    write_whole(os.path.join(folder, "index.html"), INDEX.format("\n".join(rows)))
    print(os.path.relpath(os.path.join(folder, "index.html")))
    return status


def made(asked: argparse.Namespace) -> tuple[str, int]:
    """Returns the page and the exit status, which is WRONG_RESULT if a step ended with a fault."""
    panes, status = [], GOOD
    for number, step in enumerate(chosen(asked)):
        command = ["--step", step.name, "--device", "sim", *options_of(step, asked.options)]
        show(f"Running {step.rung} {step.name} ...")
        trace, records, ended, message = Trace.of(step.program, command)
        show("")
        if ended or "no source lines" in message:
            print(f"{step.rung} {step.name}: {message}", file=sys.stderr)
        status = status if ended == GOOD else WRONG_RESULT
        pane = pane_of(trace, records, shlex.join([step.rung, *command]))
        panes.append(pane | question_of(number, pane, records, [*asked.steps, *asked.options]))
    return page_of(panes), status


def question_of(number: int, pane: dict[str, Any], records: list[Record],
                words: list[str]) -> dict[str, Any]:
    """Returns {"asked": the lesson's question, its answer, and the numbers counted from the trace}
    if a lesson shows the command `words` and asks about its step `number`; else {}."""
    for shown in shown_in_lessons():
        asked, parts = ASKED.get(shown.lesson, (None, [""]))
        if (shown.words, asked) == (words, number) and shown.question and records:
            return {"asked": {"lesson": shown.question, "answer": shown.answer, "parts": [
                [part, times(part, pane)] for part in parts]}}
    return {}


def times(what: str, pane: dict[str, Any]) -> float:
    """Returns how often, on average, a byte of the first array that `what` names is read or, if
    `what` ends in "written", written."""
    size, name = next((one["bytes"], one["name"]) for one in pane["arrays"]
                      if one["name"] in re.findall(r"\w+", what))
    way = "write" if what.endswith("written") else "read"
    return sum(event["bytes"] for event in pane["events"]
               if (event.get("name"), event.get("direction")) == (name, way)) / size


def chosen(asked: argparse.Namespace) -> list[Step]:
    """Returns the steps that the command line names, or else DEFAULT_STEPS."""
    programs = programs_in(asked.bin or os.path.join(ROOT, "build/bin"))
    refuse_output(programs[min(programs)], asked.options, "--step", "--device")
    return named(asked.steps or DEFAULT_STEPS, ladder_of(programs, "sim").steps)


def options_of(step: Step, options: list[str]) -> list[str]:
    """Returns the options for a step's program: those given, or else options for a small run."""
    if not options and step.decoding:
        options = DECODING
    elif not options:
        options = SMALL + (SMALL_TILES if (64, 64) in step.tiles_for(64) else [])
    return ["--check", "off", *options]
