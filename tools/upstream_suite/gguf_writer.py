"""Writes GGUF files, whole or split into parts, from metadata and numpy arrays. Source: ggml's text on GGUF 3."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
Tensors = Mapping[str, np.ndarray]

UINT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 2, 4, 5, 6, 7, 8, 9
ALIGNMENT = 32
TYPES = {"float32": 0, "float16": 1}


class Short(int):
    """A number that the reader wants in 16 bits."""


class Signed(int):
    """A number that the reader wants with a sign."""


def write(path: Path, metadata: Mapping[str, Value], tensors: Tensors) -> None:
    """One file. Arrays are (rows, columns) as in numpy; the format counts dimensions from the innermost."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    offset = 0
    for name, array in tensors.items():
        head += _string(name) + struct.pack("<I", array.ndim)
        head += struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        head += struct.pack("<IQ", TYPES[array.dtype.name], offset)
        offset += _padded(array.nbytes)
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for array in tensors.values():
            file.write(array.tobytes().ljust(_padded(array.nbytes), b"\0"))


def write_split(paths: Sequence[Path], metadata: Mapping[str, Value], tensors: Tensors) -> None:
    """The same model over several files; all metadata is in the first."""
    names = list(tensors)
    for number, path in enumerate(paths):
        own: dict[str, Value] = {
            "split.no": Short(number),
            "split.count": Short(len(paths)),
            "split.tensors.count": Signed(len(names)),
        }
        share = names[number * len(names) // len(paths) : (number + 1) * len(names) // len(paths)]
        write(path, {**metadata, **own} if number == 0 else own, {name: tensors[name] for name in share})


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Value) -> bytes:
    match value:
        case str():
            return struct.pack("<I", STRING) + _string(value)
        case bool():
            return struct.pack("<I?", BOOL, value)
        case Short():
            return struct.pack("<IH", UINT16, value)
        case Signed():
            return struct.pack("<Ii", INT32, value)
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case _:
            return _array(value)


def _array(values: Sequence[str] | Sequence[int] | Sequence[float]) -> bytes:
    head = struct.pack("<I", ARRAY)
    first = values[0]
    if isinstance(first, str):
        return head + struct.pack("<IQ", STRING, len(values)) + b"".join(_string(str(value)) for value in values)
    kind, letter = (INT32, "i") if isinstance(first, int) else (FLOAT32, "f")
    return head + struct.pack("<IQ", kind, len(values)) + struct.pack(f"<{len(values)}{letter}", *values)
