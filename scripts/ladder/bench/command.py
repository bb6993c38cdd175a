"""Measures the ladder over a grid of workloads and writes one JSON file for scripts/figures draw.

Every program in build/bin runs with each of its steps; where PyTorch is there, its attention is
measured at each point too, in turn with ours. What the file has already is kept, so a run that was
interrupted goes on where it stopped, and a second grid adds to the first. What cannot fit, or would
take too long, is skipped, and the file says why.

Grids (--grid, several with commas):
  quick  16k tokens in all, hidden size 2048, N = 2k, heads of 64 (a minute)
  paper  the same workload as in FlashAttention-2's figures 4 to 6: N = 512 … 16k, heads of 64 and
         128, causal or not; besides, times against the tile size, those of numbers of 8 bits with
         heads of 256, and each step's error against float64 (a quarter of an hour on an H200)
  long   batch 1, 16 heads of 128, N = 4k … 64k
  decode one query of each head against caches of 8 MB to 2 GB: the steps for decoding alone, and
         in each peer's record the rate of a device copy of that run (a minute)
Or give axes (--seqlen, --head-dim, --batch, --heads, --causal): then only those.

--sim counts instead of timing: one head, N = 128 … 2k, all steps, all tile sizes, and the traces
that figures show. No GPU is needed, and the same programs give the same file, but for the last
digits of errors where a step adds in any order.

Each GPU has a file of its own, named after it. Its keys: machine, ceilings (device copy and cuBLAS
matmul, through PyTorch, else null), steps (what the programs' --list says), commands and records
(side by side; a record is what the program printed, unchanged), peers (PyTorch's backends in the
same keys; in beside the steps that were measured right after it), skipped.

In the grids times are measured with --check off: checking N = 16k against float64 on the host takes
longer than all of the measurement. Each step's result is checked once, at N = 1k, in full.

Examples:
  scripts/figures measure --grid paper,long
  scripts/figures measure --rung 05,06 --seqlen 2k,4k --head-dim 128 --causal
  scripts/figures measure --sim

Exit status: 0 good (what was skipped included); 1 a program failed or gave a wrong result; 2 bad
usage; 3 no GPU.
"""

import os
import sys

from ladder.console import Parser, run_command
from ladder.files import ROOT
from ladder.bench.grid import GRIDS
from ladder.bench.measure import bench
from ladder.bench.sdpa import BACKENDS
from ladder.bench.workload import length, lengths, positive, words


def parse(arguments=None):
    parser = Parser("scripts/figures measure", __doc__)
    parser.add_argument("--grid", type=words, metavar="NAME,...",
                        help="quick, paper, long, decode (default quick, unless axes are given)")
    parser.add_argument("--sim", action="store_true", help="count on the sim (see above)")
    parser.add_argument("--out", metavar="FILE",
                        help="(default scripts/results/GPU.json, such as h100.json; sim.json)")
    parser.add_argument("--seqlen", type=lengths, metavar="N,...", help="axis: lengths")
    parser.add_argument("--head-dim", type=lengths, metavar="D,...", help="axis: head sizes")
    parser.add_argument("--batch", type=length, help="axis: (default 16k / seqlen)")
    parser.add_argument("--heads", type=length, help="axis: (default 2048 / head-dim)")
    parser.add_argument("--causal", choices=["yes", "no", "both"], nargs="?", const="yes",
                        help="axis: with the causal mask (default both)")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default="bf16", help="(default bf16)")
    parser.add_argument("--rung", type=words, metavar="NN,...",
                        help="only these, such as 04,05_flash_v2")
    parser.add_argument("--variant", type=words, metavar="NAME,...", help="only these steps")
    parser.add_argument("--time", type=positive, default=40, metavar="MS",
                        help="GPU time per measurement (default 40; about as much warms up)")
    parser.add_argument("--minutes", type=positive, metavar="M",
                        help="begin nothing new after this long; run again to go on")
    parser.add_argument("--peers", type=words, metavar="NAME,...", default=list(BACKENDS),
                        help=f"PyTorch's backends (default {','.join(BACKENDS)}; none: do without)")
    parser.add_argument("--no-dram", action="store_true",
                        help="no DRAM counters (default: where a figure or a table shows them)")
    parser.add_argument("--again", action="store_true",
                        help="forget what the file has of these, and measure it again; "
                        "interrupted, it goes on without --again; the ceilings too, unless --rung "
                        "or --variant chooses steps")
    parser.add_argument("--commit", metavar="HASH",
                        help="of this tree, where it is no git checkout")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build/bin"), metavar="DIR",
                        help="the programs (default build/bin; scripts/run builds them)")
    parser.set_defaults(seed=0)  # of the peers' input
    options = parser.parse_args(arguments)
    options.axes = any(value is not None for value in (
        options.seqlen, options.head_dim, options.batch, options.heads, options.causal))
    if options.axes and options.grid:
        parser.error("--grid and axes: give one of them")
    for name in options.grid or []:
        if name not in GRIDS:
            parser.error(f"--grid {name}: there are {', '.join(GRIDS)}")
    if options.sim and (options.grid or options.axes):
        parser.error("--sim has a grid of its own")
    for name in options.peers:
        if name not in (*BACKENDS, "none"):
            parser.error(f"--peers {name}: there are {', '.join(BACKENDS)} and none")
    return options


if __name__ == "__main__":
    # bench() says itself what an interrupted run has left.
    sys.exit(run_command("scripts/figures measure", lambda: bench(parse()), interrupted=None))
