"""Builds and runs the tests: scripts/test, which has the help, calls this."""

import collections
import glob
import itertools
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from ladder.build import build, folder_of, ready
from ladder.console import GOOD, RED, Paint, Parser, run_command, wrap
from ladder.files import ROOT
from ladder.programs import cores
from ladder.sources import find, read_sources

COMMAND = "scripts/test"
PRESETS = ("default", "debug", "asan", "sim", "clang", "arm64")
PARTS = ("sim", "tile", "harness", "scripts")  # besides rungs and steps


def parse(words):
    """The preset, the parts, and ctest's options: parts come first, as a word after an option of
    ctest's belongs to that."""
    parser = Parser(COMMAND, add_help=False, allow_abbrev=False,
                    usage="scripts/test [PART...] [--preset NAME] [ctest options]")
    parser.add_argument("--preset", choices=PRESETS, default="default")
    options, words = parser.parse_known_args(words)
    parts = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    return options.preset, parts, words[len(parts):]


def step_of(sources, part):
    """The rung that a part is or is of, and GoogleTest's filter of the cases of its step, if it is
    one."""
    step = find(sources, part, f"Parts are {', '.join(PARTS)}, a rung (05) or a step (05/rows). ")
    if "/" not in part:
        return step.rung, None
    # Another step's name may begin as this one's.
    others = [one.variant for one in sources if one.variant.startswith(f"{step.variant}_")]
    cases = [f"*/{name}:*/{name}_*" for name in (step.variant, *others)]
    return step.rung, f"{cases[0]}-{':'.join(cases[1:])}"


def run(words):
    preset, parts, options = parse(words)
    named = [part for part in parts if part in PARTS]
    sources = read_sources()
    chosen = [step_of(sources, part) for part in parts if part not in PARTS]
    whole = [rung for rung, cases in chosen if not cases]
    if not parts or "scripts" in parts:
        ready(COMMAND, "want", "python3-matplotlib", *["chromium"] * bool(os.environ.get("CI")))
    build(COMMAND, preset, *(f"tests_{part}" for part in named), *whole,
          *(f"{rung}_test" for rung, _ in chosen))

    os.chdir(ROOT)  # ctest finds presets, which choose asan's tests, in the current folder alone
    folder = folder_of(preset)
    tests = [f"^{rung}\\." for rung in whole]
    for part in named:  # CMake wrote down which they are
        with open(os.path.join(folder, f"tests_{part}.txt"), encoding="utf-8") as file:
            tests.append(file.read().strip())
    statuses = []
    # Each command leaves its cases in a file; the verdict is over all of them.
    with tempfile.TemporaryDirectory() as results:
        def attempt(command, **environment):
            statuses.append(subprocess.run(command, env={**os.environ, **environment},
                                           check=False).returncode)

        if tests or not parts:
            # One more than there are cores: some tests wait, as for what is to be interrupted.
            attempt(["ctest", "--preset", preset, "-j", str(len(cores()) + 1),
                     "--output-on-failure", "--no-tests=error", "--test-output-size-passed",
                     "1000000", "--output-junit", os.path.join(results, "ctest.xml"),
                     *["--progress"] * sys.stdout.isatty(),
                     *(["-R", "|".join(tests)] if tests else []), *options])
        for number, (rung, cases) in enumerate(chosen):
            if cases:
                attempt([os.path.join(folder, "bin", f"{rung}_test"), f"--gtest_filter={cases}",
                         "--gtest_brief=1"], GTEST_OUTPUT=f"xml:{results}/{number}.xml")
        show_verdict(glob.glob(os.path.join(results, "*.xml")))
    return next((abs(status) for status in statuses if status), GOOD)


# ---- the verdict: from the JUnit files of ctest and GoogleTest ----

# A test of ctest is a program with many cases, which unittest's and GoogleTest's output tells of.
CASES = re.compile(r"^(?:Ran|\[=+\]) (\d+) tests? (?:in |from .* ran\.)", re.MULTILINE)
PYTHON_SKIPPED = re.compile(r"\.\.\. skipped (['\"])(.*)\1$", re.MULTILINE)
# GoogleTest's own file has the reason in the message, below the place; in ctest's it is in the
# output, as is what is `not run here`.
REASON = re.compile(r"^\S+:\d+: Skipped\n(.*)$|not run here: (.*)$", re.MULTILINE)


def why(message):
    return message.split("not run here: ")[-1].strip()


def show_verdict(paths):
    """Prints how many tests ran, failed and were skipped, and why."""
    ran, failed, reasons = 0, [], collections.Counter()
    for path in paths:
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            said = "".join(case.findtext(part) or "" for part in ("system-out", "system-err"))
            many, skipped = CASES.search(said), case.find("skipped")
            if case.find("failure") is not None:
                failed.append(case.get("name"))
            if skipped is not None:
                found = REASON.search(said)
                message = found[1] or found[2] if found else skipped.get("message", "")
                reasons[why(message.split("\n")[-1])] += 1
            elif many:
                mine = [found[2] for found in PYTHON_SKIPPED.finditer(said)]
                mine += [why(found[1]) for found in REASON.finditer(said) if found[1]]
                reasons.update(mine)
                ran += max(0, int(many[1]) - len(mine))  # a class may be skipped as a whole
            else:
                ran += 1
    paint = Paint(sys.stdout)
    head = f"{ran:,} tests ran, {len(failed)} failed, {sum(reasons.values())} were skipped"
    shown = ["", (paint(RED, head) if failed else head) + (":" if reasons else ".")]
    for reason, count in reasons.most_common():
        shown += wrap(f"{count} × {reason}", "  ")
    print("\n".join(shown + [paint(RED, f"Failed: {name}") for name in failed]))


if __name__ == "__main__":
    sys.exit(run_command(COMMAND, lambda: run(sys.argv[1:]), interrupted=None))
