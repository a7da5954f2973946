"""Reads a GGUF file's description of itself from its header alone: a 40 GB model costs a few megabytes of reading.

``read_gguf`` gets the bytes (``read_at``) and the file's size, and never touches the world. It accepts the files that
llama.cpp's reader accepts. For any other it raises ``GgufError`` with one line of text and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Literal

from msgspec import Struct, structs

from appliance.core.models.gguf_bytes import (
    ENCODERS,
    FILE_TYPE_GUESSED,
    FILE_TYPES,
    POOLING,
    WINDOW,
    Array,
    Cursor,
    GgufError,
    Part,
    ReadAt,
    Strings,
    Tensors,
    Value,
    read_metadata,
    read_tensors,
    shown,
)
from appliance.core.models.shape import SHAPE_KEYS, Shape, shape_of, with_parts

Kind = Literal["generation", "embedding", "rerank", "projector", "adapter", "imatrix"]

MAX_ALIGNMENT = 1 << 20
DEFAULT_ALIGNMENT = 32

FIXED_KEYS = frozenset({
    "general.alignment", "general.architecture", "general.file_type", "general.license", "general.name", "general.type",
    "split.count", "split.no", "tokenizer.chat_template", "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.prefix_token_id", "tokenizer.ggml.tokens",
})  # fmt: skip
PER_ARCHITECTURE = SHAPE_KEYS | {"has_audio_encoder", "has_vision_encoder", "pooling_type", "vocab_size"}
"""Keys that follow ``<architecture>.``; the name of an architecture never contains a dot."""

WHOLE = (
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.sliding_window",
    "attention.value_length", "expert_count", "expert_used_count",
)  # fmt: skip
"""Keys whose values must be whole numbers, where they are there."""

FOREIGN = {
    b"lmgg": "it is in the GGML format that came before GGUF; convert it again",
    b"fmgg": "it is in the GGMF format that came before GGUF; convert it again",
    b"tjgg": "it is in the GGJT format that came before GGUF; convert it again",
    b"vers": "it is a Git LFS pointer, not the model; fetch the real file with 'git lfs pull'",
    b"\0\0\0\0": "it starts with zeros; the download was probably not finished",
}


class GgufInfo(Struct, frozen=True, kw_only=True):
    """One GGUF header. None means that the file does not say; a per-layer list is represented by its largest entry."""

    version: int
    kind: Kind
    architecture: str
    """Empty in every shard except the first."""
    name: str | None
    quantisation: str | None
    """The name of ``general.file_type`` such as ``Q4_K_M``, else of the tensor type with the most bytes."""
    context_length: int | None
    """Number of tokens that the model was trained for."""
    embedding_length: int | None
    block_count: int | None
    vocabulary_size: int | None
    parameters: int
    tensor_count: int
    tensor_bytes: int
    split_count: int | None
    vision: bool
    """True for a projector that encodes images."""
    audio: bool
    pooling: str | None = None
    """The way in which embeddings of tokens become one, as a word of llama-server's ``--pooling``."""
    license: str | None = None
    chat_template: str | None = None
    counts: Mapping[str, int] = {}
    """The values of the keys in `WHOLE` that are there."""
    fills: bool = False
    """True for a model that has tokens for filling a gap in a text."""
    shape: Shape | None = None
    """The basis of a memory estimate; None for a file that is not a model of its own, or does not say enough."""
    parts: tuple[Part, ...] = ()
    """For a shard without keys: its weights."""


def read_gguf(read_at: ReadAt, size: int, *, window: int = WINDOW, strings: Strings | None = None) -> GgufInfo:
    """Read the header of a file of ``size`` bytes. Raises GgufError; exceptions of ``read_at`` pass through.

    ``strings`` is for the next file: it remembers the long arrays of this one.
    """
    if not size:
        raise GgufError("it is empty")
    cursor = Cursor(read_at, size, window, strings)
    version, tensor_count, key_count = _preamble(cursor)
    values = read_metadata(cursor, key_count, _wanted)
    alignment = _alignment(values)
    tensors = read_tensors(cursor, tensor_count, alignment)
    data_start = -(-cursor.position // alignment) * alignment
    if tensors.count and data_start + tensors.end > size:
        missing = data_start + tensors.end - size
        raise GgufError(
            f"it ends too early: tensor {tensors.last} reaches {missing} bytes past the end; copy or download it again"
        )
    return _info(version, values, tensors, max(0, size - data_start))


def merge_shards(first: GgufInfo, others: list[GgufInfo]) -> GgufInfo:
    """Return the whole sharded model: the first shard's metadata with every shard's tensors."""
    if not others:
        return first
    return structs.replace(
        first,
        parameters=first.parameters + sum(info.parameters for info in others),
        tensor_count=first.tensor_count + sum(info.tensor_count for info in others),
        tensor_bytes=first.tensor_bytes + sum(info.tensor_bytes for info in others),
        shape=first.shape and reduce(with_parts, (info.parts for info in others), first.shape),
        quantisation=first.quantisation or next((info.quantisation for info in others if info.quantisation), None),
    )


def _preamble(cursor: Cursor) -> tuple[int, int, int]:
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise GgufError(FOREIGN.get(magic, "it does not start with the letters GGUF"))
    version = cursor.u32()
    if version and not version & 0xFFFF:
        raise GgufError("it was written for big-endian machines; convert it again")
    if version == 1:
        raise GgufError("it is GGUF version 1, which llama.cpp no longer reads; convert it again")
    if version not in (2, 3):
        raise GgufError(f"it is GGUF version {version}; versions 2 and 3 are known")
    return version, cursor.u64(), cursor.u64()


def _wanted(key: str) -> bool:
    return key in FIXED_KEYS or key.partition(".")[2] in PER_ARCHITECTURE


def _alignment(values: dict[str, Value]) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise GgufError(f"general.alignment is not a power of two up to {MAX_ALIGNMENT}")
    return alignment


def _whole(values: dict[str, Value], key: str) -> int | None:
    """Return a count. For an array (one entry per layer) it is the largest entry, since memory must suffice for it."""
    value = values.get(key)
    if isinstance(value, Array):
        return max(value.numbers, default=None)
    if value is None or (type(value) is int and value >= 0):
        return value
    raise GgufError(f"metadata key {shown(key)} is not a whole number")


def _text(values: dict[str, Value], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None


def _info(version: int, values: dict[str, Value], tensors: Tensors, data_bytes: int) -> GgufInfo:
    general_type = _text(values, "general.type")
    architecture = _text(values, "general.architecture") or ""
    split_number = _whole(values, "split.no")
    # llama-gguf-split writes the metadata of a model into its first shard alone.
    if not architecture and general_type != "imatrix" and not split_number:
        raise GgufError("it does not name its architecture")

    def whole(key: str) -> int | None:
        return _whole(values, f"{architecture}.{key}")

    counts = {key: count for key in WHOLE if (count := whole(key)) is not None}
    tokens = values.get("tokenizer.ggml.tokens")
    pooling_type = whole("pooling_type")
    file_type = _whole(values, "general.file_type")
    label = None if file_type is None else FILE_TYPES.get(file_type & ~FILE_TYPE_GUESSED)
    pooling = POOLING[pooling_type] if pooling_type is not None and pooling_type < len(POOLING) else None
    return GgufInfo(
        version=version,
        kind=_kind(general_type, architecture, pooling, tensors),
        architecture=architecture,
        pooling=pooling,
        name=_text(values, "general.name"),
        quantisation=label or max(tensors.bytes_by_type, key=tensors.bytes_by_type.__getitem__, default=None),
        context_length=whole("context_length"),
        embedding_length=whole("embedding_length"),
        block_count=whole("block_count"),
        vocabulary_size=tokens.count if isinstance(tokens, Array) else whole("vocab_size"),
        parameters=tensors.parameters,
        tensor_count=tensors.count,
        tensor_bytes=data_bytes if tensors.unknown else sum(tensors.bytes_by_type.values()),
        split_count=_whole(values, "split.count"),
        vision=values.get(f"{architecture}.has_vision_encoder") is True,
        audio=values.get(f"{architecture}.has_audio_encoder") is True,
        license=_text(values, "general.license"),
        chat_template=_text(values, "tokenizer.chat_template"),
        counts=counts,
        fills=any(f"tokenizer.ggml.{key}_token_id" in values for key in ("fim_pre", "prefix")),
        shape=shape_of(architecture, values, tensors),
        parts=() if architecture else tensors.parts,
    )


def _kind(general_type: str | None, architecture: str, pooling: str | None, tensors: Tensors) -> Kind:
    if general_type == "adapter":
        return "adapter"
    if general_type == "imatrix":
        return "imatrix"
    if general_type == "mmproj" or architecture == "clip":
        return "projector"
    if pooling == "rank" or (architecture in ENCODERS and tensors.has_rank_head):
        return "rerank"
    if architecture in ENCODERS or pooling in ("mean", "cls", "last"):
        return "embedding"
    return "generation"
