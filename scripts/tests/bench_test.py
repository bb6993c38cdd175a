"""Tests scripts/figures measure and the .jsonl files that it writes, with stand-ins for programs,
GPU and Nsight Compute (ncu). results_test tests which runs are planned for the committed files."""

import json
import os
import sys
from unittest import mock

from support import Scratch, like, read
from fake_ladder import NAME, FakeLadder
from ladder.base import files
from ladder.base.npy import read_npy
from ladder.base.programs import ladder_of, programs_in
from ladder.base import gpu
from ladder.measure import grid, results, run as measure


class FileTest(Scratch):
    def test_a_file_is_written_whole_or_not_at_all(self):
        path, lines = self.at("out.jsonl"), [{"kind": "ceilings", "a": 1}]
        results.Results(path, None).put("ceilings", lines)
        before, file = read(path), results.Results(path, None)
        with mock.patch("os.replace", side_effect=OSError(28, "No space left")):
            self.assertRaisesRegex(OSError, "No space left", file.put, "ceilings", [])
        self.assertEqual((read(path), os.listdir(self.root)), (before, ["out.jsonl"]))

    def test_newest_file_is_chosen_by_the_date_inside(self):
        """Each case adds a file of three runs, the second on this date. Of equal dates, the last
        file name wins; the simulator's runs do not count."""
        for name, date, newest in (("sim.jsonl", "", "none"),
                                   ("z1.jsonl", "2026-03-31", "z1.jsonl"),
                                   ("b1.jsonl", "2026-04-01", "b1.jsonl"),
                                   ("a1.jsonl", "2026-04-01", "b1.jsonl")):
            self.write(name, files.json_text(
                {"kind": "run", "device": "gpu" if date else "sim", "date": of_line}
                for of_line in ("2026-03-30", date, "2026-03-29")))
            self.assertEqual(os.path.basename(files.newest_measured(self.root) or "none"), newest)

    def test_a_file_holds_one_kind_of_gpu(self):
        for gpu, name in ((NAME, "h100"), ("NVIDIA GeForce RTX 4090", "4090"), (None, "sim"),
                          ("Tesla T4", "t4"), ("NVIDIA TITAN V", "nvidia")):
            self.assertEqual(os.path.basename(files.file_of(gpu)), f"{name}.jsonl")

    def test_uncommitted_changes_are_marked(self):
        """Changes to results, to pages and to untracked files do not count."""
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
                self.assertEqual(gpu.commit(), head + ("+changes" if path == "a.py" else ""))

    def test_missing_inputs_are_generated(self):
        with mock.patch.object(grid, "ROOT", self.root):
            grid.loaded(["--load", grid.SHIFTED_V])
        for name, rows, mean in (("q", 64, 0), ("k", 16384, 0), ("v", 16384, 1)):
            values = read_npy(self.at(grid.SHIFTED_V, f"{name}.npy"))
            self.assertEqual(len(values), 64 * rows)
            self.assertAlmostEqual(sum(values) / 64 / rows, mean, delta=0.05)


class FakeBench(FakeLadder):
    """A test with stand-ins for four rungs and for nvidia-smi (two GPUs), and without PyTorch."""

    STEPS = {"00_naive": ["naive"], "04_flash_v1": ["flash_v1"],
             "05_flash_v2": ["swap", "large_tiles"], "06_backward": ["split_sums"]}

    def setUp(self):
        super().setUp()
        self.ladder(self.STEPS, gpu=True)
        self.smi = f"{NAME}, 570.1\nNVIDIA T4, 560.2"
        answer = lambda *command: self.smi * (command[0] == "nvidia-smi")
        for patch in (mock.patch.dict(sys.modules, torch=None),
                      *(mock.patch.object(module, "output_of", answer)
                        for module in (gpu, measure))):
            patch.start()
            self.addCleanup(patch.stop)

    def bench(self, *words, status=0):
        return self.call(measure, "--bin", self.at("build/bin"), "--out", self.at("out.jsonl"),
                         "--commit", "abc", "--time", "5", *words, status=status).stderr

    def lines(self, kind, **wanted):
        found = map(json.loads, self.read("out.jsonl").splitlines())
        return [line for line in found if like(line, kind=kind, **wanted)]


class BenchTest(FakeBench):
    def test_each_run_becomes_a_line_of_the_file(self):
        self.bench("--grid", "paper", "06")
        runs, called = self.lines("run"), self.calls()
        # The step runs at each point of the grid within its limits, then twice with --check full.
        # Each run prints two records, forward and backward.
        self.assertEqual((len(called), len(runs), len(self.lines("step"))), (24, 2 * 24, 5))
        self.assertLessEqual(
            {"06_backward --device gpu --step split_sums --batch 8 --heads 32 --seqlen 2048 "
             "--head-dim 64 --dtype bf16 --check off --time 5 --dram --json",
             "06_backward --device gpu --step split_sums --batch 1 --heads 32 --seqlen 16384 "
             "--head-dim 64 --dtype bf16 --causal --check off --time 5 --json",
             "06_backward --device gpu --step split_sums --batch 1 --heads 2 --seqlen 1024 "
             "--head-dim 64 --dtype bf16 --check full --input outliers --time 5 --json"},
            set(called))
        self.assertTrue(like(runs[-1], rung="06_backward", step="split_sums", direction="bwd",
                             heads=2,
                             options="--check full --input outliers", driver="570.1",
                             commit="abc", unknown=[1, {"a": None}],
                             kernels=[{"name": "attention", "time_ms": 0.12}]), runs[-1])
        self.assertNotIn(None, runs[-1].values())

    def test_existing_results_are_kept(self):
        self.bench()
        before = self.lines("run")
        self.assertEqual(len(self.calls()), 5)
        os.unlink(self.at("build/bin/06_backward"))
        # Each case: options, the number of new runs, and of all records in the file afterwards.
        for options, new, records in (
                (("--time", "7"), 0, 6), (("05/swap", "--again"), 1, 6),
                (("--grid", "long", "00"), 5, 11)):
            self.bench(*options)
            now = self.lines("run")
            self.assertEqual(
                (len(self.calls()), len(now), [r["step"] for r in now[:6]],
                 len(self.lines("step"))), (new, records, [r["step"] for r in before], 5))

        self.rung("05_flash_v2", ["large_tiles"], gpu=True)  # a removed step keeps its place
        self.bench()
        self.assertEqual([line["step"] for line in self.lines("step")],
                         ["naive", "flash_v1", "swap", "large_tiles", "split_sums"])

    def test_steps_that_fail_are_reported(self):
        """An impossible run is skipped, with the reason, and a failed one is tried again. Lines
        that --again should have replaced are removed. Each case: a step, its stand-in's answer, the
        status and message of measuring it, and how many runs the next call makes."""
        needs = "00_naive needs 256.0 GiB of GPU memory; 79.1 are free."
        for rung, step, told, status, said, again in (
                ("00_naive", "naive", {"status": 3, "err": f"00_naive: {needs}"}, 0,
                 "skipped: 00_naive needs", 0),
                ("04_flash_v1", "flash_v1", {"status": 1, "err": "04_flash_v1: something broke"}, 1,
                 "failed (status 1): something broke", 1),
                ("05_flash_v2", "swap", {"status": 1, "changes": {"pass": False}}, 1,
                 "failed (status 1): wrong result", 0)):
            self.bench()
            self.tell({f"{rung}/{step}": told})
            self.assertIn(f"{rung} {step}, d 64, N 2048, --check off: {said}",
                          self.bench("--again", status=status))
            self.assertEqual(len(self.lines("run", **{"pass": True})), 5)
            self.assertEqual([(s["step"], s["status"], s["reason"], s["seqlen"])
                              for s in self.lines("skipped")],
                             [("naive", 3, needs, 2048)] if rung == "00_naive" else [])
            self.assertEqual(len(self.lines("run", **{"pass": False})), step == "swap")
            self.tell({f"{rung}/{step}": {}})
            self.calls()
            self.bench()
            self.assertEqual(len(self.calls()), again)
            self.bench("--again", f"{rung}/{step}")
            self.assertEqual((self.lines("skipped"), len(self.lines("run", **{"pass": True}))),
                             ([], 6))
            os.unlink(self.at("out.jsonl"))

    def test_sim_runs_on_the_simulator(self):
        self.bench("--sim", "04")
        self.assertEqual({r["device"] for r in self.lines("run")}, {"sim"})

    def test_bad_options_are_refused(self):
        self.bench("00")
        whole = self.read("out.jsonl")
        for words, why in (
                (("--grid", "huge"), "choose from quick, paper, long, decode"),
                (("--time", "0"), "--time 0: give a number of milliseconds above 0"),
                (("07",), "there is no 07. The rungs and their steps:\n  00_naive "),
                (("--sim",), f"was measured on {NAME}, and this is the simulator")):
            self.assertIn(why, self.bench(*words, status=2))
        self.write("out.jsonl", whole.replace('"gpu"', '"sim"'))
        self.assertIn(f"was measured on the simulator, and this is {NAME}", self.bench(status=2))
        self.write("out.jsonl", "[]")
        self.assertIn("was not written by scripts/figures measure", self.bench(status=2))
        self.smi = ""
        self.assertIn("no GPU answers", self.bench(status=3))


class Peers(FakeBench):
    def test_peers_are_measured_right_before_the_step(self):
        """Without PyTorch, peers are left out, and a message says what to install."""
        options = mock.Mock(dtype="bf16", sim=False, grid=["quick"], steps=[])
        ladder = ladder_of(programs_in(self.at("build/bin")), "gpu")
        self.assertEqual(
            [getattr(work, "library", getattr(work, "step", None) and work.step.name)
             for work in grid.plan(options, ladder, ladder.steps)],
            ["naive", "flash_v1", *2 * grid.BACKENDS, "swap", "large_tiles", "split_sums"])
        self.assertRegex(self.bench(), "the ceilings are left out: PyTorch is missing .*install")

    def test_shapes_of_models_and_of_decoding(self):
        self.rung("05_flash_v2", ["swap", "large_tiles", "split_kv"], gpu=True)
        self.bench("--grid", "decode,,models")
        called = self.calls()
        for step, shape, cache, mask in (  # fewer heads and more keys; fewer heads; more keys
                ("05_flash_v2 split_kv", "64 --heads 32 --seqlen 1 --head-dim 64",
                 "8 --seqlen-kv 8192", ""),
                ("06_backward split_sums", "4 --heads 32 --seqlen 2048 --head-dim 128",
                 "8 --seqlen-kv 2048", " --causal"),
                ("06_backward split_sums", "16 --heads 20 --seqlen 448 --head-dim 64",
                 "20 --seqlen-kv 1500", "")):
            self.assertIn(f"{step.replace(' ', ' --device gpu --step ')} --batch {shape} "
                          f"--kv-heads {cache} --dtype bf16{mask} --check off --time 5 --json",
                          called)
        self.assertEqual({"split_kv" in words for words in called if "--seqlen 1 " in words},
                         {True})
        self.assertNotIn("split_kv", [step["step"] for step in self.lines("step")])


class Profile(FakeBench):
    def test_kernels_of_named_steps_are_profiled(self):
        values = ["2,640" if name == "sm__cycles_active.sum" else "20"
                  for name in measure.METRICS.values()]
        csv = [["ID", *measure.METRICS.values()], ["", *["inst"] * len(values)], ["0", *values]]
        said = "==PROF== Connected\n" + "".join(
            ",".join(f'"{cell}"' for cell in row) + "\n" for row in csv)
        self.tell({"06_backward/split_sums": {"changes": {"kernels": [
            {"name": "clear", "time_ms": 0.0123}, {"name": "key_gradients", "time_ms": 0.1}]}}})
        words = "--grid", "profile", "06/split_sums"
        with mock.patch.object(measure, "run_quietly", return_value=(0, said, "")) as ncu:
            self.bench(*words)
            self.assertEqual([(r["direction"], r["kernel"], r["head_dim"], r["time_ms"])
                              for r in self.lines("profile", cycles=20, cycles_of_all=2640)],
                             [("bwd", "key_gradients", d, 0.1) for d in (64, 128)])
            ncu.return_value = (1, said, "ERR_NVGPUCTRPERM")
            self.assertIn("ERR_NVGPUCTRPERM", self.bench(*words, "--again", status=1))
            self.assertEqual(self.lines("profile"), [])
