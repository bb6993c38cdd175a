"""Compares the compiled kernels with the lessons' statements about them.

The Hopper steps have few registers to spare. A small change can spill some, or make ptxas insert a
wait after a product, so that nothing overlaps it (ptxas warns with a number C75xx); results stay
correct, so no other test notices. Reads from an Hbm<T> that a kernel never writes must use the
read-only path (ld.global.nc), as reads through a raw T* __restrict__ do.

To run it alone, give the build folder, the CUDA version that built it, and a compiler:
  python3 scripts/tests machine_code build 13.0 nvcc"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import support
from support import SECONDS, read
from ladder.base.files import paths_in
from ladder.base.sources import read_sources

ROOT = os.path.realpath(support.ROOT)
BUILD, BUILT_BY, NVCC = (sys.argv.pop(1) for _ in range(3))
BUILD = os.path.abspath(BUILD)
CUDA = "13.0"  # the only version tested; others may spill a little, at an unknown cost


def output_of(*command):
    return subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.PIPE,
                          encoding="utf-8").stdout


def report(source, whole=False):
    """Returns ptxas's report on a source's kernels for Hopper, or if `whole`, for all GPUs."""
    objects = {entry["file"]: re.search(r" -o (\S+)", entry["command"])[1]
               for entry in json.loads(read(os.path.join(BUILD, "compile_commands.json")))}
    said = read(os.path.join(BUILD, objects[os.path.join(ROOT, source)] + ".ptxas"))
    parts = said.split("ptxas info    : Compiling entry function")
    return said if whole else "".join(part for part in parts if "'sm_90a'" in part)


class HopperTest(unittest.TestCase):
    """Tests the code built for Hopper, if it was built by the version of CUDA named above."""

    def setUp(self):
        if not BUILT_BY.startswith(CUDA):
            self.skipTest(f"the budgets are known for CUDA {CUDA}, this is {BUILT_BY}")
        self.steps = [source.path for source in read_sources()
                      if ".exact_architecture = true" in source.text]
        self.assertGreaterEqual(len(self.steps), 12)
        if "sm_90a" not in report(self.steps[0]):
            self.skipTest("built for other GPUs than Hopper's")
        self.types, self.head_dims = ["13__nv_bfloat16", "6__half"], 3  # 32, 64 and 128
        if "-DLADDER_ONE_KERNEL" in read(os.path.join(BUILD, "compile_commands.json")):
            self.types, self.head_dims = self.types[:1], 1

    def test_nothing_is_spilled_and_no_product_waits(self):
        for source in self.steps:
            with self.subTest(source):
                functions = re.findall(r"Function properties for (\w+)\n *(.+)", report(source))
                for kind in self.types:
                    self.assertGreaterEqual(sum(kind in name for name, _ in functions),
                                            self.head_dims)
                self.assertEqual({uses for _, uses in functions}, {
                    "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"})
                self.assertEqual(re.findall(r"C75\d\d.*", report(source, True)), [])


class PointerTest(unittest.TestCase):
    def test_an_hbm_is_a_restricted_pointer(self):
        if not shutil.which(NVCC):
            self.skipTest("no nvcc")
        source = paths_in(ROOT, "[0-9][0-9]_*/attention.cu")[0]
        with tempfile.NamedTemporaryFile(suffix=".ptx") as ptx:
            output_of(NVCC, "-ptx", "-arch=sm_90a", "-std=c++20", "--expt-relaxed-constexpr",
                      "-I", os.path.join(ROOT, "common"), "-o", ptx.name, source)
            self.assertIn("ld.global.nc.", read(ptx.name))
