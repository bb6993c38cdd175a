"""Tests of scripts/run --alone: a step in one file. Compiled here are three of them, where there is
nvcc; on a GPU all are, and run."""

import os
import re
import shutil
import unittest

from base import ROOT, Scratch

from ladder.base.sources import read_sources
from ladder.front.alone import (DEFINITION, NVCC, alone, definitions, file_of, names_of, portable,
                                words)


class AloneTest(Scratch):
    def test_every_portable_step_has_what_it_names(self):
        contract = set().union(*map(names_of, definitions("machine/machine.h", set())))
        sources = read_sources()
        for source in filter(portable, sources):
            text = alone(sources, source)
            self.assertNotRegex(text, r'#include "|MACHINE|Register|#ifn?def')
            self.assertIn(f"{NVCC} {file_of(source)} ", text.partition("\n\n#include")[0])
            self.assertIn(re.search(r"__global__(.*\n)*?\}\n", source.text)[0], text)
            there = set().union(*map(names_of, DEFINITION.findall(text)))
            self.assertEqual(words(text) & contract - there, set(), source.path)
            if source.name in ("00", "01/tile"):
                self.assertLess(len(text.splitlines()), 320, source.name)

    def test_the_command(self):
        self.copy_scripts("run")
        for folder in ("common", "00_naive", "01_tiled_matmul", "05_flash_v2", "06_backward"):
            shutil.copytree(os.path.join(ROOT, folder), self.at(folder))
        run = self.at("scripts/run")
        said = self.run_it(run, "--alone", "00").stdout
        self.assertIn("build/alone/00_naive.cu: 00_naive/attention.cu and what it needs", said)
        self.assertIn(f"\n{NVCC} build/alone/00_naive build/alone/00_naive.cu && ", said)
        self.run_it(run, "--alone", "01/pipeline")  # a step's name, with nothing built
        self.assertEqual(os.listdir(self.at("build")), ["alone"])
        for step, said in (("07", "there is no 07. The rungs and their steps:\n"),
                           ("05/sm90", "scripts/run, build/bin/05_flash_v2 --step sm90"),
                           ("01/cublas", "build/bin/01_tiled_matmul --step cublas runs")):
            self.assertIn(said, self.run_it(run, "--alone", step, status=2).stderr)
        for more in ([], ["00", "01/tile"]):
            self.assertIn("such as 00", self.run_it(run, "--alone", *more, status=2).stderr)
        if not shutil.which("nvcc"):
            self.skipTest("no nvcc: nothing is compiled")
        self.run_it(run, "--alone", "06/deterministic")
        for arch, step in (("75", "00_naive"), ("75", "01_pipeline"), ("80", "06_deterministic")):
            self.run_it("nvcc", "-ptx", "-Xcicc=-O0", f"-arch=sm_{arch}", *NVCC.split()[3:-1], "-o",
                        self.at("out"), self.at(f"build/alone/{step}.cu"))


if __name__ == "__main__":
    unittest.main()
