"""The recipe of common/README.md, "To add a rung", tried with a toy: in a copy of the repository one
folder and one line of CMakeLists.txt make a program with its tests, its counts, its rows and its
colour, and no other file is touched.

Run alone: python3 common/tests/toy_test.py [C++ compiler]
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
COMPILER = None

# Rung 00, but a thread of the third kernel makes two columns of O, so that P is read half as often.
COLOUR = "#12ab9f"
CHANGES = {
    "// 00 · Naive attention:": "// NUMBER · A toy:",
    '.rung = "00_naive"': '.rung = "RUNG"',
    '.name = "naive"': '.name = "two_columns"',
    '.colour = "#5a5a5a"': f'.colour = "{COLOUR}"',
    "const int c = blockIdx.z * kBlock + threadIdx.x;":
        "const int c = 2 * (blockIdx.z * kBlock + threadIdx.x);",
    """  float o = 0;
  for (int j = 0; j < p.N_kv; ++j) o = fmaf(float(P[row + j]), float(V[v + int64_t{j} * p.d]), o);
  O[(p.q_row(bh) + i) * p.d + c] = T(o);
""": """  float left = 0, right = 0;
  for (int j = 0; j < p.N_kv; ++j) {
    const float P_ij = float(P[row + j]);
    left = fmaf(P_ij, float(V[v + int64_t{j} * p.d]), left);
    right = fmaf(P_ij, float(V[v + int64_t{j} * p.d + 1]), right);
  }
  O[(p.q_row(bh) + i) * p.d + c] = T(left);
  O[(p.q_row(bh) + i) * p.d + c + 1] = T(right);
""",
    "grid_blocks(p.d, kBlock)": "grid_blocks(p.d / 2, kBlock)",
    '{"P", S * p.d, 0}': '{"P", S * p.d / 2, 0}',
}
CASES = "*_one_query_one_key:*_one_query:*_seven:*_blind_rows:Schedules.*"


class Toy(unittest.TestCase):
    """One toy for all tests, which only look at it: building it is what takes time."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.scratch = os.path.realpath(folder.name)
        cls.copy = os.path.join(cls.scratch, "copy")
        cls.number = f"{1 + max(int(os.path.basename(r)[:2]) for r in cls.rungs(ROOT)):02}"
        cls.rung = f"{cls.number}_toy"
        cls.copy_repository()
        cls.add_the_rung()
        cls.run_there("cmake", "--preset", "sim", "-DCMAKE_BUILD_TYPE=", "-DCMAKE_CXX_FLAGS=-O1",
                      *([f"-DCMAKE_CXX_COMPILER={COMPILER}"] if COMPILER else []))
        cls.run_there("cmake", "--build", "build/sim", "-j2", "--target", cls.rung,
                      f"{cls.rung}_test")
        # The counts join those of the other rungs, as scripts/bench.py --sim would have them.
        for name in ("sim.json", "traces.json", "clock.json",
                     os.path.basename(cls.newest())):
            shutil.copy(os.path.join(cls.copy, "scripts/results", name), cls.scratch)
        cls.run_there("scripts/bench.py", "--sim", "--rung", cls.number, "--bin", "build/sim/bin",
                      "--out", os.path.join(cls.scratch, "sim.json"))
        with open(os.path.join(cls.scratch, "sim.json"), encoding="utf-8") as file:
            cls.sim = json.load(file)

    @staticmethod
    def rungs(root):
        return sorted(os.path.dirname(path)
                      for path in glob.glob(os.path.join(root, "[0-9][0-9]_*/attention.cu")))

    @classmethod
    def copy_repository(cls):
        if not shutil.which("git"):
            raise unittest.SkipTest("git is missing: it tells which files are the repository's")
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], capture_output=True, encoding="utf-8",
                                check=False)
        if listed.returncode:
            raise unittest.SkipTest(f"{ROOT} is no git checkout: which files are the repository's?")
        for name in filter(None, listed.stdout.split("\0")):
            source, target = os.path.join(ROOT, name), os.path.join(cls.copy, name)
            if os.path.lexists(source):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        cls.run_there("git", "init", "--quiet")
        cls.run_there("git", "add", "--all")
        cls.run_there("git", "-c", "user.name=toy", "-c", "user.email=toy@localhost", "-c",
                      "commit.gpgsign=false", "commit", "--quiet", "--message", "before")

    @classmethod
    def add_the_rung(cls):
        """Steps 1 and 2 of the recipe."""
        with open(os.path.join(cls.copy, "00_naive/attention.cu"), encoding="utf-8") as file:
            text = file.read()
        for old, new in CHANGES.items():
            if text.count(old) != 1:
                raise ValueError(f"00_naive/attention.cu has moved on: not once in it is {old!r}")
            text = text.replace(old, new)
        text = text.replace("NUMBER", cls.number).replace("RUNG", cls.rung)
        os.mkdir(os.path.join(cls.copy, cls.rung))
        with open(os.path.join(cls.copy, cls.rung, "attention.cu"), "w", encoding="utf-8") as file:
            file.write(text)
        with open(os.path.join(cls.copy, "CMakeLists.txt"), "a", encoding="utf-8") as file:
            file.write(f"add_rung({cls.rung})\n")

    @classmethod
    def run_there(cls, *words):
        """What a command of the copy prints."""
        done = subprocess.run(words, cwd=cls.copy, stdin=subprocess.DEVNULL, capture_output=True,
                              encoding="utf-8", check=False,
                              env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        if done.returncode:
            raise AssertionError(f"{' '.join(words)} ended with status {done.returncode}:\n"
                                 f"{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout

    @classmethod
    def python(cls, text):
        """What some Python over the package ladder prints, as JSON."""
        return json.loads(cls.run_there(sys.executable, "-c",
                                        f"import sys; sys.path.insert(0, 'scripts'); {text}"))

    @classmethod
    def newest(cls):
        return cls.python("import json; from ladder.files import newest_measured; "
                          "print(json.dumps(newest_measured()))")

    def from_files(self, first, what):
        """What is shown of a results file with those beside it: `files` in `what`."""
        path = os.path.join(self.scratch, os.path.basename(first))
        return self.python(
            "import json; from ladder.figures.data import figure_data; "
            "from ladder.figures.measured import Files; "
            f"from ladder.figures.tables import ladder_table; files = Files({path!r}); "
            f"print(json.dumps({what}))")

    def test_its_suite(self):
        """The formula is the count, and O is right."""
        said = self.run_there(f"build/sim/bin/{self.rung}_test", f"--gtest_filter={CASES}")
        self.assertRegex(said, r"\[  PASSED  \] 5 tests")

    def test_its_command_line(self):
        self.run_there(sys.executable, "common/tests/cli_test.py", "build/sim/bin", self.rung)

    def test_its_program(self):
        record = json.loads(self.run_there(f"build/sim/bin/{self.rung}", "--device", "sim",
                                           "--seqlen", "64", "--json"))
        self.assertEqual((record["rung"], record["variant"], record["pass"]),
                         (self.rung, "two_columns", True))
        self.assertEqual(record["requested_read_bytes"], record["model_read_bytes"])
        self.assertIn("two_columns", self.run_there(f"build/sim/bin/{self.rung}", "--help"))

    def test_its_counts(self):
        """Beside those that were there, which stay."""
        def of(rung):
            return {tuple(r[name] for name in ("seqlen", "head_dim", "causal", "input")): r
                    for r in self.sim["records"] if r["rung"] == rung}

        ours, naive = of(self.rung), of("00_naive")
        self.assertEqual(set(ours), set(naive))
        for point, record in ours.items():
            for way in ("read", "write"):
                self.assertEqual(record[f"requested_{way}_bytes"], record[f"model_{way}_bytes"])
            n, d = record["seqlen"], record["head_dim"]
            # S and P have n·n elements of two bytes; the third kernel reads P d / 2 times less.
            self.assertEqual(naive[point]["requested_read_bytes"] - record["requested_read_bytes"],
                             2 * n * n * d // 2)
        with open(os.path.join(self.copy, "scripts/results/sim.json"), encoding="utf-8") as file:
            before = json.load(file)
        self.assertEqual([r for r in self.sim["records"] if r["rung"] != self.rung],
                         before["records"])
        step, = (s for s in self.sim["steps"] if s["rung"] == self.rung)
        self.assertEqual((step["variant"], step["colour"], step["default"]),
                         ("two_columns", COLOUR, True))

    def test_its_row(self):
        rows = [line for line in self.from_files(self.newest(), "ladder_table(files)")
                if line.startswith(f"| [{self.rung}]({self.rung}/README.md) | `two_columns` |")]
        self.assertEqual(len(rows), 1)
        self.assertRegex(rows[0], r"\d MB")

    def test_its_place_in_the_figures(self):
        def shown(part):
            """Every object of the data that is about the toy."""
            if isinstance(part, dict):
                found = [part] if part.get("rung") == self.rung else []
                return found + [one for value in part.values() for one in shown(value)]
            return [one for value in part for one in shown(value)] if isinstance(part, list) else []

        for first, names in ((self.newest(), ["traffic"]),
                             ("sim.json", ["traffic", "error"])):
            data = self.from_files(first, "figure_data(files)")
            for name in names:
                with self.subTest(f"{os.path.basename(first)}: {name}"):
                    self.assertTrue(shown(data[name]))
                    self.assertEqual({one["colour"] for one in shown(data[name])}, {COLOUR})

    def test_its_colour_is_drawn(self):
        out = os.path.join(self.scratch, "figures")
        try:
            self.run_there("scripts/plot.py", os.path.join(self.scratch, "sim.json"), "--out", out,
                           "--only", "traffic")
        except AssertionError as error:
            if "matplotlib is missing" in str(error) and not os.environ.get("CI"):
                self.skipTest("matplotlib is missing")
            raise
        with open(os.path.join(out, "traffic.svg"), encoding="utf-8") as file:
            self.assertIn(COLOUR, file.read())

    def test_its_diff(self):
        said = self.run_there("scripts/diff", "00", self.number)
        self.assertIn(f"+++ {self.rung}/attention.cu\n", said)
        self.assertIn("\n+    const float P_ij = float(P[row + j]);\n", said)
        last = os.path.basename(self.rungs(ROOT)[-1])[:2]
        self.assertTrue(re.search(rf"(?m)^{last} +{self.number} ",
                                  self.run_there("scripts/diff", "--stat")))

    def test_no_other_file_is_touched(self):
        changed = self.run_there("git", "status", "--porcelain").splitlines()
        self.assertEqual(sorted(changed), [" M CMakeLists.txt", f"?? {self.rung}/"])
        self.assertEqual(self.run_there("git", "diff", "--numstat").split(),
                         ["1", "0", "CMakeLists.txt"])
        self.assertEqual(os.listdir(os.path.join(self.copy, self.rung)), ["attention.cu"])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        COMPILER = sys.argv.pop(1)
    unittest.main()
