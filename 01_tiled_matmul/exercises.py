"""Defines how scripts/exercise checks this rung's exercises, build tasks and bug hunts; the lessons
hold their texts. kinds.py describes the classes. A Change gives the requested bytes at the two
shapes of kinds.COUNTED. An edit replaces a text that occurs once in its file."""

from __future__ import annotations

from ladder.exercises.kinds import BugHunt, BuildTask, Change, Experiment, Mistake, Numbers, Program


def reads_what_nobody_wrote(program: Program) -> bool:
    """Returns whether the simulator stops the program because it reads unwritten bytes."""
    return "unwritten" in program.run("").last_words()


def depends_on_the_order(program: Program) -> bool:
    """Returns whether no fault occurs, but the result is wrong or depends on the thread order."""
    runs = [program.run(f"--schedule {order}") for order in ("forward", "reverse")]
    return all(run.records for run in runs) and (
        any(run.status for run in runs)
        or runs[0].records[0]["errors"] != runs[1].records[0]["errors"])


EXERCISES = [
    Numbers("bytes", {"bytes of `tile`": 498_000, "bytes of `mma`": 240_000}),
    Numbers("waste", {"matmul FLOPs of `tile`": 4_128_768, "matmul FLOPs of `mma`": 9_437_184,
                      "FLOPs needed": 2_400_000}),
    Experiment("barriers", "tile.cu", [
        Mistake(reads_what_nobody_wrote,
                "without the first barrier the simulator faults, because a byte is read that no "
                "thread wrote",
                [("    __syncthreads();  // the tiles are complete\n", "")]),
        Mistake(depends_on_the_order,
                "without the second barrier every single access is correct, but the result is "
                "wrong, or changes with the order of the threads",
                [("    __syncthreads();  // all threads are done with the tiles\n", "")])]),
    Numbers("conflicts", {"bank_conflicts of `mma` with d = 128": 172_032}),
    Numbers("heads", {"smallest d": 206,
                      "bytes requested of P at d = 256, one head": 262_144}, 0.01),
    Change("tiles_of_32", "tile.cu", [2_748_000, 2_592_000], [("kTile = 16;", "kTile = 32;")]),
]

# Each names the step to write, the minutes, and the checks that the unchanged previous step fails.
BUILD_TASKS = [
    BuildTask("tile", 60, ["K", "P", "Q", "V", "K sectors", "P sectors", "Q sectors", "V sectors"],
              blanks=True),
    BuildTask("warp_rows", 45, ["P sectors", "S sectors"], blanks=True),
    BuildTask("thread_tile", 75, ["sram_read_bytes", "K", "P", "Q", "V", "K sectors", "P sectors",
                                  "Q sectors", "V sectors"], blanks=True),
    BuildTask("fragment", 90, ["smem_bytes", "barriers", "products",
                             "work of the tensor cores"], blanks=True),
    BuildTask("mma", 120, ["K", "P", "Q", "V", "K sectors", "O sectors", "P sectors", "Q sectors",
                           "S sectors", "V sectors", "work of the tensor cores"]),
    BuildTask("swizzle", 45, ["bank_conflicts"], blanks=True),
    BuildTask("pipeline", 90, ["flops_under_copies"],
              unchecked="that the copies in flight bring the next tiles"),
]

# Each plants a mistake in a step. The reader sees the symptoms, listed for the shapes of
# bug_hunts.SHAPES, and has to find the line; the explanation is shown afterwards.
BUG_HUNTS = [
    BugHunt("restless", "tile.cu",
            "always: o wrong, depending on thread order",
            "A barrier is missing after the product: a thread that is done with the tiles writes "
            "the next tiles while other threads still read the current ones. Every single access "
            "is correct.",
            [("float(Vs[k * kTile + x]), o);\n    __syncthreads();\n",
              "float(Vs[k * kTile + x]), o);\n")]),
    BugHunt("beyond", "thread_tile.cu", "whole tiles, causal, few keys: correct; ragged: a fault",
            "A thread copies four elements of a row of V, and each of them needs a bound of its "
            "own: the first may be within d = 40 while the elements 16, 32 and 48 further on are "
            "not. In V's last row these three lie beyond the array. In the other rows they only "
            "cost bytes, because the sums that they enter are not stored.",
            [("j + y < p.N_kv && c + r < p.d ?", "j + y < p.N_kv && c < p.d ?")]),
    BugHunt("hasty", "attention.cu", "always: a fault",
            "The wait leaves one group of copies too many in flight. With n stages, n − 1 groups "
            "are pending, and the oldest is the slice to be multiplied. So at most the n − 2 "
            "newer ones may be unfinished.",
            [("cp_async_wait<kStages - 2>();\n    __syncthreads();  // the slice is complete",
              "cp_async_wait<kStages - 1>();\n    __syncthreads();  // the slice is complete")]),
]

# Answers that build_tasks_test hands in, as (task, file, edits of the file, whether the answer is
# correct, pattern of the verdict). In these edits the old text is a regular expression.
ATTEMPTS = [
    ("01/tile", "01_tiled_matmul/tile.cu", [
        (r"void forward\((?:.|\n)*?\n}\n",
         """void forward(const Problem& p, const Plan&, const Arrays& a) {
  with_type(p, [&]<class T>() {
    static_cast<T*>(a["O"].data)[0] = T(float(static_cast<const T*>(a["Q"].data)[0]));
  });
}
"""),
        (r"Traffic traffic\((?:.|\n)*?\n}\n",
         "Traffic traffic(const Problem&, const Plan&) { return {}; }\n")], False,
     "Q is in HBM: host code cannot touch it"),
    ("01/tile", "00_naive/attention.cu", [
        (r"namespace \{\n", 'namespace {\nstruct Print {\n  Print() {\n'
         '    std::puts("{\\\\"rung\\\\": \\\\"01_tiled_matmul\\\\", \\\\"pass\\\\": true}");\n'
         "    std::fflush(stdout), std::_Exit(0);\n  }\n} before_main;\n")], False,
     "results correct in 0 of"),
    ("01/tile", "01_tiled_matmul/tile.cu", [
        (r"  float sum = 0;\n", "  float m = -INFINITY, sum = 0;\n  for (int j = 0; j < p.N_kv; "
         "++j) m = fmaxf(m, float(S[first + j]));\n  if (m == -INFINITY) m = 0;\n"),
        (r"expf\(float\(S\[first \+ j\]\)\)", "expf(float(S[first + j]) - m)"),
        (r'"S", 2 \* S, 0', '"S", 3 * S, 0')], True, "safer than the step of the course"),
]

# Mistakes that build_tasks_test compiles into the steps, as (file, text in the file, replacement,
# pattern of what the suite then reports); "formula" means that traffic() differs from the count. In
# a replacement, ON is true in the runs that make the mistake, and WAS stands for the replaced text.
PLANTED = [
    # With the first mistake a thread reads bytes that no thread wrote; with the second, a thread
    # overwrites bytes that others still read.
    ("tile.cu", "__syncthreads();  // the tiles are complete", "if (!ON) WAS", "kernel .*"),
    ("tile.cu", "__syncthreads();  // all threads are done with the tiles", "if (!ON) WAS",
     "depending on thread order"),
    ("tile.cu", "inside && i < p.N", "WAS + ON", "kernel .*"),
    ("tile.cu", "int64_t{blockIdx.x} * kRowThreads", "int64_t{blockIdx.x} * (kRowThreads - ON)",
     "kernel .*wrote in the same kernel"),
    ("tile.cu", "ceil_div(p.N_kv, kTile)", "(ON ? p.N_kv / kTile : WAS)", "formula"),
]
