"""Configures and builds the ladder, quietly.

python3 scripts/ladder build COMMAND PRESET [TARGET...]: builds all if no target is named. COMMAND
is the script that asks, which messages name.
"""

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

from ladder.console import GOOD, WRONG_RESULT, Progress, Stop, run_command
from ladder.files import ROOT, read, write_whole
from ladder.programs import cores, wait_for


def ready(command, *words):
    """Calls a function of ready.sh; whether it went well."""
    path = os.path.join(ROOT, "scripts/ladder/ready.sh")
    return not subprocess.run(["bash", "-ec", 'source "$1"; "${@:2}"', command, path, *words],
                              check=False).returncode


def folder_of(preset):
    return os.path.join(ROOT, "build", *([preset] if preset != "default" else []))


def jobs(meminfo="/proc/meminfo"):
    """Ninja's -j, where it would start more compilers than memory holds at 500 MB each."""
    with contextlib.suppress(FileNotFoundError):  # Linux alone has it
        fit = int(re.search(r"MemAvailable: +(\d+)", read(meminfo))[1]) // 500_000
        if fit < len(cores()) + 2:
            return [f"-j{max(fit, 1)}"]
    return []


def build(command, preset, *targets):
    folder = folder_of(preset)
    log = os.path.join(folder, "build.log")
    os.makedirs(folder, exist_ok=True)
    # Two builds in one folder would overwrite each other's files: the second waits for the first.
    with open(os.path.join(folder, ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{command}: another build in this clone is under way; waiting for its end.",
                  file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            pass  # some network file systems have no locks
        before, cuda = configure(command, preset, targets, folder, log)
        status, said = quietly(["ninja", "-C", folder, *jobs(), *targets], "building", log)
        if status and cuda != before:
            remember(folder, None, before)
    # Ninja prints a line for each step, and what a step printed only if it said something.
    for line in said.splitlines():
        if not re.match(r"\[\d+/\d+\]|ninja: |-- ", line):
            print(line, file=sys.stderr)
    need(not status, "the build failed", log, said)


def configure(command, preset, targets, folder, log):
    """What CMake decides once and keeps: with another compiler, or in a folder that has moved, it
    has to decide again. What was asked for by LADDER_CUDA holds where it went well, and so do the
    tests where programs alone are asked for. Returns LADDER_CUDA as it was held, and as it is."""
    choice = [ROOT, *map(os.environ.get, ("CXX", "CUDACXX", "CUDAHOSTCXX", "NVCC_CCBIN")),
              shutil.which("nvcc")]
    try:
        *before, held = json.loads(read(os.path.join(folder, ".configured")))
    except (FileNotFoundError, ValueError, TypeError):  # not there, or damaged
        before, held = None, None
    remember(folder, None, held)
    cuda = os.environ.get("LADDER_CUDA") or held
    options = []
    if before != choice:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, "CMakeCache.txt"))
        for compilers in glob.glob(os.path.join(glob.escape(folder), "CMakeFiles/[0-9]*")):
            shutil.rmtree(compilers)
    if list(targets) != ["programs"]:
        options.append("-DLADDER_TESTS=ON")
    elif before != choice:
        options.append("-DLADDER_TESTS=OFF")
    if cuda and preset == "default":
        options.append(f"-DLADDER_CUDA={cuda}")
    words = ["cmake", "-S", ROOT, "--preset", preset, *options]
    status, said = quietly(words, "configuring", log)
    if status and "apt-get install" in said and ready(command, "get"):
        status, said = quietly(words, "configuring", log)
    if status:
        sys.stderr.write(said[said.find("CMake Error"):])
    need(not status, "CMake failed", log, said)
    remember(folder, *choice, cuda)
    return held, cuda


def remember(folder, *choice):
    write_whole(os.path.join(folder, ".configured"), json.dumps(choice))


def need(good, what, log, said):
    if not good:
        if re.search(r"(?s)FAILED: \S*_gpu\.dir/|CMake Error.*CUDA", said):
            what += "; LADDER_CUDA=OFF scripts/run leaves the GPU half out"
        raise Stop(f"{what} (all of its output: {os.path.relpath(log, ROOT)}).", WRONG_RESULT)


def quietly(command, what, log):
    """Runs a command, whose output goes to a file: its status, and what it said."""
    progress = Progress(30)

    def at():
        at = what
        for done, of in re.findall(r"^\[([1-9]\d*)/(\d+)\]", read(log), re.M)[-1:]:
            seconds = (time.monotonic() - progress.started) * (int(of) / int(done) - 1)
            # The first steps are long ones, and say nothing of the others.
            left = f" (about {seconds:.0f} s left)" if 4 * int(done) >= int(of) else ""
            at = f"{what} {done}/{of}{left}"
        progress.at(at)

    with open(log, "w", encoding="utf-8") as out:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                              stderr=subprocess.STDOUT,
                              env={**os.environ, "NINJA_STATUS": "[%f/%t] "}) as process:
            try:
                wait_for(process, at)
            finally:
                progress.clear()
    return process.returncode, read(log)


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1], lambda: build(*sys.argv[1:]) or GOOD, interrupted=None))
