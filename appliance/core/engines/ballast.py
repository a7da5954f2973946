"""The measuring model: the header of its file; its weights are zeros, which a file system need not store.

The starter model is so small that starting a kernel costs more than computing: it would put every graphics card behind
the processor. This one weighs as much as a small real model and takes as long, since matrix products of zeros take the
time of any others. Its answers are worthless.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from msgspec import Struct

VERSION = 1
"""The version of everything in this file; a file of another version is not used."""
PREFIX, SUFFIX = "ballast-", ".gguf"

WIDTH = 2048
FEED_FORWARD = 5632
HEADS = 16
KV_HEADS = 4
CONTEXT = 4096
LAYERS = 5
"""Layers of the whole model, 240 MB. A machine with little memory gets fewer, see `layers_for`."""
SHARE = 8
"""The measuring model uses at most this part of the free memory."""

ALIGNMENT = 32
F32, Q8_0 = 0, 8
BLOCK, BLOCK_BYTES = 32, 34
"""Q8_0: this many weights take this many bytes."""
U32, FLOAT, STRING, ARRAY, I32 = 4, 6, 8, 9, 5
LETTERS = 256
"""Number of tokens that are letters, the first ones."""
NORMAL, CONTROL = 1, 3
FORMAT_VERSION = 3
MAGIC = b"GGUF"


class Tensor(Struct, frozen=True):
    """``rows`` of ``width`` numbers; a norm is one row."""

    name: str
    width: int
    rows: int = 1

    @property
    def kind(self) -> int:
        return F32 if self.rows == 1 else Q8_0

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions in GGUF's order."""
        return (self.width,) if self.rows == 1 else (self.width, self.rows)

    @property
    def weights(self) -> int:
        return self.width * self.rows

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.weights * 4 if self.kind == F32 else self.weights // BLOCK * BLOCK_BYTES


def file_name(layers: int) -> str:
    return f"{PREFIX}{VERSION}-{layers}x{WIDTH}{SUFFIX}"


def layers_for(memory: int) -> int:
    """Return how many layers fit into ``memory`` free bytes; at least one."""
    layer = sum(tensor.size for tensor in _layer(0))
    return max(1, min(LAYERS, memory // SHARE // layer))


def weights_of(layers: int) -> int:
    """Return the number of the model's weights."""
    return sum(tensor.weights for tensor in tensors(layers))


def tensors(layers: int) -> list[Tensor]:
    """Return all tensors, in the order of the file."""
    repeating = [tensor for at in range(layers) for tensor in _layer(at)]
    return [Tensor("token_embd.weight", WIDTH, _vocabulary()), _norm("output_norm"), *repeating]


def header(layers: int) -> bytes:
    """Return everything in front of the weights, padded so that the weights begin at its end."""
    keys = list(_keys(layers))
    described: list[bytes] = []
    at = 0
    for tensor in tensors(layers):
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        described.append(_string(tensor.name) + dims + struct.pack("<IQ", tensor.kind, at))
        at += _aligned(tensor.size)
    head = struct.pack("<4sIQQ", MAGIC, FORMAT_VERSION, len(described), len(keys))
    text = head + b"".join(keys) + b"".join(described)
    return text.ljust(_aligned(len(text)), b"\0")


def weights_size(layers: int) -> int:
    """Return the number of bytes behind the header."""
    return sum(_aligned(tensor.size) for tensor in tensors(layers))


def _layer(at: int) -> list[Tensor]:
    kv = WIDTH // HEADS * KV_HEADS
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH, kv),
        "attn_v": (WIDTH, kv),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (WIDTH, FEED_FORWARD),
        "ffn_up": (WIDTH, FEED_FORWARD),
        "ffn_down": (FEED_FORWARD, WIDTH),
    }
    norms = [_norm(f"blk.{at}.attn_norm"), _norm(f"blk.{at}.ffn_norm")]
    return [*norms, *(Tensor(f"blk.{at}.{name}.weight", *shape) for name, shape in shapes.items())]


def _norm(name: str) -> Tensor:
    return Tensor(f"{name}.weight", WIDTH)


def _keys(layers: int) -> Iterator[bytes]:
    yield _text("general.architecture", "llama")
    yield _text("general.name", "measuring model")
    for name, number in {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": layers,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": _vocabulary(),
    }.items():
        yield _number(f"llama.{name}", number)
    yield _key("llama.attention.layer_norm_rms_epsilon", FLOAT, struct.pack("<f", 1e-5))
    yield _text("tokenizer.ggml.model", "gpt2")
    yield _text("tokenizer.ggml.pre", "gpt-2")
    letters = _letters()
    yield _array("tokenizer.ggml.tokens", STRING, [_string(piece) for piece in (*letters, "<|end|>")])
    kinds = [NORMAL] * len(letters) + [CONTROL]
    yield _array("tokenizer.ggml.token_type", I32, [struct.pack("<i", kind) for kind in kinds])
    yield _array("tokenizer.ggml.merges", STRING, [_string("a b")])
    for name in ("bos_token_id", "eos_token_id", "padding_token_id"):
        yield _number(f"tokenizer.ggml.{name}", len(letters))


def _letters() -> list[str]:
    """Return a byte-level vocabulary: the 256 letters that stand for bytes, those of a merge, and filling."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [LETTERS + at for at in range(LETTERS - len(shown))]
    return [*(chr(code) for code in (*shown, *hidden)), "ab", *(f"<{at}>" for at in range(62))]


def _vocabulary() -> int:
    return len(_letters()) + 1


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _text(name: str, value: str) -> bytes:
    return _key(name, STRING, _string(value))


def _number(name: str, value: int) -> bytes:
    return _key(name, U32, struct.pack("<I", value))


def _array(name: str, kind: int, values: Sequence[bytes]) -> bytes:
    return _key(name, ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values))
