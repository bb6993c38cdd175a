"""Holds the register budgets of the Hopper steps, 05's and 06's, to what ptxas reports: nothing
spilled, and no product of a warpgroup made to wait (ptxas says so in a message, C75xx, and the overlap
is gone). They have few registers to spare, so a small change can cost either without a wrong result.
And where a step has a scheduling barrier, holds the machine code to its order.

Run alone: python3 common/tests/registers_test.py /usr/local/cuda/bin/nvcc
"""

import concurrent.futures
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
sys.dont_write_bytecode = True

from check_sass import find_tool  # noqa: E402  (it lies in scripts)
from limits import SECONDS  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NVCC = "nvcc"
CUDA = "13.0"  # other compilers may spill a little, and nobody measured what that costs
# Steps for Hopper alone say so.
HOPPER = ".exact_architecture = true"
# A kernel of warpgroups, whose products these are, and its parameters; and how often a step has it:
# fp16 and bf16, d padded to 32, 64, 128, 256, where it has several tiles each of them, and each of
# these with true and false of a bool.
KERNEL = re.compile(
    r"template <([^<>]*)>\s*__global__ void __launch_bounds__\(kWarpgroup ?\*.*?\)\s+(\w+)\(")
TILES = re.compile(r"kTiles\[\] = \{(.*?)\};", re.DOTALL)
TIMES = 8


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def sources():
    """Path → its kernels of warpgroups, and how often it has each."""
    found = {path: read(path) for path in sorted(
        glob.glob(os.path.join(ROOT, "[0-9][0-9]_*/**/*.cu"), recursive=True))}
    return {path: {kernel: 2 * tiles(text) * 2 ** parameters.count("bool ")
                   for parameters, kernel in KERNEL.findall(text)}
            for path, text in found.items() if HOPPER in text}


def tiles(text):
    """How many a step compiles in all, over the four padded head sizes."""
    most = [int(d) for d in re.findall(r"\{(\d+),", TILES.search(text)[1])]
    return sum(most.count(min(m for m in most if m >= d)) for d in (32, 64, 128, 256))


def report(source):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [NVCC, "-std=c++20", "--expt-relaxed-constexpr", "-O3", "-arch=sm_90a", "-Xptxas=-v",
             f"-I{ROOT}/common", "-cubin", "-o", os.path.join(folder, "out.cubin"), source],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=SECONDS, encoding="utf-8")
    if done.returncode:
        raise AssertionError(done.stdout)
    return done.stdout


class RegistersTest(unittest.TestCase):
    def need_compiler(self):
        version = subprocess.run([NVCC, "--version"], stdout=subprocess.PIPE, encoding="utf-8",
                                 check=True).stdout
        release = re.search(r"release ([\d.]+)", version)[1]
        if release != CUDA:
            self.skipTest(f"the budgets are known for CUDA {CUDA}, this is {release}")

    def test_the_hopper_steps_spill_nothing_and_serialize_nothing(self):
        self.need_compiler()
        of = sources()
        self.assertGreaterEqual(len(of), 8)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (source, kernels), text in zip(of.items(), pool.map(report, of)):
                with self.subTest(os.path.relpath(source, ROOT)):
                    self.assertIn("attention", kernels)
                    self.check(text, kernels)

    def check(self, text, kernels):
        self.assertNotRegex(text, r"C75\d\d")
        functions = re.findall(r"Function properties for (\w+)\n\s+(\d+) bytes stack frame, "
                               r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        for kernel, times in kernels.items():
            # In a mangled name its length stands before it.
            self.assertEqual(sum(f"{len(kernel)}{kernel}I" in name for name, *_ in functions),
                             times, f"{kernel}: {text}")
        for name, *bytes_of in functions:
            self.assertEqual(bytes_of, ["0"] * 3, f"{name}: stack, spill stores, spill loads")

    def test_a_tile_too_large_for_the_registers_is_found(self):
        self.need_compiler()
        old, new = "kBackwardTiles[] = {{64, 128, 128}, {128, 64, 128}", \
            "kBackwardTiles[] = {{64, 128, 128}, {128, 128, 128}"
        text = read(os.path.join(ROOT, "06_backward/sm90.cu"))
        self.assertIn(old, text, "06's tiles are others now: adapt this test")
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "sm90.cu")
            with open(copy, "w", encoding="utf-8") as file:
                file.write(text.replace(old, new))
            said = report(copy)
        self.assertIn("C7512", said)  # serialized, for want of registers
        for part in (said, re.sub(r"C75\d\d", "", said)):  # and spilled
            with self.assertRaises(AssertionError):
                self.check(part, {"attention": TIMES, "key_gradients": TIMES})

    def test_the_backward_pass_is_among_them(self):
        of = {os.path.relpath(path, ROOT): kernels for path, kernels in sources().items()}
        self.assertEqual(of["06_backward/sm90.cu"], {"attention": TIMES, "key_gradients": TIMES})
        self.assertEqual(of["05_flash_v2/hopper/wgmma.cu"], {"attention": TIMES})
        self.assertEqual(of["05_flash_v2/hopper/fp8.cu"], {"attention": 2 * TIMES})
        self.assertEqual(
            tiles("kTiles[] = {\n    {64, 1, 2}, {128, 1, 2}, {128, 3, 4}, {256, 5, 6}};"), 5)

    def test_what_is_wrong_with_a_report_is_found(self):
        def text(count=TIMES, stack=0, stores=0, loads=0, more=""):
            return more + "".join(
                f"ptxas info    : Function properties for _ZN6ladder13key_gradientsI6__halfLi{i}EE\n"
                f"    {stack if i == 3 else 0} bytes stack frame, {stores if i == 3 else 0} bytes "
                f"spill stores, {loads if i == 3 else 0} bytes spill loads\n" for i in range(count))

        self.check(text(), {"key_gradients": TIMES})
        serialized = ("ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async "
                      "instructions are serialized\n")
        for wrong in (text(stack=8), text(stores=4), text(loads=4), text(count=TIMES - 1),
                      text(more=serialized)):
            with self.assertRaises(AssertionError, msg=wrong):
                self.check(wrong, {"key_gradients": TIMES})
        with self.assertRaises(AssertionError):
            self.check(text(), {"gradients": TIMES})  # no kernel has this name


class OrderTest(unittest.TestCase):
    """Where the exponentials stand in the machine code of the steps with a scheduling barrier: behind
    the wait for S and before that for P·V, under which they are to run."""

    BARRIER = re.compile(r"^ *scheduling_barrier\(\);.*\n", re.MULTILINE)

    def kernels(self, source):
        """Of each kernel the exponentials before, between and after the waits, which leave so many
        groups of products under way: [66, "0x1", 66, "0x0", 0], say."""
        with tempfile.TemporaryDirectory() as folder:
            cubin = os.path.join(folder, "out.cubin")
            subprocess.run([NVCC, "-std=c++20", "--expt-relaxed-constexpr", "-O3", "-arch=sm_90a",
                            f"-I{ROOT}/common", "-cubin", "-o", cubin, source], check=True,
                           stdin=subprocess.DEVNULL, timeout=SECONDS)
            text = subprocess.run([self.cuobjdump, "-sass", cubin], check=True, timeout=SECONDS,
                                  stdout=subprocess.PIPE, encoding="utf-8").stdout
        for kernel in text.split("Function : ")[1:]:
            found = [0]
            for what in re.findall(r"MUFU\.EX2|WARPGROUP\.DEPBAR\.LE gsb0, 0x\d", kernel):
                if what == "MUFU.EX2":
                    found[-1] += 1
                else:
                    found += [what[-3:], 0]
            yield found

    def check(self, source):
        count = 0
        for found in self.kernels(source):
            at = found.index("0x1")
            # As many as the first softmax has, which stands before the loop.
            self.assertGreater(found[at - 1], 0, found)
            self.assertEqual(found[at + 1:at + 3], [found[at - 1], "0x0"], found)
            self.assertEqual(sum(found[at + 3::2]), 0, found)
            count += 1
        self.assertEqual(count, TIMES)

    def test_the_softmax_runs_under_the_product(self):
        RegistersTest.need_compiler(self)
        self.cuobjdump = find_tool("cuobjdump")
        if not self.cuobjdump:
            self.skipTest("no cuobjdump: the CUDA Toolkit has it")
        with_barrier = [path for path in sources() if self.BARRIER.search(read(path))]
        self.assertGreaterEqual(len(with_barrier), 2)
        for path in with_barrier:
            with self.subTest(os.path.relpath(path, ROOT)):
                self.check(path)
        # Without it ptxas puts them behind both waits. (If it no longer does, the word may go.)
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "copy.cu")
            with open(copy, "w", encoding="utf-8") as file:
                file.write(self.BARRIER.sub("", read(with_barrier[0])))
            with self.assertRaises(AssertionError):
                self.check(copy)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        NVCC = sys.argv.pop(1)
    unittest.main()
