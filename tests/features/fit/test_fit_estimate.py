"""What a model takes: its parts from the header, and the rules by which llama.cpp sizes what it keeps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hollow_models import Hollow, bert, dense, experts, gemma, info_of, latent, mamba, shape_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from appliance.core.memory import RAM, DeviceUse
from appliance.core.models.gguf import merge_shards
from appliance.core.models.shape import Shape
from appliance.features.fit.core.estimate import estimate, places_of
from appliance.features.fit.core.options import Options

MIB = 1 << 20


def taken(model: Hollow, **options: object) -> DeviceUse:
    """What it takes in main memory with a context of 4096 tokens, unless another one is said."""
    return estimate(shape_of(model), structs.replace(Options(context=4096), **options))[RAM]


LLAMA = dense()
MODELS = [LLAMA, dense("qwen3", tied=True), gemma("gemma2"), gemma("gemma3"), experts(), latent(), mamba(), bert()]
SHAPES = [shape_of(model) for model in MODELS]


# ---- what it is made of ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.architecture)
def test_all_weights_are_somewhere(model: Hollow):
    assert shape_of(model).weights == info_of(model).tensor_bytes


def test_the_vocabulary_is_that_of_the_embeddings_where_no_tokens_are_listed():
    assert shape_of(LLAMA).vocabulary == shape_of(structs.replace(LLAMA, vocabulary=0)).vocabulary == 32000


def test_windows_are_in_the_layers_that_have_them():
    assert [layer.windowed for layer in shape_of(gemma("gemma3")).layers] == ([True] * 5 + [False]) * 2
    assert [layer.windowed for layer in shape_of(gemma("gemma2", layers=4)).layers] == [True, False] * 2
    told = gemma("gemma3", layers=4)
    told.keys["attention.sliding_window_pattern"] = [False, True, True, False]
    assert [layer.windowed for layer in shape_of(told).layers] == [False, True, True, False]


def test_heads_may_differ_by_layer():
    model = dense(layers=3)
    model.keys["attention.head_count_kv"] = [1, 0, 4]
    assert [layer.keys for layer in shape_of(model).layers] == [64, 0, 256]


def test_a_file_that_says_too_little_has_no_shape():
    model = dense(layers=2)
    del model.keys["block_count"]
    assert info_of(model).shape is None


@pytest.mark.parametrize("whole", [dense(layers=4), experts()], ids=lambda model: model.architecture)
def test_shards_are_one_model(whole: Hollow):
    later = {name: shape for name, shape in whole.tensors.items() if name.startswith(("blk.1", "blk.3", "output"))}
    first = structs.replace(whole, tensors={n: s for n, s in whole.tensors.items() if n not in later})
    second = structs.replace(whole, architecture="", tensors=later, keys={"split.no": 1}, vocabulary=0)
    assert merge_shards(info_of(first), [info_of(second)]).shape == shape_of(whole)


# ---- what is kept ----------------------------------------------------------------------------------------------------


WINDOWED = gemma("gemma3", window=512)


@pytest.mark.parametrize(
    ("model", "options", "cache"),
    [
        (LLAMA, {}, 8 * 4096 * 2 * 256 * 2),
        (LLAMA, {"context": 1000}, 8 * 1024 * 2 * 256 * 2),  # cells are rounded up to 256
        # slots share a context unless somebody says their number
        (LLAMA, {"context": 4000, "parallel": 3}, 3 * 1536 * 8 * 2 * 256 * 2),
        (LLAMA, {"context": 4000, "parallel": 3, "unified": True}, 4096 * 8 * 2 * 256 * 2),
        (LLAMA, {"keys_type": "q8_0", "values_type": "q4_0"}, 8 * 4096 * 256 * (34 + 18) // 32),
        # a windowed layer keeps its window of each slot, and a batch
        (WINDOWED, {}, (2 * 4096 + 10 * (512 * 4 + 512)) * 2 * 512 * 2),
        (WINDOWED, {"parallel": 1}, (2 * 4096 + 10 * 1024) * 2 * 512 * 2),
        (WINDOWED, {"window_full": True}, 12 * 4096 * 2 * 512 * 2),
        (latent(), {}, 6 * 4096 * 576 * 2),  # keys alone
        # a recurrent model keeps states and no context, an encoder nothing
        (mamba(), {}, 12 * 4 * (3 + 16) * 2048 * 4),
        (mamba(), {"context": 8192}, 12 * 4 * (3 + 16) * 2048 * 4),
        (bert(), {"embedding": True}, 0),
    ],
)
def test_what_is_kept(model: Hollow, options: dict[str, object], cache: int):
    assert taken(model, **options).cache == cache


# ---- where it goes ---------------------------------------------------------------------------------------------------


def test_the_first_layers_stay_in_main_memory():
    shape = shape_of(LLAMA)
    found = estimate(shape, Options(context=4096, gpus=("gpu0",), gpu_layers=3))
    layer = sum(part.weights for part in shape.layers) // 8
    assert found["gpu0"].model == 2 * layer + shape.output + shape.other
    assert found["gpu0"].cache == found[RAM].cache // 3 == 2 * 4096 * 2 * 256 * 2
    for asked, there in ((-1, 0), (0, 0), (3, 3), (8, 8), (9, 9), (10, 9), (None, 9)):
        places = places_of(shape, Options(gpus=("gpu0",), gpu_layers=asked))
        assert places == (RAM,) * (9 - there) + ("gpu0",) * there


def test_tied_weights_are_loaded_twice_where_a_gpu_makes_the_logits():
    shape = shape_of(gemma("gemma3"))
    found = estimate(shape, Options(gpus=("gpu0",)))
    assert found[RAM].model == shape.input
    assert found["gpu0"].model == shape.weights


def test_experts_may_stay_in_main_memory():
    shape = shape_of(experts())
    all_there = estimate(shape, Options(gpus=("gpu0",)))
    some = estimate(shape, Options(gpus=("gpu0",), experts_in_ram=2))
    moved = shape.layers[0].experts + shape.layers[1].experts
    assert some[RAM].model - all_there[RAM].model == all_there["gpu0"].model - some["gpu0"].model == moved > 0


def test_weights_in_another_order_are_there_twice_on_a_processor_alone():
    four = dense(weights="Q4_K")
    shape = shape_of(four)
    assert taken(four).model > 1.5 * shape.weights
    assert taken(four, repack=False).model == shape.weights
    on_both = estimate(shape, Options(gpus=("gpu0",), gpu_layers=4))
    assert on_both[RAM].model + on_both["gpu0"].model == shape.weights


def test_a_projector_and_a_draft_model_come_along():
    plain = taken(LLAMA)
    more = taken(LLAMA, projector=100 * MIB, draft=shape_of(dense(layers=2)))
    assert more.model - plain.model == 100 * MIB + shape_of(dense(layers=2)).weights
    assert more.cache - plain.cache == 2 * 4096 * 2 * 256 * 2


# ---- for any ---------------------------------------------------------------------------------------------------------

OPTIONS = st.builds(
    Options,
    context=st.sampled_from([0, 1, 300, 4096, 50000]),
    parallel=st.integers(0, 9),
    unified=st.none() | st.booleans(),
    keys_type=st.sampled_from(["f16", "q8_0", "q4_0", "f32", "nonsense"]),
    batch=st.integers(1, 4096),
    ubatch=st.integers(1, 2048),
    flash=st.booleans(),
    gpu_layers=st.none() | st.integers(0, 40),
    window_full=st.booleans(),
    embedding=st.booleans(),
    experts_in_ram=st.integers(0, 99),
    cache_in_ram=st.booleans(),
    gpus=st.sampled_from([(), ("gpu0",), ("gpu0", "gpu1")]),
)


@given(shape=st.sampled_from(SHAPES), options=OPTIONS)
def test_any_start_has_an_estimate(shape: Shape, options: Options):
    found = estimate(shape, options)
    assert set(found) == {RAM, *options.gpus}
    for use in found.values():
        assert min(use.model, use.cache, use.compute, use.output) >= 0
    assert sum(use.model for use in found.values()) >= shape.weights


@given(shape=st.sampled_from(SHAPES), options=OPTIONS)
def test_more_context_never_takes_less(shape: Shape, options: Options):
    kept = [
        sum(use.cache for use in estimate(shape, structs.replace(options, context=n)).values())
        for n in (256, 1000, 4096, 9000, 70000)
    ]
    assert all(less <= more for less, more in pairwise(kept))
