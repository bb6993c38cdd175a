"""Builds and runs the tests: scripts/test, which has the help, calls this."""

from __future__ import annotations

import collections
import itertools
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from typing import NamedTuple

from ladder.base.console import GOOD, RED, WRONG_RESULT, Paint, Parser, run_command, wrap
from ladder.base.files import ROOT, read
from ladder.base.sources import Source, find, read_sources

COMMAND = "scripts/test"
PRESETS = ("default", "debug", "asan", "sim", "clang", "arm64")
PARTS = ("sim", "mistakes", "tile", "harness", "scripts")  # besides rungs and steps
KINDS = f"Parts are {', '.join(PARTS)}, a rung (05) or a step (05/rows). "


class Outcome(NamedTuple):
    """How a program of tests ended, and what it printed."""
    failed: bool
    output: str


def parse(words: list[str]) -> tuple[str, list[str], list[str]]:
    """The preset, the parts, and ctest's options: parts come first, as a word after an option of
    ctest's belongs to that."""
    parser = Parser(COMMAND, add_help=False, allow_abbrev=False,
                    usage="scripts/test [PART...] [--preset NAME] [ctest options]")
    parser.add_argument("--preset", choices=PRESETS, default="default")
    options, words = parser.parse_known_args(words)
    parts = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    return options.preset, parts, words[len(parts):]


def cases_of(sources: list[Source], part: str) -> str:
    """GoogleTest's filter of the cases of a step."""
    steps = [source for source in sources if source.step]
    name = find(steps, part, KINDS).step
    # Another step's name may begin as this one's.
    others = [source.step for source in steps if source.step.startswith(f"{name}_")]
    cases = [f"*/{name}:*/{name}_*" for name in (name, *others)]
    return f"{cases[0]}-{':'.join(cases[1:])}"


def run(words: list[str]) -> int:
    preset, parts, options = parse(words)
    named = [part for part in parts if part in PARTS]
    folder = os.path.join(ROOT, "build", *([preset] if preset != "default" else []))
    programs = os.path.join(folder, "bin")
    sources = read_sources()
    rung_of = {part: find(sources, part, KINDS).rung for part in parts if part not in PARTS}
    steps = {part: cases_of(sources, part) for part in rung_of if "/" in part}
    if not parts or "scripts" in parts:
        ready("want", "python3-matplotlib", *["chromium"] * bool(os.environ.get("CI")))
    if not ready("build", preset, *(f"tests_{part}" for part in named),
                 *(f"{rung}{kind}" for rung in rung_of.values() for kind in ("", "_test"))):
        return WRONG_RESULT

    os.chdir(ROOT)  # ctest finds presets, which choose asan's tests, in the current folder alone
    tests = [f"^{rung}\\." for part, rung in rung_of.items() if part not in steps]
    # CMake has written which tests a part has, as a regular expression.
    tests += [read(os.path.join(folder, f"tests_{part}.txt")).strip() for part in named]
    status = GOOD
    outcomes: list[Outcome] = []
    if tests or not parts:
        status, outcomes = run_ctest(preset, [*(["-R", "|".join(tests)] if tests else []),
                                              *options])
    for part, cases in steps.items():
        name = f"{rung_of[part]}_test"
        done = subprocess.run([os.path.join(programs, name), f"--gtest_filter={cases}",
                               "--gtest_brief=1"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, encoding="utf-8",
                              errors="replace")
        print(done.stdout, end="")
        outcomes.append(Outcome(bool(done.returncode), done.stdout))
        status = status or abs(done.returncode)
    show_verdict(outcomes)
    return status


def ready(*words: str) -> bool:
    """Calls a function of ready.sh; whether it went well."""
    path = os.path.join(ROOT, "scripts/ladder/front/ready.sh")
    return not subprocess.run(["bash", "-eo", "pipefail", "-c", 'source "$1"; "${@:2}"', COMMAND,
                               path, *words], check=False).returncode


def run_ctest(preset: str, options: list[str]) -> tuple[int, list[Outcome]]:
    """Its status, and how its tests ended."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "ctest.xml")
        # One more than there are cores: some tests wait, as for what is to be interrupted.
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        status = subprocess.run(
            ["ctest", "--preset", preset, "-j", str(cores + 1), "--output-on-failure",
             "--no-tests=error", "--test-output-size-passed", "1000000", "--output-junit", path,
             *["--progress"] * sys.stdout.isatty(), *options], check=False).returncode
        tests = xml.etree.ElementTree.parse(path).iter("testcase") if os.path.exists(path) else ()
        cases = [(test.get("status"), test.findtext("system-out") or "") for test in tests]
    return status, [Outcome(how == "fail" or how == "notrun" and not SKIPPED.search(output), output)
                    for how, output in cases]


# A test of ctest is a program with many cases, which unittest's and GoogleTest's output tells of.
CASES = re.compile(r"^(?:Ran|\[=+\]) (\d+) tests? (?:in |from .* ran\.)", re.MULTILINE)
SKIPPED = re.compile(r"\.\.\. skipped (['\"])(?P<python>.*)\1$"
                     r"|^\S+:\d+: Skipped\n(?:not run here: )?(?P<google>.*)$"
                     r"|not run here: (?P<whole>.*)$", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] .*\(\d+ ms\)$|^(?:FAIL|ERROR): ", re.MULTILINE)


def show_verdict(outcomes: list[Outcome]) -> None:
    """Prints how many tests ran, failed and were skipped, and why."""
    ran = 0
    reasons: collections.Counter[str] = collections.Counter()
    for outcome in outcomes:
        many = CASES.search(outcome.output)
        why = [match[match.lastgroup or 0] for match in SKIPPED.finditer(outcome.output)]
        reasons.update(why)
        ran += max(0, (int(many[1]) if many else 1) - len(why))  # a class may be skipped as a whole
    failed = sum(len(FAILED.findall(outcome.output)) or 1 for outcome in outcomes if outcome.failed)
    head = f"{ran:,} tests ran, {failed} failed, {sum(reasons.values())} were skipped"
    print("", Paint(sys.stdout)(RED if failed else None, head) + (":" if reasons else "."),
          *("\n".join(wrap(f"{count} × {reason}", "  "))
            for reason, count in reasons.most_common()), sep="\n")


if __name__ == "__main__":
    sys.exit(run_command(COMMAND, lambda: run(sys.argv[1:])))
