"""Tests of scripts/figures clock and profile without a GPU: the marks fit the kernels, what they
say is worked out right, and so is what an ncu says that stands in for the real one.

Run alone: python3 scripts/tests/clock_test.py [c++]
"""

import array
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from base import ROOT, SCRIPTS, SECONDS, Scratch, argument, read
from ladder.bench import clock, profile
from ladder.console import NO_DEVICE, Stop
from ladder.figures.tables import clock_table, profile_table
from ladder.files import machine_of

CXX = "c++"


def source(kernel):
    return read(ROOT, clock.source_of(kernel))


PRODUCER, OVERLAP, *_ = clock.KERNELS
BACKWARD = clock.kernel_of("06_backward", "sm90")


class Planting(unittest.TestCase):
    def test_the_marks_of_a_step_in_the_order_of_the_loop(self):
        overlapped = """mark(step, 0); start_scores(); mark(step, 1); start_output();
            mark(step - 1, 5); wgmma_wait<1>(S); mark(step, 2); SOFTMAX; mark(step, 3);
            FINISH; mark(step - 1, 6); PACK; mark(step, 4);"""
        in_turn = """K.wait(); mark(step, 0); mark(step, 1); wgmma_wait<0>(S); mark(step, 2);
            mark(step, 3); mul_rows(O_sum, alpha); auto P = as_operand<T>(S); mark(step, 4);
            mark(step, 5); wgmma_wait<0>(O_sum, P); mark(step, 6);"""
        for kernel in clock.KERNELS:
            text = clock.with_marks(source(kernel), kernel)
            lines = [line.replace("marks.add(", "mark(") for line in text.split("\n")
                     if "marks.add(" in line]
            marked = " ".join(line.split("  //")[0] for line in lines)
            if kernel is BACKWARD:
                self.assertEqual(re.findall(r"mark\(step, (\d+)\)", marked),
                                 [str(mark) for mark in clock.BACKWARD])
                continue
            wanted = in_turn
            if kernel is not PRODUCER:
                softmax, finish, pack = (statement for statement, *_ in kernel.loop[3:])
                wanted = overlapped.replace("SOFTMAX;", softmax).replace("FINISH;", finish)
                wanted = wanted.replace("PACK;", pack)
            self.assertEqual(marked.split(), wanted.split(), kernel.variant)

    def test_what_is_gone_or_stands_twice_is_named(self):
        softmax, wait = "    softmax(step * Bc);\n", "    wgmma_wait<1>(S);\n"
        for kernel, text, said in (
                (OVERLAP, source(OVERLAP).replace(softmax, ""), "matches no lines"),
                (PRODUCER, source(PRODUCER).replace("    K.wait();\n", 2 * "    K.wait();\n"),
                 "matches 2 lines where one of 05_flash_v2/hopper/producer.cu"),
                # What stands outside the loop, or deeper in it, does not count.
                (OVERLAP, source(OVERLAP).replace(wait, wait[2:] + "  " + wait),
                 "matches no lines")):
            with self.assertRaises(Stop) as stop:
                clock.with_marks(text, kernel)
            self.assertIn(said, str(stop.exception))

    def test_the_copies_compile_for_the_sim(self):
        with tempfile.TemporaryDirectory() as folder:
            clock.plant(folder)
            running = [subprocess.Popen(
                [CXX, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                 "-Wno-missing-field-initializers", "-Wno-unknown-pragmas", "-DLADDER_SIM",
                 "-I", os.path.join(ROOT, "common"), "-x", "c++",
                 os.path.join(folder, clock.source_of(kernel))], stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
                for kernel in clock.KERNELS if kernel.variant not in ("ping_pong", "fp8")]
            for process in running:
                said, _ = process.communicate(timeout=SECONDS)
                self.assertEqual(process.returncode, 0, said)


def words(first, step, parts, late=(), cycles=70000, began=4294967000):
    """A consumer's words: step 0 begins `first` cycles after the block, each takes `step`, and its
    marks are so far from its begin, those of `late` from the next one's. The SM's clock goes over
    2^32."""
    found = [first + step * (number + (what in late)) + part
             for number in range(clock.STEPS) for what, part in enumerate(parts)]
    return [(began + word) % 2**32 for word in (*found, 0)] + [5, (began + cycles) % 2**32, 40005]


# Begins, S issued, S done, softmax done, P ready, P·V issued, done.
IN_TURN = [0, 10, 100, 200, 220, 230, 300]  # then waits for 20
OVERLAPPED = [0, 10, 100, 200, 240, 20, 210]
LATE = (clock.O_ISSUED, clock.O_DONE)
NOBODY = [0] * (clock.STEPS * 7 + 4)


class Reading(unittest.TestCase):
    def blocks(self, *consumers, marks=7):
        return clock.blocks_of([word for of in consumers for word in of], marks)

    def test_words_become_blocks(self):
        one, two = words(1000, 320, IN_TURN), words(2000, 320, IN_TURN, cycles=123)
        found = self.blocks(one, two, NOBODY, two, NOBODY, NOBODY, NOBODY, NOBODY, NOBODY)
        self.assertEqual([(block.cycles, block.nanoseconds, len(block.consumers))
                          for block in found], [(70000, 40000, 2), (123, 40000, 1)])
        self.assertEqual(found[0].consumers[0][1], [1320 + part for part in IN_TURN])
        self.assertEqual(found[0].consumers[1][7][clock.START], 2000 + 7 * 320)

    def test_lengths(self):
        backward = [0, 10, 110, 150, 151, 160, 165, 185, 215, 295]
        for kernel, parts, late, cycles in (
                (PRODUCER, IN_TURN, (), {"S": 100, "softmax": 100, "rest": 20, "O": 80,
                                         "O_wait": 70, "wait": 20, "step": 320}),
                (OVERLAP, OVERLAPPED, LATE, {"S": 100, "softmax": 100, "rest": 30, "O": 200,
                                             "O_wait": 10, "wait": 80, "step": 320}),
                (BACKWARD, backward, (), {"start": 10, "P": 100, "dS": 40, "barrier": 1,
                                          "dV_wait": 9, "issue": 5, "dQ_wait": 20, "dQ_sent": 30,
                                          "S_wait": 80, "rest": 25, "step": 320})):
            # The second consumer half a step later.
            nobody = [0] * (clock.STEPS * len(parts) + 4)
            found = clock.statistics_of(self.blocks(
                words(1000, 320, parts, late), words(1160, 320, parts, late), nobody,
                marks=len(parts)), kernel)
            self.assertEqual(found["cycles"], cycles)
            self.assertEqual((found["blocks"], found["consumers"], found["sm_ghz"]), (1, 2, 1.75))

    def test_the_parts_of_a_step_are_all_of_it(self):
        for kernel in clock.KERNELS:
            ends = sorted((begin % clock.NEXT, end % clock.NEXT)
                          for name, (begin, end) in kernel.spans.items()
                          if name not in ("step", "O" if kernel is not PRODUCER else "O_wait"))
            self.assertEqual(sorted(begin for begin, _ in ends), sorted(end for _, end in ends))

    def test_the_block_of_the_median_step_is_shown(self):
        blocks = self.blocks(*(row for first, step in ((1, 330), (2, 350), (3, 340))
                               for row in (words(first, step, IN_TURN), NOBODY, NOBODY)))
        self.assertEqual([block.step(PRODUCER.spans) for block in blocks], [330, 350, 340])
        self.assertEqual(clock.statistics_of(blocks, PRODUCER)["shown"][0][0],
                         [3 + part for part in IN_TURN])

    def test_what_are_no_marks(self):
        for found in ([], self.blocks(NOBODY, NOBODY, NOBODY),
                      self.blocks(words(1000, 320, IN_TURN[::-1]), NOBODY, NOBODY)):
            with self.assertRaises(Stop):
                clock.statistics_of(found, PRODUCER)


# In the place of both programs, without marks and with them.
PROGRAM = f'''\
#!{sys.executable}
import json, os, sys
given = dict(zip(sys.argv[1:], sys.argv[2:]))
print(*sys.argv[1:], file=open(os.environ["CALLED"], "a"))
if "OLD" in os.environ:
    print("05_flash_v2: producer needs a Hopper GPU", file=sys.stderr)
    sys.exit(3)
if "marked" in sys.argv[0]:
    of = f"{{os.path.basename(sys.argv[0])}}.{{given['--variant']}}"
    with open(os.environ["MARKS"], "wb") as file:
        file.write(open(os.path.join(os.environ["FOLDER"], of), "rb").read())
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
        for name in ("bin/05_flash_v2", "bin/06_backward", "path/ncu", "marked/05_flash_v2",
                     "marked/06_backward"):
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
        for kernel in clock.KERNELS:
            of = (words(1000, 320, range(len(kernel.marks))) if kernel is BACKWARD else
                  words(1000, 320, IN_TURN) if kernel is PRODUCER else
                  words(1000, 320, OVERLAPPED, LATE))
            with open(self.at(f"{kernel.rung}.{kernel.variant}"), "wb") as file:
                file.write(array.array("I", of + 2 * len(of) * [0]).tobytes())
        found = self.measured(clock, PROGRAM, FOLDER=self.root)
        log = self.called().splitlines()
        self.assertIn("--variant producer --batch 4 --heads 16 --seqlen 4096 --head-dim 128 "
                      "--dtype bf16 --check off", log[0])
        self.assertEqual(found["workload"], {
            "batch": 4, "seqlen": 4096, "heads": {"128": 16, "64": 32}, "dtype": "bf16",
            "causal": False})
        self.assertEqual([(one["rung"], one["variant"], one["head_dim"])
                          for one in found["steps"]],
                         [(kernel.rung, kernel.variant, d) for d in (128, 64)
                          for kernel in clock.KERNELS])
        last = found["steps"][-1]
        self.assertEqual((last["tflops"], last["tflops_marked"], last["blocks"],
                          last["cycles"]["step"]), (500, 250, 1, 320))
        lines = clock_table(unittest.mock.Mock(clock=found), "06_backward", ["sm90"])
        self.assertIn("| a step of a consumer | 320 | 320 |", lines)
        self.assertIn("| TFLOP/s without marks, and with | 500, 250 | 500, 250 |", lines)

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
