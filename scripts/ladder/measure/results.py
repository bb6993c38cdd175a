"""A file that scripts/figures measures into: lines of JSON, each with all its fields."""

from __future__ import annotations

import os

from ladder.base.console import BAD_USAGE, Stop
from ladder.base.files import json_text, read_lines, write_whole
from ladder.base.records import Record
from ladder.measure.grid import Key, key


class Results:
    """The lines of a file by key(): each text is that of a run's lines. What is put there is
    written at once, all of it or nothing."""

    def __init__(self, path: str, gpu: str | None) -> None:
        self.path = path
        self.texts: dict[Key, str] = {}
        try:
            for line in read_lines(path):
                name = key(line)
                self.texts[name] = self.texts.get(name, "") + json_text([line])
                was = {"gpu": line.get("device_name"), "sim": None}.get(line.get("device"), gpu)
                if was != gpu:
                    raise Stop(f"{os.path.relpath(path)} was measured on {was or 'the sim'}, and "
                               f"this is {gpu or 'the sim'}; --out names another file", BAD_USAGE)
        except (AttributeError, KeyError, TypeError) as error:
            raise Stop(f"{os.path.relpath(path)} is no file of this script's ({error}); "
                       "--out names another", BAD_USAGE) from None

    def put(self, name: Key, lines: list[Record]) -> None:
        self.texts[name] = json_text(lines)
        self.save()

    def save(self) -> None:
        write_whole(self.path, "".join(self.texts.values()))
