"""Tests of scripts/peers.py without PyTorch and without a GPU: a module that stands in for torch
keeps a clock of its own, and shell scripts stand in for our programs.

Run alone: python3 scripts/tests/peers_test.py [build/bin]
The 00_naive of that folder, if it is there, says which keys a program's JSON has.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "../../scripts")
BIN = os.path.join(HERE, "../../build/bin")
sys.path.insert(0, SCRIPTS)
sys.dont_write_bytecode = True

import peers  # noqa: E402  (they lie in scripts)
from base import listed  # noqa: E402
from base import SECONDS  # noqa: E402
from ladder import ratios, sdpa, turns  # noqa: E402

# What peers.py uses of PyTorch. The GPU's clock advances by what is queued: a flush takes 0.05 ms,
# attention FLOPs / (100 TFLOP/s · the backend's factor). FAKE says what goes wrong.
TORCH = {
    "__init__.py": '''
        import contextlib, os
        FAKE = os.environ.get("FAKE", "")
        if FAKE == "broken":
            raise OSError("libtorch_cuda.so: cannot open shared object file")
        __version__ = "2.11.0"
        float16, bfloat16, uint8, float8_e4m3fn = "fp16", "bf16", "uint8", "e4m3"
        class version:
            cuda = "12.8"
        from . import autograd, backends, cuda

        def log(text):
            with open(os.environ["FAKE_LOG"], "a") as file:
                print(text, file=file)

        class Tensor:
            def __init__(self, shape, dtype, requires_grad=False):
                self.shape, self.dtype, self.requires_grad = shape, dtype, requires_grad
            def zero_(self):
                log(f"flush {self.shape[0]}")
                cuda.clock += 0.05
            def to(self, dtype):
                return Tensor(self.shape, dtype)
            def t(self):
                return Tensor(self.shape[::-1], self.dtype)
            def copy_(self, source):
                cuda.clock += 2 * self.shape[0] / 3e9  # 3 TB/s

        def randn(*shape, device, dtype, requires_grad=False):
            assert device == "cuda"
            log(f"randn {shape} {dtype} {requires_grad}")
            return Tensor(shape, dtype, requires_grad)

        def empty(*shape, device, dtype):
            return Tensor(shape, dtype)

        def mm(a, b, out):
            if FAKE == "no ceilings":
                raise cuda.OutOfMemoryError("CUDA out of memory")
            cuda.clock += 2 * a.shape[0]**3 / 700e9  # 700 TFLOP/s

        def ones(shape, device):
            return Tensor(shape, "fp32")

        def _scaled_mm(a, b, scale_a, scale_b, out_dtype, use_fast_accum):
            assert (a.dtype, b.dtype, out_dtype, use_fast_accum) == ("e4m3", "e4m3", "bf16", True)
            cuda.clock += 2 * a.shape[0]**3 / 1300e9  # 1300 TFLOP/s

        def manual_seed(seed):
            log(f"seed {seed}")

        grad_enabled = True

        @contextlib.contextmanager
        def no_grad():
            global grad_enabled
            grad_enabled = False
            yield
            grad_enabled = True
    ''',
    "cuda.py": '''
        import os
        clock = 0.0

        class OutOfMemoryError(RuntimeError):
            pass

        class Properties:
            L2_cache_size = 1000

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
            def record(self):
                self.at = clock
            def elapsed_time(self, end):
                return end.at - self.at

        def is_available():
            return os.environ.get("FAKE", "") != "no GPU"
        def get_device_name(index):
            return "Fake H100"
        def get_device_capability():
            return (8, 0) if os.environ.get("FAKE", "") == "no e4m3" else (9, 0)
        def get_device_properties(index):
            return Properties()
        def mem_get_info():
            return 70e9, 80e9
        def empty_cache():
            pass
        def synchronize():
            pass
        def _sleep(cycles):
            import torch
            torch.log(f"sleep {cycles}")
    ''',
    "backends.py": '''
        class cudnn:
            @staticmethod
            def version():
                return 91900
    ''',
    "autograd.py": '''
        def grad(outputs, inputs, grad_outputs, retain_graph):
            import torch
            assert retain_graph and all(x.requires_grad for x in inputs)
            assert grad_outputs.shape == outputs.shape
            torch.cuda.clock += 2.5 * outputs.ms
            return inputs
    ''',
    "nn/__init__.py": "",
    "nn/attention.py": '''
        import contextlib

        class SDPBackend:
            MATH, EFFICIENT_ATTENTION, FLASH_ATTENTION = 0.1, 2, 3
            CUDNN_ATTENTION = 4

        chosen = None

        @contextlib.contextmanager
        def sdpa_kernel(backend):
            global chosen
            chosen = backend
            yield
            chosen = None
    ''',
    "nn/functional.py": '''
        import os, time, warnings
        import torch
        from torch.nn import attention

        def scaled_dot_product_attention(q, k, v, is_causal):
            fake = os.environ.get("FAKE", "")
            factor = attention.chosen
            if factor == 4:
                if fake == "no cudnn":
                    for text in ("Flash attention kernel not used because:",
                                 "Flash attention has been runtime disabled.",
                                 "cuDNN attention kernel not used because:",
                                 "cuDNN attention requires sm80."):
                        warnings.warn(text + " (Triggered internally at sdp_utils.cpp:3.)")
                    raise RuntimeError("No available kernel. Aborting execution.\\nmore")
                if fake == "cudnn memory":
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate")
            if fake == "nothing":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if fake == "slow host":
                time.sleep(0.002)
            if fake == "slow":
                time.sleep(0.1)
            b, h, n, d = q.shape
            ms = 4 * b * h * n * n * d * (0.5 if is_causal else 1) / (100e9 * factor)
            torch.log(f"attention {factor} causal {is_causal}")
            out = torch.Tensor(q.shape, q.dtype)
            out.ms = ms
            if torch.grad_enabled and q.requires_grad:
                return out
            assert not torch.grad_enabled
            torch.cuda.clock += ms
            return out
    ''',
}


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

    def test_several_runs_are_one_record(self):
        point = sdpa.Point("fwd", 64, False, 1024, 1, 1)
        runs = [{"time_ms": 3, "time_ms_min": 2, "time_ms_max": 5, "samples": 10, "tflops": 0,
                 "rung": "x"},
                {"time_ms": 1, "time_ms_min": 0.5, "time_ms_max": 4, "samples": 20, "tflops": 0,
                 "rung": "x"}]
        self.assertEqual(turns.combine(runs, point),
                         {"time_ms": 2, "time_ms_min": 0.5, "time_ms_max": 5, "samples": 30,
                          "tflops": point.flops() / 2e-3 / 1e12, "rung": "x"})
        self.assertEqual(turns.combine(runs[:1], point)["time_ms"], 3)

    def test_ratios(self):
        points = [sdpa.Point("fwd", d, False, 512, 1, 1) for d in (32, 64, 128, 256)]
        times = [{"05 mma": 2, "flash": 1, "math": 16}, {"05 mma": 1, "flash": 2},
                 {"05 mma": 1, "flash": 8, "math": 4}, {"flash": 1}]
        results = {point: {label: {"time_ms": ms} for label, ms in of.items()}
                   for point, of in zip(points, times)}
        lines = ratios.ratios(results, "05 mma", ["flash", "math", "cudnn"])
        rows = [line.split()[-3:] for line in lines[3:6]]
        self.assertEqual(rows, [["0.500", "8.000", "–"], ["2.000", "–", "–"],
                                ["8.000", "4.000", "–"]])
        self.assertEqual(lines[-2:], [
            "05 mma / flash: geometric mean 2.000 over 3 points, worst 0.500 (fwd, d 32, N 512)",
            f"05 mma / math: geometric mean {math.sqrt(32):.3f} over 2 points, worst 4.000 "
            "(fwd, d 128, N 512)"])
        self.assertEqual(ratios.ratios(results, "05 swap", ["flash"]), [])

    def test_tables_fit(self):
        point = sdpa.Point("bwd", 128, True, 131072, 1, 16)
        records = {label: {"tflops": 123.4, "time_ms": 1} for label in
                   [*sdpa.BACKENDS, "06 stored", "06 mma"]}
        for line in ratios.rates({point: records}, list(records)) + ratios.ratios(
                {point: records}, "06 mma", list(sdpa.BACKENDS)):
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

    def test_timing_does_not_wait_between_runs(self):
        calls = []

        class Event:
            def __init__(self, enable_timing):
                pass

            def record(self):
                self.at = torch.now

            def elapsed_time(self, end):
                return end.at - self.at

        class torch:
            now = 0.0
            uint8 = None

            class cuda:
                pass

            @staticmethod
            def empty(count, dtype, device):
                class Flush:
                    @staticmethod
                    def zero_():
                        calls.append("flush")
                        torch.now += 1
                return Flush

        torch.cuda.Event = Event
        torch.cuda.get_device_properties = lambda index: type("P", (), {"L2_cache_size": 1})
        torch.cuda.synchronize = lambda: calls.append("wait")

        def run():
            calls.append("run")
            torch.now += 2

        timing = sdpa.Gpu(torch).time(run, 1)
        self.assertEqual(timing[:3], (2, 2, 2))
        self.assertEqual(timing.samples % 10, 0)  # batches of 20 ms
        self.assertEqual(calls[:5], ["flush", "run"] * 2 + ["wait"])
        self.assertEqual(calls[5:26], ["flush", "run"] * 10 + ["wait"])


class Program(unittest.TestCase):
    """scripts/peers.py, run."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.log = os.path.join(self.root, "log")
        for path, text in TORCH.items():
            self.write(f"python/torch/{path}", textwrap.dedent(text))
        self.environment = {**os.environ, "PYTHONPATH": os.path.join(self.root, "python"),
                            "PYTHONDONTWRITEBYTECODE": "1", "FAKE_LOG": self.log}

    def write(self, path, text, mode=0o644):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)

    def program(self, rung, ms, variants=("swap", "mma"), status=0, say="", device="gpu"):
        """One of ours, that takes `ms` for a run (the second time 3·ms), forward and backward."""
        backward = rung == "06_backward"
        steps = "".join(json.dumps(listed(rung, v, device, backward=backward,
                                          exact_architecture=v == "sm90")) + "\n"
                        for v in variants)
        record = {"rung": rung, "variant": "", "device": device, "time_ms": ms, "time_ms_min": ms,
                  "time_ms_max": ms, "samples": 5, "tflops": 1, "pass": None}
        lines = "".join(json.dumps({**record, "direction": direction}) + "\n"
                        for direction in (["fwd", "bwd"] if backward else ["fwd"]))
        again = lines.replace(f'"time_ms": {ms}', f'"time_ms": {3 * ms}')
        self.write(f"bin/{rung}", textwrap.dedent("""\
            #!/bin/sh
            if [ "$1" = --list ]; then cat <<'END'
            {steps}END
            exit; fi
            echo {rung} "$*" >>'{log}'
            echo '{say}' >&2
            [ {status} = 0 ] || exit {status}
            if [ -e '{log}.{rung}' ]; then rm '{log}.{rung}'; cat <<'END'
            {again}END
            else touch '{log}.{rung}'; cat <<'END'
            {lines}END
            fi
            """).format(steps=steps, rung=rung, log=self.log, say=say, status=status, again=again,
                        lines=lines), 0o755)

    def peers(self, *options, fake="", **environment):
        return subprocess.run([os.path.join(SCRIPTS, "peers.py"), *options], cwd=self.root,
                              env={**self.environment, "FAKE": fake, **environment},
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                              timeout=SECONDS)

    def logged(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read().splitlines()

    def records(self, result):
        return [json.loads(line) for line in result.stdout.splitlines()]

    POINT = ["--seqlen", "2k", "--head-dim", "64", "--no-causal", "--time", "5"]

    # ---- what it needs ----

    def test_without_pytorch(self):
        shutil.rmtree(os.path.join(self.root, "python/torch"))
        self.write("python/torch.py", "raise ImportError('No module named torch')\n")
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
                       "--dtype", "--batch", "--heads", "--ours", "--variant", "--json",
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

    # ---- ours in turn with them ----

    def test_ours_in_turn_with_the_peers(self):
        self.program("05_flash_v2", 1.0)
        result = self.peers(*self.POINT, "--direction", "fwd", "--backend", "flash,cudnn",
                            "--ours", "bin")
        self.assertEqual(result.returncode, 0, result.stderr)
        turns = [" ".join(line.split()[:2]) for line in self.logged()
                 if line.startswith(("attention", "05"))]
        turns = [turn for turn, before in zip(turns, [None, *turns]) if turn != before]
        self.assertEqual(turns, ["attention 3", "attention 4", "05_flash_v2 --device"] * 2)
        self.assertIn("05_flash_v2 --device gpu --variant mma --batch 8 --heads 32 --seqlen 2048 "
                      "--head-dim 64 --dtype bf16 --seed 0 --time 5 --check off --json",
                      self.logged())
        # Ours: 1 ms and 3 ms, so 2; flash: 275 GFLOP at 300 TFLOP/s.
        flops = 4 * 2048 * 2048 * 64 * 256
        flash, cudnn = (flops / (factor * 1e11) / 2 for factor in (3, 4))
        lines = result.stdout.splitlines()
        self.assertEqual(lines[3].split()[-3:], ["300", "400", f"{flops / 2e9:.0f}"])
        self.assertEqual(lines[8].split()[-2:], [f"{flash:.3f}", f"{cudnn:.3f}"])
        self.assertEqual(lines[10:], [
            f"05 mma / {name}: geometric mean {ratio:.3f} over 1 points, worst {ratio:.3f} "
            "(fwd, d 64, N 2048)" for name, ratio in (("flash", flash), ("cudnn", cudnn))])

    def test_backward_is_06(self):
        self.program("05_flash_v2", 1.0)
        self.program("06_backward", 10.0, ["stored", "mma"])
        result = self.peers("--seqlen", "1k", "--head-dim", "64", "--causal", "--time", "5",
                            "--backend", "flash", "--ours", "bin", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(r["rung"], r["direction"]) for r in self.records(result)],
                         [("pytorch", "fwd"), ("05_flash_v2", "fwd"), ("pytorch", "bwd"),
                          ("06_backward", "bwd")])
        ours = self.records(result)[3]
        self.assertEqual((ours["time_ms"], ours["time_ms_max"], ours["samples"]), (20, 10, 10))
        self.assertIn("06 mma / flash: geometric mean", result.stderr)
        self.assertTrue(any(line.startswith("06_backward") and line.endswith("--causal")
                            for line in self.logged()))

    def test_ours_is_the_last_rung_and_its_last_step_for_every_gpu(self):
        self.program("04_flash_v1", 1.0, ["flash_v1"])
        self.program("05_flash_v2", 1.0, ["swap", "mma", "sm90"])
        self.program("06_backward", 10.0, ["stored", "mma", "sm90"])
        result = self.peers(*self.POINT, "--backend", "flash", "--ours", "bin", "--json")
        self.assertEqual([(r["rung"], r["direction"]) for r in self.records(result)],
                         [("pytorch", "fwd"), ("05_flash_v2", "fwd"), ("pytorch", "bwd"),
                          ("06_backward", "bwd")])
        self.assertEqual({line.split()[4] for line in self.logged() if line.startswith("0")},
                         {"mma"})

    def test_variants(self):
        self.program("05_flash_v2", 1.0)
        self.program("06_backward", 10.0, ["stored", "mma"])
        result = self.peers(*self.POINT, "--backend", "flash", "--ours", "bin", "--variant",
                            "swap,mma")
        self.assertEqual(result.returncode, 0, result.stderr)
        for label, there in (("05 swap", True), ("05 mma", True), ("06 mma", True),
                             ("06 swap", False), ("06 stored", False)):
            self.assertEqual(f"\n{label} / flash: geometric mean" in result.stdout, there, label)
        result = self.peers(*self.POINT, "--ours", "bin", "--variant", "nosuch")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertEqual(result.stderr, "scripts/peers.py: --variant nosuch: there are 05_flash_v2:"
                                        " swap, mma; 06_backward: stored, mma\n")

    def test_programs_that_are_not_there(self):
        result = self.peers("--ours", "bin")
        self.assertEqual((result.returncode, result.stdout), (2, ""))
        self.assertIn("there is no folder bin: scripts/run builds", result.stderr)
        self.write("bin/other", "")
        self.assertIn("bin has no rung: scripts/run builds", self.peers("--ours", "bin").stderr)
        self.program("06_backward", 1.0)
        self.assertIn("bin has no rung without a backward pass",
                      self.peers("--ours", "bin").stderr)
        os.unlink(os.path.join(self.root, "bin/06_backward"))
        self.program("05_flash_v2", 1.0)
        self.assertIn("bin has no rung with a backward pass", self.peers("--ours", "bin").stderr)
        self.program("05_flash_v2", 1.0, device="sim")
        result = self.peers("--ours", "bin", "--direction", "fwd")
        self.assertEqual(result.returncode, 3)
        self.assertIn("built without CUDA", result.stderr)

    def test_a_program_that_fails_leaves_the_peers(self):
        for status, word, expected in ((1, "failed", 1), (3, "left out", 0)):
            self.program("05_flash_v2", 1.0, status=status, say="05_flash_v2: too large")
            result = self.peers(*self.POINT, "--direction", "fwd", "--ours", "bin")
            self.assertEqual(result.returncode, expected)
            self.assertIn(f"fwd, d 64, N 2048: 05 mma {word}: status {status}: too large\n",
                          result.stderr)
            self.assertEqual(result.stdout.splitlines()[3].split()[-2:], ["400", "–"])
            self.assertNotIn("geometric", result.stdout)

    def test_a_program_that_prints_rubbish_or_crashes(self):
        for last, why in (("echo rubbish", "no JSON"), ("exit 0", "it reported nothing"),
                          ("kill -SEGV $$", "SIGSEGV: it gave no reason")):
            self.program("05_flash_v2", 1.0)
            path = os.path.join(self.root, "bin/05_flash_v2")
            with open(path, encoding="utf-8") as file:
                listing = file.read().partition("exit; fi\n")
            self.write("bin/05_flash_v2", f"{listing[0]}{listing[1]}{last}\n", 0o755)
            result = self.peers(*self.POINT, "--direction", "fwd", "--ours", "bin")
            self.assertEqual(result.returncode, 1)
            self.assertIn("05 mma failed: ", result.stderr)
            self.assertIn(why, result.stderr)

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

    def stop_it(self, number, status):
        with subprocess.Popen([os.path.join(SCRIPTS, "peers.py"), *self.POINT], cwd=self.root,
                              env={**self.environment, "FAKE": "slow"}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              encoding="utf-8") as process:
            end = time.monotonic() + 60
            while not os.path.exists(self.log) and time.monotonic() < end:
                time.sleep(0.02)
            process.send_signal(number)
            out, err = process.communicate(timeout=SECONDS)
        self.assertEqual((process.returncode, out), (status, ""))
        self.assertNotIn("Traceback", err)

    def test_ctrl_c(self):
        self.stop_it(signal.SIGINT, 130)

    def test_terminated(self):
        self.stop_it(signal.SIGTERM, 143)

    def test_a_reader_that_has_seen_enough(self):
        result = subprocess.run(["bash", "-c", f"'{SCRIPTS}/peers.py' --time 5 --json | head -n 1"],
                                cwd=self.root, env={**self.environment, "FAKE": ""},
                                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                timeout=SECONDS)
        self.assertEqual(result.stdout.count("\n"), 1)
        self.assertNotIn("Traceback", result.stderr)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BIN = os.path.abspath(sys.argv.pop(1))
    unittest.main()
