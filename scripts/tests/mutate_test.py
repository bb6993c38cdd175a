"""Tests of scripts/mutate: its rules on texts, and the whole of it on a toy of a tree."""

import collections
import contextlib
import io
import json
import os
import unittest

from base import ROOT, Scratch
from ladder.console import Stop
from ladder.mutate import judge, main
from ladder.mutate.judge import Suites
from ladder.mutate.rules import key, mutants


def changes(body):
    """{rule: {(was, now)}} of a kernel with that body."""
    found = {}
    text = "__global__ void kernel(int n) {\n" + body + "\n}\n"
    for m in mutants("a.cu", text):
        found.setdefault(m.rule, set()).add((m.was, m.now))
    return found


class Rules(unittest.TestCase):
    def test_of_a_kernel(self):
        """(a kernel's body, {rule: what becomes what})"""
        gone = "(left out)"
        for body, expected in (
                ("x = a + b * c % d;\ny = a <= b;", {"operator": {
                    ("+", "-"), ("*", "+"), ("%", "(nothing)"), ("<=", "<")}}),
                # What has no two operands, or is a template's, is no operator.
                ("f<T, 32>(-a, *p, x->y);", {"operator": set()}),
                ("f(a,\n  b);\nif (n) return;\nx[i].y = 2;\nint z = 3;\nauto q = g();\n"
                 "Tile<T, 8> t{s};\ncp_async_wait<0>();", {"statement": {
                     (text, gone) for text in ("f(a, b);", "return;", "x[i].y = 2;",
                                               "cp_async_wait<0>();")}}),
                ("if (i < n && (j > 0 || k)) f();\ng(a && b, c);", {
                    "guard": {("i < n && (j > 0 || k)", to) for to in ("true", "false")},
                    "conjunct": {("i < n", "true"), ("(j > 0 || k)", "true"), ("j > 0", "false"),
                                 ("k", "false"), ("a", "true"), ("b", "true")}}),
                ("float m = -INFINITY, l = 0;\nm = max(m, f<3>(16));\natomicAdd(p, 1);", {
                    "number": {("-INFINITY", "0"), ("0", "1"), ("16", "17"), ("1", "2")},
                    "call": {("max", "min"), ("atomicAdd", "plain_add")}}),
                # Over what orders; not past the return.
                ("a[i] = 1;\n__syncthreads();  // all\nfor (int k = 0; k < n; ++k) s += a[k];\n"
                 "const auto go = [&] { cp_async_commit(); };\ngo();\nif (n) Q.release();\n"
                 "return;", {"moved": {
                     ("__syncthreads();", "(before a[i] = 1;)"),
                     ("__syncthreads();", "(after for (int k = 0; k < n; ++k) s += a[k];)"),
                     ("go();", "(before const auto go = [&] { cp_async_commit(); };)"),
                     ("go();", "(after if (n) Q.release();)")}})):
            found = changes(body)
            for rule, of in expected.items():
                self.assertEqual(found.get(rule, set()), of, (rule, body))
        # Of a constant, and outside of what runs on the device, nothing.
        self.assertEqual(changes("constexpr int k = 2 + 3;\nstatic_assert(k == 5);\n"
                                 "if constexpr (k > 3) {}\n// a + b\n#pragma unroll 2\n"), {})
        self.assertEqual(mutants("a.cu", "int host(int a) { return a + 1; }"), [])

    def test_not_over_what_nothing_orders(self):
        declared = ("const auto w = smem.take<float>(n);\nAccumulator<16, 8> S;\n"
                    "auto m = fill_rows<16>(0);\n")
        for statements, swapped in (
                ("__syncthreads();\nm = max(m, row_max(S));", False),  # in registers
                ("__syncthreads();\nm = max(m, max_over_warps(w));", True),
                ("__syncthreads();\nm = w[n];", True),
                ("wgmma_wait<0>(S);\nm = row_max(S);", True),  # that it waits for
                ("wgmma_wait<0>(S);\nm = m + m;", False),
                ("Q.wait();\nif (n) return;", True),
                ("cp_async_commit();\nm = w[n];", False),  # starts nothing
                ("cp_async_commit();\ncp_async_wait<0>();", True),
                ("cp_async_wait<0>();\n__syncthreads();", True),
                ("K.wait();\nV.wait();", False),
                ("K.fill(n);\nK.acquire();", False),  # sooner
                ("K.acquire();\nK.fill(n);", True),
                ("if (n == 0) begin_turn();\nK.wait();", False)):
            found = changes(declared + "f();\n{\n" + statements + "\n}")
            self.assertEqual("moved" in found, swapped, statements)

    def test_variables_exchanged(self):
        found = changes("const int row = n, j = 2;\nfloat sum = 0;\nfor (int k = 0; k < row; ++k) "
                        "sum += x[k];\nauto& same = sum;\nf(same, sum);\nsmem.take<T>(j);\n"
                        "{ const float other = sum; }\nf(row);\n"
                        "Q.free[k].wait(p.N);\nbool a = 0;\nconst bool b = 1;\na = b;")["variable"]
        names = {was: {now for one, now in found if one == was} for was, _ in found}
        self.assertEqual(names, {"row": {"j", "k"}, "k": {"j"}, "j": {"n"}, "p.N": {"p.N_kv"},
                                 "Q.free": {"Q.full"}, "b": {"a"}})

    def test_roundings_and_padded_sizes(self):
        text = ("template <class T, int Dh>\n__global__ void f(Hbm<T> O, Problem p, float a) {\n"
                "  auto m = fill_rows<16>(0);\n  float tile[Dh], s = p.scale * a;\n"
                "  O[p.d] = T(a > 0 ? s * Dh : a);\n  s = T(s);\n  m = max(m, a);\n"
                "  Tile<T, Dh> t;\n  Chunk<T> q[Dh / 8];\n  n = pack<T>(a, s);\n}\n")
        found = [(m.rule, m.line[:5], m.was) for m in mutants("a.cu", text)]
        self.assertEqual([one[1:] for one in found if one[0] == "rounding"], [
            ("float", "p.scale"), ("float", "a"), ("O[p.d", "s"), ("O[p.d", "a"), ("m = m", "m"),
            ("m = m", "a")])
        self.assertEqual([one for one in found if one[0] == "padded"],
                         [("padded", "float", "Dh"), ("padded", "O[p.d", "p.d"),
                          ("padded", "O[p.d", "Dh"), ("padded", "Chunk", "Dh")])

    def test_checks_run_on_the_host(self):
        text = ("int f(int a) const {\n  if (a < 3 && a > 1) fault(a);\n}\n"
                "A::A(int a) {\n  b = a;\n}\nconstexpr int k = 1 + 2;\n")
        for file, rules, expected in (
                ("common/machine/sim/a.cpp", None,
                 [("check", "a < 3", "true"), ("check", "a < 3 && a > 1", "false"),
                  ("check", "a > 1", "true")]),
                ("common/harness/a.cpp", ("guard", "statement"),
                 [("guard", "a < 3 && a > 1", "false"), ("guard", "a < 3 && a > 1", "true"),
                  ("statement", "fault(a);", "(left out)"),
                  ("statement", "b = a;", "(left out)")])):
            self.assertEqual([(m.rule, m.was, m.now) for m in mutants(file, text)
                              if not rules or m.rule in rules], expected)
        self.assertEqual(mutants("a.cpp", text), [])

    def test_those_of_the_tree(self):
        """Each source has some, and the list of those that may survive names none that is gone."""
        suites = Suites(ROOT)
        every = [m for file in suites.files() for m in mutants(file, suites.read(file))]
        number_of = collections.Counter(m.file for m in every)
        for file in suites.rungs + suites.headers:
            self.assertTrue(number_of[file] > 5 or "cublas" in file, file)
        of_line = collections.defaultdict(list)
        for m in every:
            of_line[m.line].append(m)
        for entry in main.load_known(main.KNOWN):
            self.assertTrue(entry.reason.strip() and (entry.line or entry.was), entry)
            here = of_line[entry.line] if entry.line else every
            self.assertTrue(any(main.answers(entry, m) for m in here), f"gone: {entry}")

    def test_what_a_mutant_is_known_by(self):
        """Wherever its line stands; what an entry of the list leaves out stands for any."""
        body = "__device__ int f(int a) { return a + 1; }"
        one, moved = (mutants("a.h", text)
                      for text in (body + "\n", "// more\n\n" + body + "  // why\n"))
        self.assertEqual([key(m) for m in one], [key(m) for m in moved])
        self.assertEqual(len({key(m) for m in one}), len(one))
        for fields, answers in (({"was": "+"}, True), ({"line": body}, True),
                                ({"file": "a.h", "was": "+", "now": "-", "nth": 0}, True),
                                ({"was": "-"}, False), ({"line": "f"}, False),
                                ({"file": "b.h", "was": "+"}, False),
                                ({"was": "+", "nth": 1}, False)):
            self.assertEqual(main.answers(main.Entry("why", **fields), one[0]), answers, fields)


# A toy: sums of a row, of which the tests see the first three alone.
KERNEL = """\
#include <cstdlib>
#include "tile/word.h"
#define __global__
__global__ void sum(const int* x, int* out, int n) {
  int total = 0;
  const auto order = [&](int) { fence_all(); };
  order(2);  // and before that it does not compile
  for (int i = 0; i < n; ++i) {
    if (x[i] > 100) total = 100;  // no test has so much
    total = total + twice(x[i]);
  }
  out[0] = total;
  while (n != 0) {
    n = n / 2;
    std::getenv("");  // so that the compiler must leave a loop that never ends
  }
}
const char* step = R"(.name = "toy")";
"""
WORD = """\
#pragma once
#define __device__
inline __device__ int twice(int x) { return x * 2; }
inline void fence_all() {}
"""
TESTS = """\
#include <gtest/gtest.h>
void sum(const int*, int*, int);
int of(const int (&x)[3], int n) { int out = 0; sum(x, &out, n); return out; }
const auto name = [](const auto& info) { return info.param; };
struct Sim : testing::TestWithParam<std::string> {};
TEST_P(Sim, IsRight) { EXPECT_EQ(of({1, 2, 3}, 3), 12); EXPECT_EQ(of({7, 8, 9}, 0), 0); }
INSTANTIATE_TEST_SUITE_P(, Sim, testing::Values("toy_three"), name);
struct Schedules : testing::TestWithParam<std::string> {};
TEST_P(Schedules, GiveTheSame) { EXPECT_EQ(of({5, 0, 4}, 2), 10); }
INSTANTIATE_TEST_SUITE_P(, Schedules, testing::Values("toy"), name);
"""
CMAKE = """\
cmake_minimum_required(VERSION 3.24)
project(toy CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
find_package(GTest REQUIRED)
file(WRITE ${CMAKE_BINARY_DIR}/stub.cpp "#include \\"${LADDER_PLANTED}/00_toy/attention.cu\\"\\n")
add_executable(00_toy_test ${CMAKE_BINARY_DIR}/stub.cpp tests.cpp)
target_include_directories(00_toy_test PRIVATE ${LADDER_PLANTED}/common common)
target_link_libraries(00_toy_test GTest::gtest_main)
"""


class Toy(Scratch):
    def setUp(self):
        super().setUp()
        self.known = self.write("known.json", "[]")
        self.addCleanup(setattr, judge, "PATIENCE", judge.PATIENCE)
        judge.PATIENCE = 1
        for path, text in (("00_toy/attention.cu", KERNEL), ("common/tile/word.h", WORD),
                           ("tests.cpp", TESTS), ("CMakeLists.txt", CMAKE)):
            self.write(path, text)

    def mutate(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            status = main.main(list(arguments), self.root, self.known)
        return status, out.getvalue()

    def states(self):
        found = map(json.loads, self.read("build/mutate/results.jsonl").splitlines())
        return {tuple(one["mutant"].split("\t")[1:4]): one for one in found}

    def test_finds_survivors_goes_on_and_believes_the_list(self):
        self.mutate("--count", "9")
        status, said = self.mutate("--count", "0")
        self.assertEqual(status, 1, said)
        states = self.states()
        lines = self.read("build/mutate/results.jsonl").splitlines()
        self.assertEqual(len({json.loads(line)["mutant"] for line in lines}), len(lines))
        state = {where: what["state"] for where, what in states.items()}
        loop = "for (int i = 0; i < n; ++i) {"
        guard = "if (x[i] > 100) total = 100;"
        self.assertEqual(state[loop, "<", "<="], "found")
        self.assertEqual(state["inline __device__ int twice(int x) { return x * 2; }", "*", "+"],
                         "found")
        self.assertEqual(state[guard, "x[i] > 100", "false"], "survived")
        self.assertEqual(state[guard, "x[i] > 100", "true"], "found")
        self.assertEqual(state[guard, "total = 100;", "(left out)"], "not reached")
        before = "(before const auto order = [&](int) { fence_all(); };)"
        self.assertEqual({where[1:] for where, what in state.items() if what == "does not compile"},
                         {("order(2);", before), ("x", "out")})
        hang = states["n = n / 2;", "n = n / 2;", "(left out)"]
        self.assertEqual((hang["state"], hang["by"]),
                         ("found", "00_toy_test: no end within 1 s of a core's time"))
        self.assertEqual(self.read("00_toy/attention.cu"), KERNEL)
        self.assertIn("Survived:", said)
        self.assertIn("x[i] > 100 → false", said)

        # Nothing is tried a second time, and what the list explains is no hole.
        at = self.at("build/mutate/results.jsonl")
        before = os.stat(at).st_mtime_ns
        holes = [where for where, what in state.items() if what in ("survived", "not reached")]
        self.write("known.json", [{"line": line, "was": was, "now": now, "reason": "a toy's"}
                                  for line, was, now in holes])
        status, said = self.mutate("--count", "0")
        self.assertEqual(status, 0, said)
        self.assertIn("a toy's", said)
        self.assertEqual(os.stat(at).st_mtime_ns, before)

    def test_what_is_chosen(self):
        said = [self.mutate("--list", "--count", "4", "--seed", seed)[1] for seed in "0011"]
        self.assertEqual(said[0], said[1])
        self.assertEqual(said[2], said[3])
        self.assertNotEqual(said[0], said[2])
        self.assertRegex(said[0], r"\n4 of \d+\n$")
        self.assertRegex(self.mutate("--list", "--count", "0", "--kind", "guard")[1],
                         r"\nguard +2\n2 of 2\n$")
        self.assertRaises(Stop, self.mutate, "--only", "nowhere")
        for words in ("--count -1", "--kind guard,gard", "--jobs 0"):
            with self.assertRaises(SystemExit) as end:
                self.mutate(*words.split())
            self.assertEqual(end.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
