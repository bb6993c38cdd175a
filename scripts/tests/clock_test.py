"""Tests of scripts/figures clock and profile without a GPU: the marks fit the kernels, what they
say is worked out right, and so is what an ncu says that stands in for the real one.

Run alone: python3 scripts/tests/clock_test.py [c++]
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from base import ROOT, SCRIPTS, SECONDS, Scratch, argument, read
from ladder.bench import clock, profile
from ladder.console import NO_DEVICE, Stop
from ladder.figures.tables import profile_table
from ladder.files import machine_of
from ladder.npy import npy

CXX = "c++"


def source(variant):
    return read(ROOT, clock.source_of(variant))


class Planting(unittest.TestCase):
    def test_the_marks_of_a_step_in_the_order_of_the_loop(self):
        overlapped = """mark(step, 0); start_scores(); mark(step, 1); start_output();
            mark(step - 1, 5); wgmma_wait<1>(S); mark(step, 2); softmax(step * Bc); mark(step, 3);
            wgmma_wait<0>(O_sum, P); mark(step - 1, 6); P = as_operand<T>(S); mark(step, 4);"""
        in_turn = """K.wait(); mark(step, 0); mark(step, 1); wgmma_wait<0>(S); mark(step, 2);
            mark(step, 3); mul_rows(O_sum, alpha); auto P = as_operand<T>(S); mark(step, 4);
            mark(step, 5); wgmma_wait<0>(O_sum, P); mark(step, 6);"""
        for variant in clock.VARIANTS:
            text = clock.with_marks(source(variant), variant).replace("marks.add(consumer, ",
                                                                      "mark(")
            marked = " ".join(line for line in text.split("\n") if "mark(" in line)
            self.assertEqual(marked.split(), (
                in_turn if variant == "producer" else overlapped).split(), variant)

    def test_a_line_that_is_gone_or_stands_twice_is_named(self):
        softmax, wait = "    softmax(step * Bc);\n", "    wgmma_wait<1>(S);\n"
        overlap, producer = source("overlap"), source("producer")
        for variant, text, said in (
                ("overlap", overlap.replace(softmax, ""), "'softmax(step * Bc);' stands no times"),
                ("producer", producer.replace("    K.wait();\n", 2 * "    K.wait();\n"),
                 "'K.wait();' stands 2 times where one of 05_flash_v2/hopper/producer.cu"),
                # What stands outside the loop, or deeper in it, does not count.
                ("overlap", overlap.replace(wait, wait[2:] + "  " + wait),
                 "'wgmma_wait<1>(S);' stands no times")):
            with self.assertRaises(Stop) as stop:
                clock.with_marks(text, variant)
            self.assertIn(said, str(stop.exception))

    def test_the_copies_compile_for_the_sim(self):
        with tempfile.TemporaryDirectory() as folder:
            clock.plant(folder)
            running = [subprocess.Popen(
                [CXX, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                 "-Wno-missing-field-initializers", "-Wno-unknown-pragmas", "-DLADDER_SIM",
                 "-I", os.path.join(ROOT, "common"), "-x", "c++",
                 os.path.join(folder, clock.source_of(variant))], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
                for variant in clock.VARIANTS]
            for process in running:
                said, _ = process.communicate(timeout=SECONDS)
                self.assertEqual(process.returncode, 0, said)


def words(first, step, parts, late=False, cycles=70000):
    """A consumer's 64 rows: step 0 begins at `first`, each takes `step` cycles, and its marks are
    so far from its begin; P·V's two, where they come late, from the next one's."""
    found = []
    for number in range(clock.STEPS):
        found += [first + step * (number + (late and what >= clock.O_ISSUED)) + part
                  for what, part in enumerate(parts)]
    return [*found, cycles, 40000] + [0] * (clock.ROWS - len(found) - 2)


# Begins, S issued, S done, softmax done, P ready, P·V issued, done.
IN_TURN = [0, 10, 100, 200, 220, 230, 300]  # then waits for 20
OVERLAPPED = [0, 10, 100, 200, 240, 20, 210]


class Reading(unittest.TestCase):
    def blocks(self, *consumers, block_q, seqlen):
        return clock.blocks_of([word for of in consumers for word in of], seqlen, block_q)

    def test_rows_become_blocks(self):
        one, two = words(1000, 320, IN_TURN), words(2000, 320, IN_TURN, cycles=123)
        blank = [float("nan")] * 64
        # Two heads of 192 rows: a block of 128 each, and rows of one that is not whole.
        found = self.blocks(one, two, blank, two, one, blank, block_q=128, seqlen=192)
        self.assertEqual([block.cycles for block in found], [70000, 123])
        self.assertEqual(found[0].consumers[0][1], [1320 + part for part in IN_TURN])
        self.assertEqual(found[0].consumers[1][7][clock.START], 2000 + 7 * 320)

    def test_lengths(self):
        for variant, parts, cycles in (
                ("producer", IN_TURN, {"S": 100, "softmax": 100, "rest": 20, "O": 80,
                                       "O_wait": 70, "wait": 20, "step": 320}),
                ("overlap", OVERLAPPED, {"S": 100, "softmax": 100, "rest": 30, "O": 200,
                                         "O_wait": 10, "wait": 80, "step": 320})):
            # The second consumer half a step later.
            late = variant == "overlap"
            found = clock.statistics_of(self.blocks(
                words(1000, 320, parts, late), words(1160, 320, parts, late), block_q=128,
                seqlen=128), variant)
            self.assertEqual(found["cycles"], cycles)
            self.assertEqual((found["blocks"], found["consumers"], found["sm_ghz"]), (1, 2, 1.75))

    def test_the_block_of_the_median_step_is_shown(self):
        blocks = self.blocks(*(words(first, step, IN_TURN)
                               for first, step in ((1, 330), (2, 350), (3, 340))), block_q=64,
                             seqlen=192)
        self.assertEqual([block.step() for block in blocks], [330, 350, 340])
        self.assertEqual(clock.statistics_of(blocks, "producer")["shown"][0][0],
                         [3 + part for part in IN_TURN])

    def test_what_are_no_marks(self):
        with self.assertRaises(Stop):
            clock.statistics_of(self.blocks([8.25] * 64, block_q=64, seqlen=64), "producer")


# In the place of both programs: takes the time that stands in its name, and saves marks.
PROGRAM = f'''\
#!{sys.executable}
import json, os, sys
given = dict(zip(sys.argv[1:], sys.argv[2:]))
print(*sys.argv[1:], file=open(os.environ["CALLED"], "a"))
if "OLD" in os.environ:
    print("05_flash_v2: producer needs a Hopper GPU", file=sys.stderr)
    sys.exit(3)
if "--save" in given:
    with open(given["--save"] + "/lse.npy", "wb") as file:
        file.write(open(os.environ["LSE"], "rb").read())
tflops = 250 if "marked" in sys.argv[0] else 500
print(json.dumps({{"tflops": tflops, "block_q": 64, "block_kv": 128}}))
'''

# Every metric has the value 20, but for the cycles of all SMs.
NCU = f'''#!{sys.executable}
import json, os, sys
given = sys.argv[1:]
metrics = given[given.index("--metrics") + 1].split(",")
said = [metric for metric in metrics if metric != os.environ.get("LACKS")]
value = lambda metric: "2,640" if metric == "sm__cycles_active.sum" else "20"
with open(given[given.index("--log-file") + 1], "w") as file:
    print(os.environ.get("SAYS", "==PROF== Connected"), file=file)
    for row in (["ID", *said], ["", *("inst" for _ in said)], ["0", *map(value, said)]):
        print(",".join(f'"{{cell}}"' for cell in row), file=file)
program = os.path.basename(next(word for word in given if "bin/" in word))
for tile in (192, 128):
    print(json.dumps({{"rung": program, "batch": 4, "heads": 32, "block_q": tile,
                       "block_kv": 128}}))
print(*given, file=open(os.environ["CALLED"], "a"))
sys.exit(1 if "SAYS" in os.environ else 0)
'''


class Measuring(Scratch):
    """clock and profile, with programs and a machine that are made up."""

    def measured(self, part, program, **environment):
        """The file."""
        for name in ("bin/05_flash_v2", "bin/06_backward", "path/ncu", "marked"):
            self.write(name, program, 0o755)
        options = part.parse(["--bin", self.at("bin"), "--out", self.at("out.json")])
        with unittest.mock.patch.dict(os.environ, CALLED=self.at("called"), PATH=self.at("path"),
                                      **environment), \
                unittest.mock.patch.object(part, "machine", lambda *_: {
                    "gpu": "GPU", "driver": "1", "cuda": "13", "date": "today"}), \
                unittest.mock.patch.object(clock, "build", lambda *_: self.at("marked")), \
                contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(part.measure(options), 0)
        self.assertFalse(machine_of(self.at("out.json")))  # it is no measured grid's
        return json.loads(self.read("out.json"))

    def test_each_kernel_without_marks_and_with_them(self):
        with open(self.at("saved.npy"), "wb") as file:
            file.write(npy((1, 1, clock.SEQLEN), words(1000, 320, OVERLAPPED, True)
                           * (clock.SEQLEN // clock.ROWS)))
        found = self.measured(clock, PROGRAM, LSE=self.at("saved.npy"))
        log = self.called().splitlines()
        self.assertEqual(["--save" in line for line in log], [False, True] * 6)
        self.assertIn("--variant producer --batch 4 --heads 16 --seqlen 4096 --head-dim 128 "
                      "--dtype bf16 --check off", log[0])
        self.assertEqual(found["workload"], {
            "batch": 4, "seqlen": 4096, "heads": {"128": 16, "64": 32}, "dtype": "bf16",
            "causal": False})
        self.assertEqual([(one["variant"], one["head_dim"]) for one in found["steps"]],
                         [(v, d) for d in (128, 64) for v in clock.VARIANTS])
        last = found["steps"][-1]
        self.assertEqual((last["tflops"], last["tflops_marked"], last["blocks"],
                          last["cycles"]["step"]), (500, 250, 64, 320))

    def test_where_cycles_go_in_each_kernel_at_each_head_size(self):
        found = self.measured(profile, NCU)
        self.assertEqual([(one["rung"], one["variant"], one["kernel"], one["head_dim"])
                          for one in found["kernels"]],
                         [(*step, d) for step in profile.course.PROFILED for d in (64, 128)])
        self.assertIn("--kernel-name regex:key_gradients --launch-count 1", self.read("called"))
        # 132 SMs of 20 cycles; 4·32 heads of 32·32 tiles of the last record, the backward pass's.
        one = found["kernels"][0]
        self.assertEqual((one["cycles"], one["cycles_of_all"], one["block_q"]), (20, 2640, 128))
        lines = profile_table(unittest.mock.Mock(profile={**found, "seqlen": 256}))
        steps = 4 * 32 * 2 * 2
        cells = {line.split(" | ")[0]: line.split(" | ")[1] for line in lines if " | " in line}
        self.assertEqual(cells["| cycles"], f"{20 * 132 / steps:.0f}")
        self.assertEqual(cells["| tensor cores busy"], "20%")
        self.assertEqual(cells["| … for wgmma"], "20.00")

    def test_what_cannot_be_measured_is_named(self):
        lacking = profile.METRICS["stall_gmma"]
        for part, program, environment, said, status in (
                (clock, PROGRAM, {"OLD": "1"}, "05_flash_v2: producer needs a Hopper GPU",
                 NO_DEVICE),
                (profile, NCU, {"LACKS": lacking}, f"profile.py, '{lacking}'", NO_DEVICE),
                (profile, NCU, {"SAYS": "==ERROR== ERR_NVGPUCTRPERM"},
                 "05_flash_v2 failed:\n\n==ERROR== ERR_NVGPUCTRPERM", 1)):
            with self.subTest(said), self.assertRaises(Stop) as stop:
                self.measured(part, program, **environment)
            self.assertIn(said, str(stop.exception))
            self.assertEqual(stop.exception.status, status)
            self.assertEqual(len(self.called().splitlines()), 1)
            self.assertFalse(os.path.exists(self.at("out.json")))

    def test_without_a_gpu_or_ncu(self):
        for part, said in (("clock", "no GPU answers"), ("profile", "there is no ncu on PATH")):
            done = self.run_it(sys.executable, "-m", f"ladder.bench.{part}", PYTHONPATH=SCRIPTS,
                               PATH=self.at("path"), status=NO_DEVICE)
            self.assertIn(f"scripts/figures {part}: {said}", done.stderr)


if __name__ == "__main__":
    CXX = argument() or CXX
    unittest.main()
