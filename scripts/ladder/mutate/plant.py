"""Copies of sources that hold mutants, and the programs built from them.

Everything is in build/mutate: `planted` has the copies, `build` is CMake's folder. The working tree
is only read."""

import hashlib
import os
import re
import shutil
import subprocess

from ladder.console import WRONG_RESULT, Stop
from ladder.mutate.rules import Mutant, key
from ladder.programs import wait_for

SWITCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "switch.h")
# What is compiled again and again must compile fast, and then not run too slowly.
FLAGS = "-O1 -w"


def with_mutants(text, numbered, path, header=SWITCH):
    """The text of a source with the mutants of {number: mutant} in it, and which of it is whose:
    [(line, begin, end, number)], counted from 1."""
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
    parts, whose, at = [], [], 0
    line, column = 1, 1
    for place, _, length, new, number in sorted(edits):
        kept = text[at:place]
        line, column = advanced(line, column, kept)
        # Where an operator does not compile, it is named itself.
        own = len(new) or len(numbered[number].was)
        whose.append((line, column, column + own, number))
        column += len(new)
        parts += [kept, new]
        at = place + length
    parts.append(text[at:])
    operators = "".join(f"static constexpr ladder::mutant::{m.operator} M{number}{{{number}}}; "
                        for number, m in sorted(numbered.items()) if m.operator)
    once = "#pragma once\n" if path.endswith(".h") else ""
    return f'{once}#include "{header}"\n{operators}\n#line 1 "{path}"\n' + "".join(parts), whose


def change(file, begin, was, now):
    """A mutant that puts `now` in the place of `was`. In it WAS stands for that, and ON for whether
    the mutant is the one that is made."""
    now = re.sub("([{}])", r"\1\1", now)  # but for what is filled in
    now = now.replace("WAS", "{was}").replace("ON", "ladder::mutant::on({id})")
    return Mutant(file, "change", "", was, "", 0, begin, begin + len(was), now, None, None)


def write_if_new(path, text):
    """Writes a file only where it changes: what is built from it then stays."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            if file.read() == text:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def advanced(line, column, text):
    lines = text.count("\n")
    return line + lines, len(text) - text.rfind("\n") if lines else column + len(text)


class Garden:
    """The programs of a tree with mutants in them. `numbered`: {number: mutant}, those that did not
    compile taken out after build()."""

    def __init__(self, root, numbered):
        self.root = root
        self.numbered = dict(numbered)
        self.folder = os.path.join(root, "build/mutate")
        self.planted = os.path.join(self.folder, "planted")
        self.bin = os.path.join(self.folder, "build/bin")
        self.unfit = {}  # key → why it does not compile
        self.whose = {}  # file → which of its copy's text is which mutant's

    def write(self):
        """Writes the copies, each only where it changes: what is built then stays."""
        files = {m.file for m in self.numbered.values()}
        for folder, _, names in os.walk(self.planted):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.planted) not in files:
                    os.unlink(path)
        for file in files:
            with open(os.path.join(self.root, file), encoding="utf-8") as source:
                text = source.read()
            mine = {n: m for n, m in self.numbered.items() if m.file == file}
            planted, self.whose[file] = with_mutants(text, mine, os.path.join(self.root, file))
            write_if_new(os.path.join(self.planted, file), planted)

    def build(self, targets, progress, jobs=1, note=lambda unfit: None):
        """Builds programs. What the compiler refuses of a mutant is the end of that mutant: a
        change that cannot be written is no mistake that could slip through."""
        for _ in range(12):
            self.write()
            built = os.path.join(self.folder, "build")
            self.run(["cmake", "-S", self.root, "-B", built, "-G", "Ninja",
                      "-DLADDER_CUDA=OFF", f"-DLADDER_PLANTED={self.planted}",
                      "-DCMAKE_BUILD_TYPE=", f"-DCMAKE_CXX_FLAGS={FLAGS}"], "configuring", progress)
            status, said = self.run(["ninja", "-C", built, "-k", "0", "-j", str(jobs), *targets],
                                    "building", progress, may_fail=True)
            if status == 0:
                return
            if not self.take_out(said):
                break
            note(self.unfit)
        raise Stop("the programs with the mutants in them do not build:\n" + said[-3000:],
                   WRONG_RESULT)

    def take_out(self, said):
        """Takes out the mutants that the compiler names: those in whose text it finds an error,
        else those on its line. In a template it names where that is used. False if there are
        none."""
        named = {}
        for pattern in (r"error:.*", r"required .*"):
            for found in re.finditer(rf"^(/[^\s:]+):(\d+):(\d+): +({pattern})$", said, re.M):
                file, line = os.path.relpath(found[1], self.root), int(found[2])
                for number in self.at(file, line, int(found[3])):
                    named[number] = found[4].strip()
            if named:
                break
        # Where a declaration does not compile, nor do the uses of what it declares.
        first = {number: why for number, why in named.items()
                 if self.rule(number) == "moved" or "was not declared" not in why}
        named = first or named
        for number, why in named.items():
            if number in self.numbered:
                self.unfit[key(self.numbered.pop(number))] = why
        return bool(named)

    def at(self, file, line, column):
        """The numbers of the mutants that a place of a copy belongs to. Where it is in none's own
        text, the likeliest of its line are: those that put another kind of value there."""
        here = {number for at, _, _, number in self.whose.get(file, ()) if at == line}
        exactly = {number for at, begin, end, number in self.whose.get(file, ())
                   if at == line and begin <= column < end}
        likely = [{number for number in here if self.rule(number) in rules}
                  for rules in (("rounding",), ("variable", "padded"))]
        return exactly or likely[0] or likely[1] or here or self.around(file, line)

    def rule(self, number):
        return self.numbered[number].rule if number in self.numbered else None

    def around(self, file, line):
        """The mutants of statements that a line is in the midst of."""
        lines = {}
        for at, _, _, number in self.whose.get(file, ()):
            first, last = lines.get(number, (at, at))
            lines[number] = min(first, at), max(last, at)
        return {number for number, (first, last) in lines.items() if first <= line <= last}

    def run(self, command, what, progress, may_fail=False):
        os.makedirs(self.folder, exist_ok=True)
        return run_logged(command, what, progress, os.path.join(self.folder, "build.log"), may_fail)


def run_logged(command, what, progress, log, may_fail=False):
    """Runs a command that says much, into a file: its status, and what it said."""
    with open(log, "w", encoding="utf-8") as out:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                              stderr=subprocess.STDOUT) as process:
            status = wait_for(process, lambda: progress.at(what + last_count(log)))
    with open(log, encoding="utf-8", errors="replace") as out:
        said = out.read()
    if status and not may_fail:
        raise Stop(f"{what} failed:\n{said[-3000:]}", WRONG_RESULT)
    return status, said


def last_count(log):
    """Ninja's own count of what is done, where there is one."""
    with open(log, encoding="utf-8", errors="replace") as out:
        counts = re.findall(r"^\[(\d+/\d+)\]", out.read(), re.M)
    return f" {counts[-1]}" if counts else ""


def fingerprint(root, files):
    """Of what the files say, comments and layout apart."""
    digest = hashlib.sha256()
    for file in sorted(files):
        with open(os.path.join(root, file), encoding="utf-8") as source:
            text = re.sub(r"//[^\n]*", "", source.read())
        digest.update(f"{file} {' '.join(text.split())} ".encode())
    return digest.hexdigest()[:16]


def check_tools():
    missing = [tool for tool in ("cmake", "ninja") if not shutil.which(tool)]
    if missing:
        raise Stop(f"{' and '.join(missing)} missing: scripts/run says how to get it", WRONG_RESULT)
