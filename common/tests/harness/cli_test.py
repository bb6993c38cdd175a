"""A rung's program as its users meet it: cli_test.py BIN_DIR RUNG [unittest's options].

Runs the program as a subprocess, on the sim unless a test says otherwise: every option, every JSON
key, files that go in and out, and what is refused with which status, in which words, leaving
nothing behind. Python's standard library only.
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

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
SECONDS = 600  # how long to wait for a program: a limit is for what hangs
BIN_DIR = RUNG = None
DEFAULT = None  # the variant that runs where none is asked for

OPTIONS = """batch heads kv-heads seqlen seqlen-kv head-dim causal dtype scale input seed load save
device variant block-q block-kv set deterministic schedule sram trace check time warm dram baseline json
verbose help version""".split()

# A small workload whose sizes all differ; every rung takes well under a second for it.
SMALL = "--device sim --batch 2 --heads 4 --kv-heads 2 --seqlen 40 --seqlen-kv 24 --head-dim 16"
TINY = "--device sim --heads 2 --seqlen 3 --seqlen-kv 5 --head-dim 8"

BYTES = """model_read_bytes model_write_bytes requested_read_bytes requested_write_bytes
distinct_read_bytes distinct_write_bytes sram_read_bytes sram_write_bytes
sram_operand_bytes""".split()
COUNTS = "matmul_flops exp_count other_flops barriers".split()
DRAM = "dram_read_bytes dram_write_bytes l2_bytes l1_bytes".split()
TIMES = "time_ms time_ms_min time_ms_max samples tflops".split()


def number():
    return RUNG[:2]


def registration(rung, variant):
    """The .cu file that registers a step."""
    for path in glob.glob(os.path.join(ROOT, rung, "**/*.cu"), recursive=True):
        with open(path, encoding="utf-8") as file:
            source = file.read()
        if f'.name = "{variant}"' in source:
            return source
    raise LookupError(f"no .cu of {rung} registers {variant}")


def registers(text, variant=None):
    """Whether the .cu file that registers the variant, by default the default one, has this."""
    return text in registration(RUNG, variant or DEFAULT)


def has_lse(variant=None):
    """Whether its forward pass, or the one that it names, stores LSE."""
    source = registration(RUNG, variant or DEFAULT)
    named = re.search(r'\.forward_of = "(\w+)/(\w+)"', source)
    return ".has_lse = true" in (registration(*named.groups()) if named else source)


def has_backward():
    return any(step["backward"] for step in steps())


def takes_tiles():
    return any(step["tiles"] for step in steps())


def has_tiles():
    return any(step["tiles"] for step in steps() if step["default"])


def stores_s():
    return registers(".less_memory")


def subtracts_max():
    return not registers(".max_subtracted_by")


def saved_names(variant=None):
    names = ["o.npy"]
    if has_lse(variant):
        names.append("lse.npy")
    if has_backward():
        names += ["dq.npy", "dk.npy", "dv.npy"]
    return sorted(names)


def steps():
    """What --list says of the sim: one object for each variant."""
    listed = subprocess.run([os.path.join(BIN_DIR, RUNG), "--list"], stdout=subprocess.PIPE,
                            check=True, text=True).stdout  # fmt: skip
    return [step for step in map(json.loads, listed.splitlines()) if step["device"] == "sim"]


def variants():
    return [step["variant"] for step in steps()]


def with_settings():
    """[(variant, {setting: its values})] of those that have any."""
    return [(step["variant"], dict(step["settings"])) for step in steps() if step["settings"]]


def has_gpu():
    return bool(glob.glob("/dev/nvidia[0-9]*"))


def npy(shape, values=None, descr="<f2", fortran=False, version=(1, 0), header=None, data=None):
    """The bytes of a .npy file; by default of small numbers that are not all alike."""
    count = math.prod(shape)
    if data is None:
        if values is None:
            values = [(i * 7 % 13 - 6) / 8 for i in range(count)]
        code = {"f2": "e", "f4": "f", "f8": "d", "i4": "i"}[descr[1:]]
        if code == "i":
            values = [round(8 * v) for v in values]
        data = struct.pack(f"{descr[0]}{count}{code}", *values)
    if header is None:
        header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {tuple(shape)}, }}"
    header = header.encode()
    length = struct.Struct("<H" if version[0] == 1 else "<I")
    begin = 8 + length.size
    header += b" " * (-(begin + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + length.pack(len(header)) + header + data


def read_npy(path):
    """(descr, shape, bytes of the values); fails where the file is not what numpy.save writes."""
    with open(path, "rb") as file:
        content = file.read()
    assert content[:8] == b"\x93NUMPY\x01\x00", content[:8]
    begin = 10 + struct.unpack("<H", content[8:10])[0]
    assert begin % 64 == 0 and content[begin - 1 : begin] == b"\n"
    header = ast.literal_eval(content[10:begin].decode())
    assert sorted(header) == ["descr", "fortran_order", "shape"] and not header["fortran_order"]
    return header["descr"], header["shape"], content[begin:]


def read_values(path):
    descr, _, data = read_npy(path)
    code = {"<f2": "e", "<f4": "f"}[descr]
    return [x[0] for x in struct.iter_unpack("<" + code, data)]


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
        if isinstance(arguments, str):
            arguments = shlex.split(arguments)
        return [os.path.join(BIN_DIR, RUNG)] + list(arguments)

    def execute(self, arguments, **more):
        """Runs the program in the test's folder."""
        more.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(
            self.command(arguments),
            stderr=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            cwd=self.folder,
            **more,
        )

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

    def object(self, arguments):
        return self.objects(arguments)[0]

    def saved(self, arguments):
        """The bits of every file that a run saves, by name."""
        out = tempfile.mkdtemp(dir=self.folder)
        self.good(f"{arguments} --save {out}")
        self.assertEqual(sorted(os.listdir(out)), saved_names())
        return {name: read_npy(os.path.join(out, name)) for name in saved_names()}

    def assert_bad(self, arguments, status, words, **more):
        """The program refuses: status and words as given, nothing on stdout, nothing saved."""
        done = self.execute(arguments, **more)
        self.assertEqual(done.returncode, status, f"{arguments}\n{done.stderr}")
        for word in words:
            self.assertIn(word.lower(), done.stderr.lower(), f"{arguments}")
        self.assertIn(f"{RUNG}: ", done.stderr)
        self.assertEqual(done.stdout or "", "", f"{arguments}")
        self.assert_nothing_left()

    def assert_nothing_left(self):
        left = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.folder)
            for name in names
            if name in saved_names() or name.endswith(".tmp") or name.startswith(".")
        ]
        self.assertEqual(left, [])

    def assert_each_bad(self, cases, prefix=""):
        for arguments, status, *words in cases:
            with self.subTest(arguments=arguments):
                self.assert_bad(f"{prefix} {arguments}", status, words)

    # ---- the JSON ----

    def check_types(self, o, key, *types):
        self.assertIn(key, o)
        # A bool is an int in Python, and must not pass for one here.
        ok = any(type(o[key]) is t or (t is float and type(o[key]) is int) for t in types)
        self.assertTrue(ok, f"{key} is {o[key]!r}, not one of {types}")

    def check_object(self, o, device):
        none = type(None)
        count = int if device == "sim" else none
        for key in "rung variant direction device device_name dtype input".split():
            self.check_types(o, key, str)
        for key in "seed batch heads kv_heads seqlen seqlen_kv head_dim workspace_bytes".split():
            self.check_types(o, key, int)
        for key in "causal deterministic pass".split():
            self.check_types(o, key, bool)
        self.check_types(o, "scale", float)
        self.check_types(o, "settings", dict)
        for key in "block_q block_kv warps stages smem_bytes".split():
            self.check_types(o, key, int, none)
        for key in TIMES:
            self.check_types(o, key, none if device == "sim" else float)
        for part in [o] + o["kernels"]:
            for key in BYTES:
                self.check_types(part, key, int if key.startswith("model") else count)
            for key in DRAM:
                self.check_types(part, key, none, *([int] if device == "gpu" else []))
            for key in COUNTS:
                self.check_types(part, key, count)
        self.check_types(o, "kernels", list)
        self.assertTrue(o["kernels"])
        for kernel in o["kernels"]:
            self.check_types(kernel, "name", str)
            self.check_types(kernel, "time_ms", none if device == "sim" else float)
            self.check_types(kernel, "arrays", dict)
            for array in kernel["arrays"].values():
                for key in ("read", "write"):
                    self.check_types(array, key, int)
        self.check_types(o, "errors", dict)
        names = {"dq", "dk", "dv"} if o["direction"] == "bwd" else {"o"}
        if has_lse(o["variant"]) and o["direction"] == "fwd":
            names.add("lse")
        if o["direction"] == "fwd" and registers("plan.quantisation = ", o["variant"]):
            names.add("o_full")  # reported, with no tolerance
        self.assertEqual({k for k, v in o["errors"].items() if v is not None}, names)
        for name in names:
            error = o["errors"][name]
            for key in ("max", "rel", "rms"):
                self.check_types(error, key, float)
            self.check_types(error, "nonfinite", int)
            self.check_types(error, "tolerance", type(None) if name == "o_full" else float)
            if name != "o_full":
                self.assertLessEqual(error["max"], error["tolerance"])


class Help(Case):
    def test_help_shows_options_defaults_variants_and_examples(self):
        done = self.good("--help")
        for option in OPTIONS:
            self.assertRegex(done.stdout, rf"--{option}\b")
        for word in (
            "default 1)",
            "default 2)",
            "default 256)",
            "default 64)",
            "default fp16",
            "default normal",
            "default 0)",
            "default auto",
            "default forward",
            "1/sqrt(D)",
            "Variants of this rung",
        ):
            self.assertIn(word, done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)
        self.assertEqual(done.stderr, "")

    def test_examples_of_help_run(self):
        examples = self.good("--help").stdout.split("Examples\n")[1].splitlines()
        self.assertEqual(len(examples), 2)
        for example in examples:
            program, *arguments = shlex.split(example)
            self.assertEqual(program, RUNG)
            self.good(arguments + ["--device", "sim", "--check", "sampled"])

    def test_every_variant_of_help_runs(self):
        lines = self.good("--help").stdout.split("Variants of this rung")[1].split("\n\n")[0]
        names = [l.split()[0] for l in lines.splitlines()[1:] if l[2] != " " and "sim" in l]
        self.assertTrue(names)
        for name in names:
            self.assertEqual(self.object(f"{TINY} --variant {name}")["variant"], name)
        default = self.object(TINY)["variant"]
        self.assertIn(default, names)

    def test_version(self):
        self.assertRegex(self.good("--version").stdout, rf"{RUNG}.*version \S+\n$")


class Json(Case):
    """Every key and its type; null exactly where nothing exists."""

    def check_all(self, arguments, device):
        objects = self.objects(arguments)
        self.assertEqual(
            [o["direction"] for o in objects], ["fwd", "bwd"] if has_backward() else ["fwd"]
        )
        for o in objects:
            self.check_object(o, device)
            self.assertEqual((o["rung"], o["device"]), (RUNG, device))
            self.assertTrue(o["pass"])
        return objects

    def test_keys_and_types_on_the_sim(self):
        for o in self.check_all(SMALL, "sim"):
            sizes = "batch heads kv_heads seqlen seqlen_kv head_dim".split()
            self.assertEqual([o[s] for s in sizes], [2, 4, 2, 40, 24, 16])
            self.assertEqual((o["dtype"], o["input"], o["seed"]), ("fp16", "normal", 0))
            self.assertEqual((o["causal"], o["scale"]), (False, 0.25))

    def test_every_variant_has_the_keys_and_types(self):
        for variant in variants():
            for o in self.check_all(f"{TINY} --variant {variant}", "sim"):
                self.assertEqual(o["variant"], variant)

    def test_the_backward_pass_is_an_object_of_its_own(self):
        if not has_backward():
            self.skipTest("this rung has no backward pass")
        for variant in variants():
            forward, backward = self.objects(f"{SMALL} --variant {variant}")
            self.assertEqual(sorted(forward), sorted(backward))
            for key in forward:
                if key.startswith(("batch", "heads", "seqlen", "device", "scale", "seed")):
                    self.assertEqual(forward[key], backward[key], key)
            arrays = {name for kernel in backward["kernels"] for name in kernel["arrays"]}
            self.assertLessEqual({"dO", "dQ", "dK", "dV"}, arrays)
            of_forward = {name for kernel in forward["kernels"] for name in kernel["arrays"]}
            self.assertFalse({"dO", "dQ", "dK", "dV"} & of_forward)

    def test_keys_and_types_on_the_gpu(self):
        if not has_gpu():
            self.skipTest("no GPU here")
        for o in self.check_all(SMALL.replace("sim", "gpu") + " --time 5", "gpu"):
            self.assertLessEqual(o["time_ms_min"], o["time_ms"])
            self.assertLessEqual(o["time_ms"], o["time_ms_max"])

    def test_the_baseline_is_one_object_more(self):
        if number() != "01":
            self.skipTest("01 alone takes --baseline")
        if not has_gpu():
            self.skipTest("no GPU here")
        arguments = SMALL.replace("sim", "gpu") + " --time 5 --baseline cublas"
        ours, baseline = self.objects(arguments)
        self.check_object(ours, "gpu")
        self.assertEqual((baseline["rung"], baseline["variant"]), (RUNG, "cublas"))
        self.assertEqual([k["name"] for k in baseline["kernels"]], ["scores", "output"])
        self.assertEqual(sorted(baseline), sorted(ours))
        for part in [baseline] + baseline["kernels"]:
            for key in BYTES + COUNTS + DRAM:
                self.assertIsNone(part[key], key)
            self.check_types(part, "time_ms", float)
        for key in "errors pass block_q block_kv warps stages smem_bytes".split():
            self.assertIsNone(baseline[key], key)
        for key in "batch heads kv_heads seqlen seqlen_kv head_dim scale workspace_bytes".split():
            self.assertEqual(baseline[key], ours[key])
        table = self.good(arguments).stdout
        self.assertRegex(table, r"products against cublas's: scores \d+\.\d\d, output")

    def test_counts_add_up(self):
        for o in self.objects(SMALL):
            for way in ("read", "write"):
                requested = f"requested_{way}_bytes"
                self.assertEqual(o[requested], o[f"model_{way}_bytes"], "formula and count")
                self.assertEqual(o[requested], sum(k[requested] for k in o["kernels"]))
                for k in o["kernels"]:
                    self.assertEqual(k[requested], sum(a[way] for a in k["arrays"].values()))
                    self.assertLessEqual(k[f"distinct_{way}_bytes"], k[requested])
            for key in COUNTS:
                self.assertEqual(o[key], sum(k[key] for k in o["kernels"]), key)
            for k in o["kernels"]:
                self.assertLessEqual(k["sram_operand_bytes"], k["sram_read_bytes"])
            if stores_s():
                sizes = o["batch"] * o["heads"] * o["seqlen"] * o["seqlen_kv"]
                self.assertGreaterEqual(o["workspace_bytes"], 2 * 2 * sizes, "S and P")

    def test_stdout_is_pure_json_and_all_else_goes_to_stderr(self):
        done = self.good(f"{TINY} --json --verbose --schedule reverse --save out")
        for line in done.stdout.splitlines():
            self.assertIsInstance(strict_json(line), dict)
        # Also where the result is wrong or unchecked.
        self.objects(f"{TINY} --check off")
        self.objects(f"{SMALL} --scale 200", status=0 if subtracts_max() else 1)

    def test_a_table_otherwise(self):
        done = self.good(SMALL)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        self.assertNotIn("{", done.stdout)
        self.assertIn("pass", done.stdout)

    def test_unchecked_is_null(self):
        for o in self.objects(f"{TINY} --check off"):
            self.assertIsNone(o["pass"])
            self.assertIsNone(o["errors"])


class WorkedExample(Case):
    """The product that the lessons of 00 and 01 work out by hand: S of 32 × 32 with d = 32."""

    def test_element_reads_of_q_and_k(self):
        expected = {"00": {"": 65536}, "01": {"--variant tile": 4096}}.get(number())
        if not expected:
            self.skipTest("an example of 00 and 01")
        for variant, reads in expected.items():
            o = self.object(f"--device sim --heads 1 --seqlen 32 --head-dim 32 {variant}")
            scores = next(k for k in o["kernels"] if k["name"] == "scores")
            self.assertEqual(scores["requested_read_bytes"], 2 * reads)
            self.assertEqual(
                {name: a["read"] // 2 for name, a in scores["arrays"].items()},
                {"Q": reads // 2, "K": reads // 2, "S": 0},
            )


class Course(Case):
    """What the course's own rungs can do; of another rung its registration says it."""

    #         LSE, backward, tiles, S and P stored, maximum subtracted
    RUNGS = {"00": (False, False, False, True, False), "01": (False, False, False, True, False),
             "02": (False, False, False, True, True), "03": (False, False, False, False, True),
             "04": (True, False, True, False, True), "05": (True, False, True, False, True),
             "06": (True, True, True, False, True)}

    def test_what_this_rung_can_do(self):
        found = (has_lse(), has_backward(), has_tiles(), stores_s(), subtracts_max())
        self.assertEqual(found, self.RUNGS.get(number(), found))


class Options(Case):
    def test_shapes(self):
        for o in self.objects(f"{TINY} --heads 6"):
            self.assertEqual((o["batch"], o["heads"], o["kv_heads"]), (1, 6, 6))
        for o in self.objects("--device sim --seqlen 9 --heads 3 --kv-heads 1"):
            self.assertEqual((o["seqlen_kv"], o["head_dim"], o["kv_heads"]), (9, 64, 1))
            self.assertEqual(o["scale"], 0.125)
        for d in (8, 72, 256):
            for o in self.objects(f"{TINY} --head-dim {d}"):
                self.assertEqual(o["head_dim"], d)
                self.assertAlmostEqual(o["scale"], d**-0.5, places=6)

    def test_dtype_scale_causal_input_seed(self):
        arguments = "--dtype bf16 --scale 0.5 --causal --input outliers --seed 18446744073709551615"
        for o in self.objects(f"{SMALL} {arguments}"):
            self.assertEqual((o["dtype"], o["scale"], o["causal"]), ("bf16", 0.5, True))
            self.assertEqual((o["input"], o["seed"]), ("outliers", 2**64 - 1))
        # Any positive scale is a scale.
        for scale in ("1e-45", "1e-30", "0.25"):
            self.assertTrue(all(o["pass"] for o in self.objects(f"{SMALL} --scale {scale}")))

    def test_check(self):
        for how in ("full", "sampled"):
            self.assertTrue(all(o["pass"] for o in self.objects(f"{SMALL} --check {how}")))

    def test_options_of_the_gpu_on_the_sim(self):
        for o in self.objects(f"{TINY} --time 5 --warm --dram"):
            self.assertIsNone(o["time_ms"])
            self.assertIsNone(o["dram_read_bytes"])
        done = self.good(f"{TINY} --time 5 --warm --dram")
        self.assertEqual(
            done.stderr,
            "--dram: no DRAM bytes: the counters are a GPU's; the sim counts requested and "
            "distinct bytes\n",
        )

    def test_dram(self):
        if not has_gpu():
            self.skipTest("no GPU here")
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
        for part in [p for o in objects for p in [o] + o["kernels"]]:
            for key in DRAM:
                self.check_types(part, key, int)
        self.assertIn("DRAM read", alone(arguments).stdout)

    def test_device_auto(self):
        done = self.good(TINY.replace("--device sim", "--device auto") + " --json")
        device = strict_json(done.stdout.splitlines()[0])["device"]
        if not has_gpu():
            self.assertEqual(device, "sim")
            self.assertIn("sim", done.stderr, "says that it takes the sim, and why")
            self.assertIn("GPU", done.stderr)

    def test_device_gpu_without_one(self):
        if has_gpu():
            self.skipTest("there is a GPU here")
        self.assert_bad("--device gpu --save out", 3, ["GPU", "--device sim"])

    def test_tiles(self):
        if not has_tiles():
            self.skipTest("this rung takes no tile sizes")
        o = self.object(f"{SMALL} --block-q 64 --block-kv 64")
        self.assertEqual((o["block_q"], o["block_kv"]), (64, 64))
        self.assertTrue(o["pass"])

    def test_settings(self):
        for variant, settings in with_settings():
            first = {name: values[0] for name, values in settings.items()}
            last = {name: values[-1] for name, values in settings.items()}
            run = f"{TINY} --variant {variant}"
            self.assertEqual(self.object(run)["settings"], first)
            given = ",".join(f"{name}={value}" for name, value in last.items())
            self.assertEqual(self.object(f"{run} --set {given}")["settings"], last)
            name, values = list(settings.items())[0]
            twice = f"{run} --set {name}={values[0]} --set {name}={values[-1]}"
            self.assertEqual(self.object(twice)["settings"], {**first, name: values[-1]})
            self.assertIn(f"{name}={values[-1]}", self.good(twice).stdout)
            for values in settings.values():
                self.assertIn("|".join(values), self.good("--help").stdout)
            self.assert_each_bad([
                ("--set nonsense=1", 2, "nonsense", *settings),
                (f"--set {name}=nonsense", 2, f"{name}=nonsense", *settings[name]),
                (f"--set {name}", 2, name, "NAME=VALUE"),
                (f"--set {name}=", 2, name, "NAME=VALUE"),
                ("--set =1", 2, "NAME=VALUE"),
                (f"--set {name}={values[0]},", 2, "NAME=VALUE"),
            ], f"--save out --variant {variant}")
            self.assert_each_bad([
                (f"--set {name}={settings[name][0]}", 2, "--set", f"--variant {variant}"),
                (f"--set {name}={settings[name][0]} --variant {DEFAULT}", 2, DEFAULT,
                 f"--variant {variant}"),
            ], "--save out")

    def test_what_a_terminal_would_obey_is_written_out(self):
        for arguments in (["--variant", "a\x1b[31m\rb\x7f\x9b"], ["--no\x1b[31m\rb\x7f\x9b"],
                          ["--load", "no\x1b[31m\rb\x7f\x9b"]):
            done = self.execute(arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn("\\x1b[31m\\x0db\\x7f\\x9b", done.stderr)
            self.assertNotRegex(done.stderr, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        self.assertIn("café", self.execute(["--variant", "café"]).stderr)

    def test_a_default_tile_that_does_not_fit_gives_way(self):
        if not has_tiles() or has_backward():
            self.skipTest("no tile sizes, or a backward pass whose own tile may not fit either")
        best = self.object(SMALL)
        short = f"{SMALL} --sram {best['smem_bytes'] - 1}"
        done = self.good(f"{short} --verbose --json")
        smaller = strict_json(done.stdout)
        self.assertLess(smaller["smem_bytes"], best["smem_bytes"])
        self.assertTrue(smaller["pass"])
        best_tile, tile = (f"{o['block_q']}×{o['block_kv']}" for o in (best, smaller))
        self.assertIn(
            f"tile {tile}: {best_tile} needs {best['smem_bytes']} bytes; "
            f"there are {best['smem_bytes'] - 1}\n",
            done.stderr,
        )
        # Silent without --verbose; and a tile that was asked for does not give way.
        self.assertNotIn(tile, self.good(short).stderr)
        asked = f"--block-q {best['block_q']} --block-kv {best['block_kv']}"
        self.assert_bad(
            f"{short} {asked} --save out",
            2,
            [asked, f"{best_tile} needs {best['smem_bytes']} bytes", "sizes that fit: ", tile],
        )

    def test_a_tile_that_this_head_size_lacks(self):
        if not has_tiles():
            self.skipTest("this rung takes no tile sizes")
        asked = "--block-kv 128" if number() == "04" else "--block-q 128"
        words = [asked, "not compiled for this head size; sizes that fit: 64×64"]
        self.assert_bad(f"{SMALL} --head-dim 256 {asked} --save out", 2, words)

    def test_deterministic(self):
        if not has_backward():
            self.skipTest("this rung has no --deterministic")
        arguments = f"{SMALL} --deterministic"
        self.assertTrue(all(o["deterministic"] for o in self.objects(arguments)))
        first = self.saved(arguments)
        self.assertEqual(first, self.saved(f"{arguments} --schedule random:1"))
        self.assertEqual(first, self.saved(f"{arguments} --schedule reverse"))

    def test_schedules_give_the_same_bits(self):
        first = self.saved(SMALL)
        for schedule in ("forward", "reverse", "random", "random:7"):
            other = self.saved(f"{SMALL} --schedule {schedule}")
            for name in first:
                # Without --deterministic, dQ is summed by atomic adds in the order of the blocks.
                if name != "dq.npy":
                    self.assertEqual(first[name], other[name], f"{name} under {schedule}")

    def test_sram(self):
        self.good(f"{TINY} --sram 232448")
        done = self.execute(f"{TINY} --sram 16")
        if not self.objects(TINY)[0]["smem_bytes"]:
            self.assertEqual(done.returncode, 0, done.stderr)
        else:
            self.assertIn(done.returncode, (1, 2))
            self.assertIn("shared memory", done.stderr)

    def test_trace(self):
        self.good(f"{TINY} --trace trace.json")
        self.assertEqual(os.listdir(self.folder), ["trace.json"])
        with open(self.path("trace.json")) as file:
            head, *lines = [strict_json(line) for line in file]
        self.assertEqual(head["rung"], RUNG)
        accesses = [line for line in lines if "op" in line]
        self.assertTrue(accesses)
        for line in accesses:
            self.assertEqual(list(line), ["kernel", "block", "step", "array", "op", "begin", "end"])
        # After these what warps did; what it adds up to, explore_test.py has.
        arrays, *rest = lines[len(accesses):]
        self.assertIn("Q", arrays["arrays"])
        launches = [line for line in rest if "shared" in line and "kernel" in line]
        self.assertEqual([line["launch"] for line in launches], list(range(len(launches))))
        work = rest[len(launches):]
        self.assertTrue(work)
        for line in work:
            self.assertEqual(list(line)[:4], ["do", "launch", "block", "warp"])

    def test_trace_compressed(self):
        self.good(f"{TINY} --trace trace.json")
        self.good(f"{TINY} --trace trace.json.gz")
        with gzip.open(self.path("trace.json.gz")) as packed, \
                open(self.path("trace.json"), "rb") as plain:
            self.assertEqual(packed.read(), plain.read())

    def test_a_fault_leaves_a_trace(self):
        """Of a run that stops. What else it would have written is not there."""
        done = self.execute(f"{TINY} --sram 16 --trace trace.json --save out")
        if done.returncode != 1:
            self.skipTest("no kernel that takes what shared memory it wants")
        with open(self.path("trace.json")) as file:
            last = [strict_json(line) for line in file][-1]
        self.assertIn(last["fault"], done.stderr)
        self.assertEqual(os.listdir(self.path("out")), [])

    def test_trace_of_hopper(self):
        if "sm90" not in self.good("--help").stdout:
            self.skipTest("no step for Hopper")
        self.good(f"{TINY} --trace trace.json --variant sm90")
        with open(self.path("trace.json")) as file:
            _, *lines = [strict_json(line) for line in file]
        events = [line for line in lines if "event" in line]
        for line in events:
            self.assertEqual(list(line), ["kernel", "block", "warp", "event", "name", "barrier",
                                          "number", "amount", "exps", "other_flops"])
        self.assertLessEqual({"tma_load", "mbarrier_wait", "wgmma", "named_barrier_sync", "exit"},
                             {line["event"] for line in events})
        # Accesses come first, as without these.
        kinds = ["op" in line and "op" or "event" in line and "event" or "the rest"
                 for line in lines]
        self.assertEqual(kinds, sorted(kinds, key=["op", "event", "the rest"].index))

    def test_a_rung_without_maximum_says_which_one_has_it(self):
        done = self.execute(f"{SMALL} --scale 200")
        if subtracts_max():
            self.assertEqual(done.returncode, 0, done.stderr)
        else:
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("maximum", done.stderr)
            self.assertIn("02_safe_softmax", done.stderr)


class Files(Case):
    def load(self, values, q_shape=None, **more):
        """A folder with q.npy and k.npy of small numbers and this v.npy (1, 2, 1, n)."""
        folder = tempfile.mkdtemp(dir=self.folder)
        shape = (1, 2, 1, len(values) // 2)
        for name in ("q", "k", "v"):
            numbers = values if name == "v" else None
            with open(os.path.join(folder, f"{name}.npy"), "wb") as file:
                file.write(npy(shape, numbers, **more))
        return folder

    def test_saved_files_have_the_types_and_shapes_of_the_contract(self):
        shapes = {"o": (2, 4, 40, 16), "lse": (2, 4, 40), "dq": (2, 4, 40, 16)}
        shapes["dk"] = shapes["dv"] = (2, 2, 24, 16)
        for dtype, descr in (("fp16", "<f2"), ("bf16", "<f4")):
            for name, (saved_descr, shape, data) in self.saved(f"{SMALL} --dtype {dtype}").items():
                stem = name[: -len(".npy")]
                self.assertEqual(shape, shapes[stem])
                self.assertEqual(saved_descr, "<f4" if stem == "lse" else descr)
                self.assertEqual(len(data), math.prod(shape) * int(saved_descr[2:]))

    def test_saving_again_replaces_the_files(self):
        self.good(f"{TINY} --save out --seed 1")
        self.good(f"{TINY} --save out --seed 2")
        self.assertEqual(sorted(os.listdir(self.path("out"))), saved_names())
        second = self.saved(f"{TINY} --seed 2")["o.npy"]
        self.assertEqual(read_npy(self.path("out", "o.npy")), second)

    def test_the_same_seed_gives_the_same_bits(self):
        first = self.saved(f"{SMALL} --seed 5")
        self.assertEqual(first["o.npy"], self.saved(f"{SMALL} --seed 5")["o.npy"])
        self.assertNotEqual(first["o.npy"], self.saved(f"{SMALL} --seed 6")["o.npy"])
        outliers = self.saved(f"{SMALL} --seed 5 --input outliers")
        self.assertNotEqual(first["o.npy"], outliers["o.npy"])

    def test_the_generator_is_the_same_on_every_platform(self):
        # With one key, P is 1 and O is V: the input itself, of every rung.
        for arguments, digest in (
            ("--seed 0", "4bfc954c162f86cd"),
            ("--seed 123456789012345 --dtype bf16", "1aea145ffc3b498a"),
            ("--seed 7 --input outliers", "476bd9f1cdfd019b"),
        ):
            shape = "--device sim --heads 64 --seqlen 1 --seqlen-kv 1 --head-dim 256"
            _, _, data = self.saved(f"{shape} {arguments}")["o.npy"]
            self.assertEqual(hashlib.sha256(data).hexdigest()[:16], digest, arguments)

    def test_loaded_values_come_back_bit_for_bit(self):
        rng = random.Random(1)
        bits = [rng.randrange(0x7C00) | rng.choice((0, 0x8000)) for _ in range(64)]
        values = [struct.unpack("<e", struct.pack("<H", b))[0] for b in bits]
        # −0 becomes 0 when it is added to the accumulator's 0.
        values = [v or 0.0 for v in values]
        for descr in ("<f2", "<f4"):
            out = self.saved(f"--device sim --load {self.load(values, descr=descr)} --check off")
            self.assertEqual(out["o.npy"][0], "<f2")
            self.assertEqual(out["o.npy"][2], struct.pack("<64e", *values), descr)

    def test_float32_is_rounded_to_nearest_even(self):
        ulp = 2.0**-10
        values = [1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2**-20, -1 - ulp / 2, 2**-24 * 1.5,
                  65519.0, 1 / 3, 3.141592653589793]  # fmt: skip
        folder = self.load(values * 2, descr="<f4")
        fp16 = self.saved(f"--device sim --load {folder} --check off")["o.npy"]
        self.assertEqual(fp16[2], struct.pack("<16e", *values * 2))  # which rounds so too
        values = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -1 - 2.0**-8, 1e-30, 1e30,
                  1 / 3, 3.141592653589793]  # fmt: skip
        folder = self.load(values * 2, descr="<f4")
        bf16 = self.saved(f"--device sim --load {folder} --check off --dtype bf16")["o.npy"]
        self.assertEqual(bf16[2], struct.pack("<16f", *[to_bf16(v) for v in values * 2]))

    def test_what_was_saved_can_be_loaded(self):
        self.good(f"{TINY} --seqlen-kv 3 --save saved")
        os.mkdir(self.path("in"))
        for name in ("q", "k", "v"):
            shutil.copy(self.path("saved", "o.npy"), self.path("in", f"{name}.npy"))
        arguments = "--device sim --load in"
        for o in self.objects(arguments):
            self.assertEqual((o["heads"], o["seqlen"], o["seqlen_kv"], o["head_dim"]), (2, 3, 3, 8))
        from_half = self.saved(arguments)
        # The same numbers as float32, in versions 2.0 and 3.0 of the format.
        values = read_values(self.path("saved", "o.npy"))
        for version in ((2, 0), (3, 0)):
            for name in ("q", "k", "v"):
                self.put(npy((1, 2, 3, 8), values, "<f4", version=version), "in", f"{name}.npy")
            self.assertEqual(from_half, self.saved(arguments))

    def test_shapes_come_from_the_files(self):
        for name, shape in (("q", (1, 4, 5, 24)), ("k", (1, 2, 7, 24)), ("v", (1, 2, 7, 24))):
            self.put(npy(shape), "in", f"{name}.npy")
        for o in self.objects("--device sim --load in --causal --dtype bf16"):
            sizes = "batch heads kv_heads seqlen seqlen_kv head_dim".split()
            self.assertEqual([o[s] for s in sizes], [1, 4, 2, 5, 7, 24])
            self.assertAlmostEqual(o["scale"], 24**-0.5, places=6)
            self.assertTrue(o["causal"])

    def test_lse_is_the_logarithm_of_the_sum(self):
        if not has_lse():
            self.skipTest("this rung saves no LSE")
        self.put(npy((1, 1, 2, 8), [0.5] * 8 + [0.25] * 8), "in", "q.npy")
        self.put(npy((1, 1, 3, 8), [1.0] * 8 + [2.0] * 8 + [-1.0] * 8), "in", "k.npy")
        self.put(npy((1, 1, 3, 8)), "in", "v.npy")
        self.good("--device sim --load in --scale 0.5 --save out")
        for q, lse in zip((0.5, 0.25), read_values(self.path("out", "lse.npy"))):
            s = [0.5 * 8 * q * k for k in (1, 2, -1)]
            self.assertAlmostEqual(lse, math.log(sum(map(math.exp, s))), places=4)

    def test_rows_that_see_no_key_give_zeros(self):
        # Bottom-right: of five queries over two keys, the first three see none.
        out = self.saved("--device sim --heads 1 --seqlen 5 --seqlen-kv 2 --head-dim 8 --causal")
        self.assertEqual(out["o.npy"][2][: 3 * 8 * 2], bytes(3 * 8 * 2))
        self.assertNotEqual(out["o.npy"][2][3 * 8 * 2 :], bytes(2 * 8 * 2))
        if has_lse():
            lse = struct.unpack("<5f", out["lse.npy"][2])
            self.assertEqual(lse[:3], (-math.inf,) * 3)
            self.assertTrue(all(map(math.isfinite, lse[3:])))
        if has_backward():
            self.assertEqual(out["dq.npy"][2][: 3 * 8 * 2], bytes(3 * 8 * 2))

    def test_a_given_do_is_used(self):
        if not has_backward():
            self.skipTest("this rung has no backward pass")
        for name in ("q", "k", "v"):
            self.put(npy((1, 1, 4, 8)), "in", f"{name}.npy")
        drawn = self.saved("--device sim --load in")
        self.assertEqual(drawn, self.saved("--device sim --load in"))
        self.put(npy((1, 1, 4, 8), [0.0] * 32), "in", "do.npy")
        given = self.saved("--device sim --load in")
        self.assertNotEqual(drawn["dv.npy"], given["dv.npy"])
        self.assertEqual(set(given["dv.npy"][2]) - {0x80}, {0})

    def test_gradients_are_linear_in_do(self):
        if not has_backward():
            self.skipTest("this rung has no backward pass")
        for name in ("q", "k", "v", "do"):
            self.put(npy((1, 2, 9, 8)), "in", f"{name}.npy")
        arguments = "--device sim --load in --dtype bf16 --deterministic --save out"
        gradients = []
        for factor in (1, 2, 0):
            values = [factor * (i * 5 % 11 - 5) / 4 for i in range(144)]
            self.put(npy((1, 2, 9, 8), values), "in", "do.npy")
            self.good(arguments)
            gradients.append(
                sum([read_values(self.path("out", f"{g}.npy")) for g in ("dq", "dk", "dv")], [])
            )
        once, twice, none = gradients
        self.assertTrue(any(once))
        self.assertEqual(twice, [2 * x for x in once])
        self.assertFalse(any(none))

    def test_a_saved_gradient_can_be_loaded_as_do(self):
        if not has_backward():
            self.skipTest("this rung has no backward pass")
        self.good(f"{TINY} --seqlen-kv 3 --save in")
        for saved, loaded in (("o", "q"), ("dk", "k"), ("dv", "v"), ("dq", "do")):
            os.rename(self.path("in", f"{saved}.npy"), self.path("in", f"{loaded}.npy"))
        for o in self.objects("--device sim --load in"):
            self.assertEqual((o["input"], o["seqlen"], o["pass"]), ("load", 3, True))

    def test_what_the_stored_variant_saves(self):
        if "stored" not in variants():
            self.skipTest("06 has it")
        self.good(f"{TINY} --variant stored --save out")
        self.assertEqual(sorted(os.listdir(self.path("out"))), saved_names("stored"))


class BadUsage(Case):
    """Each with exit status and words of the message; and every one saves nothing."""

    def test_options(self):
        self.assert_each_bad(
            [
                ("--nonsense", 2, "--nonsense", "--help"),
                ("-x", 2, "-x"),
                ("--seqle 8", 2, "--seqle", "--seqlen"),
                ("--caus", 2, "--caus", "--causal"),
                ("stray", 2, "stray", "argument"),
                ("--causal stray", 2, "stray"),
                ("--json=1", 2, "--json", "no value"),
                ("--seqlen", 2, "--seqlen", "needs a value"),
                ("--seqlen --causal", 2, "--seqlen", "needs a value"),
                ("--load", 2, "--load", "needs a value"),
                ("--load=", 2, "--load"),
                ("--trace ''", 2, "--trace"),
            ],
            "--save out",
        )

    def test_numbers(self):
        self.assert_each_bad(
            [
                ("--batch 0", 2, "--batch", "'0'"),
                ("--heads -1", 2, "--heads", "'-1'"),
                ("--kv-heads 0", 2, "--kv-heads", "'0'"),
                ("--seqlen 0", 2, "--seqlen", "'0'", "from 1"),
                ("--seqlen -5", 2, "--seqlen", "'-5'"),
                ("--seqlen abc", 2, "--seqlen", "abc", "not a number"),
                ("--seqlen 12abc", 2, "--seqlen", "12abc"),
                ("--seqlen 1.5", 2, "--seqlen", "1.5"),
                ("--seqlen ''", 2, "--seqlen"),
                ("--seqlen 2147483648", 2, "--seqlen", "2147483647"),
                ("--seqlen 99999999999999999999", 2, "--seqlen", "99999999999999999999"),
                ("--seqlen-kv nan", 2, "--seqlen-kv", "nan"),
                ("--head-dim 60", 2, "--head-dim", "60", "multiple of 8"),
                ("--head-dim 264", 2, "--head-dim", "264", "256"),
                ("--head-dim 0", 2, "--head-dim", "'0'"),
                ("--scale 0", 2, "--scale", "'0'", "above 0"),
                ("--scale -0.125", 2, "--scale", "'-0.125'", "above 0"),
                ("--scale nan", 2, "--scale", "nan", "finite"),
                ("--scale inf", 2, "--scale", "inf", "finite"),
                ("--scale 1e99", 2, "--scale", "1e99"),
                ("--scale 0.5x", 2, "--scale", "0.5x"),
                ("--scale ''", 2, "--scale"),
                ("--seed -1", 2, "--seed", "-1"),
                ("--seed 18446744073709551616", 2, "--seed", "18446744073709551616"),
                ("--seed 1e3", 2, "--seed", "1e3"),
                ("--time 0", 2, "--time", "'0'"),
                ("--time -1", 2, "--time", "'-1'"),
                ("--time inf", 2, "--time", "finite"),
                ("--time soon", 2, "--time", "soon"),
                ("--sram 0", 2, "--sram", "'0'"),
                ("--sram 1k", 2, "--sram", "1k"),
                ("--schedule random:x", 2, "--schedule", "x"),
            ],
            "--save out",
        )

    def test_choices(self):
        self.assert_each_bad(
            [
                ("--dtype fp32", 2, "--dtype", "fp32", "fp16", "bf16"),
                ("--device tpu", 2, "--device", "tpu", "gpu", "sim"),
                ("--input uniform", 2, "--input", "uniform", "normal", "outliers"),
                ("--check some", 2, "--check", "some", "sampled"),
                ("--schedule sideways", 2, "--schedule", "sideways", "reverse"),
                ("--schedule forward:1", 2, "--schedule", "forward:1"),
                ("--variant none_such", 2, "--variant", "none_such"),
            ],
            "--save out",
        )

    def test_options_of_other_rungs(self):
        cases = []
        if not takes_tiles():
            cases.append(("--block-q 64", 2, "--block-q", "with tile sizes"))
            cases.append(("--block-kv 64", 2, "--block-kv", "with tile sizes"))
        elif has_tiles():
            cases.append(("--block-q 63", 2, "--block-q 63", "64x64"))
        if not has_backward():
            cases.append(("--deterministic", 2, "--deterministic", "same bits"))
        if not with_settings():
            cases.append(("--set a=b", 2, "--set", "with settings"))
        if number() != "01":
            cases.append(("--baseline cublas", 2, "--baseline", "a library's version"))
        else:
            cases.append(("--baseline cudnn", 2, "--baseline", "cudnn", "cublas"))
            cases.append(("--baseline cublas --device sim", 2, "--baseline", "--device sim"))
            cases.append(("--baseline cublas --sram 1000", 2, "--baseline", "--sram"))
            if not has_gpu():
                cases.append(("--baseline cublas", 3, "--baseline cublas needs a GPU"))
                cases.append(("--baseline cublas --device gpu", 3, "no GPU"))
        self.assert_each_bad(cases, "--save out")

    def test_combinations(self):
        self.assert_each_bad(
            [
                ("--heads 4 --kv-heads 3", 2, "kv-heads 3", "heads 4"),
                ("--heads 2 --kv-heads 4", 2, "kv-heads 4"),
                ("--batch 65536 --heads 65536", 2, "65536", "grid"),
                ("--seqlen 2147483647 --heads 8", 2, "exceeds 2⁶³"),
                ("--batch 2000000000 --heads 1 --seqlen 2000000000 --seqlen-kv 1", 2, "2⁶³"),
                ("--device gpu --trace t", 2, "--trace", "--device gpu"),
                ("--device gpu --schedule reverse", 2, "--schedule", "--device gpu"),
                ("--device gpu --sram 1000", 2, "--sram", "--device gpu"),
            ]
            + [
                (f"--load in --{option} 8", 2, f"--{option}", "--load")
                for option in "batch heads kv-heads seqlen seqlen-kv head-dim".split()
            ],
            "--save out",
        )

    def test_workloads_larger_than_the_memory(self):
        self.assert_bad(
            "--device sim --batch 2147483647 --heads 1 --seqlen 4096 --head-dim 256 --save out",
            3,
            ["GiB", "free"],
        )
        if stores_s():
            self.assert_bad(
                "--device sim --heads 1 --seqlen 4000000 --head-dim 8 --save out",
                3,
                ["GiB", "S and P", "03_online_softmax"],
            )
        if "stored" in variants():
            self.assert_bad(
                "--device sim --variant stored --heads 1 --seqlen 4000000 --head-dim 8 --save out",
                3,
                ["GiB", "S, P and dP", "the steps of 06_backward after it"],
            )


class BadFiles(Case):
    def setUp(self):
        super().setUp()
        for name in ("q", "k", "v", "do"):
            self.put(npy((1, 2, 3, 8)), "in", f"{name}.npy")

    def assert_file_bad(self, name, content, *words):
        original = self.path("in", f"{name}.npy")
        with open(original, "rb") as file:
            good = file.read()
        self.put(content, "in", f"{name}.npy")
        self.assert_bad("--device sim --load in --save out", 2, [f"{name}.npy", *words])
        self.put(good, "in", f"{name}.npy")

    def test_the_files_are_good_to_begin_with(self):
        self.good("--device sim --load in --save out")

    def test_missing(self):
        self.assert_bad("--load none_such --save out", 2, ["none_such", "no such file"])
        self.assert_bad("--load in/q.npy --save out", 2, ["in/q.npy"])
        for name in ("q", "k", "v"):
            os.rename(self.path("in", f"{name}.npy"), self.path("in", "away"))
            self.assert_bad("--load in --save out", 2, [f"in/{name}.npy", "no such file"])
            os.rename(self.path("in", "away"), self.path("in", f"{name}.npy"))
        os.remove(self.path("in", "q.npy"))
        os.mkdir(self.path("in", "q.npy"))
        self.assert_bad("--load in --save out", 2, ["q.npy", "not a regular file"])

    def test_contents(self):
        good = npy((1, 2, 3, 8))
        shape = (1, 2, 3, 8)
        infinite = [1.0] * 47 + [math.inf]
        huge = "{'descr': '<f2', 'fortran_order': False, 'shape': (4294967296, 4294967296, 1, 8)}"
        for content, *words in (
            (b"", "empty"),
            (b"hello", "not a .npy"),
            (b"PK\x03\x04" + good, "not a .npy"),
            (good[:5], "truncated"),
            (good[:9], "truncated"),
            (good[:50], "truncated"),
            (good[:-1], "truncated", "95"),
            (good + b"\0", "1 bytes more"),
            (npy(shape, version=(4, 0)), "version 4.0"),
            (npy(shape, header="this is no header"), "malformed header"),
            (npy(shape, header="{'descr': '<f2'}"), "malformed header"),
            (npy(shape, header="{'descr': '<f2', 'fortran_order': False, 'shape': 96}"), "header"),
            (npy(shape, header="[1, 2"), "malformed header"),
            (npy(shape, fortran=True), "Fortran order"),
            (npy(shape, descr=">f2"), "big-endian"),
            (npy(shape, descr=">f4"), "big-endian"),
            (npy(shape, descr="<f8"), "float64"),
            (npy(shape, descr="<i4"), "integers"),
            (npy((48,)), "dimension"),
            (npy((2, 3, 8)), "dimension"),
            (npy((1, 1, 2, 3, 8)), "dimension"),
            (npy((1, 2, 0, 8)), "(1, 2, 0, 8)"),
            (npy(shape, header=huge), "2⁶³"),
            (npy(shape, infinite), "inf", "finite"),
            (npy(shape, [math.nan] + infinite[1:]), "nan", "finite"),
            (npy(shape, [-math.inf] * 48, "<f4"), "-inf", "finite"),
            (npy(shape, [7e4] * 48, "<f4"), "too large"),
        ):
            for name in ("q", "v") + (("do",) if has_backward() else ()):
                with self.subTest(name=name, words=words):
                    self.assert_file_bad(name, content, *words)

    def test_shapes_that_disagree(self):
        for name, shape, word in (
            ("k", (1, 2, 4, 8), "agree"),
            ("v", (1, 2, 4, 8), "agree"),
            ("v", (1, 1, 3, 8), "agree"),
            ("q", (2, 2, 3, 8), "agree"),
            ("q", (1, 2, 3, 16), "agree"),
            ("q", (1, 3, 3, 8), "divide"),
            ("q", (1, 1, 3, 8), "divide"),
        ):
            with self.subTest(name=name, shape=shape):
                self.assert_file_bad(name, npy(shape), word)
        if has_backward():
            for shape in ((1, 2, 4, 8), (1, 1, 3, 8), (1, 2, 3, 16), (2, 2, 3, 8)):
                self.assert_file_bad("do", npy(shape), "agree", "q.npy")
        for d in (12, 264):
            for name in ("q", "k", "v"):
                self.put(npy((1, 2, 3, d)), "in", f"{name}.npy")
            self.assert_bad("--load in --save out", 2, [str(d), "multiple of 8"])


class BadPlaces(Case):
    def test_folders_that_cannot_be_written(self):
        self.put(b"a file", "file")
        self.assert_each_bad(
            [
                ("--save file", 2, "file"),
                ("--save file/out", 2, "file/out"),
                ("--save none/such/out", 2, "none/such/out"),
                ("--save /proc/out", 2, "/proc/out"),
                ("--trace none_such/trace", 2, "none_such/trace"),
                ("--trace .", 2, "'.'"),
            ],
            TINY,
        )
        os.makedirs(self.path("out", "o.npy"))
        self.assert_bad_place("out")

    def assert_bad_place(self, folder):
        done = self.execute(f"{TINY} --save {folder}")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("o.npy", done.stderr)
        self.assertEqual(os.listdir(self.path(folder)), ["o.npy"])

    def test_a_full_disk(self):
        # Files of this process may hold 100 bytes; the header of an .npy file has 128.
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        for arguments in ("--save out", "--trace trace.json"):
            self.assert_bad(f"{TINY} {arguments}", 2, ["cannot write"], preexec_fn=limit)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full here")
    def test_a_full_device(self):
        self.assert_bad(f"{TINY} --trace /dev/full", 2, ["/dev/full", "no space"])
        self.assertTrue(os.path.exists("/dev/full"))

    def test_a_full_disk_leaves_what_was_there(self):
        self.good(f"{TINY} --save out")
        before = read_npy(self.path("out", "o.npy"))

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        done = self.execute(f"{TINY} --save out --seed 9", preexec_fn=limit)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(sorted(os.listdir(self.path("out"))), saved_names())
        self.assertEqual(read_npy(self.path("out", "o.npy")), before)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full here")
    def test_stdout_that_cannot_be_written(self):
        for arguments in (f"{TINY} --json", TINY, "--help", "--version"):
            with open("/dev/full", "w") as full:
                done = self.execute(arguments, stdout=full)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn("No space", done.stderr)


class Interrupted(Case):
    def interrupt(self, number_of_signal):
        """Interrupts a long run that saves; returns its status."""
        arguments = "--device sim --seqlen 4096 --heads 4 --check off --save out --trace trace"

        def forget_ignored_signals():
            # A shell in the background ignores SIGINT, and its children would inherit that.
            signal.signal(number_of_signal, signal.SIG_DFL)

        process = subprocess.Popen(
            self.command(arguments),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=forget_ignored_signals,
        )
        with contextlib.ExitStack() as stack:
            stack.callback(process.kill)
            deadline = time.monotonic() + SECONDS
            # Until the temporary files are there, or at least the program is under way.
            while time.monotonic() < deadline and not glob.glob(self.path("out", ".*")):
                time.sleep(0.01)
            self.assertTrue(glob.glob(self.path("out", ".*")))
            process.send_signal(number_of_signal)
            out, _ = process.communicate(timeout=SECONDS)
        self.assertEqual(out, b"")
        return process.returncode

    def test_a_signal_ends_the_program_and_leaves_no_file(self):
        for number_of_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(signal=number_of_signal):
                # By the signal itself: a shell makes 128 + n of that.
                self.assertEqual(self.interrupt(number_of_signal), -number_of_signal)
                self.assert_nothing_left()
                self.assertFalse(os.path.exists(self.path("trace")))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    BIN_DIR, RUNG = os.path.abspath(sys.argv[1]), sys.argv[2]
    DEFAULT = next(step["variant"] for step in steps() if step["default"])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
