"""Tests scripts/run, test and figures before and after the programs run: they find or install
tools, configure, build, choose parts and report the outcome. The tools are stand-ins, shell scripts
that log their arguments; only class Configuring calls the real CMake."""

import fcntl
import os
import re
import shutil
import subprocess
import sys

from support import ROOT, Scratch, read


class Machine(Scratch):
    """A test on a machine with only the tools that the test installs."""

    # Tools that the scripts use and that any Unix machine has.
    ALWAYS_THERE = ["bash", "basename", "cat", "chmod", "dirname", "env", "grep", "mkdir", "rm",
                    "sed", "sh", "sleep", "true"]
    TOOLS = ("c++", "cmake", "ctest", "ninja", "python3")
    # The stand-in for Python runs only front.test, and the code in ready.sh (-I), with real Python.
    PYTHON = f"case \"$*\" in *'ladder front.test'*|-I*) exec '{sys.executable}' -S \"$@\";; esac\n"

    def setUp(self):
        super().setUp()
        self.copy_scripts("run", "test", "figures", "explore")
        shutil.copy(os.path.join(ROOT, "CMakePresets.json"), self.root)
        os.mkdir(self.at("path"))
        for name in self.ALWAYS_THERE:
            os.symlink(shutil.which(name), self.at("path", name))
        self.environment |= {"PATH": self.at("path"), "CUDA_HOME": self.root}
        ready = self.read("scripts/ladder/front/ready.sh")  # as for a user who is not root
        self.write("scripts/ladder/front/ready.sh", ready.replace("((EUID))", "true"))
        self.tools()

    def tool(self, name, does="exit 0"):
        """Installs a stand-in, which logs its name and arguments and then does this in a shell."""
        self.write(f"path/{name}",
                   f"#!/bin/sh\necho {name} \"$*\" >>'{self.root}/called'\n{does}\n", 0o755)

    def tools(self, *leave_out, **others):
        """Installs all TOOLS except `leave_out`, and `others`, {name: script} with _ for a dash."""
        for name in set(os.listdir(self.at("path"))).difference(self.ALWAYS_THERE):
            os.unlink(self.at("path", name))
        for name in set(self.TOOLS).difference(leave_out):
            self.tool(name, self.PYTHON if name == "python3" else "exit 0")
        self.tool("sudo", 'shift; exec "$@"')  # sudo -n COMMAND...
        for name, does in others.items():
            self.tool(name.replace("_", "-"), does)

    def script(self, *words, status=0, **environment):
        return self.run_it("bash", *words, status=status, **environment)

    def called(self):
        """Returns the commands that the stand-ins received since the last call."""
        said = self.read("called") if os.path.exists(self.at("called")) else ""
        self.write("called", "")
        return said

    def installed(self):
        """Returns the packages of each call of apt-get install since called() was last called."""
        return re.findall("^apt-get .* install .*-recommends (.*)", self.called(), re.M)


ALL = "g++ cmake ninja-build python3 libfmt-dev libgtest-dev"
# Stand-ins for apt-get: one installs the tool {0}, one fails. NO_FMT is a CMake that finds no fmt.
BRINGS = "case \"$*\" in *install*) printf '#!/bin/sh\\n' >'{0}'; chmod +x '{0}';; esac"
FAILS = "case \"$*\" in *install*) exit 9;; esac"
NO_FMT = "echo 'CMake Error: fmt is missing: apt-get install libfmt-dev'; exit 1"


class Ready(Machine):
    def test_missing_packages_are_installed_or_named(self):
        """Each case: missing tools, other tools, the status, the message, installed packages."""
        # ready.sh recognises a missing package by these words.
        self.assertEqual(read(ROOT, "common/cmake/ladder.cmake").count("apt-get install lib"), 2)
        brings = BRINGS.format(self.at("path/ninja"))
        for missing, others, status, said, installed in (
                ("", {"apt_get": FAILS}, 0, "^$", []),
                ("c++ cmake ninja", {}, 1, r"lacks c\+\+ cmake ninja\. .* libgtest-dev", []),
                ("", {"python3": "exit 1"}, 1, "lacks python3", []),
                ("ninja", {"apt_get": brings}, 0, "apt-get installs", [ALL]),
                ("ninja", {"apt_get": FAILS}, 1, "lacks ninja", [ALL]),
                # A library that CMake does not find.
                ("", {"cmake": NO_FMT, "apt_get": brings.replace("ninja", "cmake")}, 0, "installs",
                 [ALL]),
                ("", {"cmake": NO_FMT}, 1, "fmt is missing(.*\n)*scripts/run: CMake failed", [])):
            with self.subTest(missing=missing, others=others):
                self.tools(*missing.split(), **others)
                self.assertRegex(self.script("scripts/run", status=status).stderr, said)
                self.assertEqual(self.installed(), installed)

    def test_only_drawing_installs_matplotlib(self):
        self.tools(apt_get=FAILS, python3=self.PYTHON
                   + "case \"$*\" in *matplotlib*) exit 1;; esac")
        for words, needs in (("run", 0), ("test tile", 0), ("figures", 1), ("test", 1)):
            self.script(*f"scripts/{words}".split())
            self.assertEqual(self.installed(), ["python3-matplotlib"] if needs else [], words)

    def test_ci_set_to_false_counts_as_unset(self):
        self.tools(cmake='[ -z "$CI" ]')
        self.script("scripts/run", CI="False")

    def test_configured_options_are_kept(self):
        """CMake keeps its cache until a compiler or its flags change, or CMake fails. Each case has
        a script, its environment, and CMake's options, after "anew" if the cache was deleted."""
        compilers = ("CXX", "CXXFLAGS", "CUDACXX", "CUDAHOSTCXX", "NVCC_CCBIN")
        self.tools(cmake="exit ${FAILS:-0}")
        for script, environment, expected in (
                ("run", {}, "anew "), ("run", {}, ""),
                ("test", {}, "-DLADDER_TESTS=ON"),
                ("run", {"LADDER_CUDA": "ON"}, "-DLADDER_CUDA=ON"),
                ("run", {"FAILS": "1"}, ""), ("run", {}, "anew "),
                *(("run", dict.fromkeys(compilers[:count], "cmake"), "anew ")
                  for count in range(1, len(compilers) + 1))):
            self.called()
            kept = self.write("build/CMakeCache.txt", "")
            fails = int("FAILS" in environment)
            self.script(f"scripts/{script}", status=fails, **environment)
            said = self.called()
            options = re.search(r"^cmake -S .* --preset default ?(.*)$", said, re.M)[1]
            self.assertEqual(("" if os.path.exists(kept) else "anew ") + options, expected)
            built = script == "run" and not fails
            self.assertEqual(f"ninja -C {self.root}/build programs\n" in said, built)
            self.assertEqual("scripts/ladder front.run\n" in said, built)

    def test_presets_and_ctest_options(self):
        self.script("scripts/test", "--preset", "asan", "-R", "sim", LADDER_CUDA="ON")
        self.assertRegex(self.called(), r"cmake .* --preset asan -DLADDER_TESTS=ON\n(.*\n)*"
                                        r"ctest --preset asan -j \d+ .*-R sim\n")

    def test_a_build_that_fails_ends_the_command(self):
        self.tools(ninja="echo a.cu:3: unused; exit 1")
        self.assertRegex(self.script("scripts/run", status=1).stderr,
                         "^a.cu:3: unused\nscripts/run: the build failed")
        # After Ctrl-C, Ninja ends normally, so bash would continue.
        self.tools(ninja="kill -INT $PPID")
        self.script("scripts/run", status=130)
        self.assertNotIn("ladder front.run", self.called())

    def test_a_second_build_waits_for_the_first(self):
        os.mkdir(self.at("build"))
        with open(self.at("build/.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with subprocess.Popen(["bash", "scripts/run"], cwd=self.root, env=self.environment,
                                  stderr=subprocess.PIPE, encoding="utf-8") as second:
                self.assertIn("another build", second.stderr.readline())
                self.assertNotIn("cmake -S", self.called())
                fcntl.flock(lock, fcntl.LOCK_UN)
        self.assertEqual(second.returncode, 0)

    def test_figures_measures_counts_and_draws(self):
        for gpu_status, status, count in ((3, 0, 3), (1, 1, 1)):
            self.tool("python3", f"{self.PYTHON}case $* in *paper*) exit {gpu_status};; esac")
            self.script("scripts/figures", "--time", "25", status=status)
            self.assertEqual(re.findall(r"^python3 .*/ladder (.*)$", self.called(), re.M), [
                "measure.run --grid paper,long --again --time 25",
                "measure.run --sim --again", "show.draw --readme"][:count])


class Configuring(Scratch):
    def configure(self, gpu, *options, **environment):
        """Runs CMake as if there were a GPU of this compute capability ("90" is 9.0, "" no GPU).
        Returns its message on whether programs for the GPU are built."""
        python = self.write("python", mode=0o755, text=f"""#!/bin/sh
case $1 in */compute_capability.py) echo {gpu};; *) exec '{sys.executable}' "$@";; esac
""")
        said = self.run_it("cmake", "-S", ROOT, "-B", self.at("build"), "-G", "Ninja",
                           "-DLADDER_TESTS=OFF", f"-DPython3_EXECUTABLE={python}",
                           "-UCMAKE_CUDA_COMPILER", *options, **environment)
        return re.findall("-- gpu: (.*)", said.stdout)[0]

    def test_without_a_gpu_or_a_compiler_the_sim_half_is_configured(self):
        for gpu, choice, ci, said in (
                ("70", "auto", "", "7.5 or newer answered"), ("90", "auto", "", "called /no/nvcc"),
                ("", "auto", "gitlab", "called /no/nvcc"), ("", "on", "", "called /no/nvcc"),
                ("", "off", "1", "LADDER_CUDA is OFF")):
            self.assertRegex(self.configure(gpu, f"-DLADDER_CUDA={choice}", "-ULADDER_GPU_FOUND",
                                            CI=ci, CUDACXX="/no/nvcc"),
                             f"left out, because .*{said}")

    def test_a_rung_needs_only_a_folder_and_a_line(self):
        """Follows points 1 and 2 of "Add a rung" in CONTRIBUTING, in a copy with an odd path, as
        part of another project, for a GPU newer than the Toolkit. (figures_test shows that tables
        and figures need no more lines for a new rung.)"""
        os.mkdir(self.at("@x@"))
        for name in set(os.listdir(ROOT)) - {"build", ".git", "CMakeLists.txt"}:
            os.symlink(os.path.join(ROOT, name), self.at("@x@", name))
        self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.22)\nproject(whole CXX)\n"
                   "enable_testing()\nadd_subdirectory(@x@)\n")
        self.write("@x@/CMakeLists.txt", read(ROOT, "CMakeLists.txt") + "add_rung(99_probe)\n")
        self.write("@x@/99_probe/attention.cu", read(ROOT, "00_naive/attention.cu"))
        gpu = self.configure("130", "-S", self.root, "-DLADDER_TESTS=ON")
        self.assertIn("@x@", self.read("build/@x@/stubs/99_probe/attention.cu.cpp"))
        for command, said in (
                ("ninja -C build -t commands 99_probe", "stubs/99_probe/attention.cu.cpp"),
                ("ninja -C build -t commands 99_probe_test", "suite_test.cpp"),
                ("ctest --test-dir build -N", ": 99_probe.cli\n")):
            self.assertIn(said, self.run_it(*command.split()).stdout)
        if shutil.which("nvcc"):
            self.assertRegex(gpu, "architectures 80$")


class Parts(Machine):
    """Tests scripts/test with parts. (diff_test tests the names of steps.)"""

    LOG = "build/Testing/Temporary/LastTest.log"

    def setUp(self):
        super().setUp()
        rung = "05_flash_v2"
        steps = {"rows": "rows", "rows_wide": "rows_wide", "attention": "large_tiles"}
        os.makedirs(self.at("build/bin"))
        for name, step in steps.items():
            self.write(f"{rung}/{name}.cu", f'const Register r{{{{\n  .name = "{step}"}}}};\n')
        os.symlink(self.at("path/05_flash_v2_test"), self.at("build/bin/05_flash_v2_test"))
        self.tool("05_flash_v2_test", "echo '[==] 3 tests from 1 test suite ran.'; exit 1")

    def test_each_part_builds_and_runs_its_tests(self):
        tests = "tests_05_flash_v2"
        for parts, *expected in (
                ("05", [tests], ["^(05_flash_v2)$"], []),
                # Another step's name begins with this step's name.
                ("05/rows", [tests], [], ["*/rows:*/rows_*-*/rows_wide:*/rows_wide_*"]),
                ("sim 05_flash_v2 05/large_tiles", ["tests_sim", tests, tests],
                 ["^(sim|05_flash_v2)$"], ["*/large_tiles:*/large_tiles_*-"])):
            self.called()
            out = self.script("scripts/test", *parts.split(), status="/" in parts).stdout
            said = self.called()
            self.assertEqual([re.search(r"ninja -C .*/build (.*)", said)[1].split(),
                              re.findall(r"^ctest .* -L (.*)$", said, re.M),
                              re.findall(r"^05_flash_v2_test --gtest_filter=(\S*)", said, re.M)],
                             expected, parts)
        self.assertRegex(out, r"\n\n3 tests ran, 1 failed, 0 were skipped\.\n$")
        self.assertIn("no 07. A part is sim, ", self.script("scripts/test", "07", status=2).stderr)
        self.assertNotIn("cmake -S", self.called())  # the refusal comes before any build
        self.tool("05_flash_v2_test", "")  # passes now, but ctest's failure still counts
        self.tool("ctest", '[ "$LADDER_BUILD_TASKS" = all ] || exit 8')
        self.script("scripts/test", "sim", "05/large_tiles", status=8)
        self.script("scripts/test", "build_tasks")

    def test_the_summary_reports_the_outcome(self):
        """Each case: ctest's status, its tests' output, and the last lines of scripts/test."""
        self.write(self.LOG, "Ran 99 tests in 1.5s\n")  # left by an earlier run
        for status, printed, verdict in (
                (8, """\
[  FAILED  ] A.a (2 ms)
[==========] 3 tests from 1 test suite ran. (2 ms total)
[  FAILED  ] 1 test, listed below:
[  FAILED  ] A.a
FAIL: test_a (T)
test_b (T) ... skipped "it's old"
Ran 4 tests in 1.5s
x.cpp:5: Skipped
not run here: no GPU: none
[==========] 7 tests from 2 test suites ran. (1 ms total)
y.cpp:5: Skipped
no GPU: none
[==========] 1 test from 1 test suite ran. (1 ms total)
""", "12 tests ran, 2 failed, 3 were skipped:\n  2 × no GPU: none\n  1 × it's old\n"),
                (0, "Ran 2 tests in 1.5s\n", "2 tests ran, 0 failed, 0 were skipped.\n"),
                (8, "", "0 tests ran, 1 failed, 0 were skipped.\n")):
            self.write("printed", printed)
            self.tool("ctest", f"[ -s printed ] && cat printed >{self.LOG}; exit {status}")
            self.assertEqual(self.script("scripts/test", status=status).stdout, f"\n{verdict}")
