"""Tests of the figures: over measurements that are made up, beside the sim's real
ones.

Run alone: python3 scripts/tests/plots_test.py
"""

import inspect
import json
import os
import unittest

from base import read, write
from fake_results import MadeUp, like
from ladder import course
from ladder.figures import gallery, shared_roof
from ladder.figures.gallery import FIGURES, digest, figure_data
from ladder.figures.make import stale
from ladder.figures.measured import Files
from ladder.figures.memory import names_of
from ladder.figures.names import PEER_NAMES
from ladder.figures.pipeline import LANES, box_colour

PAPER = "scripts/figures measure --grid paper"


class Figures(MadeUp):
    def test_all_are_drawn_and_go_stale(self):
        files = self.files()
        page = self.write("page.md", self.EVERY)
        result = self.plot("gpu.json", "--out", "one", "--readme", "page.md")
        self.assertEqual(sorted(os.listdir(self.at("one"))), sorted(f"{n}.svg" for n in FIGURES))
        self.assertNotIn("left out", result.stderr)
        self.assertEqual(stale(files, self.at("one"), [page]), [])
        # What a new file lacks is removed, and what is drawn again is the same to the byte.
        self.results["ceilings"] = None
        self.assertIn("one/roofline.svg shows what the files no longer have",
                      "\n".join(stale(self.files(), self.at("one"), [])))
        before = self.read("one/error.svg")
        os.unlink(self.at("one/error.svg"))
        self.plot("gpu.json", "--out", "one", "--only", "error")
        self.assertEqual(self.read("one/error.svg"), before)
        self.assertFalse(os.path.exists(self.at("one/roofline.svg")))

    def test_any_number_that_changes_is_noticed(self):
        before = figure_data(self.files())

        def a_record(of=None, **wanted):
            return next(r for r in (of or self.results)["records"] if like(r, **wanted))

        def at_command(words):
            return self.results["records"][next(
                i for i, command in enumerate(self.results["commands"]) if words in command)]

        def skipped():
            self.results["skipped"] = [s for s in self.results["skipped"] if s["status"] != 3]

        def product(data):
            next(e for e in data["pipelines"][0]["warps"][1] if e[0] == "wgmma")[4] *= 2

        def clock(data):
            data["steps"][0]["cycles"]["step"] = 4321

        paper = {"rung": "05_flash_v2", "batch": 4, "seqlen": 4096, "head_dim": 128,
                 "causal": False}
        backward = {"rung": "06_backward", "variant": "mma", "direction": "bwd", "seqlen": 2048,
                    "head_dim": 64, "causal": False}
        for change, names in (
                (lambda: None, ""),
                (lambda: a_record(variant="mma", **paper).update(tflops=1), "tflops_fwd roofline"),
                (lambda: a_record(**backward).update(time_ms=1), "speedup tflops_both two_gpus"),
                (lambda: a_record(variant="sm90", **paper).update(dram_read_bytes=1),
                 "traffic roofline"),
                (skipped, "workspace"),
                (lambda: at_command("--block-kv 128").update(time_ms=1), "block_size"),
                (lambda: at_command("outliers")["errors"]["o"].update(max=1), "error"),
                (lambda: at_command("outliers")["errors"]["o"].update(nonfinite=1), "error"),
                (lambda: self.edit("traces.json", product), "pipeline"),
                (lambda: self.edit("clock.json", clock), "pipeline_measured"),
                (lambda: at_command("split_kv").update(time_ms=1), "decode"),
                (lambda: a_record(variant="split_kv", batch=64).update(tflops=1), "roofline"),
                (lambda: a_record(self.others, seqlen=2048, batch=8, causal=False).update(
                    time_ms=1), "two_gpus")):
            self.as_it_was()
            change()
            after = figure_data(self.files())
            self.assertEqual({name for name in FIGURES
                              if digest(name, before[name]) != digest(name, after[name])},
                             set(names.split()))

    def test_numbers(self):
        data, said = self.said()
        self.assertEqual(said, "")
        self.assertNotIn("lSE", json.dumps(data["error"]))  # has a tolerance of its own
        bars = {bar["label"]: bar for bar in data["speedup"]["panels"][0]["bars"]}
        self.assertEqual(bars["00 naive"]["value"], 1)
        self.assertAlmostEqual(bars["05 mma"]["value"], 280 / 1.3, places=2)
        self.assertEqual([bar for bar in bars if bars[bar]["default"]],
                         ["00 naive", "01 mma", "02 safe softmax", "03 one_pass_tile",
                          "04 flash v1", "05 sm90"])
        self.assertNotIn("06", [label[:2] for label in bars])  # which is about its backward pass
        asked = data["traffic"]["kinds"][0]["rows"][0]["lines"]
        self.assertEqual([line["label"] for line in asked],
                         ["00", "01", "02", "03", "04", "05", "06 bwd"])
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

    def test_which_records_count(self):
        """Of one type; of the steps that run on this GPU; a step that is never the default stands
        in the ladder alone."""
        def shown(data):
            return ([bar["label"] for bar in data["speedup"]["panels"][0]["bars"]
                     if bar["default"]][-1],
                    [line["label"] for line in data["tflops_fwd"]["panels"][0]["lines"]
                     if line["rung"] == "05_flash_v2"])

        data, said = self.said()
        self.assertNotIn("bf16", said)
        self.assertEqual(shown(data), ("05 sm90", ["05 mma", "05 sm90"]))
        bars = {bar["label"]: bar["default"] for bar in data["speedup"]["panels"][2]["bars"]}
        self.assertEqual([name for name in bars if bars[name]], ["06 sm90"])
        self.assertIn("06 deterministic", bars)
        for name in ("tflops_bwd", "tflops_both", "traffic", "roofline"):
            self.assertNotIn("deterministic", json.dumps(data[name]), name)
        count = len(self.results["records"])
        self.add_fp16(faster=2)
        both, said = self.said()
        self.assertEqual(both, data)
        self.assertIn(f"{count} records that are not bf16", said)
        self.as_it_was()
        self.drop(lambda c, r: r["variant"] != "sm90")
        self.assertEqual(shown(self.said()[0]), ("05 mma", ["05 mma"]))
        # Even where nothing else of its rung ran; the sim's default stands for both.
        self.drop(lambda c, r: r["rung"] != "06_backward" or r["variant"] == "deterministic")
        data = self.said()[0]
        self.assertFalse(data["speedup"]["panels"][2]["bars"][0]["default"])
        self.assertIn("06 bwd", json.dumps(data["traffic"]["kinds"][1]))
        self.assertNotIn("tflops_bwd", data)

    def test_a_rung_that_is_added_shows_up(self):
        self.results["steps"].append({
            **next(s for s in self.results["steps"]
                   if like(s, rung="05_flash_v2", variant="mma")),
            "rung": "07_toy", "variant": "toy", "colour": "#abcdef", "default": True})
        for of in (self.results, self.others):
            for command, record in list(zip(of["commands"], of["records"])):
                if like(record, rung="05_flash_v2", variant="mma"):
                    of["commands"].append(command.replace("05_flash_v2", "07_toy"))
                    of["records"].append({**record, "rung": "07_toy", "variant": "toy"})
        data, said = self.said()
        self.assertEqual(said, "")
        bar = data["speedup"]["panels"][0]["bars"][-1]
        self.assertEqual((bar["label"], bar["colour"], bar["place"], bar["default"]),
                         ("07 toy", "#abcdef", 7, True))
        self.assertIn("03 from two_pass on, 05 from defer on, 07", json.dumps(data["workspace"]))
        for name in ("tflops_fwd", "traffic", "roofline", "error", "two_gpus"):
            self.assertIn('"colour": "#abcdef", "place": 7', json.dumps(data[name]), name)
        text = self.readme()
        self.assertIn("| [07_toy](07_toy/README.md) | `toy` | ", text)
        self.assertIn("ours is 07's `toy` forward and 06's `sm90` backward.", text)

    def test_the_ladders_first_step_is_what_others_are_compared_with(self):
        self.results["steps"] = [s for s in self.results["steps"] if s["rung"] != "00_naive"]
        self.drop_step("00_naive", "naive")
        os.unlink(self.at("sim.json"))
        panel = self.said()[0]["speedup"]["panels"][0]
        self.assertEqual(panel["title"], "forward, d = 64, against 01")
        self.assertEqual([bar["label"] for bar in panel["bars"] if bar["value"] == 1], ["01 tile"])
        self.assertIn("| × 01 |", self.readme())

    def test_steps_that_need_the_same_share_a_name(self):
        every = [("05", step) for step in "abcdef"] + [("06", "a"), ("06", "b")]
        for steps, names in (("abcdef", "05"), ("cdef", "05 from c on"), ("bcd", "05 b to d"),
                             ("bc", "05 b, c"), ("bd", "05 b, d"), ("bce", "05 b, c, e")):
            self.assertEqual(names_of([("05", step) for step in steps], every), [names])
        self.assertEqual(names_of(every[2:-1], every), ["05 from c on", "06 a"])

    def test_the_digest_is_of_the_code_that_draws(self):
        for name, (_, draw) in FIGURES.items():
            code = gallery.drawing_code(name)
            for path in (draw.__code__.co_filename, gallery.style.__file__,
                         gallery.names.__file__):
                self.assertIn(read(path), code, name)
        self.assertIn(inspect.getsource(inspect.getmodule(box_colour)),
                      gallery.drawing_code("pipeline_measured"))  # in another figure's colours

    def test_what_is_missing_is_said_and_left_out(self):
        def all_said(*lines):
            data, said = self.said()
            for line in lines:
                self.assertIn(line, said)
            return data

        self.results["peers"] = [p for p in self.results["peers"] if p["variant"] != "cudnn"]
        data = all_said("tflops_fwd: left out of it: d = 64: no PyTorch, cuDNN: ")
        self.assertNotIn("cudnn", {line["rung"] for line in
                                   data["tflops_fwd"]["panels"][0]["lines"]})
        self.results["ceilings"] = None
        self.drop(lambda c, r: not r["rung"].startswith("06"))
        for record in self.results["records"]:
            record["dram_read_bytes"] = None
        data = all_said(
            f"roofline is left out: no ceilings were measured: {PAPER}, where PyTorch is installed",
            "two_gpus is left out: no ceilings of both GPUs were measured: ",
            "tflops_bwd is left out: ", f"no times of the backward pass: {PAPER}",
            "speedup: left out of it: no backward pass at N = 2048, d = 64",
            "traffic: left out of it: no DRAM counters")
        self.assertEqual(set(FIGURES) - set(data), {"tflops_bwd", "tflops_both", "roofline",
                                                    "two_gpus", "shared_roof"})
        self.assertEqual(len(data["traffic"]["kinds"]), 2)
        self.drop(lambda c, r: not r["rung"].startswith("00") and "--block" not in c
                  and "--check full" not in c)
        all_said("speedup is left out: no time of 00 at N = 2048, d = 64",
                 "block_size: left out of it: no time by tile size",
                 "error: left out of it: no errors on a GPU, the sim's instead")
        for name in ("sim.json", "traces.json", "clock.json"):
            os.unlink(self.at(name))
        all_said("traffic: left out of it: no distinct bytes: scripts/figures measure --sim",
                 *(f"{name} is left out: no traces: scripts/figures measure --sim"
                   for name in ("access", "pipeline", "pipeline_bwd")),
                 "pipeline_measured is left out: no clock.json: scripts/figures clock",
                 "error is left out: ", "block_size is left out: ")

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

    def test_decoding(self):
        data, said = self.said()
        self.assertNotIn("decod", said)
        lines = data["decode"]["lines"]
        self.assertEqual(sum(len(line["ours"]["x"]) for line in lines.values()), 18)
        shared = lines["batch 64, H/Hk = 4"]
        self.assertEqual(shared["ours"]["x"], [2**30, 2**31])
        # 2 GB in 10 µs and the time of the copy of that run, not of the file's ceilings.
        share = (2**31 / 4e12) / (2**31 / 4e12 + 1e-5)
        self.assertAlmostEqual(shared["ours"]["y"][1], share, places=5)
        self.assertAlmostEqual(shared["cudnn"]["y"][1], share / 1.1, places=5)
        found = {p["label"]: p for p in data["roofline"]["panels"][1]["points"]
                 if p["label"].startswith("decode")}
        self.assertEqual([p["requested"] for p in found.values()], [1, 4, 64])
        largest = found["decode, H/Hk = 4"]
        self.assertAlmostEqual(largest["y"], 4 * 4e12 * share * 1e-12, places=3)
        table = "\n".join(self.table("decode"))
        self.assertIn("| 64, 32 / 8, 8k | 547 (0.98) | 1.10 | 1.50 | 278 (0.96) | 1.10 | 1.50 |",
                      table)
        self.assertIn("cuDNN geometric mean 1.10, worst 1.10", table)
        ratio = (1e-5 + 2**24 / 4e12) / (1e-5 + 2**26 / 4e12)
        self.assertIn(f"{ratio:.2f} (batch 1, 4k, d = 128, 1/4 of the bytes)", table)
        # Before it is measured nothing shows it.
        self.drop(lambda _, r: r["variant"] != "split_kv")
        data, said = self.said()
        self.assertNotIn("decode", data)
        self.assertIn("decode is left out: decoding is not measured", said)
        self.assertNotIn("decode", json.dumps(data["roofline"]))
        self.assertEqual(self.table("decode"), [
            "*Decoding is not measured yet: `scripts/figures measure --grid decode` measures it.*"])

    def test_two_gpus(self):
        about = self.said()[0]["two_gpus"]
        self.assertEqual([len(panel["rows"]) for panel in about["panels"]], [22, 22])
        # What HBM takes of the time on the slower: by the bytes of one record.
        first = next(r for r in self.others["records"] if like(
            r, variant="safe", seqlen=2048, head_dim=64, causal=False))
        share = (first["dram_read_bytes"] + first["dram_write_bytes"]) / 2e12 / (
            first["time_ms"] / 1e3)
        row, = (row for row in about["panels"][0]["rows"] if row["label"] == "02 safe softmax")
        self.assertAlmostEqual(row["gain"], 1.5)
        self.assertAlmostEqual(row["share"], share, places=5)
        self.assertAlmostEqual(row["expected"], 1 / (1 - share + share / 1.5), places=5)
        # The same whichever of the files is drawn: the GPU with less bandwidth comes first.
        self.assertEqual(figure_data(Files(self.at("other.json")))["two_gpus"], about)

    def test_one_gpu_is_not_two(self):
        for changes, why in (
                ({"records": [], "commands": []}, "no step was measured on both"),
                ({"ceilings": None}, "no ceilings of both GPUs were measured"),
                ({"machine": {**self.others["machine"], "gpu": self.results["machine"]["gpu"]}},
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
            write(self.at(f"{name}.json"), text={**self.others, "machine": {
                **self.others["machine"], "date": date, "gpu": f"NVIDIA {name} 7"}})
        self.assertIn("NVIDIA newer 7 and ", self.said()[0]["two_gpus"]["title"])

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
            panels = FIGURES["shared_roof"][0](self.files(), missing.append)["panels"]
            return {(panel["title"], point["label"]): point["y"]
                    for panel in panels for point in panel["points"]}

        missing = []
        for step in ("mma", "sm90"):
            measured, = self.records(rung="06_backward", variant=step, direction="bwd", batch=1,
                                     heads=32, seqlen=16384, head_dim=64, causal=False)
            self.assertAlmostEqual(points()["d = 64", f"06 {step}"], measured["tflops"] / 700,
                                   places=5)
        # Without a measurement there is a line, and no point.
        self.drop_step("06_backward", "sm90")
        self.assertEqual([points()[f"d = {d}", "06 sm90"] for d in (64, 128)], [None, None])
        self.assertIn(f"d = 64: no time of 06 sm90: {PAPER}", missing)
        # And of old counts, without what products read, none.
        self.write("sim.json", self.read("sim.json").replace("sram_operand_bytes", "other_bytes"))
        self.assertEqual(self.table("shared_roof"), [
            "*Shared memory is not counted yet: `scripts/figures measure --sim` measures it.*"])


if __name__ == "__main__":
    unittest.main()
