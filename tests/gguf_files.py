"""Writes GGUF files: their beginning, the smallest that llama.cpp's reader would accept, and a place in a cache."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

WriteModel = Callable[..., Path]
Value = str | int | bool | float | Sequence[int] | Sequence[bool] | Sequence[float] | Sequence[str]
ALIGNMENT = 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def header(keys: Mapping[str, Value], tensors: int) -> bytes:
    """The start of a file: its keys, and how many descriptions of tensors follow."""
    body = struct.pack("<4sIQQ", b"GGUF", 3, tensors, len(keys))
    return body + b"".join(string(key) + _value(value) for key, value in keys.items())


def tensor(name: str, shape: Sequence[int], number: int, offset: int) -> bytes:
    """The description of a tensor: the fastest dimension first, the number of its type, its place in the data."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset)


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned(data: bytes) -> bytes:
    return data.ljust(padded(len(data)), b"\0")


def string(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(8, "little") + data


def _value(value: Value) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + string(value)
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case _:
            return _array(value)


def _array(values: Sequence[int] | Sequence[bool] | Sequence[float] | Sequence[str]) -> bytes:
    match values[0]:
        case str():
            return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(string, map(str, values)))
        case bool():
            return struct.pack(f"<IIQ{len(values)}?", 9, 7, len(values), *values)
        case int():
            return struct.pack(f"<IIQ{len(values)}i", 9, 5, len(values), *values)
        case float():
            return struct.pack(f"<IIQ{len(values)}f", 9, 6, len(values), *values)


def write_model(path: Path, *, weights: int = 8, architecture: str = "llama", **keys: str | int | bool) -> Path:
    """Write a model with one tensor of ``weights`` numbers; keywords with ``__`` for dots are metadata keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values: dict[str, Value] = {"general.architecture": architecture} if architecture else {}
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    body = header(values, 1 if weights else 0)
    if weights:
        body += tensor("w", (weights,), 0, 0)
    path.write_bytes(aligned(body) + bytes(4 * weights))
    return path


def write_big(path: Path, size: int) -> Path:
    """A model whose weights of so many bytes are no repetition of anything."""
    write_model(path, weights=size // 4, general__name=path.name)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))
    return path


def cached_repository(cache: Path, repo: str, *, ref: str = COMMIT) -> Path:
    """Make an empty repository in a cache of the hub, and return its snapshot's folder."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    for made in (folder / "refs", snapshot):
        made.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(ref)
    return snapshot
