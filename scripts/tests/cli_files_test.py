"""Files that a program loads and saves: cli_files_test.py BIN_DIR RUNG [unittest's options].

Which .npy files are no arrays is in npy_test.cpp.
"""

import hashlib
import math
import os
import resource
import signal
import struct
import subprocess
import time
import unittest

from cli_test import Case, SIZES, SMALL, TINY, npy, read_npy


class Files(Case):
    def loaded(self, more=""):
        return self.saved(f"--device sim --load in {more}")

    def test_saved_files_have_the_types_and_shapes_of_the_contract(self):
        for dtype, o in (("fp16", "<f2"), ("bf16", "<f4")):
            saved = self.saved(f"{SMALL} --dtype {dtype} --causal")  # so LSE has infinities
            self.assertEqual({name: of[:2] for name, of in saved.items()}, {
                "o": (o, (2, 4, 40, 16)), "lse": ("<f4", (2, 4, 40)), "dq": (o, (2, 4, 40, 16)),
                "dk": (o, (2, 2, 24, 16)), "dv": (o, (2, 2, 24, 16))})
            for name, (descr, shape, values) in saved.items():
                self.assertEqual(len(values), math.prod(shape))
                with open(self.at("out", f"{name}.npy"), "rb") as file:
                    self.assertEqual(file.read(), npy(shape, values, descr))  # as NumPy writes it

    def test_shapes_come_from_the_files(self):
        self.put_inputs((1, 4, 5, 24), (1, 2, 7, 24))
        for o in self.objects("--device sim --load in --causal --dtype bf16"):
            self.assertEqual([o[s] for s in SIZES], [1, 4, 2, 5, 7, 24])
            self.assertAlmostEqual(o["scale"], 24**-0.5, places=6)
            self.assertTrue(o["causal"])
        self.assertEqual(self.objects("--device sim --load in --scale 0.5")[0]["scale"], 0.5)

    def test_the_same_seed_gives_the_same_bits_and_replaces_the_files(self):
        first = self.saved(f"{TINY} --seed 5")["o"]
        for more in ("6", "5 --input outliers", "5"):
            self.good(f"{TINY} --save out --seed {more}")
            self.assertEqual(read_npy(self.at("out", "o.npy")) == first, more == "5")

    def test_the_generator_is_the_same_on_every_platform(self):
        # With one key, P is 1 and O is V: the input itself.
        shape = "--device sim --heads 64 --seqlen 1 --seqlen-kv 1 --head-dim 256"
        for arguments, digest in (("--seed 0", "4bfc954c162f86cd"),
                                  ("--seed 123456789012345 --dtype bf16", "1aea145ffc3b498a"),
                                  ("--seed 7 --input outliers", "476bd9f1cdfd019b")):
            descr, _, values = self.saved(f"{shape} {arguments}")["o"]
            data = struct.pack(f"<{len(values)}{'e' if descr == '<f2' else 'f'}", *values)
            self.assertEqual(hashlib.sha256(data).hexdigest()[:16], digest, arguments)

    def test_what_was_saved_can_be_loaded(self):
        self.good(f"{TINY} --seqlen-kv 3 --save in")
        for saved, loaded in (("o", "q"), ("dk", "k"), ("dv", "v"), ("dq", "do")):
            os.rename(self.at("in", f"{saved}.npy"), self.at("in", f"{loaded}.npy"))
        for o in self.objects("--device sim --load in"):
            self.assertEqual((o["input"], o["seqlen"], o["pass"]), ("load", 3, True))
        from_half = self.loaded()
        values = {name: read_npy(self.at("in", f"{name}.npy"))[2] for name in "qkv"}
        self.put_inputs((1, 2, 3, 8), descr="<f4", **values)
        self.assertEqual(from_half, self.loaded())

    def test_do_is_drawn_or_loaded(self):
        self.put_inputs((1, 2, 9, 8))
        for name in ("dO.npy", "dout.npy", "grad_output.npz", "do.npy"):  # may be meant for it
            os.symlink("nowhere", self.at("in", name))
            self.assert_bad("--device sim --load in", 2, f"'in/{name}' is ")
            os.remove(self.at("in", name))
        self.assertEqual(self.good("--device sim --load in --seed 3").stderr,
                         "in/do.npy is not there: dO is drawn from seed 3\n")
        drawn = self.loaded()
        self.put(npy((1, 2, 9, 8), [0] * 144), "in", "do.npy")
        loaded = self.loaded()
        for name in ("dq", "dk", "dv"):
            self.assertEqual((any(drawn[name][2]), any(loaded[name][2])), (True, False))

    def test_what_the_type_cannot_hold_is_no_wrong_result(self):
        heads, one = (1, 2, 4, 8), (1, 1, 4, 8)
        for dtype, qk, do, words in (("fp16", 1, 6e4, "32 values of dv are beyond fp16"),
                                     ("bf16", 1e20, 1, "64 values of o are beyond bf16")):
            self.put_inputs(heads, one, "<f4", q=[qk] * 64, k=[qk] * 32)
            self.put(npy(heads, [do] * 64, "<f4"), "in", "do.npy")
            done = self.execute(f"--device sim --load in --dtype {dtype}")
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
            self.assertNotIn("wrong result: an error", done.stderr)

    def test_files_that_are_no_inputs(self):
        many = (1, 2, 3, 8)
        self.put_inputs(many)
        self.put(npy(many), "in", "do.npy")
        self.good("--device sim --load in --save before")
        bad = [(name, None, "no such file") for name in "qkv"]
        bad += [("do", b"hello", "not a .npy"), ("k", os.mkfifo, "not a regular file"),
                ("k", npy(many, [7e4] * 48, "<f4"), "too large for fp16; try --dtype bf16")]
        shapes = {"dimension": [("q", (48,)), ("q", (1, 1, 2, 3, 8))],
                  "agree": [("k", (1, 2, 4, 8)), ("v", (1, 2, 4, 8)), ("v", (1, 1, 3, 8)),
                            ("q", (2, 2, 3, 8)), ("q", (1, 2, 3, 16)), ("do", (1, 2, 4, 8)),
                            ("do", (1, 1, 3, 8)), ("do", (2, 2, 3, 8))]}
        bad += [(name, npy(shape), word) for word in shapes for name, shape in shapes[word]]
        for name, content, word in bad:
            path = self.at("in", f"{name}.npy")
            os.rename(path, path + ".good")
            if callable(content):
                content(path)
            elif content is not None:
                self.put(content, path)
            with self.subTest(name=name, word=word):
                self.assert_bad("--device sim --load in", 2, f"{name}.npy", word)
            os.rename(path + ".good", path)
        for shape, word in (((1, 2, 3, 12), "multiple of 8"), ((1, 2, 3, 264), "multiple of 8"),
                            ((1, 1, 3, 8), "divide"), ((1, 3, 3, 8), "divide")):
            self.put_inputs(shape, (1, 2, *shape[2:]))
            self.assert_bad("--load in", 2, word)
        self.assert_bad("--load none_such", 2, "none_such", "no such file")
        self.assert_bad(f"--load {'x' * 5000}", 2, "too long")
        # One that claims to be large: nothing is allocated.
        os.truncate(self.at("in", "q.npy"),
                    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        self.assert_bad("--load in", 3, "GiB of memory", "q.npy")


class Places(Case):
    """Where files cannot be written, or not to their end."""

    # Files of this process may hold 100 bytes; the header of an .npy file has 128.
    FULL = staticmethod(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))

    def test_folders_and_files_that_cannot_be_written(self):
        self.put(b"a file", "file")
        os.makedirs(self.at("taken", "o.npy"))
        for arguments in ("--save file", "--save none/such/out", "--save taken", "--trace file/t",
                          "--trace none_such/trace", "--trace .", "--trace /proc/trace",
                          f"--trace {'x' * 300}", f"--trace {'x' * 5000}"):
            self.assert_bad(f"{TINY} {arguments}", 2, f"'{arguments.split()[-1]}", save="")
        self.assertEqual(sorted(os.listdir(self.root)), ["file", "taken"])
        self.assertEqual(os.listdir(self.at("taken")), ["o.npy"])

    def test_a_full_disk(self):
        self.good(f"{SMALL} --save before")
        before = read_npy(self.at("before", "o.npy"))
        # A buffer's worth, which fails at the end; and more, which fails at once.
        for workload in (TINY, SMALL):
            self.assert_bad(workload, 2, "cannot write", "too large", preexec_fn=self.FULL)
            self.assert_bad(workload, 2, save=" --save before --seed 9", preexec_fn=self.FULL)
            self.assert_bad(f"{workload} --trace t", 2, "cannot write", save="",
                            preexec_fn=self.FULL)
        self.assertEqual(sorted(os.listdir(self.root)), ["before", "out"])
        self.assertEqual(len(os.listdir(self.at("before"))), 5)
        self.assertEqual(read_npy(self.at("before", "o.npy")), before)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no /dev/full here")
    def test_devices_stay_what_they_are(self):
        self.good(f"{TINY} --trace /dev/null")
        self.assert_bad(f"{TINY} --trace /dev/full", 2, "/dev/full", "no space", save="")
        with open("/dev/full", "w", encoding="utf-8") as full:
            for arguments in (f"{TINY} --json", TINY, "--help", "--list"):
                done = self.execute(arguments, stdout=full)
                self.assertEqual(done.returncode, 2, arguments)
                self.assertIn("cannot write to stdout: No space", done.stderr)
        self.assertFalse(os.path.isfile("/dev/null") or os.path.isfile("/dev/full"))

    def test_what_would_be_said_on_a_closed_stderr_is_in_no_file(self):
        self.execute(f"{TINY} --time 1 --trace t", check=True, preexec_fn=lambda: os.close(2))
        with open(self.at("t"), encoding="utf-8") as trace:
            self.assertEqual({line[0] for line in trace}, {"{"})

    def test_a_run_that_is_interrupted_leaves_no_file(self):
        long = "--device sim --seqlen 4096 --heads 4 --check off --save out --trace t"
        with subprocess.Popen(self.command(long), cwd=self.root) as process:
            while process.poll() is None and not os.path.exists(self.at("out")):
                time.sleep(0.01)
            time.sleep(0.5)  # more than it takes to try the files
            process.terminate()
        self.assertEqual(process.returncode, -signal.SIGTERM)
        self.assertEqual((os.listdir(self.root), os.listdir(self.at("out"))), (["out"], []))


if __name__ == "__main__":
    unittest.main()
