"""Reads and writes .npy files without NumPy: version 1.0, little-endian, C order, fp16 or fp32."""

from __future__ import annotations

import ast
import os
import struct
from typing import Sequence

from ladder.base.files import write_whole

KINDS = {"<f2": "e", "<f4": "f"}  # NumPy's name for a type → that of Python's module struct


def npy(shape: Sequence[int], values: Sequence[float], descr: str = "<f4") -> bytes:
    """Returns the bytes of a .npy file with these values in C order; `descr` is a key of KINDS."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}".encode()
    # 10 bytes precede the header; padding makes the data start at a multiple of 64 bytes.
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
            + struct.pack(f"<{len(values)}{KINDS[descr]}", *values))


def write_rows(folder: str, **arrays: list[list[float]]) -> None:
    """Writes each array, a list of one head's rows, to NAME.npy in fp32, as (1, 1, rows, d)."""
    for name, rows in arrays.items():
        write_whole(os.path.join(folder, f"{name}.npy"),
                    npy((1, 1, len(rows), len(rows[0])), [x for row in rows for x in row]))


def read_npy(path: str) -> list[float]:
    """Returns the values of a .npy file of a type in KINDS as one flat list, without the shape."""
    with open(path, "rb") as file:
        data = file.read()
    begin = 10 + struct.unpack("<H", data[8:10])[0]
    kind = KINDS[ast.literal_eval(data[10:begin].decode())["descr"]]
    return [value for value, in struct.iter_unpack(f"<{kind}", data[begin:])]
