"""What the tests of a rung's program share: the command line BIN_DIR RUNG, a folder of their own,
and what the program printed and saved. Python's standard library only."""

import ast
import glob
import json
import math
import os
import shlex
import shutil
import subprocess
import sys

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

    def check_run(self, arguments, device):
        """A run that goes well: its objects, one a direction. (What a key is: report_test.cpp; what
        the sim counts: results_test.)"""
        objects = self.objects(arguments)
        backward = any(step.backward for step in steps())
        self.assertEqual([(o["rung"], o["direction"], o["device"], o["pass"]) for o in objects],
                         [(RUNG, way, device, True) for way in ("fwd", "bwd")[:1 + backward]])
        return objects
