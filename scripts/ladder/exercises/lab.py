"""Where exercises are done: running programs, scratch copies of a rung's files, and building them
with the libraries that are already there."""

import collections
import json
import os
import re
import shlex
import shutil
import subprocess

from ladder.console import BAD_USAGE, NO_DEVICE, WRONG_RESULT, Stop
from ladder.files import ROOT, read
from ladder.records import requested
from ladder.sources import Source

PATCHES = os.path.join(ROOT, "scripts/ladder/exercises/patches")
SECONDS = 300  # that a run may take


class Run(collections.namedtuple("Run", "status records err")):
    def last_words(self):
        """Why there is no result: the sim's fault, or what the program says of its options."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1].rstrip(".") if lines else f"ended with status {self.status}"


class Lab:
    """A build folder, and a folder for scratch copies."""

    def __init__(self, build=None, folder=None):
        self.build = build or next((path for path in (os.path.join(ROOT, "build"),
                                                      os.path.join(ROOT, "build/sim"))
                                    if os.path.exists(os.path.join(path, "bin"))), None)
        self.folder = folder or os.path.join(ROOT, "build/exercise")
        self.runs = {}

    def need_build(self, rung):
        """The built program of a rung, as a command."""
        program = self.build and os.path.join(self.build, "bin", rung)
        if not program or not os.path.exists(program):
            raise Stop(f"{rung} is not built yet: scripts/run builds it", NO_DEVICE)
        return [program]

    # ---- running ----

    def start(self, program, options):
        """A Run of a command on the sim, with --json; one of each is made."""
        key = (*program, *options)
        if key not in self.runs:
            try:
                done = subprocess.run([*key, "--device", "sim", "--json"],
                                      stdin=subprocess.DEVNULL, capture_output=True,
                                      encoding="utf-8", errors="replace", timeout=SECONDS)
            except subprocess.TimeoutExpired:
                return Run(None, [], f"ran for more than {SECONDS} s")
            records = [json.loads(line) for line in done.stdout.splitlines()
                       if line.startswith("{")]
            self.runs[key] = Run(done.returncode, records, done.stderr)
        return self.runs[key]

    def run(self, command):
        """The last record of a built rung, unchecked: the backward pass where there is one."""
        rung, *options = command.split()
        run = self.start(self.need_build(rung), [*options, "--check", "off"])
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

    def copy(self, number, file):
        """Makes the scratch copy unless it is there; whether it was made."""
        path = self.scratch(number, file)
        if os.path.exists(path):
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(os.path.join(ROOT, file), path)
        return True

    # ---- building ----

    def compile(self, number, file):
        """Builds the rung's program with the scratch copy in the place of its step, from the built
        libraries; the command that runs it. Raises Stop with the compiler's first error."""
        compiling, linking, built = self.commands(file)
        made = os.path.join(self.folder, number, "made")
        os.makedirs(made, exist_ok=True)
        stub, step, program = (os.path.join(made, name)
                               for name in ("step.cpp", "step.o", rung_of(file)))
        with open(stub, "w", encoding="utf-8") as target:
            target.write(f'#include "{self.scratch(number, file)}"\n')
        self.tool(compiling, {built: step, compiling[-1]: stub},
                  "Not yet: it does not compile: {}", WRONG_RESULT)
        self.tool(linking, {built: step, f"bin/{rung_of(file)}": program},
                  "it does not link ({}): is everything built? scripts/run builds it", NO_DEVICE)
        self.runs = {key: run for key, run in self.runs.items() if key[0] != program}
        return [program, *self.step_in(file)]

    def unchanged(self, file):
        """The command that runs the rung's step as it is."""
        return self.need_build(rung_of(file)) + self.step_in(file)

    def step_in(self, file):
        """The options that choose the step of a file."""
        return ["--variant", Source(file).variant]

    def commands(self, file):
        """The build's own: that which compiles a step for the sim, that which links its rung's
        program, and the object that is between them."""
        self.need_build(rung_of(file))
        try:  # the program by its path: another folder may have one of this name
            out = subprocess.run(["ninja", "-t", "commands", f"bin/{rung_of(file)}"], check=True,
                                 cwd=self.build, stdin=subprocess.DEVNULL, capture_output=True,
                                 encoding="utf-8").stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise Stop(f"{self.build} is to be built by ninja, as scripts/run does ({error})",
                       NO_DEVICE) from None
        built = f"CMakeFiles/rung_{rung_of(file)}_sim.dir/stubs/{file}.cpp.o"
        lines = [[word for word in shlex.split(line) if word not in (":", "&&")]
                 for line in out.splitlines()]
        return next(words for words in lines if built in words), lines[-1], built

    def tool(self, command, instead, message, status):
        """Runs one of the build's commands with other files. If it fails, Stop has the first error
        that it reports. What a change leaves unused is not a mistake here. -Og compiles fastest
        of what does not run many times slower."""
        for old, new in instead.items():
            command = [word.replace(old, new) for word in command]
        done = subprocess.run([*command, "-Wno-unused", "-Og"], cwd=self.build,
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              errors="replace")
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()
            raise Stop(message.format(next(
                (line for line in lines if re.search(r"error|undefined", line)),
                f"{command[0]} ended with status {done.returncode}")), status)


def rung_of(file):
    return file.split(os.sep)[0]


def patch_text(name):
    return read(os.path.join(PATCHES, f"{name}.patch"))
