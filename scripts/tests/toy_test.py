"""The recipe of common/README.md, "To add a rung", steps 1 and 2: beside the tree, one folder and
one line of CMakeLists.txt make a program with its tests. (That a new rung has its rows and its
colour without another line, figures_test shows.)

Run alone: python3 scripts/tests/toy_test.py [C++ compiler]
"""

import os
import unittest

from base import ROOT, Scratch, argument, read

COMPILER = argument()


class Toy(Scratch):
    def test_a_folder_and_a_line(self):
        for name in set(os.listdir(ROOT)) - {"build", ".git", "CMakeLists.txt"}:
            os.symlink(os.path.join(ROOT, name), self.at(name))
        self.write("CMakeLists.txt", read(ROOT, "CMakeLists.txt") + "add_rung(07_toy)\n")
        self.write("07_toy/attention.cu", read(ROOT, "00_naive/attention.cu"))
        self.run_it("cmake", "--preset", "sim",
                    *([f"-DCMAKE_CXX_COMPILER={COMPILER}"] if COMPILER else []))
        for command, said in (
                ("ninja -C build/sim -t commands 07_toy", "stubs/07_toy/attention.cu.cpp"),
                ("ninja -C build/sim -t commands 07_toy_test", "suite_test.cpp"),
                ("ctest --test-dir build/sim -N", ": 07_toy.cli\n")):
            self.assertIn(said, self.run_it(*command.split()).stdout)


if __name__ == "__main__":
    unittest.main()
