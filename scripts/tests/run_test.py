"""Tests of scripts/run without its building: over programs that do what they are told to.

Run alone: python3 scripts/tests/run_test.py
"""

import json
import os
import re
import signal
import sys
import time
import unittest

from base import SECONDS, program
from fake_ladder import STEPS, FakeLadder
from ladder.text import bytes_text, rate_text, time_text

COMMAND = [sys.executable, "-m", "ladder.run"]
PAPER = "the FlashAttention-2 paper's workload at N = 2k"


def asks(total):
    """What a record says of a step that requests so many bytes."""
    return {"changes": {"requested_read_bytes": total, "model_read_bytes": total,
                        "requested_write_bytes": 0, "model_write_bytes": 0}}


class RunTest(FakeLadder):
    def setUp(self):
        super().setUp()
        self.copy_scripts()
        self.results = self.at("build/results.json")
        self.environment["PYTHONPATH"] = self.at("scripts")

    def table(self, *options, status=0, **environment):
        return self.run_it(*COMMAND, *options, status=status, **environment)

    def rows(self, text, *start):
        """The cells of the rows that begin with these."""
        found = [line.split() for line in text.splitlines() if re.match(r"\d\d[ _]", line)]
        return [cells for cells in found if cells[:len(start)] == list(start)]

    def row(self, text, *start):
        found, = self.rows(text, *start)
        return found

    # ---- what runs, and what is shown of it ----

    def test_one_rung_on_the_sim(self):
        self.rung()
        result = self.table("--all")
        self.assertEqual(self.row(result.stdout, "00_naive"),
                         ["00_naive", "naive", "sim", "–", "–", "34.0", "MB", "1.20", "MB",
                          "1.00", "524", "kB", "4.9e-04"])
        self.assertIn("batch 1, heads 2, seqlen 256, head-dim 64, fp16", result.stdout)
        self.assertIn("no driver", result.stderr)
        said = self.run_it(self.at(self.BIN, "00_naive"), "--variant", "naive", "--device", "sim")
        records = [json.loads(said.stdout)]
        self.assertEqual(json.loads(self.read("build/results.json")),
                         {"records": records, "failures": []})
        result = self.table("--json")
        self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], records)
        self.assertIn("34.0 MB", result.stderr)
        self.called()
        self.assertIn("captured from a trained model", self.table().stdout)
        self.assertIn("00_naive --load scripts/results/captured --variant naive --device sim "
                      "--json", self.called())

    def test_the_first_table_tells_the_story(self):
        self.ladder()
        self.tell({f"{rung}/{step}": asks({"naive": 60_000_000, "tile": 6_000_000}.get(
            step, 3_000_000)) for rung, steps in STEPS.items() for step in steps})
        result = self.table()
        rows = [line for line in result.stdout.splitlines() if re.match(r"\d\d \w", line)]
        self.assertEqual([" ".join(row.split("an idea")[0].split()) for row in rows],
                         [f"{rung[:2]} {step}" for rung, steps in STEPS.items()
                          for step in steps if step != "sm90" and rung != "06_backward"]
                         + ["06 stored bwd", "06 mma bwd"])
        # Ten times less is a bar that is as much shorter at the top of the scale as below.
        naive, tile, mma = (row.count("█") for row in rows[:3])
        self.assertAlmostEqual((naive - tile) / (tile - mma), 1 / 0.301, delta=0.5)
        for row, words in zip(rows, ("an idea", " 10.0× less ", " 2.00× less ", " the same ")):
            self.assertIn(words, row)
        # A backward pass is set against another alone.
        self.assertNotRegex(rows[-2], "same|less|more")
        self.assertIn("the same", rows[-1])
        self.assertIn("none is further than 4.9e-04 from float64", " ".join(result.stdout.split()))
        for words in ("00_naive/README.md", "scripts/explore", "scripts/diff 00 01/tile",
                      "scripts/run --all         all columns and all steps (2 more)"):
            self.assertIn(words, result.stdout)
        self.assertNotIn("Next:", self.table("--seqlen", "64").stdout)
        self.assertEqual([row[:2] for row in self.rows(self.table("--all").stdout)],
                         [[rung, step] for rung, steps in STEPS.items() for step in steps
                          for _ in range(2 if rung == "06_backward" else 1)])

    def test_what_is_chosen(self):
        self.ladder({"01_tiled_matmul": ["mma"], "05_flash_v2": ["mma", "aside"]})
        for options, there in (([], False), (["--all"], True), (["--seqlen", "64"], False),
                               (["--seqlen", "64", "--all"], True), (["--variant", "aside"], True)):
            self.called()
            self.table(*options)
            self.assertEqual("aside" in self.called(clear=False), there, options)
            self.assertNotIn("--all", self.called())
        rows = self.rows(self.table("--variant=mma").stdout)
        self.assertEqual([row[0] for row in rows], ["01_tiled_matmul", "05_flash_v2"])

    def test_options_are_passed_to_the_programs(self):
        self.ladder({"00_naive": ["naive"]}, gpu=True)
        self.table("--seqlen", "1024", "--causal")
        said = self.called()
        self.assertIn("00_naive --seqlen 1024 --causal --variant naive --device gpu --json", said)
        self.assertNotRegex(said, "--load|--device sim")
        for option in (["--device", "sim"], ["--device=sim"], ["--dev", "sim"]):
            self.table(*option)
            self.assertIn("00_naive --variant naive --device sim --json", self.called())

    def test_steps_of_a_rung_run_in_one_process_and_again_alone_if_one_fails(self):
        self.rung("00_naive", ["good", "bad", "last"])
        self.tell({"00_naive/bad": {"status": 1, "changes": {}, "err": "00_naive: wrong result"}})
        result = self.table(status=1)
        self.assertIn("00_naive bad on the sim failed (status 1):\n  wrong result", result.stdout)
        self.assertEqual([row[1] for row in self.rows(result.stdout)][:3], ["good", "bad", "last"])
        self.assertIn("--variant good,bad,last --device sim", self.called())

    # ---- with a GPU ----

    def test_with_a_gpu_a_second_table_has_times(self):
        self.ladder(gpu=True)
        traffic, paper = self.table().stdout.split(PAPER)
        self.assertNotIn("sm90", traffic)
        self.assertRegex(paper, r"05 sm90 .* 123 µs +the same +12.3\n")
        self.assertIn("NVIDIA H100", paper)
        self.assertNotIn("--device gpu --json", self.called().split("--batch 8")[0])

        captured, paper = self.table("--all").stdout.split(PAPER)
        for device in ("sim", "gpu"):
            self.row(captured, "05_flash_v2", "sm90", device)
        rungs = [row[0] for row in self.rows(captured)]
        self.assertEqual(rungs, sorted(rungs))
        self.assertIn("sm90", [row[1] for row in self.rows(paper)])
        self.assertEqual({row[3 if row[2] in ("fwd", "bwd") else 2] for row in self.rows(paper)},
                         {"gpu"})
        self.assertIn("123 µs", paper)
        self.assertIn("--batch 8 --seqlen 2048 --heads 32 --head-dim 64 --dtype bf16 --time 50 "
                      "--variant mma --device gpu --json",
                      self.called().replace("swap,defer,mma,sm90", "mma"))

    def test_dram_where_the_counters_may_be_read(self):
        dram = {"changes": {"dram_read_bytes": 1_100_000, "dram_write_bytes": 210_000}}
        steps = {"03_online_softmax": ["softmax", "one_pass"]}
        self.ladder(steps, gpu=True)
        self.tell({f"03_online_softmax/{step} gpu": dram for step in ("softmax", "one_pass")},
                  probe={"out": json.dumps(dram["changes"])})
        self.assertIn("DRAM: bytes that HBM served", " ".join(self.table().stdout.split()))
        result = self.table("--all")
        self.assertIn("DRAM: what HBM served", result.stdout)
        self.assertEqual(self.rows(result.stdout, "03_online_softmax", "one_pass", "gpu")[0][6:11],
                         ["34.0", "MB", "–", "1.31", "MB"])
        # On the GPU alone, and asked for by hand it is not given twice.
        self.assertNotRegex(self.called(), "--dram .*--device sim")
        self.table("--dram", "--variant", "one_pass")
        self.assertNotIn("--dram --dram", self.called())
        self.told.clear()
        self.tell(probe={"err": "--dram: no DRAM bytes: CUPTI is not there"})
        result = self.table()
        self.assertNotIn("DRAM", result.stdout)
        self.assertIn("No DRAM column: no DRAM bytes: CUPTI is not there", result.stderr)
        self.assertNotIn("--dram --variant", self.called())

    def test_a_step_for_another_gpu_is_left_out_unless_asked_for(self):
        self.ladder({"05_flash_v2": ["mma", "sm90"]}, gpu=True)
        self.tell({"05_flash_v2/sm90 gpu": {"status": 3, "err": "05_flash_v2: sm90 needs a Hopper "
                                                                "GPU"}})
        result = self.table("--all")
        self.row(result.stdout, "05_flash_v2", "sm90", "sim")
        self.assertNotRegex(result.stdout, r"sm90 +gpu|Hopper")
        self.assertIn("sm90 needs a Hopper GPU",
                      self.table("--variant", "sm90", status=3).stdout)

    def test_no_gpu_where_one_was_asked_for(self):
        self.rung()
        self.tell({"00_naive/naive gpu": {"status": 3, "err": "00_naive: built without CUDA"}})
        self.assertIn("built without CUDA", self.table("--device", "gpu", status=3).stdout)
        self.assertFalse(os.path.exists(self.results))

    # ---- what goes wrong ----

    def test_what_a_step_does_wrong_is_in_its_row_and_below(self):
        overflow = {"pass": False, "errors": {"o": {"max": None, "nonfinite": 7}}}
        for told, status, cells, said in (
                ({"status": 1, "changes": overflow, "err": "01_tiled_matmul: it subtracts no "
                  "maximum;\n02_safe_softmax does"}, 1, ["inf/nan", "✗"],
                 "failed (status 1):\n  it subtracts no maximum;\n  02_safe_softmax does\n"),
                ({"status": 1, "err": "making the inputs …\n01_tiled_matmul: softmax, block 3: out "
                                      "of bounds"}, 1, ["failed", "✗"],
                 "(status 1):\n  softmax, block 3: out of bounds\n"),
                ({"changes": {"model_read_bytes": 29_999_998}}, 1, ["4.9e-04", "✗"],
                 "HBM reads: the sim counted 30,000,000 bytes, the rung's formula says "
                 "29,999,998"),
                ({"out": ""}, 1, ["failed", "✗"], "the program reported nothing\n"),
                ({"crash": True, "out": '{"rung": '}, 128 + signal.SIGSEGV, ["failed", "✗"],
                 "SIGSEGV")):
            self.ladder({"00_naive": ["naive"], "01_tiled_matmul": ["naive"]})
            self.tell({"01_tiled_matmul/naive": told})
            result = self.table("--all", status=status)
            self.assertEqual(self.row(result.stdout, "01_tiled_matmul", "naive", "sim")[-2:], cells)
            self.assertEqual(self.row(result.stdout, "00_naive")[-1], "4.9e-04")
            self.assertIn(said, result.stdout)
            results = json.loads(self.read("build/results.json"))
            self.assertEqual(len(results["records"]), 1 + ("changes" in told))
            self.assertEqual([(f["rung"], f["status"]) for f in results["failures"]],
                             [("01_tiled_matmul", status)])
        # And in the first table, with what is more.
        self.tell({"01_tiled_matmul/naive": {"status": 1, "err": "01_tiled_matmul: no", "changes":
                                             asks(68_000_000)["changes"] | {"pass": False}}})
        result = self.table(status=1)
        self.assertRegex(result.stdout, "(?m)^01 naive .* 2.00× more .*✗$")
        self.assertIn("01_tiled_matmul naive on the sim failed (status 1):\n  no", result.stdout)
        self.assertNotIn("All results are right", " ".join(result.stdout.split()))

    def test_the_same_refusal_is_said_once(self):
        self.ladder({"00_naive": ["naive"], "01_tiled_matmul": ["tile", "mma"]})
        for step in ("00_naive/naive", "01_tiled_matmul/tile", "01_tiled_matmul/mma"):
            rung = step.split("/")[0]
            self.tell({step: {"status": 2, "err": f"{rung}: --seqlen 0: must be at least 1"}})
        result = self.table("--seqlen", "0", status=2)
        self.assertEqual(result.stdout.count("must be at least 1"), 1)
        self.assertIn("01_tiled_matmul tile, mma on the sim refused (status 2)", result.stdout)
        self.assertFalse(os.path.exists(self.results))

    def test_what_is_refused(self):
        self.assertIn("build/bin has no rung: scripts/run builds", self.table(status=2).stderr)
        self.rung()
        for options, status, said in (
                (["--save"], 2, "one program"), (["--save=x"], 2, "one program"),
                (["--trace"], 2, "one program"), (["--save=\x1b[31m"], 2, r"--save=\x1b[31m"),
                (["--variant", "nosuch"], 2, "there are naive")):
            self.assertIn(said, self.table(*options, status=status).stderr)
        os.mkdir(self.results)
        self.assertIn("cannot write build/results.json", self.table(status=2).stderr)
        self.assertEqual(sorted(os.listdir(self.at("build"))), ["bin", "results.json"])
        self.tell({"00_naive/naive": {"out": "hello"}})
        self.assertIn("no JSON", self.table(status=1).stderr)
        program(self.at(self.BIN, "00_naive"), [{"rung": "00_naive", "variant": "naive"}], "exit 3")
        self.assertIn("00_naive --list says other things", self.table(status=1).stderr)

    def test_the_worst_status_is_the_status(self):
        self.rung(variants=["a", "b"])
        for statuses, worst in (((0, 3), 3), ((3, 2), 2), ((2, 1), 1)):
            self.tell({f"00_naive/{v}": {"status": s, "err": "00_naive: no"}
                       for v, s in zip("ab", statuses)})
            self.table(status=worst)

    # ---- how it looks ----

    def test_fits_the_width(self):
        self.ladder(gpu=True)
        large = {"time_ms": 123.4, "tflops": 0.0123, "workspace_bytes": 1_234_567_890_123,
                 "requested_read_bytes": 987_654_321_098, "model_read_bytes": 987_654_321_098}
        self.tell({f"{rung}/{step}": {"changes": large}
                   for rung, steps in STEPS.items() for step in steps})
        for options in ([], ["--all"]):
            shown = self.table(*options).stdout
            self.fits(shown)
            self.assertNotIn("…", shown)
        long = "a_step_with_a_name_that_is_far_too_long_for_any_table_of_one_hundred_columns"
        self.rung("03_online_softmax", [long], gpu=True)
        self.tell({f"03_online_softmax/{long}": {"status": 1, "err": "a reason " * 40}})
        for options in ([], ["--all"]):
            self.fits(self.table(*options, status=1).stdout)

    def test_against_the_first_step_whatever_it_is_called(self):
        self.rung("10_first", ["a", "b", "c"])
        self.tell({"10_first/b": asks(17_000_000), "10_first/c": asks(340_000)})
        result = self.table("--all")
        self.assertIn(" vs 10 ", result.stdout)
        self.assertIn("vs 10: requested against rung 10", " ".join(result.stdout.split()))
        for step, ratio in (("b", "0.50"), ("c", "0.01")):
            self.assertEqual(self.row(result.stdout, "10_first", step)[9], ratio)
        # Without it there is nothing to set the others against.
        self.assertIn("–", self.row(self.table("--variant", "b").stdout, "10_first", "b")[8:10])

    def test_units(self):
        for of, cases in (
                (bytes_text, ((None, "–"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"),
                              (65_536, "65.5 kB"), (999_999, "1.00 MB"),
                              (17_315_000_000, "17.3 GB"), (2 * 10**15, "2000 TB"))),
                (time_text, ((None, "–"), (0.0123, "12.3 µs"), (0.9999, "1.00 ms"),
                             (1.5, "1.50 ms"), (123.4, "123 ms"), (12_345, "12.3 s"))),
                (rate_text, ((None, "–"), (0.0123, "0.012"), (3.456, "3.46"), (712.3, "712")))):
            for value, text in cases:
                self.assertEqual(of(value), text)

    def test_colour_on_a_terminal_alone(self):
        self.rung()
        self.tell({"00_naive/naive": {"status": 1, "changes": {"pass": False}, "err": "no"}})
        shown = self.on_a_terminal(*COMMAND)
        self.assertIn("\033[31m", shown)
        self.assertIn("\033[36m█", shown)
        self.assertNotIn("\033", self.on_a_terminal(*COMMAND, NO_COLOR="1"))
        self.assertNotIn("\033", self.on_a_terminal(*COMMAND, TERM="dumb"))
        # And a locale without our characters has the table too.
        self.assertRegex(self.table(status=1, PYTHONIOENCODING="ascii").stdout, "00 naive [^\033]*")

    def test_progress_of_what_takes_long(self):
        self.rung()
        self.tell({"00_naive/naive": {"sleep": 2.5}})
        result = self.table()
        self.assertIn("[1/1] 00_naive naive on the sim", result.stderr)
        self.assertNotIn("[1/1]", result.stdout)

    # ---- whole or not at all ----

    def test_interrupted(self):
        self.ladder({"00_naive": ["naive"], "01_tiled_matmul": ["b"]})
        self.table()
        before = self.read("build/results.json")
        self.tell({"01_tiled_matmul/b": {"sleep": 2 * SECONDS}})
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            out, _ = self.stopped(COMMAND, number, self.at("asleep"), status)
            self.assertEqual(out, "")
            self.assertEqual(self.read("build/results.json"), before)
            self.assertEqual(sorted(os.listdir(self.at("build"))), ["bin", "results.json"])
            with self.assertRaises(ProcessLookupError):  # the program is gone, or is so soon
                for _ in range(1000):
                    os.kill(int(self.read("asleep")), 0)
                    time.sleep(0.01)
            os.unlink(self.at("asleep"))


if __name__ == "__main__":
    unittest.main()
