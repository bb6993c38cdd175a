"""Tests of scripts/figures measure and profile, with programs, a PyTorch and an ncu that stand in
for the real ones.

Run alone: python3 scripts/tests/bench_test.py
"""

import contextlib
import io
import json
import os
import re
import signal
import sys
import unittest
import unittest.mock

from base import FAKES, SCRIPTS, Scratch
from fake_ladder import FakeLadder
from ladder.bench import peers, profile
from ladder.console import NO_DEVICE, Stop
from ladder.figures.tables import profile_table

NAME = "NVIDIA Fake 80GB"
NVIDIA_SMI = '''\
#!/bin/sh
case "$*" in
*-lms*) echo '1755, 2619, 45, 300.5'; echo '1200, 2619, 60, 700.0'; exec sleep 60;;
*) echo "$FAKE_GPU, 570.1, 81559";;
esac
'''

# Every metric has the value 2, but for the cycles of all SMs.
NCU = f'''#!{sys.executable}
import json, os, sys
given = sys.argv[1:]
metrics = given[given.index("--metrics") + 1].split(",")
said = [metric for metric in metrics if metric != os.environ.get("LACKS")]
value = lambda metric: "2,640" if metric == "sm__cycles_active.sum" else "20"
with open(given[given.index("--log-file") + 1], "w") as file:
    print(os.environ.get("SAYS", "==PROF== Connected"), file=file)
    for row in (["ID", *said], ["", *("inst" for _ in said)], ["0", *map(value, said)]):
        print(",".join(f'"{{cell}}"' for cell in row), file=file)
program = os.path.basename(next(word for word in given if "bin/" in word))
for tile in (192, 128):
    print(json.dumps({{"rung": program, "batch": 4, "heads": 32, "block_q": tile,
                       "block_kv": 128}}))
print(*given, file=open(os.environ["CALLED"], "a"))
sys.exit(1 if "SAYS" in os.environ else 0)
'''


class Fake(FakeLadder):
    """A GPU that is made up, too."""

    BIN = "bin"
    STEPS = {"00_naive": ["naive"], "04_flash_v1": ["flash_v1"], "05_flash_v2": ["swap", "mma"],
             "06_backward": ["mma"]}

    def setUp(self):
        super().setUp()
        self.ladder(self.STEPS, gpu=True, tiles=[[128, 64, 128], [128, 64, 64]],
                    grid_limit=[2048, 2048])
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


class Bench(Fake):
    ONE = ["--seqlen", "1k", "--head-dim", "64", "--causal", "no"]
    SWAP = [*ONE, "--rung", "05", "--variant", "swap", "--again"]

    def test_the_file(self):
        self.bench("--grid", "quick")
        data = self.data()
        self.assertEqual(list(data), ["machine", "ceilings", "steps", "commands", "records",
                                      "peers", "skipped"])
        machine = data["machine"]
        self.assertEqual((machine["gpu"], machine["driver"], machine["memory_bytes"],
                          machine["commit"]), (NAME, "570.1", 81559 * 2**20, "abc"))
        self.assertEqual(machine["clocks"]["sm_mhz"], {"min": 1200, "median": 1477.5, "max": 1755})
        for name, rate in (("matmul_tflops", 700), ("matmul_e4m3_tflops", 1300),
                           ("copy_bytes_per_s", 3e12)):
            self.assertAlmostEqual(data["ceilings"][name] / rate, 1, places=5)
        calls = self.calls()
        # Each step once, then twice against float64; 06 says two things each time.
        self.assertEqual((len(calls), len(data["records"]), len(data["commands"])),
                         (5 * 3, 6 * 3, 6 * 3))
        self.assertIn("04_flash_v1 --device gpu --variant flash_v1 --batch 8 --heads 32 --seqlen "
                      "2048 --head-dim 64 --dtype bf16 --check off --time 5 --dram --json", calls)
        self.assertIn("00_naive --device gpu --variant naive --batch 1 --heads 2 --seqlen 1024 "
                      "--head-dim 64 --dtype bf16 --check full --input outliers --time 5 --json",
                      calls)
        self.assertEqual(data["records"][0]["unknown"], [1, {"a": None}])  # unchanged
        self.assertEqual([(r["rung"], r["variant"], r["direction"]) for r in data["peers"]],
                         [("pytorch", b, d) for d in ("fwd", "bwd") for b in peers.BACKENDS])
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

    def test_decoding(self):
        self.rung("05_flash_v2", ["swap", "mma", "split_kv"], gpu=True)
        self.bench("--grid", "decode", "--peers", "flash,cudnn")
        called, data = self.called().splitlines(), self.data()
        calls = [line for line in called if line[:2].isdigit()]
        self.assertEqual(len(calls), 18)
        for rows in ("32, 1", "8, 4096"):
            self.assertIn(f"randn (16, {rows}, 128) bf16 False", called)
        for peer in data["peers"]:
            self.assertAlmostEqual(peer["tflops"], 300 if peer["variant"] == "flash" else 400,
                                   places=3)
            self.assertAlmostEqual(peer["copy_bytes_per_s"] / 3e12, 1, places=5)
        self.assertIn("05_flash_v2 --device gpu --variant split_kv --batch 64 --heads 32 --seqlen "
                      "1 --head-dim 128 --dtype bf16 --check off --kv-heads 8 --seqlen-kv 8192 "
                      "--time 5 --json", calls)
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
        result = self.bench(*self.ONE, "--time", "7", "--no-dram")
        self.assertEqual((self.calls(), self.data()), ([], before))
        self.assertIn("0 runs new, 5 were there", result.stderr)
        self.assertIn("lacks 01_tiled_matmul, 02_safe_softmax, 03_online_softmax: "
                      "measuring the others", result.stderr)
        self.bench(*self.SWAP, "--peers", "none")
        self.assertEqual((len(self.calls()), self.data()["records"]), (1, before["records"]))
        self.bench("--seqlen", "512", "--head-dim", "64", "--causal", "no", "--rung", "00")
        self.assertEqual(len(self.data()["records"]), len(before["records"]) + 1)
        self.assertEqual(self.data()["steps"], before["steps"])

    def test_again_leaves_nothing_old_where_it_is_interrupted(self):
        self.bench(*self.ONE)
        before = self.data()
        self.calls()
        result = self.bench(*self.ONE, "--again", "--minutes", "0.0000001")
        self.assertIn("with 5 runs to go: run again to go on", result.stderr)
        data = self.data()
        self.assertEqual((self.calls(), data["commands"], data["records"], data["peers"]),
                         ([], [], [], []))
        self.bench(*self.ONE)
        self.assertEqual((len(self.calls()), len(self.data()["peers"])), (5, len(before["peers"])))
        self.assertEqual(self.data()["records"], before["records"])
        self.assertAlmostEqual(self.data()["ceilings"]["matmul_tflops"], 700)

    def test_an_interrupted_run_goes_on(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            self.tell({"05_flash_v2/mma": {"sleep": 20}})
            _, err = self.stopped(self.command(*self.ONE), number, self.at("asleep"), status)
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

    def test_without_pytorch_or_one_of_its_backends(self):
        self.bench(*self.ONE, FAKE="no cudnn")
        skipped = self.data()["skipped"]
        self.assertEqual({(s["variant"], s["direction"]) for s in skipped},
                         {("cudnn", "fwd"), ("cudnn", "bwd")})
        self.assertIn("requires sm80", skipped[0]["reason"])
        for fake, said in (("no e4m3", ""), ("no ceilings", "no ceilings: the GPU's memory")):
            os.unlink(self.at("out.json"))
            self.assertIn(said, self.bench(*self.ONE, FAKE=fake).stderr)
            found = self.data()["ceilings"]
            self.assertEqual(found and found["matmul_e4m3_tflops"], None)
            self.assertEqual((found is None, len(self.data()["peers"])), (bool(said), 8))
        os.unlink(self.at("out.json"))
        result = self.bench(*self.ONE, FAKE="missing")
        self.assertIn("no peers and no ceilings: PyTorch is missing", result.stderr)
        self.assertEqual((self.data()["ceilings"], self.data()["peers"]), (None, []))
        self.assertEqual(len(self.data()["records"]), 6)

    def test_what_it_refuses(self):
        self.bench(*self.ONE, "--rung", "00", "--peers", "none")
        whole = self.data()
        for words, why in (
                ((*self.ONE, "--grid", "paper"), "give one of them"),
                (("--grid", "huge"), "there are quick, paper, long, decode"),
                (("--sim", "--causal"), "a grid of its own"),
                (("--peers", "fa3"), "there are math"),
                (("--rung", "07"), "leave nothing; there are 00_naive naive, 04_flash_v1"),
                (("--bin", "nosuch"), "there is no folder nosuch: scripts/run builds"),
                (("--bin", "path"), "path has no rung"),
                (("--out", "/proc/x.json"), "cannot write")):
            with self.subTest(words):
                self.assertIn(why, self.bench(*words, status=2).stderr)
        result = self.bench(*self.ONE, status=2, FAKE_GPU="NVIDIA Other 3")
        self.assertIn(f"was measured on {NAME}, and this is NVIDIA Other 3", result.stderr)
        self.assertEqual(self.data(), whole)
        for text in ("not JSON", "[]", '{"records": []}'):
            self.write("out.json", text)
            self.assertIn("was not written by this script", self.bench(*self.ONE, status=2).stderr)
        self.write("path/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        self.assertIn("no GPU answers", self.bench(*self.ONE, status=3).stderr)

    def test_each_gpu_has_a_file_of_its_own(self):
        self.copy_scripts("figures")
        there = {}
        for gpu, name in (("NVIDIA H200", "h200"), ("NVIDIA A100", "a100")):
            self.run_it(self.at("scripts/figures"), "measure", "--bin", "bin", "--peers", "none",
                        *self.ONE, FAKE_GPU=gpu)
            new = self.read(f"scripts/results/{name}.json")
            self.assertEqual(json.loads(new)["machine"]["gpu"], gpu)
            there[f"{name}.json"] = new
            self.assertEqual({name: self.read(f"scripts/results/{name}")
                              for name in os.listdir(self.at("scripts/results"))}, there)


class Profile(Scratch):
    def measured(self, **environment):
        for name in ("bin/05_flash_v2", "bin/06_backward", "path/ncu"):
            self.write(name, NCU, 0o755)
        options = profile.parse(["--bin", self.at("bin"), "--out", self.at("profile.json")])
        with unittest.mock.patch.dict(os.environ, PATH=self.at("path"), CALLED=self.at("called"),
                                      **environment), \
                unittest.mock.patch.object(profile, "machine", lambda *_: {
                    "gpu": "GPU", "driver": "1", "cuda": "13", "date": "today"}), \
                contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(profile.measure(options), 0)
        return json.loads(self.read("profile.json"))

    def test_each_kernel_at_each_head_size(self):
        found = self.measured()
        self.assertEqual([(one["rung"], one["variant"], one["kernel"], one["head_dim"])
                          for one in found["kernels"]],
                         [(*step, d) for step in profile.course.PROFILED for d in (64, 128)])
        self.assertIn("--kernel-name regex:key_gradients --launch-count 1", self.read("called"))
        # 132 SMs of 20 cycles; 4·32 heads of 32·32 tiles of the last record, the backward pass's.
        one = found["kernels"][0]
        self.assertEqual((one["cycles"], one["cycles_of_all"], one["block_q"]), (20, 2640, 128))
        lines = profile_table(unittest.mock.Mock(profile={**found, "seqlen": 256}))
        steps = 4 * 32 * 2 * 2
        cells = {line.split(" | ")[0]: line.split(" | ")[1] for line in lines if " | " in line}
        self.assertEqual(cells["| cycles"], f"{20 * 132 / steps:.0f}")
        self.assertEqual(cells["| tensor cores busy"], "20%")
        self.assertEqual(cells["| … for wgmma"], "20.00")

    def test_what_cannot_be_counted_is_named(self):
        lacking = profile.METRICS["stall_gmma"]
        for environment, said, status in (
                ({"LACKS": lacking}, f"ncu has no {lacking} here", NO_DEVICE),
                ({"SAYS": "==ERROR== ERR_NVGPUCTRPERM"}, "may not read the GPU's counters",
                 NO_DEVICE),
                ({"SAYS": "==ERROR== Failed"}, "05_flash_v2 failed", 1)):
            with self.subTest(said), self.assertRaises(Stop) as stop:
                self.measured(**environment)
            self.assertIn(said, str(stop.exception))
            self.assertEqual(stop.exception.status, status)
            self.assertFalse(os.path.exists(self.at("profile.json")))

    def test_without_ncu(self):
        done = self.run_it(sys.executable, "-m", "ladder.bench.profile", PATH=self.at("path"),
                           PYTHONPATH=SCRIPTS, status=NO_DEVICE)
        self.assertEqual(done.stderr, "scripts/figures profile: there is no ncu on PATH: Nsight "
                         "Compute, of the CUDA Toolkit\n")


if __name__ == "__main__":
    unittest.main()
