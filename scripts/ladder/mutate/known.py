"""The mutants that may survive, each with the reason: scripts/ladder/mutate/known.json, a list of
{"file", "line", "was", "now", "nth", "reason"}. `line` is the text of the source's line, `was` and
`now` as scripts/mutate prints them, `nth` counts from 0 what is the same in that line. A field that
is left out stands for any."""

import collections
import json
import os

from ladder.console import BAD_USAGE, Stop

FIELDS = ("file", "line", "was", "now", "nth")
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known.json")


def load(path=PATH):
    """The list. One that is malformed is refused: a typing error must not excuse a mutant."""
    try:
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)
    except ValueError as error:
        raise Stop(f"{os.path.relpath(path)} is no JSON: {error}", BAD_USAGE) from None
    for entry in entries:
        if not entry.get("reason", "").strip():
            raise Stop(f"{os.path.relpath(path)}: an entry without a reason: {entry}", BAD_USAGE)
        if set(entry) - {*FIELDS, "reason"} or not {"line", "was"} & set(entry):
            raise Stop(f"{os.path.relpath(path)}: an entry has reason, file, line, was, now "
                       f"and nth, line or was at least: {entry}", BAD_USAGE)
    return entries


def answers(entry, mutant):
    return all(entry[field] == getattr(mutant, field) for field in FIELDS if field in entry)


def reason_for(entries, mutant):
    """Why the mutant may survive, None if the list does not say so."""
    return next((entry["reason"] for entry in entries if answers(entry, mutant)), None)


def stale(entries, mutants):
    """The entries that no mutant of the tree answers to any more."""
    by_line = collections.defaultdict(list)
    for m in mutants:
        by_line[m.line].append(m)
    return [entry for entry in entries if not any(
        answers(entry, m) for m in (by_line[entry["line"]] if "line" in entry else mutants))]
