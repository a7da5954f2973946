"""Pictures, and the part of a generated model that looks at them."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from gguf_writer import Tensors, Value

SIDE, PATCH, POOLED = 64, 4, 2
"""Pixels of a picture's side, of a patch's, and patches that become one token: 64 tokens for a picture."""
WIDTH, HEADS, FEED_FORWARD = 32, 2, 64


def projector(model_width: int) -> tuple[dict[str, Value], Tensors]:
    """Metadata and tensors of an encoder of Gemma 3's kind: what it sees is arbitrary, but its own for each picture."""
    random = np.random.default_rng(3)

    def some(*shape: int) -> np.ndarray:
        return random.normal(0.0, 0.2, shape).astype(np.float32)

    ones, zeros = np.ones(WIDTH, dtype=np.float32), np.zeros(WIDTH, dtype=np.float32)
    tensors = {
        "v.patch_embd.weight": some(WIDTH, 3, PATCH, PATCH),
        "v.patch_embd.bias": zeros,
        "v.position_embd.weight": some((SIDE // PATCH) ** 2, WIDTH),
        "v.post_ln.weight": ones,
        "v.post_ln.bias": zeros,
        "v.blk.0.ffn_up.weight": some(FEED_FORWARD, WIDTH),
        "v.blk.0.ffn_up.bias": np.zeros(FEED_FORWARD, dtype=np.float32),
        "v.blk.0.ffn_down.weight": some(WIDTH, FEED_FORWARD),
        "v.blk.0.ffn_down.bias": zeros,
        "mm.soft_emb_norm.weight": ones,
        "mm.input_projection.weight": some(WIDTH, model_width),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors |= {f"v.blk.0.{name}.weight": some(WIDTH, WIDTH), f"v.blk.0.{name}.bias": zeros}
    for name in ("ln1", "ln2"):
        tensors |= {f"v.blk.0.{name}.weight": ones, f"v.blk.0.{name}.bias": zeros}
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
    return metadata, tensors


def png(seed: int) -> bytes:
    """A picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
