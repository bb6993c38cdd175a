"""Edits the text of sources. Bug hunts plant mistakes, solutions of exercises are stored as edits,
and the tests imitate code that readers may hand in."""

from __future__ import annotations

from typing import Pattern, Sequence, Union

from ladder.base.console import WRONG_RESULT, CommandError

# Changes to a text: (old, new). A string must occur exactly once, a pattern at least once. For a
# pattern, `new` may refer to its groups.
Edits = Sequence[tuple[Union[str, Pattern[str]], str]]


def edited(text: str, edits: Edits) -> str:
    """Returns the text with the edits made. Raises CommandError for an edit that does not fit."""
    for old, new in edits:
        if isinstance(old, str):
            if text.count(old) != 1:
                raise CommandError("an edit must match exactly once, and this text occurs "
                                   f"{text.count(old)} times in the file:\n{old}", WRONG_RESULT)
            text = text.replace(old, new)
        else:
            text, count = old.subn(new, text)
            if not count:
                raise CommandError(f"an edit's pattern matches nothing: {old.pattern}",
                                   WRONG_RESULT)
    return text
