"""What a record, an object of a program's --json, says."""

import collections
import math

from ladder.base.text import NO_VALUE


class Point(collections.namedtuple("Point", "batch heads seqlen head_dim causal dtype kv_heads "
                                   "seqlen_kv")):
    """A workload; without the last two they are `heads` and `seqlen`."""

    def __new__(cls, batch, heads, seqlen, head_dim, causal, dtype, kv_heads=None, seqlen_kv=None):
        return super().__new__(cls, batch, heads, seqlen, head_dim, causal, dtype,
                               kv_heads or heads, seqlen_kv or seqlen)

    def text(self):
        keys = f" of {self.seqlen_kv} keys" if self.decoding() else ""
        return f"d {self.head_dim}, {'causal, ' if self.causal else ''}N {self.seqlen}{keys}"

    def decoding(self):
        return self.seqlen_kv != self.seqlen


def total(record, kind):
    """Bytes read and written together, None where the program does not know."""
    parts = [record.get(f"{kind}_{way}_bytes") for way in ("read", "write")]
    return None if None in parts else sum(parts)


def requested(record):
    """What the kernels ask of HBM: the sim's count, or the formula that equals it."""
    counted = total(record, "requested")
    return total(record, "model") if counted is None else counted


def flops(record):
    """As the papers count them."""
    forward = (4 * record["seqlen"] * record["seqlen_kv"] * record["head_dim"] * record["heads"]
               * record["batch"] / (2 if record["causal"] else 1))
    return forward * (2.5 if record["direction"] == "bwd" else 1)


def uneven_counts(record):
    """What is wrong if the sim's count is not the formula's to the byte."""
    for way in ("read", "write"):
        counted, formula = (record.get(f"{kind}_{way}_bytes") for kind in ("requested", "model"))
        if None not in (counted, formula) and counted != formula:
            return (f"HBM {way}s: the sim counted {counted:,} bytes, the rung's formula says "
                    f"{formula:,}")
    return None


def largest_error(record):
    """Of O, or of the gradients; LSE has a tolerance of its own. None where nothing was checked;
    infinite where a value is not finite that should be."""
    errors = [e for name, e in (record.get("errors") or {}).items() if e and name != "lse"]
    if any(e.get("nonfinite") for e in errors):
        return math.inf
    return max((e["max"] for e in errors if e.get("max") is not None), default=None)


def error_text(record):
    error = largest_error(record)
    if error is None:
        return NO_VALUE
    return "inf/nan" if error == math.inf else f"{error:.1e}"


def shape_text(record):
    usual = {"kv_heads": record["heads"], "seqlen_kv": record["seqlen"]}  # and so not said
    words = [f"{name.replace('_', '-')} {record[name]}"
             for name in ("batch", "heads", "kv_heads", "seqlen", "seqlen_kv", "head_dim")
             if record[name] != usual.get(name)]
    return ", ".join([*words, record["dtype"], *["causal"] * record["causal"]])
