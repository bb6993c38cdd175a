"""Reads values from records, the JSON objects that a program prints with --json, one per pass.
common/CONTRACTS.md lists their keys."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict

from ladder.base.console import WRONG_RESULT, CommandError
from ladder.base.text import NO_VALUE

# A JSON object: a record, a line of --list or a line of a result file.
Record = Dict[str, Any]

# The ways a count may move from one step to the next → a test of its values before and after.
MOVES = {"less": lambda before, after: after < before, "more": lambda before, after: after > before,
         "to 0": lambda before, after: before > 0 == after,
         "from 0": lambda before, after: before == 0 < after}


@dataclasses.dataclass(frozen=True)
class Point:
    """A workload: the inputs' shape and I/O type, under the names that records use. kv_heads = 0
    stands for `heads`, and seqlen_kv = 0 for `seqlen`."""
    batch: int
    heads: int
    seqlen: int
    head_dim: int
    causal: bool
    dtype: str
    kv_heads: int = 0
    seqlen_kv: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "seqlen_kv", self.seqlen_kv or self.seqlen)

    @staticmethod
    def key(record: Record) -> tuple[Any, ...]:
        """Returns a record's values for the fields of Point, in order."""
        return tuple(record[field.name] for field in dataclasses.fields(Point))

    def text(self) -> str:
        """Returns a short description, such as "d 64, causal, N 2048"."""
        keys = f" of {self.seqlen_kv} keys" if self.seqlen_kv != self.seqlen else ""
        return f"d {self.head_dim}, {'causal, ' if self.causal else ''}N {self.seqlen}{keys}"

    def decoding(self) -> bool:
        """Returns whether this is decoding: one query per head, and several keys."""
        return self.seqlen == 1 < self.seqlen_kv


def total(record: Record, kind: str, unit: str = "bytes") -> int | None:
    """Returns reads plus writes of a kind, such as "requested"; None if the record lacks either."""
    read, written = (record.get(f"{kind}_{way}_{unit}") for way in ("read", "write"))
    return None if read is None or written is None else read + written


def count_of(record: Record, count: str) -> int | None:
    """Returns the count under the key `count` or, for a key such as "hbm_sectors", the sum of
    hbm_read_sectors and hbm_write_sectors. Raises CommandError if the record has neither."""
    kind, _, unit = count.rpartition("_")
    if not {count, f"{kind}_read_{unit}"} & record.keys():
        raise CommandError(f"a step's .change names {count}, which no record has; "
                           "common/CONTRACTS.md lists the counts", WRONG_RESULT)
    return record[count] if count in record else total(record, kind, unit)


def requested(record: Record) -> int | None:
    """Returns the bytes that the kernels request from global memory, reads plus writes: the
    simulator's count or, on a GPU, the prediction of the step's traffic(), which equals it."""
    counted = total(record, "requested")
    return total(record, "model") if counted is None else counted


def flops(record: Record) -> float:
    """Returns the FLOPs of all heads as the papers count them: 4·N·N_kv·d per head forward, half of
    that under the causal mask, and 2.5 times the forward pass's FLOPs backward."""
    forward = (4 * record["seqlen"] * record["seqlen_kv"] * record["head_dim"] * record["heads"]
               * record["batch"] / (2 if record["causal"] else 1))
    return forward * (2.5 if record["direction"] == "bwd" else 1)


def uneven_counts(record: Record) -> str | None:
    """Returns a message if the simulator counted other bytes than traffic() predicts, else None."""
    for way in ("read", "write"):
        counted, formula = (record.get(f"{kind}_{way}_bytes") for kind in ("requested", "model"))
        if counted is not None and formula is not None and counted != formula:
            return (f"global-memory {way}s: the simulator counted {counted:,} bytes, and traffic() "
                    f"predicts {formula:,}")
    return None


def largest_error(record: Record) -> float | None:
    """Returns the largest difference from float64 in O or the gradients (LSE has another
    tolerance), None if nothing was checked, or infinity if a value is wrongly not finite."""
    errors = [e for name, e in (record.get("errors") or {}).items() if e and name != "lse"]
    if any(e.get("nonfinite") for e in errors):
        return math.inf
    return max((e["max"] for e in errors if e.get("max") is not None), default=None)


def error_text(record: Record) -> str:
    """Returns largest_error() to two digits, as tables show it."""
    error = largest_error(record)
    if error is None:
        return NO_VALUE
    return "inf/nan" if error == math.inf else f"{error:.1e}"


def shape_text(record: Record) -> str:
    """Returns a workload in words, such as "batch 1, heads 8, seqlen 1024, head-dim 64, fp16",
    without kv-heads and seqlen-kv if these equal heads and seqlen."""
    usual = {"kv_heads": record["heads"], "seqlen_kv": record["seqlen"]}
    words = [f"{name.replace('_', '-')} {record[name]}"
             for name in ("batch", "heads", "kv_heads", "seqlen", "seqlen_kv", "head_dim")
             if record[name] != usual.get(name)]
    return ", ".join([*words, record["dtype"], *(["causal"] if record["causal"] else [])])
