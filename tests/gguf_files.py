"""Real model files: the smallest GGUF that llama.cpp's reader would accept."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

WriteModel = Callable[..., Path]


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: str | int | bool) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + _string(value)
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)


def write_model(path: Path, *, weights: int = 8, architecture: str = "llama", **keys: str | int | bool) -> Path:
    """Write a model with one tensor of ``weights`` numbers; keywords with ``__`` for dots are metadata keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {"general.architecture": architecture} if architecture else {}
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    body = struct.pack("<4sIQQ", b"GGUF", 3, 1 if weights else 0, len(values))
    body += b"".join(_string(key) + _value(value) for key, value in values.items())
    if weights:
        body += _string("w") + struct.pack("<IQIQ", 1, weights, 0, 0)
    path.write_bytes(body.ljust(-(-len(body) // 32) * 32, b"\0") + bytes(4 * weights))
    return path
