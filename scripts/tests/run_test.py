"""Tests scripts/run with stand-ins for the programs, scripts/run --alone with the real sources, and
how all commands end and print numbers."""

import ctypes
import os
import re
import shlex
import shutil
import sys
import unittest
from unittest import mock

from support import ROOT, SCRIPTS, Scratch, expect_output, fences, read
from fake_ladder import FakeLadder
from ladder.base import console, programs, text
from ladder.base.sources import DEFINITION, names_of, read_sources
from ladder.front import alone, run, table


def asks(total, workspace=500):
    """Returns the answer of a stand-in that requests `total` bytes and needs this workspace."""
    return {"changes": {"requested_read_bytes": total, "model_read_bytes": total,
                        "requested_write_bytes": 0, "model_write_bytes": 0,
                        "workspace_bytes": workspace}}


class RunTest(FakeLadder):
    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.root)
        patch = mock.patch.object(run, "ROOT", self.root)
        patch.start()
        self.addCleanup(patch.stop)

    def table(self, *options, status=0):
        return self.call(run, *options, status=status)

    # ---- what runs, and the tables (lessons_test tests README's table) ----

    def test_all_columns_and_steps(self):
        self.ladder({"06_backward": ["split_sums"], "10_first": ["a", "b"]})
        result = self.table("--all")
        self.assertIn("no driver", result.stderr)
        self.assertIn("All results are correct", result.stdout)
        self.assertIn("10_first --load scripts/results/captured --step a,b --device sim --json",
                      self.calls())
        self.tell({"10_first/b": {"changes": {"pass": None}}})
        self.assertNotIn("are correct", self.table("--all").stdout)

    def test_options_are_passed_on(self):
        self.ladder({"05_flash_v2": ["large_tiles", "aside"]}, gpu=True)
        both, called = "--step large_tiles,aside --device", "05_flash_v2 "
        causal = "--seqlen 64 --causal"
        for words, asked in (
                ("--all", f"--dtype bf16 --dram {both} gpu"),
                ("--set a --time 5",
                 f"{called}--set a --time 5 --dram --step large_tiles --device"),
                (f"{causal} --all", f"{called}{causal} --dram {both} gpu --json"),
                ("--device sim --all", f"{called}{both} sim --json"),
                ("--device=sim", f"{called}--step large_tiles --device sim --json"),
                # An option that the programs refuse.
                ("--dev sim", f"{called}--dev sim --dram --step large_tiles --device gpu")):
            self.table(*words.split())
            calls = "\n".join(self.calls())
            self.assertIn(asked, calls, words)
            self.assertEqual("--device sim" in calls, words == "--all" or "device" in words, words)
            self.assertNotIn("--all", calls)
        self.tell({"probe bf16": {"status": 2}})  # as on a GPU of compute capability 7.5
        self.table()
        self.assertIn("05_flash_v2 --batch 8 --seqlen 2048 --heads 32 --head-dim 64 --time 50 "
                      "--dtype fp16 --dram --step large_tiles --device gpu --json", self.calls())

    def assert_said(self, *words):
        """Compares all that the command prints, and its status, with expected_output.md."""
        said = self.table(*words, status=None)
        expect_output(self, shlex.join(("scripts/run", *words)),
                      f"{said.stdout}{said.stderr}{said.status}\n")

    def test_the_table_matches_the_expected_output(self):
        """02's steps are about workspace, so rows show how far it falls and what that costs."""
        self.ladder({"00_naive": ["naive"], "01_tiled_matmul": ["tile", "mma"],
                     "02_safe_softmax": ["space", "fewer", "costly", "as_much"],
                     "03_online_softmax": ["softmax", "two_pass"],
                     "05_flash_v2": ["large_tiles", "sm90"],
                     "06_backward": ["split_sums", "sm90"]}, gpu=True)
        for step, total, space in (("space", 1000, 500), ("fewer", 900, 9), ("costly", 1800, 0),
                                   ("as_much", 3600, 0)):
            self.tell({f"02_safe_softmax/{step} sim": asks(total, space)})
        self.tell({"01_tiled_matmul/mma": {"status": 1, "changes": {"pass": False}, "err": "wrong"},
                   "01_tiled_matmul/tile gpu": {"changes": {"dram_read_bytes": 1_100_000,
                                                            "dram_write_bytes": 210_000}},
                   "03_online_softmax/softmax": {"status": -11, "err": "03_online_softmax: gone"},
                   "03_online_softmax/two_pass sim": asks(1_500_000),
                   "00_naive/naive sim": asks(36_000_000),
                   "05_flash_v2/large_tiles gpu": {"changes": {"time_ms": 2.5, "dtype": "bf16"}},
                   "05_flash_v2/sm90 gpu": {"status": 3, "err": "05_flash_v2: no Hopper GPU"},
                   "06_backward/sm90 gpu": {"bwd": {"pass": False}}})
        for words in ("", "--all", "--device sim --seqlen 64", "--device gpu"):
            self.assert_said(*words.split())
        self.assertNotRegex("\n".join(self.calls()), "--dram .*--device sim")

    def test_failures_match_the_expected_output(self):
        """Also tests that all steps run in one call before each of them is rerun on its own."""
        overflow = {"pass": False, "errors": {"dq": {"max": 0.1, "nonfinite": 0},
                                              "o": {"max": None, "nonfinite": 7}}}
        told = {"overflow": {"status": 1, "changes": overflow,
                             "err": "06_backward: it subtracts no maximum;\n02_safe_softmax does"},
                "reads": {"changes": {"model_read_bytes": 29_999_998}},
                "writes": {"changes": {"model_write_bytes": 0}}, "silent": {"out": ""},
                "forward": {"fwd": {"pass": False}}, "backward": {"bwd": {"pass": False}},
                "unchecked": {"changes": {"pass": None, "errors": None}},
                "undecided": {"fwd": {"pass": None}},
                "exact": {"changes": {"errors": {"o": {"max": 0.0}}}},
                "stops": {"status": -11, "out": '{"rung": '}}
        self.ladder({"00_naive": ["naive"], "06_backward": ["good", *told, "last"]})
        self.tell({f"06_backward/{step}": does for step, does in told.items()})
        self.assert_said("--all", "--device", "sim")
        self.assertIn(f"06_backward --step good,{','.join(told)},last --device sim --json",
                      self.calls())

    def test_refusals_of_programs_are_shown_once(self):
        """A message is shown once, with no table if all print it; the worst exit status counts."""
        ladder = {"00_naive": ["naive"], "01_tiled_matmul": ["tile", "mma"]}
        self.ladder(ladder)
        self.tell({f"{rung}/{step}": {"status": 2, "err": f"{rung}: must be at least 1"}
                   for rung, steps in ladder.items() for step in steps})
        said = self.table("--seqlen", "0", status=2)
        self.assertEqual(said.stdout + said.stderr, "scripts/run: must be at least 1\n"
                         "build/bin/00_naive --help lists the programs' options, scripts/run "
                         "--help its own.\n")
        self.tell({"00_naive/naive": {}})
        said = self.table(status=2).stdout
        self.assertIn("01_tiled_matmul tile, 01_tiled_matmul mma on the simulator refused (status "
                      "2):\n  must be at least 1\n", said)
        # Steps that did not run have no row, and the last line does not speak of all results.
        self.assertNotRegex(said, "(?m)^01 |are correct")
        for *statuses, worst in ((0, 3, 3), (3, 2, 2), (2, 1, 1), (9, 1, 9)):
            self.tell({f"01_tiled_matmul/{step}": {"status": s, "err": "00_naive: no"}
                       for step, s in zip(("tile", "mma"), statuses)})
            self.table(status=worst)

    def test_bad_options_are_refused(self):
        self.write("build/bin/00_text", "not to be run")
        self.assertIn("build/bin has no rung's program", self.table(status=2).stderr)
        self.rung()
        for option in ("--save=x", "--new", "--list", "--step=mma"):
            self.assertIn("single program", self.table(option, status=2).stderr)
        for printed in ("hello", '{"time_ms": NaN}'):
            self.tell({"00_naive/naive": {"out": printed}})
            self.assertIn("not JSON", self.table(status=1).stdout)


class Console(Scratch):
    def test_how_a_command_ends(self):
        for work, status, said in (
                ("signal.raise_signal(signal.SIGINT)", 130, "\nx: interrupted\n"),
                ("signal.raise_signal(signal.SIGTERM)", 143, ""),
                ("refuse(OSError(28, 'full', 'out'))", 2,
                 "x: out: full. Make room there, or choose another path.\n"),
                ("refuse(CommandError('why', 3))", 3, "x: why\n")):
            self.assertEqual(self.run_it(
                sys.executable, "-c", "import signal, sys\nfrom ladder.base.console import *\n"
                f"def refuse(error): raise error\nsys.exit(run_command('x', lambda: {work}))",
                status=status, PYTHONPATH=SCRIPTS).stderr, said)

    def test_googletests_variables_reach_no_program(self):
        self.assertEqual(self.run_it(
            sys.executable, "-c", "import os\nfrom ladder.base.console import *\n"
            "run_command('x', lambda: print([n for n in os.environ if n.startswith('GTEST')]))",
            GTEST_COLOR="yes", GTEST_SHARD_INDEX="49", PYTHONPATH=SCRIPTS).stdout, "[]\n")

    def test_messages_of_a_program_are_shown(self):
        """Only the last six lines of stderr are kept."""
        self.assertEqual(programs.run_quietly(
            ["sh", "-c", "seq 9 >&2; echo out; kill -9 $$"]), (-9, "out\n", "4\n5\n6\n7\n8\n9"))

    def test_an_option_stays_on_one_line(self):
        """Keeps an option together with its value, so that both can be copied."""
        self.assertEqual(console.wrap(90 * "x" + " --head-dim 40"), [90 * "x", "--head-dim 40"])

    def test_colour_is_for_terminals_that_want_it(self):
        for terminal, no_color, term in ((1, "", "xterm"), (0, "", "xterm"), (1, "1", "xterm"),
                                         (1, "", "dumb")):
            with mock.patch.dict(os.environ, NO_COLOR=no_color, TERM=term):
                paint = console.Paint(mock.Mock(**{"isatty.return_value": terminal}))
            self.assertEqual(paint.on, (terminal, no_color, term) == (1, "", "xterm"))


class Told(unittest.TestCase):
    def test_numbers_match_the_expected_output(self):
        """Tests numbers around each change of the format, of a unit or of the digits shown."""
        lines = [" | ".join(map(told, numbers)) for told, *numbers in (
            (text.bytes_text, None, 1.5, 999, 9994, 99_950, 999_499, 999_500),
            (text.time_text, 0.0005, 0.9996, 1e6),
            (text.rate_text, 0.0945, 0.1, 0.994, 9.996, 99.94))]
        lines += [table.against(table.TRAFFIC, 1000, was) for was in (995, 996, 1004, 1006)]
        lines += [table.change_of(mock.Mock(change=[count]), {count: now}, {count: was})
                  for count, was, now in (
                      ("requested_bytes", 2, 1), ("barriers", 5, 5), ("atomics", 99_999, 1),
                      ("atomics", 100_000, 1), ("new_count", 0, 999_999), ("sectors", 10**6, 0))]
        with self.assertRaisesRegex(console.CommandError, "names misspelt"):
            table.change_of(mock.Mock(change=["misspelt"]), {"blocks": 1}, {"blocks": 2})
        expect_output(self, "numbers", "\n".join(lines) + "\n")


NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


class AloneTest(Scratch):
    """Tests scripts/run --alone, which writes a step as one file, without plan, traffic() and
    choice of types. nvcc, if any, compiles some, with only the flags in their head comments."""

    def test_every_portable_step_has_what_it_names(self):
        contract = alone.common("machine/machine.h", set())
        names = set().union(*map(names_of, DEFINITION.findall(contract)))
        for source in read_sources():  # each head comment must say how to run the file
            self.assertRegex(source.text.split("\n\n")[0],
                             rf"\n//   build/bin/{source.rung} --step \w+")
        for source in filter(alone.portable, read_sources()):
            text = alone.alone(source)
            code = re.sub("//.*", "", text)
            self.assertEqual(re.findall(r'#include "|MACHINE|Register|#ifn?def|[Pp]lan\b|Traffic|'
                                        r"dtype|namespace|DeviceInfo|Tiles|.{101}", code), [])
            self.assertIn(f"{alone.NVCC} {alone.file_of(source)} ",
                          text.partition("\n\n#include")[0])
            self.assertIn(re.findall(r"__global__(?:.*\n)*?\}\n", source.text)[-1], text)
            there = set().union(*map(names_of, DEFINITION.findall(text)))
            self.assertEqual(set(re.findall(r"\w+", code)) & names - there, set(), source.path)
            self.assertEqual({name for name in there & names
                              if len(re.findall(rf"\b{name}\b", code)) < 2}, set(), source.path)
            most = {"00": 180, "01/tile": 240, "05/flat": 450, "06": 1100}.get(source.name)  # lines
            self.assertLessEqual(len(text.splitlines()), most or 1100, source.path)

    def test_the_command(self):
        self.copy_scripts("run")
        for folder in ("common", "00_naive", "01_tiled_matmul", "05_flash_v2"):
            shutil.copytree(os.path.join(ROOT, folder), self.at(folder))
        run = self.at("scripts/run")
        said = self.run_it(run, "--alone", "00").stdout
        self.assertIn("build/alone/00_naive.cu: 00_naive/attention.cu and what it needs", said)
        self.assertIn("\nnvcc -O3 -std=c++20 -arch=native -o "
                      "build/alone/00_naive build/alone/00_naive.cu && ", said)
        path = self.at("01_tiled_matmul/attention.cu")  # found by its step's name, without a build
        self.run_it(run, "--alone", "01/pipeline")
        whole = read(self.at("build/alone/01_pipeline.cu"))
        head, start, rest = read(path).partition("namespace ladder::MACHINE {\nnamespace {\n")
        moved, _, rest = rest.partition("\n/// ")  # moves into a header of the folder
        self.write("01_tiled_matmul/moved.h", '#pragma once\n\n#include "rung.h"\n\n' + start +
                   moved + "}  // namespace\n}  // namespace ladder::MACHINE\n")
        self.write(path, head.replace("#include", '#include "moved.h"\n#include', 1) + start +
                   "\n/// " + rest)
        self.run_it(run, "--alone", "01/pipeline")
        self.assertEqual(read(self.at("build/alone/01_pipeline.cu")), whole)
        self.assertEqual(os.listdir(self.at("build")), ["alone"])
        for step, said in (("07", "there is no 07. The rungs and their steps:\n"),
                           ("05/sm90", "scripts/run, build/bin/05_flash_v2 --step sm90")):
            self.assertIn(said, self.run_it(run, "--alone", step, status=2).stderr)
        for more in ([], ["00", "01/tile"]):
            self.assertIn("such as 00", self.run_it(run, "--alone", *more, status=2).stderr)

    def compile(self, name, *options):
        """Writes the file NAME.cu and compiles it with the flags that its head comment names, and
        these options. Returns the output's path."""
        source = next(source for source in read_sources() if alone.file_of(source) == name)
        made = self.at(name)
        done = self.run_it(NVCC, *alone.NVCC.replace("native", "sm_80").split()[1:], made, *options,
                           self.write(f"{name}.cu", alone.alone(source)))
        self.assertEqual(done.stderr, "", name)
        return made

    @unittest.skipUnless(NVCC, "no nvcc: nothing is compiled")
    def test_they_compile(self):
        for name in ("00_naive", "01_pipeline", "05_split_kv", "06_split_sums", "06_stored"):
            self.compile(name)

    @unittest.skipUnless(NVCC, "no nvcc: nothing is compiled")
    def test_from_pytorch(self):
        """First tests, without a GPU, which arguments are refused. Then runs the Python code of
        05's page at three shapes, and compares O with PyTorch's."""
        library = self.compile("05_flat", "-shared", "-Xcompiler", "-fPIC")
        attention = ctypes.CDLL(library).attention_forward
        for first, H, d in ((None, 2, 64), (16, 2, 136), (16, 2, 60), (16, 3, 64)):
            self.assertEqual(attention(*[ctypes.c_void_p(first)] * 5, 1, H, 2, 8, 8, d,
                                       ctypes.c_float(1), 0, 0, None), 1)  # cudaErrorInvalidValue
        try:
            import torch
        except ImportError:
            self.skipTest("no PyTorch")
        if not torch.cuda.is_available():
            self.skipTest("no GPU for PyTorch")
        code = fences(read(ROOT, "05_flash_v2/README.md"), "python")[0][1]
        shape = next(line for line in code if line.startswith("B, H, "))
        page = "\n".join(code).replace("./flat.so", library)
        for sizes in ("2, 8, 2, 1000, 1000, 128, True, torch.bfloat16",  # grouped, ragged
                      "1, 6, 3, 333, 777, 80, False, torch.float16",
                      "3, 4, 4, 512, 512, 64, True, torch.float16"):
            found = {}
            print(f"{shape.partition(' = ')[0]} = {sizes}: status, largest difference:")
            exec(page.replace(shape, f"{shape.partition(' = ')[0]} = {sizes}"), found)
            self.assertEqual(found["status"], 0)
            tolerance = 0.03 if "bfloat16" in sizes else 0.005
            self.assertLess((found["o"] - found["right"]).abs().max().item(), tolerance)
