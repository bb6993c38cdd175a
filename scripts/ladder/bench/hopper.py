"""What scripts/figures clock and profile have in common: kernels at one workload, on a Hopper GPU,
the papers' 16k tokens in all and hidden size 2048, at N = 4k, bf16, without the mask."""

import os

from ladder.bench.grid import UNCHECKED, Config, paper_point
from ladder.console import GOOD, Parser, Progress
from ladder.files import RESULTS, ROOT, item_a_line, write_whole
from ladder.programs import run_quietly

SEQLEN = 4096


def point(head_dim):
    return paper_point(SEQLEN, head_dim, False, "bf16")


def options_of(variant, head_dim):
    """Of a program, to run a step."""
    return [*Config("", variant, point(head_dim), UNCHECKED).words("gpu")[1:], "--json"]


def run(words, what):
    """Runs a program to its end: status, stdout, last lines of stderr."""
    progress = Progress()
    try:
        return run_quietly(words, what, progress)
    finally:
        progress.clear()


def parse(name, doc, file, arguments):
    parser = Parser(f"scripts/figures {name}", doc)
    parser.add_argument("--out", metavar="FILE", type=os.path.abspath,
                        default=os.path.join(RESULTS, file),
                        help=f"(default scripts/results/{file})")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs (default build/bin; scripts/run builds them)")
    return parser.parse_args(arguments)


def write(options, about, **data):
    # Not "machine": that is what makes a file one of scripts/figures measure's.
    write_whole(options.out, item_a_line({"measured_on": about, **data}))
    print(f"Wrote {os.path.relpath(options.out)}.")
    return GOOD
