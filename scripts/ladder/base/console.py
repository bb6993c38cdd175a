"""Runs a command's main function, ends it with a message and an exit status, parses its options,
and formats what it prints. All commands in scripts use this module."""

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

WIDTH = 100  # columns of the text that commands print

GOOD, WRONG_RESULT, BAD_USAGE, NO_DEVICE = range(4)
# Exit status → severity; higher is worse. Any other status is a crash, worse than all of these.
SEVERITY = {GOOD: 0, NO_DEVICE: 1, BAD_USAGE: 2, WRONG_RESULT: 3}

# The errno of a failed file operation → the advice that ends the error message.
WAYS_OUT = {
    errno.EACCES: 'If root made it, sudo chown -R "$USER" . in the clone makes all files yours',
    errno.EROFS: "Work on a writable copy of the clone, or choose another path",
    errno.ENOSPC: "Make room there, or choose another path"}


class CommandError(Exception):
    """An error that ends the command: run_command() prints the message and exits with `status`."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 05/rows?" if one of the known words resembles `word`, else ""."""
    near = difflib.get_close_matches(word, [*known], 1)
    return f" Did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that takes its help from a module's docstring, `doc`: the first paragraph
    precedes the list of options, and the rest follows it."""

    def __init__(self, prog: str, doc: str | None = None, **more: Any) -> None:
        if doc:
            more["description"], more["epilog"] = doc.split("\n\n", 1)
        super().__init__(prog, formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message: str) -> NoReturn:
        """Exits with BAD_USAGE and the message; suggests a known option for an unknown one."""
        unknown = re.search(r"unrecognized arguments: (--[\w-]+)", message)
        options = [name for action in self._actions for name in action.option_strings]
        super().error(message + (f".{suggestion(unknown[1], options)}" if unknown else ""))


def some_of(*names: str) -> Callable[[str], list[str]]:
    """Returns an argparse type that turns a comma-separated list of these names into a list."""
    def chosen(text: str) -> list[str]:
        words = [word for word in text.split(",") if word]
        for word in words:
            if word not in names:
                raise argparse.ArgumentTypeError(f"'{word}': choose from {', '.join(names)}")
        return words
    return chosen


def show(what: str) -> None:
    """If stderr is a terminal, shows progress in a line that the next call overwrites or clears."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


class Paint:
    """Colours text for a stream if the stream is a terminal with colours and NO_COLOR is not set.
    `code` is a terminal's number for a colour or style, such as BOLD, or None for plain text."""

    def __init__(self, stream: TextIO) -> None:
        self.on = (stream.isatty() and not os.environ.get("NO_COLOR")
                   and os.environ.get("TERM") != "dumb")

    def __call__(self, code: str | None, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.on and code and text.strip() else text


BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"


def wrap(text: str, indent: str = "") -> list[str]:
    """Returns a text's lines, wrapped at spaces to at most WIDTH columns, `indent` included."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)


def run_command(name: str, work: Callable[[], int]) -> int:
    """Runs work() and returns the exit status: that of work() or of a CommandError, BAD_USAGE after
    an OSError, or 130 after Ctrl-C. SIGTERM ends it with 143. Error messages start with `name`, the
    command. Also sets up signals, environment variables and encodings for all commands."""
    def terminated(*_: Any) -> NoReturn:
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when a reader such as head exits
    for variable in [one for one in os.environ if one.startswith("GTEST_")]:
        del os.environ[variable]  # tests would skip cases or print what the scripts cannot parse
    streams: list[Any] = [sys.stdout, sys.stderr]  # Any, because TextIO declares no reconfigure()
    for stream in streams:
        stream.reconfigure(encoding="utf-8", errors="replace")  # in every locale
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
