"""Models with random weights. Their greedy words depend on all of their prompt, and so show a wrong context."""

from __future__ import annotations

import math
import random
from pathlib import Path

from hollow_models import TYPES, Hollow, Shape, dense, encode, type_of

VOCABULARY = 2048
F16_MASK, F16_SIZE = 0x83FF, 0x2800
"""Sign and fraction are random; the exponent makes values between 1/32 and 1/16."""
F32_MASK, F32_SIZE = 0x807FFFFF, 0x3D000000


def random_dense(*, width: int = 256, layers: int = 4, context: int = 16384) -> Hollow:
    """A model of the usual kind with attention over the whole context."""
    return dense(
        layers=layers, width=width, heads=8, kv_heads=4, head=32, forward=2 * width, vocabulary=VOCABULARY,
        context=context,
    )  # fmt: skip


def random_window(*, width: int = 256, window: int = 256) -> Hollow:
    """A model whose layers but every sixth see a window of the context alone (Gemma 3)."""
    return dense(
        "gemma3", width=width, layers=6, heads=8, kv_heads=4, head=32, forward=2 * width, vocabulary=VOCABULARY,
        context=16384, tied=True, extra=("post_attention_norm", "post_ffw_norm", "q_norm", "k_norm"),
        keys={"attention.sliding_window": window},
    )  # fmt: skip


def random_hybrid(*, width: int = 256, layers: int = 6) -> Hollow:
    """A model with a state of a fixed size in most layers, and attention in every third (LFM2)."""
    heads, kv_heads, head, forward = 8, 4, 32, 2 * width
    tensors: dict[str, Shape] = {"token_embd.weight": (width, VOCABULARY), "token_embd_norm.weight": (width,)}
    for number in range(layers):
        blk = f"blk.{number}"
        tensors |= {
            f"{blk}.attn_norm.weight": (width,),
            f"{blk}.ffn_norm.weight": (width,),
            f"{blk}.ffn_gate.weight": (width, forward),
            f"{blk}.ffn_down.weight": (forward, width),
            f"{blk}.ffn_up.weight": (width, forward),
        }
        if _attends(number):
            tensors |= {
                f"{blk}.attn_q_norm.weight": (head,),
                f"{blk}.attn_k_norm.weight": (head,),
                f"{blk}.attn_q.weight": (width, heads * head),
                f"{blk}.attn_k.weight": (width, kv_heads * head),
                f"{blk}.attn_v.weight": (width, kv_heads * head),
                f"{blk}.attn_output.weight": (width, heads * head),
            }
        else:
            tensors |= {
                f"{blk}.shortconv.conv.weight": (3, width),
                f"{blk}.shortconv.in_proj.weight": (width, 3 * width),
                f"{blk}.shortconv.out_proj.weight": (width, width),
            }
    return Hollow(
        architecture="lfm2",
        keys={
            "block_count": layers,
            "context_length": 16384,
            "embedding_length": width,
            "feed_forward_length": forward,
            "attention.head_count": heads,
            "attention.head_count_kv": [kv_heads if _attends(number) else 0 for number in range(layers)],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "shortconv.l_cache": 3,
            "rope.freq_base": 10000.0,
        },
        tensors=tensors,
        vocabulary=VOCABULARY,
    )


def write_random(path: Path, model: Hollow, seed: int = 1) -> Path:
    """Write the model; the same seed gives the same file."""
    chance = random.Random(seed)
    head, _ = encode(model)
    with path.open("wb") as file:
        file.write(head)
        for name, shape in model.tensors.items():
            _, block, size = TYPES[type_of(name, shape, model.weights)]
            count = math.prod(shape)
            data = _ones(count) if "norm" in name else _values(chance, count, size // block)
            file.write(data.ljust(-(-len(data) // 32) * 32, b"\0"))
    return path


def _attends(layer: int) -> bool:
    return layer % 3 == 2


def _ones(count: int) -> bytes:
    return b"\x00\x00\x80\x3f" * count


def _values(chance: random.Random, count: int, width: int) -> bytes:
    mask, exponent = (F16_MASK, F16_SIZE) if width == 2 else (F32_MASK, F32_SIZE)
    out = bytearray()
    for start in range(0, count, 1 << 16):
        size = width * min(1 << 16, count - start)
        each = size // width
        masks = int.from_bytes(mask.to_bytes(width, "little") * each, "little")
        sizes = int.from_bytes(exponent.to_bytes(width, "little") * each, "little")
        out += (int.from_bytes(chance.randbytes(size), "little") & masks | sizes).to_bytes(size, "little")
    return bytes(out)
