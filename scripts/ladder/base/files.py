"""Where things are, and files that are written whole or not at all."""

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
    """README, the lessons with what lies beside them, and the page of what was measured."""
    return [path for pattern in ("README.md", "[0-9][0-9]_*/**/*.md", "scripts/results/README.md")
            for path in paths_in(ROOT, pattern)]


def paths_in(folder: str, pattern: str) -> list[str]:
    """Those in a folder, whose own path may have marks of a pattern."""
    return sorted(glob.glob(os.path.join(glob.escape(folder), pattern), recursive=True))


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


# ---- what is measured: lines of JSON, a file a GPU, and sim.jsonl ----


@functools.lru_cache(maxsize=8)
def parsed(text: str) -> list[Any]:
    """Kept, since results are large and read again and again; so not to be changed."""
    return [json.loads(line) for line in text.splitlines()]


def read_lines(path: str) -> list[Any]:
    """The values of a file, one a line; none where there is no file."""
    try:
        return parsed(read(path))
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise CommandError(f"{os.path.relpath(path)} is no JSON: {error}", BAD_USAGE) from None


def json_text(values: Iterable[Any]) -> str:
    """One a line, so that a diff shows which changed."""
    return "".join(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"
                   for value in values)


def short_name(gpu: str) -> str:
    """H100 of an NVIDIA H100 80GB HBM3."""
    return (re.findall(r"[A-Za-z]*\d+", gpu) or re.findall(r"\w+", gpu))[0]


def file_of(gpu: str | None) -> str:
    """Where a GPU's measurements go: h100.jsonl for an NVIDIA H100 80GB HBM3. None: the
    simulator."""
    return os.path.join(RESULTS, f"{short_name(gpu).lower() if gpu else 'sim'}.jsonl")


def newest_measured(folder: str = RESULTS) -> str | None:
    """The file of the GPU that was measured last, by the dates in its lines (of two on one day, the
    last by name), which README and figures show by default; None where no GPU has been measured."""
    dated = []
    for path in paths_in(folder, "*.jsonl"):
        dates = [line["date"] for line in read_lines(path)
                 if line.get("kind") == "run" and line["device"] == "gpu"]
        if dates:
            dated.append((max(dates), os.path.basename(path), path))
    return max(dated)[-1] if dated else None


# ---- writing ----


def write_whole(path: str, content: str | bytes) -> None:
    """Writes a file, text or bytes, whole or not at all, whatever happens meanwhile; its folder is
    made."""
    part = f"{path}.part-{os.getpid()}"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        with open(part, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
