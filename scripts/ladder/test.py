"""Builds and runs the tests: scripts/test, which has the help, calls this."""

import glob
import itertools
import os
import subprocess
import sys
import tempfile

from ladder import verdict
from ladder.build import build, folder_of, ready
from ladder.console import GOOD, Parser, run_command
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
    others = [one.variant for one in sources
              if one.rung == step.rung and one.variant.startswith(f"{step.variant}_")]
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
        verdict.show(glob.glob(os.path.join(results, "*.xml")))
    return next((abs(status) for status in statuses if status), GOOD)


if __name__ == "__main__":
    sys.exit(run_command(COMMAND, lambda: run(sys.argv[1:]), interrupted=None))
