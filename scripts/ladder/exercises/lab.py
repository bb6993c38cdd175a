"""Where exercises are done: running programs, scratch copies of a rung's files, and building them
with the libraries that are already there."""

import collections
import functools
import json
import os
import re
import shlex
import shutil
import subprocess

from ladder.console import BAD_USAGE, NO_DEVICE, WRONG_RESULT, Stop
from ladder.files import ROOT
from ladder.programs import Program
from ladder.records import requested
from ladder.steps import ladder_of

PATCHES = os.path.join(ROOT, "scripts/ladder/exercises/patches")
SECONDS = 300  # that a run may take


class Run(collections.namedtuple("Run", "status records out err")):
    def last_words(self):
        """Why there is no result: the sim's fault, or what the program says of its options."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1].rstrip(".") if lines else f"ended with status {self.status}"


class Lab:
    """A build folder, and a folder for scratch copies."""

    def __init__(self, build=None, folder=None, options=()):
        self.build = build or next((path for path in (os.path.join(ROOT, "build"),
                                                      os.path.join(ROOT, "build/sim"))
                                    if os.path.exists(os.path.join(path, "bin"))), None)
        self.folder = folder or os.path.join(ROOT, "build/exercise")
        self.options = options  # of the compiler, besides the build's own
        self.runs = {}
        self.step_of = {}  # of a program that was built here: its step

    def need_build(self, rung):
        """The built program of a rung."""
        program = self.build and os.path.join(self.build, "bin", rung)
        if not program or not os.path.exists(program):
            raise Stop(f"{rung} is not built yet: scripts/run builds it", NO_DEVICE)
        return program

    # ---- running ----

    def start(self, program, options):
        """A Run on the sim, with --json; one of each is made. A program built here runs the step
        that was built, unless the options name one."""
        if program in self.step_of and "--variant" not in options:
            options = ["--variant", self.step_of[program], *options]
        key = program, tuple(options)
        if key not in self.runs:
            try:
                done = subprocess.run([program, "--device", "sim", "--json", *options],
                                      stdin=subprocess.DEVNULL, capture_output=True,
                                      encoding="utf-8", errors="replace", timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return Run(None, [], "", f"ran for more than {SECONDS} s")
            records = [json.loads(line) for line in done.stdout.splitlines()
                       if line.startswith("{")]
            self.runs[key] = Run(done.returncode, records, done.stdout, done.stderr)
        return self.runs[key]

    def run(self, command):
        """The last record of a built rung: the backward pass where there is one."""
        rung, *options = command.split()
        run = self.start(self.need_build(rung), options)
        if not run.records:
            raise Stop(f"{command}: {run.last_words()}", BAD_USAGE)
        return run.records[-1]

    def requested(self, command):
        """Bytes that it requests of HBM."""
        return requested(self.run(command))

    # ---- scratch copies ----

    def scratch(self, number, file):
        """The reader's copy of a file of the repository."""
        return os.path.join(self.folder, number, file)

    def copy(self, number, file, anew=False):
        """Makes the scratch copy unless it is there; whether it was made."""
        path = self.scratch(number, file)
        if os.path.exists(path) and not anew:
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, file), path)
        return True

    def apply(self, number, file, patch):
        """A scratch copy with a solution in it."""
        self.copy(number, file, anew=True)
        path = self.scratch(number, file)
        with open(path, encoding="utf-8") as source:
            text = patched(source.read(), patch_text(patch), patch)
        with open(path, "w", encoding="utf-8") as target:
            target.write(text)

    # ---- building ----

    def compile(self, number, file):
        """Builds the rung's program with the scratch copy in the place of its step, from the built
        libraries, and returns its path. Raises Stop with the compiler's first error."""
        self.need_build(file.split(os.sep)[0])
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            raise Stop(f"{self.build} is not built by ninja: scripts/run builds so", NO_DEVICE)
        made = os.path.join(self.folder, number, "made")
        os.makedirs(made, exist_ok=True)
        source = self.scratch(number, file)
        stub = os.path.join(made, "step.cpp")
        with open(stub, "w", encoding="utf-8") as target:
            target.write(f'#include "{source}"\n')
        built = os.path.join(made, "step.o")
        error = self.tool(compile_command(self.build, file, stub, built, self.options))
        if error:
            raise Stop(f"Not yet: it does not compile: {error}", WRONG_RESULT)
        program = os.path.join(made, file.split(os.sep)[0])
        error = self.tool(link_command(self.build, file, built, program))
        if error:
            raise Stop(f"it does not link ({error}): is {self.build} built to the end? scripts/run "
                       "builds it", NO_DEVICE)
        self.runs = {key: run for key, run in self.runs.items() if key[0] != program}
        return self.with_step(program, file)

    def with_step(self, program, file):
        """The program, of which the step in this file is to be run."""
        rung, *_, name = file.split(os.sep)
        self.step_of[program] = name[:-3] if name != "attention.cu" else \
            ladder_of([Program(program)], "sim").last_portable(rung).variant
        return program

    def unchanged(self, file):
        """The rung's program as it is."""
        return self.with_step(self.need_build(file.split(os.sep)[0]), file)

    def tool(self, command):
        """The first error that a compiler or linker reports, or None."""
        done = subprocess.run(command, cwd=self.build, stdin=subprocess.DEVNULL,
                              capture_output=True, encoding="utf-8", errors="replace")
        if not done.returncode:
            return None
        lines = (done.stdout + done.stderr).splitlines()
        return next((line for line in lines if re.search(r"error|undefined", line)),
                    f"{command[0]} ended with status {done.returncode}")


# ---- how the build builds ----


@functools.lru_cache(maxsize=None)
def compilations(build):
    """Object → the build's own command for it."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = [shlex.split(entry["command"]) for entry in json.load(file)]
    return {words[words.index("-o") + 1]: words for words in commands}


def object_of(build, step):
    """Of a step on the sim."""
    rung = step.split(os.sep)[0]
    return next(made for made in compilations(build)
                if made.endswith(f"rung_{rung}_sim.dir/stubs/{step}.cpp.o"))


def compile_command(build, step, source, target, options):
    """The build's own command for another source."""
    words = list(compilations(build)[object_of(build, step)])
    words[words.index("-c") + 1] = source
    words[words.index("-o") + 1] = target
    # What a change leaves unused is not a mistake here.
    return [*words, "-Wno-unused", *options]


def link_command(build, step, built, target):
    """The build's own command for a rung's program, with another object for one of its steps."""
    rung = step.split(os.sep)[0]
    try:
        # By its path: another folder may have a program of this name.
        out = subprocess.run(["ninja", "-t", "commands", f"bin/{rung}"], cwd=build, check=True,
                             stdin=subprocess.DEVNULL, capture_output=True,
                             encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Stop(f"ninja is needed, which scripts/run installs ({error})", NO_DEVICE) from None
    words = [word for word in shlex.split(out.splitlines()[-1]) if word not in (":", "&&")]
    words[words.index(object_of(build, step))] = built
    words[words.index("-o") + 1] = target
    return words


# ---- patches ----


def patch_text(name):
    with open(os.path.join(PATCHES, f"{name}.patch"), encoding="utf-8") as file:
        return file.read()


def patched(text, patch, name):
    """A text after a unified diff. Hunks are found by their lines, wherever these stand."""
    hunks = re.split(r"^@@.*\n", patch, flags=re.MULTILINE)[1:]
    for hunk in hunks:
        lines = hunk.splitlines()
        old = "".join(line[1:] + "\n" for line in lines if line[:1] in " -")
        new = "".join(line[1:] + "\n" for line in lines if line[:1] in " +")
        if text.count(old) != 1:
            raise Stop(f"scripts/ladder/exercises/patches/{name}.patch does not fit: its "
                       f"lines stand {text.count(old)} times in the file", BAD_USAGE)
        text = text.replace(old, new)
    return text
