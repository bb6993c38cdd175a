"""Measures when what happens in a step of 05's producer, overlap and ping_pong, on a Hopper GPU.

Marks are planted into copies of the three kernels, in build/clock: the first thread of each
consumer reads the SM's clock where a product begins, is issued and is done, where the softmax is
done and where P is ready, in 8 of the 32 steps of a block. They come out in the place of LSE.

A mark may be more than a clock: the compiler moves no arithmetic past it. So the rates with and
without marks stand beside each other.

Workload: the papers', 16k tokens in all and hidden size 2048, at N = 4k, bf16, without the mask,
heads of 64 and 128. For each kernel and head size:
  - the program without marks and that with them in turn, which says what the marks cost;
  - marks of one launch on a card that has been running the same kernel for a while.

The file has, of all blocks, the medians of a step's cycles and of its parts (a product: from the
first instruction of its issue until it has been waited for; O_wait: of that the wait alone; rest: O
rescaled and P made an operand; wait: for K, and for the turn), the shares of time in which a
consumer, or two, have a product under way, and a softmax; the SM's clock; and the marks of the
block whose step is the median one.

Examples:
  scripts/figures clock
  scripts/figures clock --time 100 --rounds 1 --out build/clock.json

Exit status: 0 good; 1 a program failed, or a kernel is no longer what is marked; 2 bad usage; 3 no
Hopper GPU.
"""

import os
import sys

from ladder.bench.clock import measure
from ladder.console import Parser, run_command
from ladder.files import RESULTS, ROOT
from ladder.bench.workload import length, positive


def parse(arguments=None):
    parser = Parser("scripts/figures clock", __doc__)
    parser.add_argument("--out", metavar="FILE", type=os.path.abspath,
                        default=os.path.join(RESULTS, "clock.json"),
                        help="(default scripts/results/clock.json)")
    parser.add_argument("--time", type=positive, default=400, metavar="MS",
                        help="GPU time per measurement (default 400; about as much warms up)")
    parser.add_argument("--rounds", type=length, default=2, metavar="N",
                        help="how often the two programs take turns (default 2)")
    parser.add_argument("--warm", type=positive, default=2000, metavar="MS",
                        help="GPU time before the launch whose marks are kept (default 2000)")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs without marks (default build/bin; scripts/run builds "
                        "them)")
    parser.add_argument("--build-dir", type=os.path.abspath,
                        default=os.path.join(ROOT, "build/clock"), metavar="DIR",
                        help="where those with marks are built (default build/clock)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures clock", lambda: measure(parse())))
