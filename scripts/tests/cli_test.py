"""A rung's program as its users meet it: cli_test.py BIN_DIR RUNG [unittest's options].

Runs the program as a subprocess, on the sim unless a test says otherwise. Class `Rung` holds for
every rung and what is its own; the others, and those of cli_files_test.py, are the same for all and
are run on one, 06_backward, which has LSE, tiles and a backward pass. What the command line refuses
in which words is in options_test.cpp.
"""

import ast
import glob
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import unittest

from base import SECONDS, Scratch
import ladder.base.npy
from ladder.base.programs import steps_of

if len(sys.argv) < 3:
    sys.exit(f"{sys.argv[0]} BIN_DIR RUNG [unittest's options]")
BIN_DIR, RUNG = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1)

# Small workloads whose sizes all differ; every rung takes well under a second for them.
SMALL = "--device sim --batch 2 --heads 4 --kv-heads 2 --seqlen 40 --seqlen-kv 24 --head-dim 16"
TINY = "--device sim --heads 2 --seqlen 3 --seqlen-kv 5 --head-dim 8"
SIZES = "batch heads kv_heads seqlen seqlen_kv head_dim".split()

MODEL = "model_read_bytes model_write_bytes".split()
COUNTED = """requested_read_bytes requested_write_bytes distinct_read_bytes distinct_write_bytes
sram_read_bytes sram_write_bytes sram_operand_bytes matmul_flops exp_count other_flops barriers
bank_conflicts""".split()
DRAM = "dram_read_bytes dram_write_bytes".split()


def steps(device="sim"):
    """What --list says of a device."""
    return [step for step in steps_of(os.path.join(BIN_DIR, RUNG)) if step.device == device]


def has_gpu():
    """Whether there is one here, and the program was built for it."""
    return bool(glob.glob("/dev/nvidia[0-9]*") and steps("gpu"))


def npy(shape, values=None, descr="<f2"):
    """The bytes of a .npy file; by default of small numbers that are not all alike."""
    if values is None:
        values = [(i * 7 % 13 - 6) / 8 for i in range(math.prod(shape))]
    return ladder.base.npy.npy(shape, values, descr)


def read_npy(path):
    """(descr, shape, values) of a file."""
    with open(path, "rb") as file:
        header = ast.literal_eval(file.read(128)[10:].decode())
    return header["descr"], header["shape"], ladder.base.npy.read_npy(path)


def strict_json(line):
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


class Case(Scratch):
    def put(self, content, *names):
        os.makedirs(os.path.dirname(self.at(*names)), exist_ok=True)
        with open(self.at(*names), "wb") as file:
            file.write(content)

    def command(self, arguments):
        words = shlex.split(arguments) if isinstance(arguments, str) else arguments
        return [os.path.join(BIN_DIR, RUNG), *words]

    def put_inputs(self, shape_q, shape_kv=None, descr="<f2", **values):
        """in/q.npy, k.npy, v.npy of these shapes; by name the values of some."""
        for name, shape in zip("qkv", (shape_q, *[shape_kv or shape_q] * 2)):
            self.put(npy(shape, values.get(name), descr), "in", f"{name}.npy")

    def execute(self, arguments, **more):
        """Runs the program in the test's folder."""
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.run(self.command(arguments), text=True, timeout=SECONDS, cwd=self.root,
                              **more)

    def good(self, arguments, status=0):
        return self.run_it(*self.command(arguments), status=status)

    def objects(self, arguments, status=0):
        """What a run prints under --json."""
        lines = self.good(arguments + " --json", status).stdout.split("\n")
        self.assertEqual(lines.pop(), "", "the last line ends with a newline")
        return [strict_json(line) for line in lines]

    def saved(self, arguments):
        """What read_npy says of every file that a run saves, in the folder out, by name without
        suffix."""
        out = self.at("out")
        shutil.rmtree(out, ignore_errors=True)
        self.good(f"{arguments} --save out")
        return {name[:-len(".npy")]: read_npy(os.path.join(out, name)) for name in os.listdir(out)}

    def assert_bad(self, arguments, status, *words, save=" --save out", **more):
        """The program refuses: status and words as given, nothing on stdout, nothing saved."""
        done = self.execute(arguments + save, **more)
        self.assertEqual(done.returncode, status, f"{arguments}\n{done.stderr}")
        for word in (f"{RUNG}: ", *words):
            self.assertIn(word.lower(), done.stderr.lower(), f"{arguments}")
        self.assertEqual(done.stdout or "", "", f"{arguments}")
        self.assert_nothing_left()

    def assert_nothing_left(self):
        left = [os.path.join(folder, name) for folder, _, names in os.walk(self.root)
                for name in names if name.endswith(".tmp") or name.startswith(".")
                or folder.endswith("out")]
        self.assertEqual(left, [])

class Rung(Case):
    # What a rung's default step does: LSE, backward, S and P stored, maximum subtracted.
    COURSE = {"00": (False, False, True, False), "01": (False, False, True, False),
              "02": (False, False, True, True), "03": (False, False, False, True),
              "04": (True, False, False, True), "05": (True, False, False, True),
              "06": (True, True, False, True)}

    def test_what_the_course_has(self):
        o, *more = self.objects(SMALL)
        sizes = o["batch"] * o["heads"] * o["seqlen"] * o["seqlen_kv"]
        loud = self.execute(f"{SMALL} --scale 200")
        if loud.returncode:
            self.assertEqual(loud.returncode, 1)
            self.assertRegex(loud.stdout, r"o +FAIL: .* not finite")
            self.assertRegex(loud.stderr, "maximum(.|\n)*02_safe_softmax")
        objects = self.objects(f"{SMALL} --scale 200", loud.returncode)
        self.assertEqual(all(o["pass"] for o in objects), not loud.returncode)
        found = ("lse" in o["errors"], bool(more), o["workspace_bytes"] >= 2 * 2 * sizes,
                 not loud.returncode)
        self.assertEqual(found, self.COURSE.get(RUNG[:2], found))
        self.assert_bad("--device sim --batch 524287 --heads 1 --seqlen 4096 --head-dim 256",
                        3, "GiB", "free")
        if found[2]:
            self.assert_bad("--device sim --heads 1 --seqlen 4000000 --head-dim 8", 3, "GiB",
                            "S and P", "03_online_softmax")

    def test_help(self):
        text = self.good("--help").stdout
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        examples = text.split("Examples\n")[1].splitlines()
        self.assertEqual(len(examples), 2)
        for example in examples:
            program, *arguments = shlex.split(example)
            self.assertEqual(program, RUNG)
            self.good([*arguments, "--device", "sim", "--check", "sampled"])

    def test_keys_and_types(self):
        """(What a key is: report_test.cpp; what the sim counts: results_test.)"""
        default, = (step for step in steps() if step.default)
        objects = self.objects(SMALL)
        self.assertEqual([o["direction"] for o in objects], ["fwd", "bwd"][:1 + default.backward])
        for o in objects:
            self.assertEqual((o["rung"], o["step"], o["device"], o["pass"]),
                             (RUNG, default.name, "sim", True))
            self.assertEqual([o[s] for s in SIZES], [2, 4, 2, 40, 24, 16])
            self.assertEqual((o["dtype"], o["input"], o["seed"]), ("fp16", "normal", 0))
            self.assertEqual((o["causal"], o["scale"]), (False, 0.25))
            for key in set(COUNTED) - {"distinct_read_bytes", "distinct_write_bytes"}:
                self.assertEqual(o[key], sum(k[key] for k in o["kernels"]), key)

    @unittest.skipUnless(has_gpu() and RUNG[:2] == "01", "01 alone has products by a library")
    def test_products_by_a_library_are_timed_alone(self):
        ours, = self.objects(f"{SMALL.replace('sim', 'gpu')} --time 5")
        theirs, = self.objects(f"{SMALL.replace('sim', 'gpu')} --time 5 --step cublas")
        self.assertEqual([k["name"] for k in theirs["kernels"]], ["scores", "output"])
        for part in [theirs, *theirs["kernels"]]:
            self.assertEqual({part[key] for key in MODEL + COUNTED + DRAM}, {None})
            self.assertIs(type(part["time_ms"]), float)
        for key in "errors pass block_q block_kv warps stages smem_bytes".split():
            self.assertIsNone(theirs[key], key)
        self.assertEqual(2 * theirs["workspace_bytes"], ours["workspace_bytes"])  # no P


class Options(Case):
    def test_several_steps_report_what_each_does_alone(self):
        names = [step.name for step in steps()]
        self.assertGreater(len(names), 1)
        alone = [o for name in names for o in self.objects(f"{TINY} --causal --step {name}")]
        together = f"{TINY} --causal --step {','.join(names)}"
        self.assertEqual(self.objects(together), alone)
        self.assertEqual(self.good(together).stdout.count("pass: "),
                         sum(len(o["errors"]) for o in alone))

    def test_json_or_a_table(self):
        for o in self.objects(f"{TINY} --verbose --schedule reverse --save out"):
            self.assertIsInstance(o, dict)  # and all else went to stderr
        self.assertNotRegex(self.good(SMALL).stdout, "[\x1b{]|.{101}")
        self.assertIn("not checked", self.good(f"{TINY} --check off").stdout)

    def test_options_of_the_gpu_on_the_sim(self):
        self.assertRegex(self.good(f"{TINY} --time 5 --dram").stderr,
                         "^--time: the sim is not timed, .*\n"
                         "--dram: no DRAM bytes: .* a GPU's; .*$")

    @unittest.skipUnless(has_gpu(), "no GPU here")
    def test_dram(self):
        arguments = SMALL.replace("sim", "gpu") + " --time 5 --dram"
        done = self.good(arguments + " --json")
        objects = [strict_json(line) for line in done.stdout.splitlines()]
        if "--dram: no DRAM bytes: " in done.stderr:  # no permission, no CUPTI: the rest stands
            self.assertIsNone(objects[0]["dram_read_bytes"])
            self.skipTest(done.stderr.strip())
        for part in [p for o in objects for p in [o, *o["kernels"]]]:
            self.assertEqual({type(part[key]) for key in DRAM}, {int})
        self.assertIn("DRAM read", self.good(arguments).stdout)

    @unittest.skipIf(has_gpu(), "there is a GPU here")
    def test_without_a_gpu(self):
        done = self.good(TINY.replace("--device sim", "--device auto") + " --json")
        self.assertEqual(strict_json(done.stdout.splitlines()[0])["device"], "sim")
        self.assertRegex(done.stderr, "running on the sim: .*GPU")
        self.assert_bad("--device gpu", 3, "GPU", "--device sim")

    def test_what_is_refused_runs_nothing(self):
        self.assert_bad("--nonsense", 2, "--nonsense", "--help")
        self.assert_bad("--device sim --step mma,nosuch", 2, "--step 'nosuch'", save="")
        self.assert_bad("--device sim --step stored --heads 1 --seqlen 4000000 --head-dim 8", 3,
                        "GiB", "S, P and dP", "the steps of 06_backward after it")

    def test_a_fault_leaves_a_trace(self):
        """Of a run that stops. What else it would have written is not there."""
        done = self.execute(f"{TINY} --step mma --scale 3e38 --trace trace.json --save out")
        self.assertEqual(done.returncode, 1)
        self.assertIn("2^NaN", done.stderr)
        with open(self.at("trace.json"), encoding="utf-8") as file:
            self.assertIn([strict_json(line) for line in file][-1]["fault"], done.stderr)
        self.assertEqual(os.listdir(self.at("out")), [])


if __name__ == "__main__":
    unittest.main()
