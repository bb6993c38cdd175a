"""A changed copy of a source, compiled and linked by the build's own commands with all else as it
is built: an exercise's answer, or mistakes that a test must find."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import Sequence

from ladder.base.console import NO_DEVICE, WRONG_RESULT, CommandError
from ladder.base.files import ROOT


def limited(seconds: int, *command: str) -> list[str]:
    """A command that has so many seconds of a core, and may take 4 GB and write 100 MB a file."""
    limits = f"ulimit -c 0; ulimit -f 200000; ulimit -v 4000000; ulimit -t {seconds}"
    return ["sh", "-c", f'{{ {limits}; }} 2>/dev/null; exec "$@"', "sh", *command]


def changed(build: str, program: str, file: str, copy: str, folder: str) -> str:
    """Builds a program of a build folder anew in `folder`, with `copy` in place of a file of the
    repository, in its sim half; returns its path. Raises CommandError with the compiler's first
    error. Warnings are off: what a change leaves unused is not a mistake."""
    return linked(build, program, *compiled(build, program, file, copy, folder, "-w"), folder)


def compiled(build: str, program: str, file: str, copy: str, folder: str, *more: str,
             gpu: bool = False) -> tuple[str, str]:
    """The object of a program that is made of a file, and its new one made of `copy`. -Og: fast to
    compile, still fast enough to run."""
    # The simulator compiles a kernel through a stub that includes it.
    source = f"/{file}.cpp" if file.endswith(".cu") and not gpu else f"/{file}"
    command = next((words for words in commands(build, program)
                    if any(word.endswith(source) for word in words)), None)
    if not command:
        raise CommandError(f"{file} is not built yet{' for a GPU' if gpu else ''}: scripts/run "
                           "builds it",
                           NO_DEVICE)
    os.makedirs(folder, exist_ok=True)
    old = command[command.index("-o") + 1]
    new = os.path.join(folder, "changed.gpu.o" if gpu else "changed.o")
    beside = os.path.dirname(os.path.join(ROOT, file))  # where its own headers are
    flags = ["-I", beside] if gpu else ["-Og", "-iquote", beside, *more, "-x", "c++"]
    compiling: list[str] = []
    for word in command:  # the dependencies' file goes there, too
        compiling += [*flags, copy] if word.endswith(source) else [word.replace(old, new)]
    # A template may go on for ever. (nvcc reserves more memory than a limit allows.)
    run_tool(compiling if gpu else limited(300, *compiling), build,
             "Not yet: it does not compile: {}", WRONG_RESULT)
    return old, new


def linked(build: str, program: str, old: str, new: str, folder: str, *more: str) -> str:
    """Links a program in `folder` with the new object in the old one's place; returns its path."""
    linking = commands(build, program, "-s")[-1]
    made = os.path.join(folder, program)
    linking[linking.index(f"bin/{program}")] = made
    linking[linking.index(old)] = new
    run_tool([*linking, *more], build,
             "it does not link ({}): is everything built? scripts/run builds it", NO_DEVICE)
    return made


def commands(build: str, program: str, *options: str) -> list[list[str]]:
    try:  # by its path: another folder may have one of this name
        out = subprocess.run(["ninja", "-t", "commands", *options, f"bin/{program}"], check=True,
                             cwd=build, stdin=subprocess.DEVNULL, capture_output=True,
                             encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(f"{build} is to be built by ninja, as scripts/run does ({error})",
                           NO_DEVICE) from None
    return [[word for word in shlex.split(line) if word not in (":", "&&")]
            for line in out.splitlines()]


def run_tool(command: Sequence[str], build: str, message: str, status: int) -> None:
    """Runs a compiler. If it fails, CommandError has the first error that it reports."""
    done = subprocess.run(command, cwd=build, stdin=subprocess.DEVNULL, capture_output=True,
                          encoding="utf-8", errors="replace")
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        raise CommandError(message.format(next(
            (line for line in lines if re.search(r"error|undefined|cannot find|multiple", line)),
            f"{command[0]} ended with status {done.returncode}")), status)
