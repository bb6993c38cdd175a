"""Mistakes in sources: readers look for them in bug hunts, experiments make them on purpose, and
tests make what readers may hand in. One function makes them all."""

from __future__ import annotations

from typing import Pattern, Sequence, Union

from ladder.base.console import WRONG_RESULT, CommandError

# A change of a text: what stands there, and what takes its place. A text stands there once; a
# pattern may be found often, and its place may name its groups.
Edits = Sequence[tuple[Union[str, Pattern[str]], str]]


def edited(text: str, edits: Edits) -> str:
    """A text with the edits made. Raises CommandError with the one whose place is not there, or
    twice."""
    for old, new in edits:
        if isinstance(old, str):
            if text.count(old) != 1:
                raise CommandError("an edit is to find this once, and it stands "
                                   f"{text.count(old)} times in the file:\n{old}", WRONG_RESULT)
            text = text.replace(old, new)
        else:
            text, count = old.subn(new, text)
            if not count:
                raise CommandError(f"an edit finds nothing like {old.pattern}", WRONG_RESULT)
    return text
