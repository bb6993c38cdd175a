"""Tests of the figures, over the committed measurements as each test changes them: see
committed.py.

Run alone: python3 scripts/tests/figures_test.py
"""

import inspect
import json
import os
import pickle
import shutil
import unittest

from base import RESULTS, ROOT, SCRIPTS, Scratch, like, read
from committed import COMMITTED, GPU, OTHER, PAPER, PICKLED, SIM, Changed
from ladder import course
from ladder.figures import gallery
from ladder.figures.gallery import FIGURES, digest, figure_data
from ladder.figures.make import stale
from ladder.figures.measured import Files
from ladder.figures.memory import names_of
from ladder.figures.pipeline import box_colour


class Figures(Changed):
    def test_what_is_missing_is_said_and_left_out(self):
        """(what is taken away, which figures go, what is said, {table: what it says then})"""
        def without(**wanted):
            return lambda: self.drop(self.gpu, lambda c, r: like(r, **wanted))

        def uncounted():
            for record in self.gpu["records"]:
                record["dram_read_bytes"] = None

        not_both = dict.fromkeys(course.TWO_GPUS_TABLES, "*A second GPU, with the rates of both, "
                                 f"is not measured yet: `{PAPER}` measures it.*")
        beside = "beside others is not measured yet"
        for change, gone, lines, tables in (
                (lambda: self.gpu.update(peers=[p for p in self.gpu["peers"]
                                                if p["variant"] != "cudnn"]), "",
                 ["tflops_fwd: left out of it: d = 64: no PyTorch, cuDNN: ",
                  "decode: left out of it: no PyTorch, cuDNN at every point: "],
                 {"sm90_beside_cudnn": "| – · ", "hopper_steps": "| cuDNN | – | – | – | – |"}),
                (lambda: self.gpu.update(peers=[]), "decode", ["no PyTorch, plain"],
                 {"peers": "*Ours beside PyTorch's is not measured yet: ",
                  "decode": "*Decoding is not measured yet: "}),
                (lambda: self.gpu.update(ceilings=None), "roofline two_gpus shared_roof",
                 [f"roofline is left out: no ceilings were measured: {PAPER}, where PyTorch is "
                  "installed", "two_gpus is left out: no ceilings of both GPUs were measured: "],
                 not_both),
                (uncounted, "", ["traffic: left out of it: no DRAM counters",
                                 "roofline: left out of it: d = 64: DRAM counters of 00 naive, "],
                 {"ladder": f"DRAM is not measured yet: `{PAPER}`, where counters may be read."}),
                (lambda: self.gpu.update(skipped=[]), "",
                 ["workspace: left out of it: nothing ran out of memory: "], {}),
                (without(rung="00_naive"), "",
                 ["speedup: left out of it: no time of 00 at N = 2048, d = 64"],
                 {"ladder": "did not have `naive` yet"}),
                (without(rung="06_backward"), "tflops_bwd tflops_both",
                 ["tflops_bwd is left out: ", f"no times of the backward pass: {PAPER}",
                  "speedup: left out of it: no backward pass at N = 2048, d = 64",
                  "shared_roof: left out of it: d = 64: no time of 06 sm90: "],
                 {"training_beside_others": f"*06 sm90 {beside}: `{PAPER}` measures it.*",
                  "backward_beside_cudnn_fp16": beside,
                  "peers": "; ours is 05's `"}),
                (without(rung="05_flash_v2"), "decode", [], {
                    "hopper_steps": "*The steps are not measured yet: ",
                    "sm90_beside_cudnn": beside,
                    "fp8_times": "*Times of FP8 are not measured yet"}),
                (without(variant="split_kv"), "decode",
                 ["decode is left out: decoding is not measured"],
                 {"decode": "*Decoding is not measured yet: `scripts/figures measure --grid "
                            "decode` measures it.*"}),
                (without(variant="swap"), "", [], {"ladder": "did not have `swap` yet"}),
                (without(variant="tma"), "", [],
                 {"hopper_steps": "–: that run did not have `tma` yet."}),
                (without(dtype="fp16"), "", [], {"sm90_beside_cudnn_fp16": beside}),
                (lambda: self.drop(self.gpu, lambda c, r: "--block" in c), "",
                 ["block_size: left out of it: no time by tile size"], {}),
                (lambda: [self.drop(of, lambda c, r: "--block" in c) for of in (
                    self.gpu, self.sim)], "block_size",
                 [f"block_size is left out: no traffic by tile size: {SIM}; no time by"], {}),
                (lambda: self.drop(self.gpu, lambda c, r: "--check full" in c), "",
                 ["error: left out of it: no errors on a GPU, the sim's instead"], {}),
                (lambda: self.drop(self.sim, lambda c, r: True), "fp8_error shared_roof",
                 [f"traffic: left out of it: no distinct bytes: {SIM}",
                  "block_size: left out of it: no traffic by tile size",
                  "fp8_error is left out: no errors of FP8"],
                 {"fp8_error": f"*Errors of FP8 are not counted yet: `{SIM}` measures it.*",
                  "shared_roof": f"*Shared memory is not counted yet: `{SIM}` measures it.*",
                  "visits": "*Visits are not counted yet: ",
                  "claims": "| not measured yet | not "}),
                (lambda: self.data.pop("traces.json"), "access pipeline pipeline_bwd",
                 [f"{name} is left out: no traces: {SIM}"
                  for name in ("access", "pipeline", "pipeline_bwd")], {}),
                (lambda: self.data.pop("clock.json"), "pipeline_measured",
                 ["pipeline_measured is left out: no clock.json: scripts/figures clock"], {}),
                (lambda: self.data.pop(OTHER), "two_gpus",
                 [f"no second GPU was measured: {PAPER} on another"], not_both),
                (lambda: self.other.update(ceilings=None), "two_gpus",
                 ["no ceilings of both GPUs were measured"], not_both),
                (lambda: self.drop(self.other, lambda c, r: True), "two_gpus",
                 ["no step was measured on both"], not_both)):
            self.as_it_was()
            before = self.said()[1]
            change()
            with self.subTest(gone=gone, lines=lines, tables=tables):
                data, said = self.said()
                self.assertEqual(set(FIGURES) - set(data), set(gone.split()))
                for line in lines:
                    self.assertNotIn(line, before)
                    self.assertIn(line, said)
                for name, text in tables.items():
                    self.assertIn(text, self.table(name))

    def test_the_sim_alone(self):
        data = figure_data(Files("sim.json"))
        self.assertEqual(set(data), {"traffic", "workspace", "block_size", "access", "pipeline",
                                     "pipeline_measured", "pipeline_bwd", "error", "fp8_error"})
        self.assertIn("No GPU has been measured yet, so there are no times",
                      self.table("ladder", "sim.json"))
        self.assertNotIn("Ours are times", self.table("claims", "sim.json"))

    def test_which_step_stands_for_a_rung(self):
        """The last that ran, of those that run on this GPU; never one beside the ladder."""
        def shown():
            data = self.said()[0]
            return ([bar["label"] for panel in data["speedup"]["panels"] for bar in panel["bars"]
                     if bar["default"] and bar["label"][:2] in "05 06"][::2],
                    [line["label"] for line in data["tflops_fwd"]["panels"][0]["lines"]
                     if line["rung"] == "05_flash_v2"])

        self.assertEqual(shown(), (["05 sm90", "06 sm90"], ["05 mma", "05 sm90"]))
        alone = {s["variant"] for s in self.gpu["steps"] if s["exact_architecture"]}
        self.drop(self.gpu, lambda c, r: r["variant"] in alone)
        self.assertEqual(shown(), (["05 mma", "06 mma"], ["05 mma"]))
        self.drop(self.gpu, lambda c, r: r["variant"] == "mma" and r["rung"] == "06_backward"
                  or r["variant"] == "stored")
        data = self.said()[0]
        self.assertEqual([(bar["label"], bar["default"])
                          for bar in data["speedup"]["panels"][2]["bars"]],
                         [("06 deterministic", False)])
        self.assertIn("06 bwd", json.dumps(data["traffic"]["kinds"][1]))  # the sim's stands
        self.assertNotIn("tflops_bwd", data)

    def test_a_rung_that_is_added_shows_up(self):
        step = next(s for s in self.gpu["steps"] if like(s, rung="05_flash_v2", variant="mma"))
        self.gpu["steps"].append({**step, "rung": "07_toy", "variant": "toy", "colour": "#abcdef",
                                  "default": True})
        for of in (self.gpu, self.other):
            for command, record in list(zip(of["commands"], of["records"])):
                if like(record, rung="05_flash_v2", variant="mma"):
                    of["commands"].append(command.replace("05_flash_v2", "07_toy"))
                    of["records"].append({**record, "rung": "07_toy", "variant": "toy"})
        data = self.said()[0]
        bar = data["speedup"]["panels"][0]["bars"][-1]
        self.assertEqual((bar["label"], bar["colour"], bar["place"], bar["default"]),
                         ("07 toy", "#abcdef", 7, True))
        for name in ("tflops_fwd", "traffic", "roofline", "error", "two_gpus"):
            self.assertIn('"colour": "#abcdef", "place": 7', json.dumps(data[name]), name)
        self.assertIn("| [07_toy](07_toy/README.md) | `toy` | ", self.table("ladder"))
        self.assertIn("ours is 07's `toy` forward and 06's `sm90` backward.", self.table("peers"))

    def test_the_ladders_first_step_is_what_others_are_compared_with(self):
        self.gpu["steps"] = [s for s in self.gpu["steps"] if s["rung"] != "00_naive"]
        self.drop(self.gpu, lambda c, r: r["rung"] == "00_naive")
        del self.data["sim.json"]
        panel = self.said()[0]["speedup"]["panels"][0]
        self.assertEqual(panel["title"], "forward, d = 64, against 01")
        self.assertEqual([bar["label"] for bar in panel["bars"] if bar["value"] == 1], ["01 tile"])
        self.assertIn("| × 01 |", self.table("ladder"))

    def test_steps_that_need_the_same_share_a_name(self):
        every = [("05", step) for step in "abcdef"] + [("06", "a"), ("06", "b")]
        for steps, names in (("abcdef", "05"), ("cdef", "05 from c on"), ("bcd", "05 b to d"),
                             ("bc", "05 b, c"), ("bd", "05 b, d"), ("bce", "05 b, c, e"),
                             ("abdef", "05 without c")):
            self.assertEqual(names_of([("05", step) for step in steps], every), [names])
        self.assertEqual(names_of(every[2:-1], every), ["05 from c on", "06 a"])

    def test_the_digest_is_of_the_code_that_draws_and_of_the_data(self):
        for name, (_, draw) in FIGURES.items():
            code = gallery.drawing_code(name)
            for path in (draw.__code__.co_filename, gallery.style.__file__,
                         gallery.names.__file__):
                self.assertIn(read(path), code, name)
        self.assertIn(inspect.getsource(inspect.getmodule(box_colour)),
                      gallery.drawing_code("pipeline_measured"))  # in another figure's colours
        self.assertNotEqual(digest("error", {"x": 1}), digest("error", {"x": 2}))

    def test_two_gpus(self):
        about = self.said()[0]["two_gpus"]
        # The same whichever of the files is drawn: the GPU with less bandwidth comes first.
        self.assertEqual(self.said(OTHER)[0]["two_gpus"], about)
        for record in self.records(rung="02_safe_softmax"):
            record["smem_bytes"] += 1
        self.assertIn("two_gpus: left out of it: d = 64: 02 safe, which is not the same",
                      self.said()[1])
        table = self.table("two_gpus_steps")
        self.assertNotIn("| 02 `safe` |", table)
        self.assertRegex(table, "not the same in both files: 02 `safe`")
        # Where DRAM was not counted, times alone.
        for file in (GPU, OTHER):
            for record in self.data[file]["records"]:
                record["dram_read_bytes"] = None
        self.assertRegex(self.table("two_gpus_steps"), r"\| 00 `naive` \| .* ms \| 1.\d\d \| – \|")
        self.assertIsNone(self.said()[0]["two_gpus"]["panels"][0]["rows"][0]["expected"])


class Command(Scratch):
    """Files on disk: what is drawn and written, and goes stale."""

    def setUp(self):
        super().setUp()
        for name, data in COMMITTED.items():
            self.write(name, data)

    def plot(self, *words, status=0):
        result = self.run_it(os.path.join(SCRIPTS, "figures"), "draw", *words, status=None)
        if result.returncode == 3 and "matplotlib is missing" in result.stderr and not (
                "--check" in words or os.environ.get("CI")):
            self.skipTest(result.stderr.strip())
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def test_all_are_drawn(self):
        page = self.write("page.md", "A lesson.\n<!-- claims:begin -->\n<!-- claims:end -->\n")
        result = self.plot(GPU, "--out", "one", "--readme", "page.md")
        self.assertEqual(sorted(os.listdir(self.at("one"))), sorted(f"{n}.svg" for n in FIGURES))
        self.assertIn("Wrote the tables of page.md: claims.", result.stderr)
        self.assertRegex(self.read("page.md"), r"(?s)^A lesson.\n<!-- claims:begin -->\n\n\|")
        self.assertEqual(stale(Files(self.at(GPU)), self.at("one"), [page]), [])
        # What is drawn again is the same to the byte; what a new file lacks is removed.
        before = self.read("one/error.svg")
        os.unlink(self.at("one/error.svg"))
        self.write(GPU, {**COMMITTED[GPU], "ceilings": None})
        self.plot(GPU, "--out", "one", "--only", "error")
        self.assertEqual(self.read("one/error.svg"), before)
        self.assertFalse(os.path.exists(self.at("one/roofline.svg")))

    def test_what_is_stale_is_noticed(self):
        shutil.copytree(os.path.join(RESULTS, "figures"), self.at("figures"))
        shutil.copy(os.path.join(ROOT, "README.md"), self.root)

        self.write("README.md", self.read("README.md").replace("| `one_pass_tile` | ",
                                                               "| `one_pass_tile` | 9"))
        os.unlink(self.at("figures/access.svg"))
        other, sim = pickle.loads(PICKLED)[OTHER], pickle.loads(PICKLED)["sim.json"]
        for record in sim["records"]:
            if like(record, rung="04_flash_v1", seqlen=1024):
                record["distinct_read_bytes"] += 4096
        self.write("sim.json", sim)
        self.write(OTHER, {**other, "ceilings": None})
        said = self.plot(GPU, "--out", "figures", "--readme", "README.md", "--check",
                         status=1).stdout
        for line in ("figures/traffic.svg is stale", "figures/access.svg is missing",
                     "figures/two_gpus.svg shows what the files no longer have",
                     "the table ladder of README.md is stale"):
            self.assertIn(line + "\n", said)
        self.assertNotIn("workspace.svg", said)

    def test_bad_files(self):
        for text, why in (("no JSON", "is no JSON"), ('{"machine": 1}', "was not written by "
                                                                        "scripts/figures measure")):
            self.write(GPU, text)
            self.assertIn(why, self.plot(GPU, "--check", status=2).stderr)
        self.assertIn("there is no nosuch.json",
                      self.plot("nosuch.json", "--check", status=2).stderr)
        self.assertIn("there are speedup", self.plot("--only", "x", status=2).stderr)


if __name__ == "__main__":
    unittest.main()
