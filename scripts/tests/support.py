"""What the tests of the scripts share: places, limits, and commands run in their own folder."""

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
# A limit is for what hangs. A machine may be under load, or be slow: so minutes.
SECONDS = 600
# What a person may have set, and a test sets by itself.
SETTINGS = ("NO_COLOR", "COLUMNS", "CXX", "CXXFLAGS", "CUDACXX", "CUDAHOSTCXX", "NVCC_CCBIN",
            "CMAKE_PREFIX_PATH", "CI", "LADDER_CUDA")

# A command behind which a shell's & stands ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, SCRIPTS)


def programs():
    """The folder of the programs: the first word of the command line where that is no option of
    unittest's, else build/bin."""
    folder = os.path.join(ROOT, "build/bin")
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        folder = os.path.abspath(sys.argv.pop(1))
    if not os.path.exists(os.path.join(folder, "00_naive")):
        sys.exit(f"{sys.argv[0]}: no programs in {folder}; give the folder that has them")
    return folder


def scratch(test):
    """A folder that goes with a test's class."""
    folder = tempfile.TemporaryDirectory()
    test.addClassCleanup(folder.cleanup)
    return folder.name


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def write(*path, text, mode=0o644):
    """Writes a file, of bytes, text or JSON, and its folder too; returns its path."""
    path = os.path.join(*path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not isinstance(text, bytes):
        text = (text if isinstance(text, str) else json.dumps(text)).encode()
    with open(path, "wb") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def expect_output(test, name, text):
    """expected_output.md has this text under this name. Where LADDER_WRITE_EXPECTED is set, as by
    scripts/test --write-expected, the text is written there."""
    path = os.path.join(SCRIPTS, "tests/expected_output.md")
    begin, end = f"\n## {name}\n\n```\n", "```\n"
    head, found, rest = read(path).partition(begin)
    was, closed, rest = rest.partition(end)
    if os.environ.get("LADDER_WRITE_EXPECTED"):
        write(path, text="".join([head, begin, text, end, rest]))
    else:
        test.assertEqual(was, text, f"{name}: scripts/test --write-expected writes it anew")


FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def fences(text, language):
    """(number of the line after the opening fence, lines) of each fenced block."""
    return [(text.count("\n", 0, found.start()) + 2, found[2].splitlines())
            for found in FENCE.finditer(text) if found[1] == language]


def like(record, **wanted):
    return wanted.items() <= record.items()


@functools.cache
def printed(program, *options):
    """The JSON objects of a run, all of which has to pass where it is checked."""
    done = subprocess.run([program, *options, "--json"], stdin=subprocess.DEVNULL,
                          capture_output=True, timeout=SECONDS, encoding="utf-8")
    if done.returncode != 0:
        raise AssertionError(f"{program} {options}: status {done.returncode}: {done.stderr}")
    return list(map(json.loads, done.stdout.splitlines()))


class Scratch(unittest.TestCase):
    """A test in a folder of its own, self.root, and an environment of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="[a] é#")  # whose path is no pattern, or word
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
        """These commands, and what they are made of: compiled too, as Python starts sooner then."""
        os.makedirs(self.at("scripts"), exist_ok=True)
        for name in names:
            shutil.copy(os.path.join(SCRIPTS, name), self.at("scripts"))
        shutil.copytree(os.path.join(SCRIPTS, "ladder"), self.at("scripts/ladder"),
                        ignore=shutil.ignore_patterns("*.pyc.*"))  # in the making

    def run_it(self, *words, status=0, preexec_fn=None, **environment):
        """Runs a command, which ends with this status (None: any)."""
        result = subprocess.run(words, cwd=self.root, preexec_fn=preexec_fn,
                                env={**self.environment, **environment},
                                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                timeout=SECONDS)
        if status is not None:
            self.assertEqual(result.returncode, status, result.stdout + result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def fits(self, text):
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
