"""A rung's program as its users meet it: cli_test.py BIN_DIR RUNG [unittest's options].

Runs the program as a subprocess, on the sim unless a test says otherwise. Class `Rung` holds for
every rung and what is its own; the others, and those of cli_files_test.py, are the same for all and
are run on one, 06_backward, which has LSE, tiles and a backward pass. What the command line refuses
in which words is in options_test.cpp.
"""

import os
import shlex
import unittest

from cli import COUNTED, Case, DRAM, MODEL, RUNG, SIZES, SMALL, TINY, has_gpu, steps, strict_json


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

    def test_every_step(self):
        for step in steps():
            name = step["step"]
            objects = self.check_run(f"{TINY} --step {name} --save {name}", "sim")
            self.assertEqual({o["step"] for o in objects}, {name})
            tensors = {tensor for o in objects for tensor in o["errors"]} - {"o_full"}
            self.assertEqual(set(os.listdir(self.at(name))), {f"{t}.npy" for t in tensors})
            if step["default"]:
                self.assertEqual(self.objects(TINY)[0]["step"], name)

    @unittest.skipUnless(RUNG[:2] == "05", "fp8 is a step of 05")
    def test_one_wrong_step_of_several(self):
        """All weights but the first's round to e4m3 the same way, where a tolerance for chance is
        what fp8 has."""
        self.put_inputs((1, 1, 1, 8), (1, 1, 1024, 8), q=[1] + 7 * [0], v=8192 * [1],
                        k=8 * [0] + 1023 * [-1.797, *7 * [0]])
        for several in ("fp8,mma", "mma,fp8"):
            self.assertEqual([(o["step"], o["pass"]) for o in self.objects(
                f"--device sim --load in --step {several}", 1)],
                [(step, step == "mma") for step in several.split(",")])

    def test_keys_and_types(self):
        for o in self.check_run(SMALL, "sim"):
            self.assertEqual([o[s] for s in SIZES], [2, 4, 2, 40, 24, 16])
            self.assertEqual((o["dtype"], o["input"], o["seed"]), ("fp16", "normal", 0))
            self.assertEqual((o["causal"], o["scale"]), (False, 0.25))
            for key in set(COUNTED) - {"distinct_read_bytes", "distinct_write_bytes"}:
                self.assertEqual(o[key], sum(k[key] for k in o["kernels"]), key)

    @unittest.skipUnless(has_gpu(), "no GPU here")
    def test_keys_and_types_on_the_gpu(self):
        for o in self.check_run(SMALL.replace("sim", "gpu") + " --time 5", "gpu"):
            self.assertLessEqual(o["time_ms_min"], o["time_ms"])
            self.assertLessEqual(o["time_ms"], o["time_ms_max"])

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
    def test_they_reach_the_run(self):
        arguments = "--dtype bf16 --scale 0.5 --causal --input outliers --seed 18446744073709551615"
        for o in self.objects(f"{SMALL} {arguments} --block-q 64 --block-kv 64 --check full"):
            self.assertEqual((o["dtype"], o["scale"], o["causal"]), ("bf16", 0.5, True))
            self.assertEqual((o["input"], o["seed"], o["pass"]), ("outliers", 2**64 - 1, True))
        self.assertIn("not checked", self.good(f"{TINY} --check off --causal").stdout)

    def test_several_steps_report_what_each_does_alone(self):
        names = [step["step"] for step in steps() if step["device"] == "sim"]
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
