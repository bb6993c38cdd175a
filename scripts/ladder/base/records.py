"""What a record, an object of a program's --json, says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict

from ladder.base.console import WRONG_RESULT, CommandError
from ladder.base.text import NO_VALUE

# An object of a program's --json or --list, or a line of a file of results.
Record = Dict[str, Any]

# How a count moves from a step to the next; a step registers one of these for its idea.
MOVES = {"less": lambda before, after: after < before, "more": lambda before, after: after > before,
         "to 0": lambda before, after: before > 0 == after,
         "from 0": lambda before, after: before == 0 < after}


@dataclasses.dataclass(frozen=True)
class Point:
    """A workload of a grid: the options that give inputs their shape and type, called as in a
    record. Without the last two they are `heads` and `seqlen`."""
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
        """A record's values of a point's fields."""
        return tuple(record[field.name] for field in dataclasses.fields(Point))

    def text(self) -> str:
        keys = f" of {self.seqlen_kv} keys" if self.seqlen_kv != self.seqlen else ""
        return f"d {self.head_dim}, {'causal, ' if self.causal else ''}N {self.seqlen}{keys}"

    def decoding(self) -> bool:
        return self.seqlen == 1 < self.seqlen_kv


def total(record: Record, kind: str, unit: str = "bytes") -> int | None:
    """What is read and written together, None where the program does not know."""
    read, written = (record.get(f"{kind}_{way}_{unit}") for way in ("read", "write"))
    return None if read is None or written is None else read + written


def count_of(record: Record, count: str) -> int | None:
    """A count by its key; by one without _read or _write ("hbm_sectors") both together."""
    kind, _, unit = count.rpartition("_")
    if not {count, f"{kind}_read_{unit}"} & record.keys():
        raise CommandError(f"a step's idea is about {count} (.change), which is not counted",
                           WRONG_RESULT)
    return record[count] if count in record else total(record, kind, unit)


def requested(record: Record) -> int | None:
    """What the kernels ask of HBM: the simulator's count, or the formula that equals it."""
    counted = total(record, "requested")
    return total(record, "model") if counted is None else counted


def flops(record: Record) -> float:
    """As the papers count them."""
    forward = (4 * record["seqlen"] * record["seqlen_kv"] * record["head_dim"] * record["heads"]
               * record["batch"] / (2 if record["causal"] else 1))
    return forward * (2.5 if record["direction"] == "bwd" else 1)


def uneven_counts(record: Record) -> str | None:
    """What is wrong if the simulator's count is not the formula's to the byte."""
    for way in ("read", "write"):
        counted, formula = (record.get(f"{kind}_{way}_bytes") for kind in ("requested", "model"))
        if counted is not None and formula is not None and counted != formula:
            return (f"global-memory {way}s: the simulator counted {counted:,} bytes, and traffic() "
                    f"predicts {formula:,}")
    return None


def largest_error(record: Record) -> float | None:
    """Of O, or of the gradients; LSE has a tolerance of its own. None where nothing was checked;
    infinite where a value is not finite that should be."""
    errors = [e for name, e in (record.get("errors") or {}).items() if e and name != "lse"]
    if any(e.get("nonfinite") for e in errors):
        return math.inf
    return max((e["max"] for e in errors if e.get("max") is not None), default=None)


def error_text(record: Record) -> str:
    error = largest_error(record)
    if error is None:
        return NO_VALUE
    return "inf/nan" if error == math.inf else f"{error:.1e}"


def shape_text(record: Record) -> str:
    """A workload in words, without what follows from the rest of it."""
    usual = {"kv_heads": record["heads"], "seqlen_kv": record["seqlen"]}
    words = [f"{name.replace('_', '-')} {record[name]}"
             for name in ("batch", "heads", "kv_heads", "seqlen", "seqlen_kv", "head_dim")
             if record[name] != usual.get(name)]
    return ", ".join([*words, record["dtype"], *(["causal"] if record["causal"] else [])])
