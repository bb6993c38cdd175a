"""Finds the source files of the ladder's steps by name, takes them apart into definitions, and
compares two of them line by line."""

from __future__ import annotations

import difflib
import os
import re
from typing import Iterator

from ladder.base.console import BAD_USAGE, CommandError, suggestion
from ladder.base.files import ROOT, paths_in, read
from ladder.base.programs import Step, rungs

# Matches a definition at namespace scope in clang-format's layout: its comment, and then #if …
# #endif or the lines of its head. The head's last line ends the definition or opens a brace. The
# next line that starts with } closes that brace; an array's initialiser ends at }; instead.
DEFINITION = re.compile(
    r"(?:^//.*\n)*(?:^#if .*\n(?:.*\n)*?#endif\n|"
    r"(?:^(?![#/}\n]|namespace).*[^;{}\n]\n)*?^(?![#/}\n]|namespace)"
    r"(?:.*\] = \{\n(?: .*\n)*?.*\};|.*\{(?: *//.*)?\n(?:.*\n)*?\}.*|.*[;}](?: *//.*)?)\n)",
    re.MULTILINE)


def included(path: str, text: str) -> dict[str, str]:
    """Returns {path: text} for the headers that a file includes with #include "…", directly or not.
    Paths are relative to the repository; each header comes after those that it includes."""
    found: dict[str, str] = {}
    for name in re.findall('#include "(.*)"', text):
        header = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if header not in found and os.path.exists(os.path.join(ROOT, header)):
            of_header = read(os.path.join(ROOT, header))
            found |= {**included(header, of_header), header: of_header}
    return found


class Source:
    """A .cu file of a rung: `rung` ("05_flash_v2"), `step` (the name of the step that it registers,
    or ""), `name` (as messages show it: "05", "05/rows"), and `headers`, from included()."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rung, _, file = path[:-len(".cu")].partition(os.sep)
        self.text = read(os.path.join(ROOT, path))
        self.lines = self.text.splitlines()
        self.headers = included(path, self.text)
        name = re.search(r'^ +\.name = "(\w+)"', self.text, re.MULTILINE)
        self.step = name[1] if name else ""
        stem = os.path.basename(file)
        # The words that name this file after the rung and a slash, in addition to the step's name.
        self.names = {stem, file, "" if file == "attention" else stem}
        self.name = self.rung[:2] + (f"/{stem}" if file != "attention" else "")


def read_sources() -> list[Source]:
    return [Source(os.path.relpath(path, ROOT)) for rung in rungs()
            for pattern in ("*.cu", "*/*.cu") for path in paths_in(ROOT, f"{rung}/{pattern}")]


def named(names: list[str], steps: list[Step]) -> list[Step]:
    """Returns those of `steps` that `names` name, in any form that find() accepts."""
    by_name = {step.key: step for step in steps}
    sources = [source for source in read_sources() if (source.rung, source.step) in by_name]
    chosen = [find(sources, name) for name in names]
    return [by_name[source.rung, source.step] for source in chosen]


def find(sources: list[Source], name: str, what: str = "") -> Source:
    """Returns the source with this name, such as "05", "05_flash_v2" or "05/rows". A file's name
    takes precedence over a step's. If there is none, raises CommandError with a list of all names,
    preceded by `what`, a sentence that says which other words the option accepts."""
    rung, _, wanted = re.sub(r"(/|\.cu)$", "", name).partition("/")
    in_rung = [source for source in sources if rung in (source.rung, source.rung[:2])]
    matching = [source for source in in_rung if wanted in source.names] + \
        [source for source in in_rung if wanted == source.step]
    if matching:
        return matching[0]
    known: dict[str, list[str]] = {source.rung: [] for source in sources}
    for source in sources:
        other = source.step and f"{source.rung[:2]}/{source.step}" != source.name
        known[source.rung].append(f"{source.name} ({source.step})" if other else source.name)
    all_names = [f"{source.rung[:2]}/{one}" for source in sources
                 for one in {source.step, *source.names} if one]
    hint = suggestion(name, all_names).lstrip()
    raise CommandError("\n".join([f"there is no {name}. {hint + ' ' if hint else ''}{what}"
                                  "The rungs and their steps:",
                                  *(f"  {rung:<20}{', '.join(names)}"
                                    for rung, names in known.items())]),
                       BAD_USAGE)


def cases_of(sources: list[Source], step: Source) -> str:
    """Returns the GoogleTest filter for all of a step's cases in the suite."""
    # A case is called STEP_CASE, so the filter has to exclude steps such as STEP_tile.
    others = [source.step for source in sources if source.step.startswith(f"{step.step}_")]
    cases = [f"*/{name}:*/{name}_*" for name in (step.step, *others)]
    return f"{cases[0]}-{':'.join(cases[1:])}"


def names_of(definition: str) -> set[str]:
    """Returns the names that a match of DEFINITION defines: none for operators, several for #if."""
    inner = re.sub(r"\A(//.*\n)*#if .*\n", "", definition)
    if inner != definition:
        return set().union(*map(names_of, DEFINITION.findall(inner)))
    code = re.sub(r"//.*|template <.*>\n|\b(__launch_bounds__|alignas|__align__)\(.*?\)\s+(?=\w)",
                  "", definition)
    name = re.search(r"(?:struct|class) (\w+)|(\w+)(?: =|\[|\()", code.partition("operator")[0])
    return {name[1] or name[2]} if name else set()


def defined(text: str) -> dict[str, str]:
    """Returns a text's definitions, keyed by the names that they define."""
    return {name: definition for definition in DEFINITION.findall(text)
            for name in names_of(definition)}


class Diff:
    """The difference between the files of two steps, line by line."""

    def __init__(self, old: Source, new: Source) -> None:
        self.old, self.new = old, new
        # Indentation is ignored, so a loop put around many lines changes only two lines. autojunk
        # is off, because frequent lines such as "}" matter too.
        self.matcher = difflib.SequenceMatcher(None, [line.lstrip() for line in old.lines],
                                               [line.lstrip() for line in new.lines],
                                               autojunk=False)

    def counts(self) -> tuple[int, int, int]:
        """Returns the numbers of added, removed and kept lines, in this order."""
        kept = sum(block.size for block in self.matcher.get_matching_blocks())
        return len(self.new.lines) - kept, len(self.old.lines) - kept, kept

    def hunks(self, context: int) -> Iterator[list[str]]:
        """Yields the lines of each hunk as diff -U `context` prints them, the @@ line first."""
        for group in self.matcher.get_grouped_opcodes(context):
            first, last = group[0], group[-1]
            lines = [f"@@ -{first[1] + 1},{last[2] - first[1]} "
                     f"+{first[3] + 1},{last[4] - first[3]} @@"]
            for tag, i1, i2, j1, j2 in group:
                if tag != "equal":
                    lines += ["-" + line for line in self.old.lines[i1:i2]]
                mark = " " if tag == "equal" else "+"
                lines += [mark + line for line in self.new.lines[j1:j2]]
            yield lines
