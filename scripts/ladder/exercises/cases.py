"""The suite's cases, run with a program that was built from a reader's file."""

import functools
import os
import re

from ladder.console import BAD_USAGE, Stop
from ladder.files import ROOT

SUITE = os.path.join(ROOT, "common/tests/suite/suite_test.cpp")
LONGEST = 300  # keys and queries of a case that is quick
ORDER = ("B", "H", "Hk", "N", "N_kv", "d")


@functools.lru_cache(maxsize=None)
def quick_cases():
    """[(name, options)] of those in suite_test.cpp that take well under a second."""
    with open(SUITE, encoding="utf-8") as file:
        table = re.search(r"kCases\[\] = \{\n(.*?)\n\};", file.read(), re.DOTALL)
    lines = re.findall(r'\{"(\w+)", ([^}]*)\}', table[1]) if table else []
    if not lines:
        raise Stop("common/tests/suite/suite_test.cpp has no table kCases any more", BAD_USAGE)
    found = []
    for name, text in lines:
        values = [value.strip() for value in text.split(",")]
        shape = dict(zip(ORDER, map(int, values[:6])))
        causal, dtype, kind, scale = (values[6:] + ["false", "fp", "Input::normal", "1"]
                                      [len(values) - 6:])[:4]
        if max(shape["N"], shape["N_kv"]) > LONGEST:
            continue
        factor = float(scale.rstrip("f")) / shape["d"]**0.5
        options = ["--batch", str(shape["B"]), "--heads", str(shape["H"]),
                   "--kv-heads", str(shape["Hk"]), "--seqlen", str(shape["N"]),
                   "--seqlen-kv", str(shape["N_kv"]), "--head-dim", str(shape["d"]),
                   "--dtype", "bf16" if dtype == "bf" else "fp16",
                   "--input", kind.removeprefix("Input::"), "--scale", repr(max(factor, 1.5e-45)),
                   "--check", "full"]
        found.append((name, options + (["--causal"] if causal == "true" else [])))
    return found


def run_case(lab, program, case, predicted):
    """None, or in a line what is wrong."""
    name, options = case
    run = lab.start(program, options)
    where = f"case {name} (N = {option(options, 'seqlen')}, N_kv = " \
            f"{option(options, 'seqlen-kv')}, d = {option(options, 'head-dim')}" \
            f"{', causal' if '--causal' in options else ''})"
    if not run.records or run.status not in (0, 1):
        return f"{where}: {run.last_words()}"
    # 00 and 01 are expected to fail on large logits, and say so.
    expected_to_fail = "so this failure is expected" in run.err
    for record in run.records:
        for kernel in record["kernels"]:
            for way in ("read", "write"):
                counted, formula = (kernel[f"{of}_{way}_bytes"] for of in ("requested", "model"))
                if counted != formula:
                    return (f"{where}: {kernel['name']} requests {counted:,} bytes to {way}, and "
                            f"traffic() says {formula:,}")
        wanted = predicted(record)
        for kernel in record["kernels"]:
            for array, of in kernel["arrays"].items():
                counts = of["read"], of["write"]
                if wanted.get((kernel["name"], array), counts) != counts:
                    read, write = wanted[kernel["name"], array]
                    return (f"{where}: {kernel['name']} requests {counts[0]:,} bytes of {array} to "
                            f"read and {counts[1]:,} to write; predicted are {read:,} and "
                            f"{write:,}")
        for output, error in record["errors"].items():
            bad = error["nonfinite"] or error["max"] is None or error["max"] > error["tolerance"]
            if bad and not expected_to_fail:
                return (f"{where}: {output} is wrong: its error is {error['max']}, the tolerance "
                        f"{error['tolerance']}, {error['nonfinite']} not finite")
    return None


def option(options, name):
    return options[options.index(f"--{name}") + 1]


def keys_seen(record, row):
    """How many keys a query sees, as Problem::keys."""
    if not record["causal"]:
        return record["seqlen_kv"]
    return min(max(row + 1 + record["seqlen_kv"] - record["seqlen"], 0), record["seqlen_kv"])
