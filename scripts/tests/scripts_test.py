"""Tests of scripts/run, test, figures and explore, with fake programs in a folder of their own.

Run alone: python3 scripts/tests/scripts_test.py
"""

import contextlib
import glob
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from base import ROOT, SCRIPTS, SECONDS, listed, program, read, write
from ladder.text import bytes_text, rate_text, time_text

# The ladder at its full length: the longest names decide whether the table fits.
FULL_LADDER = {
    "00_naive": ["naive"],
    "01_tiled_matmul": ["tile", "mma"],
    "02_safe_softmax": ["three_loops"],
    "03_online_softmax": ["softmax", "two_pass", "one_pass", "one_pass_tile"],
    "04_flash_v1": ["flash"],
    "05_flash_v2": ["swap", "defer", "mma", "sm90"],
    "06_backward": ["stored", "mma", "sm90"],
}


def record(rung="00_naive", variant="naive", device="sim", direction="fwd", **changes):
    """A program's JSON object, with every key that the table reads."""
    on_gpu = device == "gpu"
    result = {
        "rung": rung, "variant": variant, "direction": direction, "device": device,
        "device_name": "NVIDIA H100 80GB HBM3" if on_gpu else "sim on 2 cores",
        "dtype": "fp16", "batch": 1, "heads": 2, "kv_heads": 2, "seqlen": 256, "seqlen_kv": 256,
        "head_dim": 64, "causal": False,
        "time_ms": 0.1234 if on_gpu else None, "tflops": 12.3 if on_gpu else None,
        "model_read_bytes": 30_000_000, "model_write_bytes": 4_000_000,
        "requested_read_bytes": None if on_gpu else 30_000_000,
        "requested_write_bytes": None if on_gpu else 4_000_000,
        "distinct_read_bytes": None if on_gpu else 1_000_000,
        "distinct_write_bytes": None if on_gpu else 200_000,
        "workspace_bytes": 524_288,
        "errors": {"o": {"max": 4.88e-4, "rel": 1e-3, "tolerance": 1e-3, "nonfinite": 0}},
        "pass": True,
    }
    result.update(changes)
    return result


class ScriptTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.realpath(folder.name)
        self.bin = os.path.join(self.root, "build/bin")
        os.makedirs(self.bin)
        os.mkdir(os.path.join(self.root, "scripts"))
        for name in ("run", "test", "figures", "explore"):
            shutil.copy(os.path.join(SCRIPTS, name), os.path.join(self.root, "scripts"))
        shutil.copytree(os.path.join(SCRIPTS, "ladder"), os.path.join(self.root, "scripts/ladder"),
                        ignore=shutil.ignore_patterns("__pycache__"))
        self.results = os.path.join(self.root, "build/results.json")
        self.environment = {name: value for name, value in os.environ.items()
                            if name not in ("NO_COLOR", "CXX", "CUDACXX", "CMAKE_PREFIX_PATH", "CI",
                                            "LADDER_CUDA")}
        self.environment["TERM"] = "xterm"
        self.environment["PYTHONDONTWRITEBYTECODE"] = "1"

    def write(self, path, text, mode=0o644):
        return write(self.root, path, text=text, mode=mode)

    def read(self, path):
        return read(self.root, path)

    def called(self):
        """What the fakes were asked to do."""
        return self.read("called") if os.path.exists(os.path.join(self.root, "called")) else ""

    def fits(self, result):
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 100)

    def command(self, *words, **more):
        return subprocess.run(words, cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, encoding="utf-8", timeout=SECONDS, **more)


# What a fake program does that is to run several steps.
SEVERAL = r"""
*--variant\ *,*)
all=$*
rest=${all#*--variant }
status=0
for variant in $(echo "${rest%% *}" | tr , ' '); do
  "$0" ${all%%--variant *} --variant "$variant" ${rest#* }
  ended=$?
  [ $status != 0 ] || status=$ended
done
exit $status
;;"""


class LadderTest(ScriptTest):
    """scripts/run without the building: over programs that print what they are told to."""

    COMMAND = [sys.executable, "-m", "ladder.run"]

    def setUp(self):
        super().setUp()
        self.environment["PYTHONPATH"] = os.path.join(self.root, "scripts")

    def rung(self, rung="00_naive", variants=("naive",), gpu=False, runs=None, probe="exit 0"):
        """A fake program. `runs` maps (variant, device) to (status, records, stderr), or to lines
        of shell; `probe` is what it does when it is asked whether there is a GPU."""
        self.write(f"{rung}/attention.cu", "")
        devices = ["sim", "gpu"] if gpu else ["sim"]
        steps = [listed(rung, variant, device, default=variant == variants[-1],
                        exact_architecture=variant == "sm90", by_name_only=variant == "aside")
                 for variant in variants for device in devices]
        cases = []
        for variant in variants:
            for device in ("sim", "gpu"):
                told = (runs or {}).get((variant, device))
                if told is None and device in devices:
                    told = (0, [record(rung, variant, device)], "")
                if told is None:
                    continue
                if not isinstance(told, str):
                    status, records, err = told
                    out = "\n".join(map(json.dumps, records))
                    told = (f"cat <<'OUT'\n{out}\nOUT\ncat >&2 <<'ERR'\n{err}\nERR\n"
                            f"exit {status}")
                cases.append(f"*'--variant {variant} --device {device} --json')\n{told}\n;;")
        if not gpu:
            probe = f"echo '{rung}: no GPU answers: no driver' >&2; exit 3"
        program(os.path.join(self.bin, rung), steps, "\n".join([
            f"echo {rung} \"$*\" >>'{self.root}/called'", 'case "$*" in',
            f"*'--check off --json')\n{probe}\n;;", *cases, SEVERAL,
            f"*) echo '{rung}: unexpected arguments:' \"$*\" >&2; exit 2;;", "esac"]))

    def full_ladder(self, gpu=False, change=lambda rung, variant, device: {}):
        for rung, variants in FULL_LADDER.items():
            runs = {}
            for variant in variants:
                for device in ["sim", "gpu"] if gpu else ["sim"]:
                    directions = ["fwd", "bwd"] if rung == "06_backward" else ["fwd"]
                    runs[variant, device] = (0, [
                        record(rung, variant, device, direction, **change(rung, variant, device))
                        for direction in directions], "")
            self.rung(rung, variants, gpu, runs)

    def ladder(self, *options, status=0):
        result = self.command(*self.COMMAND, *options)
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        return result

    def row(self, result, *start):
        """The cells of the row that begins with these."""
        for line in result.stdout.splitlines():
            if line.split()[:len(start)] == list(start):
                return line.split()
        self.fail(f"no row {start} in:\n{result.stdout}\n{result.stderr}")

    def read_results(self):
        return json.loads(read(self.results))

    # ---- what runs ----

    def test_one_rung_on_the_sim(self):
        self.rung()
        result = self.ladder("--all")
        self.assertEqual(self.row(result, "00_naive"),
                         ["00_naive", "naive", "sim", "–", "–", "34.0", "MB", "1.20", "MB",
                          "1.00", "524", "kB", "4.9e-04"])
        self.assertIn("batch 1, heads 2, seqlen 256, head-dim 64, fp16", result.stdout)
        self.assertIn("no driver", result.stderr)
        self.assertEqual(self.read_results(), {"records": [record()], "failures": []})
        self.assertEqual(os.listdir(os.path.dirname(self.results)).count("results.json"), 1)

    def test_captured_tensors_if_there_are_any(self):
        self.rung()
        result = self.ladder()
        self.assertIn("no capture in scripts/captured", result.stdout)
        self.assertNotIn("--load", self.called())
        self.write("scripts/captured/q.npy", "")
        result = self.ladder()
        self.assertIn("captured from a trained model", result.stdout)
        self.assertIn("00_naive --load scripts/captured --variant naive --device sim --json",
                      self.called())

    def test_the_first_table_tells_the_story(self):
        def bytes_of(rung, variant, _):
            asked = {"naive": 60_000_000, "tile": 6_000_000}.get(variant, 3_000_000)
            return {f"{kind}_{way}_bytes": asked * (way == "read")
                    for kind in ("requested", "model") for way in ("read", "write")}

        self.full_ladder(change=bytes_of)
        result = self.ladder()
        rows = [line for line in result.stdout.splitlines() if re.match(r"\d\d \w", line)]
        self.assertEqual([" ".join(row.split("an idea")[0].split()) for row in rows],
                         [f"{rung[:2]} {step}" for rung, steps in FULL_LADDER.items()
                          for step in steps if step != "sm90" and rung != "06_backward"]
                         + ["06 stored bwd", "06 mma bwd"])
        # Ten times less is a bar that is as much shorter at the top of the scale as below.
        naive, tile, mma = (row.count("█") for row in rows[:3])
        self.assertAlmostEqual((naive - tile) / (tile - mma), 1 / 0.301, delta=0.5)
        self.assertNotIn("less", rows[0])
        self.assertIn(" 10.0× less ", rows[1])
        self.assertIn(" 2.00× less ", rows[2])
        self.assertIn(" the same ", rows[3])
        # A backward pass is set against another alone.
        self.assertNotRegex(rows[-2], "same|less|more")
        self.assertIn("the same", rows[-1])
        self.assertNotIn("sm90", self.called())
        self.assertIn("none is further than 4.9e-04 from float64", " ".join(result.stdout.split()))
        for words in ("00_naive/README.md", "scripts/explore", "scripts/diff 00 01/tile",
                      "scripts/run --all         all columns and all steps (2 more)"):
            self.assertIn(words, result.stdout)
        self.assertNotIn("Next:", self.ladder("--seqlen", "64").stdout)

    def test_the_first_table_says_what_is_more_and_what_failed(self):
        self.rung(runs={("naive", "sim"): (0, [record()], "")})
        twice = {"requested_read_bytes": 60_000_000, "model_read_bytes": 60_000_000,
                 "requested_write_bytes": 8_000_000, "model_write_bytes": 8_000_000}
        self.rung("01_tiled_matmul", runs={("naive", "sim"): (1, [
            record("01_tiled_matmul", **twice, **{"pass": False})], "01_tiled_matmul: no")})
        result = self.ladder(status=1)
        row, = (line for line in result.stdout.splitlines() if line.startswith("01 naive"))
        self.assertRegex(row, " 2.00× more .*✗$")
        self.fits(result)
        self.assertIn("01_tiled_matmul naive on the sim failed (status 1):\n  no", result.stdout)
        self.assertNotIn("All results are right", " ".join(result.stdout.split()))

    def test_by_name_only_comes_with_all(self):
        self.rung("05_flash_v2", ["mma", "aside"])
        for options, there in (([], False), (["--all"], True), (["--seqlen", "64"], False),
                               (["--seqlen", "64", "--all"], True), (["--variant", "aside"], True)):
            self.write("called", "")
            result = self.ladder(*options)
            self.assertEqual("--variant aside" in self.called(), there, options)
            self.assertNotIn("--all", self.called())

    def test_every_step_is_a_row_in_the_order_of_the_ladder(self):
        self.full_ladder()
        result = self.ladder("--all")
        rows = [line.split()[:2] for line in result.stdout.splitlines() if line[:2].isdigit()]
        expected = []
        for rung, variants in FULL_LADDER.items():
            for variant in variants:
                expected += [[rung, variant]] * (2 if rung == "06_backward" else 1)
        self.assertEqual(rows, expected)
        self.assertEqual(self.row(result, "06_backward", "mma", "bwd")[:4],
                         ["06_backward", "mma", "bwd", "sim"])

    def test_with_a_gpu_a_second_table_has_times(self):
        self.full_ladder(gpu=True)
        result = self.ladder()
        traffic, paper = result.stdout.split("the FlashAttention-2 paper's workload at N = 2k")
        self.assertNotIn("sm90", traffic)
        self.assertRegex(paper, r"05 sm90 .* 123 µs +the same +12.3\n")
        self.assertIn("NVIDIA H100", paper)
        self.assertNotIn("--device gpu --json", self.called().split("--batch 8")[0])

    def test_all_with_a_gpu_has_both_devices(self):
        self.full_ladder(gpu=True)
        result = self.ladder("--all")
        captured, paper = result.stdout.split("the FlashAttention-2 paper's workload at N = 2k")
        for device in ("sim", "gpu"):
            self.assertRegex(captured, rf"(?m)^05_flash_v2 +sm90 +{device} ")
        self.assertIn("sm90", paper)
        rows = [line for line in paper.splitlines() if re.match(r"\d\d_", line)]
        self.assertEqual({"gpu"}, {"gpu" if " gpu " in row else row for row in rows})
        self.assertIn("123 µs", paper)
        self.assertIn("--batch 8 --seqlen 2048 --heads 32 --head-dim 64 --dtype bf16 --time 50 "
                      "--variant mma --device gpu --json", self.called())
        self.assertIn("counted by the sim and equal to the rung's formula, for the gpu that "
                      "formula", " ".join(paper.split()))

    def test_dram_where_the_counters_may_be_read(self):
        dram = {"dram_read_bytes": 1_100_000, "dram_write_bytes": 210_000}
        probe = f"echo '{json.dumps(record(device='gpu', **dram))}'"
        for rung, variants in FULL_LADDER.items():
            self.rung(rung, variants, True, {
                (variant, "gpu"): (0, [record(rung, variant, "gpu", **dram)], "")
                for variant in variants}, probe)
        self.assertIn("DRAM: bytes that HBM served", " ".join(self.ladder().stdout.split()))
        result = self.ladder("--all")
        self.fits(result)
        self.assertIn("DRAM: what HBM served", result.stdout)
        rows = [line.split() for line in result.stdout.splitlines() if line.startswith("03_")]
        self.assertIn("one_pass_tile", [row[1] for row in rows])
        gpu_row = next(row for row in rows if row[2] == "gpu")
        self.assertEqual(gpu_row[6:11], ["34.0", "MB", "–", "1.31", "MB"])
        self.assertNotIn("--dram --variant one_pass --device sim", self.called())
        self.assertIn("--dram --variant one_pass --device gpu", self.called())
        # Asked for by hand, it is not given twice.
        self.ladder("--dram", "--variant", "one_pass")
        self.assertNotIn("--dram --dram", self.called())

    def test_no_dram_and_why(self):
        self.rung(gpu=True, probe="echo '--dram: no DRAM bytes: CUPTI is not there' >&2")
        result = self.ladder()
        self.assertNotIn("DRAM", result.stdout)
        self.assertIn("No DRAM column: no DRAM bytes: CUPTI is not there", result.stderr)
        self.assertNotIn("--dram --variant", self.called())

    def test_a_step_for_another_gpu_is_left_out_unless_asked_for(self):
        message = "05_flash_v2: sm90 needs a Hopper GPU"
        self.rung("05_flash_v2", ["mma", "sm90"], True, {("sm90", "gpu"): (3, [], message)})
        result = self.ladder("--all")
        self.assertRegex(result.stdout, r"(?m)^05_flash_v2 +sm90 +sim ")
        self.assertNotRegex(result.stdout, r"sm90 +gpu|Hopper")
        result = self.ladder("--variant", "sm90", status=3)
        self.assertIn("sm90 needs a Hopper GPU", result.stdout)

    def test_steps_of_a_rung_run_in_one_process_and_again_alone_if_one_fails(self):
        self.rung("00_naive", ["good", "bad", "last"],
                  runs={("bad", "sim"): (1, [record("00_naive", "bad")], "00_naive: wrong result")})
        result = self.ladder(status=1)
        self.assertIn("00_naive bad on the sim failed (status 1):\n  wrong result",
                      result.stdout.replace("00_naive: ", ""))
        self.assertEqual([row.split()[1] for row in result.stdout.splitlines()
                          if row.startswith("00 ")], ["good", "bad", "last"])
        self.assertIn("--variant good,bad,last --device sim", self.called())

    def test_options_are_passed_to_the_programs(self):
        self.rung(gpu=True)
        result = self.ladder("--seqlen", "1024", "--causal")
        self.assertIn("00_naive --seqlen 1024 --causal --variant naive --device gpu --json",
                      self.called())
        self.assertNotIn("--load", self.called())
        self.assertNotIn("--device sim", self.called())
        for option in (["--device", "sim"], ["--device=sim"], ["--dev", "sim"]):
            os.unlink(os.path.join(self.root, "called"))
            self.ladder(*option)
            self.assertIn("00_naive --variant naive --device sim --json", self.called())

    def test_a_variant_chooses_rungs(self):
        self.full_ladder()
        result = self.ladder("--variant=mma")
        rungs = {line.split()[0] for line in result.stdout.splitlines() if line[:2].isdigit()}
        self.assertEqual(rungs, {"01_tiled_matmul", "05_flash_v2", "06_backward"})
        result = self.ladder("--variant", "nosuch", status=2)
        self.assertIn("one_pass_tile", result.stderr)

    def test_no_gpu_where_one_was_asked_for(self):
        self.rung(runs={("naive", "gpu"): (3, [], "00_naive: built without CUDA")})
        result = self.ladder("--device", "gpu", status=3)
        self.assertIn("built without CUDA", result.stdout)
        self.assertFalse(os.path.exists(self.results))

    def test_options_that_are_for_one_program(self):
        self.rung()
        for option in ("--save", "--save=x", "--trace", "--save=\x1b[31m"):
            result = self.ladder(option, status=2)
            self.assertIn("one program", result.stderr)
            self.assertNotIn("\x1b", result.stderr)

    def test_no_programs(self):
        self.assertIn("every rung: scripts/run builds them", self.ladder(status=2).stderr)
        self.write("00_naive/attention.cu", "")
        self.write("build/bin/00_naive_test", "", 0o755)
        result = self.ladder(status=2)
        self.assertIn("lacks 00_naive: scripts/run builds them", result.stderr)

    def test_json_on_stdout_is_nothing_but_records(self):
        self.rung()
        result = self.ladder("--json")
        self.assertEqual([json.loads(line) for line in result.stdout.splitlines()], [record()])
        self.assertIn("34.0 MB", result.stderr)

    # ---- what goes wrong ----

    def test_a_rung_that_fails_has_its_row_its_message_and_its_status(self):
        overflow = record(**{"pass": False, "errors": {"o": {"max": None, "nonfinite": 7}}})
        self.rung(runs={("naive", "sim"): (1, [overflow], "00_naive: it subtracts no maximum;\n"
                                                          "02_safe_softmax does")})
        self.rung("02_safe_softmax", ["three_loops"])
        result = self.ladder("--all", status=1)
        self.assertEqual(self.row(result, "00_naive")[-2:], ["inf/nan", "✗"])
        self.assertEqual(self.row(result, "02_safe_softmax")[-1], "4.9e-04")
        self.assertIn("00_naive naive on the sim failed (status 1):\n  it subtracts no maximum;\n"
                      "  02_safe_softmax does", result.stdout)
        results = self.read_results()
        self.assertEqual(len(results["records"]), 2)
        self.assertEqual([(f["rung"], f["status"]) for f in results["failures"]],
                         [("00_naive", 1)])

    def test_a_fault_without_a_record(self):
        self.rung(runs={("naive", "sim"): (1, [], "making the inputs …\n"
                                                  "00_naive: softmax, block 3: out of bounds")})
        self.rung("01_tiled_matmul")
        result = self.ladder("--all", status=1)
        self.assertEqual(self.row(result, "00_naive")[-2:], ["failed", "✗"])
        self.assertIn("(status 1):\n  softmax, block 3: out of bounds\n", result.stdout)

    def test_a_count_that_is_not_the_formula_fails(self):
        self.rung(runs={("naive", "sim"): (0, [record(model_read_bytes=29_999_998)], "")})
        result = self.ladder(status=1)
        self.assertIn("HBM reads: the sim counted 30,000,000 bytes, the rung's formula says "
                      "29,999,998",
                      result.stdout)

    def test_the_same_refusal_is_said_once(self):
        runs = {("naive", "sim"): (2, [], "00_naive: --seqlen 0: must be at least 1")}
        self.rung("00_naive", runs=runs)
        runs = {(v, "sim"): (2, [], "01_tiled_matmul: --seqlen 0: must be at least 1")
                for v in ("tile", "mma")}
        self.rung("01_tiled_matmul", ["tile", "mma"], runs=runs)
        result = self.ladder("--seqlen", "0", status=2)
        self.assertEqual(result.stdout.count("must be at least 1"), 1)
        self.assertIn("01_tiled_matmul tile, mma on the sim refused (status 2)", result.stdout)
        self.assertFalse(os.path.exists(self.results))

    def test_the_worst_status_is_the_status(self):
        for statuses, worst in (((0, 3), 3), ((3, 2), 2), ((2, 1), 1), ((0, 0), 0)):
            self.rung(variants=["a", "b"], runs={
                (v, "sim"): (s, [record(variant=v)] if s == 0 else [], "00_naive: no")
                for v, s in zip("ab", statuses)})
            self.ladder(status=worst)

    def test_a_crash(self):
        self.rung(variants=["a", "b"], runs={("a", "sim"): "echo '{\"rung\": '; kill -SEGV $$",
                                             ("b", "sim"): (1, [], "00_naive: wrong")})
        result = self.ladder(status=128 + signal.SIGSEGV)
        self.assertIn("SIGSEGV", result.stdout)

    def test_output_that_is_no_json(self):
        self.rung(runs={("naive", "sim"): "echo hello"})
        result = self.ladder(status=1)
        self.assertIn("no JSON", result.stderr)

    # ---- how it looks ----

    def test_fits_the_width(self):
        self.full_ladder(gpu=True, change=lambda *_: {
            "time_ms": 123.4, "tflops": 0.0123, "workspace_bytes": 1_234_567_890_123,
            "requested_read_bytes": 987_654_321_098, "model_read_bytes": 987_654_321_098})
        for options in ([], ["--all"]):
            result = self.ladder(*options)
            self.fits(result)
            self.assertNotIn("…", result.stdout)
        long = "a_step_with_a_name_that_is_far_too_long_for_any_table_of_one_hundred_columns"
        self.rung("03_online_softmax", [long], runs={
            (long, "sim"): (1, [], "03_online_softmax: " + "a reason " * 40)})
        for options in ([], ["--all"]):
            result = self.ladder(*options, status=1)
            self.fits(result)

    def test_against_00(self):
        self.rung()
        quarter = record("01_tiled_matmul", requested_read_bytes=8_000_000,
                         model_read_bytes=8_000_000, requested_write_bytes=500_000,
                         model_write_bytes=500_000)
        hardly = record("05_flash_v2", requested_read_bytes=300_000, model_read_bytes=300_000,
                        requested_write_bytes=40_000, model_write_bytes=40_000)
        self.rung("01_tiled_matmul", runs={("naive", "sim"): (0, [quarter], "")})
        self.rung("05_flash_v2", runs={("naive", "sim"): (0, [hardly], "")})
        result = self.ladder("--all")
        self.assertEqual(self.row(result, "01_tiled_matmul")[9], "0.25")
        self.assertEqual(self.row(result, "05_flash_v2")[9], "0.01")

    def test_against_the_first_step_whatever_it_is_called(self):
        half = {"requested_read_bytes": 15_000_000, "model_read_bytes": 15_000_000,
                "requested_write_bytes": 2_000_000, "model_write_bytes": 2_000_000}
        runs = {(v, "sim"): (0, [record("10_first", v, **change)], "")
                for v, change in (("a", {}), ("b", half))}
        self.rung("10_first", ["a", "b"], runs=runs)
        result = self.ladder("--all")
        self.assertIn(" vs 10 ", result.stdout)
        self.assertIn("vs 10: requested against rung 10", " ".join(result.stdout.split()))
        self.assertEqual(self.row(result, "10_first", "b")[9], "0.50")
        # Without it there is nothing to set the others against.
        result = self.ladder("--variant", "b")
        self.assertEqual(self.row(result, "10_first", "b")[9], "–")

    def test_a_program_of_another_tree(self):
        self.write("00_naive/attention.cu", "")
        self.write("build/bin/00_naive", "#!/bin/sh\n[ $1 = --list ] || exit 3\n"
                   "echo '{\"rung\": \"00_naive\", \"variant\": \"naive\"}'\n", 0o755)
        result = self.ladder(status=1)
        self.assertIn("00_naive --list says other things", result.stderr)

    def test_units(self):
        for count, text in ((None, "–"), (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"),
                            (65_536, "65.5 kB"), (999_999, "1.00 MB"), (17_315_000_000, "17.3 GB"),
                            (2 * 10**15, "2000 TB")):
            self.assertEqual(bytes_text(count), text)
        for ms, text in ((None, "–"), (0.0123, "12.3 µs"), (0.9999, "1.00 ms"), (1.5, "1.50 ms"),
                         (123.4, "123 ms"), (12_345, "12.3 s")):
            self.assertEqual(time_text(ms), text)
        for rate, text in ((None, "–"), (0.0123, "0.012"), (3.456, "3.46"), (712.3, "712")):
            self.assertEqual(rate_text(rate), text)

    def on_a_terminal(self, **environment):
        """stdout of the ladder where stdout is a terminal."""
        try:
            ours, theirs = pty.openpty()
        except OSError as error:
            self.skipTest(f"no terminals here: {error}")
        try:
            subprocess.run(self.COMMAND, cwd=self.root, stdout=theirs,
                           stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                           timeout=SECONDS, env={**self.environment, **environment})
            return os.read(ours, 65536).decode()
        finally:
            os.close(theirs)
            os.close(ours)

    def test_colour_on_a_terminal_alone(self):
        self.rung(runs={("naive", "sim"): (1, [record(**{"pass": False})], "00_naive: no")})
        self.assertIn("\033[31m", self.on_a_terminal())
        self.assertIn("\033[36m█", self.on_a_terminal())
        self.assertNotIn("\033", self.on_a_terminal(NO_COLOR="1"))
        self.assertNotIn("\033", self.on_a_terminal(TERM="dumb"))
        self.assertNotIn("\033", self.ladder(status=1).stdout)

    def test_a_locale_without_our_characters(self):
        self.rung()
        self.environment["PYTHONIOENCODING"] = "ascii"
        result = self.ladder()
        self.assertIn("00_naive", result.stdout)

    def test_progress_of_what_takes_long(self):
        self.rung(runs={("naive", "sim"): f"sleep 3; echo '{json.dumps(record())}'"})
        result = self.ladder()
        self.assertIn("[1/1] 00_naive naive on the sim", result.stderr)
        self.assertNotIn("[1/1]", result.stdout)

    # ---- whole or not at all ----

    def test_results_that_cannot_be_written(self):
        self.rung()
        os.mkdir(self.results)
        result = self.ladder(status=2)
        self.assertIn("cannot write build/results.json", result.stderr)
        self.assertEqual(sorted(os.listdir(os.path.join(self.root, "build"))),
                         ["bin", "results.json"])

    def test_interrupted(self):
        pid_file = os.path.join(self.root, "pid")
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            self.rung()
            self.rung("01_tiled_matmul", ["b"])
            self.ladder()
            before = read(self.results)
            self.rung("01_tiled_matmul", ["b"], runs={
                ("b", "sim"): f"echo $$ >'{pid_file}.part'; mv '{pid_file}.part' '{pid_file}'\n"
                              "exec sleep 60"})
            with subprocess.Popen(self.COMMAND, cwd=self.root, env=self.environment,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, encoding="utf-8",
                                  start_new_session=True) as process:
                wait_for(pid_file)
                if number == signal.SIGINT:  # as a terminal does: everyone in the foreground
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)
                out, err = process.communicate(timeout=SECONDS)
            self.assertEqual((process.returncode, out), (status, ""))
            self.assertNotIn("Traceback", err)
            self.assertEqual(read(self.results), before)
            self.assertEqual(sorted(os.listdir(os.path.join(self.root, "build"))),
                             ["bin", "results.json"])
            with self.assertRaises(ProcessLookupError):
                os.kill(int(read(pid_file)), 0)
            os.unlink(pid_file)

    def test_a_reader_that_has_seen_enough(self):
        self.full_ladder()
        result = self.command("bash", "-c", "python3 -m ladder.run | true; "
                                            "echo status ${PIPESTATUS[0]}")
        self.assertNotIn("Traceback", result.stderr)


def wait_for(path, seconds=SECONDS):
    end = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.02)


class ReadyTest(ScriptTest):
    """ready.sh, on a machine that has just what the test puts there."""

    # What the scripts use of any Unix machine.
    ALWAYS_THERE = ["awk", "bash", "basename", "cat", "cp", "dirname", "env", "grep", "head",
                    "mkdir", "mv", "rm", "sed", "sh", "sleep", "tail", "touch"]

    def setUp(self):
        super().setUp()
        shutil.rmtree(self.bin)
        self.path = os.path.join(self.root, "path")
        os.mkdir(self.path)
        for name in self.ALWAYS_THERE:
            os.symlink(shutil.which(name), os.path.join(self.path, name))
        self.environment["PATH"] = self.path
        self.environment["CUDA_HOME"] = self.root
        self.write("CMakePresets.json", "{}")

    def tool(self, name, text="exit 0"):
        self.write(f"path/{name}",
                   f"#!/bin/sh\necho {name} \"$*\" >>'{self.root}/called'\n{text}\n", 0o755)

    def tools(self, *leave_out, cmake_version="3.25.1"):
        """A machine with everything but."""
        for name, text in {
                "c++": "exit 0",
                "cmake": f"case $1 in --version) echo cmake version {cmake_version}; exit;; esac\n"
                         f"[ \"$1\" = --build ] || : >'{self.root}/build/build.ninja'",
                "ctest": "exit 0",
                "ninja": "exit 0",
                "python3": "exit 0"}.items():
            if name not in leave_out:
                self.tool(name, text)

    def apt(self, install):
        self.tool("apt-get", f'case "$*" in *install*) {install};; esac')
        self.tool("sudo", 'shift; exec "$@"')  # sudo -n COMMAND...

    def ready(self, script="ready", status=0):
        return self.run_it("-ec", f"source scripts/ladder/ready.sh; {script}", "scripts/run",
                           status=status)

    def run_it(self, *words, status=0):
        result = self.command("bash", *words)
        self.assertEqual(result.returncode, status, result.stderr)
        return result

    def test_nothing_to_do(self):
        self.tools()
        self.apt("exit 1")
        result = self.ready()
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("apt-get", self.called())

    def test_the_second_time_looks_at_nothing(self):
        self.tools()
        self.ready()
        os.unlink(os.path.join(self.root, "called"))
        self.ready()
        self.assertEqual(self.called(), "")
        self.environment["CXX"] = "c++"  # another compiler: looks again
        self.ready()
        self.assertIn("c++", self.called())

    def test_a_machine_without_apt_get_is_told_the_packages(self):
        result = self.ready(status=1)
        for word in ("C++20 compiler", "CMake 3.24", "Ninja", "g++", "cmake", "ninja-build",
                     "python3"):
            self.assertIn(word, result.stderr)
        self.assertNotIn("apt-get", result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.root, "build/.ready")))

    def test_each_package_manager_has_its_own_names(self):
        for manager, said in (
                ("brew", "brew install ninja fmt googletest python"),
                ("dnf", "sudo dnf install ninja-build fmt-devel gtest-devel python3"),
                ("pacman", "sudo pacman -S ninja fmt gtest python")):
            self.tool(manager)
            self.tools("ninja", "python3")
            self.tool("c++", "! grep -q -e fmt/ -e gtest/")
            result = self.ready("ready tests", status=1)
            self.assertIn(f"  To install: {said}\n", result.stderr)
            self.tools()
            self.assertEqual(self.ready("ready tests").stderr, "")
            shutil.rmtree(os.path.join(self.root, "build"))
            for name in ("c++", "cmake", "ctest", "ninja", "python3", manager):
                os.unlink(os.path.join(self.path, name))
        self.assertNotIn("install", self.called())

    def test_on_macos_the_compiler_is_apples(self):
        self.tool("brew")
        self.tools("c++")
        result = self.ready("OSTYPE=darwin22; ready", status=1)
        self.assertIn("  To install the compiler: xcode-select --install\n", result.stderr)
        self.assertNotIn("brew install", result.stderr)

    def test_each_library_is_missed(self):
        for header, word, package in (("fmt/core.h", "fmt", "libfmt-dev"),
                                      ("gtest/gtest.h", "GoogleTest", "libgtest-dev")):
            self.tools()
            self.tool("c++", f"! grep -q '{header}'")
            # The programs do without GoogleTest.
            self.ready(status=int(word == "fmt"))
            result = self.ready("ready tests", status=1)
            self.assertIn(f"lacks {word}.", result.stderr)
            self.assertIn(f"  {package}\n", result.stderr)

    def test_a_library_in_a_place_of_its_own(self):
        self.tools()
        self.tool("c++", f"! grep -q fmt/core.h || case \"$*\" in *-I{self.root}/mine/include*) ;; "
                         "*) exit 1;; esac")
        self.ready(status=1)
        self.environment["CMAKE_PREFIX_PATH"] = f"/nowhere:{self.root}/mine"
        self.ready()

    def test_installs_what_is_missing(self):
        self.tools("ninja")
        self.apt(f"printf '#!/bin/sh\\n' >'{self.path}/ninja'; /bin/chmod +x '{self.path}/ninja'")
        result = self.ready()
        self.assertIn("installing ninja-build\n", result.stderr)
        self.assertIn("install -y --no-install-recommends ninja-build\n", self.called())

    def test_apt_get_fails(self):
        self.tools("ninja")
        self.apt("echo 'E: Unable to fetch some archives'; exit 100")
        result = self.ready(status=1)
        self.assertIn("E: Unable to fetch", result.stderr)
        self.assertIn("lacks Ninja", result.stderr)
        self.assertIn("apt-get install ninja-build", result.stderr)

    def test_apt_get_without_the_right_to_use_it(self):
        self.tools("ninja")
        self.apt("exit 1")
        result = self.ready("can_install() { false; }; ready", status=1)
        self.assertIn("sudo apt-get install ninja-build", result.stderr)
        self.assertNotIn("apt-get -q", self.called())

    def test_a_cmake_that_stays_too_old(self):
        self.tools(cmake_version="3.22.1")
        self.apt("exit 0")
        result = self.ready(status=1)
        self.assertIn("lacks CMake 3.24 or newer", result.stderr)
        self.assertIn("3.22.1", result.stderr)
        self.assertIn("pip install cmake", result.stderr)

    def test_a_compiler_of_the_persons_choosing_that_is_too_old(self):
        self.tools()
        self.tool("oldc++", "exit 1")
        self.environment["CXX"] = "oldc++"
        result = self.ready(status=1)
        self.assertIn("CXX=oldc++", result.stderr)

    def test_goes_on_without_matplotlib(self):
        self.tools()
        self.apt("exit 100")
        ready = "has_matplotlib() { false; }; ready matplotlib"
        result = self.ready(ready)
        self.assertIn("going on without matplotlib", result.stderr)
        # and does not try again each time
        self.assertEqual(self.ready(ready).stderr, "")

    def test_matplotlib_is_for_who_draws(self):
        for script, there in (("run", False), ("explore", False), ("test", True),
                              ("test 05/rows", False), ("test tile", False),
                              ("test scripts", True), ("figures", True)):
            shutil.rmtree(os.path.join(self.root, "build"), ignore_errors=True)
            self.write("called", "")
            self.tools()
            self.tool("python3", "case \"$*\" in *matplotlib*) exit 1;; esac")
            self.apt("exit 0")
            self.write("05_flash_v2/rows.cu", '.name = "rows"')
            self.write("build/tests_scripts.txt", "x")
            self.write("build/tests_tile.txt", "x")
            # A python3 with matplotlib elsewhere on this machine does not count.
            text = self.read("scripts/ladder/ready.sh")
            self.write("scripts/ladder/ready.sh",
                       text.replace("/usr/bin/python3", "/nowhere/python3"))
            self.command("bash", f"scripts/{script.split()[0]}", *script.split()[1:])
            self.assertEqual("--no-install-recommends python3-matplotlib" in self.called(), there,
                             script)

    def test_ci_has_a_browser_and_nobody_else(self):
        self.tools()
        self.apt(f"printf '#!/bin/sh\n' >'{self.path}/chromium'; "
                 f"/bin/chmod +x '{self.path}/chromium'")
        self.run_it("scripts/test")
        self.assertNotIn("chromium", self.called())
        self.environment["CI"] = "true"
        result = self.run_it("scripts/test")
        self.assertIn("installing chromium\n", result.stderr)
        self.assertIn("install -y --no-install-recommends chromium\n", self.called())
        self.assertNotIn("going on without chromium", result.stderr)

    def test_ci_goes_on_without_a_browser(self):
        self.tools()
        self.apt("exit 100")
        self.environment["CI"] = "true"
        result = self.run_it("scripts/test")
        self.assertIn("going on without chromium", result.stderr)

    def test_help_needs_nothing(self):
        for script in ("run", "test", "figures", "explore"):
            result = self.command(shutil.which("bash"), f"scripts/{script}", "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn(f"Usage: scripts/{script}", result.stdout)
            self.fits(result)

    # ---- figures ----

    def figures(self, gpu_status, *options):
        self.tools()
        self.tool("python3", f"case \"$*\" in *paper*) exit {gpu_status};; esac")
        result = self.command("bash", "scripts/figures", *options)
        self.assertIn("--build " + os.path.join(self.root, "build") + " --target programs -j",
                      self.called())
        return result, re.findall(r"^python3 (scripts/\S+ .*)$", self.called(), re.MULTILINE)

    def test_figures_measures_counts_and_draws(self):
        result, commands = self.figures(0, "--time", "25")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(commands, ["scripts/bench.py --grid paper,long --again --time 25",
                                    "scripts/bench.py --sim --again", "scripts/plot.py --readme"])

    def test_figures_without_a_usable_gpu_draws_what_was_measured(self):
        result, commands = self.figures(3)
        self.assertEqual(result.returncode, 0)
        self.assertIn("without a GPU", result.stderr)
        self.assertEqual(commands[1:], ["scripts/bench.py --sim --again",
                                        "scripts/plot.py --readme"])

    def test_figures_ends_where_a_measurement_fails(self):
        result, commands = self.figures(1)
        self.assertEqual((result.returncode, len(commands)), (1, 1))

    # ---- building ----

    def test_builds_quietly_and_configures_once(self):
        self.tools()
        for configures in (True, False):
            result = self.command("bash", "scripts/run")
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
            self.assertEqual("--preset default" in self.called(), configures)
            self.assertIn("python3 -m ladder.run\n", self.called())
            os.unlink(os.path.join(self.root, "called"))
        self.environment["CXX"] = "c++"  # CMake keeps its compiler: it has to start afresh
        self.command("bash", "scripts/run")
        self.assertIn("--preset default --fresh", self.called())

    def configured(self, *command):
        """The options that CMake was given when the command configured, None if it did not."""
        self.write("called", "")
        result = self.command("bash", *command)
        self.assertEqual(result.returncode, 0, result.stderr)
        found = re.search(r"^cmake -S .* --preset default ?(.*)$", self.called(), re.MULTILINE)
        return found and found[1]

    def test_a_gpu_that_appears_is_built_for_and_stays(self):
        self.tools()
        gpu = os.path.join(self.root, "gpu")
        self.tool("python3", f"case $1 in */answers.py) cat '{gpu}' 2>/dev/null;; esac")
        self.assertEqual(self.configured("scripts/run"), "-DLADDER_TESTS=OFF")
        self.assertIsNone(self.configured("scripts/run"))
        self.write("gpu", "80\n")
        self.assertEqual(self.configured("scripts/run"), "-DLADDER_GPU_FOUND=80")
        self.assertIsNone(self.configured("scripts/run"))
        os.unlink(gpu)
        self.assertIsNone(self.configured("scripts/run"))
        self.write("gpu", "90\n")
        self.assertEqual(self.configured("scripts/run"), "-DLADDER_GPU_FOUND=90")

    def test_a_gpu_half_that_is_asked_for_stays(self):
        self.tools()
        self.configured("scripts/run")
        self.environment["LADDER_CUDA"] = "ON"
        self.assertEqual(self.configured("scripts/run"), "-DLADDER_CUDA=ON")
        self.assertIsNone(self.configured("scripts/run"))
        del self.environment["LADDER_CUDA"]
        self.assertIsNone(self.configured("scripts/run"))
        self.environment["LADDER_CUDA"] = "AUTO"
        self.assertEqual(self.configured("scripts/run"), "-DLADDER_CUDA=AUTO")

    def test_tests_are_configured_when_they_are_wanted_and_stay(self):
        self.tools()
        self.assertEqual(self.configured("scripts/run"), "-DLADDER_TESTS=OFF")
        self.assertIn("--target programs", self.called())
        self.assertEqual(self.configured("scripts/test"), "-DLADDER_TESTS=ON")
        self.assertNotIn("--target", self.called())
        self.assertIsNone(self.configured("scripts/run"))

    def test_presets_and_ctest_options(self):
        self.tools()
        self.tool("cmake", "case $1 in --version) echo cmake version 3.25.1; exit;; esac\n"
                           f"[ \"$1\" = --build ] || : >'{self.root}/build/asan/build.ninja'")
        for preset in (["--preset", "asan"], ["--preset=asan"]):
            result = self.run_it("scripts/test", *preset, "-R", "sim")
            self.assertIn("--preset asan", self.called())
            self.assertRegex(self.called(), r"ctest --preset asan -j \d+ --output-on-failure .*"
                                            r"--output-junit \S+ .* -R sim\n")
        self.run_it("scripts/test", "--preset", status=2)

    # ---- parts ----

    def part(self, *parts):
        """What is built of the parts, and what is run."""
        self.write("called", "")
        result = self.run_it("scripts/test", *parts)
        built = re.search(r"--target (.*) -j", self.called())[1].split()
        ran = [f"ctest {found}" for found in re.findall(r"^ctest .* -R (.*)$", self.called(), re.M)]
        ran += re.findall(r"^(\w+_test) --gtest_filter=(\S*)", self.called(), re.M)
        return built, ran

    def make_rung(self):
        self.tools()
        for name, variant in (("attention", "last"), ("rows", "rows"), ("wide", "rows_wide"),
                              ("hopper/tma", "tma")):
            self.write(f"05_flash_v2/{name}.cu", f'.rung = "05_flash_v2",\n.name = "{variant}",\n')
        self.write("05_flash_v2/README.md", "")
        self.write("build/bin/05_flash_v2_test",
                   f"#!/bin/sh\necho 05_flash_v2_test \"$*\" >>'{self.root}/called'\n", 0o755)
        self.write("build/tests_sim.txt", "^(sim_test)(\\.|$)\n")

    def test_a_rung_alone(self):
        self.make_rung()
        for name in ("05", "05_flash_v2"):
            self.assertEqual(self.part(name), (["05_flash_v2", "05_flash_v2_test"],
                                               ["ctest ^05_flash_v2\\."]))

    def test_a_step_alone(self):
        self.make_rung()
        built = ["05_flash_v2_test"]
        # Another step's name begins as this one's.
        self.assertEqual(self.part("05/rows"), (built, [
            ("05_flash_v2_test", "*/rows:*/rows_*-:*/rows_wide:*/rows_wide_*")]))
        for name, variant in (("05/wide", "rows_wide"), ("05/rows_wide", "rows_wide"),
                              ("05/attention", "last"), ("05/last", "last"), ("05/tma", "tma"),
                              ("05/hopper/tma", "tma")):
            self.assertEqual(self.part(name), (built, [
                ("05_flash_v2_test", f"*/{variant}:*/{variant}_*-")]))

    def test_another_part_alone_or_several(self):
        self.make_rung()
        self.assertEqual(self.part("sim"), (["tests_sim"], ["ctest ^(sim_test)(\\.|$)"]))
        self.assertEqual(self.part("sim", "05", "05/tma"), (
            ["tests_sim", "05_flash_v2", "05_flash_v2_test", "05_flash_v2_test"],
            ["ctest ^(sim_test)(\\.|$)|^05_flash_v2\\.",
             ("05_flash_v2_test", "*/tma:*/tma_*-")]))

    def test_no_such_part(self):
        self.make_rung()
        for name, said in (("07", "no part 07"), ("nosuch", "no part nosuch"),
                           ("05/nosuch", "05_flash_v2 has no step nosuch")):
            result = self.run_it("scripts/test", name, status=2)
            self.assertIn(said, result.stderr)
        self.assertNotIn("cmake", self.called())

    def test_a_step_that_fails(self):
        self.make_rung()
        self.write("build/bin/05_flash_v2_test", "#!/bin/sh\nexit 1\n", 0o755)
        self.run_it("scripts/test", "05/rows", status=1)

    # ---- progress, and what compilers say ----

    def test_a_warning_is_shown_though_the_build_is_good(self):
        self.tools()
        self.tool("cmake", textwrap.dedent(f"""\
            case $* in
              --version) echo cmake version 3.25.1;;
              --build*) printf '[1/2] Building a\na.cu:3: warning: unused\n[2/2] Linking\n';;
              *) : >'{self.root}/build/build.ninja';;
            esac"""))
        result = self.command("bash", "scripts/run")
        self.assertEqual((result.returncode, result.stderr), (0, "a.cu:3: warning: unused\n"))

    def test_about_how_long_a_build_will_take(self):
        self.tools()
        steps = ["Building CXX object a.o", "Building CXX object stubs/01/tile.cu.o",
                 "Building CUDA object 01/tile.cu.o", "Linking CXX executable 01"]
        self.write("log.todo", "".join(f"[0/4] {step}\n" for step in steps))
        for done, said in ((0, " 0/4, 60 s so far"),
                           # 1.5 + 6 + 15 + 0.3 = 22.8 in all, of which 7.5 took a minute
                           (2, " 2/4, about 130 s"), (3, " 3/4, about 1 s"),
                           (4, " 4/4, 60 s so far")):
            self.write("log", "[0/2] Re-checking globs\n" + "".join(
                f"[{i + 1}/4] {step}\na warning\n" for i, step in enumerate(steps[:done])))
            self.assertEqual(self.ready("steps_done log 60").stdout, said)
        os.unlink(os.path.join(self.root, "log.todo"))
        self.assertEqual(self.ready("steps_done log 60").stdout, "")

    def test_a_build_that_fails_shows_the_compilers_words_alone(self):
        self.tools()
        self.tool("cmake", textwrap.dedent(f"""\
            case $1 in
              --version) echo cmake version 3.25.1;;
              --build) printf '[1/2] Building a\\nFAILED: b.o\\nb.cpp:1: error: no\\n'; exit 1;;
              *) : >'{self.root}/build/build.ninja';;
            esac"""))
        result = self.run_it("scripts/run", status=1)
        self.assertIn("FAILED: b.o\nb.cpp:1: error: no\n", result.stderr)
        self.assertNotIn("Building a", result.stderr)
        self.assertIn("build/build.log", result.stderr)
        self.assertNotIn("ladder.run", self.called())

    def test_cmake_that_fails(self):
        self.tools()
        self.tool("cmake", "case $1 in --version) echo cmake version 3.25.1; exit;; esac\n"
                           "echo '-- looking'; echo 'CMake Error: no fmt'; exit 1")
        result = self.run_it("scripts/test", status=1)
        self.assertIn("CMake Error: no fmt\n", result.stderr)
        self.assertNotIn("-- looking", result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.root, "build/.ready")))

    def test_a_second_build_waits_for_the_first(self):
        self.tools()
        self.tool("python3", f'case $1 in -c) exec "{sys.executable}" "$@";; esac')
        started, go_on = (os.path.join(self.root, name) for name in ("started", "go_on"))
        self.tool("cmake", f"""case $* in
            --version) echo cmake version 3.25.1;;
            --build*) echo "$PPID begins" >>'{self.root}/builds'; : >'{started}'
                while [ ! -e '{go_on}' ]; do sleep 0.05; done
                echo "$PPID ends" >>'{self.root}/builds';;
            esac""")

        def run():
            return subprocess.Popen(["bash", "scripts/test"], cwd=self.root, env=self.environment,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, encoding="utf-8")

        with run() as first, contextlib.ExitStack() as both:
            wait_for(started)
            second = both.enter_context(run())
            # Whatever comes out, the builds must end.
            both.callback(lambda: self.write("go_on", ""))
            self.assertEqual(second.stderr.readline(), "scripts/test: another build in this clone "
                             "is under way; waiting for its end.\n")
            self.write("go_on", "")
            first.communicate(timeout=SECONDS)
            second.communicate(timeout=SECONDS)
        builds = [line.split() for line in self.read("builds").splitlines()]
        self.assertEqual([what for _, what in builds], ["begins", "ends"] * 2)
        self.assertEqual([builds[0][0], builds[2][0]], [builds[1][0], builds[3][0]])
        self.assertNotEqual(builds[0][0], builds[2][0])

    def test_ctrl_c_while_building(self):
        self.tools()
        started = os.path.join(self.root, "started")
        self.tool("cmake", "case $1 in --version) echo cmake version 3.25.1; exit;; esac\n"
                           f": >'{started}'; exec sleep 60")
        with subprocess.Popen(["bash", "scripts/run"], cwd=self.root, env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, encoding="utf-8",
                              start_new_session=True) as process:
            wait_for(started)
            os.killpg(process.pid, signal.SIGINT)
            # So that nothing that it started holds its output.
            process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130)
        self.assertNotIn("ladder.run", self.called())


class PortableTest(unittest.TestCase):
    """What macOS's bash 3.2 and BSD tools lack, the shell scripts do without."""

    # A pattern, and a line that it is to find.
    LACKS = (
        (r"\{\w+\}[<>]", 'exec {lock}>"$1"'),
        (r"&>>|\|&", "make &>>log"),
        (r"\$\{!?\w+(\[[^]]*\])?(\^|,|@[A-Za-z])", 'echo "${name^^}"'),
        (r"\$\{\w+(\[-|:\s*:?\(?-\d+:-)", 'echo "${all[-1]}"'),
        (r"\b(declare|local|typeset|readonly)\s+-\w*[Anlu]", "local -n result=$1"),
        (r"\b(mapfile|readarray|coproc|wait\s+-n)\b", "mapfile -t lines <file"),
        (r"\[\[ (! )?-[vR] ", "if [[ -v name ]]; then"),
        (r";;?&", "a) echo ;;&"),
        (r"\{\d+\.\.\d+\.\.\d+\}|\{0\d+\.\.", "for i in {1..9..2}; do"),
        (r"printf .*%\(", "printf '%(%s)T'"),
        (r"\$\{?(BASHPID|EPOCHSECONDS|EPOCHREALTIME|SRANDOM)\b", "echo $EPOCHSECONDS"),
        (r"\bshopt -s \w*(globstar|lastpipe|inherit_errexit)", "shopt -s globstar"),
        (r"^\s*set -[a-z]*u", "set -euo pipefail"),  # an empty array is unset there
        (r"(?<![.\w])(nproc|flock|timeout|tac|realpath|sha\d+sum|md5sum|setsid|getopt|numfmt)\b",
         'make -j "$(nproc)"'),
        (r"\breadlink\s+-[fem]|\bgrep\s+-\w*P|\bdate\s+(-d|--)|\bstat\s+-c|\bsort\s+-\w*[Vz]",
         "sort -V versions"),
        (r"\bxargs\s+(-\w*[rd]|--)|\bsed\s+(-\w*[irz]|--)|\bfind .*-printf|\bhead\s+-n\s*-|"
         r"\bcp\s+(-\w*[u]|--)|\bmktemp\s+--|\bbase64\s+-w|\b(ps|tail)\s+.*--", "xargs -0r rm"),
    )

    @staticmethod
    def scripts():
        root = ROOT
        for place in (".ci/*", "scripts/*", "scripts/ladder/*.sh", "common/**/*.sh"):
            paths = glob.glob(os.path.join(root, place), recursive=True)
            for path in filter(os.path.isfile, paths):
                with open(path, "rb") as file:
                    text = file.read()
                if path.endswith(".sh") or re.match(rb"#!.*\b(ba)?sh\b", text):
                    yield os.path.relpath(path, root), text.decode().splitlines()

    def test_each_pattern_finds_what_it_is_for(self):
        for pattern, line in self.LACKS:
            self.assertRegex(line, pattern)

    def test_no_script_needs_what_is_not_there(self):
        names = set()
        for name, lines in self.scripts():
            names.add(name)
            for number, line in enumerate(lines, 1):
                if line.lstrip().startswith("#"):
                    continue
                for pattern, _ in self.LACKS:
                    self.assertNotRegex(line, pattern, f"{name}:{number}")
        self.assertLessEqual({"scripts/run", "scripts/ladder/ready.sh", "scripts/test", ".ci/run",
                              "common/ptxas.sh"}, names)


class VerdictTest(ScriptTest):
    """The last lines of scripts/test, from what ctest and GoogleTest wrote."""

    def verdict(self, *files):
        paths = [self.write(f"{i}.xml", f"<testsuite>{text}</testsuite>")
                 for i, text in enumerate(files)]
        self.environment["PYTHONPATH"] = os.path.join(self.root, "scripts")
        result = self.command(sys.executable, "-m", "ladder.verdict", *paths, "nosuch.xml")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    @staticmethod
    def case(name, said="", part=""):
        return f'<testcase name="{name}">{part}<system-out>{said}</system-out></testcase>'

    def test_what_ran(self):
        self.assertEqual(self.verdict(self.case("a") + self.case("b"), self.case("c")),
                         "\n3 tests ran, 0 failed, 0 were skipped.\n")

    def test_what_failed(self):
        python = self.case("c", "test_a (T) ... FAIL\n\nRan 3 tests in 1.5s\n\n"
                                "FAILED (failures=1)\n", "<failure/>")
        said = self.verdict(self.case("a", part="<failure/>") + self.case("b") + python)
        self.assertEqual(said, "\n5 tests ran, 2 failed, 0 were skipped.\nFailed: a\nFailed: c\n")

    def test_why_something_was_skipped(self):
        skipped = '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
        gtest = self.case("a", "x.cpp:5: Skipped\nno GPU: none\n\n[  SKIPPED ] a", skipped)
        whole = self.case("b", "... not run here: no GPU: none\n", skipped)
        own = ('<testcase name="d"><skipped message="x.cpp:5&#x0A;no GPU: none"/></testcase>')
        python = self.case("c", "test_a (T) ... ok\ntest_b (T) ... skipped 'no browser'\n"
                                "test_c (T) ... skipped \"it's old\"\n\nRan 30 tests in 1.5s\n\n"
                                "OK (skipped=2)\n")
        self.assertEqual(self.verdict(gtest + whole + python, own), textwrap.dedent("""
            28 tests ran, 0 failed, 5 were skipped:
              3 × no GPU: none
              1 × no browser
              1 × it's old
            """))


if __name__ == "__main__":
    unittest.main()
