"""Holds the register budgets of the Hopper steps, 05's and 06's, to what ptxas reported when they were
built: nothing spilled, and no product of a warpgroup made to wait (ptxas says so in a message, C75xx,
and the overlap is gone). They have few registers to spare, so a small change can cost either without
a wrong result. And where a step has a scheduling barrier, holds the machine code to its order.

Run alone: python3 common/tests/registers_test.py build 13.0 (the build's CUDA)
"""

import glob
import os
import re
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
sys.dont_write_bytecode = True

from check_sass import find_tool  # noqa: E402  (it lies in scripts)

SECONDS = 600  # for what hangs
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, "build")
CUDA = "13.0"  # other compilers may spill a little, and nobody measured what that costs
BUILT_BY = CUDA
# Steps for Hopper alone say so.
HOPPER = ".exact_architecture = true"
# A kernel of warpgroups, whose products these are, and its parameters; and how often a step has it:
# fp16 and bf16, d padded to 32, 64, 128, 256, where it has several tiles each of them, and each of
# these with true and false of a bool.
KERNEL = re.compile(
    r"template <([^<>]*)>\s*__global__ void __launch_bounds__\(kWarpgroup ?\*.*?\)\s+(\w+)\(")
TILES = re.compile(r"k(?:Backward)?Tiles\[\] = \{(.*?)\};", re.DOTALL)
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


def built(source):
    """A source's object."""
    path = os.path.relpath(source, ROOT)
    return os.path.join(BUILD, f"CMakeFiles/rung_{path.split(os.sep)[0]}_gpu.dir/{path}.o")


def report(source):
    """What ptxas said of a source's kernels for Hopper."""
    said = read(built(source) + ".ptxas").split("ptxas info    : Compiling entry function")
    return "".join(part for part in said if " for 'sm_" not in part or " for 'sm_90a'" in part)


class BuildTest(unittest.TestCase):
    """A test of what was built for Hopper, by a compiler whose output is known."""

    def setUp(self):
        if not BUILT_BY.startswith(CUDA):
            self.skipTest(f"the budgets are known for CUDA {CUDA}, this is {BUILT_BY}")
        if "sm_90a" not in report(next(iter(sources()))):
            self.skipTest("built for other GPUs than Hopper's")


class RegistersTest(BuildTest):
    def test_the_hopper_steps_spill_nothing_and_serialize_nothing(self):
        of = sources()
        self.assertGreaterEqual(len(of), 8)
        for source, kernels in of.items():
            with self.subTest(os.path.relpath(source, ROOT)):
                self.assertTrue(kernels)
                check(self, report(source), kernels)


def check(test, text, kernels):
    test.assertNotRegex(text, r"C75\d\d")
    functions = re.findall(r"Function properties for (\w+)\n\s+(\d+) bytes stack frame, "
                           r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    for kernel, times in kernels.items():
        # In a mangled name its length stands before it.
        test.assertEqual(sum(f"{len(kernel)}{kernel}I" in name for name, *_ in functions),
                         times, f"{kernel}: {text}")
    for name, *bytes_of in functions:
        test.assertEqual(bytes_of, ["0"] * 3, f"{name}: stack, spill stores, spill loads")


class ReadingTest(unittest.TestCase):
    def test_the_backward_pass_is_among_them(self):
        of = {os.path.relpath(path, ROOT): kernels for path, kernels in sources().items()}
        for step in ("wgmma", "tma", "producer", "transposed", "bulk_add", "sm90"):
            self.assertEqual(of[f"06_backward/hopper/{step}.cu"], {"key_gradients": TIMES})
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

        check(self, text(), {"key_gradients": TIMES})
        serialized = ("ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async "
                      "instructions are serialized\n")
        for wrong in (text(stack=8), text(stores=4), text(loads=4), text(count=TIMES - 1),
                      text(more=serialized)):
            with self.assertRaises(AssertionError, msg=wrong):
                check(self, wrong, {"key_gradients": TIMES})
        with self.assertRaises(AssertionError):
            check(self, text(), {"gradients": TIMES})  # no kernel has this name


class OrderTest(BuildTest):
    """Where the exponentials stand in the machine code of the steps with a scheduling barrier: behind
    the wait for S and before that for P·V, under which they are to run."""

    BARRIER = re.compile(r"^ *scheduling_barrier\(\);.*\n", re.MULTILINE)

    def kernels(self, source):
        """Of each kernel the exponentials before, between and after the waits, which leave so many
        groups of products under way: [66, "0x1", 66, "0x0", 0], say."""
        text = subprocess.run([self.cuobjdump, "-sass", "-arch", "sm_90a", built(source)], check=True,
                              timeout=SECONDS, stdout=subprocess.PIPE, encoding="utf-8").stdout
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
        self.cuobjdump = find_tool("cuobjdump")
        if not self.cuobjdump:
            self.skipTest("no cuobjdump: the CUDA Toolkit has it")
        with_barrier = [path for path in sources() if self.BARRIER.search(read(path))]
        self.assertGreaterEqual(len(with_barrier), 2)
        for path in with_barrier:
            with self.subTest(os.path.relpath(path, ROOT)):
                self.check(path)


if __name__ == "__main__":
    if len(sys.argv) > 2 and not sys.argv[1].startswith("-"):
        BUILD, BUILT_BY = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
