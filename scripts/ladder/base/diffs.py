"""What changed from a step's file to another's, line by line."""

from __future__ import annotations

import difflib
from typing import Iterator

from ladder.base.sources import Source

Matcher = difflib.SequenceMatcher[str]


def compare(old: Source, new: Source) -> Matcher:
    # A loop put around many lines is a change of two lines. Without autojunk: lines such as "}" are
    # frequent, but they are no junk.
    return difflib.SequenceMatcher(None, [line.lstrip() for line in old.lines],
                                   [line.lstrip() for line in new.lines], autojunk=False)


def hunks(old: Source, new: Source, matcher: Matcher, context: int) -> Iterator[list[str]]:
    """The lines of each hunk, as diff -U has them; its first is the @@ line."""
    for group in matcher.get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        lines = [f"@@ -{extent(first[1], last[2])} +{extent(first[3], last[4])} @@"]
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [" " + line for line in new.lines[j1:j2]]
            else:
                lines += ["-" + line for line in old.lines[i1:i2]]
                lines += ["+" + line for line in new.lines[j1:j2]]
        yield lines


def extent(begin: int, end: int) -> str:
    """As diff counts: a range without lines is named by the line before it."""
    return f"{begin + (end > begin)},{end - begin}"
