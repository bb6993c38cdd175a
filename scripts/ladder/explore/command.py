"""scripts/explore: runs steps with --trace and writes a page."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import webbrowser

from ladder.base.console import BAD_USAGE, GOOD, WRONG_RESULT, Progress, Stop, run_command
from ladder.base.files import ROOT, write_whole
from ladder.base.programs import Step, ladder_of, programs_in, refuse_output
from ladder.base.sources import named
from ladder.explore.page import page_of, pane_of
from ladder.trace.read import Trace

DEFAULT_STEPS = ["04", "05/mma"]
SMALL = ["--seqlen", "256", "--heads", "1", "--head-dim", "64"]
SMALL_TILES = ["--block-q", "64", "--block-kv", "64"]
# For a step that decodes: a query of each of eight heads, four of which share one of K and V.
DECODING = ["--seqlen", "1", "--seqlen-kv", "1024", "--heads", "8", "--kv-heads", "2",
            "--head-dim", "64", "--set", "splits=4"]
LARGEST = 64 << 20  # bytes of a page: browsers slow down long before


def asked_of(words: list[str]) -> argparse.Namespace:
    """What the command line says. The steps come first, and what is not for this script is for the
    programs."""
    own = argparse.ArgumentParser("scripts/explore", add_help=False, allow_abbrev=False,
                                  usage="%(prog)s [STEP [STEP]] [options] [program options]")
    for name in ("--out", "--bin"):
        own.add_argument(name)
    own.add_argument("--no-open", action="store_true")
    asked, words = own.parse_known_args(words)
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    asked.steps, asked.options = words[:first], words[first:]
    if len(asked.steps) > 2:
        raise Stop("one or two steps", BAD_USAGE)
    return asked


def explore(words: list[str]) -> int:
    asked = asked_of(words)
    progress, panes, faulty = Progress(), [], False
    for step in chosen(asked):
        command = ["--step", step.name, "--device", "sim", *options_of(step, asked.options)]
        trace, records, status, message = Trace.of(step.program, command, progress)
        progress.clear()
        if status or "no source lines" in message:
            print(f"{step.rung} {step.name}: {message}", file=sys.stderr)
        faulty |= status != GOOD
        panes.append(pane_of(trace, records, shlex.join([step.rung, *command])))
    text = page_of(panes)
    if len(text) > LARGEST:
        raise Stop(f"a page of {len(text) >> 20} MiB would be more than a browser takes: a smaller "
                   "--seqlen, fewer --heads", BAD_USAGE)
    out = asked.out or os.path.join(ROOT, "build/explore.html")
    if not asked.out:
        os.makedirs(os.path.dirname(out), exist_ok=True)
    progress.clear()
    write_whole(out, text)
    print(os.path.relpath(out))
    screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get(
        "WAYLAND_DISPLAY")
    if screen and sys.stdout.isatty() and not asked.no_open:
        webbrowser.open("file://" + os.path.abspath(out))
    return WRONG_RESULT if faulty else GOOD


# ---- running ----

def chosen(asked: argparse.Namespace) -> list[Step]:
    """The steps that the command line names."""
    programs = programs_in(asked.bin or os.path.join(ROOT, "build/bin"))
    refuse_output(programs[min(programs)], asked.options, "--step", "--device")
    return named(asked.steps or DEFAULT_STEPS, ladder_of(programs, "sim").steps)


def options_of(step: Step, options: list[str]) -> list[str]:
    """The programs' options: those given, or else such as make a small page."""
    if not options and step.decoding:
        options = DECODING
    elif not options:
        options = SMALL + (SMALL_TILES if (64, 64) in step.tiles_for(64) else [])
    return ["--check", "off", *options]


if __name__ == "__main__":
    sys.exit(run_command("scripts/explore", lambda: explore(sys.argv[1:])))
