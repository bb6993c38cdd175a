"""Copies of sources that hold mutants, and the programs built from them.

Everything is in build/mutate: `planted` has the copies, `build` is CMake's folder. The working tree
is only read."""

import collections
import hashlib
import os
import pathlib
import re

from ladder.build import quietly
from ladder.console import WRONG_RESULT, Stop
from ladder.mutate.rules import Mutant

SWITCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "switch.h")
# What is compiled again and again must compile fast, and then not run too slowly. An index past a
# vector's end ends the program, as it does with the preset asan.
FLAGS = "-O1 -w -D_GLIBCXX_ASSERTIONS"


def with_mutants(text, numbered, path, header=SWITCH):
    """The text of a source with the mutants of {number: mutant} in it, and which of it is whose:
    [(begin, end, number)]."""
    edits = []  # place, rank among those of a place, length of what goes, text that comes, whose
    for number, m in numbered.items():
        before, was, after = m.planted.partition("{was}")
        before, after = before.format(id=number), after.format(id=number)
        # What ends at a place comes first, then what is inserted, then what begins. Of two around
        # the same text the higher number is inside.
        edits.append((m.begin, (3, -m.end, number), 0 if was else m.end - m.begin, before, number))
        if was:
            edits.append((m.end, (0, -m.begin, -number), 0, after, number))
        if m.inserted:
            at, is_before, more = m.inserted
            more = more.replace("{id}", str(number))
            edits.append((at, (2 if is_before else 1, number), 0, more, number))
    operators = "".join(f"static constexpr ladder::mutant::{m.operator} M{number}{{{number}}}; "
                        for number, m in sorted(numbered.items()) if m.operator)
    once = "#pragma once\n" if path.endswith(".h") else ""
    planted = f'{once}#include "{header}"\n{operators}\n#line 1 "{path}"\n'
    whose, at = [], 0
    for place, _, length, new, number in sorted(edits):
        planted += text[at:place] + new
        at = place + length
        # Where an operator does not compile, it is named itself.
        begin = len(planted) - len(new)
        whose.append((begin, begin + (len(new) or len(numbered[number].was)), number))
    return planted + text[at:], whose


def change(file, begin, was, now):
    """A mutant that puts `now` in the place of `was`. In it WAS stands for that, and ON for whether
    the mutant is the one that is made."""
    now = re.sub("([{}])", r"\1\1", now)  # but for what is filled in
    now = now.replace("WAS", "{was}").replace("ON", "ladder::mutant::on({id})")
    return Mutant(file, "change", "", was, "", 0, begin, begin + len(was), now)


def write_if_new(path, text):
    """Writes a file only where it changes: what is built from it then stays."""
    path = pathlib.Path(path)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


class Garden:
    """The programs of a tree with mutants in them. `numbered`: {number: mutant}, those that did not
    compile taken out by build()."""

    def __init__(self, root, numbered):
        self.root = root
        self.numbered = numbered
        self.folder = os.path.join(root, "build/mutate")
        self.planted = pathlib.Path(self.folder, "planted")
        self.bin = os.path.join(self.folder, "build/bin")
        self.copies = {}  # file → its copy, and which of it is which mutant's

    def write(self):
        """Writes the copies, each only where it changes: what is built then stays."""
        self.copies = {}
        # Headers without a mutant too: ninja does not see that a copy comes or goes.
        headers = {str(path.relative_to(self.root)) for part in ("tile", "machine/sim")
                   for path in pathlib.Path(self.root, "common", part).glob("*.h")}
        for file in headers | {m.file for m in self.numbered.values()}:
            source = pathlib.Path(self.root, file)
            mine = {n: m for n, m in self.numbered.items() if m.file == file}
            self.copies[file] = with_mutants(source.read_text(encoding="utf-8"), mine, str(source))
            write_if_new(self.planted / file, self.copies[file][0])
        for path in self.planted.rglob("*"):
            if path.is_file() and str(path.relative_to(self.planted)) not in self.copies:
                path.unlink()

    def build(self, targets, jobs=1):
        """Builds programs: [(mutant, why it does not compile)]. What the compiler refuses of a
        mutant is the end of it: a change that cannot be written cannot slip through."""
        built, log = (os.path.join(self.folder, name) for name in ("build", "build.log"))
        options = ["-G", "Ninja", "-DLADDER_CUDA=OFF", f"-DLADDER_PLANTED={self.planted}",
                   "-DCMAKE_BUILD_TYPE=", f"-DCMAKE_CXX_FLAGS={FLAGS}"]
        unfit = []
        for _ in range(12):
            self.write()
            status, said = quietly(["cmake", "-S", self.root, "-B", built, *options],
                                   "configuring", log)
            if status:
                break
            status, said = quietly(["ninja", "-C", built, "-k", "0", "-j", str(jobs), *targets],
                                   "building", log)
            if status == 0:
                return unfit
            taken_out = self.take_out(said)
            if not taken_out:
                break
            unfit += taken_out
        raise Stop("the programs with the mutants in them do not build:\n" + said[-3000:],
                   WRONG_RESULT)

    def take_out(self, said):
        """Takes out the mutants that the compiler names: those in whose text it finds an error,
        else those on its line. In a template it names where that is used."""
        for pattern in (r"error:.*", r"required .*"):
            named = {number: why.strip() for file, line, column, why in
                     re.findall(rf"^(/[^\s:]+):(\d+):(\d+): +({pattern})$", said, re.M)
                     for number in self.at(os.path.relpath(file, self.root), int(line),
                                           int(column))}
            if named:
                break
        # Where a declaration does not compile, nor do the uses of what it declares.
        first = {number: why for number, why in named.items()
                 if self.numbered[number].rule == "moved" or "was not declared" not in why}
        return [(self.numbered.pop(number), why) for number, why in (first or named).items()]

    def at(self, file, line, column):
        """The numbers of the mutants that a place of a copy belongs to. Where it is in none's own
        text, the likeliest of its line are: those that put another kind of value there; else those
        of statements that the line is in the midst of."""
        if file not in self.copies:
            return set()
        planted, whose = self.copies[file]
        whose = [one for one in whose if one[2] in self.numbered]
        begin = planted.index("#line")
        for _ in range(line):
            begin = planted.index("\n", begin) + 1
        end = planted.find("\n", begin)
        here = {number for first, _, number in whose if begin <= first <= end}
        exactly = {number for first, last, number in whose if number in here
                   and begin <= first <= begin + column - 1 < last}
        likely = [{number for number in here if self.numbered[number].rule in rules}
                  for rules in (("rounding",), ("variable", "padded"))]
        places = collections.defaultdict(list)
        for first, _, number in whose:
            places[number].append(first)
        return exactly or likely[0] or likely[1] or here or {
            number for number, of in places.items() if min(of) <= end and max(of) >= begin}


def fingerprint(root, files):
    """Of what the files say, comments and layout apart."""
    digest = hashlib.sha256()
    for file in sorted(files):
        text = re.sub(r"//[^\n]*", "", pathlib.Path(root, file).read_text(encoding="utf-8"))
        digest.update(f"{file} {' '.join(text.split())} ".encode())
    return digest.hexdigest()[:16]
