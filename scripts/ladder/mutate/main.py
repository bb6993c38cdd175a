"""scripts/mutate: plants mistakes in kernels, common/tile and checks: do the tests find them?"""

import collections
import hashlib
import json
import os
import sys
import time

from ladder.console import BAD_USAGE, GOOD, WRONG_RESULT, Parser, Progress, Stop, run_command, wrap
from ladder.files import ROOT, write_whole
from ladder.mutate import known
from ladder.mutate.judge import Judge, Suites, cores
from ladder.mutate.plant import Garden, check_tools, fingerprint
from ladder.mutate.rules import KINDS, key, mutants

DESCRIPTION = """\
Plants single mistakes in the kernels and in common/tile, in copies, and runs the tests on each: a
mistake that no test finds is a hole in them. The kinds of mistake: `operator` (< for <=, + for -),
`number` (one larger, a maximum that starts at 0), `call` (min for max, a plain addition for an
atomic one), `statement` (one left out), `guard` (an `if` always or never taken), `conjunct` (a
condition dropped), `moved` (a statement moved by one across a barrier, wait, release or commit),
`variable` (another of the same type that is in scope: for each use the likeliest, by name and
place), `rounding` (a value rounded to the I/O type once more), `padded` (the padded
head size for the real one, or the other way round).

What finds mistakes is tried too. In the sim (common/machine/sim) a `check` is never made, or one of
its conditions is left out; the reference gets `operator`, `number`, `statement`, `guard` and
`conjunct`. Of the tests those of these two alone are run there, so that what survives is a check
that no test needs.

A sample of all that could be planted is built into one set of programs (build/mutate), each mistake
chosen while they run; so the first build takes as long as any, and a mutant about a second on one
core. Results are kept in build/mutate/results.json: a run that was interrupted goes on where it
stopped, what was found stays found while its file is the same, and what survived is tried again
once any source is another. Mutants that may survive stand in scripts/ladder/mutate/known.json with
the reason.

Not planted, because no test on the sim could find it: an index of S that is 32 bits wide. Only the
GPU's GpuLarge tests do."""

EPILOG = """\
Examples:
  scripts/mutate                      300 mutants
  scripts/mutate --seed 7             another 300
  scripts/mutate --only 04_ --count 0 all of rung 04's, as often as it takes: it goes on
  scripts/mutate --kind moved,padded --count 0
  scripts/mutate --only rows.h --list

Exit status: 0 every survivor is explained; 1 one is not; 2 bad usage."""


def parse(arguments):
    parser = Parser(prog="scripts/mutate", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--count", type=int, default=300, metavar="N",
                        help="how many to plant (default 300; 0: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which ones (default 0)")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="of files whose path has TEXT in it alone")
    parser.add_argument("--kind", default="", metavar="NAME,...", help="of these kinds alone: "
                        + ", ".join(rule.__name__ for rule in KINDS))
    parser.add_argument("--jobs", type=int, default=len(cores()), metavar="N",
                        help="how many to judge at a time (default: the cores, here %(default)s)")
    parser.add_argument("--list", action="store_true", help="print them and plant nothing")
    options = parser.parse_args(arguments)
    if options.count < 0:
        raise Stop(f"--count {options.count}: a number of mutants, 0 for all", BAD_USAGE)
    if options.jobs < 1:
        raise Stop(f"--jobs {options.jobs}: how many at a time, 1 at least", BAD_USAGE)
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
        self.saved = 0
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
        if time.monotonic() - self.saved > 2:
            self.save()

    def save(self):
        self.saved = time.monotonic()
        write_whole(self.path, json.dumps(self.had, indent=0, ensure_ascii=False) + "\n")


def describe(mutant):
    return f"{mutant.file}: {mutant.line}\n    {mutant.was} → {mutant.now}   ({mutant.rule})"


def run_all(root, chosen, results, progress, jobs):
    """Tries all of those of which nothing is known."""
    todo = [m for m in chosen if results.get(m) is None]
    if not todo:
        return
    check_tools()
    suites = Suites(root)
    garden = Garden(root, ((number, m) for number, m in enumerate(chosen)
                           if (results.get(m) or [""])[0] != "does not compile"))
    tests = [suite for file in {m.file for m in todo} for suite in suites.of(file)]
    of_key = {key(m): m for m in chosen}

    def note(unfit):
        for one, why in unfit.items():
            results.put(of_key[one], "does not compile", why)
        results.save()

    try:
        garden.build(sorted({program for program, *_ in tests}), progress, jobs, note)
        judge = Judge(garden.bin, garden.folder, progress, jobs)
        judge.learn(tests)
        numbers = {key(m): number for number, m in garden.numbered.items()}
        todo = [m for m in todo if key(m) in numbers]
        survived = 0
        for done, (m, verdict) in enumerate(judge.each(
                lambda m: judge.verdict(numbers[key(m)], suites.of(m.file)), todo), 1):
            results.put(m, *verdict)
            survived += verdict[0] == "survived"
            judge.what = f"{done} of {len(todo)} mutants, {survived} survived"
    finally:
        results.save()


def report(chosen, results, entries):
    """Prints the score; the status to end with."""
    scores = {title: collections.defaultdict(collections.Counter)
              for title in ("by kind", "by file")}
    lines = collections.defaultdict(list)
    for m in chosen:
        state, _ = results.get(m)
        if state in ("survived", "not reached"):
            why = known.reason_for(entries, m)
            lines["explained" if why else state].append((m, why))
            state = "explained" if why else state
        scores["by kind"][m.rule][state] += 1
        scores["by file"][m.file.split("/")[0] if m.file[0].isdigit() else m.file][state] += 1
    for title, of in scores.items():
        print(f"{title:30}" + "".join(f"{head:>18}" for head in HEADS) + f"{'score':>8}")
        for name, states in sorted(of.items()):
            print(row(name, states))
        print()
    print(row("all", sum(scores["by file"].values(), collections.Counter())))
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


HEADS = ["planted", "found", "explained", "survived", "not reached", "does not compile"]


def row(name, states):
    states = {**states, "planted": sum(states.values())}
    states = collections.Counter(states)
    counted = states["found"] + states["survived"] + states["not reached"]
    score = f"{100 * states['found'] / counted:.1f}%" if counted else "–"
    return f"{name:30}" + "".join(f"{states[head]:>18}" for head in HEADS) + f"{score:>8}"


def main(arguments, root=ROOT, path=known.PATH):
    options = parse(arguments)
    every, suites = [], Suites(root)
    for file in suites.files():
        with open(os.path.join(root, file), encoding="utf-8") as source:
            every += mutants(file, source.read())
    entries = known.load(path)
    for entry in known.stale(entries, every):
        print("\n".join(wrap(f"scripts/mutate: nothing answers to this entry of known.json any "
                             f"more: {json.dumps(entry, ensure_ascii=False)}")), file=sys.stderr)
    kinds = {kind for kind in options.kind.split(",") if kind}
    strange = kinds - {rule.__name__ for rule in KINDS}
    if strange:
        raise Stop(f"--kind {','.join(sorted(strange))}: the kinds are "
                   f"{', '.join(rule.__name__ for rule in KINDS)}", BAD_USAGE)
    here = [m for m in every if options.only in m.file and (not kinds or m.rule in kinds)]
    if not here:
        raise Stop(f"--only {options.only}: there is nothing to plant in such a file", BAD_USAGE)
    chosen = sample(here, options.count, options.seed)
    if options.list:
        for m in sorted(chosen, key=lambda m: (m.file, m.begin)):
            print(describe(m))
        for kind, number in collections.Counter(m.rule for m in chosen).most_common():
            print(f"{kind:12}{number:6}")
        print(f"{len(chosen)} of {len(here)}")
        return GOOD
    folder = os.path.join(root, "build/mutate")
    os.makedirs(folder, exist_ok=True)
    results = Results(os.path.join(folder, "results.json"), root, {m.file for m in every})
    progress = Progress()
    try:
        run_all(root, chosen, results, progress, options.jobs)
    finally:
        progress.clear()
    return report(chosen, results, entries)


if __name__ == "__main__":
    sys.exit(run_command("scripts/mutate", lambda: main(sys.argv[1:]),
                         "interrupted; what was tried is kept, and the same command goes on."))
