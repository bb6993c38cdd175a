"""Runs commands, ends them with a message and a status, and formats their texts."""

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
# Higher is worse. Any other status is a crash, which is worse than all of these.
SEVERITY = {GOOD: 0, NO_DEVICE: 1, BAD_USAGE: 2, WRONG_RESULT: 3}


# Advice for an error on a file.
WAYS_OUT = {
    errno.EACCES: 'If root made it, sudo chown -R "$USER" . in the clone makes all files yours',
    errno.EROFS: "Work on a copy of the clone that can be written, or choose another path",
    errno.ENOSPC: "Make room there, or choose another path"}


class CommandError(Exception):
    """An error that ends the command with a message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 05/rows?" if a known word is close to this one, else ""."""
    near = difflib.get_close_matches(word, [*known], 1)
    return f" Did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose help is the docstring of a module: its first paragraph comes before
    the options, the rest after them."""

    def __init__(self, prog: str, doc: str | None = None, **more: Any) -> None:
        if doc:
            more["description"], more["epilog"] = doc.split("\n\n", 1)
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        """Exits with the message and, for an unknown option, the closest known one."""
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        options = [name for action in self._actions for name in action.option_strings]
        super().error(message + (f".{suggestion(unknown[1], options)}" if unknown else ""))


def some_of(*names: str) -> Callable[[str], list[str]]:
    """Returns a type for argparse: a comma-separated list of some of these names."""
    def chosen(text: str) -> list[str]:
        words = [word for word in text.split(",") if word]
        for word in words:
            if word not in names:
                raise argparse.ArgumentTypeError(f"'{word}': choose from {', '.join(names)}")
        return words
    return chosen


def show(what: str) -> None:
    """Shows progress in a line of stderr that the next call overwrites, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


class Paint:
    """Colours text for a stream, if that is a terminal and NO_COLOR is not set. The code is an SGR
    number, or None for no colour."""

    def __init__(self, stream: TextIO) -> None:
        self.on = (stream.isatty() and not os.environ.get("NO_COLOR")
                   and os.environ.get("TERM") != "dumb")

    def __call__(self, code: str | None, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.on and code and text.strip() else text


BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"


def wrap(text: str, indent: str = "") -> list[str]:
    """Returns the lines of a text, at most WIDTH columns each."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def run_command(name: str, work: Callable[[], int]) -> int:
    """Runs work() and returns the exit status: work's own, a CommandError's, BAD_USAGE after an
    OSError, or 128 plus the signal that ended it. Prints the error under the command's name."""
    def terminated(*_: Any) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends quietly when a reader such as head ends
    for variable in [one for one in os.environ if one.startswith("GTEST_")]:
        del os.environ[variable]  # they would choose cases, or change the output that is parsed
    streams: list[Any] = [sys.stdout, sys.stderr]  # a TextIO has no reconfigure()
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="replace")  # for every locale
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
                               "Choose another path, or move the existing file away")
        print(f"{name}: {where}{error.strerror or error}. {way_out}.", file=sys.stderr)
        return BAD_USAGE
