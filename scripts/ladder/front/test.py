"""Builds and runs the tests: scripts/test, which has the help, calls this."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import re
import subprocess
import sys

from ladder.base.console import GOOD, RED, WRONG_RESULT, Paint, Parser, wrap
from ladder.base.files import ROOT, read
from ladder.base.programs import ready
from ladder.base.sources import Source, find, read_sources

COMMAND = "scripts/test"
PARTS = ("sim", "mistakes", "climb", "tile", "harness", "scripts")  # besides rungs and steps
KINDS = f"Parts are {', '.join(PARTS)}, a rung (05) or a step (05/rows). "


def parse(words: list[str]) -> tuple[str, list[str], list[str]]:
    """The preset, the parts, and ctest's options: parts come first, as a word after an option of
    ctest's belongs to that."""
    parser = Parser(COMMAND, add_help=False, allow_abbrev=False,
                    usage="scripts/test [PART...] [--preset NAME] [ctest options]")
    parser.add_argument("--preset", default="default")
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


def main(words: list[str]) -> int:
    preset, parts, options = parse(words)
    named = [part for part in parts if part in PARTS]
    folder = os.path.join(ROOT, "build", *([preset] if preset != "default" else []))
    programs = os.path.join(folder, "bin")
    sources = read_sources()
    rung_of = {part: find(sources, part, KINDS).rung for part in parts if part not in PARTS}
    steps = {part: cases_of(sources, part) for part in rung_of if "/" in part}
    if not parts or "scripts" in parts:
        ready(COMMAND, "want", "python3-matplotlib", "python3", "-c", "import matplotlib")
        if os.environ.get("CI"):
            ready(COMMAND, "want", "chromium", "command", "-v", "chromium", "google-chrome")
    if not ready(COMMAND, "build", preset,
                 *(f"tests_{part}" for part in [*named, *rung_of.values()])):
        return WRONG_RESULT

    if "climb" in named:
        os.environ["LADDER_CLIMB"] = "all"
    os.chdir(ROOT)  # ctest finds presets, which choose asan's tests, in the current folder alone
    labels = named + [rung for part, rung in rung_of.items() if part not in steps]
    status, said = GOOD, ""
    if labels or not parts:
        chosen = ["-L", f"^({'|'.join(labels)})$"] if labels else []
        status, said = run_ctest(preset, folder, [*chosen, *options])
    for part, cases in steps.items():
        name = f"{rung_of[part]}_test"
        done = subprocess.run([os.path.join(programs, name), f"--gtest_filter={cases}",
                               "--gtest_brief=1"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, encoding="utf-8",
                              errors="replace")
        print(done.stdout, end="")
        said += done.stdout
        status = status or abs(done.returncode)
    show_verdict(status, said)
    return status


def run_ctest(preset: str, folder: str, options: list[str]) -> tuple[int, str]:
    """Its status, and what its tests printed."""
    log = os.path.join(folder, "Testing/Temporary/LastTest.log")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(log)
    # One more than there are cores: some tests wait, as for what is to be interrupted.
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    status = subprocess.run(
        ["ctest", "--preset", preset, "-j", str(cores + 1), "--output-on-failure",
         "--no-tests=error", "--no-label-summary", *["--progress"] * sys.stdout.isatty(), *options],
        check=False).returncode
    return status, read(log) if os.path.exists(log) else ""


# What unittest and GoogleTest print.
RAN = re.compile(r"^(?:Ran|\[=+\]) (\d+) tests? (?:in |from .* ran\.)", re.MULTILINE)
SKIPPED = re.compile(r"\.\.\. skipped (['\"])(?P<python>.*)\1$"
                     r"|^\S+:\d+: Skipped\n(?:not run here: )?(?P<google>.*)$", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] .*\(\d+ ms\)$|^(?:FAIL|ERROR): ", re.MULTILINE)


def show_verdict(status: int, said: str) -> None:
    """Prints how many tests ran, failed and were skipped, and why."""
    reasons = collections.Counter(match["python"] or match["google"]
                                  for match in SKIPPED.finditer(said))
    skipped = sum(reasons.values())
    failed = len(FAILED.findall(said)) or int(status != GOOD)
    head = (f"{max(0, sum(map(int, RAN.findall(said))) - skipped):,} tests ran, {failed} failed, "
            f"{skipped} were skipped")
    print("", Paint(sys.stdout)(RED if failed else None, head) + (":" if reasons else "."),
          *("\n".join(wrap(f"{count} × {reason}", "  "))
            for reason, count in reasons.most_common()), sep="\n")
