"""Tests of scripts/figures measure and profile, with programs, a GPU, a PyTorch and an ncu that
stand in for the real ones, and of the files that they write. (Of grids results_test is the test.)
"""

import contextlib
import io
import json
import os
import sys
import unittest
from unittest import mock

from base import Scratch, like, read
import fake_ladder
from ladder.base import files
from ladder.base.console import Stop
from ladder.base.npy import read_npy
from ladder.base.programs import run_json
from ladder.base import gpu
from ladder.measure import grid, peers, profile, results, run as measure

NAME = "NVIDIA H100 80GB HBM3"  # as fake_program.py has it
NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
*clocks.sm*) echo 1700; echo 1200;;
*) cat 'gpu';;
esac
"""


class FileTest(Scratch):
    def test_a_file_is_written_whole_or_not_at_all(self):
        path, lines = self.at("out.jsonl"), [{"kind": "ceilings", "a": 1}]
        results.Results(path, None).put("ceilings", lines)
        before, file = read(path), results.Results(path, None)
        with mock.patch("os.replace", side_effect=OSError(28, "No space left")):
            self.assertRaisesRegex(OSError, "No space left", file.put, "ceilings", [])
        self.assertEqual((read(path), os.listdir(self.root)), (before, ["out.jsonl"]))

    def test_the_newest_file_by_its_own_date(self):
        for name, date, newest in (("sim.jsonl", "", "none"),
                                   ("z1.jsonl", "2026-03-31", "z1.jsonl"),
                                   ("b1.jsonl", "2026-04-01", "b1.jsonl"),
                                   ("a1.jsonl", "2026-04-01", "b1.jsonl")):
            self.write(name, files.json_text(
                {"kind": "run", "device": "gpu" if date else "sim", "date": of_line}
                for of_line in ("2026-03-30", date, "2026-03-29")))
            self.assertEqual(os.path.basename(files.newest_measured(self.root) or "none"), newest)

    def test_a_file_is_of_one_kind_of_gpu(self):
        for gpu, name in ((NAME, "h100"), ("NVIDIA GeForce RTX 4090", "4090"), (None, "sim"),
                          ("Tesla T4", "t4"), ("NVIDIA TITAN V", "nvidia")):
            self.assertEqual(os.path.basename(files.file_of(gpu)), f"{name}.jsonl")

    def test_a_changed_tree_is_not_its_commit(self):
        """But for results and texts, and for files that git does not know."""
        git = "git -c user.name=a -c user.email=b"
        with mock.patch.object(gpu, "ROOT", self.root):
            self.assertIsNone(gpu.commit())
            for words in ("init -q", "add .", "commit -qm first"):
                self.run_it(*f"{git} {words}".split())
                for path in ("a.py", "b.md", "scripts/results/c"):
                    self.write(path, "old")
            head = gpu.commit()
            for path in ("new.py", "b.md", "scripts/results/c", "a.py"):
                self.write(path, "new")
                self.assertEqual(gpu.commit(), head + "+changes" * (path == "a.py"))

    def test_inputs_that_are_missing_are_made(self):
        with mock.patch.object(grid, "ROOT", self.root):
            folder = grid.loaded(["--load", grid.SHIFTED_V])[1]
        for name, rows, mean in (("q", 64, 0), ("k", 16384, 0), ("v", 16384, 1)):
            values = read_npy(self.at(grid.SHIFTED_V, f"{name}.npy"))
            self.assertAlmostEqual(sum(values) / 64 / rows, mean, delta=0.05)
            with open(f"{folder}/{name}.npy", "rb") as file:
                self.assertIn(f"(1, 1, {rows}, 64)".encode(), file.read(128))


class Fake(fake_ladder.FakeLadder):
    """Four rungs and a GPU."""

    BIN = "bin"
    STEPS = {"00_naive": ["naive"], "04_flash_v1": ["flash_v1"], "05_flash_v2": ["swap", "mma"],
             "06_backward": ["mma"]}
    SWAP = ["05/swap", "--again"]

    def setUp(self):
        super().setUp()
        self.ladder(self.STEPS, gpu=True)
        self.write("path/nvidia-smi", NVIDIA_SMI.replace("gpu", self.at("gpu")), 0o755)
        self.write("gpu", f"{NAME}, 570.1\nNVIDIA T4, 560.2\n")
        self.environment["PATH"] = f"{self.root}/path:{os.environ['PATH']}"

    def call(self, part, *options, status=0):
        """Runs measure or profile here: what it said."""
        with mock.patch.dict(os.environ, PATH=self.environment["PATH"]), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            try:
                found = part.main(["--bin", self.at("bin"), "--out", self.at("out.jsonl"),
                                   "--commit", "abc", *options])
            except (Stop, SystemExit, KeyboardInterrupt) as stop:
                found = getattr(stop, "status", getattr(stop, "code", None))
                print(stop, file=said)
        self.assertEqual(found, status, said.getvalue())
        return said.getvalue()

    def bench(self, *options, status=0, torch=None):
        """Runs measure; whatever PyTorch runs takes 1 to 4 ms, 2 in the median."""
        found = {"return_value": torch} if torch else {"side_effect": Stop("none", 3)}
        modules = dict.fromkeys(("torch.nn.attention", "torch.nn.functional"), torch)
        with mock.patch.object(peers, "import_torch", **found), \
                mock.patch.object(peers.Gpu, "time", lambda _, run, ms: [run(), 2, 1, 4][1:]), \
                mock.patch.dict(sys.modules, modules):
            return self.call(measure, "--time", "5", *options, status=status)

    def lines(self, kind, **wanted):
        found = map(json.loads, self.read("out.jsonl").splitlines())
        return [line for line in found if like(line, kind=kind, **wanted)]

    def calls(self):
        """What was measured since the last time."""
        return [line for line in self.called().splitlines() if not line.endswith("--list")]


class Bench(Fake):
    def test_the_file(self):
        self.bench("--grid", "paper", "06")
        runs, called = self.lines("run"), self.calls()
        # The step at each point up to its limits, then twice against float64; it says two things
        # each time.
        self.assertEqual((len(called), len(runs), len(self.lines("step"))), (24, 2 * 24, 5))
        self.assertLessEqual(
            {"06_backward --device gpu --step mma --batch 8 --heads 32 --seqlen 2048 "
             "--head-dim 64 --dtype bf16 --check off --time 5 --dram --json",
             "06_backward --device gpu --step mma --batch 1 --heads 32 --seqlen 16384 "
             "--head-dim 64 --dtype bf16 --causal --check off --time 5 --json",
             "06_backward --device gpu --step mma --batch 1 --heads 2 --seqlen 1024 --head-dim "
             "64 --dtype bf16 --check full --input outliers --time 5 --json"}, set(called))
        self.assertTrue(like(runs[-1], rung="06_backward", step="mma", direction="bwd", heads=2,
                             options="--check full --input outliers", driver="570.1",
                             commit="abc", sm_mhz=1700, unknown=[1, {"a": None}],
                             kernels=[{"name": "attention", "time_ms": 0.12}]), runs[-1])
        self.assertNotIn(None, runs[-1].values())

    def test_what_is_there_is_kept(self):
        self.bench()
        before = self.lines("run")
        self.assertEqual(len(self.calls()), 5)
        os.unlink(self.at("bin/06_backward"))
        for options, new, records in (
                (("--time", "7"), 0, 6), (self.SWAP, 1, 6),
                (("--grid", "long", "00"), 5, 11)):
            self.bench(*options)
            now = self.lines("run")
            self.assertEqual(
                (len(self.calls()), len(now), [r["step"] for r in now[:6]],
                 len(self.lines("step"))), (new, records, [r["step"] for r in before], 5))

        self.rung("05_flash_v2", ["mma"], gpu=True)  # what has gone stays where it was
        self.bench()
        self.assertEqual([line["step"] for line in self.lines("step")],
                         ["naive", "flash_v1", "swap", "mma", "mma"])

    def test_an_interrupted_run_goes_on(self):
        """And of what it measures again it leaves nothing old."""
        for there, again in (([], ["--again"]), (["naive", "flash_v1", "swap"], [])):
            left = [*there]

            def interrupted(words, *more):
                if not left:
                    self.assertEqual([r["step"] for r in self.lines("run")], there)
                    raise KeyboardInterrupt
                left.pop()
                return run_json(words, *more)

            if again:
                self.bench()
            with mock.patch.object(measure, "run_json", interrupted):
                self.assertIn("out.jsonl has what was measured", self.bench(*again, status=None))
            self.calls()
            self.bench()
            self.assertEqual((len(self.calls()), len(self.lines("run"))), (5 - len(there), 6))
            os.unlink(self.at("out.jsonl"))

    def test_what_does_not_run(self):
        """Skipped with the reason where it cannot, tried again where it failed."""
        needs = "00_naive needs 256.0 GiB of GPU memory; 79.1 are free."
        for rung, step, told, status, said, again in (
                ("00_naive", "naive", {"status": 3, "err": f"00_naive: {needs}"}, 0,
                 "left out: 00_naive needs", 0),
                ("04_flash_v1", "flash_v1", {"status": 1, "err": "04_flash_v1: something broke"}, 1,
                 "failed (status 1): something broke", 1),
                ("05_flash_v2", "swap", {"status": 1, "changes": {"pass": False}}, 1,
                 "failed (status 1): wrong result", 0)):
            self.tell({f"{rung}/{step}": told})
            self.assertIn(f"{rung} {step}, d 64, N 2048, --check off: {said}",
                          self.bench(status=status))
            self.assertEqual([(s["step"], s["status"], s["reason"], s["seqlen"])
                              for s in self.lines("skipped")],
                             [("naive", 3, needs, 2048)] * (rung == "00_naive"))
            self.assertEqual(len(self.lines("run", **{"pass": False})), step == "swap")
            self.tell({f"{rung}/{step}": {}})
            self.calls()
            self.bench()
            self.assertEqual(len(self.calls()), again)
            self.bench("--again", f"{rung}/{step}")
            self.assertEqual((self.lines("skipped"), len(self.lines("run", **{"pass": True}))),
                             ([], 6))
            os.unlink(self.at("out.jsonl"))

    def test_what_it_refuses(self):
        self.bench("00")
        whole = self.read("out.jsonl")
        for words, why in (
                (("--grid", "huge"), "there are quick, paper, long, decode"),
                (("--peers", "fa3"), "there are math"), (("--time", "nan"), "must be above 0"),
                (("--time", "0"), "must be above 0"),
                (("07",), "there is no 07. The rungs and their steps:\n  00_naive "),
                (("--bin", self.at("path")), "path has no rung")):
            self.assertIn(why, self.bench(*words, status=2))
        on_sim = whole.replace('"gpu"', '"sim"')
        for text, was, now, words in ((whole, NAME, "the sim", ["--sim"]), (whole, NAME, "A", []),
                                      (on_sim, "the sim", "A", [])):
            self.write("out.jsonl", text)
            self.write("gpu", "A, 570.1\n")
            self.assertIn(f"was measured on {was}, and this is {now}",
                          self.bench(*words, status=2))
            self.assertEqual(self.read("out.jsonl"), text)
        self.write("out.jsonl", "[]")
        self.assertIn("is no file of this script's", self.bench(status=2))
        self.write("gpu", "")
        self.assertIn("no GPU answers", self.bench(status=3))


def fake_torch():
    """PyTorch and its modules in one."""
    torch = mock.MagicMock(__version__="2.11.0")
    torch.configure_mock(**{
        "backends.cudnn.version.return_value": 91900, "cuda.get_device_name.return_value": NAME,
        "cuda.get_device_capability.return_value": (8, 9)})
    return torch


class Peers(Fake):
    def beside(self):
        return {(r["library"], *r["beside"]) for r in self.lines("peer")}

    def test_they_are_measured_just_before_what_is_compared_with_them(self):
        torch, order = fake_torch(), []
        with mock.patch.object(
                measure, "run_json", side_effect=lambda words, *more: (
                    order.append(os.path.basename(words[0])), run_json(words, *more))[1]):
            torch.randn.side_effect = lambda *_, **__: (
                order.append("PyTorch") or mock.DEFAULT)
            self.bench(torch=torch)
        turns = [turn for turn, before in zip(order, [None, *order]) if turn != before]
        self.assertEqual(turns, ["PyTorch",  # the ceilings
                                 "00_naive", "04_flash_v1", "PyTorch", "05_flash_v2",
                                 "06_backward"])
        every = ("05_flash_v2 mma", "05_flash_v2 swap", "06_backward mma")
        self.assertEqual(self.beside(), {(peer, *every) for peer in peers.BACKENDS})
        for r in self.lines("peer"):
            flops = 4 * 2048**2 * 64 * 32 * 8 * (2.5 if r["direction"] == "bwd" else 1)
            self.assertAlmostEqual(r["tflops"], flops / 2e9)
            self.assertTrue(like(r, device_name=NAME, kv_heads=32, commit="abc", time_ms_min=1,
                                 time_ms_max=4, samples=3))
        # A step again, and one peer with it: the others were not beside it. The ceilings stay.
        before = self.lines("ceilings")
        self.assertTrue(like(before[0], matmul_tflops=8192**3 * 1e-9, copy_bytes_per_s=2**30 * 1e3,
                             matmul_e4m3_tflops=8192**3 * 1e-9), before)
        self.assertTrue(torch._scaled_mm.called)
        self.bench(*self.SWAP, "--peers", "flash", torch=torch)
        self.assertEqual((self.lines("ceilings"), self.beside()), (before, {
            (peer, *(every[1:2] if peer == "flash" else every)) for peer in peers.BACKENDS}))
        torch.cuda.get_device_capability.return_value = 8, 0
        self.bench("--again", "--peers", "flash", torch=torch)  # all again, so the ceilings too
        self.assertEqual(len(self.lines("ceilings", matmul_e4m3_tflops=None)), 1)

    def test_decoding(self):
        self.rung("05_flash_v2", ["swap", "mma", "split_kv"], gpu=True)
        torch = fake_torch()
        self.bench("--grid", "decode", "--peers", "flash,,cudnn", torch=torch)
        called = self.calls()
        self.assertEqual(len(called), 18)
        self.assertEqual(called[-1], "05_flash_v2 --device gpu --step split_kv --batch 64 "
                         "--heads 32 --seqlen 1 --head-dim 64 --kv-heads 8 --seqlen-kv 8192 "
                         "--dtype bf16 --check off --time 5 --json")
        self.assertIn(mock.call(16, 8, 4096, 128, device="cuda", dtype=torch.bfloat16,
                                         requires_grad=False), torch.randn.mock_calls)
        found = self.lines("peer", direction="fwd", beside=["05_flash_v2 split_kv"])
        self.assertEqual(len(found), 2 * 18)
        self.assertEqual(found[0]["copy_bytes_per_s"], 2**30 * 1e3)
        # It is no step of the ladder.
        self.assertNotIn("split_kv", [step["step"] for step in self.lines("step")])

    def test_models(self):
        torch = fake_torch()
        self.bench("--grid", "models", "--peers", "flash,cudnn", torch=torch)
        called = self.calls()
        for shape, cache, mask in (  # other heads of K and V, other keys, both
                ("4 --heads 32 --seqlen 2048 --head-dim 128", "8 --seqlen-kv 2048", " --causal"),
                ("16 --heads 20 --seqlen 448 --head-dim 64", "20 --seqlen-kv 1500", ""),
                ("1 --heads 32 --seqlen 64 --head-dim 128", "8 --seqlen-kv 16384", " --causal")):
            self.assertIn(f"05_flash_v2 --device gpu --step mma --batch {shape} --kv-heads {cache} "
                          f"--dtype bf16{mask} --check off --time 5 --json", called)
        torch.bias.causal_lower_right.assert_called_with(64, 16384)

    def test_without_part_of_pytorch(self):
        for name, value, said, records, ceilings in (
                ("scaled_dot_product_attention.side_effect",
                 RuntimeError("No available kernel. Aborting execution.\nmore"), "PyTorch cudnn, "
                 "d 64, N 2048, bwd: left out: No available kernel. Aborting execution.\n", 0, 1),
                ("mm.side_effect", MemoryError, "no ceilings: MemoryError", 8, 0)):
            torch = fake_torch()
            torch.configure_mock(**{name: value})
            self.assertIn(said, self.bench(torch=torch))
            self.assertEqual((len(self.lines("peer")), len(self.lines("skipped")),
                              len(self.lines("ceilings")), len(self.lines("run"))),
                             (records, 8 - records, ceilings, 6))
            os.unlink(self.at("out.jsonl"))
        self.assertIn("no peers and no ceilings: none", self.bench())


class Timing(unittest.TestCase):
    """PyTorch's attention is timed as our programs time themselves."""

    def test_sampling(self):
        """As common/tests/harness/report_test.cpp has it, by a batch of 4 runs."""
        for budget_ms, run_ms, warm_up, samples in (
                (100, lambda i: 1, 100, 100),
                (50, lambda i: 1 / (1 + 0.01 * i), 176, 968),  # while runs get faster, to 100 ms
                (20, lambda i: 1 + i // 8 / 32, 20, 52),  # steady batches, but none in turn
                (20, lambda i: 1 + 0.01 * i, 20, 44),  # while the median moves, to 60 ms
                (1, lambda i: 500, 4, 4)):
            times = []

            def batch():
                times.extend(run_ms(len(times) + i) for i in range(4))
                return times[-4:]

            found = peers.sample(budget_ms, batch, lambda: sum(times))
            self.assertEqual((len(times) - len(found), len(found)), (warm_up, samples))
            self.assertEqual(found, times[warm_up:])

    def test_batches(self):
        """Of about 20 ms; the GPU waits where the host takes more than half of that to queue."""
        for run_ms, queueing_ms, size, *waits in ((1, 10, 20, 0), (30, 9, 3, 0), (0.1, 11, 50, 11)):
            gpu = peers.Gpu(fake_torch())
            with mock.patch.object(peers, "sample", lambda budget, batch, clock: batch()), \
                    mock.patch.object(gpu, "batch", return_value=([9, run_ms], queueing_ms,
                                                                  20)) as batch:
                self.assertEqual(gpu.time("run", 5), [9, run_ms])
            self.assertEqual(batch.mock_calls, [mock.call("run", *more) for more in (
                (2,), (size,), (size, *waits))])


class Profile(Fake):
    def ncu(self, *lacking, tail=""):
        """One that writes this, by 132 SMs and each metric 20."""
        names = [name for name in profile.METRICS.values() if name not in lacking]
        values = ["2,640" if name == "sm__cycles_active.sum" else "20" for name in names]
        rows = (["ID", "Kernel Name", *names], ["", "", *["inst"] * len(names)],
                ["0", "attention", *values])
        self.write("csv", "==PROF== Connected\n" + "".join(
            ",".join(f'"{cell}"' for cell in row) + "\n" for row in rows))
        self.write("path/ncu", f"""#!/bin/sh
echo ncu "$@" >>'{self.at("called")}'
while [ "$1" != --log-file ]; do shift; done
cp '{self.at("csv")}' "$2"
{tail}""", 0o755)

    def test_kernels_of_the_steps_that_are_named(self):
        self.ncu()
        kernels = [{"name": name, "time_ms": ms} for name, ms in (  # a tenth of a step: 0.01234
            ("attention", 0.1), ("clear", 0.0123), ("merge", 0.0124))]
        self.tell({f"{rung}/mma": {"changes": {"block_q": 64, "block_kv": 128, "kernels": kernels}}
                   for rung in ("05_flash_v2", "06_backward")})
        for new, again in ((4 + 8, []), (0, []), (4 + 8, ["--again"])):  # without ncu and with it
            self.call(profile, "05/mma", "06/mma", *again)
            called = self.calls()
            self.assertEqual(len(called), new)
        self.assertEqual(len(self.lines("profile", kernel="merge", time_ms=0.0124)), 4)
        found = self.lines("profile", kernel="attention")
        self.assertEqual([(r["rung"], r["direction"], r["kernel"], r["head_dim"]) for r in found],
                         [("05_flash_v2", "fwd", "attention", 64),
                          ("05_flash_v2", "fwd", "attention", 128),
                          ("06_backward", "bwd", "attention", 64),
                          ("06_backward", "bwd", "attention", 128)])
        self.assertTrue(like(found[0], cycles=20, cycles_of_all=2640, time_ms=0.1, commit="abc"))

    def test_what_cannot_be_counted_is_named(self):
        with mock.patch.dict(self.environment, PATH=self.at("nothing")):
            self.assertIn("there is no ncu on PATH", self.call(profile, status=3))
        lacking = profile.METRICS["shared"]
        kernels = [{"name": "attention", "time_ms": 1}]
        self.tell({"05_flash_v2/mma": {"changes": {"block_q": 64, "block_kv": 64,
                                                   "kernels": kernels}}})
        for words, tail, said, status in (
                ([lacking], "", f"profile.py, '{lacking}'", 3),
                ([], "echo ERR_NVGPUCTRPERM >&2; exit 1", "ERR_NVGPUCTRPERM", 1)):
            self.ncu(*words, tail=tail)
            self.assertIn(said, self.call(profile, "05/mma", status=status))
            self.assertFalse(os.path.exists(self.at("out.jsonl")))


if __name__ == "__main__":
    unittest.main()
