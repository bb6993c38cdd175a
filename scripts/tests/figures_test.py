"""Tests of the figures, over the committed measurements as each test changes them (committed.py).

Run alone: python3 scripts/tests/figures_test.py
"""

import importlib.util
import json
import os
import pickle
import shutil
import unittest
import unittest.mock

from base import RESULTS, ROOT, SCRIPTS, Scratch, like
from committed import COMMITTED, GPU, OTHER, PICKLED, Changed
from ladder.figures import names, style
from ladder.figures.gallery import FIGURES, digest
from ladder.figures.pages import TABLES


class Figures(Changed):
    def test_what_is_not_measured_is_left_out(self):
        """(what is taken away, the figures that go, the tables that have nothing)"""
        def without(which, *of):
            return lambda: [self.drop(self.data[name], which) for name in of or [GPU]]

        two = "two_gpus", "two_gpus_kernels two_gpus_steps"
        fp16 = "sm90_beside_cudnn_fp16 backward_beside_cudnn_fp16"
        for change, figures, tables in (
                (lambda: self.gpu.update(peers=[]), "decode",
                 "peers decode mma_beside_flash mma_backward_beside_flash " + fp16),
                (lambda: self.gpu.update(ceilings=None), "roofline two_gpus shared_roof",
                 "fp8_times " + two[1]),
                (without(lambda c, r: r["rung"] == "02_safe_softmax"), "", ""),
                (without(lambda c, r: r["rung"] == "06_backward"),
                 "tflops_bwd tflops_both shared_roof",
                 "mma_backward_beside_flash backward_beside_others backward_beside_cudnn_fp16 "
                 "training_beside_others"),
                (without(lambda c, r: r["rung"] == "05_flash_v2"), "decode",
                 "decode fp8_times hopper_steps mma_beside_flash sm90_beside_cudnn "
                 "sm90_beside_cudnn_fp16"),
                (without(lambda c, r: r["dtype"] == "fp16"), "", fp16),
                (without(lambda c, r: "--block" in c, GPU, "sim.json"), "block_size", ""),
                (without(lambda c, r: "--check full" in c), "error", ""),
                (without(lambda c, r: True, "sim.json"), "shared_roof fp8_error",
                 "visits shared_roof fp8_error"),
                (lambda: [self.data.pop(f"{name}.json") for name in (
                    "traces", "clock", "profile")],
                 "access pipeline pipeline_bwd pipeline_measured", "profile"),
                (lambda: self.data.pop(OTHER), *two), (without(lambda c, r: True, OTHER), *two)):
            self.as_it_was()
            change()
            nothing = {name for name in TABLES if self.table(name).startswith("*Not measured yet")}
            with self.subTest(figures=figures, tables=tables):
                self.assertEqual(set(FIGURES) - set(self.figures()), set(figures.split()))
                self.assertEqual(nothing, set(tables.split()))

    def test_a_label_once_in_a_panel_and_in_the_colour_of_its_rung(self):
        colours = {step["rung"]: step["colour"] for step in self.gpu["steps"]}
        for name, figure in self.figures().items():
            for panel in figure["panels"]:
                ones = [one for kind in ("bars", "lines", "points", "rows")
                        for one in panel.get(kind, ())]
                self.assertEqual(len({one["label"] for one in ones}), len(ones), name)
                for one in ones:
                    self.assertEqual(one.get("colour"), colours.get(one["rung"]), name)

    def test_which_step_stands_for_a_rung(self):
        """The last that ran, of those that run on this GPU; never one beside the ladder."""
        alone = {s["variant"] for s in self.gpu["steps"] if s["exact_architecture"]}
        self.drop(self.gpu, lambda c, r: r["variant"] in (*alone, "stored")
                  or r["variant"] == "mma" and r["rung"] == "06_backward")
        data = self.figures()
        self.assertEqual([line["label"] for line in data["tflops_fwd"]["panels"][0]["lines"]
                          if line["rung"] == "05_flash_v2"], ["05 mma"])
        self.assertEqual([[bar["label"] for bar in panel["bars"] if bar["default"]][-1:]
                          for panel in data["speedup"]["panels"][1:3]], [["05 mma"], []])
        self.assertEqual(data["speedup"]["panels"][2]["bars"][0]["label"], "06 deterministic")
        self.assertNotIn("tflops_bwd", data)

    def test_a_rung_that_is_added_shows_up(self):
        step = next(s for s in self.gpu["steps"] if like(s, rung="05_flash_v2", variant="mma"))
        self.gpu["steps"].append({**step, "rung": "07_toy", "variant": "toy", "colour": "#abcdef",
                                  "default": True})
        for of in (self.gpu, self.other):
            for command, record in list(zip(of["commands"], of["records"])):
                if like(record, rung="05_flash_v2", variant="mma"):
                    of["commands"].append(command)
                    of["records"].append({**record, "rung": "07_toy", "variant": "toy"})
        data = self.figures()
        for name in ("speedup", "tflops_fwd", "traffic", "roofline", "error", "two_gpus"):
            self.assertIn('"colour": "#abcdef", "place": 7', json.dumps(data[name]), name)
        self.assertIn("03, 05, 07", json.dumps(data["workspace"]))
        self.assertIn("| [07_toy](07_toy/README.md) | `toy` | ", self.table("ladder"))
        self.assertIn("ours is 07's `toy` forward and 06's `sm90` backward.", self.table("peers"))

    def test_two_gpus(self):
        # The same whichever of the files is drawn: the GPU with less bandwidth comes first.
        self.assertEqual(self.figures(OTHER)["two_gpus"], self.figures()["two_gpus"])
        for record in self.records(rung="02_safe_softmax"):
            record["smem_bytes"] += 1
        self.assertNotIn("02 safe", json.dumps(self.figures()["two_gpus"]))
        self.assertRegex(self.table("two_gpus_steps"), "not the same in both files: 02 `safe`")

    def test_the_digest_is_of_the_data_and_of_the_code_that_draws_it(self):
        for name, one in FIGURES.items():
            self.assertNotEqual(digest(name, {"x": 1}), digest(name, {"x": 2}))
            with unittest.mock.patch("inspect.getsource", return_value="") as source:
                digest(name, {})
            self.assertLessEqual({one.draw.__module__, style.__name__, names.__name__},
                                 {module.__name__ for (module,), _ in source.call_args_list})

    def test_nothing_is_cut_off_and_no_name_covers_another(self):
        if not importlib.util.find_spec("matplotlib"):
            self.skipTest("there is no matplotlib in this Python")
        plt = style.pyplot()
        import numpy as np
        from matplotlib.text import Text
        from matplotlib.transforms import Bbox
        for name, data in self.figures().items():
            figure = FIGURES[name].draw(plt, data)
            figure.canvas.draw()
            drawn = figure.get_tightbbox(figure.canvas.get_renderer())
            both = Bbox.union([drawn, figure.bbox_inches])
            self.assertTrue(np.allclose(both, figure.bbox_inches, atol=0.02), f"{name}: {drawn}")
            for axis in figure.axes:
                # Without the arrow, which an annotation's own extent has.
                ends = [Text.get_window_extent(text).expanded(1, 0.8) for text in axis.texts
                         if getattr(text, "arrow_patch", None)]
                self.assertEqual([box.count_overlaps(ends) for box in ends], [1] * len(ends))
            plt.close(figure)


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
        self.write("page.md", "A lesson.\n<!-- claims:begin -->\n<!-- claims:end -->\n")
        result = self.plot(GPU, "--out", "one", "--readme", "page.md")
        self.assertEqual(sorted(os.listdir(self.at("one"))), sorted(f"{n}.svg" for n in FIGURES))
        self.assertIn("Wrote the tables of page.md: claims.", result.stderr)
        self.assertRegex(self.read("page.md"), r"(?s)^A lesson.\n<!-- claims:begin -->\n\n\|")
        self.plot(GPU, "--out", "one", "--readme", "page.md", "--check")
        # What is drawn again is the same to the byte; what a new file lacks is removed.
        before = self.read("one/error.svg")
        os.unlink(self.at("one/error.svg"))
        self.write(GPU, {**COMMITTED[GPU], "ceilings": None})
        self.assertIn("roofline is left out: scripts/figures measure --grid paper measures it",
                      self.plot(GPU, "--out", "one", "--only", "error").stderr)
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
        for name in ("nosuch.json", "sim.json"):
            self.assertIn(f"{name} holds no GPU's measurements",
                          self.plot(name, "--check", status=2).stderr)
        self.assertIn("there are speedup", self.plot("--only", "x", status=2).stderr)


if __name__ == "__main__":
    unittest.main()
