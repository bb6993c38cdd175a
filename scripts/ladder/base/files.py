"""Finds, reads and writes the repository's files. A file is written whole or not at all."""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import os
import re
from typing import Any, Iterable

from ladder.base.console import BAD_USAGE, CommandError

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
RESULTS = os.path.join(ROOT, "scripts/results")


def course_pages() -> list[str]:
    """Returns the paths of README.md, of the rungs' pages, and of the results page."""
    return [path for pattern in ("README.md", "[0-9][0-9]_*/**/*.md", "scripts/results/README.md")
            for path in paths_in(ROOT, pattern)]


def paths_in(folder: str, pattern: str) -> list[str]:
    """Returns a folder's sorted paths that match a glob pattern; `folder` itself is no pattern."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), pattern), recursive=True))


def read(path: str) -> str:
    """Returns a file's text; bytes that are not UTF-8 become U+FFFD."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


# ---- result files: lines of JSON, one file per GPU, and sim.jsonl ----

@functools.lru_cache(maxsize=8)
def parsed(text: str) -> list[Any]:
    """Returns the values of a text with one JSON value per line. They are cached, because result
    files are large and read often. Callers must not change them."""
    return [json.loads(line) for line in text.splitlines()]


def read_lines(path: str) -> list[Any]:
    """Returns what parsed() does for a file, or [] if there is no such file. Raises CommandError
    for a line that is not JSON."""
    try:
        return parsed(read(path))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise CommandError(f"{os.path.relpath(path)} has a line that is not JSON: {error}",
                           BAD_USAGE) from None


def json_text(values: Iterable[Any]) -> str:
    """Returns the values as JSON, one per line, so that a diff shows which value changed."""
    return "".join(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
                   for value in values)


def short_name(gpu: str) -> str:
    """Returns "H100" for "NVIDIA H100 80GB HBM3"."""
    return (re.findall(r"[A-Za-z]*\d+", gpu) or re.findall(r"\w+", gpu))[0]


def file_of(gpu: str | None) -> str:
    """Returns the path of a GPU's result file, such as h100.jsonl; for None, the simulator's."""
    return os.path.join(RESULTS, f"{short_name(gpu).lower() if gpu else 'sim'}.jsonl")


def newest_measured(folder: str = RESULTS) -> str | None:
    """Returns the path of the result file with the most recent date in its lines, or None if no GPU
    was measured. README and figures show it by default. If dates are equal, the last name wins."""
    dated = []
    for path in paths_in(folder, "*.jsonl"):
        dates = [line["date"] for line in read_lines(path)
                 if line.get("kind") == "run" and line["device"] == "gpu"]
        if dates:
            dated.append((max(dates), os.path.basename(path), path))
    return max(dated)[-1] if dated else None


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file (a string as UTF-8), and makes its folders if they are missing. If it is
    interrupted, the old file stays as it was."""
    part = f"{path}.part-{os.getpid()}"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
