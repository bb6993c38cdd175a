"""The last lines of scripts/test: how many tests ran, failed and were skipped, and why.

Reads the JUnit files of ctest and GoogleTest. A test of ctest is a program with many cases, which
unittest's and GoogleTest's output tells of.
"""

import collections
import re
import sys
import xml.etree.ElementTree

from ladder.console import RED, Paint, wrap

PYTHONS = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
PYTHON_SKIPPED = re.compile(r"\.\.\. skipped (['\"])(.*)\1$", re.MULTILINE)
GTESTS = re.compile(r"^\[=+\] (\d+) tests? from .* ran\.", re.MULTILINE)
GTESTS_REASON = re.compile(r"^\S+:\d+: Skipped\n(?:not run here: )?(.*)$", re.MULTILINE)
SAID = re.compile(r"not run here: (.*)$", re.MULTILINE)


class Verdict:
    def __init__(self):
        self.ran = 0
        self.failed = []
        self.skipped = collections.Counter()  # reason → cases

    def add(self, case):
        name = case.get("name")
        said = "".join(case.findtext(part) or "" for part in ("system-out", "system-err"))
        if case.find("failure") is not None:
            self.failed.append(name)
        many, skipped = PYTHONS.search(said) or GTESTS.search(said), case.find("skipped")
        if skipped is not None:
            self.skipped[reason(skipped.get("message") or "", said)] += 1
        elif many:
            reasons = [found[2] for found in PYTHON_SKIPPED.finditer(said)] or [
                found[1].strip() for found in GTESTS_REASON.finditer(said)]
            self.skipped.update(reasons)
            self.ran += max(0, int(many[1]) - len(reasons))  # a class may be skipped as a whole
        else:
            self.ran += 1


def reason(message, said):
    # GoogleTest's own file has it in the message, below the place; in ctest's it is in the output.
    found = GTESTS_REASON.search(said) or SAID.search(said)
    text = found[1] if found else message.splitlines()[-1] if message else ""
    return text.removeprefix("not run here: ").strip() or "no reason given"


def show(paths):
    result, paint = Verdict(), Paint(sys.stdout)
    for path in paths:
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            result.add(case)
    skipped = sum(result.skipped.values())
    head = f"{result.ran:,} tests ran, {len(result.failed)} failed, {skipped} were skipped"
    shown = ["", (paint(RED, head) if result.failed else head) + (":" if skipped else ".")]
    for why, count in result.skipped.most_common():
        shown += wrap(f"{count} × {why}", "  ")
    print("\n".join(shown + [paint(RED, f"Failed: {name}") for name in result.failed]))
