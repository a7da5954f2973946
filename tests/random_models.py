"""Models with random weights. Their greedy words depend on all of their prompt, and so show a wrong context.

Two of their words are often almost as likely as each other, so that any rounding shows as well. It depends on the
pieces in which a prompt was read, if weights have 16 bits or attention is "flash". Weights of 32 bits and `EXACT` gave
the same words to 1,800 prompts, read cold and behind others; with either alone, 10 to 24 were others.
"""

from __future__ import annotations

import math
import random
from pathlib import Path

from hollow_models import Hollow, Shape, dense, encode

VOCABULARY = 2048
WEIGHTS = "F32"
EXACT = ("--flash-attn", "off")
"""Options of an engine whose words are compared."""
MASK, SIZE = 0x807FFFFF, 0x3D000000
"""Sign and fraction are random; the exponent makes values between 1/32 and 1/16."""


def random_dense(*, width: int = 256, layers: int = 4, context: int = 16384) -> Hollow:
    """A model of the usual kind with attention over the whole context."""
    return dense(
        layers=layers, width=width, heads=8, kv_heads=4, head=32, forward=2 * width, vocabulary=VOCABULARY,
        context=context, weights=WEIGHTS,
    )  # fmt: skip


def random_window(*, width: int = 256, window: int = 256) -> Hollow:
    """A model whose layers but every sixth see a window of the context alone (Gemma 3)."""
    return dense(
        "gemma3", width=width, layers=6, heads=8, kv_heads=4, head=32, forward=2 * width, vocabulary=VOCABULARY,
        context=16384, weights=WEIGHTS, tied=True, extra=("post_attention_norm", "post_ffw_norm", "q_norm", "k_norm"),
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
        weights=WEIGHTS,
        vocabulary=VOCABULARY,
    )


def write_random(path: Path, model: Hollow, seed: int = 1) -> Path:
    """Write the model; the same seed gives the same file."""
    chance = random.Random(seed)
    head, _ = encode(model)
    with path.open("wb") as file:
        file.write(head)
        for name, shape in model.tensors.items():
            count = math.prod(shape)
            data = _ones(count) if "norm" in name else _values(chance, count)
            file.write(data.ljust(-(-len(data) // 32) * 32, b"\0"))
    return path


def _attends(layer: int) -> bool:
    return layer % 3 == 2


def _ones(count: int) -> bytes:
    return b"\x00\x00\x80\x3f" * count


def _values(chance: random.Random, count: int) -> bytes:
    out = bytearray()
    for start in range(0, count, 1 << 16):
        each = min(1 << 16, count - start)
        masks, sizes = (int.from_bytes(word.to_bytes(4, "little") * each, "little") for word in (MASK, SIZE))
        out += (int.from_bytes(chance.randbytes(4 * each), "little") & masks | sizes).to_bytes(4 * each, "little")
    return bytes(out)
