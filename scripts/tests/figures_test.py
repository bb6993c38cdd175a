"""Tests of the figures and tables that scripts/figures draws and writes, over the committed
measurements as each test changes them, in memory. That those figures and tables themselves are as
they were, results_test sees."""

import importlib.util
import json
import os
import pickle
import unittest
import unittest.mock

from base import RESULTS, SCRIPTS, Scratch, like, read
from ladder.base.console import Stop
from ladder.base.files import course_pages, json_text, newest_measured, read_lines
from ladder.show import measured, style
from ladder.show.draw import renewed
from ladder.show.gallery import FIGURES, TABLES, figure_data, table
from ladder.show.measured import Files, of_the_paper
from ladder.show.memory import iterations

GPU = os.path.basename(newest_measured())
COMMITTED = {name: read_lines(os.path.join(RESULTS, name)) for name in os.listdir(RESULTS)
             if name.endswith(".jsonl")}
OTHER = os.path.basename(newest_measured(but=Files(newest_measured()).gpu.name))
PICKLED = pickle.dumps(COMMITTED)  # copied ten times as fast


class Changed(Scratch):
    """self.data: {name: the file}, to be changed; self.gpu, self.other and self.sim are three of
    them."""

    def setUp(self):
        super().setUp()
        self.as_it_was()
        patch = unittest.mock.patch.multiple(
            measured, read_lines=lambda path: self.data.get(os.path.basename(path), []),
            newest_measured=lambda _, but: next(
                (name for name in (GPU, OTHER) if self.records(self.data.get(name, []))
                 and self.records(self.data[name])[0]["device_name"] != but), None))
        patch.start()
        self.addCleanup(patch.stop)

    def as_it_was(self):
        self.data = pickle.loads(PICKLED)
        self.gpu, self.other, self.sim = (self.data[name] for name in (GPU, OTHER, "sim.jsonl"))

    def drop(self, of, which=lambda r: True, kind="run"):
        """Drops the lines for which `which` holds."""
        of[:] = [r for r in of if r["kind"] != kind or not which(r)]

    def records(self, of=None, kind="run", **wanted):
        return [r for r in (self.gpu if of is None else of) if like(r, kind=kind, **wanted)]

    def figures(self, name=GPU):
        """The data of those that have some."""
        return {name: data for name, data in figure_data(Files(name)).items() if data}

    def table(self, name):
        return table(Files(GPU), name)


class Figures(Changed):
    def test_what_is_not_measured_is_left_out(self):
        """(what is taken away, the figures that go, the tables that have nothing)"""
        def without(which, *of, **kind):
            return lambda: [self.drop(self.data[name], which, **kind) for name in of or [GPU]]

        two = "two_gpus", "two_gpus_kernels two_gpus_steps"
        fp16 = "sm90_beside_cudnn_fp16 backward_beside_cudnn_fp16"
        for change, figures, tables in (
                (without(lambda r: True, kind="peer"), "decode",
                 "peers decode mma_beside_flash mma_backward_beside_flash " + fp16),
                (without(lambda r: True, kind="ceilings"), "roofline two_gpus shared_roof",
                 "fp8_times " + two[1]),
                (without(lambda r: r["rung"] == "02_safe_softmax"), "", ""),
                (without(lambda r: r["rung"] == "06_backward"),
                 "tflops_bwd tflops_both shared_roof",
                 "mma_backward_beside_flash backward_beside_others backward_beside_cudnn_fp16 "
                 "training_beside_others"),
                (without(lambda r: r["rung"] == "05_flash_v2"), "decode",
                 "decode fp8_times hopper_steps mma_beside_flash sm90_beside_cudnn "
                 "sm90_beside_cudnn_fp16"),
                (without(lambda r: r["dtype"] == "fp16"), "", fp16),
                (without(lambda r: "--block" in r["options"], GPU, "sim.jsonl"), "block_size", ""),
                (without(lambda r: "--check full" in r["options"]), "error", ""),
                (without(lambda r: True, "sim.jsonl"), "shared_roof fp8_error",
                 "visits shared_roof fp8_error"),
                (lambda: [self.data.pop(f"{name}.jsonl") for name in ("traces", "profile")],
                 "access pipeline pipeline_bwd", "profile"),
                (lambda: self.data.pop(OTHER), *two), (without(lambda r: True, OTHER), *two)):
            self.as_it_was()
            change()
            files = Files(GPU)
            with self.subTest(figures=figures, tables=tables):
                self.assertEqual({name for name, data in figure_data(files).items() if not data},
                                 set(figures.split()))
                self.assertEqual({name for name in TABLES if table(files, name).startswith(
                    "*Not measured yet")}, set(tables.split()))

    def test_which_step_stands_for_a_rung(self):
        """The last that ran, of those that run on this GPU; never one beside the ladder."""
        alone = {s["step"] for s in self.records(kind="step", exact_architecture=True)}
        self.drop(self.gpu, lambda r: r["step"] in (*alone, "stored")
                  or r["step"] == "mma" and r["rung"] == "06_backward")
        data = self.figures()
        self.assertEqual([line["label"] for line in data["tflops_fwd"]["panels"][0]["lines"]
                          if line["rung"] == "05_flash_v2"], ["05 mma"])
        self.assertEqual([[bar["label"] for bar in panel["bars"] if bar["default"]][-1:]
                          for panel in data["speedup"]["panels"][1:3]], [["05 mma"], []])
        self.assertEqual(data["speedup"]["panels"][2]["bars"][0]["label"], "06 deterministic")
        self.assertNotIn("tflops_bwd", data)

    def test_a_rung_that_is_added_shows_up(self):
        for of in (self.gpu, self.other):
            for kind, more in (("run", {}), ("step", {"colour": "#abcdef", "default": True})):
                of += [{**line, "rung": "07_toy", "step": "toy", **more} for line in
                       self.records(of, kind, rung="05_flash_v2", step="mma")]
        data = self.figures()
        for name in ("speedup", "tflops_fwd", "traffic", "roofline", "error", "two_gpus"):
            self.assertIn('"colour": "#abcdef", "marker": "<"', json.dumps(data[name]), name)
        self.assertIn("| [07_toy](07_toy/README.md) | `toy` | ", self.table("ladder"))
        self.assertIn("ours is 07's `toy` forward and 06's `sm90` backward.", self.table("peers"))

    def test_two_gpus(self):
        # The same whichever of the files is drawn: the GPU with less bandwidth comes first.
        self.assertEqual(self.figures(OTHER)["two_gpus"], self.figures()["two_gpus"])
        for record in self.records(rung="02_safe_softmax"):
            record["smem_bytes"] += 1
        self.assertNotIn("02 safe", json.dumps(self.figures()["two_gpus"]))
        self.assertRegex(self.table("two_gpus_steps"), "not the same in both files: 02 `safe`")

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


class Tables(Changed):
    EVERY = "".join(f"{name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\n" for name in TABLES)

    def test_by_hand(self):
        """Rates and times that are set: what is made of them."""
        for record in self.records():
            if record["rung"] in ("05_flash_v2", "06_backward"):
                mma = record["step"] == "mma"
                record["tflops"] = 300 if not mma else 150 if record["seqlen"] > 512 else 400
                record["time_ms"] = (2 if mma else 1) * (1 if record["direction"] == "fwd" else 3)
        for peer in self.records(kind="peer"):
            peer["tflops"] = 600 if peer["head_dim"] == 64 and peer["causal"] else 240
            peer["time_ms"] = 2
        lines = self.table("sm90_beside_cudnn").splitlines()
        self.assertEqual(lines[2], "| d = 64 | 1.25 · 0.75 |" + " 1.25 · 2.00 |" * 5)
        self.assertEqual(lines[3], "| d = 64, causal | 0.50 · 0.75 |" + " 0.50 · 2.00 |" * 5)
        self.assertIn(f"geometric mean {(1.25**3 * 0.5) ** 0.25:.3f} of 24 points, worst 0.500 (d "
                      "= 64, causal, N = 512), 18 are 1 or more.", lines[-1])
        self.assertEqual(self.table("training_beside_others").splitlines()[2],
                         "| d = 64 |" + " 1.00 · 1.00 · 2.00 |" * 6)  # (2 + 2) / (1 + 3)
        both = next(line for line in self.figures()["tflops_both"]["panels"][0]["lines"]
                    if line["label"] == "06 mma")
        self.assertAlmostEqual(both["y"][0], 3.5 * 4 * 512**2 * 64 * 32 * 32 / 8e-3 / 1e12,
                               places=2)

    def test_what_was_not_in_turn_is_said(self):
        for peer in self.records(kind="peer"):
            peer["beside"] = ["05_flash_v2 sm90", "06_backward sm90"]
        self.assertIn("alternating in one run on the NVIDIA", self.table("peers"))
        self.records(kind="peer", step="cudnn", direction="bwd", seqlen=8192)[0].pop("beside")
        self.assertIn("in one run, but for cuDNN in another, on the", self.table("peers"))
        for library, turn in (("cuDNN", "in another run"),
                              ("FlashAttention-2", "each point in turn")):
            self.assertIn(f"Against {library}, {turn}:", self.table("training_beside_others"))

    def test_what_no_formula_fits_is_a_number(self):
        for record in self.records(self.sim, rung="00_naive", seqlen=2048):
            record["kernels"][0]["arrays"]["Q"]["read"] *= 2
        self.assertRegex(self.table("visits"), r"\| 00 `naive` \| .* \| 4096 at N = 2,048 r \|")

    def test_the_roof_of_shared_memory(self):
        """By hand: a wgmma m64nNk16 reads 32·N bytes of B and, where A is in shared memory, 2,048
        of it. The sim's count must be just that; the lesson has the table."""
        def wgmmas(of_k, n, a_in_shared):
            return of_k // 16 * (32 * n + 2048 * a_in_shared)

        counted = {(it.step[1], it.d): it for it in iterations(Files(GPU))}
        for d, rows, keys in ((64, 128, 128), (128, 64, 128)):
            # Two consumers: S and dP, dV and dK, dQ. Q, dO, LSE and D arrive, dS is written.
            plain, transposed = (
                2 * (2 * wgmmas(d, n, True) + 2 * wgmmas(rows, d, in_shared)
                     + wgmmas(keys, rows * d // 128, True))
                for n, in_shared in ((keys * rows // 128, True), (rows, False)))
            arrive = 2 * rows * d * 2 + 2 * rows * 4 + rows * keys * 2
            # Each thread reads the floats of its two rows, and P is written; or of its columns; and
            # dQ is written, and read by TMA.
            of_rows, of_columns = 2 * 256 * 2 * 4 + rows * keys * 2, 2 * 256 * rows
            for names, operands, others in (
                    ("wgmma tma producer", plain, of_rows), ("transposed", transposed, of_columns),
                    ("bulk_add ahead sm90", transposed, of_columns + 2 * rows * d * 4)):
                for step in names.split():
                    self.assertEqual(
                        counted[step, d][2:],
                        ((rows, keys), 5 * 2 * rows * keys * d // 4096, operands,
                         operands + arrive + others), names)

    def test_claims_are_judged(self):
        def check(claim, verdict):
            row = next(line for line in self.table("claims").splitlines() if f'"{claim}"' in line)
            self.assertEqual(row.rstrip(" |").rpartition("| ")[2], verdict, claim)

        def point(r):
            return r["seqlen"], r["head_dim"], r["causal"]

        plain = {point(r): r["tflops"] for r in self.records(step="safe") if of_the_paper(r)}
        v1, v2 = "04_flash_v1", "05_flash_v2"
        for rung, times, at, claim, verdict in (  # as fast as 02
                (v1, 1.9, {}, "2-4x", "**no**"), (v1, 3, {}, "2-4x", "yes"),
                (v1, 1.9, {"seqlen": 512}, "2-4x", "in part"), (v1, 5, {}, "2-4x", "yes, and more"),
                (v1, 5, {}, "less-at-128", "**no**"),
                (v1, 4, {"head_dim": 128}, "less-at-128", "yes"),
                (v2, 9, {}, "10x-causal", "**no**"),
                (v2, 10.1, {"seqlen": 1024}, "10x-causal", "yes")):  # the best alone
            for r in self.records(rung=rung, **at):
                r["tflops"] = plain.get(point(r), 1) * times
            check(claim, verdict)
        for r in self.records(step="sm90"):
            r["workspace_bytes"] = r["seqlen"]**2
        for r in self.records(self.sim, rung="02_safe_softmax", dtype="fp16", input="outliers"):
            r["errors"]["o"]["rel"] = 0
        self.drop(self.gpu, lambda r: r["seqlen"] == 65536)
        for claim, verdict in (("memory", "**no**"), ("fp16-error", "**no**"),
                               ("64k", "not measured yet")):
            check(claim, verdict)

    def test_markers(self):
        files = Files(GPU)
        text, differ = renewed(self.write("whole.md", self.EVERY), files)
        self.assertEqual((set(differ), "old\n" in text), (set(TABLES), False))
        self.assertEqual(renewed(self.write("whole.md", text), files), (text, []))
        for text in ("<!-- nosuch:begin -->\n<!-- nosuch:end -->\n", "<!-- peers:begin -->\n",
                     "<!-- peers:end -->\n<!-- peers:begin -->\n"):
            with self.assertRaisesRegex(Stop, ":end --> after it, or is none of ladder, peers"):
                renewed(self.write("page.md", text), files)

    def test_each_stands_in_a_page(self):
        pages = "".join(map(read, course_pages()))
        self.assertEqual([name for name in TABLES if f"<!-- {name}:begin -->" not in pages], [])


class Command(Scratch):
    """Files on disk: what is drawn and written, and goes stale."""

    def setUp(self):
        super().setUp()
        for name, lines in COMMITTED.items():
            self.write(name, json_text(lines))

    def plot(self, *words, status=0):
        result = self.run_it(os.path.join(SCRIPTS, "figures"), "draw", *words, status=None)
        if result.returncode == 3 and "matplotlib is missing" in result.stderr and not (
                "--check" in words or os.environ.get("CI")):
            self.skipTest(result.stderr.strip())
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def test_what_is_drawn_and_goes_stale(self):
        self.write("page.md", "A lesson.\n<!-- claims:begin -->\n<!-- claims:end -->\n")
        where = GPU, "--out", "one", "--readme", "page.md"
        self.assertIn("Wrote the tables of page.md: claims.", self.plot(*where).stderr)
        self.assertEqual(sorted(os.listdir(self.at("one"))), sorted(f"{n}.svg" for n in FIGURES))
        page, before = self.read("page.md"), self.read("one/error.svg")
        self.assertRegex(page, r"(?s)^A lesson.\n<!-- claims:begin -->\n\n\|")
        self.plot(*where, "--check")

        self.write("page.md", page.replace("| yes |", "| yet |"))
        os.unlink(self.at("one/error.svg"))
        data = pickle.loads(PICKLED)
        for line in data["sim.jsonl"]:
            if like(line, kind="run", rung="04_flash_v1", seqlen=1024):
                line["distinct_read_bytes"] += 4096
        self.write("sim.jsonl", json_text(data["sim.jsonl"]))
        self.write(GPU, json_text(line for line in data[GPU] if line["kind"] != "ceilings"))
        said = self.plot(*where, "--check", status=1).stdout
        for line in ("one/traffic.svg is stale", "one/error.svg is missing",
                     "one/roofline.svg shows what the files no longer have",
                     "the table claims of page.md is stale"):
            self.assertIn(line + "\n", said)
        self.assertNotIn("decode.svg", said)
        # What is drawn again is the same to the byte; what a new file lacks is removed.
        self.assertIn("roofline is left out: scripts/figures measure --grid paper measures it",
                      self.plot(GPU, "--out", "one", "--only", "error").stderr)
        self.assertEqual(self.read("one/error.svg"), before)
        self.assertFalse(os.path.exists(self.at("one/roofline.svg")))

    def test_bad_files(self):
        for text, why in (("no JSON", "is no JSON"),
                          ('{"machine": 1}', "was not written by scripts/figures measure")):
            self.write(GPU, text)
            self.assertIn(why, self.plot(GPU, "--check", status=2).stderr)
        for name in ("nosuch.jsonl", "sim.jsonl"):
            self.assertIn(f"{name} holds no GPU's measurements",
                          self.plot(name, "--check", status=2).stderr)
        self.assertIn("there are speedup", self.plot("--only", "x", status=2).stderr)


if __name__ == "__main__":
    unittest.main()
