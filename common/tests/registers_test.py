"""Holds the register budget of 05's sm90 to what ptxas reports: nothing spilled, and no product of a
warpgroup made to wait (ptxas says so in a warning, C75xx, and the overlap is gone). Its consumers
have all the registers that there are, so a small change can cost either without a wrong result.

Run alone: python3 common/tests/registers_test.py /usr/local/cuda/bin/nvcc
"""

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
KERNELS = 9  # fp16 and bf16, d padded to 32, 64, 128, 256; and the one that clears the counter


def report(source, folder):
    done = subprocess.run(
        [NVCC, "-std=c++20", "--expt-relaxed-constexpr", "-O3", "-arch=sm_90a", "-Xptxas=-v",
         f"-I{ROOT}/common", "-cubin", "-o", os.path.join(folder, "out.cubin"), source],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
        encoding="utf-8")
    if done.returncode:
        raise AssertionError(done.stdout)
    return done.stdout


class RegistersTest(unittest.TestCase):
    def test_sm90_spills_nothing_and_serializes_nothing(self):
        version = subprocess.run([NVCC, "--version"], stdout=subprocess.PIPE, encoding="utf-8",
                                 check=True).stdout
        release = re.search(r"release ([\d.]+)", version)[1]
        if release != CUDA:
            self.skipTest(f"the budget is known for CUDA {CUDA}, this is {release}")
        with tempfile.TemporaryDirectory() as folder:
            text = report(os.path.join(ROOT, "05_flash_v2/attention_sm90.cu"), folder)
        self.assertNotRegex(text, r"C75\d\d")
        kernels = re.findall(r"Function properties for (\w+)\n\s+(\d+) bytes stack frame, "
                             r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
        self.assertEqual(len(kernels), KERNELS, text)
        for name, *bytes_of in kernels:
            self.assertEqual(bytes_of, ["0"] * 3, f"{name}: stack, spill stores, spill loads")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        NVCC = sys.argv.pop(1)
    unittest.main()
