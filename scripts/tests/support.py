"""Provides what the tests in this folder share: paths, files, runs of programs, expected_output.md,
and Scratch, a test with its own folder. To import it makes the package `ladder` importable."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPTS = os.path.join(ROOT, "scripts")
RESULTS = os.path.join(SCRIPTS, "results")
# After this time a command counts as hung: ten minutes, because a machine may be under load.
SECONDS = 600
# Environment variables that Scratch removes, because the user's values would change the output.
SETTINGS = ("NO_COLOR", "COLUMNS", "CXX", "CXXFLAGS", "CUDACXX", "CUDAHOSTCXX", "NVCC_CCBIN",
            "CMAKE_PREFIX_PATH", "CI", "LADDER_CUDA")

# Undoes what a shell's & does: a command started with it ignores Ctrl-C, and so do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, SCRIPTS)


def programs():
    """Takes the first word off the command line, unless it is an option of unittest, and returns it
    as the programs' folder; without such a word, build/bin. Exits if 00_naive is not in it."""
    folder = os.path.join(ROOT, "build/bin")
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        folder = os.path.abspath(sys.argv.pop(1))
    if not os.path.exists(os.path.join(folder, "00_naive")):
        sys.exit(f"{sys.argv[0]}: no programs in {folder}; give the folder that has them")
    return folder


def scratch(test):
    """Returns the path of a new folder, which is removed after the last test of the class."""
    folder = tempfile.TemporaryDirectory()
    test.addClassCleanup(folder.cleanup)
    return folder.name


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def write(*path, text, mode=0o644):
    """Writes a file of bytes, text or JSON and, if necessary, its folder; returns its path."""
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not isinstance(text, bytes):
        text = (text if isinstance(text, str) else json.dumps(text)).encode()
    with open(path, "wb") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def expect_output(test, name, text):
    """Compares a text with the block under the heading `name` in expected_output.md or, if
    LADDER_WRITE_EXPECTED is set (scripts/test --write-expected sets it), replaces the block."""
    path = os.path.join(SCRIPTS, "tests/expected_output.md")
    begin, end = f"\n## {name}\n\n```\n", "```\n"
    head, found, rest = read(path).partition(begin)
    was, closed, rest = rest.partition(end)
    if os.environ.get("LADDER_WRITE_EXPECTED"):
        write(path, text="".join([head, begin, text, end, rest]))
    else:
        test.assertEqual(was, text, f"{name}: scripts/test --write-expected renews it")


FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def fences(text, language):
    """Returns (number of the line below the fence, from 1; lines) for each block in a language."""
    return [(text.count("\n", 0, found.start()) + 2, found[2].splitlines())
            for found in FENCE.finditer(text) if found[1] == language]


def like(record, **wanted):
    return wanted.items() <= record.items()


@functools.cache
def printed(program, *options):
    """Returns the objects that a run with --json prints; a run with the same options is not
    repeated. Raises AssertionError unless it ends with status 0."""
    done = subprocess.run([program, *options, "--json"], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=SECONDS, encoding="utf-8")
    if done.returncode != 0:
        raise AssertionError(f"{program} {options}: status {done.returncode}: {done.stderr}")
    return list(map(json.loads, done.stdout.splitlines()))


class Scratch(unittest.TestCase):
    """A test with its own folder, self.root, and its own environment."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="[a] é#")  # globs need escaping
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in SETTINGS}
        self.environment["TERM"] = "xterm"

    def at(self, *path):
        return os.path.join(self.root, *path)

    def write(self, path, text, mode=0o644):
        return write(self.root, path, text=text, mode=mode)

    def read(self, path):
        return read(self.root, path)

    def copy_scripts(self, *names):
        """Copies these commands of scripts/, and the package ladder with its compiled files."""
        os.makedirs(self.at("scripts"), exist_ok=True)
        for name in names:
            shutil.copy(os.path.join(SCRIPTS, name), self.at("scripts"))
        shutil.copytree(os.path.join(SCRIPTS, "ladder"), self.at("scripts/ladder"),
                        ignore=shutil.ignore_patterns("*.pyc.*"))  # half-written files

    def run_it(self, *words, status=0, preexec_fn=None, **environment):
        """Runs a command in self.root, with these variables added to self.environment. Checks its
        status (None: any), and that no traceback is printed; returns the CompletedProcess."""
        result = subprocess.run(words, cwd=self.root, preexec_fn=preexec_fn,
                                env={**self.environment, **environment},
                                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                timeout=SECONDS)
        if status is not None:
            self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def fits(self, text):
        """Checks that no line of the text is longer than 100 columns."""
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
