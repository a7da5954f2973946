"""Damaged and hostile headers: a refusal or an estimate, never anything else, and bounded."""

from __future__ import annotations

import math
import struct
import time
import tracemalloc

import pytest
from gguf_files import Value
from hollow_models import Hollow, bert, dense, encode, experts, gemma, latent, mamba
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.memory import RAM
from appliance.core.models.gguf import read_gguf
from appliance.core.models.gguf_bytes import GgufError
from appliance.features.fit.core.estimate import estimate
from appliance.features.fit.core.options import Options, asked_of
from appliance.features.fit.core.plan import plan

MOST_MEMORY = 32 << 20
"""Bytes; the headers are a hundredth of that."""
MIB = 1 << 20
ROOMS = ({RAM: 300 * MIB}, {RAM: 8192 * MIB, "gpu0": 200 * MIB, "gpu1": 100 * MIB})
MODELS = [
    structs.replace(model, vocabulary=300)  # so that the damage hits what matters here
    for model in (
        dense(layers=2),
        dense("qwen3", layers=2, weights="Q4_K", extra=("q_norm", "k_norm"), tied=True),
        gemma("gemma3", layers=3),
        experts(),
        latent(),
        mamba(),
        bert(),
    )
]
VALUES = (0, 1, 2, 511, 512, 513, 2**31, 2**32 - 1, math.nan, math.inf, -math.inf, "", "x", True, [0], [-1], [1] * 600)
NUMBERS = (0, 1, 31, 255, 512, 65535, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
PATCHES = st.sampled_from([struct.pack("<Q", number) for number in NUMBERS]) | st.binary(min_size=1, max_size=4)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, int]:
    """The header of a model and its file's size: keys of another type or size, and any bytes anywhere."""
    model = draw(st.sampled_from(MODELS))
    others: dict[str, Value] = draw(st.dictionaries(st.sampled_from(sorted(model.keys)), st.sampled_from(VALUES)))
    header, data = encode(structs.replace(model, keys={**model.keys, **others}))
    damaged = bytearray(header)
    for at, patch in draw(st.lists(st.tuples(st.integers(4, len(header) - 8), PATCHES), max_size=3)):
        damaged[at : at + len(patch)] = patch
    return bytes(damaged), len(header) + data


def examine(header: bytes, size: int) -> None:
    """Raises what no header may raise."""
    try:
        shape = read_gguf(lambda offset, n: header[offset : offset + n] or bytes(min(n, size - offset)), size).shape
    except GgufError:
        return
    if shape is None:
        return
    for options in (Options(), Options(gpus=("gpu0",), gpu_layers=1, flash=False, parallel=3, embedding=True)):
        for use in estimate(shape, options).values():
            for number in (use.model, use.cache, use.compute, use.output):
                assert isinstance(number, int), "neither infinite nor not a number"
                assert number >= 0
    for room in ROOMS:
        assert plan(shape, room, asked_of((), gpus=tuple(room)[1:])).why


@given(headers())
@settings(max_examples=150, deadline=None)
def test_damaged_headers_are_refused_or_estimated(damaged: tuple[bytes, int]):
    examine(*damaged)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.architecture)
@pytest.mark.parametrize("layers", [512, 513, 2**64 - 1])
def test_a_header_may_count_more_layers_than_it_has(layers: int, model: Hollow):
    header, data = encode(model)
    name = f"{model.architecture}.block_count".encode()
    at = header.index(name) + len(name)
    header = header[:at] + struct.pack("<IQ", 10, layers) + header[at + 8 :]
    began = time.thread_time()
    tracemalloc.start()
    try:
        examine(header, len(header) + data + 64)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY
    assert time.thread_time() - began < 5
