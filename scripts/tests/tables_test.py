"""Tests of the tables that scripts/figures writes into markdown files: over measurements that are
made up, beside the sim's real ones.

Run alone: python3 scripts/tests/tables_test.py
"""

import copy
import json
import os
import re
import unittest

from fake_results import MadeUp, like
from ladder import course
from ladder.console import Stop
from ladder.figures.gallery import figure_data
from ladder.figures.make import stale
from ladder.figures.measured import Files
from ladder.figures.pages import need_places, renewed
from ladder.text import rate_text

PAPER = "scripts/figures measure --grid paper"


class Pages(MadeUp):
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
        self.assertIn("–: that run did not have `warp_rows` and `swizzle` and", text)
        self.assertIn("![", text)
        self.assertEqual(renewed(self.write("README.md", text), self.files()), (text, []))

    def test_tables_without_a_gpu_say_so(self):
        text = self.readme(Files(self.at("sim.json")))
        for line in ("No GPU has been measured yet, so there are no times",
                     "Ours beside PyTorch's is not measured yet", "| not measured yet | not ",
                     "| [00_naive](00_naive/README.md) | `naive` | – | – | – | – | 2.18 GB |"):
            self.assertIn(line, text)

    def test_tables_of_any_page(self):
        files = self.files()
        lesson = ("A lesson.\n<!-- claims:begin -->\nold\n<!-- claims:end -->\nMore of it.\n"
                  "<!-- ladder:begin -->\nold\n<!-- ladder:end -->\nThe end.\n")
        path = self.write("lesson.md", lesson)
        self.assertEqual(stale(files, self.root, [path])[-2:], [
            f"the table {name} of {os.path.relpath(path)} is stale"
            for name in ("claims", "ladder")])
        result = self.plot("gpu.json", "--out", "one", "--only", "error", "--readme", "lesson.md")
        self.assertIn("Wrote the tables of lesson.md: claims, ladder.", result.stderr)
        text = self.read("lesson.md")
        self.assertEqual(re.sub(r"(?<=begin -->\n).*?(?=<!-- \w+:end)", "old\n", text,
                                flags=re.DOTALL), lesson)
        self.assertEqual(renewed(path, files), (text, []))

    def test_markers_that_are_wrong(self):
        for text, why in (
                ("<!-- nosuch:begin -->\n<!-- nosuch:end -->\n", "there are only ladder, peers"),
                ("<!-- peers:begin -->\n", "lacks the marker <!-- peers:end --> after"),
                ("<!-- peers:end -->\n<!-- peers:begin -->\n", "lacks the marker <!-- peers:end")):
            with self.assertRaisesRegex(Stop, why):
                renewed(self.write("page.md", text), self.files())
        need_places([self.write("page.md", "No table.\n"), self.write("whole.md", self.EVERY)],
                    self.files())
        half = self.write("half.md", self.EVERY.replace("<!-- peers:begin -->", ""))
        with self.assertRaisesRegex(Stop, "no markdown file has the markers <!-- peers:begin -->"):
            need_places([half], self.files())
        # What has no data needs no place.
        self.results["peers"] = []
        need_places([half], self.files())

    def test_bad_files(self):
        for text, why in (("no JSON", "is no JSON"), ('{"machine": 1}', "was not written by "
                                                                        "scripts/figures measure")):
            self.write("gpu.json", text)
            self.assertIn(why, self.plot("gpu.json", "--check", status=2).stderr)
        self.assertIn("there is no nosuch.json",
                      self.plot("nosuch.json", "--check", status=2).stderr)
        self.assertIn("there are speedup", self.plot("--only", "x", status=2).stderr)


class Tables(MadeUp):
    def test_the_steps_of_a_lesson(self):
        mma, sm90 = (self.files().gpu.rates("fwd", ("05_flash_v2", step), 64, False)[2048]
                     for step in ("mma", "sm90"))
        self.row("hopper_steps", f"| `mma` | {rate_text(mma)} | ")
        self.row("hopper_steps", f"| `sm90` | {rate_text(sm90)} ({sm90 / mma:.2f}) | ")
        lines = self.table("hopper_steps")
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
            self.assertIn(f"alternating in one run{readme} on the NVIDIA",
                          "\n".join(self.table("peers")))

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
        self.row("peers", "| backward | cuDNN | 0.33 | 0.33 (N = ")
        self.drop_step("06_backward", "sm90")
        for name in ("training_beside_others", "backward_beside_others"):
            self.assertEqual(self.table(name), [
                f"*06 sm90 beside others is not measured yet: `{PAPER}` measures it.*"])

    def test_visits_are_formulas_of_what_is_counted(self):
        for expected in (
                "| 00 `naive` | 2 r, 1 w | d r, 1 w | N r | N r | N r | 1 w |",
                "| 01 `tile` | 2 r, 1 w | d/16 r, 1 w | N/16 r | N/16 r | N/16 r | 1 w |",
                "| 03 `one_pass_tile` | – | – | 1 r | N/32 r | N/32 r | 1 w |",
                "| 04 `flash_v1` | – | – | N/256 r | 1 r | 1 r | N/256 + 1 r, N/256 + 2 w |",
                "| 06 `mma` | – | – | N/128 r | 1 r | 1 r | N/128 + 1 r | N/128 + 1 r, "
                "N/128 + 2 w | 1 w |"):
            self.assertEqual(self.row("visits", expected[:expected.index(" |", 2) + 3]), expected)

        self.assertNotIn("sm90", "".join(self.table("visits")))  # not for any GPU

        def twice(data):
            for record in data["records"]:
                if like(record, rung="00_naive", seqlen=2048):
                    record["kernels"][0]["arrays"]["Q"]["read"] *= 2

        self.edit("sim.json", twice)
        self.assertIn("| 4096 at N = 2,048 r |", self.row("visits", "| 00 `naive` | "))

    def test_claims_are_judged(self):
        def verdict(claim):
            return self.row("claims", claim).rstrip(" |").rpartition("| ")[2]

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
            self.assertIn(verdict, next(line for line in self.table("claims")
                                        if "fp16 RMSE" in line))

    def test_two_gpus(self):
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
        self.row("two_gpus_steps", "| 02 `safe` | 3.00 ms → 2.00 ms | 1.50 | 33% | ")
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
        self.row("two_gpus_steps", "| 02 `safe` | 3.00 ms → 2.00 ms | 1.50 | – | ")
        self.assertIsNone(self.said()[0]["two_gpus"]["panels"][0]["rows"][0]["expected"])


class Fp8(MadeUp):
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
        data = json.loads(self.read("sim.json"))
        record, = (r for r in data["records"] if like(r, variant="fp8", input="outliers",
                                                      settings=course.ALL, head_dim=128))
        self.assertEqual(f"{record['errors']['o_full']['rms']:.1e}", f"{best[2]:.1e}")
        drawn = self.said()[0]["fp8_error"]["panels"][2]["rows"]
        self.assertEqual([f"{row['rms']:.1e}" for row in drawn],
                         [f"{errors[2]:.1e}" for errors in table.values()])
        # Without one of them there is neither.
        data["records"].remove(record)
        data["commands"].pop()
        self.write("sim.json", data)
        self.assertEqual(self.table("fp8_error"), [
            "*Errors of FP8 are not counted yet: `scripts/figures measure --sim` measures it.*"])
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


if __name__ == "__main__":
    unittest.main()
