"""The recipe of common/README.md, "To add a rung", steps 1 and 2: beside the tree, one folder and
one line of CMakeLists.txt make a program with its tests. (That a new rung has its rows and its
colour without another line, figures_test shows.)

Run alone: python3 scripts/tests/toy_test.py [C++ compiler]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from base import ROOT

COMPILER = None


class Toy(unittest.TestCase):
    def test_a_folder_and_a_line(self):
        with tempfile.TemporaryDirectory() as tree:
            for name in os.listdir(ROOT):
                if name not in ("build", ".git", "CMakeLists.txt"):
                    os.symlink(os.path.join(ROOT, name), os.path.join(tree, name))
            shutil.copy(os.path.join(ROOT, "CMakeLists.txt"), tree)
            with open(os.path.join(tree, "CMakeLists.txt"), "a", encoding="utf-8") as file:
                file.write("add_rung(07_toy)\n")
            os.mkdir(os.path.join(tree, "07_toy"))
            shutil.copy(os.path.join(ROOT, "00_naive/attention.cu"), os.path.join(tree, "07_toy"))

            def said(*words):
                done = subprocess.run(words, cwd=tree, stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      encoding="utf-8", check=False)
                self.assertEqual(done.returncode, 0, done.stdout)
                return done.stdout

            said("cmake", "--preset", "sim",
                 *([f"-DCMAKE_CXX_COMPILER={COMPILER}"] if COMPILER else []))
            self.assertIn("stubs/07_toy/attention.cu.cpp",
                          said("ninja", "-C", "build/sim", "-t", "commands", "07_toy"))
            self.assertIn("suite_test.cpp",
                          said("ninja", "-C", "build/sim", "-t", "commands", "07_toy_test"))
            self.assertIn(": 07_toy.cli\n", said("ctest", "--test-dir", "build/sim", "-N"))


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        COMPILER = sys.argv.pop(1)
    unittest.main()
