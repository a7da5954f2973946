"""The layout of a GGUF header: a cursor over bytes that are fetched on demand, the key-value table, the tensor table.

Knows where things lie and how large they may be; the meaning of the keys is gguf.py's business. Sources: the GGUF
specification (versions 2 and 3), the checks of llama.cpp's own reader (b11434), and for the numbers of types the PyPI
package ``gguf`` 0.19. Numbers missing here belonged to types that llama.cpp has removed since.

Every number in the file is hostile until it is checked: nothing is allocated, and no loop is entered, on the word of a
count or length that the file's size and the limits below do not back. Arrays of numbers are skipped by arithmetic;
arrays of strings, which hold a vocabulary of 250,000 tokens, are skipped by a pattern, a run of short ones at a time,
unless the file read before has the same bytes there: models of one family share their vocabulary.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache
from math import prod

from msgspec import Struct

from appliance.core.sizes import KIB, MIB

TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    # number: (name, values in a block, bytes of a block)
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip

FILE_TYPES: dict[int, str] = {
    # ``general.file_type``: what most of the file's tensors were quantised to
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

FILE_TYPE_GUESSED = 1024
"""llama.cpp adds this to a file type that it has guessed; it is never a quantisation of its own."""

ENCODERS = frozenset({
    "bert", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert",
    "nomic-bert", "nomic-bert-moe", "t5encoder",
})  # fmt: skip
"""Architectures that compute vectors and cannot generate text."""

POOLING = ("none", "mean", "cls", "last", "rank")
"""``<architecture>.pooling_type`` by number; the words are those of llama-server's ``--pooling``."""


ReadAt = Callable[[int, int], bytes]
"""``read_at(offset, n)``: up to ``n`` bytes from ``offset``, at least one unless the file ends there."""

WINDOW = 128 * KIB
MAX_HEADER = 256 * MIB
"""The largest real headers are about 20 MiB: a vocabulary of 260,000 tokens with its merges."""
MAX_KEYS = 1 << 16
MAX_KEY_BYTES = MIB
"""Bytes of all keys together; they are held to find duplicates."""
MAX_STRINGS = 1 << 22
"""Elements of all string arrays together; skipping this many takes a quarter of a second."""
RUN = 64
"""Strings that are stepped over at once: where one of them is long, the loop takes as many."""
KEPT_STRINGS = frozenset(("tokenizer.ggml.tokens", "tokenizer.ggml.merges"))
MAX_KEPT_STRINGS = 16 * MIB
"""Bytes of one array; the vocabularies of 260,000 tokens take 12 MiB."""
MAX_SHORT = 40
"""Longer tokens and merges are rare, and each length makes the pattern slower to compile."""
MAX_TENSORS = 1 << 17
MAX_TENSOR_NAME = 63
"""ggml reserves 64 bytes for a name, the last one a zero."""
MAX_DIMENSIONS = 4
MAX_KEPT = 256
"""Number of values that are kept; more would mean keys of dozens of architectures in one file."""
MAX_KEPT_TEXT = MIB
"""Longest string that is kept; a longer one counts as absent. Chat templates are 5 to 20 KiB."""
MAX_KEPT_ARRAY = 1024
"""Longest array of numbers that is kept, one number per layer; of longer ones only the length is kept."""

MAX_LAYERS = 512
"""llama.cpp's own limit."""
DEVICE_ALIGNMENT = 32
LAYER_NAME = re.compile(rb"blk\.(\d{1,4})\.")
INPUTS = (b"token_embd", b"position_embd", b"token_types", b"per_layer_token_embd")
REPACKED = frozenset(("Q4_0", "Q4_K", "Q2_K", "IQ4_NL", "MXFP4"))
"""Types that b11434 copies into another order on processors with AVX2 (``Q2_K``: AVX512), unless a GPU uses them."""

STRING, ARRAY = 8, 9
NUMBERS = {
    number: struct.Struct("<" + code)
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
U32, U64, U32_U64 = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<IQ")
TOO_LARGE = 1 << 63
"""ggml counts with signed 64-bit numbers."""


class GgufError(ValueError):
    """The bytes are not a GGUF header that llama.cpp would load. The message is one line, without the file's name."""


class Array(Struct, frozen=True):
    """An array value: the number of elements, and the elements themselves if they were wanted, few, and whole numbers.

    Truth values count as 0 and 1.
    """

    count: int
    numbers: tuple[int, ...] = ()


Value = int | float | bool | str | Array
Strings = dict[str, tuple[int, bytes]]
"""The long arrays of strings that were read last: by key their count and bytes."""


class Part(Struct, frozen=True):
    """Weights of one kind in one layer. Sizes are in bytes, as llama.cpp pads them in its buffers."""

    layer: int  # -1 for weights that belong to no layer
    kind: str  # in a layer ``attention``, ``feed``, ``experts``; else ``input``, ``output``, ``other``
    size: int
    repacked: int
    """The part of ``size`` in types that the CPU backend copies into another order when it computes with them."""
    rows: int  # the largest matrix: how many numbers its result has for each token
    gated: bool  # a feed-forward part with a gate beside it


class _Parts:
    """Adds tensors up, in bounded space: a header may name thousands of layers and any name of 64 bytes."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, str], list[int]] = {}
        self._gated: set[tuple[int, str]] = set()
        self.plain_end = 0
        """The end of the last tensor that is used directly from the file."""

    def add(self, name: bytes, dimensions: tuple[int, ...], label: str, size: int, end: int) -> None:
        layer, kind = _place(name)
        if layer >= MAX_LAYERS:
            return
        place = (layer, kind)
        sums = self._sums.setdefault(place, [0, 0, 0])
        padded = -(-size // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT
        sums[0] += padded
        if kind not in ("input", "other") and label in REPACKED and len(dimensions) > 1 and dimensions[1] % 8 == 0:
            sums[1] += padded
        else:
            self.plain_end = max(self.plain_end, end)
        if len(dimensions) < 2:
            return
        if kind == "feed" and b"ffn_gate.w" in name:
            self._gated.add(place)
        if kind != "attention":
            sums[2] = max(sums[2], dimensions[1])

    def all(self) -> tuple[Part, ...]:
        return tuple(
            Part(layer, kind, size, repacked, rows, (layer, kind) in self._gated)
            for (layer, kind), (size, repacked, rows) in sorted(self._sums.items())
        )


class Tensors(Struct, frozen=True, kw_only=True):
    """The sums of the tensor table. ``end`` is the offset from the data's start that the file must reach."""

    count: int
    parameters: int
    end: int
    last: str  # the tensor that reaches ``end``
    bytes_by_type: dict[str, int]
    unknown: bool  # some tensor has a type of unknown size, so ``bytes_by_type`` is too small
    has_rank_head: bool
    parts: tuple[Part, ...] = ()
    """The weights by place of use: by layer and kind, and those outside all layers; none beyond `MAX_LAYERS`."""
    tail: int = 0  # bytes at the end of the file that are no longer read once the copies in another order exist


class Cursor:
    """Walks the header from front to back, holding one window of it."""

    __slots__ = ("_buffer", "_limit", "_read_at", "_size", "_start", "_strings", "_strings_left", "_window", "position")

    def __init__(self, read_at: ReadAt, size: int, window: int = WINDOW, strings: Strings | None = None) -> None:
        self._read_at = read_at
        self._size = size
        self._limit = min(size, MAX_HEADER)
        self._window = window
        self._buffer = b""
        self._start = 0
        self._strings_left = MAX_STRINGS
        self._strings = strings
        self.position = 0

    def _check(self, end: int) -> None:
        if end <= self._limit:
            return
        if end <= self._size:
            raise GgufError(f"its header is larger than {MAX_HEADER // MIB} MiB")
        raise GgufError(
            f"it ends too early: the header goes on after its {self._size} bytes; copy or download it again"
        )

    def _load(self, count: int) -> None:
        """Put the window at the position, with at least ``count`` bytes in it."""
        self._check(self.position + count)
        wanted = min(max(count, self._window), self._limit - self.position)
        self._start = self.position
        self._buffer = self._read_at(self._start, wanted)
        while len(self._buffer) < count:
            more = self._read_at(self._start + len(self._buffer), wanted - len(self._buffer))
            if not more:
                raise GgufError("it became shorter while it was read")
            self._buffer += more

    def _advance(self, count: int) -> int:
        """Step over ``count`` bytes and return their place in the window."""
        index = self.position - self._start
        if index + count > len(self._buffer):
            self._load(count)
            index = 0
        self.position += count
        return index

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes; the caller has bounded ``count``."""
        index = self._advance(count)
        return self._buffer[index : index + count]

    def unpack(self, shape: struct.Struct) -> tuple[int | float | bool, ...]:
        index = self._advance(shape.size)  # before the buffer is looked at: it may put another one there
        return shape.unpack_from(self._buffer, index)

    def u32(self) -> int:
        index = self._advance(4)
        return U32.unpack_from(self._buffer, index)[0]

    def u64(self) -> int:
        index = self._advance(8)
        return U64.unpack_from(self._buffer, index)[0]

    def u32_u64(self) -> tuple[int, int]:
        index = self._advance(12)
        return U32_U64.unpack_from(self._buffer, index)

    def skip(self, count: int) -> None:
        self._check(self.position + count)
        self.position += count

    def string(self, limit: int, what: str) -> bytes:
        length = self.u64()
        if length > limit:
            raise GgufError(f"{what} is {length} bytes long, the limit is {limit}")
        return self.take(length)

    def skip_strings(self, count: int, key: str) -> None:
        """Step over ``count`` length-prefixed strings, of which there are hundreds of thousands."""
        if count > self._strings_left:
            raise GgufError(f"{shown(key)} counts {count} strings, a header may hold {MAX_STRINGS}")
        self._strings_left -= count
        begin, strings = self.position, self._strings if key in KEPT_STRINGS else None
        known, content = strings.get(key, (0, b"")) if strings else (0, b"")
        if known == count and self._follows(content):
            self.skip(len(content))
            return
        self._walk(count)
        size = self.position - begin
        if strings is not None and size <= MAX_KEPT_STRINGS and len(content := self._read_at(begin, size)) == size:
            strings[key] = count, content

    def _follows(self, content: bytes) -> bool:
        """Return whether these are the next bytes. It takes as long as to read them."""
        at, end = 0, min(len(content), self._limit - self.position)
        while at < end and (part := self._read_at(self.position + at, min(self._window, end - at))):
            if not content.startswith(part, at):
                return False
            at += len(part)
        return at == len(content)

    def _walk(self, count: int) -> None:
        """A string lies where the one before it ends, so each has to be looked at.

        The engine of regular expressions does it in half the time of a loop here, for a `RUN` of short strings at once.
        The loop takes the others.
        """
        unpack = U64.unpack_from
        run = _run_of_strings() if count >= RUN else None
        while count:
            index = self.position - self._start
            if index + U64.size > len(self._buffer):
                self._load(U64.size)
                index = 0
            buffer = self._buffer
            while run is not None and count >= RUN and (found := run.match(buffer, index)):
                index = found.end()
                count -= RUN
            last = len(buffer) - U64.size
            for _ in range(min(count, RUN)):
                if index > last:
                    break
                index += U64.size + unpack(buffer, index)[0]
                count -= 1
            self._check(self._start + index)
            self.position = self._start + index


@cache
def _run_of_strings() -> re.Pattern[bytes]:
    """Match a `RUN` of strings of up to `MAX_SHORT` bytes, each with its length before it. It never steps back."""
    lengths = (re.escape(U64.pack(length)) + b".{%d}" % length for length in range(MAX_SHORT + 1))
    return re.compile(b"(?s:%s){%d}+" % (b"|".join(lengths), RUN))


def read_metadata(cursor: Cursor, count: int, wanted: Callable[[str], bool]) -> dict[str, Value]:
    """Read the key-value table; keep the values of ``wanted`` keys, check and step over the rest."""
    if count > MAX_KEYS:
        raise GgufError(f"it counts {count} metadata keys, the limit is {MAX_KEYS}")
    seen: set[bytes] = set()
    key_bytes = 0
    kept: dict[str, Value] = {}
    for _ in range(count):
        raw = cursor.string(MAX_KEY_BYTES, "a metadata key")
        key = raw.decode(errors="replace")
        key_bytes += len(raw)
        if key_bytes > MAX_KEY_BYTES:
            raise GgufError(f"its metadata keys take more than {MAX_KEY_BYTES} bytes")
        if raw in seen:
            raise GgufError(f"metadata key {shown(key)} is there twice")
        seen.add(raw)
        keep = wanted(key)
        value = _value(cursor, key, keep)
        if keep and value is not None:
            if len(kept) == MAX_KEPT:
                raise GgufError(f"it has more than {MAX_KEPT} keys that describe a model")
            kept[key] = value
    return kept


def _value(cursor: Cursor, key: str, keep: bool) -> Value | None:
    kind = cursor.u32()
    if kind == ARRAY:
        return _array(cursor, key, keep)
    if kind == STRING:
        length = cursor.u64()
        if keep and length <= MAX_KEPT_TEXT:
            return cursor.take(length).decode(errors="replace")
        cursor.skip(length)
        return None
    shape = NUMBERS.get(kind)
    if shape is None:
        raise GgufError(f"metadata key {shown(key)} has unknown type {kind}")
    return cursor.unpack(shape)[0]


def _array(cursor: Cursor, key: str, keep: bool) -> Array:
    kind, count = cursor.u32_u64()
    if kind == ARRAY:
        raise GgufError(f"metadata key {shown(key)} holds an array of arrays, which llama.cpp does not read")
    if kind == STRING:
        cursor.skip_strings(count, key)
        return Array(count)
    shape = NUMBERS.get(kind)
    if shape is None:
        raise GgufError(f"metadata key {shown(key)} is an array of unknown type {kind}")
    if keep and count <= MAX_KEPT_ARRAY:
        numbers = cursor.unpack(struct.Struct(f"<{count}{shape.format[1:]}"))
        return Array(count, tuple(int(n) for n in numbers if isinstance(n, int)))
    cursor.skip(count * shape.size)
    return Array(count)


def read_tensors(cursor: Cursor, count: int, alignment: int) -> Tensors:
    """Read the tensor table, checking each entry by itself; the caller compares ``end`` with the file's size."""
    if count > MAX_TENSORS:
        raise GgufError(f"it counts {count} tensors, the limit is {MAX_TENSORS}")
    names: set[bytes] = set()
    parameters, end, last = 0, 0, b""
    sizes: dict[str, int] = {}
    unknown = False
    parts = _Parts()
    for _ in range(count):
        name = cursor.string(MAX_TENSOR_NAME, "a tensor name")
        if name in names:
            raise GgufError(f"tensor {_name(name)} is there twice")
        names.add(name)
        if (rank := cursor.u32()) > MAX_DIMENSIONS:
            raise GgufError(f"tensor {_name(name)} has {rank} dimensions, ggml knows {MAX_DIMENSIONS}")
        dimensions = tuple(cursor.u64() for _ in range(rank))
        number, offset = cursor.u32_u64()
        elements = prod(dimensions)
        if max(elements, *dimensions, 0) >= TOO_LARGE:
            raise GgufError(f"tensor {_name(name)} has more elements than a number can hold")
        if offset % alignment:
            raise GgufError(f"tensor {_name(name)} is at offset {offset}, not a multiple of {alignment}")
        known = TENSOR_TYPES.get(number)
        size = 1 if known is None else _size(known, dimensions, elements, name)
        if known is None:
            unknown = True
        else:
            sizes[known[0]] = sizes.get(known[0], 0) + size
        parts.add(name, dimensions, "" if known is None else known[0], size, offset + size)
        parameters += elements
        if offset + size > end:
            end, last = offset + size, name
    return Tensors(
        count=count,
        parameters=parameters,
        end=end,
        last=_name(last),
        bytes_by_type=sizes,
        unknown=unknown,
        has_rank_head=b"cls.output.weight" in names,
        parts=parts.all(),
        tail=end - min(end, parts.plain_end),
    )


def _place(name: bytes) -> tuple[int, str]:
    """Return the layer and kind of a tensor by its name, as llama.cpp assigns them to devices."""
    if found := LAYER_NAME.match(name):
        rest = name[found.end() :]
        if rest.startswith(b"ffn_"):
            return int(found[1]), "experts" if b"_exps" in rest else "feed"
        return int(found[1]), "attention"
    if name.startswith(INPUTS):
        return -1, "input"
    return -1, "output" if name.startswith(b"output.") else "other"


def _size(known: tuple[str, int, int], dimensions: tuple[int, ...], elements: int, name: bytes) -> int:
    label, block, block_bytes = known
    if (dimensions[0] if dimensions else 1) % block:
        raise GgufError(f"tensor {_name(name)} has rows that are not whole {label} blocks of {block}")
    return elements // block * block_bytes


def shown(text: str) -> str:
    """Return a name from the file, made safe and short enough for one line of a message."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _name(raw: bytes) -> str:
    return shown(raw.decode(errors="replace"))
