"""Times PyTorch's scaled_dot_product_attention.

Each backend (math, efficient, flash, cudnn) runs on the FlashAttention-2 paper's workload: 16k
tokens in all and hidden size 2048, so that batch = 16k / seqlen and heads = 2048 / head-dim. It
prints a table, or with --json the objects that our programs print, one a line, with rung "pytorch"
and the backend as variant.

scripts/figures measure takes them in turn with our programs, seconds apart, and keeps both in one
file.

FLOPs are counted as in the papers: forward 4·N²·d·heads·batch, halved if causal; backward 2.5×.

Examples:
  scripts/figures peers --backend flash,cudnn --seqlen 512,4k
  scripts/figures measure --seqlen 4k --rung 05 --peers flash --out build/mine.json

Exit status: 0 good (a backend that cannot run is reported and left out), 1 nothing could be
measured; 2 bad usage; 3 no PyTorch or no GPU.
"""

import argparse
import json
import sys

from ladder.console import GOOD, WRONG_RESULT, Parser, Progress, run_command
from ladder.bench.sdpa import BACKENDS, Gpu, import_torch, measure, version
from ladder.text import NO_VALUE, rate_text
from ladder.bench.workload import length, lengths, paper_point, positive


def backends(text):
    words = text.split(",")
    for word in words:
        if word not in BACKENDS:
            raise argparse.ArgumentTypeError(f"{word!r}: there are {', '.join(BACKENDS)}")
    return words


def parse(arguments=None):
    parser = Parser("scripts/figures peers", __doc__)
    parser.add_argument("--seqlen", type=lengths, default=lengths("512,1k,2k,4k,8k,16k"),
                        metavar="N,...", help="(default 512,1k,2k,4k,8k,16k)")
    parser.add_argument("--head-dim", type=lengths, default=[64, 128], metavar="D,...",
                        help="(default 64,128)")
    mask = parser.add_mutually_exclusive_group()
    mask.add_argument("--causal", dest="causal", action="store_const", const=[True],
                      default=[False, True], help="with the causal mask alone (default: without, "
                                                  "then with)")
    mask.add_argument("--no-causal", dest="causal", action="store_const", const=[False],
                      help="without it alone")
    parser.add_argument("--backend", type=backends, default=list(BACKENDS), metavar="NAME,...",
                        help=f"(default {','.join(BACKENDS)})")
    parser.add_argument("--direction", choices=["fwd", "bwd", "both"], default="both",
                        help="(default both)")
    parser.add_argument("--dtype", choices=["fp16", "bf16"], default="bf16", help="(default bf16)")
    parser.add_argument("--batch", type=length, help="(default: 16k / seqlen)")
    parser.add_argument("--heads", type=length, help="(default: 2048 / head-dim)")
    parser.add_argument("--seed", type=int, default=0, help="of the input (default 0)")
    parser.add_argument("--time", type=positive, default=200, metavar="MS",
                        help="time per measurement (default 200); as much warms up before")
    parser.add_argument("--json", action="store_true",
                        help="one object a line on stdout, all else on stderr")
    return parser.parse_args(arguments)


def grid(options):
    directions = ["fwd", "bwd"] if options.direction == "both" else [options.direction]
    return [(direction, paper_point(n, d, causal, options.dtype, options.batch, options.heads))
            for direction in directions for d in options.head_dim for causal in options.causal
            for n in options.seqlen]


def run(options):
    points = grid(options)
    progress = Progress()
    torch = import_torch()
    gpu = Gpu(torch)
    names = list(dict.fromkeys(options.backend))
    print(f"{torch.cuda.get_device_name(0)}, {version(torch)}", file=sys.stderr)

    results = {}
    for number, (direction, point) in enumerate(points, 1):
        what = f"{direction}, {point.text()}"
        records, missing = measure(gpu, point, direction, names, options, progress,
                                   f"[{number}/{len(points)}] {what}")
        results[direction, point] = records
        progress.clear()
        for name, why in missing.items():
            print(f"{what}: {name} left out: {why}", file=sys.stderr)
        if options.json:
            for record in records.values():
                print(json.dumps(record, ensure_ascii=False), flush=True)

    if not any(results.values()):
        print("scripts/figures peers: nothing could be measured", file=sys.stderr)
        return WRONG_RESULT
    if not options.json:
        print(f"TFLOP/s: median, L2 flushed; {options.dtype}; {torch.cuda.get_device_name(0)}; "
              f"{version(torch)}\n")
        print("\n".join(table(results, names)))
    return GOOD


def table(results, names):
    """TFLOP/s of each at every point."""
    rows = [["direction", "head-dim", "causal", "seqlen", "batch", "heads", *names]]
    for (direction, point), records in results.items():
        rows.append([direction, str(point.head_dim), "yes" if point.causal else "no",
                     str(point.seqlen), str(point.batch), str(point.heads),
                     *(rate_text(records[name]["tflops"]) if name in records else NO_VALUE
                       for name in names)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths)) for row in rows]


if __name__ == "__main__":
    sys.exit(run_command("scripts/figures peers", lambda: run(parse())))
