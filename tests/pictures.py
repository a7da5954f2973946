"""A picture, and the part of a model that looks at one: an encoder of Gemma 3's kind with weights of chance.

What it sees is arbitrary, but its own for each picture, so an answer shows that the picture has been looked at.
"""

from __future__ import annotations

import math
import random
import struct
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path

from gguf_files import Value, aligned, header, tensor

SIDE, PATCH, POOLED = 64, 4, 2
"""Pixels of a picture's side and of a patch's, and patches that become one token: 64 tokens for a picture."""
WIDTH, HEADS, FEED_FORWARD = 32, 2, 64


def write_projector(path: Path, model_width: int) -> Path:
    """An ``--mmproj`` file for a text model whose vectors are so wide."""
    chance = random.Random(3)

    def some(*shape: int) -> tuple[tuple[int, ...], array[float]]:
        return shape, array("f", (chance.gauss(0.0, 0.2) for _ in range(math.prod(shape))))

    def all_of(value: float, *shape: int) -> tuple[tuple[int, ...], array[float]]:
        return shape, array("f", [value] * math.prod(shape))

    tensors = {
        "v.patch_embd.weight": some(WIDTH, 3, PATCH, PATCH),
        "v.patch_embd.bias": all_of(0.0, WIDTH),
        "v.position_embd.weight": some((SIDE // PATCH) ** 2, WIDTH),
        "v.post_ln.weight": all_of(1.0, WIDTH),
        "v.post_ln.bias": all_of(0.0, WIDTH),
        "v.blk.0.ffn_up.weight": some(FEED_FORWARD, WIDTH),
        "v.blk.0.ffn_up.bias": all_of(0.0, FEED_FORWARD),
        "v.blk.0.ffn_down.weight": some(WIDTH, FEED_FORWARD),
        "v.blk.0.ffn_down.bias": all_of(0.0, WIDTH),
        "mm.soft_emb_norm.weight": all_of(1.0, WIDTH),
        "mm.input_projection.weight": some(WIDTH, model_width),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors |= {f"v.blk.0.{name}.weight": some(WIDTH, WIDTH), f"v.blk.0.{name}.bias": all_of(0.0, WIDTH)}
    for name in ("ln1", "ln2"):
        tensors |= {f"v.blk.0.{name}.weight": all_of(1.0, WIDTH), f"v.blk.0.{name}.bias": all_of(0.0, WIDTH)}
    metadata: dict[str, Value] = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.image_size": SIDE,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": WIDTH,
        "clip.vision.feed_forward_length": FEED_FORWARD,
        "clip.vision.projection_dim": model_width,
        "clip.vision.block_count": 1,
        "clip.vision.attention.head_count": HEADS,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projector.scale_factor": POOLED,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }
    path.write_bytes(_gguf(metadata, tensors))
    return path


def write_control_vector(path: Path, model_width: int) -> Path:
    """A ``--control-vector`` file that pushes the second layer of a model a little."""
    path.write_bytes(
        _gguf(
            {"general.architecture": "controlvector"},
            {"direction.1": ((model_width,), array("f", [0.1] * model_width))},
        )
    )
    return path


def _gguf(metadata: Mapping[str, Value], tensors: Mapping[str, tuple[tuple[int, ...], array[float]]]) -> bytes:
    start, data = header(metadata, len(tensors)), b""
    for name, (shape, numbers) in tensors.items():
        start += tensor(name, shape[::-1], 0, len(data))
        data += aligned(numbers.tobytes())
    return aligned(start) + data


def png(seed: int) -> bytes:
    """A picture of noise."""
    chance = random.Random(seed)
    rows = b"".join(b"\0" + chance.randbytes(3 * SIDE) for _ in range(SIDE))
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
