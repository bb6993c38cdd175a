"""What a results file says of the machine: GPU, driver, clocks, commit."""

import contextlib
import datetime
import os
import re
import statistics
import subprocess
import threading

from ladder.console import NO_DEVICE, Stop
from ladder.files import ROOT


def output_of(*command):
    """What a command printed; nothing where it failed."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
                              timeout=60, check=True).stdout.strip()
    return ""


def commit(given):
    if given:
        return given
    head = output_of("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
    # Earlier results, and text, change nothing in what is measured.
    if head and output_of("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--",
                          ".", ":(exclude)scripts/results", ":(exclude)*.md"):
        head += "+changes"
    return head or None


def cuda_version():
    nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")
    release = re.search(r"release ([\d.]+)", output_of("nvcc", "--version")
                        or output_of(nvcc, "--version"))
    return release and release[1]


def machine(sim, given_commit):
    about = {"gpu": None, "driver": None, "memory_bytes": None, "clocks": None, "cuda": None,
             "commit": commit(given_commit),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")}
    if sim:  # the counts depend on the programs alone
        return about
    said = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                     "--format=csv,noheader,nounits")
    parts = said.partition("\n")[0].split(", ")
    if len(parts) != 3:
        raise Stop("no GPU answers (nvidia-smi); scripts/figures measure --sim counts on the sim",
                   NO_DEVICE)
    return {**about, "gpu": parts[0], "driver": parts[1], "memory_bytes": int(parts[2]) * 2**20,
            "cuda": cuda_version()}


class Clocks:
    """Reads the GPU's clocks once a second while all else runs."""

    FIELDS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "temperature_c": "temperature.gpu",
              "power_w": "power.draw"}

    def __init__(self):
        self.seen = {name: [] for name in self.FIELDS}
        self.process = subprocess.Popen(
            ["nvidia-smi", f"--query-gpu={','.join(self.FIELDS.values())}",
             "--format=csv,noheader,nounits", "-lms", "1000"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8")
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            for name, text in zip(self.FIELDS, line.split(",")):
                with contextlib.suppress(ValueError):
                    self.seen[name].append(float(text))

    def report(self):
        """Least, median and most of each, or None."""
        return {name: {"min": min(values), "median": statistics.median(values), "max": max(values)}
                for name, values in self.seen.items() if values} or None

    def stop(self):
        self.process.kill()
        self.process.wait()
