"""Tests of the figures, over the committed measurements as each test changes them (committed.py).

Run alone: python3 scripts/tests/figures_test.py
"""

import inspect
import json
import os
import pickle
import re
import shutil
import unittest

from base import RESULTS, ROOT, SCRIPTS, Scratch, like, read
from committed import COMMITTED, GPU, OTHER, PAPER, PICKLED, Changed
from ladder.figures import gallery
from ladder.figures.gallery import FIGURES, digest, figure_data
from ladder.figures.measured import Files
from ladder.figures.memory import names_of
from ladder.figures.pages import TABLES, stale
from ladder.figures.pipeline import box_colour

class Figures(Changed):
    def test_what_is_missing_is_said_and_left_out(self):
        """(what is taken away; the figures that go; those of which more is said; the tables that
        have nothing, and what others say)"""
        def without(of=GPU, **wanted):
            return lambda: self.drop(self.data[of], lambda c, r: like(r, **wanted))

        def having(option, *names):
            return lambda: [self.drop(self.data[of], lambda c, r: option in c) for of in names]

        def uncounted():
            for record in self.gpu["records"]:
                record["dram_read_bytes"] = None

        two = "two_gpus", "two_gpus", "two_gpus_kernels two_gpus_steps", ""
        fp16 = "sm90_beside_cudnn_fp16 backward_beside_cudnn_fp16"
        for change, gone, said, nothing, text in (
                (lambda: self.gpu.update(peers=[p for p in self.gpu["peers"]
                                                if p["variant"] != "cudnn"]), "",
                 "tflops_fwd tflops_bwd tflops_both decode", fp16, "| cuDNN | – | – | – | – |"),
                (lambda: self.gpu.update(peers=[]), "decode",
                 "tflops_fwd tflops_bwd tflops_both decode",
                 "peers decode mma_beside_flash mma_backward_beside_flash " + fp16, "| – · "),
                (lambda: self.gpu.update(ceilings=None), "roofline two_gpus shared_roof",
                 "roofline two_gpus shared_roof", two[2], "TFLOP/s of `fp8`"),
                (uncounted, "", "traffic roofline", "",
                 f"DRAM is not measured yet: `{PAPER}`, where counters may be read."),
                (lambda: self.gpu.update(skipped=[]), "", "workspace", "", ""),
                (without(rung="00_naive"), "", "speedup", "", "did not have `naive` yet"),
                (without(rung="06_backward"), "tflops_bwd tflops_both",
                 "all speedup tflops_bwd tflops_both shared_roof",
                 "mma_backward_beside_flash backward_beside_others backward_beside_cudnn_fp16 "
                 "training_beside_others", "; ours is 05's `"),
                (without(rung="05_flash_v2"), "decode", "all decode",
                 "decode fp8_times hopper_steps mma_beside_flash sm90_beside_cudnn "
                 "sm90_beside_cudnn_fp16", "; ours is 06's `"),
                (without(variant="split_kv"), "decode", "decode", "decode", ""),
                (without(variant="swap"), "", "", "", "did not have `swap` yet"),
                (without(variant="tma"), "", "shared_roof", "",
                 "–: that run did not have `tma` yet."),
                (without(dtype="fp16"), "", "", fp16, ""),
                (having("--block", GPU), "", "block_size", "", ""),
                (having("--block", GPU, "sim.json"), "block_size", "block_size", "", ""),
                (having("--check full", GPU), "", "error", "", ""),
                (without("sim.json"), "shared_roof fp8_error",
                 "traffic block_size shared_roof fp8_error", "visits shared_roof fp8_error",
                 "| not measured yet | not "),
                (lambda: self.data.pop("traces.json"), "access pipeline pipeline_bwd",
                 "access pipeline pipeline_bwd", "", ""),
                (lambda: self.data.pop("clock.json"), "pipeline_measured", "pipeline_measured", "",
                 ""),
                (lambda: self.data.pop("profile.json"), "", "", "profile", ""),
                (lambda: self.data.pop(OTHER), *two),
                (lambda: self.other.update(ceilings=None), *two), (without(OTHER), *two)):
            self.as_it_was()
            before = self.said()[1]
            change()
            data, lines = self.said()
            files = Files(GPU)
            tables = {name: "\n".join(make(files, name)) for name, make in TABLES.items()
                      if name != "figures"}
            with self.subTest(gone=gone, said=said, nothing=nothing, text=text):
                self.assertEqual(set(FIGURES) - set(data), set(gone.split()))
                more = [line for line in lines.splitlines() if line not in before]
                self.assertEqual({re.match(r"\w+", line)[0] for line in more}, set(said.split()))
                self.assertEqual({line.partition(" is left out: ")[0] for line in more
                                  if " is left out: " in line}, set(gone.split()))
                self.assertEqual({name for name in tables if tables[name].startswith("*")},
                                 set(nothing.split()))
                self.assertIn(text, "".join(tables.values()))

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
