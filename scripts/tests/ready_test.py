"""Tests of what scripts/run, test and figures do before and after the ladder: they find or install
the tools, configure, build, choose parts, and say how it went; with stand-ins for all tools."""

import fcntl
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import unittest

from base import ROOT, SCRIPTS, Scratch, read


class Machine(Scratch):
    """A machine that has just what the test puts there."""

    # What the scripts use of any Unix machine.
    ALWAYS_THERE = ["bash", "basename", "cat", "chmod", "dirname", "env", "grep", "mkdir", "rm",
                    "sed", "sh", "sleep", "true"]
    TOOLS = ("c++", "cmake", "ctest", "ninja", "python3")
    # All but the testing, and what stands in ready.sh, is done by a stand-in.
    PYTHON = f"case \"$*\" in *'ladder front.test'*|-I*) exec '{sys.executable}' -S \"$@\";; esac\n"

    def setUp(self):
        super().setUp()
        self.copy_scripts("run", "test", "figures", "explore")
        shutil.copy(os.path.join(ROOT, "CMakePresets.json"), self.root)
        os.mkdir(self.at("path"))
        for name in self.ALWAYS_THERE:
            os.symlink(shutil.which(name), self.at("path", name))
        self.environment |= {"PATH": self.at("path"), "CUDA_HOME": self.root}
        ready = self.read("scripts/ladder/front/ready.sh")  # whoever runs the test
        self.write("scripts/ladder/front/ready.sh", ready.replace("((EUID))", "true"))
        self.tools()

    def tool(self, name, does="exit 0"):
        self.write(f"path/{name}",
                   f"#!/bin/sh\necho {name} \"$*\" >>'{self.root}/called'\n{does}\n", 0o755)

    def tools(self, *leave_out, **others):
        """A machine with everything but; and others, with what they do (_ for a dash)."""
        for name in set(os.listdir(self.at("path"))).difference(self.ALWAYS_THERE):
            os.unlink(self.at("path", name))
        for name in set(self.TOOLS).difference(leave_out):
            self.tool(name, self.PYTHON if name == "python3" else "exit 0")
        self.tool("sudo", 'shift; exec "$@"')  # sudo -n COMMAND...
        for name, does in others.items():
            self.tool(name.replace("_", "-"), does)

    def script(self, *words, status=0, **environment):
        return self.run_it("bash", *words, status=status, **environment)

    def installed(self):
        return re.findall("^apt-get .* install .*-recommends (.*)", self.called(), re.M)


ALL = "g++ cmake ninja-build python3 libfmt-dev libgtest-dev"
INSTALLS = ("some of these packages are missing here, so apt-get installs them with sudo: "
            f"{ALL}\n")
# An apt-get that brings Ninja, and one that fetches nothing.
BRINGS = "case \"$*\" in *install*) printf '#!/bin/sh\\n' >'{0}'; chmod +x '{0}';; esac"
FAILS = "case \"$*\" in *install*) echo 'E: Unable to fetch' >&2; exit 9;; esac"
NO_FMT = "echo '-- looking'; echo 'CMake Error: fmt is missing: apt-get install libfmt-dev'; exit 1"


class Ready(Machine):
    def test_what_is_missing_is_installed_or_named(self):
        """(what is not there, what is; its status, what it says, what it installs)"""
        # By these words ready.sh knows that a package is missing.
        self.assertEqual(read(ROOT, "common/cmake/ladder.cmake").count("apt-get install lib"), 2)
        line = (f"Debian and Ubuntu: sudo apt-get install {ALL}. Without root, and other systems: "
                "common/BUILDING.md.")
        brings = BRINGS.format(self.at("path/ninja"))
        for missing, others, status, said, installed in (
                ("", {"apt_get": FAILS}, 0, (), []),
                ("c++ cmake ninja", {}, 1, (
                    f"scripts/run: this machine lacks c++ cmake ninja. {line}\n",), []),
                ("", {"python3": "exit 1"}, 1, ("lacks python3 (3.9 or newer). ",), []),
                # A compiler's name may have words.
                ("", {"CXX": "other -m64"}, 1, ("lacks other. ",), []),
                ("ninja", {"apt_get": brings}, 0, (f"scripts/run: {INSTALLS}",), [ALL]),
                ("ninja", {"apt_get": FAILS}, 1, ("E: Unable to fetch", "lacks ninja. ", line),
                 [ALL]),
                # What CMake does not find.
                ("", {"cmake": NO_FMT, "apt_get": brings.replace("ninja", "cmake")}, 0,
                 (INSTALLS,), [ALL]),
                ("", {"cmake": NO_FMT}, 1, (
                    "CMake Error: fmt is missing: apt-get install libfmt-dev\n",
                    "scripts/run: CMake failed (all of its output: build/configure.log)."), [])):
            with self.subTest(missing=missing, others=others):
                self.tools(*missing.split(), **others)
                told = self.script("scripts/run", status=status, CXX=others.get("CXX", "")).stderr
                for words in said:
                    self.assertIn(words, told)
                self.assertNotIn("-- looking", told)
                self.assertEqual("installs" in told, bool(installed))
                self.assertEqual(self.installed(), installed)

    def test_matplotlib_is_for_who_draws_and_chromium_for_ci(self):
        for words, ci, needs in (
                ("run", "", ""), ("test tile", "", ""), ("figures", "", "python3-matplotlib"),
                ("test", "0", "python3-matplotlib"), ("test", "False", "python3-matplotlib"),
                ("test", "", "python3-matplotlib"),
                ("test", "true", "python3-matplotlib chromium")):
            self.tools(apt_get=FAILS, python3=self.PYTHON
                       + "case \"$*\" in *matplotlib*) exit 1;; esac")
            self.script(*f"scripts/{words}".split(), CI=ci)
            self.assertEqual(self.installed(), needs.split(), words)

    def test_what_is_configured_is_kept(self):
        """Until another compiler is chosen, or more is asked for; but nothing that failed. (The
        options that CMake gets; before them, whether it begins anew.)"""
        self.tools(cmake="exit ${FAILS:-0}")
        for script, environment, expected in (
                ("run", {}, "anew "), ("run", {}, ""),
                ("test", {}, "-DLADDER_TESTS=ON"), ("run", {}, ""),
                ("run", {"LADDER_CUDA": "ON"}, "-DLADDER_CUDA=ON"), ("run", {}, ""),
                ("run", {"FAILS": "1"}, ""), ("run", {}, "anew "),
                ("run", {"CXX": "cmake"}, "anew "), ("run", {"CXXFLAGS": "-m64"}, "anew "),
                ("run", {"CUDAHOSTCXX": "a"}, "anew ")):
            self.called()
            kept = [self.write(f"build/{path}", "")
                    for path in ("CMakeCache.txt", "CMakeFiles/3/a")]
            fails = int("FAILS" in environment)
            self.script(f"scripts/{script}", status=fails, **environment)
            said = self.called()
            options = re.search(r"^cmake -S .* --preset default ?(.*)$", said, re.M)[1]
            self.assertEqual("anew " * (not any(map(os.path.exists, kept))) + options, expected)
            built = script == "run" and not fails
            self.assertEqual(f"ninja -C {self.root}/build programs\n" in said, built)
            self.assertEqual("scripts/ladder front.run\n" in said, built)

    def test_presets_and_ctest_options(self):
        self.script("scripts/test", "--preset", "asan", "-R", "sim", LADDER_CUDA="ON")
        self.assertRegex(self.called(), r"cmake .* --preset asan -DLADDER_TESTS=ON\n(.*\n)*"
                                        r"ctest --preset asan -j \d+ --output-on-failure "
                                        r"--no-tests=error --no-label-summary -R sim\n")

    def test_ci_checks_the_format_and_compiles_with_clang_too(self):
        """(clang-format's version, none where it cannot be installed; the presets tested.)"""
        for path in (".ci/run", "scripts/tests/format"):
            self.write(path, read(ROOT, path), 0o755)
        for version, presets in (("14.0", ["clang", "default"]), ("15.0", ["clang", "default"]),
                                 ("", [])):
            self.tools(apt_get=FAILS, **{"clang++_16": "", "git": "", "xargs": "", **(
                {"clang_format_14": f"echo version {version}"} if version else {})})
            told = self.script(".ci/run", status=None if not version else 0).stderr
            said = self.called()
            self.assertEqual("ninja -C " + self.at("build/clang\n") in said, bool(version))
            self.assertEqual(re.findall(r"\nctest --preset (\w+) ", said), presets)
            self.assertEqual(re.findall("^apt-get .* install .* (clang.*)", said, re.M),
                             [] if version else ["clang-format-14"])
            self.assertEqual("clang-format-14 --dry-run --Werror\n" in said, version == "14.0")
            self.assertEqual("and this is version 15.0" in told, version == "15.0")
        self.assertIn(" clang++-16:", self.read("build/clang/.configured"))

    def test_what_ninja_says_is_shown(self):
        for nvcc, told in (({}, "the build failed."), ({"nvcc": ""}, "leaves the GPU half out.")):
            self.tools(ninja="echo a.cu:3: unused; exit 1", **nvcc)
            result = self.script("scripts/run", status=1)
            self.assertRegex(result.stderr, f"^a.cu:3: unused\nscripts/run: .*{told}\n$")
            self.assertEqual((result.stdout, "ladder front.run" in self.called()), ("", False))

    def test_a_second_build_waits_for_the_first(self):
        os.mkdir(self.at("build"))
        with open(self.at("build/.lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with subprocess.Popen(["bash", "scripts/run"], cwd=self.root, env=self.environment,
                                  stderr=subprocess.PIPE, encoding="utf-8") as second:
                self.assertEqual(second.stderr.readline(), "scripts/run: another build in this "
                                 "clone is under way; waiting for its end.\n")
                self.assertNotIn("cmake -S", self.called())
                fcntl.flock(lock, fcntl.LOCK_UN)
        self.assertEqual(second.returncode, 0)
        self.assertIn("ninja", self.called())

    def test_ctrl_c_while_building(self):
        self.tools(ninja=f": >'{self.root}/started'; exec sleep 60")
        self.stopped(["bash", "scripts/run"], signal.SIGINT, self.at("started"), 130)
        self.assertNotIn("ladder front.run", self.called())

    def test_figures_measures_counts_and_draws(self):
        for gpu_status, status, said, count in ((3, 0, "without a GPU", 3), (1, 1, "", 1)):
            self.tool("python3", f"{self.PYTHON}case $* in *paper*) exit {gpu_status};; esac")
            result = self.script("scripts/figures", "--time", "25", status=status)
            self.assertIn(said, result.stderr)
            said = self.called()
            self.assertIn(f"ninja -C {self.root}/build programs\n", said)
            self.assertEqual(re.findall(r"^python3 .*/ladder (.*)$", said, re.M), [
                "measure.run --grid paper,long --again --time 25",
                "measure.run --sim --again", "show.draw --readme"][:count])

    def test_what_the_system_refuses_is_a_message(self):
        build = self.write("build", "a file")
        self.assertIn(f"scripts/run: {build} is no folder that can be written. Did root make it? "
                      "sudo chown", self.script("scripts/run", status=1).stderr)
        code = ("import sys; from ladder.base.console import run_command\ndef work(): raise "
                "PermissionError(13, 'No', 'build/x')\nsys.exit(run_command('run', work))")
        self.assertIn("run: build/x: No. Did root make it? sudo chown",
                      self.run_it(sys.executable, "-Sc", code, cwd=SCRIPTS, status=2).stderr)


class Configuring(Scratch):
    """What CMake finds, decides and says."""

    def setUp(self):
        super().setUp()
        self.python = self.write("python", mode=0o755, text=f"""#!/bin/sh
case $1 in */answers.py) cat '{self.root}/gpu';; *) exec '{sys.executable}' "$@";; esac
""")

    def configure(self, gpu, *options, status=0, **environment):
        """What CMake says of the GPU half where this capability answers."""
        self.write("gpu", gpu)
        said = self.run_it("cmake", "-S", ROOT, "-B", self.at("build"), "-G", "Ninja",
                           "-DLADDER_TESTS=OFF", f"-DPython3_EXECUTABLE={self.python}",
                           "-UCMAKE_CUDA_COMPILER", *options, status=status, **environment)
        return (re.findall("-- gpu: (.*)", said.stdout) or [said.stderr])[0]

    def test_what_keeps_the_gpu_half_out_is_said(self):
        """And nothing of it ends the configuring: the sim half is built all the same."""
        nvcc = self.write("nvcc", mode=0o755, text="""#!/bin/sh
echo 'cc1plus: note: a' >&2
echo 'host_config.h:143:2: error: #error -- no GNU later than 12! The nvcc flag x' >&2; exit 1
""")
        for gpu, environment, said, kept in (
                ("70", {}, "none of compute capability 7.5 or newer answered", "70"),
                ("90", {"CUDACXX": "/no/nvcc"}, "there was no program called /no/nvcc when", "90"),
                ("90", {"CUDACXX": "ccache nvcc"}, "there was no program called ccache nvcc when "
                 "it was built (install the CUDA Toolkit, or export CUDACXX=/path/of/nvcc, that "
                 "path alone", "90"),
                ("", {"CUDACXX": nvcc}, f"{nvcc} could not compile: error: error -- no GNU later "
                 "than 12! (export CUDACXX=/path/of/another/nvcc, or CUDAHOSTCXX=g++-12, ", "90"),
                ("75", {"CUDACXX": nvcc}, nvcc, "75")):
            why = self.configure(gpu, **environment)
            self.assertIn(f"left out, because {said}", why)
            self.assertNotIn(";", why)  # it would end the definition that the programs get
            self.assertIn(f"\nLADDER_GPU_FOUND:INTERNAL={kept}\n",
                          self.read("build/CMakeCache.txt"))
        self.configure("", "-ULADDER_GPU_FOUND")
        for choice, ci, said in (("auto", "", "7.5 or newer answered"),
                                 ("auto", "False", "7.5 or newer answered"),
                                 ("auto", "gitlab", "called /no/nvcc"),
                                 ("on", "", "called /no/nvcc"), ("off", "1", "LADDER_CUDA is OFF")):
            self.assertIn(said, self.configure("", f"-DLADDER_CUDA={choice}", CI=ci,
                                               CUDACXX="/no/nvcc"))
        self.assertIn("a dollar sign", self.configure("90", "-B", self.at("$b")))

    def test_a_path_that_cmake_does_not_take_is_refused(self):
        for name in (";", '"', "|", "<", ">", "[", "]", "${x}", "\n"):
            self.assertIn("CMake takes no path", self.configure("", "-B", self.at(name), status=1))

    def test_a_folder_and_a_line_are_a_rung(self):
        """The recipe of common/README.md, "To add a rung", points 1 and 2, beside the tree: in an
        odd path, as an optimised part of another project, for a GPU newer than the Toolkit.
        (That a new rung has its rows and its colour without another line, figures_test shows.)"""
        os.mkdir(self.at("@x@"))
        for name in set(os.listdir(ROOT)) - {"build", ".git", "CMakeLists.txt"}:
            os.symlink(os.path.join(ROOT, name), self.at("@x@", name))
        self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.22)\nproject(whole CXX)\n"
                   "enable_testing()\nadd_subdirectory(@x@)\n")
        self.write("@x@/CMakeLists.txt", read(ROOT, "CMakeLists.txt") + "add_rung(07_toy)\n")
        self.write("@x@/07_toy/attention.cu", read(ROOT, "00_naive/attention.cu"))
        gpu = self.configure("130", "-S", self.root, "-DLADDER_TESTS=ON")
        self.assertIn("@x@", self.read("build/@x@/stubs/07_toy/attention.cu.cpp"))
        for command, said in (
                ("ninja -C build -t commands 07_toy", "stubs/07_toy/attention.cu.cpp"),
                ("ninja -C build -t commands 07_toy", " -O1 "),
                ("ninja -C build -t commands 07_toy_test", "suite_test.cpp"),
                ("ctest --test-dir build -N", ": 07_toy.cli\n")):
            self.assertIn(said, self.run_it(*command.split()).stdout)
        self.assertRegex(self.read("build/CMakeFiles/rules.ninja"),
                         r"pool compilers\n +depth = [1-9]")
        self.assertIn("pool = compilers", self.read("build/build.ninja"))
        if shutil.which("nvcc"):
            self.assertRegex(gpu, "architectures 80$")
            command = self.run_it("ninja", "-C", "build", "-t", "commands",
                                  "rung_07_toy_gpu").stdout.splitlines()[0]
            self.assertTrue(os.path.exists(shlex.split(command)[1]), command)


class Parts(Machine):
    """scripts/test PART... (How a step may be called, diff_test tries.)"""

    LOG = "build/Testing/Temporary/LastTest.log"

    def setUp(self):
        super().setUp()
        rung, steps = "05_flash_v2", {"rows": "rows", "rows_wide": "rows_wide", "attention": "mma"}
        os.makedirs(self.at("build/bin"))
        for name, step in steps.items():
            self.write(f"{rung}/{name}.cu", f'const Register r{{{{\n  .name = "{step}"}}}};\n')
        os.symlink(self.at("path/05_flash_v2_test"), self.at("build/bin/05_flash_v2_test"))
        self.tool("05_flash_v2_test", "echo '[==] 3 tests from 1 test suite ran.'; exit 1")

    def test_what_is_built_and_run(self):
        tests = "tests_05_flash_v2"
        for parts, *expected in (
                ("05", [tests], ["^(05_flash_v2)$"], []),
                # Another step's name begins as this one's.
                ("05/rows", [tests], [], ["*/rows:*/rows_*-*/rows_wide:*/rows_wide_*"]),
                ("sim 05_flash_v2 05/mma", ["tests_sim", tests, tests],
                 ["^(sim|05_flash_v2)$"], ["*/mma:*/mma_*-"])):
            self.called()
            out = self.script("scripts/test", *parts.split(), status="/" in parts).stdout
            said = self.called()
            self.assertEqual([re.search(r"ninja -C .*/build (.*)", said)[1].split(),
                              re.findall(r"^ctest .* -L (.*)$", said, re.M),
                              re.findall(r"^05_flash_v2_test --gtest_filter=(\S*)", said, re.M)],
                             expected, parts)
        self.assertRegex(out, r"\n\n3 tests ran, 1 failed, 0 were skipped\.\n$")
        self.assertIn("no 07. Parts are sim, mistakes, climb, tile, harness, scripts, gpu, a rung",
                      self.script("scripts/test", "07", status=2).stderr)
        self.assertRegex(self.script("scripts/test", "--preset", "../x", status=2).stderr,
                         "choose from .?default.?, .?sim")
        self.assertNotIn("cmake -S", self.called())  # it is said before anything is built
        self.tool("05_flash_v2_test", "")  # what failed before it still counts
        self.tool("ctest", '[ "$LADDER_CLIMB" = all ] || exit 8')
        self.script("scripts/test", "sim", "05/mma", status=8)
        self.script("scripts/test", "climb")
        self.tool("ninja", "exit 1")
        self.script("scripts/test", "climb", status=1)

    def test_how_it_went(self):
        """(ctest's status, what its tests printed, the last lines)"""
        self.write(self.LOG, "Ran 99 tests in 1.5s\n")  # of the last time
        for status, printed, verdict in (
                (8, """\
[  FAILED  ] A.a (2 ms)
[  FAILED  ] A.b, where x = 3 (0 ms)
[==========] 3 tests from 1 test suite ran. (2 ms total)
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] A.a
FAIL: test_a (T)
ERROR: test_c (T)
test_b (T) ... skipped "it's old"
Ran 4 tests in 1.5s
test_b (T) ... skipped 'no browser'
Ran 30 tests in 1.5s
x.cpp:5: Skipped
not run here: no GPU: none

[==========] 7 tests from 2 test suites ran. (1 ms total)
y.cpp:5: Skipped
no GPU: none
[==========] 1 test from 1 test suite ran. (1 ms total)
""", "41 tests ran, 4 failed, 4 were skipped:\n  2 × no GPU: none\n  1 × it's old\n"
                 "  1 × no browser\n"),
                (0, "Ran 2 tests in 1.5s\n", "2 tests ran, 0 failed, 0 were skipped.\n"),
                (8, "", "0 tests ran, 1 failed, 0 were skipped.\n")):
            self.write("printed", printed)
            self.tool("ctest", f"[ -s printed ] && cat printed >{self.LOG}; exit {status}")
            self.assertEqual(self.script("scripts/test", status=status).stdout, f"\n{verdict}")

    def test_what_ran_on_a_gpu_is_kept(self):
        """One line per GPU, and none for a part, or where all was skipped."""
        log = "scripts/results/gpu_tests.jsonl"
        self.write(self.LOG, "")
        self.write("scripts/results/README.md", "")
        ran, skipped = ("[=] {} tests from 1 test suite ran.\n"
                        + "x.cpp:5: Skipped\nno GPU\n" * many for many in (1, 6))
        section = "{0}/2 Testing: {1}\n{0}/2 Test: {1}\nOutput:\n{2}"
        for text, written in ((skipped, False), (ran, True)):
            sim = "[=] 9 tests from 1 test suite ran.\n"
            self.write("printed", "".join(section.format(2, *suite) for suite in (
                ("05_flash_v2.Gpu", text.format(5)), ("05_flash_v2.Sim", sim),
                ("gpu_test", text.format(6)))))
            self.tool("ctest", f"cat printed >{self.LOG}")
            self.tool("nvidia-smi", "echo 'NVIDIA H200, 580.1'")
            self.tool("nvcc", "echo 'Cuda, release 13.0, V13'")
            self.tool("compute-sanitizer", "echo '[=] 3 tests from 1 test suite ran.'\n"
                      "echo \"= ERROR SUMMARY: ${ERRORS:-0} errors\"")
            self.script("scripts/test", "sim")
            self.assertFalse(os.path.exists(self.at(log)))
            self.script("scripts/test", "gpu", "--commit", "abc")
            self.assertEqual(os.path.exists(self.at(log)), written)
        line, *more = map(json.loads, self.read(log).splitlines())
        self.assertEqual(more, [])
        self.assertLessEqual({
            "device_name": "NVIDIA H200", "driver": "580.1", "cuda": "13.0", "commit": "abc",
            "suites": {"05_flash_v2.Gpu": {"ran": 4, "failed": 0, "skipped": 1},
                       "gpu_test": {"ran": 5, "failed": 0, "skipped": 1}},
            "sanitizer": {}}.items(), line.items())
        self.script("scripts/test", "gpu", "--sanitize", "memcheck,racecheck", ERRORS="2", status=1)
        line, = map(json.loads, self.read(log).splitlines())
        self.assertEqual(line["sanitizer"]["racecheck"], {"05_flash_v2_test": {
            "ran": 3, "failed": 0, "skipped": 0, "errors": 2}})
        self.tool("nvidia-smi", "echo 'NVIDIA T4, 580.1'")
        self.script("scripts/test")
        self.assertEqual([json.loads(text)["device_name"] for text in self.read(log).splitlines()],
                         ["NVIDIA H200", "NVIDIA T4"])
        self.assertIn("is for the part gpu", self.script(
            "scripts/test", "sim", "--sanitize", "memcheck", status=2).stderr)


if __name__ == "__main__":
    unittest.main()
