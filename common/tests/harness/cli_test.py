"""A rung's program as its users meet it: cli_test.py BIN_DIR RUNG [unittest's options].

Runs the program as a subprocess, on the sim unless a test says otherwise. Class `Rung` holds for
every rung and what is its own; the others are the same for all and are run on one, 06_backward,
which has LSE, tiles and a backward pass. What the command line refuses in which words is in
options_test.cpp, which .npy files are no arrays in npy_test.cpp. Python's standard library only.
"""

import ast
import contextlib
import glob
import gzip
import hashlib
import json
import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SECONDS = 600  # how long to wait for a program: a limit is for what hangs
BIN_DIR = RUNG = None

# Small workloads whose sizes all differ; every rung takes well under a second for them.
SMALL = "--device sim --batch 2 --heads 4 --kv-heads 2 --seqlen 40 --seqlen-kv 24 --head-dim 16"
TINY = "--device sim --heads 2 --seqlen 3 --seqlen-kv 5 --head-dim 8"
SIZES = "batch heads kv_heads seqlen seqlen_kv head_dim".split()

MODEL = "model_read_bytes model_write_bytes".split()
COUNTED = """requested_read_bytes requested_write_bytes distinct_read_bytes distinct_write_bytes
sram_read_bytes sram_write_bytes sram_operand_bytes matmul_flops exp_count other_flops barriers
bank_conflicts""".split()
DRAM = "dram_read_bytes dram_write_bytes l2_bytes l1_bytes".split()
TIMES = "time_ms time_ms_min time_ms_max samples tflops".split()
KEYS = {str: "rung variant direction device device_name dtype input".split(),
        int: ["seed", *SIZES, "workspace_bytes"], bool: "causal deterministic pass".split(),
        float: ["scale"], dict: ["settings", "errors"], list: ["kernels"]}


def steps():
    """What --list says of the sim: one object for each variant."""
    listed = subprocess.run([os.path.join(BIN_DIR, RUNG), "--list"], stdout=subprocess.PIPE,
                            check=True, text=True).stdout
    return [step for step in map(json.loads, listed.splitlines()) if step["device"] == "sim"]


def has_gpu():
    return bool(glob.glob("/dev/nvidia[0-9]*"))


def npy(shape, values=None, descr="<f2", version=1):
    """The bytes of a .npy file; by default of small numbers that are not all alike."""
    if values is None:
        values = [(i * 7 % 13 - 6) / 8 for i in range(math.prod(shape))]
    data = struct.pack(f"<{len(values)}{'e' if descr == '<f2' else 'f'}", *values)
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}".encode()
    length = struct.Struct("<H" if version == 1 else "<I")
    header += b" " * (-(8 + length.size + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + length.pack(len(header)) + header + data


def read_npy(path):
    """(descr, shape, bytes of the values) of a file of version 1."""
    with open(path, "rb") as file:
        content = file.read()
    begin = 10 + struct.unpack("<H", content[8:10])[0]
    header = ast.literal_eval(content[10:begin].decode())
    return header["descr"], header["shape"], content[begin:]


def values_of(saved):
    descr, _, data = saved
    return [x[0] for x in struct.iter_unpack({"<f2": "<e", "<f4": "<f"}[descr], data)]


def to_bf16(x):
    """x, a float32 value, rounded to nearest even in bf16."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def strict_json(line):
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="ladder_cli_test_")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def put(self, content, *names):
        os.makedirs(os.path.dirname(self.path(*names)), exist_ok=True)
        with open(self.path(*names), "wb") as file:
            file.write(content)

    def command(self, arguments):
        words = shlex.split(arguments) if isinstance(arguments, str) else arguments
        return [os.path.join(BIN_DIR, RUNG), *words]

    def put_inputs(self, shape_q, shape_kv=None, descr="<f2", version=1, **values):
        """in/q.npy, k.npy, v.npy of these shapes; by name the values of some."""
        for name, shape in zip("qkv", (shape_q, *[shape_kv or shape_q] * 2)):
            self.put(npy(shape, values.get(name), descr, version), "in", f"{name}.npy")

    def execute(self, arguments, **more):
        """Runs the program in the test's folder."""
        more.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(self.command(arguments), stderr=subprocess.PIPE, text=True,
                              timeout=SECONDS, cwd=self.folder, **more)

    def good(self, arguments):
        done = self.execute(arguments)
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stderr}")
        return done

    def objects(self, arguments, status=0):
        """What a run prints under --json."""
        done = self.execute(arguments + " --json")
        self.assertEqual(done.returncode, status, f"{arguments}\n{done.stderr}")
        lines = done.stdout.split("\n")
        self.assertEqual(lines.pop(), "", "the last line ends with a newline")
        return [strict_json(line) for line in lines]

    def saved(self, arguments):
        """What read_npy says of every file that a run saves, by name without suffix."""
        out = tempfile.mkdtemp(dir=self.folder)
        self.good(f"{arguments} --save {out}")
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
        left = [os.path.join(folder, name) for folder, _, names in os.walk(self.folder)
                for name in names if name.endswith(".tmp") or name.startswith(".")
                or folder.endswith("out")]
        self.assertEqual(left, [])

    def check_object(self, o, device):
        """Every key and its type; null exactly where nothing exists."""
        def check(part, keys, *types):
            for key in keys:
                # A bool is an int in Python, and must not pass for one here.
                ok = type(part[key]) in types or float in types and type(part[key]) is int
                self.assertTrue(ok, f"{key} is {part[key]!r}, not one of {types}")

        none = type(None)
        for type_of, keys in KEYS.items():
            check(o, keys, type_of)
        check(o, "block_q block_kv warps stages smem_bytes".split(), int, none)
        check(o, TIMES, none if device == "sim" else float)
        self.assertTrue(o["kernels"])
        for part in [o, *o["kernels"]]:
            check(part, MODEL, int)
            check(part, COUNTED, int if device == "sim" else none)
            check(part, DRAM, none, *([int] if device == "gpu" else []))
        for kernel in o["kernels"]:
            check(kernel, ["name"], str)
            check(kernel, ["time_ms"], none if device == "sim" else float)
            for array in kernel["arrays"].values():
                check(array, ("read", "write"), int)
        for name, error in o["errors"].items():
            check(error, ("max", "rel", "rms"), float)
            check(error, ["nonfinite"], int)
            check(error, ["tolerance"], none if name == "o_full" else float)  # has no tolerance
            if name != "o_full":
                self.assertLessEqual(error["max"], error["tolerance"])

    def check_run(self, arguments, device):
        backward = any(step["backward"] for step in steps())
        objects = self.objects(arguments)
        self.assertEqual([o["direction"] for o in objects], ["fwd", "bwd"][:1 + backward])
        for o in objects:
            self.check_object(o, device)
            self.assertEqual((o["rung"], o["device"], o["pass"]), (RUNG, device, True))
            self.assertEqual(sorted(o), sorted(objects[0]))
            gradients = {"dO", "dQ", "dK", "dV"}
            used = gradients & {name for kernel in o["kernels"] for name in kernel["arrays"]}
            self.assertEqual(used, gradients if o["direction"] == "bwd" else set())
        return objects


class Rung(Case):
    # What a rung's default step does, and what --help says the rung does not take.
    #        LSE, backward, S and P stored, maximum subtracted
    COURSE = {"00": (False, False, True, False, "block-q block-kv set deterministic baseline"),
              "01": (False, False, True, False, "block-q block-kv set deterministic"),
              "02": (False, False, True, True, "block-q block-kv set deterministic baseline"),
              "03": (False, False, False, True, "block-q block-kv set deterministic baseline"),
              "04": (True, False, False, True, "set deterministic baseline"),
              "05": (True, False, False, True, "deterministic baseline"),
              "06": (True, True, False, True, "set baseline")}

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
        missing = re.findall(r"--(\S+).*needs a step ", self.good("--help").stdout)
        found = ("lse" in o["errors"], bool(more), o["workspace_bytes"] >= 2 * 2 * sizes,
                 not loud.returncode, " ".join(missing))
        self.assertEqual(found, self.COURSE.get(RUNG[:2], found))
        self.assert_bad("--device sim --batch 2147483647 --heads 1 --seqlen 4096 --head-dim 256",
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

    def test_every_variant(self):
        for step in steps():
            variant = step["variant"]
            objects = self.check_run(f"{TINY} --variant {variant} --save {variant}", "sim")
            self.assertEqual({o["variant"] for o in objects}, {variant})
            names = {name for o in objects for name in o["errors"]} - {"o_full"}
            self.assertEqual(set(os.listdir(self.path(variant))), {f"{n}.npy" for n in names})
            if step["default"]:
                self.assertEqual(self.objects(TINY)[0]["variant"], variant)

    def test_keys_and_types(self):
        for o in self.check_run(SMALL, "sim"):
            self.assertEqual([o[s] for s in SIZES], [2, 4, 2, 40, 24, 16])
            self.assertEqual((o["dtype"], o["input"], o["seed"]), ("fp16", "normal", 0))
            self.assertEqual((o["causal"], o["scale"]), (False, 0.25))
            for k in o["kernels"]:
                self.assertLessEqual(k["sram_operand_bytes"], k["sram_read_bytes"])
                for way in ("read", "write"):
                    self.assertEqual(k[f"requested_{way}_bytes"],
                                     sum(a[way] for a in k["arrays"].values()))
                    self.assertLessEqual(k[f"distinct_{way}_bytes"], k[f"requested_{way}_bytes"])
            for way in ("read", "write"):
                self.assertEqual(o[f"requested_{way}_bytes"], o[f"model_{way}_bytes"])
            for key in set(COUNTED) - {"distinct_read_bytes", "distinct_write_bytes"}:
                self.assertEqual(o[key], sum(k[key] for k in o["kernels"]), key)

    @unittest.skipUnless(has_gpu(), "no GPU here")
    def test_keys_and_types_on_the_gpu(self):
        for o in self.check_run(SMALL.replace("sim", "gpu") + " --time 5", "gpu"):
            self.assertLessEqual(o["time_ms_min"], o["time_ms"])
            self.assertLessEqual(o["time_ms"], o["time_ms_max"])

    def test_settings(self):
        for step in steps():
            settings = dict(step["settings"])
            if not settings:
                continue
            run = f"{TINY} --variant {step['variant']}"
            last = {name: values[-1] for name, values in settings.items()}
            self.assertEqual(self.objects(run)[0]["settings"],
                             {name: values[0] for name, values in settings.items()})
            given = ",".join(f"{name}={value}" for name, value in last.items())
            self.assertEqual(self.objects(f"{run} --set {given}")[0]["settings"], last)
            self.assertIn(given.split(",")[0], self.good(f"{run} --set {given}").stdout)

    def test_a_tile_that_does_not_fit_gives_way(self):
        if RUNG[:2] not in ("04", "05"):
            self.skipTest("no tile sizes, or a backward pass whose own tile may not fit either")
        best, = self.objects(SMALL)
        short = f"{SMALL} --sram {best['smem_bytes'] - 1}"
        needs = f"{best['block_q']}×{best['block_kv']} needs {best['smem_bytes']} bytes"
        done = self.good(f"{short} --verbose")
        self.assertRegex(done.stderr, rf"tile \d+×\d+: {needs}; there are")
        self.assertNotIn("tile", self.good(short).stderr)
        # One that was asked for does not give way.
        asked = f"--block-q {best['block_q']} --block-kv {best['block_kv']}"
        self.assert_bad(f"{short} {asked}", 2, asked, needs, "sizes that fit: ")
        # Nor does a step: it names those that do.
        variant, others = {"04": ("flash_v1", ""),
                           "05": ("swap", "; steps that fit: rows, mma, split_kv")}[RUNG[:2]]
        self.assert_bad(f"{SMALL} --variant {variant} --head-dim 256 --sram 101376", 2,
                        f"sizes that fit: none{others}")

    def test_the_baseline_is_one_object_more(self):
        if RUNG[:2] != "01":
            self.skipTest("01 alone takes --baseline")
        arguments = SMALL.replace("sim", "gpu") + " --time 5 --baseline cublas"
        if not has_gpu():
            self.assert_bad("--baseline cublas", 3, "--baseline cublas needs a GPU")
            self.assert_bad(arguments, 3, "no GPU")
            return
        ours, baseline = self.objects(arguments)
        self.check_object(ours, "gpu")
        self.assertEqual((baseline["rung"], baseline["variant"]), (RUNG, "cublas"))
        self.assertEqual([k["name"] for k in baseline["kernels"]], ["scores", "output"])
        self.assertEqual(sorted(baseline), sorted(ours))
        for part in [baseline, *baseline["kernels"]]:
            self.assertEqual({part[key] for key in MODEL + COUNTED + DRAM}, {None})
            self.assertIs(type(part["time_ms"]), float)
        for key in "errors pass block_q block_kv warps stages smem_bytes".split():
            self.assertIsNone(baseline[key], key)
        for key in [*SIZES, "scale", "workspace_bytes"]:
            self.assertEqual(baseline[key], ours[key])
        table = self.good(arguments).stdout
        self.assertRegex(table, r"products against cublas's: scores \d+\.\d\d, output")


class Options(Case):
    def test_they_reach_the_run(self):
        arguments = "--dtype bf16 --scale 0.5 --causal --input outliers --seed 18446744073709551615"
        for o in self.objects(f"{SMALL} {arguments} --block-q 64 --block-kv 64 --check full"):
            self.assertEqual((o["dtype"], o["scale"], o["causal"]), ("bf16", 0.5, True))
            self.assertEqual((o["input"], o["seed"], o["pass"]), ("outliers", 2**64 - 1, True))
        self.assertEqual([self.objects(f"{TINY} --block-kv 32 --head-dim 256")[0][key]
                          for key in ("block_q", "block_kv")], [64, 32])
        # Any positive scale is a scale.
        for scale in ("1e-45", "1e-30"):
            self.assertTrue(all(o["pass"] for o in self.objects(f"{SMALL} --scale {scale}")))
        for o in self.objects(f"{TINY} --check off"):
            self.assertEqual((o["pass"], o["errors"]), (None, None))
        self.assertIn("not checked", self.good(f"{TINY} --check off --causal").stdout)
        self.assertRegex(self.good("--version").stdout, rf"^{RUNG} .*version \S+\n$")

    def test_several_variants_report_what_each_does_alone(self):
        names = [step["variant"] for step in steps() if step["device"] == "sim"]
        self.assertGreater(len(names), 1)
        alone = [o for name in names for o in self.objects(f"{TINY} --causal --variant {name}")]
        together = f"{TINY} --causal --variant {','.join(names)}"
        self.assertEqual(self.objects(together), alone)
        self.assertEqual(self.good(together).stdout.count("pass: "),
                         sum(len(o["errors"]) for o in alone))

    def test_json_or_a_table(self):
        for o in self.objects(f"{TINY} --verbose --schedule reverse --save out"):
            self.assertIsInstance(o, dict)  # and all else went to stderr
        done = self.good(SMALL)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)
        self.assertNotRegex(done.stdout + done.stderr, "[\x1b{]")
        self.assertIn("pass", done.stdout)

    def test_options_of_the_gpu_on_the_sim(self):
        done = self.good(f"{TINY} --time 5 --warm --dram")
        self.assertEqual(done.stderr, "--dram: no DRAM bytes: the counters are a GPU's; the sim "
                                      "counts requested and distinct bytes\n")

    @unittest.skipUnless(has_gpu(), "no GPU here")
    def test_dram(self):
        arguments = SMALL.replace("sim", "gpu") + " --time 5 --dram"

        def alone(command):
            # Other rungs' tests run beside this one, and the counters are one program's at a time.
            for _ in range(40):
                done = self.good(command)
                if "another profiler" not in done.stderr:
                    break
                time.sleep(0.5)
            return done

        done = alone(arguments + " --json")
        objects = [strict_json(line) for line in done.stdout.splitlines()]
        for o in objects:
            self.check_object(o, "gpu")
        if "--dram: no DRAM bytes: " in done.stderr:  # no permission, no CUPTI: the rest stands
            self.assertIsNone(objects[0]["dram_read_bytes"])
            self.skipTest(done.stderr.strip())
        for part in [p for o in objects for p in [o, *o["kernels"]]]:
            self.assertEqual({type(part[key]) for key in DRAM}, {int})
        self.assertIn("DRAM read", alone(arguments).stdout)

    @unittest.skipIf(has_gpu(), "there is a GPU here")
    def test_without_a_gpu(self):
        done = self.good(TINY.replace("--device sim", "--device auto") + " --json")
        self.assertEqual(strict_json(done.stdout.splitlines()[0])["device"], "sim")
        self.assertRegex(done.stderr, "running on the sim: .*GPU")
        self.assert_bad("--device gpu", 3, "GPU", "--device sim")

    def test_schedules_give_the_same_bits(self):
        first = self.saved(f"{SMALL} --deterministic")
        for schedule in ("reverse", "random", "random:7"):
            self.assertEqual(self.saved(f"{SMALL} --deterministic --schedule {schedule}"), first)
        for o in self.objects(f"{SMALL} --deterministic"):
            self.assertTrue(o["deterministic"])

    def test_what_a_terminal_would_obey_is_written_out(self):
        control = "no\x1b[31m\rb\x7f\x9b"
        for words in (["--variant", control], ["--load", control], ["--" + control]):
            done = self.execute(words)
            self.assertEqual(done.returncode, 2)
            self.assertIn("\\x1b[31m\\x0db\\x7f\\x9b", done.stderr)
            self.assertNotRegex(done.stderr, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        self.assertIn("café", self.execute(["--variant", "café"]).stderr)

    def test_what_the_command_line_refuses_runs_nothing(self):
        self.assert_bad("--nonsense", 2, "--nonsense", "--help")
        self.assert_bad("--heads 4 --kv-heads 3", 2, "kv-heads 3")

    def test_workloads_larger_than_the_memory(self):
        self.assert_bad("--device sim --variant stored --heads 1 --seqlen 4000000 --head-dim 8", 3,
                        "GiB", "S, P and dP", "the steps of 06_backward after it")


class Traces(Case):
    def trace(self, arguments):
        """(the run, [its lines])."""
        self.good(f"{TINY} {arguments} --trace trace.json")
        self.assertEqual(os.listdir(self.folder), ["trace.json"])
        with open(self.path("trace.json"), encoding="utf-8") as file:
            head, *lines = [strict_json(line) for line in file]
        self.assertEqual(head["rung"], RUNG)
        return lines

    def test_what_blocks_do(self):
        lines = self.trace("")
        # What it adds up to, explore_test.py has.
        arrays, *rest = lines
        self.assertIn("Q", arrays["arrays"])
        launches = [line for line in rest if "shared" in line and "kernel" in line]
        self.assertEqual([line["launch"] for line in launches], list(range(len(launches))))
        self.assertEqual({tuple(line)[:4] for line in rest[len(launches):]},
                         {("do", "launch", "block", "warp")})

    def test_compressed(self):
        self.trace("")
        self.good(f"{TINY} --trace trace.json.gz")
        with gzip.open(self.path("trace.json.gz")) as packed, \
                open(self.path("trace.json"), "rb") as plain:
            self.assertEqual(packed.read(), plain.read())

    def test_hopper(self):
        self.assertLessEqual({"tma_load", "mbarrier_wait", "wgmma", "named_barrier_sync", "exit"},
                             {line.get("do") for line in self.trace("--variant sm90")})

    def test_a_fault_leaves_a_trace(self):
        """Of a run that stops. What else it would have written is not there."""
        done = self.execute(f"{TINY} --variant stored --sram 16 --trace trace.json --save out")
        self.assertEqual(done.returncode, 1)
        self.assertIn("of shared memory for a block, more than the 16 there are", done.stderr)
        with open(self.path("trace.json"), encoding="utf-8") as file:
            self.assertIn([strict_json(line) for line in file][-1]["fault"], done.stderr)
        self.assertEqual(os.listdir(self.path("out")), [])


class Files(Case):
    def loaded(self, more=""):
        return self.saved(f"--device sim --load in {more}")

    def test_saved_files_have_the_types_and_shapes_of_the_contract(self):
        shapes = {"o": (2, 4, 40, 16), "lse": (2, 4, 40), "dq": (2, 4, 40, 16),
                  "dk": (2, 2, 24, 16), "dv": (2, 2, 24, 16)}
        for dtype, descr in (("fp16", "<f2"), ("bf16", "<f4")):
            for name, (saved_descr, shape, data) in self.saved(f"{SMALL} --dtype {dtype}").items():
                self.assertEqual(shape, shapes[name])
                self.assertEqual(saved_descr, "<f4" if name == "lse" else descr)
                self.assertEqual(len(data), math.prod(shape) * int(saved_descr[2:]))

    def test_shapes_come_from_the_files(self):
        self.put_inputs((1, 4, 5, 24), (1, 2, 7, 24))
        for o in self.objects("--device sim --load in --causal --dtype bf16"):
            self.assertEqual([o[s] for s in SIZES], [1, 4, 2, 5, 7, 24])
            self.assertAlmostEqual(o["scale"], 24**-0.5, places=6)
            self.assertTrue(o["causal"])
        self.assertEqual(self.objects("--device sim --load in --scale 0.5")[0]["scale"], 0.5)

    def test_the_same_seed_gives_the_same_bits_and_replaces_the_files(self):
        first = self.saved(f"{TINY} --seed 5")["o"]
        for more in ("--seed 6", "--seed 5 --input outliers", "--seed 5"):
            self.good(f"{TINY} --save out {more}")
            again = read_npy(self.path("out", "o.npy"))
            (self.assertEqual if more == "--seed 5" else self.assertNotEqual)(again, first)

    def test_the_generator_is_the_same_on_every_platform(self):
        # With one key, P is 1 and O is V: the input itself.
        shape = "--device sim --heads 64 --seqlen 1 --seqlen-kv 1 --head-dim 256"
        for arguments, digest in (("--seed 0", "4bfc954c162f86cd"),
                                  ("--seed 123456789012345 --dtype bf16", "1aea145ffc3b498a"),
                                  ("--seed 7 --input outliers", "476bd9f1cdfd019b")):
            data = self.saved(f"{shape} {arguments}")["o"][2]
            self.assertEqual(hashlib.sha256(data).hexdigest()[:16], digest, arguments)

    def test_loaded_values_come_back_bit_for_bit(self):
        rng = random.Random(1)
        bits = [rng.randrange(0x7C00) | rng.choice((0, 0x8000)) for _ in range(64)]
        # −0 becomes 0 when it is added to the accumulator's 0.
        values = [struct.unpack("<e", struct.pack("<H", b))[0] or 0.0 for b in bits]
        for descr in ("<f2", "<f4"):
            self.put_inputs((1, 2, 1, 32), descr=descr, v=values)
            self.assertEqual(self.loaded("--check off")["o"],
                             ("<f2", (1, 2, 1, 32), struct.pack("<64e", *values)))

    def test_float32_is_rounded_to_nearest_even(self):
        for dtype, ulp, more in (("fp16", 2.0**-10, [2**-24 * 1.5, 65519.0]),
                                 ("bf16", 2.0**-7, [1e-30, 1e30])):
            values = [1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2**-20, -1 - ulp / 2, *more,
                      1 / 3, 3.141592653589793] * 2
            self.put_inputs((1, 2, 1, 8), descr="<f4", v=values)
            found = self.loaded(f"--check off --dtype {dtype}")["o"][2]
            self.assertEqual(found, struct.pack("<16e", *values) if dtype == "fp16" else
                             struct.pack("<16f", *map(to_bf16, values)))

    def test_what_was_saved_can_be_loaded(self):
        self.good(f"{TINY} --seqlen-kv 3 --save in")
        for saved, loaded in (("o", "q"), ("dk", "k"), ("dv", "v"), ("dq", "do")):
            os.rename(self.path("in", f"{saved}.npy"), self.path("in", f"{loaded}.npy"))
        for o in self.objects("--device sim --load in"):
            self.assertEqual((o["input"], o["seqlen"], o["pass"]), ("load", 3, True))
        from_half = self.loaded()
        # The same numbers as float32, in versions 2.0 and 3.0 of the format.
        values = {name: values_of(read_npy(self.path("in", f"{name}.npy"))) for name in "qkv"}
        for version in (2, 3):
            self.put_inputs((1, 2, 3, 8), descr="<f4", version=version, **values)
            self.assertEqual(from_half, self.loaded())

    def test_gradients_are_linear_in_do(self):
        self.put_inputs((1, 2, 9, 8))
        drawn = self.loaded()
        self.assertEqual(drawn, self.loaded())  # from the seed
        gradients = []
        for factor in (1, 2, 0):
            values = [factor * (i * 5 % 11 - 5) / 4 for i in range(144)]
            self.put(npy((1, 2, 9, 8), values), "in", "do.npy")
            out = self.loaded("--dtype bf16 --deterministic")
            gradients.append(sum([values_of(out[g]) for g in ("dq", "dk", "dv")], []))
        once, twice, none = gradients
        self.assertTrue(any(once))
        self.assertEqual(twice, [2 * x for x in once])
        self.assertFalse(any(none))
        self.assertNotEqual(drawn["dv"], self.loaded()["dv"])

    def test_files_that_are_no_inputs(self):
        many = (1, 2, 3, 8)
        self.put_inputs(many)
        self.put(npy(many), "in", "do.npy")
        self.good("--device sim --load in --save before")
        bad = [(name, None, "no such file") for name in "qkv"]
        bad += [("q", npy(many)[:-1], "truncated"), ("do", b"hello", "not a .npy"),
                ("v", npy(many, [math.inf] * 48), "inf"), ("do", npy(many, [math.nan] * 48), "nan"),
                ("k", npy(many, [7e4] * 48, "<f4"), "too large for fp16; try --dtype bf16")]
        shapes = {"dimension": [("q", (48,)), ("q", (1, 1, 2, 3, 8))],
                  "divide": [("q", (1, 3, 3, 8)), ("q", (1, 1, 3, 8))],
                  "agree": [("k", (1, 2, 4, 8)), ("v", (1, 2, 4, 8)), ("v", (1, 1, 3, 8)),
                            ("q", (2, 2, 3, 8)), ("q", (1, 2, 3, 16)), ("do", (1, 2, 4, 8)),
                            ("do", (1, 1, 3, 8)), ("do", (2, 2, 3, 8))]}
        bad += [(name, npy(shape), word) for word in shapes for name, shape in shapes[word]]
        for name, content, word in bad:
            path = self.path("in", f"{name}.npy")
            os.rename(path, path + ".good")
            if content is not None:
                self.put(content, path)
            with self.subTest(name=name, word=word):
                self.assert_bad("--device sim --load in", 2, f"{name}.npy", word)
            os.rename(path + ".good", path)
        for d in (12, 264):
            self.put_inputs((1, 2, 3, d))
            self.assert_bad("--load in", 2, str(d), "multiple of 8")
        self.assert_bad("--load none_such", 2, "none_such", "no such file")


class Places(Case):
    """Where files cannot be written, or not to their end. More of it in npy_test.cpp."""

    # Files of this process may hold 100 bytes; the header of an .npy file has 128.
    FULL = staticmethod(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))

    def test_folders_that_cannot_be_written(self):
        self.put(b"a file", "file")
        for arguments in ("--save file", "--save none/such/out", "--trace none_such/trace",
                          "--trace ."):
            done = self.execute(f"{TINY} {arguments}")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertIn(f"'{arguments.split()[-1]}'", done.stderr)
        os.makedirs(self.path("taken", "o.npy"))
        self.assertEqual(self.execute(f"{TINY} --save taken").returncode, 2)
        self.assertEqual(os.listdir(self.path("taken")), ["o.npy"])

    def test_a_full_disk(self):
        self.assert_bad(TINY, 2, "cannot write", preexec_fn=self.FULL)
        for name in ("t", "t.gz"):
            self.assert_bad(f"{TINY} --trace {name}", 2, "cannot write", save="",
                            preexec_fn=self.FULL)
            self.assertFalse(os.path.exists(self.path(name)))
        self.good(f"{TINY} --save before")
        before = read_npy(self.path("before", "o.npy"))
        done = self.execute(f"{TINY} --save before --seed 9", preexec_fn=self.FULL)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(os.listdir(self.path("before"))), 5)
        self.assertEqual(read_npy(self.path("before", "o.npy")), before)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full here")
    def test_a_full_device(self):
        self.assert_bad(f"{TINY} --trace /dev/full", 2, "/dev/full", "no space", save="")
        for arguments in (f"{TINY} --json", TINY, "--help", "--version"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = self.execute(arguments, stdout=full)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("No space", done.stderr)


class Interrupted(Case):
    def test_a_signal_ends_the_program_and_leaves_no_file(self):
        """More signals in npy_test.cpp."""
        process = subprocess.Popen(
            self.command("--device sim --seqlen 4096 --heads 4 --check off --save out --trace t"),
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # A shell in the background ignores SIGINT, and its children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        with contextlib.ExitStack() as stack:
            stack.callback(process.kill)
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline and not glob.glob(self.path("out", ".*")):
                time.sleep(0.01)
            self.assertTrue(glob.glob(self.path("out", ".*")))
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=SECONDS)
        # By the signal itself: a shell makes 128 + n of that.
        self.assertEqual((out, process.returncode), (b"", -signal.SIGINT))
        self.assert_nothing_left()
        self.assertFalse(os.path.exists(self.path("t")))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    BIN_DIR, RUNG = os.path.abspath(sys.argv[1]), sys.argv[2]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
