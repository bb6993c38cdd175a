"""Tests of scripts/peers.py without PyTorch and without a GPU: a module stands in for torch.

Run alone: python3 scripts/tests/peers_test.py [build/bin]
The 00_naive of that folder, if it is there, says which keys a program's JSON has.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import warnings

from base import ROOT, SCRIPTS, SECONDS, argument, read, write
import fake_torch
import peers
from ladder.bench import sdpa

BIN = os.path.join(ROOT, "build/bin")


class Unit(unittest.TestCase):
    """The parts that touch no GPU."""

    def test_the_grid_is_the_papers(self):
        points = peers.grid(peers.parse([]))
        self.assertEqual(len(points), 2 * 2 * 2 * 6)
        for point in points:
            self.assertEqual(point.batch * point.seqlen, 16384)
            self.assertEqual(point.heads * point.head_dim, 2048)
        self.assertEqual({point.seqlen for point in points},
                         {512, 1024, 2048, 4096, 8192, 16384})
        self.assertEqual([point.direction for point in points], ["fwd"] * 24 + ["bwd"] * 24)
        self.assertEqual(points[0], sdpa.Point("fwd", 64, False, 512, 32, 32))
        self.assertEqual(points[-1], sdpa.Point("bwd", 128, True, 16384, 1, 16))

    def test_the_grid_asked_for(self):
        options = peers.parse(["--seqlen", "1K,300", "--head-dim", "96", "--causal", "--direction",
                               "bwd", "--batch", "2", "--heads", "3"])
        self.assertEqual(peers.grid(options), [sdpa.Point("bwd", 96, True, 1024, 2, 3),
                                               sdpa.Point("bwd", 96, True, 300, 2, 3)])
        self.assertEqual({p.causal for p in peers.grid(peers.parse(["--no-causal"]))}, {False})
        # Longer than 16k tokens, and wider than the hidden size, is one of each.
        self.assertEqual(peers.grid(peers.parse(["--seqlen", "64k", "--head-dim", "4096"]))[0],
                         sdpa.Point("fwd", 4096, False, 65536, 1, 1))

    def test_flops_are_the_papers(self):
        forward = sdpa.Point("fwd", 64, False, 2048, 8, 32)
        self.assertEqual(forward.flops(), 4 * 2048 * 2048 * 64 * 8 * 32)
        self.assertEqual(forward._replace(causal=True).flops(), forward.flops() / 2)
        self.assertEqual(forward._replace(direction="bwd").flops(), forward.flops() * 2.5)

    def test_tables_fit(self):
        point = sdpa.Point("bwd", 128, True, 131072, 1, 16)
        for line in peers.table({point: {}}, list(sdpa.BACKENDS)):
            self.assertLessEqual(len(line), 100)

    def test_why_a_backend_did_not_run(self):
        class torch:
            class cuda:
                class OutOfMemoryError(RuntimeError):
                    pass

        self.assertEqual(sdpa.reason(torch, torch.cuda.OutOfMemoryError("x"), []),
                         "the GPU's memory is used up")
        self.assertEqual(sdpa.reason(torch, ValueError("a\nb"), []), "a")
        self.assertEqual(sdpa.reason(torch, ValueError(), []), "ValueError")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for text in ("Math not used because: x", "Math has been runtime disabled.", "too old"):
                warnings.warn(text)
        self.assertEqual(sdpa.reason(torch, ValueError("no kernel"), warned),
                         "no kernel; too old")

    def test_sampling_is_that_of_our_programs(self):
        """The cases of common/tests/sampling_test.cpp."""
        def sampled(budget_ms, run_ms):
            state = {"count": 0, "clock": 0.0}

            def batch():
                times = [run_ms(state["count"] + i) for i in range(4)]
                state["count"] += 4
                state["clock"] += sum(times)
                return times

            return sdpa.sample(budget_ms, batch, lambda: state["clock"]), state

        steady, state = sampled(100, lambda i: 1)
        self.assertEqual((len(steady), state["count"]), (100, 200))
        self.assertEqual(set(sampled(50, lambda i: max(1 - 0.005 * i, 0.25))[0]), {0.25})
        for_ever, _ = sampled(50, lambda i: 1 / (1 + 0.01 * i))
        self.assertAlmostEqual(for_ever[0], 0.37, delta=0.01)
        moving, _ = sampled(20, lambda i: 1 + 0.01 * min(max(i - 20, 0), 30))
        self.assertGreater(len(moving), 40)
        _, state = sampled(20, lambda i: 1 + 0.01 * i)
        self.assertTrue(20 + 3 * 20 < state["clock"] < 20 + 3 * 20 + 2 * 4 * 2, state)
        self.assertEqual(len(sampled(1, lambda i: 500)[0]), 4)


class Program(unittest.TestCase):
    """scripts/peers.py, run."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.log = os.path.join(self.root, "log")
        fake_torch.install(os.path.join(self.root, "python"))
        self.environment = {**os.environ, "PYTHONPATH": os.path.join(self.root, "python"),
                            "PYTHONDONTWRITEBYTECODE": "1", "FAKE_LOG": self.log}

    def peers(self, *options, fake="", **environment):
        return subprocess.run([os.path.join(SCRIPTS, "peers.py"), *options], cwd=self.root,
                              env={**self.environment, "FAKE": fake, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              timeout=SECONDS)

    def logged(self):
        return read(self.log).splitlines()

    def records(self, result):
        return [json.loads(line) for line in result.stdout.splitlines()]

    POINT = ["--seqlen", "2k", "--head-dim", "64", "--no-causal", "--time", "5"]

    # ---- what it needs ----

    def test_without_pytorch(self):
        shutil.rmtree(os.path.join(self.root, "python/torch"))
        write(self.root, "python/torch.py", text="raise ImportError('No module named torch')\n")
        result = self.peers()
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertIn("PyTorch is missing (No module named torch)", result.stderr)
        self.assertIn("pip install torch", result.stderr)
        self.assertEqual(self.peers("--help").returncode, 0)
        self.assertEqual(self.peers("--backend", "nosuch").returncode, 2)

    def test_without_a_gpu(self):
        result = self.peers(fake="no GPU")
        self.assertEqual((result.returncode, result.stdout), (3, ""))
        self.assertEqual(result.stderr,
                         "scripts/peers.py: PyTorch 2.11.0 finds no CUDA GPU\n")

    def test_with_a_broken_pytorch(self):
        result = self.peers(fake="broken")
        self.assertEqual(result.returncode, 3)
        self.assertIn("libtorch_cuda.so", result.stderr)
        self.assertNotIn("Traceback", result.stderr)

    def test_bad_usage(self):
        for words in (["--seqlen", "0"], ["--seqlen", "x"], ["--seqlen", "512,"],
                      ["--backend", "flash,fa3"], ["--direction", "up"], ["--dtype", "fp32"],
                      ["--causal", "--no-causal"], ["--batch", "1,2"], ["--time", "0"],
                      ["--time", "nan"], ["nosuch"]):
            with self.subTest(words):
                result = self.peers(*words)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn("scripts/peers.py: error", result.stderr)

    def test_help(self):
        result = self.peers("--help", COLUMNS="100")
        for option in ("--seqlen", "--head-dim", "--no-causal", "--backend", "--direction",
                       "--dtype", "--batch", "--heads", "--json",
                       "Exit status"):
            self.assertIn(option, result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)

    # ---- the peers alone ----

    def test_json(self):
        result = self.peers(*self.POINT, "--json", "--seed", "7", "--dtype", "fp16")
        self.assertEqual(result.returncode, 0, result.stderr)
        records = self.records(result)
        self.assertEqual([(r["direction"], r["variant"]) for r in records],
                         [(d, b) for d in ("fwd", "bwd") for b in sdpa.BACKENDS])
        flash = records[2]
        self.assertEqual({key: value for key, value in flash.items() if value is not None}, {
            "rung": "pytorch", "variant": "flash", "direction": "fwd", "device": "gpu",
            "device_name": "Fake H100", "dtype": "fp16", "input": "normal", "seed": 7, "batch": 8,
            "heads": 32, "kv_heads": 32, "seqlen": 2048, "seqlen_kv": 2048, "head_dim": 64,
            "causal": False, "scale": 0.125, "deterministic": False, "settings": {},
            "time_ms": flash["time_ms"], "time_ms_min": flash["time_ms_min"],
            "time_ms_max": flash["time_ms_max"], "samples": flash["samples"],
            "tflops": flash["tflops"], "version": "PyTorch 2.11.0, CUDA 12.8, cuDNN 9.19.0"})
        for record, factor in zip(records, [0.1, 2, 3, 4] * 2):
            self.assertAlmostEqual(record["tflops"], 100 * factor, places=3)
            self.assertGreaterEqual(record["samples"], 3)
        self.assertIn("seed 7", self.logged())
        self.assertIn("randn (8, 32, 2048, 64) fp16 False", self.logged())
        self.assertIn("randn (8, 32, 2048, 64) fp16 True", self.logged())
        self.assertIn("flush 2000", self.logged())  # 2×L2

    def test_the_keys_are_the_programs(self):
        program = os.path.join(BIN, "00_naive")
        if not os.access(program, os.X_OK):
            self.skipTest(f"{program} is not built")
        one = subprocess.run([program, "--device", "sim", "--seqlen", "16", "--json"],
                             capture_output=True, check=True)
        self.assertEqual([*json.loads(one.stdout), "version"],
                         list(self.records(self.peers(*self.POINT, "--json"))[0]))

    def test_a_table(self):
        result = self.peers("--seqlen", "512,16k", "--head-dim", "128", "--direction", "fwd",
                            "--backend", "flash,cudnn", "--time", "5")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertIn("bf16; Fake H100; PyTorch 2.11.0", lines[0])
        self.assertEqual([line.split() for line in lines[2:]], [
            ["direction", "head-dim", "causal", "seqlen", "batch", "heads", "flash", "cudnn"],
            ["fwd", "128", "no", "512", "32", "16", "300", "400"],
            ["fwd", "128", "no", "16384", "1", "16", "300", "400"],
            ["fwd", "128", "yes", "512", "32", "16", "300", "400"],
            ["fwd", "128", "yes", "16384", "1", "16", "300", "400"]])

    def test_math_is_left_out_where_its_memory_is_short(self):
        result = self.peers("--seqlen", "4k,16k", "--head-dim", "64", "--backend", "math,flash",
                            "--time", "5", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        ran = {(r["direction"], r["variant"], r["seqlen"]) for r in self.records(result)}
        self.assertEqual(ran, {(d, b, n) for d in ("fwd", "bwd") for b in ("math", "flash")
                               for n in (4096, 16384)} - {("fwd", "math", 16384),
                                                          ("bwd", "math", 16384)})
        self.assertIn("fwd, d 64, causal, N 16384: math left out: needs about 137 GB for S and P, "
                      "and 70 are free\n", result.stderr)

    def test_a_backend_that_fails_is_reported_and_the_others_run(self):
        for fake, why in (("no cudnn", "No available kernel. Aborting execution.; cuDNN attention "
                                       "requires sm80."),
                          ("cudnn memory", "the GPU's memory is used up")):
            result = self.peers(*self.POINT, fake=fake)
            self.assertEqual(result.returncode, 0, result.stderr)
            for direction in ("fwd", "bwd"):
                self.assertIn(f"{direction}, d 64, N 2048: cudnn left out: {why}\n",
                              result.stderr)
            rows = [line.split()[-4:] for line in result.stdout.splitlines()[3:]]
            self.assertEqual(rows, [["10.0", "200", "300", "–"]] * 2)
            self.assertNotIn("Warning", result.stderr)

    def test_nothing_could_be_measured(self):
        for options in ([], ["--json"]):
            result = self.peers(*self.POINT, *options, fake="nothing")
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn("illegal memory access", result.stderr)
            self.assertIn("nothing could be measured", result.stderr)
            self.assertNotIn("Traceback", result.stderr)

    def test_timing_does_not_wait_between_runs(self):
        self.peers(*self.POINT, "--backend", "math", "--direction", "fwd")
        calls = [line.split()[0] for line in self.logged()
                 if line.startswith(("flush", "attention", "wait"))]
        # 2 runs tell how many of 27 ms are a batch of 20: 3 at least.
        self.assertEqual(calls[:12], ["flush", "attention"] * 2 + ["wait"]
                         + ["flush", "attention"] * 3 + ["wait"])

    def test_the_gpu_waits_for_a_slow_host(self):
        self.peers(*self.POINT, "--backend", "flash", "--direction", "fwd")
        self.assertFalse([line for line in self.logged() if line.startswith("sleep")])
        # 0.5 GFLOP takes 2 µs, and Python 2 ms.
        self.peers("--seqlen", "512", "--batch", "1", "--heads", "1", "--head-dim", "64",
                   "--no-causal", "--time", "0.1", "--backend", "flash", "--direction", "fwd",
                   fake="slow host")
        sleeps = [int(line.split()[1]) for line in self.logged() if line.startswith("sleep")]
        self.assertTrue(sleeps)
        self.assertGreater(min(sleeps), 50 * 2 * 2e6)  # 50 runs of 2 ms, 2 million cycles each

    # ---- at another script's service ----

    def serve(self, *questions, fake=""):
        return subprocess.run([os.path.join(SCRIPTS, "peers.py"), "--serve", "--time", "5"],
                              cwd=self.root, env={**self.environment, "FAKE": fake},
                              input="".join(json.dumps(q) + "\n" for q in questions),
                              capture_output=True, encoding="utf-8", timeout=SECONDS)

    def test_serving(self):
        point = {"head_dim": 64, "causal": True, "seqlen": 1024, "batch": 16, "heads": 32}
        result = self.serve({"ceilings": True},
                            {**point, "direction": "bwd", "backends": ["flash", "cudnn"]},
                            fake="no cudnn")
        self.assertEqual(result.returncode, 0, result.stderr)
        ready, ceilings, flash, done = self.records(result)
        self.assertEqual(ready, {"ready": "PyTorch 2.11.0, CUDA 12.8, cuDNN 9.19.0"})
        self.assertAlmostEqual(ceilings["ceilings"]["matmul_tflops"], 700)
        self.assertAlmostEqual(ceilings["ceilings"]["matmul_e4m3_tflops"], 1300)
        self.assertAlmostEqual(ceilings["ceilings"]["copy_bytes_per_s"], 3e12, delta=1e7)
        self.assertEqual((flash["variant"], flash["direction"], flash["seqlen"], flash["causal"]),
                         ("flash", "bwd", 1024, True))
        self.assertIn("cuDNN attention requires sm80", done["left_out"]["cudnn"])

    def test_a_gpu_without_products_of_e4m3(self):
        result = self.serve({"ceilings": True}, fake="no e4m3")
        self.assertIsNone(self.records(result)[1]["ceilings"]["matmul_e4m3_tflops"])

    def test_serving_without_ceilings(self):
        result = self.serve({"ceilings": True}, fake="no ceilings")
        self.assertEqual(self.records(result)[1:], [{"ceilings": None}])
        self.assertIn("no ceilings: the GPU's memory is used up", result.stderr)

    # ---- stopping ----

    def test_stopping(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with subprocess.Popen([os.path.join(SCRIPTS, "peers.py"), *self.POINT], cwd=self.root,
                                  env={**self.environment, "FAKE": "slow"},
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, encoding="utf-8") as process:
                end = time.monotonic() + 60
                while not os.path.exists(self.log) and time.monotonic() < end:
                    time.sleep(0.02)
                process.send_signal(number)
                out, err = process.communicate(timeout=SECONDS)
            self.assertEqual((process.returncode, out), (status, ""))
            self.assertNotIn("Traceback", err)
            os.unlink(self.log)

    def test_a_reader_that_has_seen_enough(self):
        result = subprocess.run(["bash", "-c", f"'{SCRIPTS}/peers.py' --time 5 --json | head -n 1"],
                                cwd=self.root, env={**self.environment, "FAKE": ""},
                                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                timeout=SECONDS)
        self.assertEqual(result.stdout.count("\n"), 1)
        self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
