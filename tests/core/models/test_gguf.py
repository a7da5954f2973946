"""The GGUF reader against a writer that shares nothing with it, and against files made to hurt."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from slow import one_of

from appliance.core.models import gguf_bytes
from appliance.core.models.gguf import GgufInfo, read_gguf
from appliance.core.models.gguf_bytes import Cursor, GgufError

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


# ---- the writer ------------------------------------------------------------------------------------------------------


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return len(raw).to_bytes(8, "little") + raw


def typed(kind: int, value: object) -> bytes:
    """A value behind its type; an array is ``(element type, elements)``."""
    if kind == ARR:
        inner, elements = value
        body = b"".join(typed(inner, element)[4:] for element in elements)
        return struct.pack("<IIQ", ARR, inner, len(elements)) + body
    if kind == STR:
        return struct.pack("<I", STR) + text(value)
    return struct.pack("<I" + CODES[kind], kind, value)


def tensor(name: str, dimensions: list[int], number: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, number, offset)


def header(
    keys: list[tuple[str, int, object]],
    tensors: list[tuple[str, list[int], int]] = (),
    *,
    version: int = 3,
    alignment: int = 32,
) -> tuple[bytes, int]:
    """A header, and how many bytes of tensor data belong behind it once it is padded."""
    entries, offset = [], 0
    for name, dimensions, number in tensors:
        _, block, size = gguf_bytes.TENSOR_TYPES[number]
        entries.append(tensor(name, dimensions, number, offset))
        offset += -(-(math.prod(dimensions) // block * size) // alignment) * alignment
    head = struct.pack("<4sIQQ", b"GGUF", version, len(entries), len(keys))
    head += b"".join(text(key) + typed(kind, value) for key, kind, value in keys) + b"".join(entries)
    return head, offset


def gguf(keys, tensors=(), *, version: int = 3, alignment: int = 32) -> bytes:
    """A whole file; tensor data are zeros of the right length."""
    head, data = header(keys, tensors, version=version, alignment=alignment)
    return head.ljust(-(-len(head) // alignment) * alignment, b"\0") + bytes(data)


LLAMA = [
    ("general.architecture", STR, "llama"),
    ("general.name", STR, "Täst"),
    ("general.license", STR, "mit"),
    ("general.file_type", U32, 15),
    ("llama.context_length", U32, 8192),
    ("llama.embedding_length", U32, 64),
    ("llama.block_count", U32, 2),
    ("llama.attention.head_count", U32, 8),
    ("llama.attention.head_count_kv", ARR, (I32, [2, 4])),
    ("tokenizer.ggml.tokens", ARR, (STR, ["<s>", "a", "", "ein längeres Wort"])),
    ("tokenizer.ggml.scores", ARR, (F32, [0.0, -1.0, -2.0, -3.0])),
    ("tokenizer.chat_template", STR, "{{ messages }}"),
    ("llama.rope.freq_base", F32, 1e4),
    ("llama.use_parallel_residual", BOOL, True),
]
WEIGHTS = [("token_embd.weight", [64, 4], 8), ("norm.weight", [64], 0), ("w", [256, 3, 2], 12)]
SMALL = gguf(LLAMA, WEIGHTS)
HEADER = len(header(LLAMA, WEIGHTS)[0])


def read(data: bytes, *, size: int | None = None, window: int = 1 << 17, most: int = 1 << 30) -> GgufInfo:
    """Read from memory, in pieces of at most ``most`` bytes."""
    return read_gguf(lambda offset, n: data[offset : offset + min(n, most)], size or len(data), window=window)


def refusal(data: bytes, **more: int) -> str:
    with pytest.raises(GgufError) as caught:
        read(data, **more)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- what is read ----------------------------------------------------------------------------------------------------


def test_a_model_is_described():
    assert structs.replace(read(SMALL), shape=None) == GgufInfo(
        version=3,
        kind="generation",
        architecture="llama",
        name="Täst",
        quantisation="Q4_K_M",
        context_length=8192,
        embedding_length=64,
        block_count=2,
        vocabulary_size=4,
        parameters=64 * 4 + 64 + 256 * 6,
        tensor_count=3,
        tensor_bytes=8 * 34 + 64 * 4 + 6 * 144,
        split_count=None,
        vision=False,
        audio=False,
        license="mit",
        chat_template="{{ messages }}",
        counts={"attention.head_count": 8, "attention.head_count_kv": 4},
    )


@pytest.mark.parametrize(
    ("keys", "tensors", "kind"),
    [
        ([("general.architecture", STR, "bert")], [], "embedding"),
        ([("general.architecture", STR, "bert"), ("bert.pooling_type", U32, 4)], [], "rerank"),
        ([("general.architecture", STR, "bert")], [("cls.output.weight", [4], 0)], "rerank"),
        ([("general.architecture", STR, "qwen3"), ("qwen3.pooling_type", U32, 3)], [], "embedding"),
        ([("general.architecture", STR, "qwen3"), ("qwen3.pooling_type", U32, 0)], [], "generation"),
        ([("general.architecture", STR, "llama"), ("bert.pooling_type", U32, 4)], [], "generation"),
        ([("general.architecture", STR, "clip")], [], "projector"),
        ([("general.architecture", STR, "llama"), ("general.type", STR, "adapter")], [], "adapter"),
        ([("general.type", STR, "imatrix")], [], "imatrix"),
    ],
)
def test_the_kind_of_a_model(keys, tensors, kind):
    assert read(gguf(keys, tensors)).kind == kind


def test_without_a_file_type_the_largest_share_of_bytes_names_the_quantisation():
    tensors = [("a", [32, 100], 2), ("b", [32, 100], 8), ("c", [64], 0)]
    keys = [("general.architecture", STR, "llama")]
    assert read(gguf(keys, tensors)).quantisation == "Q8_0"
    assert read(gguf([*keys, ("general.file_type", U32, 9999)], tensors)).quantisation == "Q8_0"
    assert read(gguf([*keys, ("general.file_type", U32, 1024 + 7)], tensors)).quantisation == "Q8_0"
    assert read(gguf([*keys, ("general.file_type", U32, 1024 + 1)], tensors)).quantisation == "F16"


def test_a_tensor_type_from_the_future_is_no_reason_to_refuse():
    head = gguf([("general.architecture", STR, "x")])[:8] + struct.pack("<QQ", 2, 1)
    head += text("general.architecture") + typed(STR, "x") + tensor("a", [7], 142, 0) + tensor("b", [8], 0, 64)
    data = head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(96)
    info = read(data)
    assert (info.parameters, info.tensor_bytes, info.quantisation) == (15, 96, "F32")
    for offset in (96, 1 << 40):
        hostile = data.replace(struct.pack("<IQ", 142, 0), struct.pack("<IQ", 142, offset))
        assert "past the end" in refusal(hostile)


def test_only_the_first_shard_has_to_say_what_it_is():
    """llama-gguf-split writes nothing but the numbers of the split into the others."""
    second = [("split.no", U16, 1), ("split.count", U16, 2)]
    assert read(gguf(second, WEIGHTS)).architecture == ""
    assert "architecture" in refusal(gguf([("split.no", U16, 0), ("split.count", U16, 2)], WEIGHTS))


scalars = st.one_of(
    *(
        st.tuples(st.just(kind), st.integers(-(1 << (8 * size - 1)), (1 << (8 * size - 1)) - 1))
        for kind, size in ((I8, 1), (I16, 2), (I32, 4), (I64, 8))
    ),
    *(
        st.tuples(st.just(kind), st.integers(0, (1 << (8 * size)) - 1))
        for kind, size in ((U8, 1), (U16, 2), (U32, 4), (U64, 8))
    ),
    st.tuples(st.just(F32), st.floats(width=32)),
    st.tuples(st.just(F64), st.floats()),
    st.tuples(st.just(BOOL), st.booleans()),
    st.tuples(st.just(STR), st.text(max_size=40)),
)
arrays = st.one_of(
    st.tuples(st.just(ARR), st.tuples(st.just(STR), st.lists(st.text(max_size=30), max_size=40))),
    st.tuples(st.just(ARR), st.tuples(st.just(U16), st.lists(st.integers(0, 65535), max_size=40))),
    st.tuples(st.just(ARR), st.tuples(st.just(F64), st.lists(st.floats(), max_size=40))),
    st.tuples(st.just(ARR), st.tuples(st.just(BOOL), st.lists(st.booleans(), max_size=40))),
)
others = st.dictionaries(st.text(min_size=1, max_size=20).map(lambda key: f"x-{key}"), scalars | arrays, max_size=8)
shapes = st.lists(st.integers(0, 9), max_size=3)


@given(
    others=others,
    numbers=st.tuples(*(st.integers(0, (1 << 32) - 1) for _ in range(3))),
    name=st.text(max_size=50),
    tensors=st.lists(st.tuples(shapes, st.sampled_from(sorted(gguf_bytes.TENSOR_TYPES))), max_size=8),
    version=st.sampled_from([2, 3]),
    alignment=st.sampled_from([1, 8, 32, 4096]),
    window=st.integers(1, 300),
    most=st.integers(1, 300),
    shuffle=st.randoms(use_true_random=False),
)
def test_what_is_written_is_read(others, numbers, name, tensors, version, alignment, window, most, shuffle):
    context, width, layers = numbers
    keys = [
        ("general.architecture", STR, "arch"),
        ("general.alignment", U32, alignment),
        ("general.name", STR, name),
        ("arch.context_length", U32, context),
        ("arch.embedding_length", I64, width),
        ("arch.block_count", U64, layers),
        *((key, kind, value) for key, (kind, value) in others.items()),
    ]
    shuffle.shuffle(keys)
    weights = [
        (f"t{number}", [gguf_bytes.TENSOR_TYPES[kind][1] * 2, *shape], kind)
        for number, (shape, kind) in enumerate(tensors)
    ]
    info = read(gguf(keys, weights, version=version, alignment=alignment), window=window, most=most)
    elements = [dimensions[0] * math.prod(dimensions[1:]) for _, dimensions, _ in weights]
    assert (info.name, info.version) == (name, version)
    assert (info.context_length, info.embedding_length, info.block_count) == numbers
    assert (info.tensor_count, info.parameters) == (len(weights), sum(elements))
    assert info.tensor_bytes == sum(
        count // gguf_bytes.TENSOR_TYPES[kind][1] * gguf_bytes.TENSOR_TYPES[kind][2]
        for count, (_, _, kind) in zip(elements, weights, strict=True)
    )


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_every_truncation_is_refused():
    for end in range(len(SMALL)):
        assert refusal(SMALL[:end] or b"", size=end)


def test_a_file_that_shrinks_while_it_is_read_is_refused():
    for end in range(HEADER):
        with pytest.raises(GgufError):
            read(SMALL[:end], size=len(SMALL), window=16)


def one(key: str, kind: int, rest: bytes) -> bytes:
    """A header with the architecture and one more key whose value is ``rest``."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + text("general.architecture") + typed(STR, "x")
    return head + text(key) + struct.pack("<I", kind) + rest


BIG = (1 << 64) - 1


def with_tensor(entry: bytes, *, count: int = 1, data: int = 4096) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", 3, count, 1) + text("general.architecture") + typed(STR, "x") + entry
    return head.ljust(-(-len(head) // 32) * 32, b"\0") + bytes(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"tjgg" + bytes(20), "GGJT"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (bytes(64), "zeros"),
        (b"PK\x03\x04" + bytes(20), "letters GGUF"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 4, 0, 0), "version 4"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 63), "metadata keys"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 0), "tensors"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 60_000), "ends too early"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "architecture"),
        (one("k", STR, struct.pack("<Q", BIG)), "ends too early"),
        (one("general.name", STR, struct.pack("<Q", BIG)), "ends too early"),
        (one("k", ARR, struct.pack("<IQ", STR, BIG)), "strings"),
        (one("k", ARR, struct.pack("<IQ", STR, 4_000_000)), "ends too early"),
        (one("k", ARR, struct.pack("<IQ", STR, 3) + struct.pack("<QQ", 0, BIG)), "ends too early"),
        (one("k", ARR, struct.pack("<IQ", STR, 2) + struct.pack("<QQ", 0, 1)), "ends too early"),
        (one("k", ARR, struct.pack("<IQ", U64, BIG)), "ends too early"),
        (one("k", ARR, struct.pack("<IQ", U8, BIG)), "ends too early"),
        (one("x.block_count", ARR, struct.pack("<IQ", U64, BIG)), "ends too early"),
        (one("k", ARR, struct.pack("<IQIQ", ARR, 1, U8, 0)), "array of arrays"),
        (one("k", ARR, struct.pack("<IQ", 77, 0)), "unknown type 77"),
        (one("k", 13, b""), "unknown type 13"),
        (one("general.architecture", U8, b"\0"), "twice"),
        (one("general.alignment", U32, struct.pack("<I", 24)), "power of two"),
        (one("general.alignment", U32, struct.pack("<I", 0)), "power of two"),
        (one("general.alignment", U32, struct.pack("<I", 1 << 31)), "power of two"),
        (one("general.alignment", STR, text("32")), "power of two"),
        (one("x.context_length", I32, struct.pack("<i", -1)), "whole number"),
        (one("x.context_length", F32, struct.pack("<f", 1.5)), "whole number"),
        (one("k" * (1 << 20) + "k", U8, b"\0"), "metadata key"),
        (with_tensor(tensor("t", [4], 0, 4096)), "past the end"),
        (with_tensor(tensor("t", [1025], 0, 0)), "past the end"),
        (with_tensor(tensor("t", [4], 0, BIG & ~31)), "past the end"),
        (with_tensor(tensor("t", [4], 0, 8)), "multiple of 32"),
        (with_tensor(tensor("t", [1 << 40, 1 << 40], 0, 0)), "more elements"),
        (with_tensor(tensor("t", [1 << 63, 0], 0, 0)), "more elements"),
        (with_tensor(tensor("t", [16], 8, 0)), "blocks of 32"),
        (with_tensor(tensor("t", [1] * 5, 0, 0)), "5 dimensions"),
        (with_tensor(text("t") + struct.pack("<I", (1 << 32) - 1)), "dimensions"),
        (with_tensor(tensor("t", [4], 0, 0) * 2, count=2), "twice"),
        (with_tensor(tensor("t" * 64, [4], 0, 0)), "64 bytes long"),
    ],
)
def test_what_is_refused(data: bytes, words: str):
    assert words in refusal(data)


def test_messages_hold_no_control_characters_and_stay_short():
    message = refusal(one("general.architecture\n\x1b[31m" + "z" * 5000, 99, b""))
    assert message.isprintable()
    assert len(message) < 200


def test_a_header_beyond_the_limit_is_refused_however_large_the_file():
    filler = struct.pack("<IQ", U8, gguf_bytes.MAX_HEADER)
    assert "larger than 256 MiB" in refusal(one("k", ARR, filler), size=1 << 40)


# ---- time and memory -------------------------------------------------------------------------------------------------


def cost(data: bytes, size: int | None = None) -> tuple[float, int]:
    """Seconds and peak bytes that reading ``data`` takes, whatever comes of it."""
    view = memoryview(data)
    tracemalloc.start()
    began = time.thread_time()
    try:
        read_gguf(lambda offset, n: bytes(view[offset : offset + n]), size or len(data))
    except GgufError:
        pass
    finally:
        seconds, (_, peak) = time.thread_time() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return seconds, peak


def walked(data: bytes, count: int) -> int | None:
    """Where so many strings end, one after the other; None: not within the data."""
    at = 0
    for _ in range(count):
        if at + 8 > len(data):
            return None
        at += 8 + int.from_bytes(data[at : at + 8], "little")
    return at if at <= len(data) else None


lengths = st.sampled_from((0, 1, 2, 7, 20, 39, 40, 41, 255, 256, 300))
fills = st.sampled_from((b"\0", b"a", b"\5\0\0\0\0\0\0\0"))
runs = st.lists(st.tuples(lengths, st.sampled_from((1, 2, 63, 64, 65, 200)), fills), min_size=3, max_size=12)
damages = st.one_of(st.none(), st.tuples(st.integers(0), st.integers(1, 255)))


@given(runs, st.sampled_from((8, 700, 4000, 1 << 17)), st.integers(-3, 3), damages)
def test_strings_are_stepped_over_as_if_one_by_one(drawn, window, more, damage):
    whole = b"".join(text((fill * length)[:length]) * times for length, times, fill in drawn)
    damaged = bytearray(whole)
    if damage is not None and whole:
        damaged[damage[0] % len(whole)] ^= damage[1]
    count, strings = max(0, sum(times for _, times, _ in drawn) + more), {}
    for data in (whole, bytes(damaged), whole[:-1], whole + b"\0" * 9, whole):
        cursor = Cursor(lambda offset, n, data=data: data[offset : offset + n], len(data), window, strings)
        end = walked(data, count)
        if end is None:
            with pytest.raises(GgufError, match="ends too early"):
                cursor.skip_strings(count, "tokenizer.ggml.tokens")
        else:
            cursor.skip_strings(count, "tokenizer.ggml.tokens")
            assert cursor.position == end


def test_a_large_vocabulary_costs_little():
    strings = b"".join(text(b"x" * (n % 13)) for n in range(150_000))
    key = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARR, STR, 150_000) + strings
    scores = text("tokenizer.ggml.scores") + struct.pack("<IIQ", ARR, F32, 150_000) + bytes(4 * 150_000)
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, 3) + key + scores + text("general.architecture") + typed(STR, "llama")
    assert len(data) > 5 << 19
    assert read(data).vocabulary_size == 150_000
    seconds, peak = cost(data)
    assert peak < 1 << 20
    assert seconds < 5  # 0.1 s on an idle core; under tracemalloc and on a busy machine far from it


def test_the_vocabulary_of_the_file_before_costs_only_its_bytes():
    """Models of one family have it in common, and a folder may hold hundreds of them."""
    tokens = [f"{n:x}" for n in range(150_000)]
    data, strings, took = gguf([*LLAMA[:9], ("tokenizer.ggml.tokens", ARR, (STR, tokens))]), {}, []
    for _ in range(6):
        began = time.thread_time()
        found = read_gguf(lambda offset, n: data[offset : offset + n], len(data), strings=strings)
        took.append(time.thread_time() - began)
        assert found.vocabulary_size == len(tokens)
    assert min(took[1:]) < took[0] / 4


@pytest.mark.parametrize(
    "data",
    [  # made when they are used: each process that runs tests would make them all
        lambda: one("k", STR, struct.pack("<Q", BIG)),
        lambda: one("k", ARR, struct.pack("<IQ", STR, 4_000_000) + bytes(1 << 20)),
        lambda: one("x.block_count", ARR, struct.pack("<IQ", U64, BIG)),
        lambda: struct.pack("<4sIQQ", b"GGUF", 3, 131_072, 65_536) + bytes(1 << 20),
        lambda: (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 65_536)
            + b"".join(text(f"{n}.block_count") + typed(ARR, (U8, [1] * 1024)) for n in range(2000))
        ),
        lambda: (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 65_536)
            + b"".join(text(f"{n:05}" + "k" * 1000) + typed(U8, 1) for n in range(2000))
        ),
    ],
    ids=["string", "strings", "kept array", "counts", "kept values", "keys"],
)
@pytest.mark.parametrize("claimed", one_of([None, 1 << 45]))
def test_hostile_counts_cost_little(data, claimed):
    seconds, peak = cost(data(), claimed)
    assert peak < 6 << 20
    assert seconds < 5


@settings(deadline=None, max_examples=150)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, HEADER - 1),
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << 62), struct.pack("<Q", len(SMALL))]),
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    window=st.sampled_from([1, 7, 64, 1 << 17]),
)
def test_mutations_raise_only_our_error_and_windows_do_not_matter(edits, window):
    data = bytearray(SMALL)
    for position, patch in edits:
        data[position : position + len(patch)] = patch
    assert _survives(bytes(data)) == _survives(bytes(data), window=window, most=window)


def _survives(data: bytes, **more: int) -> object:
    try:
        return read(data, **more) if data else None
    except GgufError as error:
        return str(error)
