"""Compiles a changed copy of a source with the build's own commands, and links it with the build's
other objects. The copy is an answer to an exercise, or contains a mistake that a test planted.
`build` is the build folder, `program` the name of a program or of its test (05_flash_v2_test)."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from typing import Sequence

from ladder.base.console import NO_DEVICE, WRONG_RESULT, CommandError
from ladder.base.files import ROOT


def limited(seconds: int, *command: str) -> list[str]:
    """Returns the command limited to `seconds` of CPU time, 4 GB of memory and 100 MB per file."""
    limits = f"ulimit -c 0; ulimit -f 200000; ulimit -v 4000000; ulimit -t {seconds}"
    return ["sh", "-c", f'{{ {limits}; }} 2>/dev/null; exec "$@"', "sh", *command]


def changed(build: str, program: str, file: str, copy: str, folder: str) -> str:
    """Rebuilds a program in `folder` for the simulator, with `copy` in place of `file`. Returns the
    program's path; raises CommandError with the compiler's first error. Warnings are off, because a
    variable that a change leaves unused is not a mistake."""
    return linked(build, program, *compiled(build, program, file, copy, folder, "-w"), folder)


def compiled(build: str, program: str, file: str, copy: str, folder: str, *more: str,
             gpu: bool = False) -> tuple[str, str]:
    """Compiles `copy` as the build compiles `file`, for the simulator with -Og, which compiles fast
    and runs fast enough. Returns the paths of the file's object and of the copy's object."""
    # For the simulator, the build compiles a stub, FILE.cu.cpp, that includes FILE.cu.
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
    beside = os.path.dirname(os.path.join(ROOT, file))  # the folder with its headers
    flags = ["-I", beside] if gpu else ["-Og", "-iquote", beside, *more, "-x", "c++"]
    compiling: list[str] = []
    for word in command:  # renames the dependency file as well
        compiling += [*flags, copy] if word.endswith(source) else [word.replace(old, new)]
    # The limit stops templates whose instantiation never ends. (nvcc has none, because it reserves
    # over 4 GB of memory.)
    run_tool(compiling if gpu else limited(300, *compiling), build,
             "Not yet: it does not compile: {}", WRONG_RESULT)
    return old, new


def linked(build: str, program: str, old: str, new: str, folder: str, *more: str) -> str:
    """Links a program in `folder` with the object `new` in place of `old`, with the additional
    words `more`; returns its path. Raises CommandError with the linker's first error."""
    linking = commands(build, program, "-s")[-1]
    made = os.path.join(folder, program)
    linking[linking.index(f"bin/{program}")] = made
    linking[linking.index(old)] = new
    run_tool([*linking, *more], build,
             "it does not link ({}). If something is not built yet, scripts/run builds it",
             NO_DEVICE)
    return made


def commands(build: str, program: str, *options: str) -> list[list[str]]:
    """Returns the commands with which Ninja builds a program, each split into words."""
    try:  # by the target's path, because target names repeat in other folders
        out = subprocess.run(["ninja", "-t", "commands", *options, f"bin/{program}"], check=True,
                             cwd=build, stdin=subprocess.DEVNULL, capture_output=True,
                             encoding="utf-8").stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CommandError(f"{build} holds no Ninja build ({error}); scripts/run makes one",
                           NO_DEVICE) from None
    return [[word for word in shlex.split(line) if word not in (":", "&&")]
            for line in out.splitlines()]


def run_tool(command: Sequence[str], build: str, message: str, status: int) -> None:
    """Runs a compiler or linker in `build`. If it fails, raises CommandError with this status and
    `message`, whose {} becomes the first error that it reports."""
    done = subprocess.run(command, cwd=build, stdin=subprocess.DEVNULL, capture_output=True,
                          encoding="utf-8", errors="replace")
    if done.returncode:
        lines = (done.stdout + done.stderr).splitlines()
        raise CommandError(message.format(next(
            (line for line in lines if re.search(r"error|undefined|cannot find|multiple", line)),
            f"{command[0]} ended with status {done.returncode}")), status)
