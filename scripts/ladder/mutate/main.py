"""scripts/mutate: plants mistakes in kernels, common/tile and checks: do the tests find them?"""

import collections
import hashlib
import json
import os
import pathlib
import sys

from ladder.console import BAD_USAGE, GOOD, WRONG_RESULT, Parser, Progress, Stop, run_command
from ladder.files import ROOT, read_json
from ladder.mutate.judge import Judge, Suites
from ladder.mutate.plant import Garden, fingerprint
from ladder.mutate.rules import KINDS, key, mutants
from ladder.programs import cores

# Mutants that may survive, as entries with a reason. A field that is left out stands for any.
KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known.json")
Entry = collections.namedtuple("Entry", "reason file line was now nth", defaults=5 * [None])

DESCRIPTION = """\
Plants single mistakes in the kernels and in common/tile, in copies, and runs the tests on each: a
mistake that no test finds is a hole in them. The kinds of mistake:

{}

What finds mistakes is tried too: the sim (common/machine/sim) by `check`, the reference by
`operator`, `number`, `statement`, `guard` and `conjunct`. Of the tests those of these two alone are
run there, so that what survives is a check that no test needs.

A sample of all that could be planted is built into one set of programs (build/mutate), each mistake
chosen while they run; so the first build takes as long as any, and a mutant about a second on one
core. Results are kept in build/mutate/results.jsonl: a run that was interrupted goes on where it
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
    kinds = ",".join(rule.__name__ for rule in KINDS)
    what = "\n".join(f"  {rule.__name__:10} {' '.join(rule.__doc__.split()).split('. ')[0]}"
                     for rule in KINDS)
    parser = Parser("scripts/mutate", description=DESCRIPTION.format(what), epilog=EPILOG)
    parser.add_argument("--count", type=int, default=300, metavar="N",
                        help="how many to plant (default 300; 0: all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which ones (default 0)")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="of files whose path has TEXT in it alone")
    parser.add_argument("--kind", default=kinds, metavar="NAME,...",
                        help="of these kinds alone (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=len(cores()), metavar="N",
                        help="how many to judge at a time (default: the cores, here %(default)s)")
    parser.add_argument("--list", action="store_true", help="print them and plant nothing")
    options = parser.parse_args(arguments)
    if options.count < 0 or options.jobs < 1:
        parser.error("--count must be 0 (all) or more, and --jobs 1 or more")
    options.kind = set(options.kind.split(","))
    if options.kind - set(kinds.split(",")):
        parser.error(f"the kinds of --kind are {kinds}")
    return options


def load_known(path):
    return [Entry(**entry) for entry in read_json(path)]


def answers(entry, mutant):
    return all(wanted in (None, of) for wanted, of in zip(
        entry[1:], (mutant.file, mutant.line, mutant.was, mutant.now, mutant.nth)))


def sample(all_mutants, count, seed):
    """The same ones for a seed, whatever else there is to choose from: each has its own draw."""
    drawn = sorted(all_mutants, key=lambda m: hashlib.sha256(f"{seed}\t{key(m)}".encode()).digest())
    return drawn[:count or None]


class Results:
    """What is known of mutants: a file with a line for each verdict, the last of a mutant's holds.
    It has the fingerprints of the mutant's file and of all sources."""

    def __init__(self, path, suites, files):
        self.path = pathlib.Path(path)
        self.of_file = {file: fingerprint(suites.root, [file]) for file in files}
        tests = suites.found(*(f"common/**/*{kind}" for kind in (".h", ".cpp", ".cu", ".cmake")))
        self.tree = fingerprint(suites.root, {*files, *tests})
        said = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        self.had = {one["mutant"]: one for one in map(json.loads, said.splitlines())}

    def state(self, mutant):
        """Where it still holds, else None."""
        one = self.had.get(key(mutant))
        holds = one and one["file"] == self.of_file[mutant.file] and \
            (one["state"] == "found" or one["tree"] == self.tree)
        return one["state"] if holds else None

    def put(self, mutant, state, by):
        one = {"mutant": key(mutant), "state": state, "by": by,
               "file": self.of_file[mutant.file], "tree": self.tree}
        self.had[key(mutant)] = one
        with open(self.path, "a", encoding="utf-8") as file:
            print(json.dumps(one, ensure_ascii=False), file=file)


def describe(mutant):
    return f"{mutant.file}: {mutant.line}\n    {mutant.was} → {mutant.now}   ({mutant.rule})"


def run_all(suites, chosen, results, progress, jobs):
    """Tries all of those of which nothing is known."""
    files = {m.file for m in chosen if not results.state(m)}
    if not files:
        return
    tests = [suite for file in files for suite in suites.of(file)]
    garden = Garden(suites.root, {number: m for number, m in enumerate(chosen)
                                  if results.state(m) != "does not compile"})
    for m, why in garden.build(sorted({program for program, *_ in tests}), jobs):
        if not results.state(m):
            results.put(m, "does not compile", why)
    judge = Judge(garden.bin, progress, jobs)
    judge.learn(tests)
    todo = [number for number, m in garden.numbered.items() if not results.state(m)]
    survived = 0
    for done, (number, verdict) in enumerate(judge.each(lambda number: judge.verdict(
            number, suites.of(garden.numbered[number].file)), todo), 1):
        results.put(garden.numbered[number], *verdict)
        survived += verdict[0] == "survived"
        judge.what = f"{done} of {len(todo)} mutants, {survived} survived"


STATES = ["found", "explained", "survived", "not reached", "does not compile"]


def report(chosen, results, entries):
    """Prints the score; the status to end with."""
    scores = {title: collections.defaultdict(collections.Counter)
              for title in ("by kind", "by file", "")}
    lines = collections.defaultdict(list)
    for m in chosen:
        state = results.state(m)
        why = next((entry.reason for entry in entries if answers(entry, m)), None) \
            if state in ("survived", "not reached") else None
        state = "explained" if why else state
        lines[state].append(f"  {describe(m)}" + (f"\n    {why}" if why else ""))
        for title, name in (("by kind", m.rule), ("", "all"), (
                "by file", m.file.split("/")[0] if m.file[0].isdigit() else m.file)):
            scores[title][name][state] += 1
    for title, of in scores.items():
        print(line_of(title, ["planted", *STATES], "score") if title else "", end="")
        for name, states in sorted(of.items()):
            counted = states["found"] + states["survived"] + states["not reached"]
            print(line_of(name, [sum(states.values()), *(states[one] for one in STATES)],
                          f"{100 * states['found'] / counted:.1f}%" if counted else "–"), end="")
        print()
    for state, title in (("explained", "Explained:"), ("not reached", "That no test reaches:"),
                         ("survived", "Survived:")):
        if lines[state]:
            print("\n".join([title, *lines[state], ""]))
    holes = len(lines["survived"]) + len(lines["not reached"])
    if not holes:
        return GOOD
    print(f"{holes} to explain: a test that fails with it, or an entry in "
          "scripts/ladder/mutate/known.json.")
    return WRONG_RESULT


def line_of(name, cells, score):
    return f"{name:30}" + "".join(f"{cell:>18}" for cell in cells) + f"{score:>8}\n"


def main(arguments, root=ROOT, known=KNOWN):
    options = parse(arguments)
    suites = Suites(root)
    every = [m for file in suites.files() for m in mutants(file, suites.read(file))]
    here = [m for m in every if options.only in m.file and m.rule in options.kind]
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
    path = os.path.join(root, "build/mutate/results.jsonl")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    results = Results(path, suites, {m.file for m in every})
    progress = Progress()
    try:
        run_all(suites, chosen, results, progress, options.jobs)
    finally:
        progress.clear()
    return report(chosen, results, load_known(known))


if __name__ == "__main__":
    sys.exit(run_command("scripts/mutate", lambda: main(sys.argv[1:]),
                         "interrupted; what was tried is kept, and the same command goes on."))
