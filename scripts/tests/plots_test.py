"""Tests of scripts/plot.py: over measurements that are made up, beside the sim's real ones, and of
what is committed in scripts/results.

Run alone: python3 scripts/tests/plots_test.py [build/bin]
The programs of that folder, if they are there, must still count what sim.json says.
"""

import copy
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import tempfile
import unittest

from base import RESULTS, ROOT, SCRIPTS, SECONDS, argument, read, write
from fake_results import ASIDES, COLOURS, fake_results, of_another
from ladder import clock, course
from ladder.bench import traces
from ladder.console import Stop
from ladder.figures import gallery, replay, shared_roof
from ladder.figures.gallery import FIGURES, digest, figure_data
from ladder.figures.make import stale
from ladder.figures.measured import Files
from ladder.figures.memory import names_of
from ladder.figures.names import PEER_NAMES
from ladder.figures.pages import TABLES, need_places, renewed
from ladder.figures.pipeline import LANES, box_colour
from ladder.figures.pipeline_measured import panel as clock_panel
from ladder.files import course_pages, newest_measured
from ladder.programs import programs_in
from ladder.steps import ladder_of
from ladder.text import rate_text

BIN = os.path.join(ROOT, "build/bin")
PAPER = "scripts/bench.py --grid paper"


def like(record, **wanted):
    return all(record[name] == value for name, value in wanted.items())


class Made(unittest.TestCase):
    """plot.py over measurements that are made up, beside the sim's real ones."""

    @classmethod
    def setUpClass(cls):
        cls.fake = fake_results()
        cls.other = of_another(cls.fake)
        cls.made = pickle.dumps((cls.fake, cls.other))  # copied ten times as fast as by copy

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.path, self.others_path = self.at("gpu.json"), self.at("other.json")
        self.as_it_was()

    def at(self, name):
        return os.path.join(self.root, name)

    def as_it_was(self):
        for name in ("sim.json", "traces.json", "clock.json"):
            shutil.copy(os.path.join(RESULTS, name), self.root)
        self.results, self.others = pickle.loads(self.made)

    def files(self):
        write(self.path, text=self.results)
        write(self.others_path, text=self.others)
        return Files(self.path)

    def edit(self, name, change):
        """Changes a file of JSON beside the results."""
        data = json.loads(read(self.at(name)))
        change(data)
        write(self.at(name), text=data)

    def draw(self, *words, status=0):
        self.files()
        return self.plot(*words, status=status)

    def plot(self, *words, status=0):
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

    def data(self, name):
        return figure_data(self.files())[name]

    def table(self, name):
        return TABLES[name](self.files(), name)

    def page(self, name, text):
        return write(self.root, name, text=text)

    EVERY = "".join(f"{name}\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\n" for name in TABLES)

    def readme(self, files=None):
        return renewed(self.page("README.md", self.EVERY), files or self.files())[0]

    def records(self, **wanted):
        return [r for r in self.results["records"] if like(r, **wanted)]

    def drop(self, keep):
        """Keeps the records, with their commands, for which `keep` holds."""
        pairs = [(c, r) for c, r in zip(self.results["commands"], self.results["records"])
                 if keep(c, r)]
        self.results["commands"], self.results["records"] = map(list, zip(*pairs))

    def drop_step(self, rung, variant):
        self.drop(lambda _, r: (r["rung"], r["variant"]) != (rung, variant))

    def add_fp16(self, faster=1):
        """All that was measured, in fp16 too, and first."""
        for words in ("commands", "records", "peers"):
            more = json.loads(json.dumps(self.results[words]).replace("bf16", "fp16"))
            for record in more if words != "commands" else []:
                record["time_ms"] = record["time_ms"] and record["time_ms"] / faster
                record["tflops"] = record["tflops"] and record["tflops"] * faster
            self.results[words] = more + self.results[words]


class Figures(Made):
    def test_all_figures(self):
        result = self.draw("gpu.json", "--out", "one")
        self.assertEqual(sorted(os.listdir(self.at("one"))),
                         sorted(f"{name}.svg" for name in FIGURES))
        self.assertNotIn("left out", result.stderr)
        # Each has the digest of its data, and one drawn again is the same to the byte.
        self.assertEqual(stale(self.files(), self.at("one"), []), [])
        self.draw("gpu.json", "--out", "two", "--only", "error")
        self.assertEqual(os.listdir(self.at("two")), ["error.svg"])
        self.assertEqual(read(self.at("one/error.svg")), read(self.at("two/error.svg")))

    def test_figures_are_of_one_type(self):
        data, said = self.said()
        self.assertNotIn("bf16", said)
        self.add_fp16(faster=2)
        both, said = self.said()
        self.assertEqual(both, data)
        self.assertIn(f"{len(self.fake['records'])} records that are not bf16", said)

    def test_what_a_new_file_lacks_is_removed(self):
        self.draw("gpu.json", "--out", "one", "--only", "roofline,error")
        self.assertEqual(len(os.listdir(self.at("one"))), 2)
        self.results["ceilings"] = None
        self.assertIn("one/roofline.svg shows what the files no longer have",
                      "\n".join(stale(self.files(), self.at("one"), [])))
        self.draw("gpu.json", "--out", "one", "--only", "error")
        self.assertEqual(os.listdir(self.at("one")), ["error.svg"])

    def test_any_number_that_changes_is_noticed(self):
        paper = {"rung": "05_flash_v2", "variant": "mma", "batch": 4, "seqlen": 4096,
                 "head_dim": 128, "causal": False}

        def times(words, factor, *way):
            """A number of the first record that has these words in its command."""
            at = next(r for c, r in zip(self.results["commands"], self.results["records"])
                      if words in c)
            for name in way[:-1]:
                at = at[name]
            at[way[-1]] *= factor

        def skipped():
            self.results["skipped"] = [s for s in self.results["skipped"] if s["status"] != 3]

        def product(data):
            next(e for e in data["pipelines"][0]["warps"][1] if e[0] == "wgmma")[4] *= 2

        for change, names in (
                (lambda: None, set()),
                (lambda: self.records(**paper)[0].update(tflops=1), {"tflops_fwd", "roofline"}),
                (lambda: self.records(rung="06_backward", variant="mma", direction="bwd",
                                      seqlen=2048, head_dim=64, causal=False)[0].update(time_ms=1),
                 {"speedup", "tflops_both", "two_gpus"}),
                (lambda: self.records(**{**paper, "variant": "sm90"})[0].update(dram_read_bytes=1),
                 {"traffic", "roofline"}),
                (skipped, {"workspace"}),
                (lambda: times("--block-kv 128", 2, "time_ms"), {"block_size"}),
                (lambda: times("outliers", 2, "errors", "o", "max"), {"error"}),
                (lambda: self.edit("traces.json", product), {"pipeline"}),
                (lambda: self.edit("clock.json", lambda data: data["steps"][0]["cycles"].update(
                    step=4321)), {"pipeline_measured"}),
                (lambda: next(r for r in self.others["records"] if like(
                    r, seqlen=2048, batch=8, causal=False)).update(time_ms=1), {"two_gpus"})):
            self.as_it_was()
            before = figure_data(self.files())
            change()
            after = figure_data(self.files())
            self.assertEqual({name for name in FIGURES
                              if digest(name, before[name]) != digest(name, after[name])}, names)

    def test_numbers(self):
        data, said = self.said()
        self.assertEqual(said, "")
        self.assertNotIn("lSE", json.dumps(data["error"]))  # has a tolerance of its own
        bars = {bar["label"]: bar for bar in data["speedup"]["panels"][0]["bars"]}
        self.assertEqual(list(bars)[0], "00 naive")
        self.assertEqual(bars["00 naive"]["value"], 1)
        self.assertAlmostEqual(bars["05 mma"]["value"], 280 / 1.3, places=2)
        self.assertEqual([bar for bar in bars if bars[bar]["default"]],
                         ["00 naive", "01 mma", "02 safe softmax", "03 one_pass_tile",
                          "04 flash v1", "05 sm90"])
        lines = {line["label"]: line for line in data["tflops_bwd"]["panels"][0]["lines"]}
        self.assertEqual(lines["06 mma"]["x"], [512, 1024, 2048, 4096, 8192, 16384])
        self.assertEqual(set(lines), {*(f"06 {step}" for step in (
            "stored", "mma", "wgmma", "tma", "producer", "transposed", "bulk_add", "sm90")),
            *PEER_NAMES.values()})
        # Rates of both ways together lie between the two; 1 : 2.5 FLOPs.
        both = {line["label"]: line for line in data["tflops_both"]["panels"][0]["lines"]}
        ours = self.records(rung="06_backward", variant="mma", seqlen=512, head_dim=64,
                            causal=False)
        self.assertAlmostEqual(both["06 mma"]["y"][0], 3.5 * 4 * 512**2 * 64 * 32 * 32 / sum(
            r["time_ms"] for r in ours) * 1e-9, places=2)
        self.assertIn(("02", 65536),
                      {(m["rung"][:2], m["x"]) for m in data["workspace"]["marks"]})
        self.assertEqual(data["workspace"]["memory_bytes"], 80 * 2**30)

    def test_on_another_gpu_what_runs_there_stands_for_a_rung_alone(self):
        def shown():
            data = self.said()[0]
            return ([bar["label"] for bar in data["speedup"]["panels"][0]["bars"]
                     if bar["default"]][-1],
                    [line["label"] for line in data["tflops_fwd"]["panels"][0]["lines"]
                     if line["rung"] == "05_flash_v2"])

        self.assertEqual(shown(), ("05 sm90", ["05 mma", "05 sm90"]))
        self.drop(lambda c, r: r["variant"] != "sm90")
        self.assertEqual(shown(), ("05 mma", ["05 mma"]))

    def test_asides_are_in_the_ladder_and_no_default(self):
        data = self.said()[0]
        self.assertEqual(ASIDES, [("06_backward", "deterministic")])
        bars = {bar["label"]: bar["default"] for bar in data["speedup"]["panels"][2]["bars"]}
        self.assertEqual([name for name in bars if bars[name]], ["06 sm90"])
        self.assertIn("06 deterministic", bars)
        self.assertIn("| `deterministic` backward | ", self.readme())
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
            **next(s for s in self.results["steps"]
                   if like(s, rung="05_flash_v2", variant="mma")),
            "rung": "07_toy", "variant": "toy", "colour": "#abcdef", "default": True})
        for command, record in list(zip(self.results["commands"], self.results["records"])):
            if like(record, rung="05_flash_v2", variant="mma"):
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
        text = self.readme()
        self.assertIn("| [07_toy](07_toy/README.md) | `toy` | ", text)
        self.assertIn("ours is 07's `toy` forward and 06's `sm90` backward.", text)
        self.draw("gpu.json", "--out", "one", "--only", "tflops_fwd,error")

    def test_the_ladders_first_step_is_what_others_are_compared_with(self):
        self.results["steps"] = [s for s in self.results["steps"] if s["rung"] != "00_naive"]
        self.drop_step("00_naive", "naive")
        os.unlink(self.at("sim.json"))
        panel = self.data("speedup")["panels"][0]
        self.assertEqual(panel["title"], "forward, d = 64, against 01")
        self.assertEqual([bar["label"] for bar in panel["bars"] if bar["value"] == 1], ["01 tile"])
        self.assertIn("| × 01 |", self.readme())

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

    def test_the_digest_is_of_the_code_that_draws(self):
        for name, (_, draw) in FIGURES.items():
            code = gallery.drawing_code(name)
            for path in (draw.__code__.co_filename, gallery.style.__file__,
                         gallery.names.__file__):
                self.assertIn(read(path), code, name)
        self.assertIn(inspect.getsource(inspect.getmodule(box_colour)),
                      gallery.drawing_code("pipeline_measured"))  # in another figure's colours

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
        self.assertEqual(len(data["traffic"]["kinds"]), 2)
        for line in (f"roofline is left out: no ceilings were measured: {PAPER}, where PyTorch is "
                     "installed",
                     "two_gpus is left out: no ceilings of both GPUs were measured: ",
                     "tflops_bwd is left out: ", f"no times of the backward pass: {PAPER}",
                     "speedup: left out of it: no backward pass at N = 2048, d = 64",
                     "traffic: left out of it: no DRAM counters"):
            self.assertIn(line, said)
        self.drop(lambda c, r: not r["rung"].startswith("00") and "--block" not in c
                  and "--check full" not in c)
        said = self.said()[1]
        for line in ("speedup is left out: no time of 00 at N = 2048, d = 64",
                     "block_size: left out of it: no time by tile size",
                     "error: left out of it: no errors on a GPU, the sim's instead"):
            self.assertIn(line, said)
        for name in ("sim.json", "traces.json", "clock.json"):
            os.unlink(self.at(name))
        said = self.said()[1]
        for line in ("traffic: left out of it: no distinct bytes: scripts/bench.py --sim",
                     *(f"{name} is left out: no traces: scripts/bench.py --sim"
                       for name in ("access", "pipeline", "pipeline_bwd")),
                     "pipeline_measured is left out: no clock.json: scripts/clock.py",
                     "error is left out: ", "block_size is left out: "):
            self.assertIn(line, said)

    def test_the_sim_alone(self):
        data = figure_data(Files(self.at("sim.json")))
        self.assertEqual(set(data), {"traffic", "workspace", "block_size", "access", "pipeline",
                                     "pipeline_measured", "pipeline_bwd", "error", "fp8_error"})
        # 04 reads all of Q for each tile of K, 05 all of K for each tile of Q.
        for panel, rows in zip(data["access"]["panels"], (
                {"Q": 8 * 512, "K": 512, "V": 512, "O": 8 * 512 + 512},
                {"Q": 512, "K": 8 * 512, "V": 8 * 512})):
            read_rows, written = {}, set()
            for _, lane, op, first, last in panel["boxes"]:
                if op == "r":
                    read_rows[LANES[lane]] = read_rows.get(LANES[lane], 0) + last - first
                else:
                    written.add(LANES[lane])
            self.assertEqual((read_rows, written), (rows, {"O"}))


class Tables(Made):
    def test_tables(self):
        text = self.readme()
        self.assertNotIn("old", text)
        # What this file has not: fp16 (two tables), FP8, and the steps of two claims, of which two
        # cells say so.
        self.assertEqual(text.count("not measured yet"), 5)
        self.assertIn("| [05_flash_v2](05_flash_v2/README.md) | `mma` | ", text)
        self.assertIn("\nOurs are times on an NVIDIA F200 80GB, driver 1.2, CUDA 12.8, SM clock "
                      "1500 MHz in the median, 2001-02-03, where", text)
        self.assertIn("so 13% less time | FlashAttention [1], Table 1 | – | this project trains no "
                      "model | **no** |", text)
        self.assertIn("![", text)
        self.assertEqual(renewed(self.page("README.md", text), self.files()), (text, []))

    def test_tables_without_a_gpu_say_so(self):
        text = self.readme(Files(self.at("sim.json")))
        for line in ("No GPU has been measured yet, so there are no times",
                     "Ours beside PyTorch's is not measured yet", "| not measured yet | not ",
                     "| [00_naive](00_naive/README.md) | `naive` | – | – | – | – | 2.18 GB |"):
            self.assertIn(line, text)

    def test_the_steps_of_a_lesson(self):
        files = self.files()
        lines = self.table("hopper_steps")
        mma, sm90 = (next(e for e in files.gpu.paper("fwd", 2048, 64, False)
                          if e.step == ("05_flash_v2", step)).tflops for step in ("mma", "sm90"))
        for start in (f"| `mma` | {rate_text(mma)} | ",
                      f"| `sm90` | {rate_text(sm90)} ({sm90 / mma:.2f}) | "):
            self.assertTrue(any(line.startswith(start) for line in lines), lines)
        self.assertRegex("\n".join(lines), r"\| cuDNN \| \d")
        self.assertIn("that run did not have `wgmma`, `tma`, ", lines[-1])
        self.drop(lambda c, r: r["rung"] != "05_flash_v2")
        self.assertRegex("\n".join(self.table("hopper_steps")),
                         "^.The steps are not measured yet: ")

    def test_a_step_beside_others(self):
        for record in self.records(variant="sm90"):
            record["tflops"] = 300
        for record in self.records(variant="mma"):
            record["tflops"] = 150 if record["seqlen"] > 512 else 400
        for peer in self.results["peers"]:
            peer["tflops"] = 600 if peer["head_dim"] == 64 and peer["causal"] else 240
        *rows, _, text = self.table("sm90_beside_cudnn")
        self.assertEqual(rows[2], "| d = 64 | 1.25 · 0.75 |" + " 1.25 · 2.00 |" * 5)
        self.assertEqual(rows[3], "| d = 64, causal | 0.50 · 0.75 |" + " 0.50 · 2.00 |" * 5)
        self.assertIn(f"geometric mean {(1.25**3 * 0.5) ** 0.25:.3f} of 24 points, worst 0.500 (d "
                      "= 64, causal, N = 512), 18 are 1 or more.", text)
        self.assertIn("Against cuDNN, each point in turn: ", text)
        # Of another type than the figures, where the file has it.
        self.assertIn("not measured yet", self.table("sm90_beside_cudnn_fp16")[0])
        self.add_fp16()
        self.assertIn("ratios of TFLOP/s, fp16", self.table("sm90_beside_cudnn_fp16")[-1])
        self.assertIn("backward: ratios of TFLOP/s, fp16",
                      self.table("backward_beside_cudnn_fp16")[-1])

    def test_what_was_not_in_turn_is_said(self):
        turn, apart = "each point in turn", "in another run"

        def check(*expected, readme):
            """What is said of cuDNN, then of FlashAttention-2."""
            for name, wanted in zip(("sm90_beside_cudnn", "backward_beside_others",
                                     "training_beside_others"), expected):
                found = re.findall(rf"Against ([\w-]+), ({turn}|{apart}):", self.table(name)[-1])
                self.assertEqual(found, list(zip(("cuDNN", "FlashAttention-2"), wanted)))
            self.assertIn(f"alternating in one run{readme} on the NVIDIA", self.readme())

        check([turn], [turn, turn], [turn, turn], readme="")
        # One point of one direction; and a file from before this was noted.
        next(peer for peer in self.results["peers"] if like(
            peer, variant="flash", direction="bwd", seqlen=8192))["beside"].remove(
                "06_backward sm90")
        check([turn], [turn, apart], [turn, apart],
              readme=", but for FlashAttention-2 in another,")
        for peer in self.results["peers"]:
            if peer["direction"] == "fwd":
                del peer["beside"]
        check([apart], [turn, apart], [apart, apart],
              readme=", but for FlashAttention-2 and cuDNN in another,")

    def test_both_passes_beside_others(self):
        for variant, ways in (("sm90", {"fwd": 1, "bwd": 3}), ("mma", {"fwd": 2, "bwd": 8})):
            for record in self.records(rung="06_backward", variant=variant):
                record["time_ms"] = ways[record["direction"]]
        for peer in self.results["peers"]:
            peer["time_ms"] = 1 if peer["variant"] != "flash" else (
                3 if peer["seqlen"] > 512 else 1.5)
        *rows, _, text = self.table("training_beside_others")
        self.assertEqual(rows[2:], [
            f"| {point} | 0.50 · 0.75 · 2.50 |" + " 0.50 · 1.50 · 2.50 |" * 5
            for point in ("d = 64", "d = 64, causal", "d = 128", "d = 128, causal")])
        self.assertIn("`sm90` over cuDNN · over FlashAttention-2 · over `mma`, forward and "
                      "backward together: ratios of TFLOP/s, bf16", text)
        self.assertIn("over `mma`, backward: ratios", self.table("backward_beside_others")[-1])
        self.drop_step("06_backward", "sm90")
        for name in ("training_beside_others", "backward_beside_others"):
            self.assertEqual(self.table(name), [
                f"*06 sm90 beside others is not measured yet: `{PAPER}` measures it.*"])

    def test_the_roof_of_shared_memory(self):
        """By hand: a wgmma m64nNk16 reads 32·N bytes of B and, where A is in shared memory, 2,048
        of it. The sim's count must be just that."""
        def wgmmas(of_k, n, a_in_shared):
            return of_k // 16 * (32 * n + 2048 * a_in_shared)

        counted = {(step[1], one["d"]): one for step, one in shared_roof.steps(self.files())}
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
            for steps, operands, others in (
                    (("wgmma", "tma", "producer"), plain, of_rows),
                    (("transposed",), transposed, of_columns),
                    (("bulk_add", "sm90"), transposed, of_columns + of_TMA)):
                for one in (counted[step, d] for step in steps):
                    self.assertEqual(
                        (one["tile"], one["cycles"], one["operands"], one["every"]),
                        ((rows, keys), 5 * 2 * rows * keys * d // 4096, operands,
                         operands + arrive + others), steps)
        for step, d, share in (("wgmma", 128, 0.9), ("sm90", 64, 0.7), ("sm90", 128, 0.8)):
            self.assertAlmostEqual(counted[step, d]["of_operands"], share)
        self.assertGreater(counted["mma", 128]["of_operands"], 1)
        self.assertIn("| 06 `sm90` | 128 | 64 × 128 | 2,560 | 262,144 | 0.80 | ",
                      "\n".join(self.table("shared_roof")))

        def points():
            return {(panel["title"], point["label"]): point["y"]
                    for panel in self.data("shared_roof")["panels"] for point in panel["points"]}

        for step in ("mma", "sm90"):
            measured, = self.records(rung="06_backward", variant=step, direction="bwd", batch=1,
                                     heads=32, seqlen=16384, head_dim=64, causal=False)
            self.assertAlmostEqual(points()["d = 64", f"06 {step}"], measured["tflops"] / 700,
                                   places=5)
        # Without a measurement there is a line, and no point.
        self.drop_step("06_backward", "sm90")
        self.assertEqual([points()[f"d = {d}", "06 sm90"] for d in (64, 128)], [None, None])
        self.assertIn("shared_roof: left out of it: d = 64: no time of 06 sm90", self.said()[1])
        # And of old counts, without what products read, none.
        write(self.at("sim.json"), text=read(self.at("sim.json")).replace(
            "sram_operand_bytes", "other_bytes"))
        self.assertEqual(self.table("shared_roof"), [
            "*Shared memory is not counted yet: `scripts/bench.py --sim` measures it.*"])

    def test_visits_are_formulas_of_what_is_counted(self):
        def line(step):
            table = TABLES["visits"](Files(self.at("sim.json")), "visits")
            return next(text for text in table if text.startswith(f"| {step} |"))

        for expected in (
                "| 00 `naive` | 2 r, 1 w | d r, 1 w | N r | N r | N r | 1 w |",
                "| 01 `tile` | 2 r, 1 w | d/16 r, 1 w | N/16 r | N/16 r | N/16 r | 1 w |",
                "| 03 `one_pass_tile` | – | – | 1 r | N/32 r | N/32 r | 1 w |",
                "| 04 `flash_v1` | – | – | N/256 r | 1 r | 1 r | N/256 + 1 r, N/256 + 2 w |",
                "| 06 `mma` | – | – | N/128 r | 1 r | 1 r | N/128 + 1 r | N/128 + 1 r, "
                "N/128 + 2 w | 1 w |"):
            self.assertEqual(line(expected.split(" |")[0][2:]), expected)

        def twice(data):
            for record in data["records"]:
                if like(record, rung="00_naive", seqlen=2048):
                    record["kernels"][0]["arrays"]["Q"]["read"] *= 2

        self.edit("sim.json", twice)
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
        text = read(path)
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
        need_places([self.page("page.md", "No table.\n"), self.page("whole.md", self.EVERY)])
        half = self.page("half.md", self.EVERY.replace("<!-- peers:begin -->", ""))
        with self.assertRaisesRegex(Stop, "no markdown file has the markers <!-- peers:begin -->"):
            need_places([half])

    def test_claims_are_judged(self):
        def verdict(claim):
            return next(line.rstrip(" |").rpartition("| ")[2]
                        for line in self.readme().splitlines() if claim in line)

        def scale(rung, factor, keep=lambda r: True):
            for r in self.records(rung=rung):
                if keep(r):
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
        def errors(rel):
            def change(data):
                ours = [r for r in data["records"] if like(r, dtype="fp16", input="outliers")
                        and (r["rung"], r["variant"]) in (("05_flash_v2", "sm90"),
                                                          ("02_safe_softmax", "safe"))]
                self.assertEqual(len(ours), 2)
                for r in ours:
                    r["errors"]["o"]["rel"] = rel if r["variant"] == "sm90" else 4e-4
            return change

        def no_fp16(data):
            data["commands"], data["records"] = zip(*(
                (c, r) for c, r in zip(data["commands"], data["records"]) if r["dtype"] != "fp16"))

        for change, verdict in (
                (errors(2e-4), "| 2.00× (N = 512, d = 64: 2.0e-04 of the output's norm against "
                               "4.0e-04) | yes |"),
                (errors(3e-4), "| 1.33× (N = 512, d = 64: 3.0e-04 of the output's norm against "
                               "4.0e-04) | **no** |"),
                (no_fp16, "| not measured yet | not measured yet |")):
            self.edit("sim.json", change)
            self.assertIn(verdict, next(line for line in self.readme().splitlines()
                                        if "fp16 RMSE" in line))

    def test_bad_files(self):
        for text, why in (("no JSON", "is no JSON"), ('{"machine": 1}', "was not written by "
                                                                        "scripts/bench.py")):
            write(self.path, text=text)
            self.assertIn(why, self.plot("gpu.json", "--check", status=2).stderr)
        self.assertIn("there is no nosuch.json",
                      self.plot("nosuch.json", "--check", status=2).stderr)
        self.assertIn("there are speedup", self.plot("--only", "x", status=2).stderr)

    def test_help(self):
        result = self.plot("--help")
        for name in (*FIGURES, "--readme", "--check", "Exit status"):
            self.assertIn(name, result.stdout)


class TwoGpus(Made):
    def test_the_figure(self):
        data, said = self.said()
        self.assertEqual(said, "")
        about = data["two_gpus"]
        self.assertEqual((about["names"], about["matmul"]), (["F100", "F200"], 1))
        self.assertAlmostEqual(about["copy"], 1.5)
        rows = [{row["label"]: row for row in panel["rows"]} for panel in about["panels"]]
        self.assertEqual([len(of) for of in rows], [22, 22])
        for of in rows:
            for label, gain in (("01 mma", 1.5), ("02 safe softmax", 1.5), ("06 stored bwd", 1.5),
                                ("05 mma", 1), ("06 sm90 bwd", 1)):
                self.assertAlmostEqual(of[label]["gain"], gain)
        # What HBM takes of the time on the slower: by the bytes of one record.
        first = next(r for r in self.others["records"] if like(
            r, variant="safe", seqlen=2048, head_dim=64, causal=False))
        share = (first["dram_read_bytes"] + first["dram_write_bytes"]) / 2e12 / (
            first["time_ms"] / 1e3)
        row = rows[0]["02 safe softmax"]
        self.assertAlmostEqual(row["share"], share, places=5)
        self.assertAlmostEqual(row["expected"], 1 / (1 - share + share / 1.5), places=5)
        # The same whichever of the files is drawn: the GPU with less bandwidth comes first.
        self.assertEqual(figure_data(Files(self.others_path))["two_gpus"], about)

    def test_the_tables(self):
        for record in self.records(rung="05_flash_v2", variant="defer"):
            record["smem_bytes"] += 1
        for data, changes in ((self.results, {"time_ms": 2.0}),
                              (self.others, {"time_ms": 3, "dram_read_bytes": 10**9,
                                             "dram_write_bytes": 10**9})):
            for record in data["records"]:
                if like(record, variant="safe", head_dim=64):
                    for one in (record, *record["kernels"]):
                        one.update(changes)
        *lines, text, _, picture = self.table("two_gpus_steps")
        self.assertEqual(lines[0], "|  | d = 64: F100 → F200 | × | HBM | d = 128: F100 → F200 | × "
                                   "| HBM |")
        self.assertTrue(any(line.startswith("| 02 `safe` | 3.00 ms → 2.00 ms | 1.50 | 33% | ")
                            for line in lines), lines)
        for part in ("; as measured: the NVIDIA F100 40GB on 2001-01-01, commit 111111111111; the "
                     "NVIDIA F200 80GB on 2001-02-03, commit 000000000000. ",
                     "1.50 times as fast there (2.00 → 3.00 TB/s), a cuBLAS product 1.00 times "
                     "(700 → 700 TFLOP/s)",
                     "Nearer to the copy's × than to the product's: 00 `naive`, 01 `tile`, 01 "
                     "`mma`, 02 `safe`, 03 `softmax`, 06 `stored` backward. ",
                     "not the same in both files: 05 `defer`."):
            self.assertIn(part, text)
        self.assertNotIn("| 05 `defer` |", "\n".join(lines))
        self.assertTrue(picture.endswith("(scripts/results/figures/two_gpus.svg)"))
        self.assertIn("two_gpus: left out of it: d = 64: 05 defer, which is not the same",
                      self.said()[1])
        *lines, text = self.table("two_gpus_kernels")
        self.assertEqual([line.split(" |")[0] for line in lines[2:-1]], [
            f"| {step} · `{kernel}`" for step in ("00 `naive`", "01 `tile`", "01 `mma`")
            for kernel in ("first", "second")])
        # Where DRAM was not counted, times alone.
        for record in self.others["records"]:
            record["dram_read_bytes"] = None
        self.assertTrue(any(line.startswith("| 02 `safe` | 3.00 ms → 2.00 ms | 1.50 | – | ")
                            for line in self.table("two_gpus_steps")))
        self.assertIsNone(self.data("two_gpus")["panels"][0]["rows"][0]["expected"])
        self.draw("gpu.json", "--out", "one", "--only", "two_gpus")

    def test_what_shows_another_gpu_goes_stale_with_its_file(self):
        page, out = self.page("page.md", self.EVERY), self.at("one")
        self.draw("gpu.json", "--out", "one", "--only", "two_gpus,access", "--readme", page)
        before = stale(self.files(), out, [page])
        self.assertEqual([line for line in before if not line.endswith("is missing")], [])
        for record in self.others["records"]:
            for one in (record, *record["kernels"]):
                one["time_ms"] *= 1.1 if record["rung"] == "01_tiled_matmul" else 1
        folder = os.path.relpath(self.root)
        after = stale(self.files(), out, [page])
        self.assertEqual([line for line in after if line not in before], [
            f"{folder}/one/two_gpus.svg is stale",
            *(f"the table {name} of {folder}/page.md is stale"
              for name in ("two_gpus_kernels", "two_gpus_steps"))])

    def test_one_gpu_is_not_two(self):
        for changes, why in (
                ({"records": [], "commands": []}, "no step was measured on both"),
                ({"ceilings": None}, "no ceilings of both GPUs were measured"),
                ({"machine": {**self.other["machine"], "gpu": self.fake["machine"]["gpu"]}},
                 f"no second GPU was measured: {PAPER} on another")):
            self.as_it_was()
            self.others.update(changes)
            data, said = self.said()
            self.assertNotIn("two_gpus", data)
            self.assertIn(f"two_gpus is left out: {why}", said)
            for name in course.TWO_GPUS_TABLES:
                self.assertEqual(self.table(name), [
                    "*A second GPU, with the rates of both, is not measured yet: "
                    f"`{PAPER}` measures it.*"])
        # Of several others the newest.
        self.as_it_was()
        for name, date in (("older", "2000-12-31"), ("newer", "2001-01-02")):
            write(self.at(f"{name}.json"), text={**self.other, "machine": {
                **self.other["machine"], "date": date, "gpu": f"NVIDIA {name} 7"}})
        self.assertIn("NVIDIA newer 7 and ", self.data("two_gpus")["title"])


class Fp8(Made):
    def test_errors_with_each_setting(self):
        rows = [list(map(str.strip, line.strip("|").split("|")))
                for line in self.table("fp8_error") if line.startswith("|")]
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
        data = json.loads(read(self.at("sim.json")))
        record, = (r for r in data["records"] if like(r, variant="fp8", input="outliers",
                                                      settings=course.ALL, head_dim=128))
        self.assertEqual(f"{record['errors']['o_full']['rms']:.1e}", f"{best[2]:.1e}")
        drawn = self.data("fp8_error")["panels"][2]["rows"]
        self.assertEqual([f"{row['rms']:.1e}" for row in drawn],
                         [f"{errors[2]:.1e}" for errors in table.values()])
        # Without one of them there is neither.
        data["records"].remove(record)
        data["commands"].pop()
        write(self.at("sim.json"), text=data)
        self.assertEqual(self.table("fp8_error"), [
            "*Errors of FP8 are not counted yet: `scripts/bench.py --sim` measures it.*"])
        self.assertIn("fp8_error is left out: no errors of FP8", self.said()[1])

    def add_fp8(self, causal, **changes):
        """A record of fp8, after sm90's at N = 2k and d = 128."""
        record, = self.records(variant="sm90", rung="05_flash_v2", seqlen=2048, head_dim=128,
                               batch=8, causal=causal)
        self.results["commands"].append("05_flash_v2 --variant fp8")
        self.results["records"].append({
            **copy.deepcopy(record), "variant": "fp8", "time_ms": 2.0, "tflops": 300.0,
            "kernels": [{"name": "quantise", "time_ms": 0.4},
                        {"name": "attention", "time_ms": 1.5}], **changes})

    ALONE = 4 * 8 * 16 * 2048 * 2048 * 128 / 1.5e-3 / 1e12

    def test_times_with_and_without_what_is_done_before(self):
        self.assertIn("not measured yet", self.table("fp8_times")[0])
        self.add_fp8(causal=True)
        alone = self.ALONE / 2
        table = self.table("fp8_times")
        self.assertEqual(table[0], "|  | N = 2k |")
        self.assertIn(f"| d = 128, causal | {rate_text(alone)} · 300 |", table)
        self.assertIn("| d = 64 | – |", table)
        self.assertNotIn("256", "".join(table))
        # Of cuBLAS's rate, if it was measured: FlashAttention-3's, 660 of 1,285, beside it.
        self.assertNotIn("cuBLAS", "".join(table))
        self.results["ceilings"]["matmul_e4m3_tflops"] = 4 * alone
        table = self.table("fp8_times")
        self.assertIn("| d = 128, causal | 0.25 · 0.51 |", table)
        self.assertIn(f"{4 * alone:,.0f} TFLOP/s there", table[-1])
        self.assertTrue(table[-1].endswith("when cuBLAS had 1,285."))

    def test_wide_heads_have_a_line_once_they_are_measured(self):
        for d, heads, causal in ((128, 16, False), (256, 8, False), (128, 16, True)):
            self.add_fp8(causal, head_dim=d, heads=heads)
        self.results["ceilings"]["matmul_e4m3_tflops"] = 1000
        table = self.table("fp8_times")
        self.assertEqual([line for line in table if line.startswith("| d = 256")], [
            f"| d = 256 | {rate_text(self.ALONE)} · 300 |",
            f"| d = 256 | {self.ALONE / 1000:.2f} · – |"])
        self.assertTrue(table[-1].endswith("1,285; –: not known."))
        # Nothing else changes by them.
        with_them = figure_data(self.files())
        self.drop(lambda _, r: r["head_dim"] != 256)
        self.assertEqual(figure_data(self.files()), with_them)


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
        played = replay.replay([[event("wgmma", "K", amount=4096 * 100),
                                 event("wgmma_wait", number=1), event("exit", exps=cycles // 8)]
                                for cycles in (160, 80)], FORWARD)
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
            self.assertEqual([copied[:4] for copied in played["copies"]],
                             [["K", 0, 0, 132 + 500], ["V", 0, 0, 2 * 132 + 500]])
            self.assertEqual(played["products"], [[0, "O", 0, 764, 765]])
            self.assertEqual(played["end"], 1320 + 1)

    def test_turns(self):
        first = [event("named_barrier_sync", "4"), event("wgmma", "V", amount=4096),
                 event("named_barrier_arrive", "5", flops=30), event("exit")]
        second = [event("named_barrier_arrive", "4"), event("named_barrier_sync", "5"),
                  event("wgmma", "V", amount=4096), event("exit"), event("exit")]
        played = replay.replay([first, second], FORWARD)
        self.assertEqual(played["products"], [[0, "O", 0, 0, 1], [1, "O", 0, 30, 31]])
        self.assertEqual(played["consumers"][1], [["turn", None, 0, 30]])

    def test_what_never_comes(self):
        waits = [event("mbarrier_wait", "K_full[0]"), event("mbarrier_arrive", "K_full[0]")]
        with self.assertRaisesRegex(Stop, r"warps \[1\] wait for ever"):
            replay.replay([[event("wgmma", "K", amount=1)], waits], FORWARD)

    # What a consumer has to have before what, and the products that read a tile.
    ORDER = {"attention": (("S", "softmax"), ("softmax", "O")),
             "key_gradients": (("S", "softmax"), ("softmax", "scale"), ("dP", "scale"),
                               ("softmax", "dV"), ("scale", "dK"), ("scale", "dQ"))}
    READ_BY = {"attention": {"K": ("S",), "V": ("O",)},
               "key_gradients": {"Q": ("S", "dK"), "dO": ("dP", "dV")}}

    def test_the_committed_traces(self):
        pipelines = json.loads(read(RESULTS, "traces.json"))["pipelines"]
        self.assertEqual([(trace["figure"], trace["head_dim"]) for trace in pipelines],
                         [("pipeline", 128), ("pipeline", 64),
                          ("pipeline_bwd", 128), ("pipeline_bwd", 64)])
        for trace in pipelines:
            with self.subTest(figure=trace["figure"], head_dim=trace["head_dim"]):
                self.check(trace)

    def check(self, trace):
        kernel, forward = trace["kernel"], trace["kernel"] == "attention"
        played = replay.replay(trace["warps"], course.PRODUCTS[kernel])
        consumers = range(len(played["consumers"]))
        rows, keys, d = trace["block_q"], trace["block_kv"], trace["head_dim"]
        if forward:  # two tiles of Q
            self.assertEqual(len(consumers), rows // 64)
            steps = 2 * -(-trace["seqlen_kv"] // keys)
            flops = 2 * 2 * rows * trace["seqlen_kv"] * d  # of all products of a kind
        else:
            steps = trace["seqlen"] // rows
            self.assertEqual((len(consumers), keys, trace["seqlen_kv"], steps), (2, 128, 128, 3))
            flops = steps * 2 * rows * keys * d

        # Each consumer has each product once a step; the tensor cores do all FLOPs, one product at
        # a time.
        names = [name for of in course.PRODUCTS[kernel].values() for name in of]
        at = {(who, what, step): (begin, until)
              for who, what, step, begin, until in played["products"]}
        every = {(who, what, step) for who in consumers for what in names for step in range(steps)}
        self.assertEqual(set(at), every)
        self.assertEqual(len(played["products"]), len(every))
        for what in names:
            self.assertAlmostEqual(replay.MATMUL_FLOPS * sum(
                until - begin for (_, name, _), (begin, until) in at.items() if name == what),
                flops, msg=what)
        in_turn = sorted(at.values())
        for before, after in zip(in_turn, in_turn[1:]):
            self.assertLessEqual(before[1], after[0])

        # Nothing begins before what it needs is there.
        at.update({(who, what, step): (begin, until)
                   for who in consumers for what, step, begin, until in played["consumers"][who]
                   if what in ("softmax", "scale")})
        copies = {}
        for array, _, issued, landed, freed in played["copies"]:
            copies.setdefault(array, []).append((issued, landed, freed))
        if not forward:
            self.assertEqual({array: len(of) for array, of in copies.items()}, {
                "K": 1, "V": 1, "Q": steps, "dO": steps, "LSE_log2e": steps, "minus_delta": steps})
        for who in consumers:
            for step in range(steps):
                for first, then in self.ORDER[kernel]:
                    for other in consumers if then == "dQ" else [who]:  # needs the dS of both
                        self.assertLessEqual(at[other, first, step][1], at[who, then, step][0])
                for array, products in self.READ_BY[kernel].items():
                    _, landed, freed = copies[array][step]
                    for begin, until in (at[who, product, step] for product in products):
                        self.assertLessEqual(landed, begin)
                        self.assertLessEqual(until, freed)
                    if step + 2 < steps:  # two stages
                        self.assertGreaterEqual(copies[array][step + 2][0], freed)

        # The point of it: backward, P is worked out under dP.
        if not forward:
            self.assertTrue(any(at[who, "softmax", step][0] < at[who, "dP", step][1]
                                for who in consumers for step in range(steps)))
            return

        # Forward, from the second step on softmaxes run under the consumer's own product PV of the
        # step before, and as far as they outlast it, under another's.
        def under(mine, others):
            return any(mine[0] < until and begin < mine[1] for begin, until in others)

        others = [at[place] for place in every if place[0] != 0]
        outlast = 0
        for step in range(1, steps // 2):
            for who in consumers:
                self.assertTrue(under(at[who, "softmax", step], [at[who, "O", step - 1]]))
            begin, until = at[0, "O", step - 1][1], at[0, "softmax", step][1]
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
                      "500 without the marks", panel["said"])
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

    def test_figures_and_tables_are_fresh(self):
        found = stale(Files(newest_measured()), os.path.join(RESULTS, "figures"), course_pages())
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
            write(readme, text=read(readme).replace("| `one_pass_tile` | ",
                                                    "| `one_pass_tile` | 9"))
            self.assertIn("the table ladder of ", said())
            os.unlink(os.path.join(figures, "access.svg"))
            self.assertIn("access.svg is missing", said())
            sim = os.path.join(results, "sim.json")
            data = json.loads(read(sim))
            for record in data["records"]:
                if like(record, rung="04_flash_v1", seqlen=1024):
                    record["distinct_read_bytes"] += 4096
            write(sim, text=data)
            self.assertIn("traffic.svg is stale", said())
            self.assertNotIn("workspace.svg", said())


COUNTS = re.compile(r"(?:model|requested|distinct|sram)_\w+_bytes|\w+_flops|exp_count|"
                    r"workspace_bytes|smem_bytes|block_\w+|warps|stages")


class OfTheCode(unittest.TestCase):
    """What is committed is what the programs count."""

    def setUp(self):
        if not os.path.exists(os.path.join(BIN, "00_naive")):
            self.skipTest(f"no programs in {BIN}")
        self.sim = json.loads(read(RESULTS, "sim.json"))
        self.traces = json.loads(read(RESULTS, "traces.json"))

    def test_counts(self):
        by_command = {}
        for command, record in zip(self.sim["commands"], self.sim["records"]):
            by_command.setdefault(command, []).append(record)
        checked = 0
        for command, records in by_command.items():
            words = command.split()
            if records[0]["seqlen"] != 128 and not (
                    "--block-q" in words and words[0].startswith("04")):
                continue
            program = os.path.join(BIN, words[0])
            if not os.path.exists(program):
                self.fail(f"{words[0]} is gone: remove scripts/results/sim.json and run "
                          "scripts/bench.py --sim")
            out = subprocess.run([program, *words[1:], "--json"], stdin=subprocess.DEVNULL,
                                 capture_output=True, encoding="utf-8", timeout=SECONDS).stdout
            printed = [json.loads(line) for line in out.splitlines()]
            self.assertEqual(len(printed), len(records))
            for now, before in zip(printed, records):
                for name, value in before.items():
                    if COUNTS.fullmatch(name):
                        self.assertEqual(now[name], value, f"{command}: {name}; scripts/bench.py "
                                         "--sim --again counts anew")
            checked += 1
        self.assertGreater(checked, 20)

    def test_sim_json_has_every_step(self):
        steps = [(s.rung, s.variant) for s in ladder_of(programs_in(BIN).values(), "sim").steps]
        there = {(r["rung"], r["variant"]) for r in self.sim["records"]}
        self.assertEqual(set(steps) - there, set(), "scripts/bench.py --sim adds them")
        self.assertEqual([(s["rung"], s["variant"]) for s in self.sim["steps"]], steps)

    def test_traces(self):
        anew = {"traces": [traces.traced(os.path.join(BIN, rung), rung, variant)
                           for rung, variant in course.TRACED],
                "pipelines": [traces.pipelined(os.path.join(BIN, one[1]), *one)
                              for one in course.PIPELINED]}
        for kind, of in anew.items():
            self.assertEqual(of, self.traces[kind], "scripts/bench.py --sim traces anew")


if __name__ == "__main__":
    BIN = argument(BIN)
    unittest.main()
