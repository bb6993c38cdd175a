"""Tests of scripts/bench.py, with programs and a PyTorch that stand in for the real ones.

Run alone: python3 scripts/tests/bench_test.py [build/bin]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

from base import ROOT, SCRIPTS, SECONDS, argument, listed, program, read, write
import bench
import fake_torch
from ladder import files, programs, steps
from ladder.bench import grid, results, sdpa
from ladder.console import Stop

BIN = os.path.join(ROOT, "build/bin")
NAME = "NVIDIA Fake 80GB"

# A program of ours: what it is told comes from the environment, and what it is asked goes to a log.
PROGRAM = '''\
import json, os, sys, time
rung, *arguments = sys.argv[1:]
with open(os.environ["FAKE_LOG"], "a") as file:
    print(rung, *arguments, file=file)
given = dict(zip(arguments, arguments[1:]))
told = os.environ.get("FAKE_TOLD", "").split("|")  # rung, variant, what happens
wrong = told == [rung, given["--variant"], "wrong"]
n, d = int(given["--seqlen"]), int(given["--head-dim"])
if told[:2] == [rung, given["--variant"]]:
    if told[2] == "memory":
        print(f"{rung}: {rung} needs 256.0 GiB of GPU memory; 79.1 are free.", file=sys.stderr)
        sys.exit(3)
    if told[2] == "crash":
        print(f"{rung}: something broke", file=sys.stderr)
        sys.exit(1)
    if told[2] == "hang":
        open(os.environ["FAKE_LOG"] + ".hangs", "w").close()
        time.sleep(20)
for direction in ["fwd", "bwd"] if rung.startswith("06") else ["fwd"]:
    print(json.dumps({
        "rung": rung, "variant": given["--variant"], "direction": direction, "device": "gpu",
        "dtype": given["--dtype"], "input": given.get("--input", "normal"), "seed": 0,
        "batch": int(given["--batch"]), "heads": int(given["--heads"]), "seqlen": n,
        "seqlen_kv": n, "head_dim": d, "causal": "--causal" in arguments, "time_ms": 1.5,
        "unknown": [1, {"a": None}], "pass": not wrong}))
sys.exit(1 if wrong else 0)
'''

NVIDIA_SMI = '''\
#!/bin/sh
case "$*" in
*-lms*) echo '1755, 2619, 45, 300.5'; echo '1200, 2619, 60, 700.0'; exec sleep 60;;
*) echo "$FAKE_GPU, 570.1, 81559";;
esac
'''


class Fake(unittest.TestCase):
    """A folder with programs and a GPU that are made up."""

    STEPS = {"00_naive": ["naive"], "04_flash_v1": ["flash_v1"], "05_flash_v2": ["swap", "mma"],
             "06_backward": ["mma"]}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.write("program.py", PROGRAM)
        self.programs("bin", ("sim", "gpu"))
        self.write("path/nvidia-smi", NVIDIA_SMI, 0o755)
        fake_torch.install(os.path.join(self.root, "python"))
        self.log = os.path.join(self.root, "log")
        self.out = os.path.join(self.root, "out.json")
        self.environment = {
            **os.environ, "PATH": f"{self.root}/path:{os.environ['PATH']}",
            "PYTHONPATH": os.path.join(self.root, "python"), "PYTHONDONTWRITEBYTECODE": "1",
            "FAKE_LOG": self.log, "FAKE_GPU": NAME}

    def write(self, path, text, mode=0o644):
        write(self.root, path, text=text, mode=mode)

    def programs(self, folder, devices):
        for rung, names in self.STEPS.items():
            program(os.path.join(self.root, folder, rung), [
                listed(rung, step, device, default=step == names[-1],
                       backward=rung == "06_backward", tiles=[[128, 64, 128], [128, 64, 64]])
                for step in names for device in devices],
                f"exec {sys.executable} -S '{self.root}/program.py' {rung} \"$@\"")

    def command(self, *options):
        return [os.path.join(SCRIPTS, "bench.py"), "--bin", "bin", "--out", "out.json", "--time",
                "5", "--commit", "abc", *options]

    def bench(self, *options, status=0, **environment):
        result = subprocess.run(self.command(*options), cwd=self.root,
                                env={**self.environment, **environment},
                                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                timeout=SECONDS)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def data(self):
        return json.loads(read(self.out))

    def calls(self):
        """What was measured since the last time."""
        if not os.path.exists(self.log):
            return []
        lines = [line for line in read(self.log).splitlines() if line[:2].isdigit()]
        os.unlink(self.log)
        return lines


class Bench(Fake):
    ONE = ["--seqlen", "1k", "--head-dim", "64", "--causal", "no"]

    def test_the_file(self):
        self.bench("--grid", "quick")
        data = self.data()
        self.assertEqual(list(data), ["machine", "ceilings", "steps", "commands", "records",
                                      "peers", "skipped"])
        machine = data["machine"]
        self.assertEqual((machine["gpu"], machine["driver"], machine["memory_bytes"],
                          machine["commit"]), (NAME, "570.1", 81559 * 2**20, "abc"))
        self.assertEqual(machine["clocks"]["sm_mhz"], {"min": 1200, "median": 1477.5, "max": 1755})
        self.assertAlmostEqual(data["ceilings"]["matmul_tflops"], 700)
        calls = self.calls()
        # Each step once, then twice against float64; 06 says two things each time.
        self.assertEqual(len(calls), 5 * 3)
        self.assertEqual(len(data["records"]), 6 * 3)
        self.assertEqual(len(data["commands"]), 6 * 3)
        self.assertIn("04_flash_v1 --device gpu --variant flash_v1 --batch 8 --heads 32 --seqlen "
                      "2048 --head-dim 64 --dtype bf16 --check off --time 5 --dram --json", calls)
        self.assertIn("00_naive --device gpu --variant naive --batch 1 --heads 2 --seqlen 1024 "
                      "--head-dim 64 --dtype bf16 --check full --input outliers --time 5 --json",
                      calls)
        self.assertEqual(data["records"][0]["unknown"], [1, {"a": None}])  # unchanged
        self.assertEqual([(r["rung"], r["variant"], r["direction"]) for r in data["peers"]],
                         [("pytorch", b, d) for d in ("fwd", "bwd") for b in sdpa.BACKENDS])
        self.assertEqual(data["skipped"], [])

    def test_peers_are_measured_just_before_what_is_compared_with_them(self):
        self.bench(*self.ONE)
        turns = [line.split()[0] for line in read(self.log).splitlines()
                 if re.match("0|attention", line)]
        turns = [turn for turn, before in zip(turns, [None, *turns]) if turn != before]
        # PyTorch's process starts, and logs, at its own pace only before the first of ours.
        self.assertEqual(turns, ["00_naive", "04_flash_v1", "attention", "05_flash_v2",
                                 "06_backward"])

    def test_what_was_measured_beside_a_peer_stands_at_it(self):
        def beside():
            return {(r["variant"], tuple(r["beside"])) for r in self.data()["peers"]}

        every = ("05_flash_v2 mma", "05_flash_v2 swap", "06_backward mma")
        self.bench(*self.ONE)
        self.assertEqual(beside(), {(peer, every) for peer in sdpa.BACKENDS})
        # A step again, and one peer with it: the others were not beside this one.
        self.bench(*self.ONE, "--rung", "05", "--variant", "swap", "--again", "--peers", "flash")
        self.assertEqual(beside(), {(peer, ("05_flash_v2 swap",) if peer == "flash" else every)
                                    for peer in sdpa.BACKENDS})

    def test_a_peer_that_comes_later_has_nothing_beside_it(self):
        self.bench(*self.ONE, "--peers", "flash")
        self.bench(*self.ONE, "--peers", "flash,cudnn")
        self.assertEqual({r["variant"]: len(r["beside"]) for r in self.data()["peers"]},
                         {"flash": 3, "cudnn": 0})

    def test_a_step_again_leaves_the_ceilings(self):
        self.bench(*self.ONE)
        data = self.data()
        data["ceilings"] = dict.fromkeys(data["ceilings"], 1)
        self.write("out.json", data)
        self.bench(*self.ONE, "--rung", "05", "--variant", "swap", "--again")
        self.assertEqual(self.data()["ceilings"], data["ceilings"])
        self.bench(*self.ONE, "--again")
        self.assertAlmostEqual(self.data()["ceilings"]["matmul_tflops"], 700)

    def test_what_is_there_is_kept(self):
        self.bench(*self.ONE)
        before = self.data()
        self.assertEqual(len(self.calls()), 5)
        result = self.bench(*self.ONE, "--time", "7", "--no-dram")
        self.assertEqual(self.calls(), [])
        self.assertEqual(self.data(), before)
        self.assertIn("0 runs new, 5 were there", result.stderr)
        self.assertIn("lacks 01_tiled_matmul, 02_safe_softmax, 03_online_softmax: "
                      "measuring the others", result.stderr)
        self.bench(*self.ONE, "--rung", "05", "--variant", "swap", "--again", "--peers", "none")
        self.assertEqual(len(self.calls()), 1)
        self.assertEqual(self.data()["records"], before["records"])
        self.bench("--seqlen", "512", "--head-dim", "64", "--causal", "no", "--rung", "00")
        self.assertEqual(len(self.data()["records"]), len(before["records"]) + 1)
        self.assertEqual(self.data()["steps"], before["steps"])

    def test_again_leaves_nothing_old_where_it_is_interrupted(self):
        self.bench(*self.ONE)
        before = self.data()
        self.calls()
        self.bench(*self.ONE, "--again", "--minutes", "0.0001")
        data = self.data()
        self.assertEqual((data["commands"], data["records"], data["peers"]), ([], [], []))
        self.bench(*self.ONE)
        self.assertEqual(len(self.calls()), 5)
        self.assertEqual(self.data()["records"], before["records"])
        self.assertEqual(len(self.data()["peers"]), len(before["peers"]))

    def test_an_interrupted_run_goes_on(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            with subprocess.Popen(
                    self.command(*self.ONE), cwd=self.root, stdin=subprocess.DEVNULL,
                    env={**self.environment, "FAKE_TOLD": "05_flash_v2|mma|hang"},
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as process:
                end = time.monotonic() + 60
                while not os.path.exists(self.log + ".hangs") and time.monotonic() < end:
                    time.sleep(0.02)
                process.send_signal(number)
                _, err = process.communicate(timeout=SECONDS)
            self.assertEqual(process.returncode, status, err)
            self.assertNotIn("Traceback", err)
            if number != signal.SIGKILL:
                self.assertIn("out.json has what was measured", err)
            there = [r["variant"] for r in self.data()["records"]]
            every = ["naive", "flash_v1", "swap"]
            if number == signal.SIGKILL:  # what was measured in the last moments may be lost
                self.assertTrue(there)
                every = every[:len(there)]
            self.assertEqual(there, every)
            os.unlink(self.log + ".hangs")
            self.calls()
            self.bench(*self.ONE)
            self.assertEqual(len(self.calls()), 5 - len(there))
            if number != signal.SIGKILL:
                os.unlink(self.out)
        self.assertEqual(len(self.data()["records"]), 6)

    def test_what_cannot_fit_is_skipped_with_the_reason(self):
        result = self.bench(*self.ONE, FAKE_TOLD="00_naive|naive|memory")
        skipped, = self.data()["skipped"]
        self.assertEqual({**skipped, "command": ""}, {
            "rung": "00_naive", "variant": "naive", "batch": 16, "heads": 32, "seqlen": 1024,
            "head_dim": 64, "causal": False, "dtype": "bf16", "command": "", "status": 3,
            "reason": "00_naive needs 256.0 GiB of GPU memory; 79.1 are free."})
        self.assertIn("00_naive naive, N 1024, d 64, --check off: left out: 00_naive needs",
                      result.stderr)
        self.assertNotIn("naive", {r["variant"] for r in self.data()["records"]})
        self.calls()
        self.bench(*self.ONE)  # not tried again
        self.assertEqual(self.calls(), [])
        self.bench(*self.ONE, "--again", "--rung", "00")  # unless asked for
        self.assertEqual((len(self.calls()), self.data()["skipped"]), (1, []))

    def test_what_fails(self):
        result = self.bench(*self.ONE, status=1, FAKE_TOLD="04_flash_v1|flash_v1|crash")
        self.assertIn("04_flash_v1 flash_v1, N 1024, d 64, --check off: failed (status 1): "
                      "something broke", result.stderr)
        self.assertEqual([s["reason"] for s in self.data()["skipped"]], ["something broke"])
        self.assertEqual(len(self.data()["records"]), 5)
        self.calls()
        self.bench(*self.ONE)  # tried again
        self.assertEqual(len(self.calls()), 1)
        self.assertEqual(self.data()["skipped"], [])

    def test_a_wrong_result(self):
        result = self.bench(*self.ONE, status=1, FAKE_TOLD="05_flash_v2|swap|wrong")
        self.assertIn("05_flash_v2 swap, N 1024, d 64, --check off: failed (status 1): wrong "
                      "result", result.stderr)
        self.assertEqual([r["variant"] for r in self.data()["records"] if not r["pass"]], ["swap"])

    def test_only_so_many_minutes(self):
        result = self.bench(*self.ONE, "--minutes", "0.0000001")
        self.assertEqual((self.calls(), self.data()["records"]), ([], []))
        self.assertIn("with 5 runs to go: run again to go on", result.stderr)

    def test_without_pytorch(self):
        self.write("python/torch/__init__.py", "raise ImportError('No module named torch')\n")
        result = self.bench(*self.ONE)
        self.assertIn("no peers and no ceilings: PyTorch is missing", result.stderr)
        self.assertEqual((self.data()["ceilings"], self.data()["peers"]), (None, []))
        self.assertEqual(len(self.data()["records"]), 6)

    def test_a_backend_that_cannot_run(self):
        self.bench(*self.ONE, FAKE="no cudnn")
        self.assertEqual({(s["variant"], s["direction"]) for s in self.data()["skipped"]},
                         {("cudnn", "fwd"), ("cudnn", "bwd")})
        self.assertIn("requires sm80", self.data()["skipped"][0]["reason"])

    def test_what_it_refuses(self):
        self.bench(*self.ONE, "--rung", "00")
        whole = self.data()
        for words, status, why in (
                ((*self.ONE, "--grid", "paper"), 2, "give one of them"),
                (("--grid", "huge"), 2, "there are quick, paper and long"),
                (("--sim", "--causal"), 2, "a grid of its own"),
                (("--peers", "fa3"), 2, "there are math"),
                (("--rung", "07"), 2, "leave nothing; there are 00_naive naive, 04_flash_v1"),
                (("--bin", "nosuch"), 2, "there is no folder nosuch: scripts/run builds"),
                (("--bin", "path"), 2, "path has no rung")):
            with self.subTest(words):
                self.assertIn(why, self.bench(*words, status=status).stderr)
        result = self.bench(*self.ONE, status=2, FAKE_GPU="NVIDIA Other 3")
        self.assertIn(f"was measured on {NAME}, and this is NVIDIA Other 3", result.stderr)
        self.write("path/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        self.assertIn("no GPU answers", self.bench(*self.ONE, status=3).stderr)
        self.assertEqual(self.data(), whole)
        for text in ("not JSON", "[]", '{"records": []}'):
            self.write("out.json", text)
            self.write("path/nvidia-smi", NVIDIA_SMI, 0o755)
            self.assertIn("was not written by this script", self.bench(*self.ONE, status=2).stderr)
        self.assertIn("cannot write", self.bench("--out", "/proc/x.json", status=2).stderr)

    def test_help(self):
        result = self.bench("--help", COLUMNS="100")
        for word in ("--grid", "--sim", "--again", "--minutes", "Exit status", "skipped"):
            self.assertIn(word, result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)


class FilesOfGpus(Fake):
    """scripts/figures, in a copy of the scripts with a file of an H100: only what builds and what
    draws is stood in for too."""

    STEPS = {"00_naive": ["naive"]}
    H100 = "NVIDIA H100 80GB HBM3"

    def setUp(self):
        super().setUp()
        for name in ("bench.py", "peers.py", "figures"):
            path = os.path.join(self.root, "scripts", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            shutil.copy(os.path.join(SCRIPTS, name), path)
        shutil.copytree(os.path.join(SCRIPTS, "ladder"), os.path.join(self.root, "scripts/ladder"),
                        ignore=shutil.ignore_patterns("__pycache__"))
        self.programs("build/bin", ("sim", "gpu"))
        os.makedirs(os.path.join(self.root, "00_naive"))
        self.write("python/matplotlib/__init__.py", "")
        for tool in ("cmake", "ctest", "ninja"):
            self.write(f"path/{tool}", "#!/bin/sh\nexit 0\n", 0o755)
        for name in ("CXX", "CMAKE_PREFIX_PATH", "CI"):
            self.environment.pop(name, None)
        self.write("build/.ready.matplotlib",
                   f"CXX= CMAKE_PREFIX_PATH= PATH={self.environment['PATH']}\n")
        self.write("common/machine/gpu/answers.py", "")
        self.write("CMakePresets.json", "{}")
        self.write("scripts/plot.py", "import os, sys\nfrom ladder.files import newest_measured\n"
                   "print(os.path.basename(newest_measured()), *sys.argv[1:])\n")
        self.write("scripts/results/h100.json", files.item_a_line({
            "machine": {"gpu": self.H100, "driver": "1", "memory_bytes": 1, "clocks": None,
                        "cuda": None, "commit": "old", "date": "2026-01-01"},
            "ceilings": None, "steps": [], "commands": [], "records": [], "peers": [],
            "skipped": []}))
        self.out = os.path.join(self.root, "scripts/results/h100.json")

    def figures(self, gpu):
        result = subprocess.run(
            ["bash", os.path.join(self.root, "scripts/figures"), "--peers", "none", "--commit",
             "new"], cwd="/", env={**self.environment, "FAKE_GPU": gpu}, capture_output=True,
            stdin=subprocess.DEVNULL, encoding="utf-8", timeout=SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def there(self):
        return sorted(os.listdir(os.path.join(self.root, "scripts/results")))

    def test_another_gpu_has_a_file_of_its_own(self):
        before = self.data()
        self.assertEqual(self.figures("NVIDIA H200"), "h200.json --readme\n")
        self.assertEqual(self.there(), ["h100.json", "h200.json", "sim.json"])
        self.assertEqual(self.data(), before)
        self.out = self.out.replace("h100", "h200")
        self.assertEqual(self.data()["machine"]["gpu"], "NVIDIA H200")
        self.assertTrue(self.data()["records"])

    def test_the_same_gpu_renews_its_file(self):
        self.assertEqual(self.figures(self.H100), "h100.json --readme\n")
        self.assertEqual(self.there(), ["h100.json", "sim.json"])
        self.assertEqual(self.data()["machine"]["commit"], "new")

    def test_without_a_gpu_the_newest_file_is_shown(self):
        self.programs("build/bin", ["sim"])
        self.assertEqual(self.figures(self.H100), "h100.json --readme\n")
        self.assertEqual(self.there(), ["h100.json", "sim.json"])


# The ladder at its full length: rung → its steps, the default last but for what is never one.
STEPS = {
    "00_naive": ["naive"],
    "01_tiled_matmul": ["tile", "mma"],
    "02_safe_softmax": ["safe"],
    "03_online_softmax": ["softmax", "two_pass", "one_pass", "one_pass_tile"],
    "04_flash_v1": ["flash_v1"],
    "05_flash_v2": ["swap", "defer", "mma", "sm90"],
    "06_backward": ["stored", "mma", "aside", "sm90"],
}
SLOW = ["naive", "tile", "two_pass", "one_pass"]


class BenchUnit(unittest.TestCase):
    def ladder(self):
        tiles = [[64, 64, 64], [64, 64, 128], [128, 64, 32]]
        every = [programs.Step(**listed(
            rung, variant, "gpu", default=variant == variants[-1], by_name_only=variant == "aside",
            backward=rung == "06_backward", exact_architecture=variant == "sm90", tiles=tiles,
            grid_limit=[4096, 2048] if variant in SLOW else [0, 0]))
            for rung, variants in STEPS.items() for variant in variants]
        return steps.Ladder(every)

    def plan(self, *words):
        ladder = self.ladder()
        return grid.plan(bench.parse(list(words)), ladder, ladder.steps)

    def test_the_papers_grid(self):
        groups = self.plan("--grid", "paper")
        points = [point for point, _, _ in groups if point]
        self.assertEqual(len(set(points)), 2 * 2 * 6)
        for point in points:
            self.assertEqual((point.batch * point.seqlen, point.heads * point.head_dim),
                             (16384, 2048))
        measured = {(one.rung, one.variant, *one[2:7]) for _, ones, _ in groups for one in ones
                    if one.options == ("--check", "off")}
        for rung, variant in ((step.rung, step.variant) for step in self.ladder().steps):
            for point in points:
                here = (rung, variant, *point[:5]) in measured
                left_out = [why for p, _, out in groups if p == point
                            for one, why in out if (one.rung, one.variant) == (rung, variant)]
                self.assertEqual(len(left_out), 0 if here else 1, (rung, variant, point))
                # The rungs' defaults and mma are measured everywhere, the slow ones aside.
                if variant == STEPS[rung][-1] and variant not in SLOW:
                    self.assertTrue(here)
                if variant == "mma":
                    self.assertTrue(here)
        self.assertIn(("00_naive", "naive", 4, 32, 4096, 64, False), measured)
        self.assertNotIn(("00_naive", "naive", 2, 32, 8192, 64, False), measured)
        extra = [one for point, ones, _ in groups if not point for one in ones]
        # The tiles that each head size has, of the one step that is timed against them.
        self.assertEqual([(one.rung, one.head_dim, one.options[1], one.options[3])
                          for one in extra if "--block-q" in one.options],
                         [("04_flash_v1", 64, "64", "64"), ("04_flash_v1", 64, "64", "128"),
                          ("04_flash_v1", 128, "64", "32")])
        self.assertEqual(sum("full" in one.options for one in extra), 2 * len(self.ladder().steps))
        # A step that is never the default is measured where a step's gain is shown, and no more.
        self.assertEqual({(one.seqlen, one.causal) for _, ones, _ in groups for one in ones
                          if one.variant == "aside" and "full" not in one.options},
                         {(1024, False), (2048, False), (4096, False), (2048, True)})

    def test_numbers_of_8_bits_are_timed_at_every_length_and_with_wide_heads(self):
        eight_bits = programs.Step(**listed("05_flash_v2", "fp8", "gpu", default=False,
                                                  by_name_only=True, exact_architecture=True))
        ladder = steps.Ladder([*self.ladder().steps, eight_bits])
        groups = grid.plan(bench.parse(["--grid", "paper"]), ladder, ladder.steps)
        found = [(point, one) for point, ones, _ in groups for one in ones
                 if one.variant == "fp8" and one.options == ("--check", "off")]
        self.assertEqual(
            sorted(one[2:7] for _, one in found),
            sorted((16384 // n, 2048 // d, n, d, causal)
                   for n in (512, 1024, 2048, 4096, 8192, 16384)
                   for d in (64, 128, 256) for causal in (False, True)))
        # At a size that is nobody else's it is measured beside nothing.
        self.assertEqual({one.head_dim for point, one in found if not point}, {256})
        self.assertEqual({one.variant for _, ones, _ in groups for one in ones
                          if one.head_dim == 256}, {"fp8"})
        # They are what the axes measure alone.
        axes = grid.plan(bench.parse(["--head-dim", "256"]), ladder, [eight_bits])
        self.assertEqual({one for _, ones, _ in axes for one in ones},
                         {one for _, one in found if one.head_dim == 256})

    def test_long_sequences(self):
        points = {point for point, _, _ in self.plan("--grid", "long")}
        self.assertEqual({(p.batch, p.heads, p.head_dim) for p in points}, {(1, 16, 128)})
        self.assertEqual(max(p.seqlen for p in points), 65536)
        at_64k = [one for p, ones, _ in self.plan("--grid", "long") if p.seqlen == 65536
                  for one in ones]
        self.assertIn(("05_flash_v2", "mma"), {(one.rung, one.variant) for one in at_64k})
        self.assertIn(("02_safe_softmax", "safe"), {(one.rung, one.variant) for one in at_64k})
        self.assertNotIn(("00_naive", "naive"), {(one.rung, one.variant) for one in at_64k})

    def test_axes_have_no_caps(self):
        (_, ones, left_out), = self.plan("--seqlen", "16k", "--head-dim", "64", "--causal", "yes")
        self.assertEqual((len(ones), left_out), (len(self.ladder().steps), []))

    def test_what_is_compared_with_pytorch(self):
        ladder = self.ladder()
        self.assertEqual(ladder.beside_peers(), {"fwd": "05_flash_v2", "bwd": "06_backward"})
        self.assertEqual([ladder.last_portable(rung).variant for rung in ladder.rungs()],
                         ["naive", "mma", "safe", "one_pass_tile", "flash_v1", "mma", "mma"])

    def test_keys(self):
        self.assertEqual(grid.key("a --time 40 --seqlen 5 --dram --json"), "a --seqlen 5")
        self.assertNotEqual(grid.key("a --seqlen 5"), grid.key("a --seqlen 5 --causal"))

    def test_tiles_of_a_program(self):
        path = os.path.join(BIN, "04_flash_v1")
        if not os.access(path, os.X_OK):
            self.skipTest(f"{path} is not built")
        step = programs.Program(path).steps()[0]
        self.assertIn((64, 64), step.tiles_for(64))
        # A head is padded to the next size that there are tiles for.
        self.assertEqual(step.tiles_for(40), step.tiles_for(64))


class FileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(self.folder, "out.json")

    def results(self, commit=None):
        file = results.Results(self.path, {"gpu": None, "clocks": None, "commit": commit})
        file.load()
        return file

    def test_a_file_is_written_whole_or_not_at_all(self):
        file = self.results()
        file.save()
        before = read(self.path)
        file.peers["x"] = {"a": 1}
        with unittest.mock.patch("os.replace", side_effect=OSError(28, "No space left")):
            with self.assertRaisesRegex(Stop, "No space left"):
                file.save()
        self.assertEqual(read(self.path), before)
        self.assertEqual(os.listdir(self.folder), ["out.json"])

    def test_several_files_are_written_all_or_none(self):
        one, two = (os.path.join(self.folder, name) for name in ("one", "two"))

        def there():
            return [pathlib.Path(path).read_bytes() for path in (one, two)]

        files.write_all({one: "é", two: b"\xff"})
        self.assertEqual(there(), ["é".encode(), b"\xff"])
        with self.assertRaisesRegex(Stop, "cannot write .*nosuch"):
            files.write_all({one: "new", os.path.join(self.folder, "nosuch/two"): "new"})
        self.assertEqual(there(), ["é".encode(), b"\xff"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["one", "two"])

    def test_commits_are_those_of_what_is_left_in_the_file(self):
        for commit, lengths, expected in (("aaa", (1, 2), "aaa"), ("bbb", (1,), "aaa, bbb"),
                                          ("bbb", (1, 2), "bbb")):
            file = self.results(commit)
            for n in lengths:
                file.add_run(f"rung --seqlen {n}", [{}])
            file.save()
            self.assertEqual(json.loads(read(self.path))["machine"]["commit"], expected)

    def test_names_of_files(self):
        def name(gpu):
            return os.path.basename(files.file_of(gpu, self.folder))

        for gpu, expected in (("NVIDIA H100 80GB HBM3", "h100"), (None, "sim"),
                              ("NVIDIA A100-SXM4-80GB", "a100"),
                              ("NVIDIA GeForce RTX 4090", "4090")):
            self.assertEqual(name(gpu), f"{expected}.json")
        # Another GPU of that number has a name at its full length.
        write(self.folder, "h100.json", text={"machine": {"gpu": "NVIDIA H100 PCIe"}})
        self.assertEqual(name("NVIDIA H100 PCIe"), "h100.json")
        self.assertEqual(name("NVIDIA H100 80GB HBM3"), "nvidia-h100-80gb-hbm3.json")

    def test_the_newest_file_by_its_own_date(self):
        def newest(**but):
            return os.path.basename(files.newest_measured(self.folder, **but) or "none")

        for name, text in (("sim.json", {"machine": {"gpu": None, "date": "2030-01-01"}}),
                           ("traces.json", {"traces": []}), ("list.json", []),
                           ("none.json", "no JSON")):
            write(self.folder, name, text=text)
        self.assertEqual(newest(), "none")
        # The first is the last to be written; of a day the last by name.
        for name, gpu, date, age, expected in (
                ("z1.json", "X", "2026-03-31", 0, "z1.json"),
                ("a1.json", "X", "2026-04-01", 9, "a1.json"),
                ("b1.json", "X", "2026-04-01", 5, "b1.json"),
                ("y1.json", "Y", "2026-03-30", 0, "b1.json")):
            path = write(self.folder, name, text={"machine": {"gpu": gpu, "date": date}})
            os.utime(path, (1_000_000 - age, 1_000_000 - age))
            self.assertEqual(newest(), expected)
        self.assertEqual((newest(but="X"), newest(but="Y")), ("y1.json", "b1.json"))


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
