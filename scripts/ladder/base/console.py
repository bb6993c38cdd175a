"""How a command ends, and how its texts look."""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import signal
import sys
import textwrap
from typing import Any, Callable, Iterable, NoReturn, TextIO

WIDTH = 100

GOOD, WRONG_RESULT, BAD_USAGE, NO_DEVICE = range(4)
# Higher is worse; a status that is not here is a crash, and worse than these.
SEVERITY = {GOOD: 0, NO_DEVICE: 1, BAD_USAGE: 2, WRONG_RESULT: 3}


# What to do where the system refuses a file.
WAYS_OUT = {
    errno.EACCES: 'Did root make it? sudo chown -R "$USER" . in the clone makes all of it yours',
    errno.EROFS: "Work on a copy of the clone that can be written, or choose another path",
    errno.ENOSPC: "Make room there, or write elsewhere"}


class CommandError(Exception):
    """Ends the run with a message and a status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def suggestion(word: str, known: Iterable[str]) -> str:
    """" Did you mean 05/rows?" where a word is close to one that is known, else nothing."""
    near = difflib.get_close_matches(word, [*known], 1)
    return f" Did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """argparse's, whose help is the docstring of a module: its first line describes, all else
    follows the options."""

    def __init__(self, prog: str, doc: str | None = None, **more: Any) -> None:
        if doc:
            more["description"], more["epilog"] = doc.split("\n\n", 1)
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        options = [name for action in self._actions for name in action.option_strings]
        super().error(message + (f".{suggestion(unknown[1], options)}" if unknown else ""))


def some_of(*names: str) -> Callable[[str], list[str]]:
    """The type of an option: words that are among these."""
    def chosen(text: str) -> list[str]:
        words = [word for word in text.split(",") if word]
        for word in words:
            if word not in names:
                raise argparse.ArgumentTypeError(f"{word}: there are {', '.join(names)}")
        return words
    return chosen


def show(what: str) -> None:
    """Says on a terminal what is running, in a line of stderr that the next call overwrites."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


class Paint:
    """Gives text a colour, by its code or None, where the stream is a terminal that wants it."""

    def __init__(self, stream: TextIO) -> None:
        self.on = (stream.isatty() and not os.environ.get("NO_COLOR")
                   and os.environ.get("TERM") != "dumb")

    def __call__(self, code: str | None, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.on and code and text.strip() else text


BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"


def wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def run_command(name: str, work: Callable[[], int]) -> int:
    """Runs a script's work() and returns the status that the process ends with: work's own, a
    CommandError's, BAD_USAGE where the system refuses a file, or that of the signal that ended
    it."""
    def terminated(*_: Any) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever read it has seen enough, like head
    for variable in [one for one in os.environ if one.startswith("GTEST_")]:
        del os.environ[variable]  # they choose cases, or change what is read of their output
    streams: list[Any] = [sys.stdout, sys.stderr]  # a TextIO has no reconfigure()
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="replace")  # whatever the locale
    try:
        return work()
    except CommandError as stop:
        print(f"{name}: {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        way_out = WAYS_OUT.get(error.errno or 0,
                               "Choose another path, or move away what is there")
        print(f"{name}: {where}{error.strerror or error}. {way_out}.", file=sys.stderr)
        return BAD_USAGE
