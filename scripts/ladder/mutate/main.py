"""scripts/mutate: plants mistakes in kernels and words and looks whether the tests find them."""

import collections
import hashlib
import json
import os
import sys

from ladder.console import BAD_USAGE, GOOD, WRONG_RESULT, Parser, Progress, Stop, run_command, wrap
from ladder.files import ROOT, write_whole
from ladder.mutate import known
from ladder.mutate.judge import Judge, Suites
from ladder.mutate.plant import Garden, check_tools, fingerprint
from ladder.mutate.rules import key, mutants

DESCRIPTION = """\
Plants single mistakes in the kernels and in common/tile, in copies, and runs the tests on each: a
mistake that no test finds is a hole in them. The mistakes: another operator (< for <=, + for -), a
number one larger, a maximum that starts at 0, min for max, a statement left out, an `if` always or
never taken, a condition dropped, a plain addition for an atomic one.

A sample of all that could be planted is built into one set of programs (build/mutate), each mistake
chosen while they run; so the first build takes as long as any, and a mutant about a second. Results
are kept in build/mutate/results.json: a run that was interrupted goes on where it stopped, what was
found stays found while its file is the same, and what survived is tried again once any source is
another. Mutants that may survive stand in scripts/ladder/mutate/known.json with the reason.

Not planted, because no test on the sim could find it: an index of S that is 32 bits wide. Only the
GPU's GpuLarge tests do."""

EPILOG = """\
Examples:
  scripts/mutate                      300 mutants
  scripts/mutate --seed 7             another 300
  scripts/mutate --only 04_ --count 0 all of rung 04's, as often as it takes: it goes on
  scripts/mutate --only rows.h --list

Exit status: 0 every survivor is explained; 1 one is not; 2 bad usage."""


def parse(arguments):
    parser = Parser(prog="scripts/mutate", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--count", type=int, default=300, metavar="N",
                        help="how many to plant (default 300; 0: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which ones (default 0)")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="of files whose path has TEXT in it alone")
    parser.add_argument("--list", action="store_true", help="print them and plant nothing")
    options = parser.parse_args(arguments)
    if options.count < 0:
        raise Stop(f"--count {options.count}: a number of mutants, 0 for all", BAD_USAGE)
    return options


def sample(all_mutants, count, seed):
    """The same ones for a seed, whatever else there is to choose from: each has its own draw."""
    drawn = sorted(all_mutants, key=lambda m: hashlib.sha256(f"{seed}\t{key(m)}".encode()).digest())
    return drawn[:count or None]


class Results:
    """What is known of mutants: {key: {"state", "by", "file", "tree"}}, the fingerprints of the
    mutant's file and of all sources among it."""

    def __init__(self, path, root, files):
        self.path = path
        self.of_file = {file: fingerprint(root, [file]) for file in files}
        tests = [os.path.relpath(os.path.join(folder, name), root)
                 for folder, _, names in os.walk(os.path.join(root, "common")) for name in names
                 if name.endswith((".h", ".cpp", ".cu", ".cmake"))]
        self.tree = fingerprint(root, {*files, *tests})
        self.had = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.had = json.load(file)

    def get(self, mutant):
        """(state, by) where it still holds, else None."""
        one = self.had.get(key(mutant))
        if not one or one["file"] != self.of_file[mutant.file]:
            return None
        return (one["state"], one["by"]) if one["state"] == "found" or one["tree"] == self.tree \
            else None

    def put(self, mutant, state, by):
        self.had[key(mutant)] = {"state": state, "by": by, "file": self.of_file[mutant.file],
                                 "tree": self.tree}
        write_whole(self.path, json.dumps(self.had, indent=0, ensure_ascii=False) + "\n")


def describe(mutant):
    return f"{mutant.file}: {mutant.line}\n    {mutant.was} → {mutant.now}"


def run_all(root, chosen, results, progress):
    """Tries all of those of which nothing is known."""
    todo = [m for m in chosen if results.get(m) is None]
    if not todo:
        return
    check_tools()
    suites = Suites(root)
    garden = Garden(root, enumerate(chosen))
    programs = suites.programs({m.file for m in todo})
    garden.build(programs, progress)
    for m in chosen:
        if key(m) in garden.unfit:
            results.put(m, "does not compile", garden.unfit[key(m)])
    judge = Judge(garden.bin, garden.folder, progress)
    judge.learn(programs)
    numbers = {key(m): number for number, m in garden.numbered.items()}
    for done, m in enumerate(todo):
        if key(m) in numbers:
            survived = sum(1 for one in todo[:done] if results.get(one)[0] == "survived")
            what = f"mutant {done + 1} of {len(todo)}, {survived} survived: {m.file}"
            results.put(m, *judge.verdict(numbers[key(m)], suites.of(m.file), what))


def report(chosen, results, entries):
    """Prints the score; the status to end with."""
    scores = collections.defaultdict(collections.Counter)
    lines = collections.defaultdict(list)
    for m in chosen:
        state, _ = results.get(m)
        if state in ("survived", "not reached"):
            why = known.reason_for(entries, m)
            lines["explained" if why else state].append((m, why))
            state = "explained" if why else state
        scores[m.file.split("/")[0] if m.file[0].isdigit() else m.file][state] += 1
    heads = ["found", "survived", "not reached", "explained", "does not compile"]
    print(f"{'':22}" + "".join(f"{head:>18}" for head in heads) + f"{'score':>8}")
    total = collections.Counter()
    for name, states in sorted(scores.items()):
        print(row(name, states, heads))
        total += states
    print(row("all", total, heads))
    for state, title in (("explained", "Explained:"), ("not reached", "That no test reaches:"),
                         ("survived", "Survived:")):
        if lines[state]:
            print(f"\n{title}")
        for m, why in lines[state]:
            print(f"  {describe(m)}" + (f"\n    {why}" if why else ""))
    holes = len(lines["survived"]) + len(lines["not reached"])
    if not holes:
        return GOOD
    print(f"\n{holes} to explain: a test that fails with it, or an entry in "
          "scripts/ladder/mutate/known.json.")
    return WRONG_RESULT


def row(name, states, heads):
    counted = states["found"] + states["survived"] + states["not reached"]
    score = f"{100 * states['found'] / counted:.1f}%" if counted else "–"
    return f"{name:22}" + "".join(f"{states[head]:>18}" for head in heads) + f"{score:>8}"


def main(arguments, root=ROOT, path=known.PATH):
    options = parse(arguments)
    every = []
    for file in Suites(root).files():
        with open(os.path.join(root, file), encoding="utf-8") as source:
            every += mutants(file, source.read())
    entries = known.load(path)
    for entry in known.stale(entries, every):
        print("\n".join(wrap(f"scripts/mutate: nothing answers to this entry of known.json any "
                             f"more: {json.dumps(entry, ensure_ascii=False)}")), file=sys.stderr)
    here = [m for m in every if options.only in m.file]
    if not here:
        raise Stop(f"--only {options.only}: there is nothing to plant in such a file", BAD_USAGE)
    chosen = sample(here, options.count, options.seed)
    if options.list:
        for m in sorted(chosen, key=lambda m: (m.file, m.begin)):
            print(describe(m))
        print(f"{len(chosen)} of {len(here)}")
        return GOOD
    folder = os.path.join(root, "build/mutate")
    os.makedirs(folder, exist_ok=True)
    results = Results(os.path.join(folder, "results.json"), root, {m.file for m in every})
    progress = Progress()
    try:
        run_all(root, chosen, results, progress)
    finally:
        progress.clear()
    return report(chosen, results, entries)


if __name__ == "__main__":
    sys.exit(run_command("scripts/mutate", lambda: main(sys.argv[1:]),
                         "interrupted; what was tried is kept, and the same command goes on."))
