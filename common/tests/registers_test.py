"""Holds the register budgets of 05's Hopper steps to what ptxas reports: nothing spilled, and no
product of a warpgroup made to wait (ptxas says so in a message, C75xx, and the overlap is gone). They
have few registers to spare, so a small change can cost either without a wrong result.

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

from limits import SECONDS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NVCC = "nvcc"
CUDA = "13.0"  # other compilers may spill a little, and nobody measured what that costs
KERNELS = 8  # named attention, of a step: fp16 and bf16, d padded to 32, 64, 128, 256


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
    def test_the_hopper_steps_spill_nothing_and_serialize_nothing(self):
        version = subprocess.run([NVCC, "--version"], stdout=subprocess.PIPE, encoding="utf-8",
                                 check=True).stdout
        release = re.search(r"release ([\d.]+)", version)[1]
        if release != CUDA:
            self.skipTest(f"the budgets are known for CUDA {CUDA}, this is {release}")
        sources = sorted(glob.glob(os.path.join(ROOT, "05_flash_v2/hopper/*.cu")))
        self.assertTrue(sources)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for source, text in zip(sources, pool.map(report, sources)):
                with self.subTest(os.path.basename(source)):
                    self.check(text)

    def check(self, text):
        self.assertNotRegex(text, r"C75\d\d")
        kernels = re.findall(r"Function properties for (\w+)\n\s+(\d+) bytes stack frame, "
                             r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        self.assertEqual(sum("attention" in name for name, *_ in kernels), KERNELS, text)
        for name, *bytes_of in kernels:
            self.assertEqual(bytes_of, ["0"] * 3, f"{name}: stack, spill stores, spill loads")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        NVCC = sys.argv.pop(1)
    unittest.main()
