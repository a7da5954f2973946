"""The measuring model is a model file as others read it, and fits into the memory there is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.core.engines.trials import (
    ALIGNMENT,
    LAYERS,
    SHARE,
    header,
    layers_for,
    tensors,
    weights_of,
    weights_size,
)


@given(st.integers(0, 1 << 40))
def test_it_takes_no_more_than_its_share_of_the_memory_unless_it_is_down_to_one_layer(memory: int) -> None:
    layers = layers_for(memory)
    assert 1 <= layers <= LAYERS
    repeating = weights_size(layers) - weights_size(1) + (weights_size(2) - weights_size(1))
    assert layers == 1 or repeating <= memory // SHARE
    assert layers == LAYERS or repeating + (weights_size(2) - weights_size(1)) > memory // SHARE


def test_the_whole_one_weighs_something() -> None:
    assert layers_for(16 << 30) == LAYERS
    assert 200e6 < weights_size(LAYERS) < 300e6
    assert abs(weights_size(LAYERS) / weights_of(LAYERS) - 34 / 32) < 0.01


@given(st.integers(1, LAYERS))
def test_its_header_is_aligned_and_names_every_tensor_once(layers: int) -> None:
    head = header(layers)
    assert len(head) % ALIGNMENT == 0
    names = [tensor.name for tensor in tensors(layers)]
    assert len(names) == len(set(names)) == 2 + 9 * layers
    assert all(head.count(name.encode()) == 1 for name in names)
    assert all(tensor.size % ALIGNMENT == 0 for tensor in tensors(layers))
