#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention, and on request our programs beside it.

Each backend (math, efficient, flash, cudnn) runs on the FlashAttention-2 paper's workload: 16k
tokens in all and hidden size 2048, so that batch = 16k / seqlen and heads = 2048 / head-dim. It
prints a table, or with --json the objects that our programs print, one a line, with rung "pytorch"
and the backend as variant.

With --ours build/bin each point of the grid measures the peers, then the last of our rungs that has
no backward pass (forward) or that has one (backward), then all of them again, and takes the median
of each. So the ratios compare what ran within seconds of each other. Their geometric mean and their
worst point follow the table (on stderr with --json). Our results are not checked here: the programs
do that when run alone.

FLOPs are counted as in the papers: forward 4·N²·d·heads·batch, halved if causal; backward 2.5×.

Examples:
  scripts/peers.py --backend flash,cudnn --seqlen 512,4k
  scripts/peers.py --backend flash --direction fwd --ours build/bin --variant swap,mma

Exit status: 0 good (a backend that cannot run is reported and left out), 1 nothing could be
measured, or one of our programs failed; 2 bad usage; 3 no PyTorch or no GPU.
"""

import argparse
import contextlib
import json
import sys

from ladder.console import GOOD, WRONG_RESULT, Parser, Progress, run_command
from ladder.ratios import rates, summary
from ladder.sdpa import BACKENDS, Gpu, Peer, Point, ceilings, import_torch, reason, version
from ladder.turns import find_ours, measure_point
from ladder.workload import length, lengths, paper_batch, paper_heads, positive

ROUNDS_WITH_OURS = 2


def backends(text):
    words = text.split(",")
    for word in words:
        if word not in BACKENDS:
            raise argparse.ArgumentTypeError(f"{word!r}: there are {', '.join(BACKENDS)}")
    return words


def parse(arguments=None):
    description, epilog = __doc__.split("\n\n", 1)
    parser = Parser(prog="scripts/peers.py", description=description, epilog=epilog)
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
    parser.add_argument("--ours", metavar="BIN_DIR",
                        help="also our programs in this folder, in turn with the peers")
    parser.add_argument("--variant", type=lambda text: text.split(","), metavar="NAME,...",
                        help="of our programs (default: each one's last step that every GPU runs)")
    parser.add_argument("--json", action="store_true",
                        help="one object a line on stdout, all else on stderr")
    parser.add_argument("--serve", action="store_true",
                        help="for scripts/bench.py: points come on stdin as JSON objects, one a "
                             "line; each is answered by its records and a line {\"done\", "
                             "\"left_out\"}")
    return parser.parse_args(arguments)


def grid(options):
    directions = ["fwd", "bwd"] if options.direction == "both" else [options.direction]
    return [Point(direction, d, causal, n, options.batch or paper_batch(n),
                  options.heads or paper_heads(d))
            for direction in directions for d in options.head_dim for causal in options.causal
            for n in options.seqlen]


def serve(options):
    """Answers each line of stdin: {"ceilings": true} or a point with its backends."""
    torch = import_torch()
    gpu, progress = Gpu(torch), Progress()
    progress.live = False  # whoever asks shows the progress

    def say(answer):
        print(json.dumps(answer, ensure_ascii=False), flush=True)

    say({"ready": version(torch)})
    for line in sys.stdin:
        question = json.loads(line)
        if "ceilings" in question:
            try:
                say({"ceilings": ceilings(gpu, options)})
            except Exception as error:  # whatever PyTorch may throw: the peers go on
                print(f"no ceilings: {reason(torch, error, [])}", file=sys.stderr)
                say({"ceilings": None})
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()
            continue
        point = Point(*(question[name] for name in Point._fields))
        contenders = [Peer(name, gpu, options, progress) for name in question["backends"]]
        records, missing = measure_point(point, contenders, 1, point.text())
        for record in records.values():
            say(record)
        say({"done": point.text(), "left_out": {name: str(why) for name, why in missing.items()}})
    return GOOD


def run(options):
    if options.serve:
        return serve(options)
    points = grid(options)
    directions = list(dict.fromkeys(point.direction for point in points))
    progress = Progress()
    ours = find_ours(options, directions, progress) if options.ours else {}
    torch = import_torch()
    gpu = Gpu(torch)
    peers = [Peer(name, gpu, options, progress) for name in dict.fromkeys(options.backend)]
    print(f"{torch.cuda.get_device_name(0)}, {version(torch)}", file=sys.stderr)

    results, failed = {}, False
    for number, point in enumerate(points, 1):
        contenders = peers + ours.get(point.direction, [])
        records, missing = measure_point(point, contenders, ROUNDS_WITH_OURS if ours else 1,
                                         f"[{number}/{len(points)}] {point.text()}")
        progress.clear()
        results[point] = records
        for label, error in missing.items():
            failed = failed or error.failed
            print(f"{point.text()}: {label} {'failed' if error.failed else 'left out'}: {error}",
                  file=sys.stderr)
        if options.json:
            for record in records.values():
                print(json.dumps(record, ensure_ascii=False), flush=True)

    measured = any(results.values())
    parts = summary(results, ours, peers)
    if measured and not options.json:
        labels = list(dict.fromkeys(c.label for c in [*peers, *sum(ours.values(), [])]))
        parts.insert(0, [f"TFLOP/s: median, L2 flushed; {options.dtype}; "
                         f"{torch.cuda.get_device_name(0)}; {version(torch)}", "",
                         *rates(results, labels)])
    if parts:
        print("\n\n".join("\n".join(part) for part in parts),
              file=sys.stderr if options.json else sys.stdout)
    if not measured:
        print("scripts/peers.py: nothing could be measured", file=sys.stderr)
    return GOOD if measured and not failed else WRONG_RESULT


if __name__ == "__main__":
    sys.exit(run_command("scripts/peers.py", lambda: run(parse())))
