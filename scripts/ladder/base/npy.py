"""Reads and writes .npy files: version 1.0, little-endian, in C order, fp16 or fp32."""

from __future__ import annotations

import ast
import os
import struct
from typing import Sequence

from ladder.base.files import write_whole

KINDS = {"<f2": "e", "<f4": "f"}  # NumPy's name for a type → struct's


def npy(shape: Sequence[int], values: Sequence[float], descr: str = "<f4") -> bytes:
    """Returns the bytes of a .npy file; `descr` is NumPy's name for the type, a key of KINDS."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return (b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
            + struct.pack(f"<{len(values)}{KINDS[descr]}", *values))


def write_rows(folder: str, **arrays: list[list[float]]) -> None:
    """Writes NAME.npy for each array, given as one head's rows, with the shape (1, 1, rows, d)."""
    for name, rows in arrays.items():
        write_whole(os.path.join(folder, f"{name}.npy"),
                    npy((1, 1, len(rows), len(rows[0])), [x for row in rows for x in row]))


def read_npy(path: str) -> list[float]:
    """Returns a file's values as one flat list."""
    with open(path, "rb") as file:
        data = file.read()
    begin = 10 + struct.unpack("<H", data[8:10])[0]
    kind = KINDS[ast.literal_eval(data[10:begin].decode())["descr"]]
    return [value for value, in struct.iter_unpack(f"<{kind}", data[begin:])]
