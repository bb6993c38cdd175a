"""Tests of scripts/plot.py: over measurements that are made up, beside the sim's real ones, and of
what is committed in scripts/results.

Run alone: python3 scripts/tests/plots_test.py [build/bin]
The programs of that folder, if they are there, must still count what sim.json says.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.realpath(os.path.join(HERE, "../.."))
SCRIPTS = os.path.join(ROOT, "scripts")
RESULTS = os.path.join(SCRIPTS, "results")
BIN = os.path.join(ROOT, "build/bin")
sys.path.insert(0, SCRIPTS)
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

from fake_results import ASIDES, COLOURS, fake_results, of_another  # noqa: E402
from ladder import clock, course, traces  # noqa: E402  (they lie in scripts)
from ladder.console import Stop  # noqa: E402
from ladder.figures import draw, replay  # noqa: E402
from ladder.figures.data import FIGURES, figure_data, shared  # noqa: E402
from ladder.figures.data.clock import panel as clock_panel  # noqa: E402
from ladder.figures.data.memory import names_of  # noqa: E402
from ladder.figures.data.traces import LANES  # noqa: E402
from ladder.figures.draw import digest, stored_digest  # noqa: E402
from ladder.figures.make import stale  # noqa: E402
from ladder.figures.pages import TABLES, course_files, need_places, renewed  # noqa: E402
from ladder.figures.measured import Files  # noqa: E402
from ladder.figures.names import PEER_NAMES  # noqa: E402
from ladder.figures.visits import visits_tables  # noqa: E402
from ladder.files import newest_measured  # noqa: E402
from ladder.programs import programs_in  # noqa: E402
from ladder.steps import ladder_of  # noqa: E402
from ladder.text import rate_text  # noqa: E402
from limits import SECONDS  # noqa: E402


class Plot(unittest.TestCase):
    """plot.py over measurements that are made up, beside the sim's real ones."""

    @classmethod
    def setUpClass(cls):
        cls.fake = fake_results()
        cls.other = of_another(cls.fake)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        for name in ("sim.json", "traces.json", "clock.json"):
            shutil.copy(os.path.join(RESULTS, name), self.root)
        self.results = json.loads(json.dumps(self.fake))
        self.path = os.path.join(self.root, "gpu.json")
        self.others = json.loads(json.dumps(self.other))
        self.others_path = os.path.join(self.root, "other.json")

    def files(self):
        for path, data in ((self.path, self.results), (self.others_path, self.others)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(data))
        return Files(self.path)

    def draw(self, *words, status=0):
        result = subprocess.run([os.path.join(SCRIPTS, "plot.py"), *words], cwd=self.root,
                                stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                timeout=SECONDS)
        self.assertNotIn("Traceback", result.stderr)
        if result.returncode == 3 and "matplotlib is missing" in result.stderr and not \
                os.environ.get("CI"):
            self.skipTest(result.stderr.strip())
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def said(self):
        lines = []
        return figure_data(self.files(), lines.append), "\n".join(lines)

    def drop(self, keep):
        """Keeps the records, with their commands, for which `keep` holds."""
        pairs = [(c, r) for c, r in zip(self.results["commands"], self.results["records"])
                 if keep(c, r)]
        self.results["commands"], self.results["records"] = map(list, zip(*pairs))

    def test_all_figures(self):
        self.files()
        result = self.draw("gpu.json", "--out", "one")
        names = sorted(f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg"))
        self.assertEqual(sorted(os.listdir(os.path.join(self.root, "one"))), names)
        self.assertNotIn("left out", result.stderr)
        # Each has the digest of its data, and one drawn again is the same to the byte.
        self.assertEqual(stale(self.files(), os.path.join(self.root, "one"), []), [])
        self.draw("gpu.json", "--out", "two", "--only", "error")
        drawn_again = os.listdir(os.path.join(self.root, "two"))
        self.assertEqual(len(drawn_again), 2)
        for name in drawn_again:
            content = []
            for folder in ("one", "two"):
                with open(os.path.join(self.root, folder, name), "rb") as file:
                    content.append(file.read())
            self.assertEqual(*content, name)

    def test_figures_are_of_one_type(self):
        data, said = self.said()
        self.assertNotIn("bf16", said)
        for words in ("commands", "records", "peers"):
            more = json.loads(json.dumps(self.results[words]).replace("bf16", "fp16"))
            if words != "commands":
                for record in more:
                    record["time_ms"] = record["time_ms"] and record["time_ms"] / 2
                    record["tflops"] = record["tflops"] and record["tflops"] * 2
            self.results[words] = more + self.results[words]
        both, said = self.said()
        self.assertEqual(both, data)
        self.assertIn(f"{len(self.fake['records'])} records that are not bf16", said)

    def test_what_a_new_file_lacks_is_removed(self):
        self.files()
        self.draw("gpu.json", "--out", "one", "--only", "roofline,error")
        self.assertEqual(len(os.listdir(os.path.join(self.root, "one"))), 4)
        self.results["ceilings"] = None
        self.assertIn("one/roofline.svg shows what the files no longer have",
                      "\n".join(stale(self.files(), os.path.join(self.root, "one"), [])))
        self.draw("gpu.json", "--out", "one", "--only", "error")
        self.assertEqual(sorted(os.listdir(os.path.join(self.root, "one"))),
                         ["error.png", "error.svg"])

    def test_any_number_that_changes_is_noticed(self):
        before = figure_data(self.files())

        def changed():
            after = figure_data(self.files())
            return {name for name in FIGURES
                    if digest(name, before[name]) != digest(name, after[name])}

        self.assertEqual(changed(), set())

        def at(**wanted):
            return next(r for r in self.results["records"]
                        if all(r[name] == value for name, value in wanted.items()))

        paper = {"rung": "05_flash_v2", "variant": "mma", "batch": 4, "seqlen": 4096,
                 "head_dim": 128, "causal": False}
        at(**paper)["tflops"] *= 1.01
        self.assertEqual(changed(), {"tflops_fwd", "roofline"})
        self.results = json.loads(json.dumps(self.fake))
        at(rung="06_backward", variant="mma", direction="bwd", seqlen=2048,
           head_dim=64, causal=False)["time_ms"] *= 1.01
        self.assertEqual(changed(), {"speedup", "tflops_both", "two_gpus"})
        self.results = json.loads(json.dumps(self.fake))
        at(**{**paper, "variant": "sm90"})["dram_read_bytes"] *= 2
        self.assertEqual(changed(), {"traffic", "roofline"})
        self.results = json.loads(json.dumps(self.fake))
        self.results["skipped"] = [s for s in self.results["skipped"] if s["status"] != 3]
        self.assertEqual(changed(), {"workspace"})
        self.results = json.loads(json.dumps(self.fake))
        next(r for c, r in zip(self.results["commands"], self.results["records"])
             if "--block-kv 128" in c)["time_ms"] *= 2
        self.assertEqual(changed(), {"block_size"})
        self.results = json.loads(json.dumps(self.fake))
        next(r for c, r in zip(self.results["commands"], self.results["records"])
             if "outliers" in c)["errors"]["o"]["max"] *= 2
        self.assertEqual(changed(), {"error"})
        self.results = json.loads(json.dumps(self.fake))
        traces = os.path.join(self.root, "traces.json")
        with open(traces, encoding="utf-8") as file:
            data = json.load(file)
        product = next(e for e in data["pipelines"][0]["warps"][1] if e[0] == "wgmma")
        product[4] *= 2
        with open(traces, "w", encoding="utf-8") as file:
            file.write(json.dumps(data))
        self.assertEqual(changed(), {"pipeline"})
        marks = os.path.join(self.root, "clock.json")
        with open(marks, encoding="utf-8") as file:
            data = json.load(file)
        data["steps"][0]["cycles"]["step"] *= 0.9
        with open(marks, "w", encoding="utf-8") as file:
            file.write(json.dumps(data))
        self.assertEqual(changed(), {"pipeline", "pipeline_measured"})
        next(r for r in self.others["records"] if r["seqlen"] == 2048 and r["batch"] == 8
             and not r["causal"])["time_ms"] *= 1.01
        self.assertEqual(changed(), {"pipeline", "pipeline_measured", "two_gpus"})

    def test_numbers(self):
        data, said = self.said()
        self.assertEqual(said, "")
        bars = {bar["label"]: bar for bar in data["speedup"]["panels"][0]["bars"]}
        self.assertEqual(list(bars)[0], "00 naive")
        self.assertEqual(bars["00 naive"]["value"], 1)
        self.assertAlmostEqual(bars["05 mma"]["value"], 280 / 1.3, places=2)
        self.assertEqual([bar for bar in bars if bars[bar]["default"]],
                         ["00 naive", "01 mma", "02 safe softmax", "03 one_pass_tile",
                          "04 flash v1", "05 sm90"])
        lines = {line["label"]: line for line in data["tflops_bwd"]["panels"][0]["lines"]}
        self.assertEqual(lines["06 mma"]["x"], [512, 1024, 2048, 4096, 8192, 16384])
        self.assertEqual(set(lines), {"06 stored", "06 mma", "06 wgmma", "06 tma", "06 producer",
                                      "06 transposed", "06 bulk_add", "06 sm90",
                                      *PEER_NAMES.values()})
        # Rates of both ways together lie between the two; 1 : 2.5 FLOPs.
        both = {line["label"]: line for line in data["tflops_both"]["panels"][0]["lines"]}
        ours = [r for c, r in zip(self.results["commands"], self.results["records"])
                if r["rung"] == "06_backward" and r["variant"] == "mma" and r["seqlen"] == 512
                and r["head_dim"] == 64 and not r["causal"]]
        self.assertAlmostEqual(both["06 mma"]["y"][0], 3.5 * 4 * 512**2 * 64 * 32 * 32 / sum(
            r["time_ms"] for r in ours) * 1e-9, places=2)
        marks = data["workspace"]["marks"]
        self.assertEqual({(m["rung"][:2], m["x"]) for m in marks} & {("02", 65536)},
                         {("02", 65536)})
        self.assertEqual(data["workspace"]["memory_bytes"], 80 * 2**30)

    def test_a_step_for_another_gpu_is_no_default(self):
        self.drop(lambda c, r: r["variant"] != "sm90")
        bars = self.said()[0]["speedup"]["panels"][0]["bars"]
        self.assertEqual([bar["label"] for bar in bars if bar["default"]][-1], "05 mma")

    def test_on_another_gpu_what_runs_there_stands_for_a_rung_alone(self):
        def forward():
            lines = self.said()[0]["tflops_fwd"]["panels"][0]["lines"]
            return [line["label"] for line in lines if line["rung"] == "05_flash_v2"]

        self.assertEqual(forward(), ["05 mma", "05 sm90"])
        self.drop(lambda c, r: r["variant"] != "sm90")
        self.assertEqual(forward(), ["05 mma"])

    def test_asides_are_in_the_ladder_and_no_default(self):
        data, text = self.said()[0], self.readme(self.files())
        self.assertEqual(ASIDES, [("06_backward", "deterministic")])
        bars = {bar["label"]: bar for bar in data["speedup"]["panels"][2]["bars"]}
        self.assertEqual({name: bars[name]["default"] for name in bars}, {
            **dict.fromkeys(("06 stored", "06 mma", "06 deterministic", "06 wgmma", "06 tma",
                             "06 producer", "06 transposed", "06 bulk_add"), False),
            "06 sm90": True})
        self.assertIn("| `deterministic` backward | ", text)
        for name in ("tflops_bwd", "tflops_both", "traffic", "roofline"):
            self.assertNotIn("deterministic", json.dumps(data[name]), name)
        # Even where nothing else of its rung ran.
        self.drop(lambda c, r: r["rung"] != "06_backward" or r["variant"] == "deterministic")
        data = self.said()[0]
        self.assertFalse(data["speedup"]["panels"][2]["bars"][0]["default"])
        # The sim's default takes the place in the figures of both.
        self.assertIn("06 bwd", json.dumps(data["traffic"]["kinds"][1]))
        self.assertNotIn("tflops_bwd", data)

    def test_a_rung_that_is_added_shows_up(self):
        self.results["steps"].append({
            **next(s for s in self.results["steps"] if s["variant"] == "mma"
                   and s["rung"] == "05_flash_v2"),
            "rung": "07_toy", "variant": "toy", "colour": "#abcdef", "default": True})
        for command, record in list(zip(self.results["commands"], self.results["records"])):
            if (record["rung"], record["variant"]) == ("05_flash_v2", "mma"):
                self.results["commands"].append(command.replace("05_flash_v2", "07_toy"))
                self.results["records"].append({**record, "rung": "07_toy", "variant": "toy"})
        data, said = self.said()
        self.assertEqual(said, "")
        bar = data["speedup"]["panels"][0]["bars"][-1]
        self.assertEqual((bar["label"], bar["colour"], bar["place"], bar["default"]),
                         ("07 toy", "#abcdef", 7, True))
        self.assertIn("03 from two_pass on, 05 from defer on, 07", json.dumps(data["workspace"]))
        for name in ("tflops_fwd", "traffic", "roofline", "error"):
            self.assertIn('"colour": "#abcdef", "place": 7', json.dumps(data[name]), name)
        text = self.readme(self.files())
        self.assertIn("| [07_toy](07_toy/README.md) | `toy` | ", text)
        self.assertIn("ours is 07's `toy` forward and 06's `sm90` backward.", text)
        self.draw("gpu.json", "--out", "one", "--only", "tflops_fwd,error")

    def test_the_ladders_first_step_is_what_others_are_compared_with(self):
        for words in ("steps", "records"):
            self.results[words] = [one for one in self.results[words] if one["rung"] != "00_naive"]
        self.results["commands"] = [c for c in self.results["commands"]
                                    if not c.startswith("00_naive")]
        os.unlink(os.path.join(self.root, "sim.json"))
        panel = self.said()[0]["speedup"]["panels"][0]
        self.assertEqual(panel["title"], "forward, d = 64, against 01")
        self.assertEqual([bar["label"] for bar in panel["bars"] if bar["value"] == 1], ["01 tile"])
        self.assertIn("| × 01 |", self.readme(self.files()))

    def test_steps_that_need_the_same_share_a_name(self):
        every = [("05", step) for step in "abcdef"] + [("06", "a"), ("06", "b")]
        for steps, names in (("abcdef", "05"), ("cdef", "05 from c on"), ("bcd", "05 b to d"),
                             ("bc", "05 b, c"), ("bd", "05 b, d"), ("bce", "05 b, c, e")):
            self.assertEqual(names_of([("05", step) for step in steps], every), [names])
        self.assertEqual(names_of(every[2:-1], every), ["05 from c on", "06 a"])

    def test_colours_are_the_steps_own(self):
        before = figure_data(self.files())
        for bar in before["speedup"]["panels"][0]["bars"]:
            self.assertEqual(bar["colour"], COLOURS[bar["rung"]])
        for step in self.results["steps"]:
            if step["rung"] == "04_flash_v1":
                step["colour"] = "#fedcba"
        after = figure_data(self.files())
        self.assertEqual({name for name in FIGURES if before[name] != after[name]},
                         {"speedup", "tflops_fwd", "traffic", "roofline", "two_gpus", "workspace",
                          "block_size", "error"})

    def test_the_digest_is_of_all_code_that_draws(self):
        folder = os.path.dirname(draw.__file__)
        code = draw.drawing_code()
        for path in glob.glob(os.path.join(folder, "*.py")):
            with open(path, encoding="utf-8") as file:
                self.assertIn(file.read(), code, path)
        # And what draws lies there.
        for name in os.listdir(folder):
            self.assertTrue(name.endswith(".py") or name == "__pycache__", name)
        for function in draw.DRAW.values():
            self.assertEqual(os.path.dirname(function.__code__.co_filename), folder)

    def test_what_is_missing_is_said_and_left_out(self):
        self.results["peers"] = [p for p in self.results["peers"] if p["variant"] != "cudnn"]
        data, said = self.said()
        self.assertIn("tflops_fwd: left out of it: d = 64: no PyTorch, cuDNN: ", said)
        self.assertNotIn("cudnn", {line["rung"] for line in
                                   data["tflops_fwd"]["panels"][0]["lines"]})
        self.results["ceilings"] = None
        self.drop(lambda c, r: not r["rung"].startswith("06"))
        for record in self.results["records"]:
            record["dram_read_bytes"] = None
        data, said = self.said()
        self.assertEqual(set(FIGURES) - set(data), {"tflops_bwd", "tflops_both", "roofline",
                                                    "two_gpus", "shared_roof"})
        for line in ("roofline is left out: no ceilings were measured: scripts/bench.py --grid "
                     "paper, where PyTorch is installed",
                     "two_gpus is left out: no ceilings of both GPUs were measured: ",
                     "tflops_bwd is left out: ",
                     "no times of the backward pass: scripts/bench.py --grid paper",
                     "speedup: left out of it: no backward pass at N = 2048, d = 64",
                     "traffic: left out of it: no DRAM counters"):
            self.assertIn(line, said)
        self.assertEqual(len(data["traffic"]["kinds"]), 2)
        self.drop(lambda c, r: not r["rung"].startswith("00") and "--block" not in c
                  and "--check full" not in c)
        data, said = self.said()
        for line in ("speedup is left out: no time of 00 at N = 2048, d = 64",
                     "block_size: left out of it: no time by tile size",
                     "error: left out of it: no errors on a GPU, the sim's instead"):
            self.assertIn(line, said)
        os.unlink(os.path.join(self.root, "sim.json"))
        os.unlink(os.path.join(self.root, "traces.json"))
        os.unlink(os.path.join(self.root, "clock.json"))
        data, said = self.said()
        for line in ("traffic: left out of it: no distinct bytes: scripts/bench.py --sim",
                     "access is left out: no traces: scripts/bench.py --sim",
                     "pipeline is left out: no traces: scripts/bench.py --sim",
                     "pipeline_measured is left out: no clock.json: scripts/clock.py",
                     "pipeline_bwd is left out: no traces: scripts/bench.py --sim",
                     "error is left out: ", "block_size is left out: "):
            self.assertIn(line, said)

    def test_the_sim_alone(self):
        data = figure_data(Files(os.path.join(self.root, "sim.json")))
        self.assertEqual(set(data), {"traffic", "workspace", "block_size", "access", "pipeline",
                                     "pipeline_measured", "pipeline_bwd", "error", "fp8_error"})
        for panel in data["access"]["panels"]:
            lanes = {(LANES[lane], op) for _, lane, op, _, _ in panel["boxes"]}
            self.assertEqual(lanes - {("O", "r")}, {("Q", "r"), ("K", "r"), ("V", "r"), ("O", "w")})
        # 04 reads all of Q for each tile of K, 05 all of K for each tile of Q.
        flash_v1, flash_v2 = ([box for box in panel["boxes"]] for panel in
                              data["access"]["panels"])

        def rows(boxes, lane):
            return sum(box[4] - box[3] for box in boxes if LANES[box[1]] == lane
                       and box[2] == "r")

        self.assertEqual([rows(flash_v1, lane) for lane in "QKVO"],
                         [8 * 512, 512, 512, 8 * 512 + 512])
        self.assertEqual([rows(flash_v2, lane) for lane in "QKVO"], [512, 8 * 512, 8 * 512, 0])

    def test_the_steps_of_a_lesson(self):
        files = self.files()
        lines = TABLES["hopper_steps"](files, "hopper_steps")
        mma, sm90 = (next(e for e in files.gpu.paper("fwd", 2048, 64, False)
                          if e.step == ("05_flash_v2", step)).tflops for step in ("mma", "sm90"))
        self.assertTrue(any(line.startswith(f"| `mma` | {rate_text(mma)} | ") for line in lines))
        self.assertTrue(any(line.startswith(f"| `sm90` | {rate_text(sm90)} ({sm90 / mma:.2f}) | ")
                            for line in lines), lines)
        self.assertRegex("\n".join(lines), r"\| cuDNN \| \d")
        self.assertIn("that run did not have `wgmma`, `tma`, ", lines[-1])
        self.drop(lambda c, r: r["rung"] != "05_flash_v2")
        self.assertRegex("\n".join(TABLES["hopper_steps"](self.files(), "hopper_steps")),
                         "^.The steps are not measured yet: ")

    def test_a_step_beside_others(self):
        name = "sm90_beside_cudnn"
        for record in self.results["records"]:
            if record["variant"] == "sm90":
                record["tflops"] = 300
            elif record["variant"] == "mma":
                record["tflops"] = 150 if record["seqlen"] > 512 else 400
        for peer in self.results["peers"]:
            peer["tflops"] = 600 if peer["head_dim"] == 64 and peer["causal"] else 240
        *rows, _, text = TABLES[name](self.files(), name)
        self.assertEqual(rows[2], "| d = 64 | 1.25 · 0.75 |" + " 1.25 · 2.00 |" * 5)
        self.assertEqual(rows[3], "| d = 64, causal | 0.50 · 0.75 |" + " 0.50 · 2.00 |" * 5)
        mean = (1.25**3 * 0.5) ** 0.25
        self.assertIn(f"geometric mean {mean:.3f} of 24 points, worst 0.500 (d = 64, causal, "
                      "N = 512), 18 are 1 or more.", text)
        self.assertIn("Against cuDNN, each point in turn: ", text)
        # Of another type than the figures, where the file has it.
        name = "sm90_beside_cudnn_fp16"
        self.assertIn("not measured yet", TABLES[name](self.files(), name)[0])
        for words in ("commands", "records", "peers"):
            self.results[words] += json.loads(json.dumps(self.results[words])
                                              .replace("bf16", "fp16"))
        self.assertIn("ratios of TFLOP/s, fp16", TABLES[name](self.files(), name)[-1])
        self.assertIn("backward: ratios of TFLOP/s, fp16",
                      TABLES["backward_beside_cudnn_fp16"](self.files(),
                                                           "backward_beside_cudnn_fp16")[-1])

    def test_what_was_not_in_turn_is_said(self):
        names = "sm90_beside_cudnn", "backward_beside_others", "training_beside_others"

        def turns():
            texts = [TABLES[name](self.files(), name)[-1] for name in names]
            return [re.findall(r"Against ([\w-]+), (each point in turn|in another run):", text)
                    for text in texts]

        turn, apart = "each point in turn", "in another run"
        self.assertEqual(turns(), [[("cuDNN", turn)],
                                   *2 * [[("cuDNN", turn), ("FlashAttention-2", turn)]]])
        self.assertIn("alternating in one run on the NVIDIA", self.readme(self.files()))
        # One point of one direction; and a file from before this was noted.
        peers = self.results["peers"]
        one = next(peer for peer in peers if (peer["variant"], peer["direction"], peer["seqlen"])
                   == ("flash", "bwd", 8192))
        one["beside"].remove("06_backward sm90")
        self.assertEqual(turns(), [[("cuDNN", turn)],
                                   *2 * [[("cuDNN", turn), ("FlashAttention-2", apart)]]])
        self.assertIn("alternating in one run, but for FlashAttention-2 in another, on the NVIDIA",
                      self.readme(self.files()))
        for peer in peers:
            if peer["direction"] == "fwd":
                del peer["beside"]
        self.assertEqual(turns(), [[("cuDNN", apart)],
                                   [("cuDNN", turn), ("FlashAttention-2", apart)],
                                   [("cuDNN", apart), ("FlashAttention-2", apart)]])
        self.assertIn("but for FlashAttention-2 and cuDNN in another, on the NVIDIA",
                      self.readme(self.files()))

    def test_both_passes_beside_others(self):
        name = "training_beside_others"
        for record in self.results["records"]:
            if (record["rung"], record["variant"]) == ("06_backward", "sm90"):
                record["time_ms"] = {"fwd": 1, "bwd": 3}[record["direction"]]
            elif (record["rung"], record["variant"]) == ("06_backward", "mma"):
                record["time_ms"] = {"fwd": 2, "bwd": 8}[record["direction"]]
        for peer in self.results["peers"]:
            peer["time_ms"] = {"fwd": 1, "bwd": 1}[peer["direction"]]
            if peer["variant"] == "flash":
                peer["time_ms"] *= 3 if peer["seqlen"] > 512 else 1.5
        *rows, _, text = TABLES[name](self.files(), name)
        points = "d = 64", "d = 64, causal", "d = 128", "d = 128, causal"
        self.assertEqual(len(rows[2:]), len(points))
        for row, point in zip(rows[2:], points):
            self.assertEqual(row, f"| {point} | 0.50 · 0.75 · 2.50 |" + " 0.50 · 1.50 · 2.50 |" * 5)
        self.assertIn("`sm90` over cuDNN · over FlashAttention-2 · over `mma`, forward and "
                      "backward together: ratios of TFLOP/s, bf16", text)
        name = "backward_beside_others"
        self.assertIn("over `mma`, backward: ratios", TABLES[name](self.files(), name)[-1])
        for name in ("training_beside_others", "backward_beside_others"):
            self.drop(lambda c, r: (r["rung"], r["variant"]) != ("06_backward", "sm90"))
            self.assertEqual(TABLES[name](self.files(), name), [
                "*06 sm90 beside others is not measured yet: `scripts/bench.py --grid paper` "
                "measures it.*"])

    def test_the_roof_of_shared_memory(self):
        """By hand: a wgmma m64nNk16 reads 32·N bytes of B and, where A is in shared memory, 2,048
        of it. The sim's count must be just that."""
        def wgmmas(of_k, n, a_in_shared):
            return of_k // 16 * (32 * n + 2048 * a_in_shared)

        counted = {(step, one["d"]): one for step, one in shared.steps(self.files())}
        for d, rows, keys in ((64, 128, 128), (128, 64, 128)):
            of_dQ = rows * d // 64 // 2  # columns of a consumer's 64-row piece
            of_S = keys * rows // 128    # and of its piece of S, where that has a row a query
            # Q and dO arrive, with LSE and D, and dS is written.
            arrive = 2 * rows * d * 2 + 2 * rows * 4 + rows * keys * 2
            plain = 2 * (2 * wgmmas(d, of_S, True)           # S and dP
                         + 2 * wgmmas(rows, d, True)         # dV and dK
                         + wgmmas(keys, of_dQ, True))        # dQ
            transposed = 2 * (2 * wgmmas(d, rows, True) + 2 * wgmmas(rows, d, False)
                              + wgmmas(keys, of_dQ, True))
            # Each thread reads the floats of its two rows, and P is written; or of its columns; and
            # dQ is written, and read by TMA.
            of_rows, of_columns = 2 * 256 * 2 * 4 + rows * keys * 2, 2 * 256 * rows
            of_TMA = 2 * rows * d * 4
            for step, operands, others in (
                    ("wgmma", plain, of_rows), ("tma", plain, of_rows), ("producer", plain, of_rows),
                    ("transposed", transposed, of_columns),
                    ("bulk_add", transposed, of_columns + of_TMA),
                    ("sm90", transposed, of_columns + of_TMA)):
                one = counted[("06_backward", step), d]
                self.assertEqual(one["tile"], (rows, keys))
                self.assertEqual(one["cycles"], 5 * 2 * rows * keys * d // 4096)
                self.assertEqual(one["operands"], operands, step)
                self.assertEqual(one["every"], operands + arrive + others, step)
        self.assertAlmostEqual(counted[("06_backward", "wgmma"), 128]["of_operands"], 0.9)
        self.assertAlmostEqual(counted[("06_backward", "sm90"), 64]["of_operands"], 0.7)
        self.assertAlmostEqual(counted[("06_backward", "sm90"), 128]["of_operands"], 0.8)
        self.assertGreater(counted[("06_backward", "mma"), 128]["of_operands"], 1)
        table = "\n".join(TABLES["shared_roof"](self.files(), "shared_roof"))
        self.assertIn("| 06 `sm90` | 128 | 64 × 128 | 2,560 | 262,144 | 0.80 | ", table)

        def points():
            return {(panel["title"], point["label"]): point["y"]
                    for panel in figure_data(self.files())["shared_roof"]["panels"]
                    for point in panel["points"]}

        rates = {r["variant"]: r["tflops"] for r in self.results["records"]
                 if r["rung"] == "06_backward" and r["direction"] == "bwd" and r["head_dim"] == 64
                 and r["seqlen"] == 16384 and r["batch"] == 1 and r["heads"] == 32
                 and not r["causal"]}
        for step in ("mma", "sm90"):
            self.assertAlmostEqual(points()["d = 64", f"06 {step}"], rates[step] / 700, places=5)
        # Without a measurement there is a line, and no point.
        self.drop(lambda c, r: (r["rung"], r["variant"]) != ("06_backward", "sm90"))
        self.assertEqual([points()[f"d = {d}", "06 sm90"] for d in (64, 128)], [None, None])
        self.assertIn("shared_roof: left out of it: d = 64: no time of 06 sm90", self.said()[1])
        # And of old counts, without what products read, none.
        path = os.path.join(self.root, "sim.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("sram_operand_bytes", "other_bytes"))
        self.assertEqual(TABLES["shared_roof"](self.files(), "shared_roof"), [
            "*Shared memory is not counted yet: `scripts/bench.py --sim` measures it.*"])

    def test_two_gpus(self):
        data, said = self.said()
        self.assertEqual(said, "")
        self.assertEqual((data["two_gpus"]["names"], data["two_gpus"]["matmul"]),
                         (["F100", "F200"], 1))
        self.assertAlmostEqual(data["two_gpus"]["copy"], 1.5)
        rows = [{row["label"]: row for row in panel["rows"]}
                for panel in data["two_gpus"]["panels"]]
        self.assertEqual([len(of) for of in rows], [22, 22])
        for of in rows:
            for label, gain in (("01 mma", 1.5), ("02 safe softmax", 1.5), ("06 stored bwd", 1.5),
                                ("05 mma", 1), ("06 sm90 bwd", 1)):
                self.assertAlmostEqual(of[label]["gain"], gain)
        # What HBM takes of the time on the slower: by the bytes of one record.
        first = next(r for r in self.others["records"] if r["variant"] == "safe" and
                     r["seqlen"] == 2048 and r["head_dim"] == 64 and not r["causal"])
        share = (first["dram_read_bytes"] + first["dram_write_bytes"]) / 2e12 / (
            first["time_ms"] / 1e3)
        row = rows[0]["02 safe softmax"]
        self.assertAlmostEqual(row["share"], share, places=5)
        self.assertAlmostEqual(row["expected"], 1 / (1 - share + share / 1.5), places=5)
        # The same whichever of the files is drawn: the GPU with less bandwidth comes first.
        again = figure_data(Files(self.others_path))["two_gpus"]
        self.assertEqual(again, data["two_gpus"])

    def test_two_gpus_as_tables(self):
        for record in self.results["records"]:
            if (record["rung"], record["variant"]) == ("05_flash_v2", "defer"):
                record["smem_bytes"] += 1
            for one in (record, *record["kernels"]):
                if record["variant"] == "safe" and record["head_dim"] == 64:
                    one["time_ms"] = 2.0
        for record in self.others["records"]:
            for one in (record, *record["kernels"]):
                if record["variant"] == "safe" and record["head_dim"] == 64:
                    one["time_ms"], one["dram_read_bytes"], one["dram_write_bytes"] = 3, 10**9, 10**9
        *lines, text, _, picture = TABLES["two_gpus_steps"](self.files(), "two_gpus_steps")
        self.assertEqual(lines[0], "|  | d = 64: F100 → F200 | × | HBM | d = 128: F100 → F200 | × | "
                                   "HBM |")
        row = next(line for line in lines if line.startswith("| 02"))
        self.assertTrue(row.startswith("| 02 `safe` | 3.00 ms → 2.00 ms | 1.50 | 33% | "), row)
        self.assertIn("; as measured: the NVIDIA F100 40GB on 2001-01-01, commit 111111111111; the "
                      "NVIDIA F200 80GB on 2001-02-03, commit 000000000000. ", text)
        self.assertIn("1.50 times as fast there (2.00 → 3.00 TB/s), a cuBLAS product 1.00 times (700 "
                      "→ 700 TFLOP/s)", text)
        self.assertIn("Nearer to the copy's × than to the product's: 00 `naive`, 01 `tile`, 01 `mma`, "
                      "02 `safe`, 03 `softmax`, 06 `stored` backward. ", text)
        self.assertTrue(text.endswith("not the same in both files: 05 `defer`."), text)
        self.assertNotIn("| 05 `defer` |", "\n".join(lines))
        self.assertTrue(picture.endswith("(../scripts/results/figures/two_gpus.svg)"))
        self.assertIn("two_gpus: left out of it: d = 64: 05 defer, which is not the same",
                      self.said()[1])
        *lines, text = TABLES["two_gpus_kernels"](self.files(), "two_gpus_kernels")
        self.assertEqual([line.split(" |")[0] for line in lines[2:-1]], [
            f"| {step} · `{kernel}`" for step in ("00 `naive`", "01 `tile`", "01 `mma`")
            for kernel in ("first", "second")])
        self.assertNotIn("defer", text)
        # Where DRAM was not counted, times alone.
        for record in self.others["records"]:
            record["dram_read_bytes"] = None
        row = next(line for line in TABLES["two_gpus_steps"](self.files(), "two_gpus_steps")
                   if line.startswith("| 02"))
        self.assertTrue(row.startswith("| 02 `safe` | 3.00 ms → 2.00 ms | 1.50 | – | "), row)
        self.assertIsNone(self.said()[0]["two_gpus"]["panels"][0]["rows"][0]["expected"])
        self.draw("gpu.json", "--out", "one", "--only", "two_gpus")

    def test_what_shows_another_gpu_goes_stale_with_its_file(self):
        self.files()
        self.draw("gpu.json", "--out", "one", "--only", "two_gpus,access", "--readme",
                  self.page("page.md", self.EVERY))
        page, out = (os.path.join(self.root, name) for name in ("page.md", "one"))
        before = stale(self.files(), out, [page])
        self.assertEqual([line for line in before if not line.endswith("is missing")], [])
        for record in self.others["records"]:
            for one in (record, *record["kernels"]):
                if record["rung"] == "01_tiled_matmul":
                    one["time_ms"] *= 1.1
        folder = os.path.relpath(self.root)
        self.assertEqual([line for line in stale(self.files(), out, [page]) if line not in before], [
            f"{folder}/one/two_gpus.svg is stale", f"{folder}/one/two_gpus.png is stale",
            f"the table two_gpus_kernels of {folder}/page.md is stale",
            f"the table two_gpus_steps of {folder}/page.md is stale"])

    def test_one_gpu_is_not_two(self):
        def neither(why):
            data, said = self.said()
            self.assertNotIn("two_gpus", data)
            self.assertIn(f"two_gpus is left out: {why}", said)
            for name in course.TWO_GPUS_TABLES:
                self.assertEqual(TABLES[name](self.files(), name), [
                    "*A second GPU, with the rates of both, is not measured yet: `scripts/bench.py "
                    "--grid paper` measures it.*"])

        self.others["records"], self.others["commands"] = [], []
        neither("no step was measured on both")
        self.others = json.loads(json.dumps(self.other))
        self.others["ceilings"] = None
        neither("no ceilings of both GPUs were measured")
        self.others = {**self.other, "machine": {**self.other["machine"],
                                                 "gpu": self.results["machine"]["gpu"]}}
        neither("no second GPU was measured: scripts/bench.py --grid paper on another")
        # Of several others the newest.
        self.others = json.loads(json.dumps(self.other))
        for name, date in (("older", "2000-12-31"), ("newer", "2001-01-02")):
            with open(os.path.join(self.root, f"{name}.json"), "w", encoding="utf-8") as file:
                json.dump({**self.other, "machine": {**self.other["machine"], "date": date,
                                                     "gpu": f"NVIDIA {name} 7"}}, file)
        self.assertIn("NVIDIA newer 7 and ", self.said()[0]["two_gpus"]["title"])

    def test_errors_of_fp8_with_each_setting(self):
        rows = [list(map(str.strip, line.strip("|").split("|")))
                for line in TABLES["fp8_error"](self.files(), "fp8_error") if line.startswith("|")]
        self.assertEqual(len(rows), 2 + 1 + len(course.QUANTISED["rows"]))
        table = {row[0]: list(map(float, row[1:])) for row in rows[2:]}
        none, best = table["FP8, one scale a tensor"], table["all of these"]
        for name, errors in table.items():
            if not name.startswith("fp16"):  # 4 significant bits against 11
                self.assertTrue(all(b > 5 * a for a, b in zip(table["fp16, `mma`"], errors)), name)
        # By column: normal, outliers at two head sizes, captured, V + 1.
        self.assertLess(best[1], 0.7 * none[1])
        self.assertLess(table["… the transform"][2], 0.7 * none[2])
        self.assertLess(table["… two levels of sums"][4], none[4] / 50)
        self.assertGreater(table["all but two levels"][4], 50 * best[4])
        # They are the records' errors against full precision, of the settings that the row says.
        with open(os.path.join(self.root, "sim.json"), encoding="utf-8") as file:
            data = json.load(file)
        of = [r for r in data["records"] if r["variant"] == "fp8" and r["input"] == "outliers"
              and r["settings"] == course.ALL and r["head_dim"] == 128]
        self.assertEqual([f"{r['errors']['o_full']['rms']:.1e}" for r in of], [f"{best[2]:.1e}"])
        panels = figure_data(self.files())["fp8_error"]["panels"]
        self.assertEqual([f"{row['rms']:.1e}" for row in panels[2]["rows"]],
                         [f"{errors[2]:.1e}" for errors in table.values()])
        # Without one of them there is neither.
        data["records"].remove(of[0])
        data["commands"].pop()
        with open(os.path.join(self.root, "sim.json"), "w", encoding="utf-8") as file:
            file.write(json.dumps(data))
        self.assertEqual(TABLES["fp8_error"](self.files(), "fp8_error"), [
            "*Errors of FP8 are not counted yet: `scripts/bench.py --sim` measures it.*"])
        self.assertIn("fp8_error is left out: no errors of FP8", self.said()[1])

    def test_times_of_fp8_with_and_without_what_is_done_before(self):
        self.assertIn("not measured yet", TABLES["fp8_times"](self.files(), "fp8_times")[0])
        at = next(i for i, r in enumerate(self.results["records"]) if r["variant"] == "sm90"
                  and r["direction"] == "fwd" and r["seqlen"] == 2048 and r["head_dim"] == 128
                  and r["causal"] and r["batch"] == 8)
        record = json.loads(json.dumps(self.results["records"][at]))
        record.update(variant="fp8", time_ms=2.0, tflops=300.0, kernels=[
            {"name": "quantise", "time_ms": 0.4}, {"name": "attention", "time_ms": 1.5}])
        self.results["records"].append(record)
        self.results["commands"].append(self.results["commands"][at].replace("sm90", "fp8"))
        alone = 4 * 8 * 16 * 2048 * 2048 * 128 / 2 / 1.5e-3 / 1e12
        table = TABLES["fp8_times"](self.files(), "fp8_times")
        self.assertEqual(table[0], "|  | N = 2k |")
        self.assertIn(f"| d = 128, causal | {rate_text(alone)} · 300 |", table)
        self.assertIn("| d = 64 | – |", table)
        self.assertNotIn("256", "".join(table))
        # Of cuBLAS's rate, if it was measured: FlashAttention-3's, 660 of 1,285, beside it.
        self.assertNotIn("cuBLAS", "".join(table))
        self.results["ceilings"]["matmul_e4m3_tflops"] = 4 * alone
        table = TABLES["fp8_times"](self.files(), "fp8_times")
        self.assertIn("| d = 128, causal | 0.25 · 0.51 |", table)
        self.assertIn(f"{4 * alone:,.0f} TFLOP/s there", table[-1])
        self.assertTrue(table[-1].endswith("when cuBLAS had 1,285."))

    def test_times_of_fp8_have_a_line_for_wide_heads_once_they_are_measured(self):
        for causal in (False, True):
            at = next(i for i, r in enumerate(self.results["records"]) if r["variant"] == "sm90"
                      and r["direction"] == "fwd" and r["seqlen"] == 2048 and r["head_dim"] == 128
                      and r["causal"] == causal and r["batch"] == 8)
            for d, heads in ((128, 16), (256, 8)):
                record = json.loads(json.dumps(self.results["records"][at]))
                record.update(variant="fp8", head_dim=d, heads=heads, time_ms=2.0, tflops=300.0,
                              kernels=[{"name": "attention", "time_ms": 1.5}])
                if (d, causal) != (256, True):
                    self.results["records"].append(record)
                    self.results["commands"].append(self.results["commands"][at])
        self.results["ceilings"]["matmul_e4m3_tflops"] = 1000
        table = TABLES["fp8_times"](self.files(), "fp8_times")
        lines = [line for line in table if line.startswith("| d = 256")]
        alone = 4 * 8 * 16 * 2048 * 2048 * 128 / 1.5e-3 / 1e12
        self.assertEqual(lines, [f"| d = 256 | {rate_text(alone)} · 300 |",
                                 f"| d = 256 | {alone / 1000:.2f} · – |"])
        self.assertTrue(table[-1].endswith("1,285; –: not known."))
        # Nothing else changes by them.
        with_them = figure_data(self.files())
        self.drop(lambda _, r: r["head_dim"] != 256)
        self.assertEqual(figure_data(self.files()), with_them)

    def page(self, name, text):
        path = os.path.join(self.root, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    EVERY = "".join(f"{name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\n" for name in TABLES)

    def readme(self, files):
        return renewed(self.page("README.md", self.EVERY), files)[0]

    def test_tables(self):
        text = self.readme(self.files())
        self.assertNotIn("old", text)
        # What this file has not: fp16 (two tables), FP8, and the steps of two claims, of which two
        # cells say so.
        self.assertEqual(text.count("not measured yet"), 7)
        self.assertIn("| [05_flash_v2](05_flash_v2/README.md) | `mma` | ", text)
        self.assertIn("\nOurs are times on an NVIDIA F200 80GB, driver 1.2, CUDA 12.8, SM clock 1500 "
                      "MHz in the median, 2001-02-03, where", text)
        self.assertIn("so 13% less time | FlashAttention [1], Table 1 | – | this project trains no "
                      "model | **no** |", text)
        self.assertIn("![", text)
        self.assertEqual(renewed(self.page("README.md", text), self.files()), (text, []))

    def test_visits_are_formulas_of_what_is_counted(self):
        def line(step):
            table = visits_tables(Files(os.path.join(self.root, "sim.json")))
            return next(text for text in table if text.startswith(f"| {step} |"))

        for expected in (
                "| 00 `naive` | 2 r, 1 w | d r, 1 w | N r | N r | N r | 1 w |",
                "| 01 `tile` | 2 r, 1 w | d/16 r, 1 w | N/16 r | N/16 r | N/16 r | 1 w |",
                "| 03 `one_pass_tile` | – | – | 1 r | N/32 r | N/32 r | 1 w |",
                "| 04 `flash_v1` | – | – | N/256 r | 1 r | 1 r | N/256 + 1 r, N/256 + 2 w |",
                "| 06 `mma` | – | – | N/128 r | 1 r | 1 r | N/128 + 1 r | N/128 + 1 r, "
                "N/128 + 2 w | 1 w |"):
            self.assertEqual(line(expected.split(" |")[0][2:]), expected)
        path = os.path.join(self.root, "sim.json")
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        for record in data["records"]:
            if record["rung"] == "00_naive" and record["seqlen"] == 2048:
                record["kernels"][0]["arrays"]["Q"]["read"] *= 2
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(data))
        self.assertIn("| 4096 at N = 2,048 r |", line("00 `naive`"))

    def test_tables_of_any_page(self):
        files = self.files()
        lesson = ("A lesson.\n<!-- claims:begin -->\nold\n<!-- claims:end -->\nMore of it.\n"
                  "<!-- ladder:begin -->\nold\n<!-- ladder:end -->\nThe end.\n")
        path = self.page("lesson.md", lesson)
        self.assertEqual(stale(files, self.root, [path])[-2:], [
            f"the table {name} of {os.path.relpath(path)} is stale"
            for name in ("claims", "ladder")])
        result = self.draw("gpu.json", "--out", "one", "--only", "error", "--readme", "lesson.md")
        self.assertIn("Wrote the tables of lesson.md: claims, ladder.", result.stderr)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(re.sub(r"(?<=begin -->\n).*?(?=<!-- \w+:end)", "old\n", text,
                                flags=re.DOTALL), lesson)
        self.assertIn("BERT-large", text)
        self.assertIn("| [05_flash_v2](05_flash_v2/README.md) | `mma` | ", text)
        self.assertEqual(renewed(path, files), (text, []))
        self.assertEqual(renewed(self.page("none.md", "No table.\n"), files), ("No table.\n", []))

    def test_markers_that_are_wrong(self):
        for text, why in (
                ("<!-- nosuch:begin -->\n<!-- nosuch:end -->\n", "there are only ladder, peers"),
                ("<!-- peers:begin -->\n", "lacks the marker <!-- peers:end --> after"),
                ("<!-- peers:end -->\n<!-- peers:begin -->\n", "lacks the marker <!-- peers:end")):
            with self.assertRaisesRegex(Stop, why):
                renewed(self.page("page.md", text), self.files())
        whole = self.page("whole.md", self.EVERY)
        need_places([self.page("page.md", "No table.\n"), whole])
        half = self.page("half.md", self.EVERY.replace("<!-- peers:begin -->", ""))
        with self.assertRaisesRegex(Stop, "no markdown file has the markers <!-- peers:begin -->"):
            need_places([half])

    def test_claims_are_judged(self):
        def verdict(claim):
            return next(line.rstrip(" |").rpartition("| ")[2]
                        for line in self.readme(self.files()).splitlines() if claim in line)

        def scale(rung, factor, keep=lambda r: True):
            for r in self.results["records"]:
                if r["rung"] == rung and keep(r):
                    r["time_ms"] *= factor

        self.assertEqual(verdict("2–4×"), "**no**")  # 60 against 53 TFLOP/s
        scale("04_flash_v1", 1 / 3)
        self.assertEqual(verdict("2–4×"), "yes")
        scale("04_flash_v1", 2, lambda r: r["seqlen"] < 1024)
        self.assertEqual(verdict("2–4×"), "in part")
        scale("04_flash_v1", 1 / 20)
        self.assertEqual(verdict("2–4×"), "yes, and more")
        self.assertEqual(verdict("up to 10×"), "**no**")  # 280 over 53
        self.assertEqual(verdict("less gained at d = 128"), "**no**")  # made up, as much
        scale("04_flash_v1", 1.1, lambda r: r["head_dim"] == 128)
        self.assertEqual(verdict("less gained at d = 128"), "yes")
        self.assertEqual(verdict("64k tokens"), "yes")
        self.drop(lambda c, r: r["seqlen"] < 65536)
        self.assertEqual(verdict("64k tokens"), "not measured yet")

    def test_a_claim_of_errors_is_judged_by_the_sims(self):
        def row():
            text = self.readme(self.files())
            return next(line for line in text.splitlines() if "fp16 RMSE" in line)

        path = os.path.join(self.root, "sim.json")
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
        ours = [r for r in data["records"] if r["dtype"] == "fp16" and r["input"] == "outliers"
                and (r["rung"], r["variant"]) in (("05_flash_v2", "sm90"),
                                                  ("02_safe_softmax", "safe"))]
        self.assertEqual(len(ours), 2)
        for error, verdict in ((2e-4, "| 2.00× (N = 512, d = 64: 2.0e-04 of the output's norm "
                                      "against 4.0e-04) | yes |"),
                               (3e-4, "| 1.33× (N = 512, d = 64: 3.0e-04 of the output's norm "
                                      "against 4.0e-04) | **no** |")):
            for r in ours:
                r["errors"]["o"]["rel"] = error if r["variant"] == "sm90" else 4e-4
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(data))
            self.assertIn(verdict, row())
        data["commands"], data["records"] = zip(*(
            (c, r) for c, r in zip(data["commands"], data["records"]) if r["dtype"] != "fp16"))
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(data))
        self.assertIn("| not measured yet | not measured yet |", row())

    def test_tables_without_a_gpu_say_so(self):
        text = self.readme(Files(os.path.join(self.root, "sim.json")))
        for line in ("No GPU has been measured yet, so there are no times",
                     "Ours beside PyTorch's is not measured yet", "| not measured yet | not "):
            self.assertIn(line, text)
        self.assertIn("| [00_naive](00_naive/README.md) | `naive` | – | – | – | – | 2.18 GB |", text)

    def test_bad_files(self):
        for text, why in (("no JSON", "is no JSON"), ('{"machine": 1}', "was not written by "
                                                                        "scripts/bench.py")):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(text)
            result = self.draw("gpu.json", "--check", status=2)
            self.assertIn(why, result.stderr)
        self.assertIn("there is no nosuch.json", self.draw("nosuch.json", "--check",
                                                          status=2).stderr)
        self.assertIn("there are speedup", self.draw("--only", "x", status=2).stderr)

    def test_help(self):
        result = self.draw("--help")
        for name in (*FIGURES, "--readme", "--check", "Exit status"):
            self.assertIn(name, result.stdout)


FORWARD = course.PRODUCTS["attention"]


def event(kind, name="", number=0, amount=0, barrier="", exps=0, flops=0):
    return [kind, name, barrier, number, amount, exps, flops]


class Pipeline(unittest.TestCase):
    """The replay of what happens in a block: of small cases worked out by hand, and of the traces
    that are committed, where what the figure is to show must be there."""

    def test_a_copy_a_product_and_a_softmax(self):
        producer = [event("mbarrier_arrive", "K_full[0]"),
                    event("tma_load", "K", amount=32 * 5120, barrier="K_full[0]"),
                    event("mbarrier_wait", "K_free[0]"),
                    event("tma_load", "K", 1, amount=5120, barrier="K_full[0]"), event("exit")]
        consumer = [event("mbarrier_wait", "K_full[0]"),
                    event("wgmma", "K", amount=4096 * 100),
                    event("wgmma_wait", number=1),
                    event("mbarrier_arrive", "K_free[0]", exps=16),
                    event("mbarrier_wait", "K_full[0]", 1, flops=10), event("exit")]
        played = replay.replay([producer, consumer], FORWARD)
        landed = 32 * 132 + 500
        self.assertEqual(played["products"], [[0, "S", 0, landed, landed + 100]])
        free = landed + 100 + 16 * 128 / 16
        self.assertEqual(played["copies"], [["K", 0, 0, landed, free],
                                            ["K", 0, free, free + 132 + 500, None]])
        self.assertEqual(played["consumers"], [[
            ["tile", None, 0, landed], ["sums", None, landed, landed + 100],
            ["softmax", 0, landed + 100, free], ["scale", 0, free, free + 10],
            ["tile", None, free + 10, free + 632]]])
        self.assertEqual(played["end"], free + 632)

    def test_products_queue_and_softmaxes_share(self):
        def consumer(cycles):
            return [event("wgmma", "K", amount=4096 * 100), event("wgmma_wait", number=1),
                    event("exit", exps=cycles // 8)]
        played = replay.replay([consumer(160), consumer(80)], FORWARD)
        self.assertEqual(played["products"], [[0, "S", 0, 0, 100], [1, "S", 0, 100, 200]])
        # The first has 60 of its 160 cycles left when the second begins, and at half the rate needs
        # 120 for them; then the second has 20 of 80 left, and all of the units.
        self.assertEqual([spans[-1] for spans in played["consumers"]],
                         [["softmax", 0, 100, 320], ["softmax", 0, 200, 340]])

    def test_copies_queue_and_stores_do_not(self):
        for load, store in (("tma_load", "tma_store"), ("bulk_load", "bulk_add")):
            played = replay.replay([
                [event(load, "K", amount=5120, barrier="K_full[0]"),
                 event(store, "O", amount=10 * 5120),
                 event("tma_load", "V", amount=5120, barrier="V_full[0]"),
                 event("tma_store_wait", number=1), event("exit", flops=1)],
                [event("mbarrier_wait", "V_full[0]"), event("wgmma", "V", amount=4096)]], FORWARD)
            self.assertEqual([copy[:4] for copy in played["copies"]],
                             [["K", 0, 0, 132 + 500], ["V", 0, 0, 2 * 132 + 500]])
            self.assertEqual(played["products"], [[0, "O", 0, 764, 765]])
            self.assertEqual(played["end"], 1320 + 1)

    def test_turns(self):
        def consumer(mine, others, count):
            return [event("named_barrier_sync", mine), event("wgmma", "V", amount=4096),
                    event("named_barrier_arrive", others, flops=count), event("exit")]
        first, second = consumer("4", "5", 30), consumer("5", "4", 0)
        second.insert(0, event("named_barrier_arrive", "4"))
        second[-2] = event("exit")
        played = replay.replay([first, second], FORWARD)
        self.assertEqual(played["products"], [[0, "O", 0, 0, 1], [1, "O", 0, 30, 31]])
        self.assertEqual(played["consumers"][1], [["turn", None, 0, 30]])

    def test_what_never_comes(self):
        waits = [event("mbarrier_wait", "K_full[0]"), event("mbarrier_arrive", "K_full[0]")]
        with self.assertRaisesRegex(Stop, r"warps \[1\] wait for ever"):
            replay.replay([[event("wgmma", "K", amount=1)], waits], FORWARD)

    def test_the_committed_traces(self):
        with open(os.path.join(RESULTS, "traces.json"), encoding="utf-8") as file:
            traces = json.load(file)["pipelines"]
        self.assertEqual([(trace["figure"], trace["head_dim"]) for trace in traces],
                         [("pipeline", 128), ("pipeline", 64),
                          ("pipeline_bwd", 128), ("pipeline_bwd", 64)])
        check = {"pipeline": self.check_forward, "pipeline_bwd": self.check_backward}
        for trace in traces:
            with self.subTest(figure=trace["figure"], head_dim=trace["head_dim"]):
                called = course.PRODUCTS[trace["kernel"]]
                check[trace["figure"]](trace, replay.replay(trace["warps"], called))

    def check_backward(self, trace, played):
        consumers, products = played["consumers"], played["products"]
        d, keys, rows = trace["head_dim"], trace["block_kv"], trace["block_q"]
        steps = trace["seqlen"] // rows
        self.assertEqual((len(consumers), keys, trace["seqlen_kv"], steps), (2, 128, 128, 3))
        flops = 2 * rows * keys * d  # of a product of both consumers
        for what in ("S", "dP", "dV", "dK", "dQ"):
            mine = [(who, step) for who, name, step, *_ in products if name == what]
            self.assertEqual(sorted(mine), [(who, step) for who in (0, 1) for step in range(steps)])
            self.assertAlmostEqual(replay.MATMUL_FLOPS * sum(
                until - begin for _, name, _, begin, until in products if name == what),
                steps * flops, msg=what)
        self.assertEqual(len(products), 5 * 2 * steps)

        # No step begins before what it needs is there.
        at = {(who, what, step): (begin, until) for who, what, step, begin, until in products}
        spans = {(who, what, step): (begin, until) for who, mine in enumerate(consumers)
                 for what, step, begin, until in mine if what in ("softmax", "scale")}
        copies = {}
        for array, _, issued, landed, freed in played["copies"]:
            copies.setdefault(array, []).append((issued, landed, freed))
        self.assertEqual({array: len(of) for array, of in copies.items()}, {
            "K": 1, "V": 1, "Q": steps, "dO": steps, "LSE_log2e": steps, "minus_delta": steps})
        for who in (0, 1):
            for step in range(steps):
                P, dS = spans[who, "softmax", step], spans[who, "scale", step]
                S, dP, dV, dK, dQ = (at[who, what, step] for what in ("S", "dP", "dV", "dK", "dQ"))
                for first, then in ((S, P), (P, dS), (dP, dS), (P, dV), (dS, dK),
                                    (spans[0, "scale", step], dQ), (spans[1, "scale", step], dQ)):
                    self.assertLessEqual(first[1], then[0])
                for array, of in (("Q", (S, dK)), ("dO", (dP, dV))):
                    _, landed, freed = copies[array][step]
                    for product in of:
                        self.assertLessEqual(landed, product[0])
                        self.assertLessEqual(product[1], freed)
                    if step + 2 < steps:  # two stages
                        self.assertGreaterEqual(copies[array][step + 2][0], freed)
        # The point of it: P is worked out under dP.
        self.assertTrue(any(spans[who, "softmax", step][0] < at[who, "dP", step][1]
                            for who in (0, 1) for step in range(steps)))

    def check_forward(self, trace, played):
        consumers, products = played["consumers"], played["products"]
        self.assertEqual(len(consumers), trace["block_q"] // 64)
        steps = 2 * -(-trace["seqlen_kv"] // trace["block_kv"])  # of two tiles of Q
        self.assertEqual(len(products), 2 * steps * len(consumers))

        # The tensor cores do all FLOPs of the two tiles, one product at a time.
        rate = replay.MATMUL_FLOPS
        d, keys = trace["head_dim"], trace["seqlen_kv"]
        self.assertAlmostEqual(sum(until - begin for *_, begin, until in products) * rate,
                               2 * 4 * trace["block_q"] * keys * d)
        in_turn = sorted(products, key=lambda product: product[3])
        for before, after in zip(in_turn, in_turn[1:]):
            self.assertLessEqual(before[4], after[3])

        # No step begins before what it needs is there.
        at = {(who, what, step): (begin, until) for who, what, step, begin, until in products}
        softmaxes = {(who, step): (begin, until) for who, spans in enumerate(consumers)
                     for what, step, begin, until in spans if what == "softmax"}
        self.assertEqual(len(softmaxes), steps * len(consumers))
        copies = {"Q": [], "K": [], "V": []}
        for array, _, issued, landed, freed in played["copies"]:
            copies[array].append((issued, landed, freed))
        for who in range(len(consumers)):
            for step in range(steps):
                softmax = softmaxes[who, step]
                self.assertGreaterEqual(softmax[0], at[who, "S", step][1])
                self.assertGreaterEqual(at[who, "O", step][0], softmax[1])
                for array, what in (("K", "S"), ("V", "O")):
                    _, landed, freed = copies[array][step]
                    self.assertGreaterEqual(at[who, what, step][0], landed)
                    self.assertGreaterEqual(freed, at[who, what, step][1])
                    if step + 2 < steps:  # two stages
                        self.assertGreaterEqual(copies[array][step + 2][0], freed)

        # The point of it: from the second step on softmaxes run under the consumer's own product PV
        # of the step before, and as far as they outlast it, under another's.
        def under(mine, others):
            return any(mine[0] < until and begin < mine[1] for begin, until in others)

        for (who, step), softmax in softmaxes.items():
            if 0 < step < steps // 2:
                self.assertTrue(under(softmax, [at[who, "O", step - 1]]), (who, step))
        others = [place for (who, *_), place in at.items() if who != 0]
        outlast = 0
        for step in range(1, steps // 2):
            begin, until = at[0, "O", step - 1][1], softmaxes[0, step][1]
            if until > begin + 1e-6:
                outlast += 1
                self.assertTrue(under((begin, until), others), step)
        self.assertEqual(outlast > 0, d == 64)  # at d = 128 a softmax is as long as a product


class ClockTest(unittest.TestCase):
    """Marks as boxes: consumers of 8 steps of 320 cycles, the second one 160 later."""

    def boxes(self, variant, parts, late):
        shown = [[[1000 + 160 * who + 320 * (step + (late and what >= clock.O_ISSUED)) + part
                   for what, part in enumerate(parts)] for step in range(clock.STEPS)]
                 for who in (0, 1)]
        panel = clock_panel({"variant": variant, "shown": shown, "block_q": 128, "block_kv": 128,
                             "head_dim": 128, "cycles": {"step": 4096}, "sm_ghz": 1.5,
                             "tflops": 500, "tflops_marked": 490}, 640)
        self.assertIn("4,096 cycles, 50% of them the tensor cores'; 1.50 GHz; 490 TFLOP/s, "
                      "500 without the marks",
                      panel["said"])
        return panel

    def test_in_turn(self):
        # Begins, S issued, S done, softmax done, P ready, P·V issued, done.
        panel = self.boxes("producer", [0, 10, 100, 200, 220, 230, 300], False)
        first = [box for box in panel["boxes"] if box[0] == 0 and box[4] <= 320]
        self.assertEqual(first, [[0, "S", "S14", 0, 100], [0, "O", "O14", 220, 300],
                                 [0, "softmax", "P14", 100, 200], [0, "rest", "", 200, 220]])
        # Of the second consumer: half of step 13's, cut off where the panel begins.
        self.assertIn([1, "O", "O13", 60, 140], panel["boxes"])
        self.assertIn([1, "softmax", "P13", 0, 40], panel["boxes"])
        self.assertEqual(panel["idle"][:2], [[140, 160], [300, 320]])

    def test_done_under_the_softmax(self):
        panel = self.boxes("overlap", [0, 10, 100, 200, 240, 20, 210], True)
        first = [box for box in panel["boxes"] if box[0] == 0 and box[4] <= 320]
        # P·V is step 13's. It is not done before S is; then nobody asks until the softmax is done.
        self.assertEqual(first, [[0, "S", "S14", 0, 100], [0, "O", "O13", 10, 100],
                                 [0, "perhaps", "", 100, 210], [0, "softmax", "P14", 100, 200],
                                 [0, "rest", "", 210, 240]])
        self.assertEqual(panel["idle"], [])

    def test_waited_for_after_the_softmax(self):
        panel = self.boxes("overlap", [0, 10, 100, 200, 300, 20, 280], True)
        self.assertIn([0, "O", "O13", 10, 280], panel["boxes"])


class Committed(unittest.TestCase):
    """What lies in scripts/results, and what shows it."""

    FIGURES = os.path.join(RESULTS, "figures")

    def test_figures_and_tables_are_fresh(self):
        found = stale(Files(newest_measured()), self.FIGURES, course_files())
        self.assertEqual(found, [], "scripts/plot.py --readme renews them")

    def test_what_is_stale_is_noticed(self):
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "results")
            shutil.copytree(RESULTS, results)
            readme = shutil.copy(os.path.join(ROOT, "README.md"), folder)
            figures = os.path.join(results, "figures")
            path = os.path.join(results, os.path.basename(newest_measured()))

            def said():
                return "\n".join(stale(Files(path), figures, [readme]))

            self.assertEqual(said(), "")
            with open(readme, encoding="utf-8") as file:
                text = file.read()
            with open(readme, "w", encoding="utf-8") as file:
                file.write(text.replace("| `one_pass_tile` | ", "| `one_pass_tile` | 9"))
            self.assertIn("the table ladder of ", said())
            os.unlink(os.path.join(figures, "access.svg"))
            self.assertIn("access.svg is missing", said())
            sim = os.path.join(results, "sim.json")
            with open(sim, encoding="utf-8") as file:
                data = json.load(file)
            for record in data["records"]:
                if record["rung"] == "04_flash_v1" and record["seqlen"] == 1024:
                    record["distinct_read_bytes"] += 4096
            with open(sim, "w", encoding="utf-8") as file:
                file.write(json.dumps(data))
            self.assertIn("traffic.svg is stale", said())
            self.assertIn("traffic.png is stale", said())
            self.assertNotIn("workspace.svg", said())

    COUNTS = re.compile(r"(?:model|requested|distinct|sram)_\w+_bytes|\w+_flops|exp_count|"
                        r"workspace_bytes|smem_bytes|block_\w+|warps|stages")

    def need_programs(self):
        if not os.path.exists(os.path.join(BIN, "00_naive")):
            self.skipTest(f"no programs in {BIN}")

    def test_the_sim_still_counts_what_sim_json_says(self):
        self.need_programs()
        with open(os.path.join(RESULTS, "sim.json"), encoding="utf-8") as file:
            data = json.load(file)
        by_command = {}
        for command, record in zip(data["commands"], data["records"]):
            by_command.setdefault(command, []).append(record)
        checked = 0
        for command, records in by_command.items():
            words = command.split()
            if records[0]["seqlen"] != 128 and not (
                    "--block-q" in words and words[0].startswith("04")):
                continue
            program, arguments = os.path.join(BIN, words[0]), words[1:]
            if not os.path.exists(program):
                self.fail(f"{words[0]} is gone: remove scripts/results/sim.json and run "
                          "scripts/bench.py --sim")
            out = subprocess.run([program, *arguments, "--json"], stdin=subprocess.DEVNULL,
                                 capture_output=True, encoding="utf-8", timeout=SECONDS).stdout
            printed = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(len(printed), len(records))
            for now, before in zip(printed, records):
                for name, value in before.items():
                    if self.COUNTS.fullmatch(name):
                        self.assertEqual(now[name], value, f"{command}: {name}; scripts/bench.py "
                                         "--sim --again counts anew")
            checked += 1
        self.assertGreater(checked, 20)

    def test_sim_json_has_every_step(self):
        self.need_programs()
        steps = ladder_of(programs_in(BIN).values(), "sim").steps
        with open(os.path.join(RESULTS, "sim.json"), encoding="utf-8") as file:
            data = json.load(file)
        there = {(r["rung"], r["variant"]) for r in data["records"]}
        self.assertEqual({(s.rung, s.variant) for s in steps} - there, set(),
                         "scripts/bench.py --sim adds them")
        self.assertEqual([(s["rung"], s["variant"]) for s in data["steps"]],
                         [(s.rung, s.variant) for s in steps])

    def test_the_traces_are_those_of_the_code(self):
        self.need_programs()
        with open(os.path.join(RESULTS, "traces.json"), encoding="utf-8") as file:
            before = {trace["rung"]: trace for trace in json.load(file)["traces"]}
        for rung, variant in course.TRACED:
            self.assertEqual(traces.traced(os.path.join(BIN, rung), rung, variant), before[rung],
                             "scripts/bench.py --sim traces anew")
        with open(os.path.join(RESULTS, "traces.json"), encoding="utf-8") as file:
            before = json.load(file)["pipelines"]
        self.assertEqual(len(before), len(course.PIPELINED))
        for of, one in zip(course.PIPELINED, before):
            self.assertEqual(traces.pipelined(os.path.join(BIN, of[1]), *of), one,
                             "scripts/bench.py --sim traces anew")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        BIN = os.path.abspath(sys.argv.pop(1))
    unittest.main()
