"""Damaged and hostile headers, thousands of them: a refusal or an estimate, never anything else, and bounded."""

from __future__ import annotations

import math
import random
import struct
import time
import tracemalloc

import pytest
from hollow_models import Hollow, bert, dense, encode, experts, gemma, latent, mamba
from msgspec import structs

from appliance.core.fit.estimate import RAM, Options, estimate
from appliance.core.fit.plan import asked_of, plan
from appliance.core.models.gguf import read_gguf
from appliance.core.models.gguf_bytes import GgufError

HEADERS, DEEP = 2_000, 100_000
LONGEST = 12.0
"""Seconds of a processor for all of them."""
MOST_MEMORY = 32 << 20
"""Bytes; the headers are a hundredth of that."""
MIB = 1 << 20
ROOMS = ({RAM: 300 * MIB}, {RAM: 8192 * MIB, "gpu0": 200 * MIB, "gpu1": 100 * MIB})

TINY = 300
"""Tokens in the vocabulary, so that the damage hits what matters here."""
MODELS = [
    dense(layers=2, vocabulary=TINY),
    dense("qwen3", layers=2, vocabulary=TINY, weights="Q4_K", extra=("q_norm", "k_norm"), tied=True),
    structs.replace(gemma("gemma3", layers=3), vocabulary=TINY),
    structs.replace(experts(), vocabulary=TINY),
    structs.replace(latent(), vocabulary=TINY),
    structs.replace(mamba(), vocabulary=TINY),
    structs.replace(bert(), vocabulary=TINY),
]
NUMBERS = (0, 1, 2, 31, 255, 256, 511, 512, 513, 4096, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
VALUES = (0, -1, 1, 2**31, 2**32 - 1, math.nan, math.inf, -math.inf, 1e308, "", "x" * 5000, True, [], [0], [1] * 600)


def typed(value: object) -> bytes:
    """A value in any type that it could be written in, mostly the wrong one."""
    match value:
        case str():
            return struct.pack("<IQ", 8, len(value)) + value.encode()
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<Iq", 11, value) if value < 0 else struct.pack("<IQ", 10, value)
        case float():
            return struct.pack("<Id", 12, value)
        case list():
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise AssertionError(value)


def bit_flips(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 8, 40))):
        data[chance.randrange(24, len(data))] ^= 1 << chance.randrange(8)


def truncated(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def huge_numbers(data: bytearray, chance: random.Random) -> None:
    """Anywhere, so in counts, lengths, dimensions and offsets, too."""
    for _ in range(chance.choice((1, 1, 3))):
        form = chance.choice("IQ")
        number = chance.choice(NUMBERS) % (1 << (32 if form == "I" else 64))
        at = chance.randrange(8, len(data) - 8)
        data[at : at + struct.calcsize(form)] = struct.pack("<" + form, number)


def other_values(data: bytearray, chance: random.Random, model: Hollow) -> None:
    """A key that matters, with a value of another type or size."""
    for _ in range(chance.choice((1, 1, 2))):
        name = f"{model.architecture}.{chance.choice(list(model.keys))}".encode()
        at = data.find(struct.pack("<Q", len(name)) + name)
        if at < 0:
            continue
        at += 8 + len(name)
        kind, size = struct.unpack_from("<I", data, at)[0], 8
        if kind not in (4, 5, 6, 7):
            continue
        size = 5 if kind == 7 else 8
        data[at : at + size] = typed(chance.choice(VALUES))


def twice(data: bytearray, chance: random.Random, model: Hollow) -> None:
    """Keys and tensors that are there twice, or one key in the place of another."""
    names = [f"{model.architecture}.{key}".encode() for key in model.keys] + [t.encode() for t in model.tensors]
    old, new = chance.sample(names, 2)
    at = data.find(struct.pack("<Q", len(old)) + old)
    if at >= 0:
        data[at : at + 8 + len(old)] = struct.pack("<Q", len(new)) + new


def mutated(chance: random.Random, headers: list[tuple[Hollow, bytes, int]]) -> tuple[bytes, int]:
    model, header, data = chance.choice(headers)
    damaged = bytearray(header)
    for _ in range(chance.choice((1, 1, 1, 2))):
        if len(damaged) < 64:
            break
        match chance.randrange(5):
            case 0:
                bit_flips(damaged, chance)
            case 1:
                huge_numbers(damaged, chance)
            case 2:
                other_values(damaged, chance, model)
            case 3:
                twice(damaged, chance, model)
            case _:
                if chance.random() < 0.3:
                    truncated(damaged, chance)
    return bytes(damaged), len(damaged) + data


def examine(header: bytes, size: int) -> bool:
    """Whether there was an estimate. Raises what no header may raise."""
    try:
        info = read_gguf(lambda offset, n: header[offset : offset + n] or bytes(min(n, size - offset)), size)
    except GgufError:
        return False
    if info.shape is None:
        return False
    for options in (Options(), Options(gpus=("gpu0",), gpu_layers=1, flash=False, parallel=3, embedding=True)):
        for use in estimate(info.shape, options).devices.values():
            for number in (use.model, use.cache, use.compute, use.output):
                assert isinstance(number, int), "neither infinite nor not a number"
                assert number >= 0
    for room in ROOMS:
        assert plan(info.shape, room, asked_of((), gpus=tuple(room)[1:])).why
    return True


def run(count: int, seed: int) -> int:
    headers = [(model, *encode(model)) for model in MODELS]
    chance = random.Random(seed)
    return sum(examine(*mutated(chance, headers)) for _ in range(count))


def test_thousands_of_damaged_headers(request: pytest.FixtureRequest):
    deep = request.config.getoption("--deep")
    began = time.process_time()
    estimated = run(DEEP if deep else HEADERS, seed=time.time_ns() if deep else 7)
    assert estimated > HEADERS // 10, "the damage must not all be found before there is an estimate"
    assert deep or time.process_time() - began < LONGEST


def test_damaged_headers_take_no_memory():
    run(20, seed=1)  # what is kept for good is not theirs
    tracemalloc.start()
    try:
        run(150, seed=2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY


@pytest.mark.parametrize("layers", [512, 513, 2**31, 2**64 - 1])
def test_a_header_may_count_more_layers_than_it_has(layers: int):
    model = dense(layers=1, vocabulary=TINY)
    header, data = encode(model)
    name = b"llama.block_count"
    at = header.index(name) + len(name)
    header = header[:at] + struct.pack("<IQ", 10, layers) + header[at + 8 :]
    began = time.thread_time()
    examine(header, len(header) + data + 64)
    assert time.thread_time() - began < 5
