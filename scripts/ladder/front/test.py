"""Implements scripts/test, which prints the help itself: builds the tests of the parts named, runs
them with ctest (or, for a step, its rung's GoogleTest program), and sums up what they printed."""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys

from ladder.base.console import (BAD_USAGE, GOOD, RED, WRONG_RESULT, CommandError, Paint, Parser,
                                 some_of, wrap)
from ladder.base.files import RESULTS, ROOT, json_text, read, read_lines, write_whole
from ladder.base.gpu import machine
from ladder.base.programs import ready, rungs
from ladder.base.records import Record
from ladder.base.sources import cases_of, find, read_sources

COMMAND = "scripts/test"
PARTS = ("sim", "build_tasks", "tile", "harness", "scripts", "gpu")  # besides rungs and steps
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")  # of compute-sanitizer
KINDS = f"A part is {', '.join(PARTS)}, a rung (05) or a step (05/rows). "


def parse(words: list[str]) -> argparse.Namespace:
    """Returns the options, plus `parts` (the leading words) and `passed` (all others, for ctest).
    Parts must come first, because a word after one of ctest's options belongs to that option."""
    parser = Parser(COMMAND, add_help=False, allow_abbrev=False,
                    usage="scripts/test [PART...] [--preset NAME] [ctest options]")
    presets = json.loads(read(os.path.join(ROOT, "CMakePresets.json")))["configurePresets"]
    parser.add_argument("--preset", default="default", choices=[one["name"] for one in presets])
    parser.add_argument("--sanitize", type=some_of(*TOOLS), default=[])
    parser.add_argument("--commit")
    parser.add_argument("--write-expected", action="store_true")
    options, words = parser.parse_known_args(words)
    options.parts = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    options.passed = words[len(options.parts):]
    if options.sanitize and options.parts != ["gpu"]:
        raise CommandError("--sanitize works only with the part gpu: scripts/test gpu --sanitize "
                           f"{','.join(options.sanitize)}", BAD_USAGE)
    return options


def write_expected(preset: str, programs: str) -> int:
    """Runs the tests that compare whole texts, with LADDER_WRITE_EXPECTED set: they then rewrite
    the files of expected output. `programs` is the folder of the tests. Returns the exit status."""
    if not ready(COMMAND, "build", preset, "tests_harness", "tests_scripts",
                 *(f"tests_{rung}" for rung in rungs())):
        return WRONG_RESULT
    # Several tests append to each of these files. Empty, they keep no text of a removed test.
    for path, head in (("harness/report.md", "# What report_test.cpp expects\n"),
                       ("suite/plans.jsonl", ""), ("suite/gpu_plans.jsonl", "")):
        write_whole(os.path.join(ROOT, "common/tests", path), head)
    texts = [[os.path.join(programs, name), "--gtest_filter=*AsWritten*", "--gtest_brief=1"]
             for name in sorted(os.listdir(programs)) if name.endswith("_test")]
    texts += [[sys.executable, os.path.join(ROOT, "scripts/tests"), name, *folder, "-k",
               "expected_output"] for name, *folder in (
                   ("run",), ("figures",), ("explore", programs), ("build_tasks", programs))]
    environment = {**os.environ, "LADDER_WRITE_EXPECTED": "1"}
    return max(abs(subprocess.run(words, env=environment, check=False).returncode)
               for words in texts)


def main(words: list[str]) -> int:
    options = parse(words)
    preset, parts = options.preset, options.parts
    named = [part for part in parts if part in PARTS]
    folder = os.path.join(ROOT, "build", *([preset] if preset != "default" else []))
    programs = os.path.join(folder, "bin")
    if options.write_expected:
        return write_expected(preset, programs)
    sources = read_sources()
    rung_of = {part: find(sources, part, KINDS).rung for part in parts if part not in PARTS}
    with_steps = [source for source in sources if source.step]
    steps = {part: cases_of(sources, find(with_steps, part, KINDS))
             for part in rung_of if "/" in part}
    if not parts or "scripts" in parts:
        ready(COMMAND, "want", "python3-matplotlib", "python3", "-c", "import matplotlib")
    if not ready(COMMAND, "build", preset,
                 *(f"tests_{part}" for part in [*named, *rung_of.values()])):
        return WRONG_RESULT

    if "build_tasks" in named:
        os.environ["LADDER_BUILD_TASKS"] = "all"
    os.chdir(ROOT)  # ctest looks for CMakePresets.json here; the preset asan selects its tests
    labels = named + [rung for part, rung in rung_of.items() if part not in steps]
    status, said = GOOD, ""
    if labels or not parts:
        chosen = ["-L", f"^({'|'.join(labels)})$"] if labels else []
        status, said = run_ctest(preset, folder, [*chosen, *options.passed])
    for part, cases in steps.items():
        name = f"{rung_of[part]}_test"
        done = subprocess.run([os.path.join(programs, name), f"--gtest_filter={cases}",
                               "--gtest_brief=1"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, encoding="utf-8",
                              errors="replace")
        print(done.stdout, end="")
        said += done.stdout
        status = status or abs(done.returncode)
    if parts == ["gpu"] or not (parts or options.passed):
        status = keep_gpu_log(options, programs, said) or status
    show_verdict(status, said)
    return status


def run_ctest(preset: str, folder: str, options: list[str]) -> tuple[int, str]:
    """Runs ctest with a preset and options; returns its status and the output of all its tests,
    from the log in the build folder `folder`."""
    log = os.path.join(folder, "Testing/Temporary/LastTest.log")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(log)
    # One more job than there are cores, because some tests only wait, for example for an interrupt.
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    status = subprocess.run(
        ["ctest", "--preset", preset, "-j", str(cores + 1), "--output-on-failure",
         "--no-tests=error", "--no-label-summary",
         *(["--progress"] if sys.stdout.isatty() else []), *options],
        check=False).returncode
    return status, read(log) if os.path.exists(log) else ""


# ---- the log of tests on a GPU ----

GPU_LOG = os.path.join(RESULTS, "gpu_tests.jsonl")
# In ctest's log: a test that runs on a GPU, by its name, and its output up to the next test.
SUITE = re.compile(r"^\d+/\d+ Test: ([^\n]*\bGpu\w*|gpu_test)$(.*?)(?=^\d+/\d+ Testing: |\Z)",
                   re.MULTILINE | re.DOTALL)


def keep_gpu_log(options: argparse.Namespace, programs: str, said: str) -> int:
    """If any test ran on a GPU, replaces this GPU's line in GPU_LOG with the outcome of this run,
    whose output is `said`, and runs the tools of --sanitize. Returns WRONG_RESULT if they found
    errors, else GOOD."""
    suites = {name: tally(text) for name, text in SUITE.findall(said)}
    if not any(suite["ran"] for suite in suites.values()):
        return GOOD
    name, facts = machine(options.commit)
    line: Record = {"kind": "gpu_tests", "device_name": name, **facts, "suites": suites,
                    "sanitizer": {}}
    others = [other for other in read_lines(GPU_LOG) if other["device_name"] != name]
    write_whole(GPU_LOG, json_text([*others, line]))
    for tool in options.sanitize:
        line["sanitizer"][tool] = {}
        for program in sorted(os.listdir(programs)):
            if re.fullmatch(r"\d\d_\w+_test", program):  # takes minutes, so each is saved at once
                line["sanitizer"][tool][program] = sanitized(tool, programs, program)
                write_whole(GPU_LOG, json_text([*others, line]))
    print(f"Wrote {os.path.relpath(GPU_LOG)}.")
    return max((WRONG_RESULT if counts["errors"] else GOOD
                for of_tool in line["sanitizer"].values() for counts in of_tool.values()),
               default=GOOD)


def sanitized(tool: str, programs: str, name: str) -> Record:
    """Runs the GPU cases of a rung's test program `name` with a ragged shape, one query or one key
    under a tool of compute-sanitizer. Returns tally()'s counts and "errors": how many the tool
    found, or 1 if it printed no summary."""
    print(f"compute-sanitizer --tool {tool}: {name} ...", file=sys.stderr, flush=True)
    said = subprocess.run(
        ["compute-sanitizer", "--tool", tool, os.path.join(programs, name),
         "--gtest_filter=Gpu.*ragged*:Gpu.*one_*", "--gtest_brief=1"], check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace").stdout
    summary = re.search(r"SUMMARY: (\d+)", said)
    counts = {**tally(said), "errors": int(summary[1]) if summary else 1}
    if counts["errors"] or counts["failed"]:
        print("\n".join(said.splitlines()[-60:]), file=sys.stderr)
    return counts


# ---- the outcome ----

# Lines of unittest and GoogleTest: how many tests ran, why one was skipped, and that one failed.
RAN = re.compile(r"^(?:Ran|\[=+\]) (\d+) tests? (?:in |from .* ran\.)", re.MULTILINE)
SKIPPED = re.compile(r"\.\.\. skipped (['\"])(?P<python>.*)\1$"
                     r"|^\S+:\d+: Skipped\n(?:not run here: )?(?P<google>.*)$", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] .*\(\d+ ms\)$|^(?:FAIL|ERROR): ", re.MULTILINE)


def reasons_in(said: str) -> collections.Counter[str]:
    """Returns the number of skipped tests by reason."""
    return collections.Counter(match["python"] or match["google"]
                               for match in SKIPPED.finditer(said))


def tally(said: str) -> dict[str, int]:
    """Returns {"ran", "failed", "skipped"} counted in the output. Skipped tests did not run."""
    skipped = sum(reasons_in(said).values())
    return {"ran": max(0, sum(map(int, RAN.findall(said))) - skipped),
            "failed": len(FAILED.findall(said)), "skipped": skipped}


def show_verdict(status: int, said: str) -> None:
    """Prints how many tests ran, failed and were skipped, and the reasons for skipping."""
    reasons, counts = reasons_in(said), tally(said)
    failed = counts["failed"] or int(status != GOOD)
    head = f"{counts['ran']:,} tests ran, {failed} failed, {counts['skipped']} were skipped"
    print("", Paint(sys.stdout)(RED if failed else None, head) + (":" if reasons else "."),
          *("\n".join(wrap(f"{count} × {reason}", "  "))
            for reason, count in reasons.most_common()), sep="\n")
