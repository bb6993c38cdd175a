"""Tests of scripts/figures peers without PyTorch and without a GPU: a module stands in for torch.

Run alone: python3 scripts/tests/peers_test.py [build/bin]
The 00_naive of that folder, if it is there, says which keys a program's JSON has.
"""

import json
import os
import types
import unittest

from base import FAKES, ROOT, SCRIPTS, Scratch, argument
from ladder.bench import peers
from ladder.bench.workload import Point

BIN = os.path.join(ROOT, "build/bin")
PEERS = os.path.join(SCRIPTS, "figures"), "peers"


class Unit(unittest.TestCase):
    """The parts that touch no GPU."""

    def test_the_grid(self):
        grid = peers.grid(peers.parse([]))
        self.assertEqual([direction for direction, _ in grid], ["fwd"] * 24 + ["bwd"] * 24)
        for _, point in grid:  # as the paper's
            self.assertEqual((point.batch * point.seqlen, point.heads * point.head_dim),
                             (16384, 2048))
        self.assertEqual((grid[0][1], grid[-1][1]), (Point(32, 32, 512, 64, False, "bf16"),
                                                     Point(1, 16, 16384, 128, True, "bf16")))
        # Longer than 16k tokens, and wider than the hidden size, is one of each.
        for words, expected in (
                ("--seqlen 1K,300 --head-dim 96 --causal --direction bwd --batch 2 --heads 3",
                 [("bwd", Point(2, 3, n, 96, True, "bf16")) for n in (1024, 300)]),
                ("--seqlen 64k --head-dim 4096 --no-causal --direction fwd --dtype fp16",
                 [("fwd", Point(1, 1, 65536, 4096, False, "fp16"))])):
            self.assertEqual(peers.grid(peers.parse(words.split())), expected)

    def test_an_error_is_a_line(self):
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(OutOfMemoryError=MemoryError))
        for error, why in ((ValueError("a\nb"), "a"), (ValueError(), "ValueError")):
            self.assertEqual(peers.reason(torch, error, []), why)

    def test_sampling_is_that_of_our_programs(self):
        """The cases of common/tests/sampling_test.cpp."""
        def sampled(budget_ms, run_ms):
            state = {"count": 0, "clock": 0.0}

            def batch():
                times = [run_ms(state["count"] + i) for i in range(4)]
                state["count"] += 4
                state["clock"] += sum(times)
                return times

            return peers.sample(budget_ms, batch, lambda: state["clock"]), state

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


class Program(Scratch):
    """scripts/figures peers, run."""

    POINT = ["--seqlen", "2k", "--head-dim", "64", "--no-causal", "--time", "5"]

    def setUp(self):
        super().setUp()
        self.environment |= {"PYTHONPATH": FAKES, "FAKE_LOG": self.at("called")}

    def peers(self, *options, fake="", status=0, **environment):
        result = self.run_it(*PEERS, *options, status=status, FAKE=fake, **environment)
        if status:
            self.assertEqual(result.stdout, "")
        return result

    def records(self, result):
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_what_it_cannot_do(self):
        for words in (["--seqlen", "0"], ["--seqlen", "512,"], ["--backend", "flash,fa3"],
                      ["--direction", "up"], ["--causal", "--no-causal"], ["--batch", "1,2"],
                      ["--time", "nan"], ["nosuch"]):
            with self.subTest(words):
                self.assertIn("scripts/figures peers: error", self.peers(*words, status=2).stderr)
        for fake, status, said in (
                ("no GPU", 3, "scripts/figures peers: PyTorch 2.11.0 finds no CUDA GPU\n"),
                ("broken", 3, "libtorch_cuda.so"),
                ("nothing", 1, "illegal memory access")):
            for options in ([], ["--json"]):
                result = self.peers(*self.POINT, *options, fake=fake, status=status)
                self.assertIn(said, result.stderr)
                self.assertEqual("nothing could be measured" in result.stderr, status == 1)
        said = self.peers(fake="missing", status=3).stderr
        self.assertIn("PyTorch is missing (No module named torch)", said)
        self.assertIn("pip install torch", said)

    def test_json(self):
        records = self.records(self.peers(*self.POINT, "--json", "--seed", "7", "--dtype", "fp16"))
        self.assertEqual([(r["direction"], r["variant"]) for r in records],
                         [(d, b) for d in ("fwd", "bwd") for b in peers.BACKENDS])
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
        self.assertLessEqual({"seed 7", "randn (8, 32, 2048, 64) fp16 False",
                              "randn (8, 32, 2048, 64) fp16 True", "flush 2000"},  # 2×L2
                             set(self.called().splitlines()))
        program = os.path.join(BIN, "00_naive")
        if os.access(program, os.X_OK):
            ours = self.run_it(program, "--device", "sim", "--seqlen", "16", "--json")
            self.assertEqual([*self.records(ours)[0], "version"], list(flash))

    def test_a_table(self):
        result = self.peers("--seqlen", "512,16k", "--head-dim", "128", "--direction", "fwd",
                            "--backend", "flash,cudnn", "--time", "5")
        lines = result.stdout.splitlines()
        self.assertIn("bf16; Fake H100; PyTorch 2.11.0", lines[0])
        self.assertEqual([line.split() for line in lines[2:]], [
            ["direction", "head-dim", "causal", "seqlen", "batch", "heads", "flash", "cudnn"],
            ["fwd", "128", "no", "512", "32", "16", "300", "400"],
            ["fwd", "128", "no", "16384", "1", "16", "300", "400"],
            ["fwd", "128", "yes", "512", "32", "16", "300", "400"],
            ["fwd", "128", "yes", "16384", "1", "16", "300", "400"]])
        point = Point(1, 16, 131072, 128, True, "bf16")
        self.fits("\n".join(peers.table({("bwd", point): {}}, list(peers.BACKENDS))))

    def test_a_backend_that_cannot_run_is_reported_and_the_others_run(self):
        for fake, why in (("no cudnn", "No available kernel. Aborting execution.; cuDNN attention "
                                       "requires sm80."),
                          ("cudnn memory", "the GPU's memory is used up")):
            result = self.peers(*self.POINT, fake=fake)
            for direction in ("fwd", "bwd"):
                self.assertIn(f"{direction}, d 64, N 2048: cudnn left out: {why}\n",
                              result.stderr)
            rows = [line.split()[-4:] for line in result.stdout.splitlines()[3:]]
            self.assertEqual(rows, [["10.0", "200", "300", "–"]] * 2)
            self.assertNotIn("Warning", result.stderr)

    def test_how_it_is_timed(self):
        """Without a wait between runs; and the GPU waits for a slow host."""
        self.peers(*self.POINT, "--backend", "math", "--direction", "fwd")
        calls = [line.split()[0] for line in self.called().splitlines()]
        self.assertNotIn("sleep", calls)
        # 2 runs tell how many of 27 ms are a batch of 20: 3 at least.
        self.assertEqual([call for call in calls if call in ("flush", "attention", "wait")][:12],
                         ["flush", "attention"] * 2 + ["wait"] + ["flush", "attention"] * 3
                         + ["wait"])
        # 0.5 GFLOP takes 2 µs, and Python 2 ms.
        self.peers("--seqlen", "512", "--batch", "1", "--heads", "1", "--head-dim", "64",
                   "--no-causal", "--time", "0.1", "--backend", "flash", "--direction", "fwd",
                   fake="slow host")
        sleeps = [int(line.split()[1]) for line in self.called().splitlines()
                  if line.startswith("sleep")]
        self.assertGreater(min(sleeps), 50 * 2 * 2e6)  # 50 runs of 2 ms, 2 million cycles each


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
