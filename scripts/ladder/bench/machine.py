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
    """What a command printed, or None."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
                              timeout=60, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    return None


def commit(given):
    if given:
        return given
    head = output_of("git", "-C", ROOT, "rev-parse", "--short=12", "HEAD")
    # Earlier results, and text, change nothing in what is measured.
    if head and output_of("git", "-C", ROOT, "status", "--porcelain", "--untracked-files=no", "--",
                          ".", ":(exclude)scripts/results", ":(exclude)*.md"):
        head += "+changes"
    return head


def cuda_version():
    nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")
    release = re.search(r"release ([\d.]+)", output_of("nvcc", "--version")
                        or output_of(nvcc, "--version") or "")
    return release and release[1]


def gpu():
    """Name, driver, memory; None where nvidia-smi does not answer."""
    line = output_of("nvidia-smi", "--query-gpu=name,driver_version,memory.total",
                     "--format=csv,noheader,nounits")
    parts = [part.strip() for part in (line or "").splitlines()[:1] for part in part.split(",")]
    if len(parts) != 3:
        return None
    return {"gpu": parts[0], "driver": parts[1], "memory_bytes": int(parts[2]) * 2**20}


def machine(sim, given_commit):
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    if sim:  # the counts depend on the programs alone
        return {"gpu": None, "driver": None, "memory_bytes": None, "clocks": None, "cuda": None,
                "commit": commit(given_commit), "date": today}
    found = gpu()
    if not found:
        raise Stop("no GPU answers (nvidia-smi); --sim counts on the sim", NO_DEVICE)
    return {**found, "clocks": None, "cuda": cuda_version(), "commit": commit(given_commit),
            "date": today}


class Clocks:
    """Reads the GPU's clocks once a second while all else runs."""

    FIELDS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "temperature_c": "temperature.gpu",
              "power_w": "power.draw"}

    def __init__(self):
        self.seen = {name: [] for name in self.FIELDS}
        self.process = None
        with contextlib.suppress(OSError):
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
        if self.process:
            self.process.kill()
            self.process.wait()


def merged(before, now):
    """Clocks of two runs as one: the median is that of the later."""
    if not before or not now:
        return now or before
    return {name: {"min": min(before.get(name, seen)["min"], seen["min"]),
                   "median": seen["median"],
                   "max": max(before.get(name, seen)["max"], seen["max"])}
            for name, seen in now.items()}
