"""Tests of what scripts/run, test and figures do before and after the ladder: they find or install
the tools, configure, build, choose parts, and say how it went; with stand-ins for all tools.

Run alone: python3 scripts/tests/ready_test.py
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

from base import ROOT, SECONDS, Scratch, wait_for

VERSION = "case $1 in --version) echo cmake version 3.25.1; exit;; esac\n"


class Machine(Scratch):
    """A machine that has just what the test puts there."""

    # What the scripts use of any Unix machine.
    ALWAYS_THERE = ["awk", "bash", "basename", "cat", "chmod", "cp", "dirname", "env", "grep",
                    "head", "mkdir", "mv", "rm", "sed", "sh", "sleep", "tail", "touch"]
    TOOLS = ("c++", "cmake", "ctest", "ninja", "python3")

    def setUp(self):
        super().setUp()
        self.copy_scripts("run", "test", "figures", "explore")
        os.mkdir(self.at("path"))
        for name in self.ALWAYS_THERE:
            os.symlink(shutil.which(name), self.at("path", name))
        self.environment |= {"PATH": self.at("path"), "CUDA_HOME": self.root}
        self.write("CMakePresets.json", "{}")

    def tool(self, name, does="exit 0"):
        self.write(f"path/{name}",
                   f"#!/bin/sh\necho {name} \"$*\" >>'{self.root}/called'\n{does}\n", 0o755)

    def tools(self, *leave_out, build="", **others):
        """A machine with everything but; its cmake builds with these lines of shell. And others,
        with what they do (_ for a dash)."""
        for name in set(os.listdir(self.at("path"))).difference(self.ALWAYS_THERE):
            os.unlink(self.at("path", name))
        for name in self.TOOLS:
            if name not in leave_out:
                self.tool(name)
        if "cmake" not in leave_out:
            self.tool("cmake", f"{VERSION}case $* in --build*) {build or ':'};; "
                               f"*) : >'{self.root}/build/build.ninja';; esac")
        self.tool("sudo", 'shift; exec "$@"')  # sudo -n COMMAND...
        for name, does in others.items():
            self.tool(name.replace("_", "-"), does)

    def ready(self, script="ready", status=0):
        return self.run_it("bash", "-ec", f"source scripts/ladder/ready.sh; {script}",
                           "scripts/run", status=status)

    def script(self, *words, status=0, **environment):
        return self.run_it("bash", *words, status=status, **environment)


class Ready(Machine):
    def test_nothing_to_do_and_the_second_time_nothing_to_look_at(self):
        self.tools(apt_get="exit 1")
        self.assertEqual(self.ready().stderr, "")
        self.assertNotIn("apt-get", self.called())
        self.ready()
        self.assertEqual(self.called(), "")
        self.environment["CXX"] = "c++"  # another compiler: looks again
        self.ready()
        self.assertIn("c++", self.called())

    def test_what_is_missing_is_installed_or_named(self):
        """(what is not there, what is, the script, its status, what it says, what it installs)"""
        path = self.at("path/ninja")
        no_libraries = "! grep -q -e fmt/ -e gtest/"
        for missing, others, script, status, said, installed in (
                ("c++ cmake ninja", {}, "ready", 1, (
                    "C++20 compiler", "CMake 3.24", "Ninja", "  g++ cmake ninja-build"), None),
                *(("ninja python3", {manager: "", "c++": no_libraries}, "ready tests", 1,
                   (f"  To install: {install}\n",), None) for manager, install in (
                       ("brew", "brew install ninja fmt googletest python"),
                       ("dnf", "sudo dnf install ninja-build fmt-devel gtest-devel python3"),
                       ("pacman", "sudo pacman -S ninja fmt gtest python"))),
                ("c++", {"brew": ""}, "OSTYPE=darwin22; ready", 1,
                 ("  To install the compiler: xcode-select --install\n",), None),
                *(("", {"c++": f"! grep -q '{header}'"}, script, status,
                   (f"lacks {word}.", f"  {package}\n") if status else (), None)
                  for header, word, package in (("fmt/core.h", "fmt", "libfmt-dev"),
                                                ("gtest/gtest.h", "GoogleTest", "libgtest-dev"))
                  # The programs do without GoogleTest.
                  for script, status in (("ready", int(word == "fmt")), ("ready tests", 1))),
                ("ninja", {"apt_get": f"case \"$*\" in *install*) printf '#!/bin/sh\\n' >'{path}';"
                                      f" chmod +x '{path}';; esac"}, "ready", 0,
                 ("installing ninja-build\n",), "ninja-build"),
                ("ninja", {"apt_get": "case \"$*\" in *install*) echo 'E: Unable to fetch'; "
                                      "exit 9;; esac"}, "ready", 1,
                 ("E: Unable to fetch", "lacks Ninja", "apt-get install ninja-build"),
                 "ninja-build"),
                ("ninja", {"apt_get": ""}, "can_install() { false; }; ready", 1,
                 ("sudo apt-get install ninja-build",), None),
                ("", {"apt_get": "", "oldc++": "exit 1"}, "CXX=oldc++; ready", 1, ("CXX=oldc++",),
                 "g++ libfmt-dev"),
                ("", {"apt_get": "", "cmake": VERSION.replace("3.25", "3.22")}, "ready", 1,
                 ("lacks CMake 3.24 or newer", "3.22.1", "pip install cmake"), "cmake")):
            with self.subTest(missing=missing, others=others, script=script):
                self.tools(*missing.split(), **others)
                shutil.rmtree(self.at("build"), ignore_errors=True)
                self.called()
                told = self.ready(script, status=status).stderr
                for words in said:
                    self.assertIn(words, told)
                found = re.findall("install .*--no-install-recommends (.*)", self.called())
                self.assertEqual(found, [installed] if installed else [])
                self.assertEqual(os.path.exists(self.at("build/.ready")), status == 0)
                if "apt_get" not in others:
                    self.assertNotIn("apt-get", told)

    def test_libraries_in_a_place_of_their_own(self):
        self.tools(**{"c++": "! grep -q fmt/core.h || case \"$*\" in "
                             f"*-I{self.root}/mine/include*) ;; *) exit 1;; esac"})
        self.environment["CMAKE_PREFIX_PATH"] = f"/nowhere:{self.root}/mine"
        self.ready()

    def test_matplotlib_is_for_who_draws_and_chromium_for_ci(self):
        # What else has them on this machine does not count.
        ready = self.read("scripts/ladder/ready.sh").replace("/usr/bin/python3", "/nowhere/python3")
        self.write("scripts/ladder/ready.sh", ready)
        os.makedirs(self.at("build/bin"))
        for part in ("scripts", "tile"):
            self.write(f"build/tests_{part}.txt", "x")
        for words, ci, needs in (
                ("run", "", ""), ("explore", "", ""), ("test tile", "", ""),
                ("test scripts", "", "python3-matplotlib"), ("figures", "", "python3-matplotlib"),
                ("test", "true", "python3-matplotlib chromium")):
            self.tools(apt_get='case "$*" in *install*) exit 100;; esac',
                       python3="case \"$*\" in *matplotlib*) exit 1;; esac")
            result = self.script(*f"scripts/{words}".split(), CI=ci,
                                 status=int(words == "figures"))  # cannot do without
            self.assertEqual(re.findall("--no-install-recommends (.*)", self.called()),
                             needs.split(), words)
            for package in needs.split():
                self.assertRegex(result.stderr, f"going on without .*{package}")
        # It is not tried again each time.
        self.assertNotIn("going on", self.script("scripts/test", CI="true").stderr)

    def test_help_needs_nothing(self):
        for name in ("run", "test", "figures", "explore"):
            result = self.run_it("bash", f"scripts/{name}", "--help")
            self.assertIn(f"Usage: scripts/{name}", result.stdout)


class Building(Machine):
    def setUp(self):
        super().setUp()
        self.tools()

    def configured(self, *words):
        """The options that CMake was given when the command configured, None if it did not."""
        self.called()
        result = self.script(*words)
        self.assertEqual((result.stdout, result.stderr), ("", ""))
        found = re.search(r"^cmake -S .* --preset default ?(.*)$", self.called(clear=False), re.M)
        return found and found[1]

    def test_what_is_configured_is_kept(self):
        """Until another compiler is chosen, a GPU appears, or more is asked for."""
        self.tool("python3", f"case $1 in */answers.py) cat '{self.root}/gpu' 2>/dev/null;; esac")
        for change, expected in (
                ({}, "-DLADDER_TESTS=OFF"), ({}, None), ({"gpu": "80\n"}, "-DLADDER_GPU_FOUND=80"),
                ({}, None), ({"gpu": ""}, None), ({"gpu": "90\n"}, "-DLADDER_GPU_FOUND=90"),
                ({"LADDER_CUDA": "ON"}, "-DLADDER_GPU_FOUND=90 -DLADDER_CUDA=ON"), ({}, None),
                ({"LADDER_CUDA": ""}, None),
                ({"LADDER_CUDA": "AUTO"}, "-DLADDER_GPU_FOUND=90 -DLADDER_CUDA=AUTO"),
                ({"CXX": "c++"}, "--fresh -DLADDER_TESTS=OFF -DLADDER_GPU_FOUND=90 "
                                 "-DLADDER_CUDA=AUTO")):
            if "gpu" in change:
                self.write("gpu", change.pop("gpu"))
            self.environment |= change
            self.assertEqual(self.configured("scripts/run"), expected)
            self.assertIn("--target programs", self.called(clear=False))
            self.assertIn("python3 -m ladder.run\n", self.called())

    def test_tests_are_configured_when_they_are_wanted_and_stay(self):
        for script, expected in (("run", "-DLADDER_TESTS=OFF"), ("test", "-DLADDER_TESTS=ON"),
                                 ("run", None)):
            self.assertEqual(self.configured(f"scripts/{script}"), expected)
            self.assertEqual("--target" in self.called(), script == "run")

    def test_presets_and_ctest_options(self):
        for preset in (["--preset", "asan"], ["--preset=asan"]):
            self.script("scripts/test", *preset, "-R", "sim")
            said = self.called()
            self.assertIn("--preset asan", said)
            self.assertRegex(said, r"ctest --preset asan -j \d+ --output-on-failure .*"
                                   r"--output-junit \S+ .* -R sim\n")
        self.script("scripts/test", "--preset", status=2)

    def test_what_compilers_say(self):
        """Warnings of a good build; of one that fails, the errors alone."""
        for build, status, said in (
                ("printf '[1/2] Building a\\na.cu:3: warning: unused\\n[2/2] Linking\\n'", 0,
                 "a.cu:3: warning: unused\n"),
                ("printf '[1/2] Building a\\nFAILED: b.o\\nb.cpp:1: error: no\\n'; exit 1", 1,
                 "FAILED: b.o\nb.cpp:1: error: no\nscripts/run: the build failed (all of its "
                 "output: build/build.log).\n")):
            self.tools(build=build)
            self.assertEqual(self.script("scripts/run", status=status).stderr, said)
            self.assertEqual("ladder.run" in self.called(), status == 0)

    def test_cmake_that_fails(self):
        self.tool("cmake", f"{VERSION}echo '-- looking'; echo 'CMake Error: no fmt'; exit 1")
        said = self.script("scripts/test", status=1).stderr
        self.assertIn("CMake Error: no fmt\n", said)
        self.assertNotIn("-- looking", said)
        self.assertFalse(os.path.exists(self.at("build/.ready")))

    def test_about_how_long_a_build_will_take(self):
        steps = ["Building CXX object a.o", "Building CXX object stubs/01/tile.cu.o",
                 "Building CUDA object 01/tile.cu.o", "Linking CXX executable 01"]
        self.write("log.todo", "".join(f"[0/4] {step}\n" for step in steps))
        for done, said in ((0, " 0/4, 60 s so far"),
                           # 1.5 + 6 + 15 + 0.3 = 22.8 in all, of which 7.5 took a minute
                           (2, " 2/4, about 130 s"), (3, " 3/4, about 1 s"),
                           (4, " 4/4, 60 s so far")):
            self.write("log", "[0/2] Re-checking globs\n" + "".join(
                f"[{i + 1}/4] {step}\na warning\n" for i, step in enumerate(steps[:done])))
            self.assertEqual(self.ready("steps_done log 60").stdout, said)
        os.unlink(self.at("log.todo"))
        self.assertEqual(self.ready("steps_done log 60").stdout, "")

    def test_a_second_build_waits_for_the_first(self):
        started, go_on = self.at("started"), self.at("go_on")
        self.tools(python3=f'case $1 in -c) exec "{sys.executable}" "$@";; esac',
                   build=f"""echo "$PPID begins" >>'{self.root}/builds'
            : >'{started}'; while [ ! -e '{go_on}' ]; do sleep 0.05; done
            echo "$PPID ends" >>'{self.root}/builds'""")

        def run():
            return subprocess.Popen(["bash", "scripts/test"], cwd=self.root, env=self.environment,
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE, encoding="utf-8")

        with run() as first, contextlib.ExitStack() as both:
            wait_for(started)
            second = both.enter_context(run())
            # Whatever comes out, the builds must end.
            both.callback(lambda: self.write("go_on", ""))
            self.assertEqual(second.stderr.readline(), "scripts/test: another build in this clone "
                             "is under way; waiting for its end.\n")
            self.write("go_on", "")
            for one in (first, second):
                one.communicate(timeout=SECONDS)
        builds = [line.split() for line in self.read("builds").splitlines()]
        self.assertEqual([what for _, what in builds], ["begins", "ends"] * 2)
        self.assertEqual([builds[0][0], builds[2][0]], [builds[1][0], builds[3][0]])
        self.assertNotEqual(builds[0][0], builds[2][0])

    def test_ctrl_c_while_building(self):
        self.tools(build=f": >'{self.root}/started'; exec sleep 60")
        self.stopped(["bash", "scripts/run"], signal.SIGINT, self.at("started"), 130)
        self.assertNotIn("ladder.run", self.called())

    def test_figures_measures_counts_and_draws(self):
        for gpu_status, status, said, count in ((0, 0, "", 3), (3, 0, "without a GPU", 3),
                                                (1, 1, "", 1)):
            self.tool("python3", f"case \"$*\" in *paper*) exit {gpu_status};; esac")
            result = self.script("scripts/figures", "--time", "25", status=status)
            self.assertIn(said, result.stderr)
            self.assertIn(f"--build {self.root}/build --target programs -j",
                          self.called(clear=False))
            self.assertEqual(re.findall(r"^python3 -m (ladder\S+ .*)$", self.called(), re.M), [
                "ladder.bench.measure --grid paper,long --again --time 25",
                "ladder.bench.measure --sim --again", "ladder.figures.command --readme"][:count])


class Parts(Machine):
    """scripts/test PART..."""

    def setUp(self):
        super().setUp()
        self.tools()
        for name, variant in (("attention", "last"), ("rows", "rows"), ("wide", "rows_wide"),
                              ("hopper/tma", "tma")):
            self.write(f"05_flash_v2/{name}.cu", f'.rung = "05_flash_v2",\n.name = "{variant}",\n')
        self.make_program("exit 0")
        self.write("build/tests_sim.txt", "^(sim_test)(\\.|$)\n")

    def make_program(self, does):
        self.write("build/bin/05_flash_v2_test", "#!/bin/sh\n"
                   f"echo 05_flash_v2_test \"$*\" >>'{self.root}/called'\n{does}\n", 0o755)

    def test_what_is_built_and_run(self):
        rung, tests = "05_flash_v2", "05_flash_v2_test"
        whole_rung = ([rung, tests], ["^05_flash_v2\\."], [])

        def step(variant, others=""):
            return [tests], [], [f"*/{variant}:*/{variant}_*-{others}"]

        for parts, expected in (
                ("05", whole_rung), (rung, whole_rung),
                # Another step's name begins as this one's.
                ("05/rows", step("rows", ":*/rows_wide:*/rows_wide_*")),
                ("05/wide", step("rows_wide")), ("05/rows_wide", step("rows_wide")),
                ("05/attention", step("last")), ("05/last", step("last")),
                ("05/tma", step("tma")), ("05/hopper/tma", step("tma")),
                ("sim", (["tests_sim"], ["^(sim_test)(\\.|$)"], [])),
                ("sim 05 05/tma", (["tests_sim", rung, tests, tests],
                                   ["^(sim_test)(\\.|$)|^05_flash_v2\\."], ["*/tma:*/tma_*-"]))):
            self.called()
            self.script("scripts/test", *parts.split())
            said = self.called()
            self.assertEqual((re.search(r"--target (.*) -j", said)[1].split(),
                              re.findall(r"^ctest .* -R (.*)$", said, re.M),
                              re.findall(r"^05_flash_v2_test --gtest_filter=(\S*)", said, re.M)),
                             expected, parts)

    def test_what_is_no_part_or_fails(self):
        for name, said in (("07", "no part 07"), ("nosuch", "no part nosuch"),
                           ("05/nosuch", "05_flash_v2 has no step nosuch")):
            self.assertIn(said, self.script("scripts/test", name, status=2).stderr)
        self.assertNotIn("cmake", self.called())
        self.make_program("exit 1")
        self.script("scripts/test", "05/rows", status=1)


class Verdict(Scratch):
    """The last lines of scripts/test, from what ctest and GoogleTest wrote."""

    def test_of_files(self):
        def case(name, said="", part=""):
            return f'<testcase name="{name}">{part}<system-out>{said}</system-out></testcase>'

        skipped = '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>'
        for files, verdict in (
                ([case("a") + case("b"), case("c")], "3 tests ran, 0 failed, 0 were skipped.\n"),
                ([case("a", part="<failure/>") + case("b")
                  + case("c", "test_a (T) ... FAIL\n\nRan 3 tests in 1.5s\n\nFAILED (failures=1)\n",
                         "<failure/>")],
                 "5 tests ran, 2 failed, 0 were skipped.\nFailed: a\nFailed: c\n"),
                ([case("a", "x.cpp:5: Skipped\nno GPU: none\n\n[  SKIPPED ] a", skipped)
                  + case("b", "... not run here: no GPU: none\n", skipped)
                  + case("c", "test_a (T) ... ok\ntest_b (T) ... skipped 'no browser'\n"
                              "test_c (T) ... skipped \"it's old\"\n\nRan 30 tests in 1.5s\n\n"
                              "OK (skipped=2)\n"),
                  '<testcase name="d"><skipped message="x.cpp:5&#x0A;no GPU: none"/></testcase>'],
                 "28 tests ran, 0 failed, 5 were skipped:\n  3 × no GPU: none\n  1 × no browser\n"
                 "  1 × it's old\n")):
            paths = [self.write(f"{i}.xml", f"<testsuite>{text}</testsuite>")
                     for i, text in enumerate(files)]
            result = self.run_it(sys.executable, "-m", "ladder.verdict", *paths, "nosuch.xml",
                                 PYTHONPATH=os.path.join(ROOT, "scripts"))
            self.assertEqual((result.stdout, result.stderr), (f"\n{verdict}", ""))


if __name__ == "__main__":
    unittest.main()
