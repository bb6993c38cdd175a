"""A changed copy of a source, compiled and linked by the build's own commands with all else as it
is built: an exercise's answer, or mistakes that a test must find."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from ladder.base.console import NO_DEVICE, WRONG_RESULT, Stop
from ladder.base.files import ROOT


def changed(build: str, program: str, file: str, copy: str, folder: str) -> str:
    """Builds a program of a build folder anew in `folder`, with `copy` in place of a file of the
    repository, in its sim half; returns its path. Raises Stop with the compiler's first error.
    Warnings are off: what a change leaves unused is not a mistake. -Og: fast to compile, still fast
    enough to run."""
    try:  # by its path: another folder may have one of this name
        out = subprocess.run(["ninja", "-t", "commands", f"bin/{program}"], check=True, cwd=build,
                             stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise Stop(f"{build} is to be built by ninja, as scripts/run does ({error})",
                   NO_DEVICE) from None
    *compilers, linking = [[word for word in shlex.split(line) if word not in (":", "&&")]
                           for line in out.splitlines()]
    # The sim compiles a kernel through a stub that includes it.
    source = f"/{file}.cpp" if file.endswith(".cu") else f"/{file}"
    command = next((words for words in compilers if words[-1].endswith(source)), None)
    if not command:
        raise Stop(f"{file} is not built yet: scripts/run builds it", NO_DEVICE)
    os.makedirs(folder, exist_ok=True)
    made, new = (os.path.join(folder, name) for name in (program, "changed.o"))
    old = command[command.index("-o") + 1]
    linking[linking.index(f"bin/{program}")] = made
    if old in linking:
        linking[linking.index(old)] = new
    else:  # it is in a library: an object that comes before the library is taken instead
        linking.insert(linking.index("-o"), new)
    compiling = [word.replace(old, new) for word in command[:-2]]  # the dependencies' file, too
    beside = os.path.dirname(os.path.join(ROOT, file))  # where its own headers are
    run_tool([*compiling, "-w", "-Og", "-iquote", beside, "-x", "c++", "-c", copy], build,
             "Not yet: it does not compile: {}", WRONG_RESULT)
    run_tool(linking, build, "it does not link ({}): is everything built? scripts/run builds it",
             NO_DEVICE)
    return made


def run_tool(command: list[str], build: str, message: str, status: int) -> None:
    """Runs a compiler. If it fails, Stop has the first error that it reports."""
    done = subprocess.run(command, cwd=build, stdin=subprocess.DEVNULL, capture_output=True,
                          encoding="utf-8", errors="replace")
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        raise Stop(message.format(next(
            (line for line in lines if re.search(r"error|undefined|cannot find", line)),
            f"{command[0]} ended with status {done.returncode}")), status)
