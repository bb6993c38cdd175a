"""Tests of scripts/figures measure, with programs and a PyTorch that stand in for the real ones."""

import json
import os
import re
import signal
import sys
import time
import unittest
import unittest.mock

from base import FAKES, SCRIPTS, Scratch
from fake_ladder import FakeLadder
from ladder.bench import peers

NAME = "NVIDIA Fake 80GB"
NVIDIA_SMI = '''\
#!/bin/sh
case "$*" in
*-lms*) echo '1755, 2619, 45, 300.5'; echo '1200, 2619, 60, 700.0'; exec sleep 60;;
*) echo "$FAKE_GPU, 570.1, 81559";;
esac
'''

class Bench(FakeLadder):
    """A GPU that is made up, too."""

    BIN = "bin"
    STEPS = {"00_naive": ["naive"], "04_flash_v1": ["flash_v1"], "05_flash_v2": ["swap", "mma"],
             "06_backward": ["mma"]}
    ONE = ["--seqlen", "1k", "--head-dim", "64", "--causal", "no"]
    SWAP = [*ONE, "--rung", "05", "--variant", "swap", "--again"]

    def setUp(self):
        super().setUp()
        self.ladder(self.STEPS, gpu=True)
        self.write("path/nvidia-smi", NVIDIA_SMI, 0o755)
        self.environment |= {
            "PATH": f"{self.root}/path:{os.environ['PATH']}", "PYTHONPATH": FAKES,
            "FAKE_LOG": self.at("called"), "FAKE_GPU": NAME}

    def command(self, *options):
        return [os.path.join(SCRIPTS, "figures"), "measure", "--bin", "bin", "--out",
                "out.json", "--time", "5", "--commit", "abc", *options]

    def bench(self, *options, status=0, **environment):
        return self.run_it(*self.command(*options), status=status, **environment)

    def data(self):
        return json.loads(self.read("out.json"))

    def calls(self):
        """What was measured since the last time."""
        return [line for line in self.called().splitlines() if line[:2].isdigit()]

    def test_the_file(self):
        self.bench("--grid", "quick")
        data, called = self.data(), self.called().splitlines()
        self.assertEqual(list(data), ["machine", "ceilings", "steps", "commands", "records",
                                      "peers", "skipped"])
        machine = data["machine"]
        self.assertEqual((machine["gpu"], machine["driver"], machine["memory_bytes"],
                          machine["commit"]), (NAME, "570.1", 81559 * 2**20, "abc"))
        self.assertEqual(machine["clocks"]["sm_mhz"], {"min": 1200, "median": 1477.5, "max": 1755})
        for name, rate in (("matmul_tflops", 700), ("matmul_e4m3_tflops", 1300),
                           ("copy_bytes_per_s", 3e12)):
            self.assertAlmostEqual(data["ceilings"][name] / rate, 1, places=5)
        # Each step once, then twice against float64; 06 says two things each time.
        self.assertEqual((sum(line[:2].isdigit() for line in called), len(data["records"]),
                          len(data["commands"])), (5 * 3, 6 * 3, 6 * 3))
        self.assertLessEqual(
            {"04_flash_v1 --device gpu --variant flash_v1 --batch 8 --heads 32 --seqlen 2048 "
             "--head-dim 64 --dtype bf16 --check off --time 5 --dram --json",
             "00_naive --device gpu --variant naive --batch 1 --heads 2 --seqlen 1024 --head-dim "
             "64 --dtype bf16 --check full --input outliers --time 5 --json",
             "randn (8, 32, 2048, 64) bf16 False", "randn (8, 32, 2048, 64) bf16 True",
             "flush 2000"}, set(called))  # 2×L2
        self.assertEqual(data["records"][0]["unknown"], [1, {"a": None}])  # unchanged
        self.assertEqual([(r["rung"], r["variant"], r["direction"]) for r in data["peers"]],
                         [("pytorch", b, d) for d in ("fwd", "bwd") for b in peers.BACKENDS])
        for record, factor in zip(data["peers"], [0.1, 2, 3, 4] * 2):
            self.assertAlmostEqual(record["tflops"], 100 * factor, places=3)
        self.assertEqual(data["skipped"], [])

    def test_peers_are_measured_just_before_what_is_compared_with_them(self):
        def beside():
            return {(r["variant"], tuple(r["beside"])) for r in self.data()["peers"]}

        self.bench(*self.ONE)
        turns = [line.split()[0] for line in self.called().splitlines()
                 if re.match("0|attention", line)]
        turns = [turn for turn, before in zip(turns, [None, *turns]) if turn != before]
        self.assertEqual(turns, ["00_naive", "04_flash_v1", "attention", "05_flash_v2",
                                 "06_backward"])
        every = ("05_flash_v2 mma", "05_flash_v2 swap", "06_backward mma")
        self.assertEqual(beside(), {(peer, every) for peer in peers.BACKENDS})
        # A step again, and one peer with it: the others were not beside this one, and the ceilings
        # stay.
        data = self.data()
        data["ceilings"] = dict.fromkeys(data["ceilings"], 1)
        self.write("out.json", data)
        self.bench(*self.SWAP, "--peers", "flash")
        self.assertEqual(self.data()["ceilings"], data["ceilings"])
        self.assertEqual(beside(), {(peer, ("05_flash_v2 swap",) if peer == "flash" else every)
                                    for peer in peers.BACKENDS})
        # One that comes later has nothing beside it.
        data["peers"] = [r for r in data["peers"] if r["variant"] == "flash"]
        self.write("out.json", data)
        self.bench(*self.ONE, "--peers", "flash,cudnn")
        self.assertEqual({r["variant"]: len(r["beside"]) for r in self.data()["peers"]},
                         {"flash": 3, "cudnn": 0})
        self.assertEqual(self.data()["ceilings"], data["ceilings"])

    def test_decoding(self):
        self.rung("05_flash_v2", ["swap", "mma", "split_kv"], gpu=True)
        self.bench("--grid", "decode", "--peers", "flash,cudnn")
        called, data = self.called().splitlines(), self.data()
        self.assertEqual(sum(line[:2].isdigit() for line in called), 18)
        self.assertLessEqual(
            {"05_flash_v2 --device gpu --variant split_kv --batch 64 --heads 32 --seqlen 1 "
             "--head-dim 128 --dtype bf16 --check off --kv-heads 8 --seqlen-kv 8192 --time 5 "
             "--json", "randn (16, 32, 1, 128) bf16 False", "randn (16, 8, 4096, 128) bf16 False"},
            set(called))
        for peer in data["peers"]:
            self.assertAlmostEqual(peer["tflops"], 300 if peer["variant"] == "flash" else 400,
                                   places=3)
            self.assertAlmostEqual(peer["copy_bytes_per_s"] / 3e12, 1, places=5)
        self.assertEqual([(r["variant"], r["direction"], r["beside"]) for r in data["peers"]],
                         [(peer, "fwd", ["05_flash_v2 split_kv"])
                          for _ in range(18) for peer in ("flash", "cudnn")])
        # It is no step of the ladder; and each point has been measured.
        self.assertNotIn("split_kv", [step["variant"] for step in data["steps"]])
        self.bench("--grid", "decode", "--peers", "flash,cudnn")
        self.assertEqual((self.calls(), self.data()), ([], data))

    def test_what_is_there_is_kept(self):
        self.bench(*self.ONE)
        before = self.data()
        self.assertEqual(len(self.calls()), 5)
        os.unlink(self.at("bin/06_backward"))
        for options, new, records in (
                ((*self.ONE, "--time", "7"), 0, 6), ((*self.SWAP, "--peers", "none"), 1, 6),
                (("--seqlen", "512", "--head-dim", "64", "--causal", "no", "--rung", "00"), 1, 7)):
            self.bench(*options)
            now = self.data()
            self.assertEqual((len(self.calls()), len(now["records"]), now["records"][:6],
                              now["steps"]), (new, records, before["records"], before["steps"]))

    def test_an_interrupted_run_goes_on(self):
        """And of what it measures again it leaves nothing old."""
        for number, status, again in ((signal.SIGINT, 130, True), (signal.SIGTERM, 143, False),
                                      (signal.SIGKILL, -9, False)):
            if again:
                self.bench(*self.ONE)
                before = self.data()
                before["ceilings"]["matmul_tflops"] = 1
                self.write("out.json", before)
            self.tell({"05_flash_v2/mma": {"sleep": 20}})
            _, err = self.stopped(self.command(*self.ONE, *["--again"] * again), number,
                                  self.at("asleep"), status)
            there = [r["variant"] for r in self.data()["records"]]
            every = ["naive", "flash_v1", "swap"]
            if number == signal.SIGKILL:  # what was measured in the last moments may be lost
                self.assertTrue(there)
                every = every[:len(there)]
                os.kill(int(self.read("asleep")), number)  # it holds the output open
            else:
                self.assertIn("out.json has what was measured", err)
            self.assertEqual(there, every)
            os.unlink(self.at("asleep"))
            self.called()
            self.tell({"05_flash_v2/mma": {}})
            self.bench(*self.ONE)
            self.assertEqual((len(self.calls()), len(self.data()["records"])), (5 - len(there), 6))
            self.assertEqual(self.data()["records"], before["records"])
            self.assertAlmostEqual(self.data()["ceilings"]["matmul_tflops"], 700)
            os.unlink(self.at("out.json"))

    def test_what_does_not_run(self):
        """Skipped with the reason; tried again where it failed, or if it is asked for."""
        for step, told, status, said, reason, again in (
                ("00_naive/naive", {"status": 3, "err": "00_naive: 00_naive needs 256.0 GiB of GPU "
                                    "memory; 79.1 are free."}, 0, "left out: 00_naive needs",
                 "00_naive needs 256.0 GiB of GPU memory; 79.1 are free.", 0),
                ("04_flash_v1/flash_v1", {"status": 1, "err": "04_flash_v1: something broke"}, 1,
                 "failed (status 1): something broke", "something broke", 1),
                ("05_flash_v2/swap", {"status": 1, "changes": {"pass": False}}, 1,
                 "failed (status 1): wrong result", None, 1)):
            rung, variant = step.split("/")
            self.tell({step: told})
            result = self.bench(*self.ONE, status=status)
            self.assertIn(f"{rung} {variant}, d 64, N 1024, --check off: {said}", result.stderr)
            data = self.data()
            if reason:
                skipped, = data["skipped"]
                self.assertEqual({**skipped, "command": ""}, {
                    "rung": rung, "variant": variant, "batch": 16, "heads": 32, "seqlen": 1024,
                    "head_dim": 64, "causal": False, "dtype": "bf16", "kv_heads": None,
                    "seqlen_kv": None, "command": "", "status": told["status"], "reason": reason})
                self.assertNotIn(variant, {r["variant"] for r in data["records"]})
            else:
                self.assertEqual([r["variant"] for r in data["records"] if not r["pass"]],
                                 [variant])
            self.tell({step: {}})
            self.calls()
            if reason:
                self.bench(*self.ONE)
                self.assertEqual(len(self.calls()), again)
            self.bench(*self.ONE, "--again", "--rung", rung, "--peers", "none")
            self.assertEqual(self.data()["skipped"], [])
            os.unlink(self.at("out.json"))

    def test_without_pytorch_or_part_of_it(self):
        for fake, said, records, e4m3 in (
                ("no cudnn", "pytorch cudnn, d 64, N 1024, bwd: left out: No available kernel. "
                             "Aborting execution.; cuDNN attention requires sm80.\n", 6, True),
                ("cudnn memory", "cudnn, d 64, N 1024, fwd: left out: the GPU's memory is used up",
                 6, True),
                ("no e4m3", "", 8, False),
                ("no ceilings", "no ceilings: the GPU's memory", 8, None),
                ("no GPU", "no peers and no ceilings: PyTorch 2.11.0 finds no CUDA GPU", 0, None),
                ("broken", "no peers and no ceilings: PyTorch is missing (libtorch_cuda.so", 0,
                 None)):
            result = self.bench(*self.ONE, FAKE=fake)
            self.assertIn(said, result.stderr)
            self.assertNotIn("Warning", result.stderr)
            data = self.data()
            ceilings = data["ceilings"] and data["ceilings"]["matmul_e4m3_tflops"] is not None
            self.assertEqual((len(data["peers"]), ceilings, len(data["records"])),
                             (records, e4m3, 6))
            self.assertEqual({(s["variant"], s["command"].split()[2]) for s in data["skipped"]},
                             {("cudnn", way) for way in ("fwd", "bwd") if "cudnn" in fake})
            os.unlink(self.at("out.json"))

    def test_what_it_refuses(self):
        self.bench(*self.ONE, "--rung", "00", "--peers", "none")
        whole = self.data()
        for words, why in (
                ((*self.ONE, "--grid", "paper"), "give one of them"),
                (("--grid", "huge"), "there are quick, paper, long, decode"),
                (("--sim", "--causal"), "a grid of its own"),
                (("--peers", "fa3"), "there are math"),
                (("--seqlen", "512,0"), "has to be positive numbers such as 512,16k"),
                (("--time", "nan"), "must be above 0"),
                (("--rung", "07"), "leave nothing; there are 00_naive naive, 04_flash_v1"),
                (("--bin", "nosuch"), "there is no folder nosuch: scripts/run builds"),
                (("--bin", "path"), "path has no rung"),
                (("--out", "/proc/x.json"), "/proc/x.json: No such file or directory. Choose")):
            with self.subTest(words):
                self.assertIn(why, self.bench(*words, status=2).stderr)
        result = self.bench(*self.ONE, status=2, FAKE_GPU="NVIDIA Other 3")
        self.assertIn(f"was measured on {NAME}, and this is NVIDIA Other 3", result.stderr)
        self.assertEqual(self.data(), whole)
        for text, why in (("not JSON", "is no JSON"), ("[]", "is no file of this script's"),
                          ('{"records": []}', "is no file of this script's")):
            self.write("out.json", text)
            self.assertIn(why, self.bench(*self.ONE, status=2).stderr)
        self.write("path/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        self.assertIn("no GPU answers", self.bench(*self.ONE, status=3).stderr)

    def test_each_gpu_has_a_file_of_its_own(self):
        self.copy_scripts("figures")
        names = {"h100.json": "NVIDIA H100 80GB HBM3", "4090.json": "NVIDIA GeForce RTX 4090"}
        for gpu in names.values():
            self.run_it(self.at("scripts/figures"), "measure", "--bin", "bin", "--peers", "none",
                        *self.ONE, FAKE_GPU=gpu)
        self.assertEqual({name: json.loads(self.read(f"scripts/results/{name}"))["machine"]["gpu"]
                          for name in os.listdir(self.at("scripts/results"))}, names)


class Timing(Scratch):
    """PyTorch's attention is timed as our programs time themselves."""

    def test_sampling(self):
        """The cases of common/tests/gpu/sampling_test.cpp, by a batch of 4 runs."""
        for budget_ms, run_ms, warm_up, samples in (
                (100, lambda i: 1, 100, 100), (6, lambda i: 1, 8, 16),
                (50, lambda i: max(1 - i / 128, 0.25), 104, 200),  # on, while runs get faster,
                (50, lambda i: 1 / (1 + 0.01 * i), 176, 968),  # but to 100 ms: 100·ln 2.76 runs
                (20, lambda i: 1 + 0.01 * min(max(i - 20, 0), 30), 20, 52),  # the median moves,
                (20, lambda i: 1 + 0.01 * i, 20, 44),  # and to 60 ms at most
                (1, lambda i: 500, 4, 4)):
            times = []

            def batch():
                times.extend(run_ms(len(times) + i) for i in range(4))
                return times[-4:]

            found = peers.sample(budget_ms, batch, lambda: sum(times))
            self.assertEqual((len(times) - len(found), len(found)), (warm_up, samples))
            self.assertEqual(found, times[warm_up:])

    def test_no_wait_between_runs_and_the_gpu_waits_for_a_slow_host(self):
        with unittest.mock.patch.dict(os.environ, FAKE_LOG=self.at("called")):
            sys.path.insert(0, FAKES)
            self.addCleanup(sys.path.remove, FAKES)
            import torch

            gpu = peers.Gpu(torch)
            for run_ms, host_s, size, slept in ((700, 0, 3, False), (0.002, 0.002, 50, True)):
                self.called()

                def run():
                    torch.log("run")
                    torch.take(run_ms)
                    time.sleep(host_s)

                self.assertAlmostEqual(min(gpu.time(run, 0.1)), run_ms)
                called = self.called().replace("flush 2000", "flush").splitlines()
                sleeps = [float(line.split()[1]) for line in called if line.startswith("sleep")]
                called = [line for line in called if not line.startswith("sleep")]
                # Two runs tell how many are a batch.
                self.assertEqual(called[:7 + 2 * size], ["flush", "run"] * 2 + ["wait"] + [
                    "flush", "run"] * size + ["wait"] + ["flush"])
                self.assertEqual(bool(sleeps), slept)
                # 50 runs of 2 ms of the host, 2 million cycles each.
                self.assertGreater(min(sleeps, default=1e9), 50 * 2 * 2e6)


if __name__ == "__main__":
    unittest.main()
