"""Tests a rung's program from outside: scripts/tests cli BIN_DIR RUNG [unittest's options].

Runs the program as a subprocess, on the simulator unless a test says otherwise. CTest runs class
`Rung` for every rung. The other classes test what all programs share, and are run only for
06_backward, which has LSE, tiles and a backward pass. options_test.cpp tests the messages for
refused options, and which .npy files are refused."""

import glob
import json
import math
import os
import pathlib
import resource
import shlex
import shutil
import sys
import unittest

from support import Scratch
from ladder.base import npy as arrays
from ladder.base.programs import steps_of

if len(sys.argv) < 3:
    sys.exit("scripts/tests cli BIN_DIR RUNG [unittest's options]")
BIN_DIR, RUNG = os.path.abspath(sys.argv.pop(1)), sys.argv.pop(1)
PROGRAM = os.path.join(BIN_DIR, RUNG)

# Small workloads whose sizes all differ; every rung runs them in well under a second.
SMALL = "--device sim --batch 2 --heads 4 --kv-heads 2 --seqlen 40 --seqlen-kv 24 --head-dim 16"
TINY = "--device sim --heads 2 --seqlen 3 --seqlen-kv 5 --head-dim 8"
SIZES = "batch heads kv_heads seqlen seqlen_kv head_dim".split()


def steps():
    return [step for step in steps_of(PROGRAM) if step.device == "sim"]


def npy(shape, values=None, descr="<f2"):
    """Returns a .npy file's bytes; the default values are multiples of 1/8 from −0.75 to 0.75."""
    if values is None:
        values = [(i * 7 % 13 - 6) / 8 for i in range(math.prod(shape))]
    return arrays.npy(shape, values, descr)


class ProgramTest(Scratch):
    def put_inputs(self, shape_q, shape_kv=None, descr="<f2", **values):
        """Writes in/q.npy, in/k.npy and in/v.npy in these shapes; q, k and v may set the values."""
        for name, shape in zip("qkv", (shape_q, *[shape_kv or shape_q] * 2)):
            self.write(f"in/{name}.npy", npy(shape, values.get(name), descr))

    def execute(self, arguments, status=0, **more):
        """Runs the program in the test's folder, and checks its exit status."""
        return self.run_it(PROGRAM, *shlex.split(arguments), status=status, **more)

    def objects(self, arguments, status=0):
        """Returns the objects that a run prints with --json: one per step and direction."""
        lines = self.execute(arguments + " --json", status).stdout.split("\n")
        self.assertEqual(lines.pop(), "", "the last line ends with a newline")
        return [json.loads(line) for line in lines]

    def values(self, name):
        return arrays.read_npy(self.at(f"{name}.npy"))

    def saved(self, arguments):
        """Returns the bytes of each file that a run saves in the folder out, by name."""
        shutil.rmtree(self.at("out"), ignore_errors=True)
        self.execute(f"{arguments} --save out")
        return {path.stem: path.read_bytes() for path in pathlib.Path(self.at("out")).iterdir()}

    def assert_bad(self, arguments, status, *words, save=" --save out", **more):
        """Checks that the program refuses the arguments with this status and these words on stderr,
        prints nothing on stdout, and saves nothing."""
        done = self.execute(arguments + save, status, **more)
        for word in (f"{RUNG}: ", *words):
            self.assertIn(word.lower(), done.stderr.lower(), f"{arguments}")
        self.assertEqual(done.stdout, "", f"{arguments}")
        left = [os.path.join(folder, name) for folder, _, names in os.walk(self.root)
                for name in names if name.endswith(".tmp") or name.startswith(".")
                or folder.endswith("out")]
        self.assertEqual(left, [])


class Rung(ProgramTest):
    def test_help(self):
        text = self.execute("--help").stdout
        self.fits(text)
        examples = text.split("Examples\n")[1].splitlines()
        self.assertEqual(len(examples), 2)
        for example in examples:
            program, *arguments = shlex.split(example)
            self.assertEqual(program, RUNG)
            self.execute(shlex.join([*arguments, "--device", "sim", "--check", "sampled"]))

    @unittest.skipUnless(RUNG[:2] == "05", "fp8 is a step of 05")
    def test_status_is_1_if_any_step_is_wrong(self):
        """With these inputs all weights round to e4m3 in the same direction. The tolerance of the
        step fp8 assumes random rounding, so fp8 fails and large_tiles passes."""
        self.put_inputs((1, 1, 1, 8), (1, 1, 1024, 8), q=[1] + 7 * [0], v=8192 * [1],
                        k=8 * [0] + 1023 * [-1.797, *7 * [0]])
        objects = self.objects("--device sim --load in --step fp8,large_tiles", 1)
        self.assertEqual([o["pass"] for o in objects], [False, True])
        self.assertEqual(self.objects("--device sim --load in --step large_tiles,fp8", 1),
                         objects[::-1])
        # O is wrong, and LSE, which follows it, is correct.
        self.assertIn("wrong result", self.execute("--device sim --load in --step fp8", 1).stderr)

    def test_json_has_the_documented_keys_and_types(self):
        """report_test.cpp tests the keys' values, and results_test the simulator's counts."""
        default, = (step for step in steps() if step.default)
        objects = self.objects(SMALL)
        self.assertEqual([o["direction"] for o in objects], ["fwd", "bwd"][:1 + default.backward])
        for o in objects:
            self.assertEqual((o["rung"], o["step"], o["device"], o["pass"], o["scale"]),
                             (RUNG, default.name, "sim", True, 0.25))
            self.assertEqual([o[s] for s in SIZES], [2, 4, 2, 40, 24, 16])
        if objects[0]["workspace_bytes"] >= 4 * 2 * 4 * 40 * 24:  # stores S and P
            self.assert_bad("--device sim --heads 1 --seqlen 1000000 --head-dim 8", 3, "GiB",
                            "S and P", "03_online_softmax")


class Options(ProgramTest):
    def test_several_steps_report_what_each_does_alone(self):
        names = [step.name for step in steps()]
        self.assertGreater(len(names), 1)
        alone = [o for name in names for o in self.objects(f"{TINY} --causal --step {name}")]
        together = f"{TINY} --causal --step {','.join(names)}"
        self.assertEqual(self.objects(together), alone)
        self.assertEqual(self.execute(together).stdout.count("pass: "),
                         sum(len(o["errors"]) for o in alone))

    def test_json_or_a_table(self):
        objects = self.objects(f"{TINY} --verbose --schedule reverse --save out")  # JSON only
        self.assertEqual([[*o["errors"]] for o in objects], [["o", "lse"], ["dq", "dk", "dv"]])
        self.assertNotRegex(self.execute(SMALL).stdout, "[\x1b{]|.{101}")
        self.assertIn("not checked", self.execute(f"{TINY} --check off").stdout)

    @unittest.skipIf(glob.glob("/dev/nvidia[0-9]*"), "there is a GPU here")
    def test_auto_says_why_no_gpu_is_used(self):
        done = self.execute(TINY.replace("--device sim", "--device auto") + " --json")
        self.assertEqual(json.loads(done.stdout.splitlines()[0])["device"], "sim")
        self.assertRegex(done.stderr, "running on the simulator: .*GPU")
        self.assert_bad("--device gpu", 3, "GPU", "--device sim")

    def test_refused_options_run_nothing(self):
        self.assert_bad("--nonsense", 2, "--nonsense", "--help")
        self.assert_bad("--device sim --step split_sums,nosuch", 2, "--step 'nosuch'", save="")
        self.assert_bad("--device sim --step stored --heads 1 --seqlen 4000000 --head-dim 8", 3,
                        "GiB", "S, P and dP", "the steps of 06_backward after it")
        self.assert_bad("--device sim --step wgmma --head-dim 200", 2, "fit: stored, recompute, ",
                        "sm90", save=" --save out --trace out/trace")
        self.assert_bad("--device sim --batch 262016 --heads 1 --seqlen 4096 --head-dim 256", 3,
                        "GiB", "free")

    def test_a_fault_leaves_a_trace(self):
        """A run that stops with a fault writes its trace, and no other file."""
        done = self.execute(f"{TINY} --step split_sums --block-q 128 --block-kv 128 --scale 3e38 "
                            "--schedule reverse --trace trace.json --save out", 1)
        _, plan, launch, *events, fault = map(json.loads, self.read("trace.json").splitlines())
        self.assertIn(fault["fault"], done.stderr)
        self.assertIn("block ({block},0,0), thread ({thread},0,0): 2^NaN".format(**fault),
                      done.stderr)
        self.assertEqual([plan["block_q"], plan["block_kv"], launch["grid"], launch["block"]],
                         [128, 128, [2, 1, 1], [32 * plan["warps"], 1, 1]])
        # A computation either spans several source lines or sits on one.
        self.assertEqual({e["start_line"] == e["line"] for e in events if "start_line" in e},
                         {True, False})
        self.assertEqual(os.listdir(self.at("out")), [])


class FilesTest(ProgramTest):
    def test_saved_files_have_the_types_and_shapes_of_the_contract(self):
        for dtype, o in (("fp16", "<f2"), ("bf16", "<f4")):
            saved = self.saved(f"{SMALL} --dtype {dtype} --causal")
            # The mask is causal with fewer keys than queries, so some LSE are −∞. The files are
            # compared byte for byte with what NumPy would write.
            self.assertEqual(saved, {name: npy(shape, self.values(f"out/{name}"), descr)
                                     for name, descr, shape in (
                ("o", o, (2, 4, 40, 16)), ("lse", "<f4", (2, 4, 40)), ("dq", o, (2, 4, 40, 16)),
                ("dk", o, (2, 2, 24, 16)), ("dv", o, (2, 2, 24, 16)))})

    def test_shapes_come_from_loaded_files(self):
        self.put_inputs((1, 4, 5, 24), (1, 2, 7, 24))
        for o in self.objects("--device sim --load in --causal --dtype bf16 --trace trace"):
            self.assertEqual([o[s] for s in SIZES], [1, 4, 2, 5, 7, 24])
            self.assertAlmostEqual(o["scale"], 24**-0.5, places=6)
            self.assertTrue(o["causal"])
        head = json.loads(self.read("trace").splitlines()[0])
        self.assertEqual([head[s] for s in SIZES], [1, 4, 2, 5, 7, 24])
        self.assertEqual(self.objects("--device sim --load in --scale 0.5")[0]["scale"], 0.5)

    def test_saved_files_can_be_loaded(self):
        self.execute(f"{TINY} --seqlen-kv 3 --save in")
        for saved, loaded in (("o", "q"), ("dk", "k"), ("dv", "v"), ("dq", "do")):
            os.rename(self.at("in", f"{saved}.npy"), self.at("in", f"{loaded}.npy"))
        for o in self.objects("--device sim --load in"):
            self.assertEqual((o["input"], o["seqlen"], o["pass"]), ("load", 3, True))

    def test_do_is_drawn_or_loaded(self):
        self.put_inputs((1, 2, 9, 8), v=144 * [0])  # V = 0 makes dQ and dK 0
        self.write("in/dO.npy", "")
        self.assert_bad("--device sim --load in", 2, "there is 'in/dO.npy': rename it")
        os.remove(self.at("in/dO.npy"))
        self.assertEqual(self.execute("--device sim --load in --seed 3").stderr,
                         "in/do.npy does not exist: dO is drawn from seed 3\n")
        for drawn in (True, False):
            self.saved("--device sim --load in")
            self.assertEqual([any(self.values(f"out/{name}")) for name in ("o", "dq", "dk", "dv")],
                             [False, False, False, drawn])
            self.write("in/do.npy", npy((1, 2, 9, 8), [0] * 144))

    def test_overflow_of_the_type_is_not_a_wrong_result(self):
        heads, one = (1, 2, 4, 8), (1, 1, 4, 8)
        for dtype, qk, do, words in (("fp16", 1, 6e4, "32 values of dv are not finite: even"),
                                     ("bf16", 1e20, 1, "64 values of o are not finite, though")):
            self.put_inputs(heads, one, "<f4", q=[qk] * 64, k=[qk] * 32)
            self.write("in/do.npy", npy(heads, [do] * 64, "<f4"))
            done = self.execute(f"--device sim --load in --dtype {dtype}", 1)
            self.assertIn(words, done.stderr)
            self.assertNotIn("wrong result: an error", done.stderr)
        # The only query that attends to the last key has dO = 0; for the others the key is masked.
        self.put_inputs(one, one, "<f4", v=[1] * 24 + [3e4] * 8)
        self.write("in/do.npy", npy(one, [1] * 24 + [0] * 8, "<f4"))
        self.execute("--device sim --load in --causal --step stored")

    def test_bad_input_files_are_refused(self):
        many = (1, 2, 3, 8)
        self.put_inputs(many)
        self.write("in/do.npy", npy(many))
        bad = [("k", None, "no such file"), ("do", b"hello", "not a .npy"),
               ("k", npy(many, [7e4] * 48, "<f4"), "too large for fp16; try --dtype bf16"),
               ("q", npy((1, 1, 2, 3, 8)), "dimension"),
               *((name, npy((*many[:i], 2 * many[i], *many[i + 1:])), "agree")
                 for name, which in (("q", (0, 3)), ("k", range(4)), ("v", range(4)),
                                     ("do", range(4))) for i in which)]
        for name, content, word in bad:
            path = self.at("in", f"{name}.npy")
            os.rename(path, path + ".good")
            if content is not None:
                self.write(path, content)
            with self.subTest(name=name, word=word):
                self.assert_bad("--device sim --load in", 2, f"{name}.npy", word)
            os.rename(path + ".good", path)
        for shape, word in (((1, 2, 3, 12), "multiple of 8"), ((1, 3, 3, 8), "divide")):
            self.put_inputs(shape, (1, 2, *shape[2:]))
            self.assert_bad("--load in", 2, word)
        # A file that claims to be huge must not cause an allocation.
        os.truncate(self.at("in", "q.npy"),
                    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        self.assert_bad("--load in", 3, "GiB of memory", "q.npy")


class PlacesTest(ProgramTest):
    """If a file cannot be written in full, the old one is kept."""

    # Limits the process's files to 100 bytes, which is less than O of TINY.
    FULL = staticmethod(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))

    def test_unwritable_outputs_are_reported(self):
        self.write("file", "a file")
        os.makedirs(self.at("taken", "o.npy"))
        for arguments in ("--save file", "--save taken", "--trace none_such/trace", "--trace ."):
            self.assert_bad(f"{TINY} {arguments}", 2, f"'{arguments.split()[-1]}", save="")
        self.assertEqual(sorted(os.listdir(self.root)), ["file", "taken"])

    def test_a_full_disk_is_reported(self):
        self.execute(f"{SMALL} --save before")
        before = self.values("before/o")
        # Output that fits into a buffer fails at the end; larger output fails at once.
        for workload in (TINY, SMALL):
            self.assert_bad(workload, 2, "cannot write", "too large", preexec_fn=self.FULL)
            self.assert_bad(workload, 2, save=" --save before --seed 9", preexec_fn=self.FULL)
            self.assert_bad(f"{workload} --trace t", 2, "cannot write", save="",
                            preexec_fn=self.FULL)
        self.assertEqual(len(os.listdir(self.at("before"))), 5)
        self.assertEqual(self.values("before/o"), before)
