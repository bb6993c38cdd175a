"""The files of the ladder's steps, and what they may be called."""

import glob
import os
import re

from ladder.base.console import BAD_USAGE, Stop
from ladder.base.files import ROOT, read
from ladder.base.programs import rungs


class Source:
    """One .cu file of a rung; `step` is the name of its step, as its registration says, "" of a
    library's."""

    def __init__(self, path):
        self.path = path
        self.rung, _, file = path[:-len(".cu")].partition(os.sep)
        self.text = read(os.path.join(ROOT, path))
        self.lines = self.text.splitlines()
        name = re.search(r'^ +\.name = "(\w+)"', self.text, re.MULTILINE)
        self.step = name[1] if name and ".library = true" not in self.text else ""
        stem = os.path.basename(file)
        # What it may be called after its rung's number or name and a slash, the step's name aside.
        self.names = {stem, file, "" if file == "attention" else stem}
        self.name = self.rung[:2] + (f"/{stem}" if file != "attention" else "")


def read_sources():
    """The files of all rungs."""
    paths = [os.path.relpath(path, ROOT) for rung in rungs() for pattern in ("*.cu", "*/*.cu")
             for path in sorted(glob.glob(os.path.join(ROOT, rung, pattern)))]
    return [Source(path) for path in paths]


def named(names, steps):
    """Those of the steps that are called so."""
    by_name = {(step.rung, step.name): step for step in steps}
    sources = [one for one in read_sources() if (one.rung, one.step) in by_name]
    found = [find(sources, name) for name in names]
    return [by_name[one.rung, one.step] for one in found]


def find(sources, name, what=""):
    """The step of a name; a file of that name comes first. `what` it is to be, besides a
    rung or a step."""
    rung, _, wanted = re.sub(r"(/|\.cu)$", "", name).partition("/")
    here = [one for one in sources if rung in (one.rung, one.rung[:2])]
    found = [one for one in here if wanted in one.names] + \
        [one for one in here if wanted == one.step]
    if found:
        return found[0]
    known = {one.rung: [] for one in sources}
    for one in sources:
        other = one.step and f"{one.rung[:2]}/{one.step}" != one.name
        known[one.rung].append(f"{one.name} ({one.step})" if other else one.name)
    raise Stop("\n".join([f"there is no {name}. {what}The rungs and their steps:",
                          *(f"  {rung:<20}{', '.join(of)}" for rung, of in known.items())]),
               BAD_USAGE)
