#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention, and on request our programs beside it.

Each backend (math, efficient, flash, cudnn) runs on the FlashAttention-2 paper's workload: 16k
tokens in all and hidden size 2048, so that batch = 16k / seqlen and heads = 2048 / head-dim. It
prints a table, or with --json the objects that our programs print, one a line, with rung "pytorch"
and the backend as variant.

With --ours build/bin each point of the grid measures the peers, then 05_flash_v2 (forward) or
06_backward (backward), then all of them again, and takes the median of each. So the ratios compare
what ran within seconds of each other. Their geometric mean and their worst point follow the table
(on stderr with --json). Our results are not checked here: the programs do that when run alone.

FLOPs are counted as in the papers: forward 4·N²·d·heads·batch, halved if causal; backward 2.5×.

Examples:
  scripts/peers.py --backend flash,cudnn --seqlen 512,4k
  scripts/peers.py --backend flash --direction fwd --ours build/bin --variant swap,mma

Exit status: 0 good (a backend that cannot run is reported and left out), 1 nothing could be
measured, or one of our programs failed; 2 bad usage; 3 no PyTorch or no GPU.
"""

import argparse
import collections
import contextlib
import functools
import json
import math
import os
import signal
import statistics
import sys
import time
import warnings

from ladder import (BAD_USAGE, GOOD, NO_DEVICE, NO_VALUE, WRONG_RESULT, Progress, Stop, json_lines,
                    rate_text, run_quietly)

TOKENS, HIDDEN = 16 * 1024, 2048  # the paper's
BACKENDS = {"math": "MATH", "efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION",
            "cudnn": "CUDNN_ATTENTION"}
PROGRAMS = {"fwd": "05_flash_v2", "bwd": "06_backward"}
ROUNDS_WITH_OURS = 2

# What a program says and a peer cannot.
NOT_KNOWN = ["model_read_bytes", "model_write_bytes", "requested_read_bytes",
             "requested_write_bytes", "distinct_read_bytes", "distinct_write_bytes",
             "sram_read_bytes", "sram_write_bytes", "matmul_flops", "exp_count", "other_flops",
             "barriers", "bank_conflicts", "dram_read_bytes", "dram_write_bytes", "l2_bytes",
             "l1_bytes", "workspace_bytes", "kernels", "errors", "pass"]

Timing = collections.namedtuple("Timing", "median least most samples")  # in ms


class Point(collections.namedtuple("Point", "direction head_dim causal seqlen batch heads")):
    """One workload."""

    def text(self):
        return (f"{self.direction}, d {self.head_dim}, {'causal, ' if self.causal else ''}"
                f"N {self.seqlen}")

    def flops(self):
        forward = 4 * self.seqlen**2 * self.head_dim * self.heads * self.batch
        return forward * (0.5 if self.causal else 1) * (2.5 if self.direction == "bwd" else 1)


class Unavailable(Exception):
    """Cannot be measured, and why; `failed` if that is a fault of our own."""

    def __init__(self, reason, failed=False):
        super().__init__(reason)
        self.failed = failed


# ---- options ----


def lengths(text):
    """512,4k → [512, 4096]."""
    found = []
    for word in text.split(","):
        thousands = word[-1:] in ("k", "K")
        number = word[:-1] if thousands else word
        if not number.isdecimal() or int(number) == 0:
            raise argparse.ArgumentTypeError(f"{word!r} is no number above 0, nor one like 16k")
        found.append(int(number) * (1024 if thousands else 1))
    return found


def length(text):
    if "," in text:
        raise argparse.ArgumentTypeError("one number, please")
    return lengths(text)[0]


def backends(text):
    words = text.split(",")
    for word in words:
        if word not in BACKENDS:
            raise argparse.ArgumentTypeError(f"{word!r}: there are {', '.join(BACKENDS)}")
    return words


def positive(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def parse(arguments=None):
    description, epilog = __doc__.split("\n\n", 1)
    parser = argparse.ArgumentParser(prog="scripts/peers.py", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog=epilog)
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
    parser.add_argument("--variant", type=lambda text: text.split(","), default=["mma"],
                        metavar="NAME,...", help="of our programs (default mma)")
    parser.add_argument("--json", action="store_true",
                        help="one object a line on stdout, all else on stderr")
    parser.add_argument("--serve", action="store_true",
                        help="for scripts/bench.py: points come on stdin as JSON objects, one a "
                             "line; each is answered by its records and a line {\"done\", "
                             "\"left_out\"}")
    return parser.parse_args(arguments)


def grid(options):
    directions = ["fwd", "bwd"] if options.direction == "both" else [options.direction]
    return [Point(direction, d, causal, n, options.batch or max(1, TOKENS // n),
                  options.heads or max(1, HIDDEN // d))
            for direction in directions for d in options.head_dim for causal in options.causal
            for n in options.seqlen]


# ---- timing, as common/machine/gpu times our kernels ----


def sample(budget_ms, batch, clock_ms):
    """Times of repeated runs in ms, by the rule of common/machine/gpu/sampling.h: ours and theirs
    must be equally warm. batch() makes some runs and returns their times.

    It warms up for the budget, and on while batches get faster, at most twice as long. Then it
    samples for the budget, and on until three batches in turn have moved the median of all samples
    by 0.2% at most, at most three times as long."""
    start = clock_ms()
    last = statistics.median(batch())
    while clock_ms() - start < 2 * budget_ms:
        now = statistics.median(batch())
        if now > 0.99 * last and clock_ms() - start >= budget_ms:
            break
        last = now
    samples, before, stable = [], 0, 0
    start = clock_ms()
    while not samples or clock_ms() - start < budget_ms or (
            stable < 3 and clock_ms() - start < 3 * budget_ms):
        samples += batch()
        now = statistics.median(samples)
        stable = stable + 1 if abs(now - before) <= 0.002 * now else 0
        before = now
    return samples


class Gpu:
    def __init__(self, torch):
        self.torch = torch
        properties = torch.cuda.get_device_properties(0)
        l2 = getattr(properties, "L2_cache_size", 64 << 20)
        self.flush = torch.empty(2 * l2, dtype=torch.uint8, device="cuda")

    def time(self, run, budget_ms):
        """Batches of flush, event, run, event, each queued without a wait of the host in between."""
        once = self.batch(run, 2)[0][-1]  # how many runs make a batch
        size = min(max(int(20 / max(once, 1e-3)), 3), 50)
        _, queueing_ms, span_ms = self.batch(run, size)
        # Python may be slower than a short kernel. Then the GPU waits before each batch until it
        # is queued, so that no gap between launches is measured.
        head_start_ms = queueing_ms if queueing_ms > 0.5 * span_ms else 0
        samples = sample(budget_ms, lambda: self.batch(run, size, head_start_ms)[0],
                         lambda: 1000 * time.monotonic())
        return Timing(statistics.median(samples), min(samples), max(samples), len(samples))

    def batch(self, run, size, head_start_ms=0):
        """Each run's time; the host's time to queue them all; the GPU's from first to last."""
        cuda = self.torch.cuda
        events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(size)]
        if head_start_ms:
            cuda._sleep(int(head_start_ms * 2e6))  # in clock cycles, of which a ms has 2e6 at most
        started = time.perf_counter()
        for begin, end in events:
            self.flush.zero_()
            begin.record()
            run()
            end.record()
        queueing_ms = 1000 * (time.perf_counter() - started)
        cuda.synchronize()
        return ([begin.elapsed_time(end) for begin, end in events], queueing_ms,
                events[0][0].elapsed_time(events[-1][1]))


# ---- what is measured ----


class Peer:
    """A backend of scaled_dot_product_attention."""

    def __init__(self, name, gpu, options, progress):
        self.name = self.label = name
        self.gpu = gpu
        self.options = options
        self.progress = progress

    def measure(self, point, what):
        self.progress.at(what)
        problem = None
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                self.require_memory(point)
                timing = self.time(point)
            except Exception as error:  # whatever a backend may throw: the others go on
                problem = reason(self.gpu.torch, error, warned)
        with contextlib.suppress(RuntimeError):  # of a GPU that the backend has brought down
            self.gpu.torch.cuda.empty_cache()  # our programs need memory too
        # Raised only here, because an exception keeps the frames of the one that it follows, and
        # so would keep that backend's tensors.
        if problem:
            raise Unavailable(problem)
        return self.record(point, timing)

    def time(self, point):
        torch = self.gpu.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        torch.manual_seed(self.options.seed)
        backward = point.direction == "bwd"
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[self.options.dtype]
        make = functools.partial(torch.randn, point.batch, point.heads, point.seqlen,
                                 point.head_dim, device="cuda", dtype=dtype)
        q, k, v = (make(requires_grad=backward) for _ in range(3))
        attention = functools.partial(scaled_dot_product_attention, q, k, v,
                                      is_causal=point.causal)
        with sdpa_kernel(getattr(SDPBackend, BACKENDS[self.name])):
            if not backward:
                with torch.no_grad():
                    return self.gpu.time(attention, self.options.time)
            o, do = attention(), make()
            return self.gpu.time(
                lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True),
                self.options.time)

    def require_memory(self, point):
        if self.name != "math":
            return
        # In fp32, also for bf16: S and P, a mask, and where rows see no key a copy; backward, the
        # gradients of both. An estimate, so that most runs that cannot fit are not begun.
        each = 24 if point.direction == "bwd" else 16
        need = each * point.batch * point.heads * point.seqlen**2
        free, _ = self.gpu.torch.cuda.mem_get_info()
        if need > free:
            raise Unavailable(f"needs about {need / 1e9:.0f} GB for S and P, and {free / 1e9:.0f} "
                              "are free")

    def record(self, point, timing):
        torch, options = self.gpu.torch, self.options
        record = {
            "rung": "pytorch", "variant": self.name, "direction": point.direction,
            "device": "gpu", "device_name": torch.cuda.get_device_name(0), "dtype": options.dtype,
            "input": "normal", "seed": options.seed, "batch": point.batch, "heads": point.heads,
            "kv_heads": point.heads, "seqlen": point.seqlen, "seqlen_kv": point.seqlen,
            "head_dim": point.head_dim, "causal": point.causal,
            "scale": 1 / math.sqrt(point.head_dim), "deterministic": False, "block_q": None,
            "block_kv": None, "warps": None, "stages": None, "smem_bytes": None,
            "time_ms": timing.median, "time_ms_min": timing.least, "time_ms_max": timing.most,
            "samples": timing.samples, "tflops": point.flops() / timing.median * 1e-9}
        return {**record, **dict.fromkeys(NOT_KNOWN), "version": version(torch)}


def reason(torch, error, warned):
    """A line that says why a backend did not run."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "the GPU's memory is used up"
    # PyTorch raises that there is no kernel and warns why; it also warns that the backends that
    # were not asked for are disabled.
    texts = [str(w.message).partition(" (Triggered internally")[0].strip() for w in warned]
    why = [text for text in texts if "not used because" not in text and "disabled" not in text]
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return "; ".join([first, *why[:2]])


def version(torch):
    parts = [f"PyTorch {torch.__version__}", f"CUDA {torch.version.cuda}"]
    cudnn = torch.backends.cudnn.version()
    if cudnn:  # 91900 is 9.19.0
        parts.append(f"cuDNN {cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}")
    return ", ".join(parts)


class Ours:
    """A variant of one of our programs."""

    def __init__(self, path, variant, options, progress):
        self.path = path
        self.rung = os.path.basename(path)
        self.variant = variant
        self.label = f"{self.rung[:2]} {variant}"
        self.options = options
        self.progress = progress

    def measure(self, point, what):
        options = self.options
        command = [self.path, "--device", "gpu", "--variant", self.variant, "--batch",
                   point.batch, "--heads", point.heads, "--seqlen", point.seqlen, "--head-dim",
                   point.head_dim, "--dtype", options.dtype, "--seed", options.seed, "--time",
                   f"{options.time:g}", "--check", "off", "--json"]
        command += ["--causal"] if point.causal else []
        status, out, message = run_quietly(list(map(str, command)), what, self.progress)
        if status != GOOD:
            ended = signal.Signals(-status).name if status < 0 else f"status {status}"
            message = message.removeprefix(f"{self.rung}: ") or "it gave no reason"
            raise Unavailable(f"{ended}: {message}", failed=status != NO_DEVICE)
        try:
            records = json_lines(out, self.rung)
        except Stop as stop:
            raise Unavailable(str(stop), failed=True) from None
        for record in records:
            if record["direction"] == point.direction:  # 06 reports its forward pass first
                return record
        raise Unavailable("it reported nothing", failed=True)


def find_ours(options, directions, progress):
    """Direction → what to measure there; the variants given that the direction's program has."""
    found, known = {}, {}
    for direction in directions:
        path = os.path.join(options.ours, PROGRAMS[direction])
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise Stop(f"{options.ours} has no {PROGRAMS[direction]}: scripts/run builds the "
                       f"programs into build/bin; --direction chooses one", BAD_USAGE)
        status, out, message = run_quietly([path, "--list"], PROGRAMS[direction])
        if status:
            raise Stop(f"{path} --list ended with status {status}: {message}", WRONG_RESULT)
        steps = [step["variant"] for step in json_lines(out, path) if step["device"] == "gpu"]
        if not steps:
            raise Stop(f"{path} was built without CUDA", NO_DEVICE)
        known[PROGRAMS[direction]] = steps
        found[direction] = [Ours(path, variant, options, progress) for variant in options.variant
                            if variant in steps]
    for variant in options.variant:
        if not any(variant in steps for steps in known.values()):
            there = "; ".join(f"{rung}: {', '.join(steps)}" for rung, steps in known.items())
            raise Stop(f"--variant {variant}: there are {there}", BAD_USAGE)
    return found


def combine(records, point):
    """One record for several runs of the same: the median of their medians."""
    time_ms = statistics.median(record["time_ms"] for record in records)
    return {**records[0], "time_ms": time_ms,
            "time_ms_min": min(record["time_ms_min"] for record in records),
            "time_ms_max": max(record["time_ms_max"] for record in records),
            "samples": sum(record["samples"] for record in records),
            "tflops": point.flops() / time_ms * 1e-9}


def measure_point(point, contenders, rounds, what):
    """({label: record}, {label: Unavailable}). All take turns, so that each meets the GPU about
    as warm as the others do."""
    runs, missing = {}, {}
    for _ in range(rounds):
        for contender in contenders:
            label = contender.label
            if label in missing:
                continue
            try:
                record = contender.measure(point, f"{what}: {label}")
            except Unavailable as error:
                missing[label] = error
                continue
            runs.setdefault(label, []).append(record)
    return {label: combine(records, point) for label, records in runs.items()}, missing


# ---- at another script's service ----


def ceilings(gpu, options):
    """What the roofs of a roofline are: cuBLAS on a large matrix product, and a device copy."""
    torch = gpu.torch
    size, copied = 8192, 1 << 30
    a, b, c = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    product = gpu.time(functools.partial(torch.mm, a, b, out=c), options.time)
    source, target = (torch.empty(copied, device="cuda", dtype=torch.uint8) for _ in range(2))
    copy = gpu.time(functools.partial(target.copy_, source), options.time)
    return {"matmul_tflops": 2 * size**3 / product.median * 1e-9,
            "matmul": f"bf16, {size}×{size}×{size}, cuBLAS, {version(torch)}",
            "copy_bytes_per_s": 2 * copied / copy.median * 1e3,
            "copy": f"{copied >> 20} MiB on the device, bytes read and written"}


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


# ---- tables ----


def table(header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return ["  ".join(text.rjust(width) for text, width in zip(row, widths))
            for row in [header, *rows]]


POINT_HEADER = ["direction", "head-dim", "causal", "seqlen", "batch", "heads"]


def point_cells(point):
    return [point.direction, str(point.head_dim), "yes" if point.causal else "no",
            str(point.seqlen), str(point.batch), str(point.heads)]


def rates(results, labels):
    """TFLOP/s of each at every point."""
    rows = [point_cells(point) + [rate_text(records[label]["tflops"]) if label in records
                                  else NO_VALUE for label in labels]
            for point, records in results.items()]
    return table([*POINT_HEADER, *labels], rows)


def ratios(results, ours, peers):
    """The peer's time over ours, so that above 1 we are faster: at every point that ours ran,
    then for each peer the geometric mean and the worst point."""
    by_peer = {peer: {point: records[peer]["time_ms"] / records[ours]["time_ms"]
                      for point, records in results.items() if ours in records and peer in records}
               for peer in peers}
    points = [point for point in results if any(point in of for of in by_peer.values())]
    if not points:
        return []
    rows = [point_cells(point) + [f"{of[point]:.3f}" if point in of else NO_VALUE
                                  for of in by_peer.values()] for point in points]
    lines = [f"{ours} / peer: ratio of TFLOP/s, above 1 where {ours} is faster", "",
             *table([*POINT_HEADER, *peers], rows), ""]
    for peer, of in by_peer.items():
        if of:
            mean = math.exp(statistics.fmean(map(math.log, of.values())))
            worst = min(of, key=of.get)
            lines.append(f"{ours} / {peer}: geometric mean {mean:.3f} over {len(of)} points, "
                         f"worst {of[worst]:.3f} ({worst.text()})")
    return lines


def summary(results, ours, peers):
    """Of the ratios: a table for each of ours and direction."""
    parts = []
    for direction, variants in ours.items():
        here = {point: records for point, records in results.items()
                if point.direction == direction}
        parts += [ratios(here, one.label, [peer.label for peer in peers]) for one in variants]
    return [part for part in parts if part]


# ---- all of it ----


def import_torch():
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: one of its libraries is missing
        raise Stop(f"PyTorch is missing ({error}). To install: python3 -m pip install torch",
                   NO_DEVICE) from None
    if not torch.cuda.is_available():
        raise Stop(f"PyTorch {torch.__version__} finds no CUDA GPU", NO_DEVICE)
    return torch


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


def main():
    def terminated(*_):
        raise SystemExit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # not every locale knows the dash in an empty cell
    try:
        return run(parse())
    except Stop as stop:
        print(f"scripts/peers.py: {stop}", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("\nscripts/peers.py: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has seen enough, like head.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
