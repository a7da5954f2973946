"""Plans: what somebody said is kept, what is foretold fits, and more room is never worse."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hollow_models import bert, dense, experts, gemma, latent, mamba, shape_of
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.engine import Manual
from appliance.core.memory import RAM, FitPlan
from appliance.core.models.shape import Shape
from appliance.features.fit.core.estimate import AUTO_PARALLEL, estimate
from appliance.features.fit.core.plan import (
    CACHE,
    CHECKPOINTS,
    LEAST_CONTEXT,
    PER_SLOT,
    SHARE,
    FitOptions,
    asked_of,
    plan,
)

MIB = 1 << 20
GIB = 1 << 30
RANK = {"no": 0, "partly": 1, "fits": 2}


LLAMA = shape_of(dense(context=131072))
NEW = Manual(options=f"{CACHE} {PER_SLOT} --kv-unified")
SHAPES = [LLAMA, *map(shape_of, (gemma("gemma3"), experts(), latent(), mamba(), bert(), dense(weights="Q4_K")))]


def planned(room: Mapping[str, int], *flags: str, shape: Shape = LLAMA, reserve: int = 0) -> FitPlan:
    """Without a cache of prompts."""
    return cached(room, *flags, CACHE, "0", shape=shape, reserve=reserve)


def cached(
    room: Mapping[str, int],
    *flags: str,
    shape: Shape = LLAMA,
    reserve: int = 0,
    spoken_for: int = 0,
    manual: Manual | None = None,
) -> FitPlan:
    gpus = [device for device in room if device != RAM]
    return plan(shape, room, asked_of(flags, gpus=gpus, manual=manual), reserve=reserve, spoken_for=spoken_for)


def apart(room: Mapping[str, int], *flags: str, shape: Shape = LLAMA) -> tuple[str, ...]:
    return cached(room, *flags, CACHE, "0", shape=shape, manual=NEW).flags


def shared_out(pool: int, slots: int, *, said: bool = False) -> tuple[str, ...]:
    how = ("--parallel", str(slots), "--kv-unified", PER_SLOT, str(pool // slots))
    return how if said else ("--ctx-size", str(pool), *how)


# ---- what is chosen --------------------------------------------------------------------------------------------------


def test_less_room_means_less_context_and_one_slot_at_last():
    whole, smaller = planned({RAM: 8 * GIB}), planned({RAM: 600 * MIB})
    assert (whole.verdict, whole.word, whole.flags, whole.context) == ("fits", "fits", (), 131072)
    assert (smaller.verdict, smaller.flags) == ("fits", ("--ctx-size", "16384"))
    assert "context 16384 of 131072 tokens" in smaller.why
    assert smaller.parallel == AUTO_PARALLEL
    assert planned({RAM: 380 * MIB}, shape=SHAPES[1]).flags == ("--ctx-size", "4096", "--parallel", "1")
    assert planned({RAM: 8 * GIB}, shape=shape_of(dense(context=2048))).context == 2048


def test_what_cannot_fit_says_what_it_takes_and_what_helps():
    found = planned({RAM: 200 * MIB})
    assert (found.verdict, found.word) == ("no", "will not fit")
    assert "MiB of 200 MiB on ram" in found.why
    assert "a smaller quantisation" in found.why
    assert "less context" in planned({RAM: 1200 * MIB}, "--ctx-size", "131072").why


def test_a_gpu_gets_the_layers_that_fit():
    found = planned({RAM: 8 * GIB, "gpu0": 200 * MIB})
    assert found.word == f"partly: {found.gpu_layers} of 9 layers"
    assert 0 < found.gpu_layers < 9
    none = planned({RAM: 8 * GIB, "gpu0": 20 * MIB})
    assert (none.verdict, none.gpu_layers, none.flags) == ("partly", 0, ("--device", "none"))


def test_layers_and_context_on_gpus_are_left_to_the_server_with_the_reserve():
    found = planned({RAM: 8 * GIB, "gpu0": GIB + 200 * MIB, "gpu1": GIB}, reserve=GIB)
    assert found.flags == ("--device", "none") or found.flags[-2:] == ("--fit-target", "1024,1024")
    assert "--n-gpu-layers" not in found.flags
    told = planned({RAM: 8 * GIB, "gpu0": 200 * MIB}, "--fit", "off")
    assert told.flags[-2:] == ("--n-gpu-layers", str(told.gpu_layers))


def test_separate_slots_get_their_own_context():
    found = planned({RAM: 600 * MIB}, "--parallel", "2")
    assert (found.parallel, found.context) == (2, 32768)
    least = planned({RAM: 100 * MIB}, "--parallel", "2")
    assert least.context == 2 * LEAST_CONTEXT


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-c 1000 -np 2 -ngl 7", (1000, 2, 7)),
        ("--ctx-size 5 --ctx-size 6 --n-gpu-layers all", (6, 0, None)),
        ("-ngl nonsense --parallel -1", (0, 0, None)),
    ],
)
def test_flags_are_read_as_the_server_reads_them(flags: str, said: tuple[int, int, int | None]):
    options = asked_of(flags.split()).options
    assert (options.context, options.parallel, options.gpu_layers) == said


def test_the_rest_of_the_flags_counts():
    sizes, places = "-ctk q8_0 -ctv q4_0 -b 64 -ub 32 -fa off --swa-full", "-ncmoe 3 -nkvo -kvu"
    options = asked_of([*sizes.split(), *places.split()]).options
    assert (options.keys_type, options.values_type, options.batch, options.ubatch) == ("q8_0", "q4_0", 64, 32)
    assert (options.flash, options.window_full, options.cache_in_ram, options.unified) == (False, True, True, True)
    assert options.experts_in_ram == 3
    assert asked_of(["--reranking"]).options.embedding
    assert asked_of(["--device", "none"], gpus=["gpu0"]).options.gpus == ()
    assert asked_of(["--from-the-future", "1"]) == FitOptions(understood=False), "another engine's are no mistake"
    assert planned({RAM: 8 * GIB}, "--from-the-future").verdict == "fits"


def test_a_cache_of_prompts_takes_half_of_what_is_left():
    taken = cached({RAM: 4 * GIB}, "--ctx-size", "4096").memory[RAM].total
    assert 360 * MIB < taken < 361 * MIB
    found = cached({RAM: 4 * GIB}, "--ctx-size", "4096")
    assert (found.flags, found.prompt_cache) == (("--cache-ram", "1856"), 1856 * MIB)
    assert cached({RAM: 4 * GIB}, "--ctx-size", "4096", spoken_for=3 * GIB).flags == ("--cache-ram", "320")
    assert cached({RAM: 4 * GIB}, "--ctx-size", "4096", spoken_for=4 * GIB).flags == ("--cache-ram", "0")
    assert cached({RAM: 64 * GIB}, "--ctx-size", "4096").flags == ()
    assert cached({RAM: 64 * GIB}).prompt_cache == 8 * GIB
    assert cached({RAM: 200 * MIB}).flags == ("--cache-ram", "0")
    for said, size in (("100", 100 * MIB), ("0", 0), ("-1", 8 * GIB)):
        found = cached({RAM: 4 * GIB}, "-c", "4096", "-cram", said)
        assert (found.flags, found.prompt_cache) == ((), size)
    assert cached({RAM: 4 * GIB}, "--embedding", shape=SHAPES[5]).flags == ()
    assert cached({RAM: 4 * GIB}, "--from-the-future").flags == ()


def test_slots_do_not_use_up_each_others_context():
    assert apart({RAM: 8 * GIB}) == shared_out(131072, 4)
    assert apart({RAM: 1200 * MIB}) == shared_out(65536, 4)
    assert apart({RAM: 900 * MIB}) == shared_out(65536, 2)
    assert apart({RAM: 600 * MIB}) == ("--ctx-size", "16384", "--parallel", "1")
    assert apart({RAM: 8 * GIB}, shape=shape_of(dense(context=8192))) == shared_out(32768, 4)
    assert apart({RAM: 8 * GIB}, shape=shape_of(dense(context=40960))) == shared_out(40960, 2)
    found = cached({RAM: 8 * GIB}, CACHE, "0", manual=NEW)
    assert "4 slots of 32768 tokens, so that none ends the others" in found.why
    assert (found.slot_context, found.context) == (32768, 131072)


def test_the_context_that_somebody_set_is_shared_out_as_well():
    assert apart({RAM: 8 * GIB}, "-c", "1024") == ("--parallel", "1")
    assert apart({RAM: 8 * GIB}, "-c", "32768") == shared_out(32768, 2, said=True)
    assert apart({RAM: 8 * GIB}, "-c", "0") == shared_out(131072, 4, said=True)
    for said in (("-np", "3"), ("-np", "3", "-kvu"), ("-kvu",), ("-no-kvu",), (PER_SLOT, "512"), ("--embedding",)):
        assert not {PER_SLOT, "--parallel", "--kv-unified"} & set(apart({RAM: 8 * GIB}, *said)), said
    found = cached({RAM: 8 * GIB}, PER_SLOT, "512", manual=NEW)
    assert (found.context, "--ctx-size" in found.flags) == (2048, False), "the server sizes it so"
    assert found.slot_context == 512


def test_a_build_without_a_cache_of_prompts_gets_no_such_option():
    old = cached({RAM: 4 * GIB}, "-c", "4096", manual=Manual(options="--ctx-size"))
    assert (old.flags, old.prompt_cache) == ((), 0)
    for told in (Manual(options=CACHE), Manual(), None):
        assert cached({RAM: 4 * GIB}, "-c", "4096", manual=told).flags == (CACHE, "1856")


# ---- for any ---------------------------------------------------------------------------------------------------------

SIZES = st.integers(0, 900).map(lambda mib: mib * MIB)
ROOMS = st.one_of(
    st.fixed_dictionaries({RAM: SIZES}),
    st.fixed_dictionaries({RAM: SIZES, "gpu0": SIZES}),
    st.fixed_dictionaries({RAM: SIZES, "gpu0": SIZES, "gpu1": SIZES}),
)
FLAGS = st.lists(
    st.sampled_from(
        [
            ("--ctx-size", "3000"),
            ("--parallel", "3"),
            ("--n-gpu-layers", "4"),
            ("--kv-unified",),
            ("--cache-type-k", "q8_0"),
            ("--flash-attn", "off"),
            ("--fit", "off"),
            ("--n-cpu-moe", "2"),
            ("--kv-unified-per-slot", "700"),
        ]
    ),
    unique=True,
).map(lambda words: [word for pair in words for word in pair])


MANUALS = st.none() | st.sets(st.sampled_from(NEW.options.split())).map(lambda names: Manual(options=" ".join(names)))


@given(st.sampled_from(SHAPES), ROOMS, FLAGS, SIZES, MANUALS)
def test_more_room_is_never_worse(
    shape: Shape, room: dict[str, int], flags: list[str], more: int, manual: Manual | None
):
    before = cached(room, *flags, CACHE, "0", shape=shape, manual=manual)
    for device in room:
        more_room = {**room, device: room[device] + more}
        after = cached(more_room, *flags, CACHE, "0", shape=shape, manual=manual)
        assert RANK[after.verdict] >= RANK[before.verdict]
        if before.verdict != "no":
            assert after.gpu_layers >= before.gpu_layers


@given(st.sampled_from(SHAPES), ROOMS, FLAGS, SIZES)
def test_what_is_foretold_fits(shape: Shape, room: dict[str, int], flags: list[str], reserve: int):
    found = planned(room, *flags, shape=shape, reserve=reserve)
    if found.verdict != "no":
        taken = found.by_device()
        assert all(size <= max(0, room[device] - reserve) for device, size in taken.items())
    if found.verdict == "fits":
        assert found.gpu_layers == (found.layers if len(room) > 1 else 0)


SAID = st.lists(
    st.sampled_from(
        [
            (PER_SLOT, "900", "LLAMA_ARG_KV_UNIFIED_PER_SLOT"),
            (CACHE, "100", "LLAMA_ARG_CACHE_RAM"),
            ("--parallel", "2", "LLAMA_ARG_N_PARALLEL"),
            ("--ctx-size", "70000", "LLAMA_ARG_CTX_SIZE"),
            ("--kv-unified", "on", "LLAMA_ARG_KV_UNIFIED"),
        ]
    ),
    unique=True,
)


@given(st.sampled_from(SHAPES), ROOMS, SAID, st.booleans(), MANUALS, SIZES)
def test_slots_and_caches_stay_within_what_is_left_what_was_said_and_what_the_build_knows(
    shape: Shape,
    room: dict[str, int],
    said: list[tuple[str, str, str]],
    in_environment: bool,
    manual: Manual | None,
    spoken_for: int,
):
    words = [word for flag, value, _ in said for word in (flag, value)[: 1 if value == "on" else 2]]
    environ = {variable: value for _, value, variable in said} if in_environment else {}
    args, gpus = [] if in_environment else words, [device for device in room if device != RAM]
    found = plan(
        shape, room, asked_of(args, environ=environ, gpus=gpus, manual=manual), reserve=0, spoken_for=spoken_for
    )
    names = {flag for flag, _, _ in said}
    assert not names & set(found.flags)
    assert PER_SLOT not in found.flags or (manual is not None and manual.names(PER_SLOT))
    assert CACHE not in found.flags or manual is None or not manual.options or manual.names(CACHE)
    if found.verdict == "no":
        return
    taken = found.by_device()
    assert all(size <= room[device] for device, size in taken.items())
    if CACHE not in names and found.prompt_cache:
        assert taken[RAM] + spoken_for + found.prompt_cache <= room[RAM]
    if manual is None or not manual.names(PER_SLOT) or names & {PER_SLOT, "--parallel", "--kv-unified"}:
        return
    slots, each = found.parallel, found.slot_context
    assert slots * each <= found.context
    assert slots == 1 or each >= min(shape.trained, SHARE)
    if len(room) == 1:
        started = asked_of([*words, *found.flags], manual=manual)
        again = estimate(shape, started.options)
        assert (again.by_device(), again.context) == (found.by_device(), found.context), (
            "what is started is what was planned"
        )
        assert not started.apart or slots == 1


@given(st.sampled_from(SHAPES), ROOMS, FLAGS)
def test_what_somebody_said_stays(shape: Shape, room: dict[str, int], flags: list[str]):
    found = planned(room, *flags, shape=shape)
    assert not {flag for flag in flags if flag.startswith("--")} & set(found.flags)
    if "--parallel" in flags:
        assert found.parallel == 3
    if "--n-gpu-layers" in flags and len(room) > 1:
        assert found.gpu_layers == 4
    if "--ctx-size" in flags:
        assert 3000 <= found.context <= 3 * 1024 + 256 * 3
    elif PER_SLOT not in flags:
        assert found.context >= min(LEAST_CONTEXT, shape.trained)


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6), st.integers(0, 40_000), SIZES, st.booleans())
def test_models_and_their_caches_never_take_more_than_there_is(
    shapes: list[Shape], mib: int, reserve: int, grown: bool
):
    """One is started after the other; the caches of those before have grown to their whole size, or not at all."""
    free, promised = mib * MIB, 0
    for shape in shapes:
        found = cached({RAM: free}, shape=shape, reserve=reserve, spoken_for=0 if grown else promised)
        if found.verdict == "no":
            assert found.prompt_cache == 0
            continue
        free -= found.memory[RAM].total + (found.prompt_cache if grown else 0)
        promised += found.prompt_cache
        assert found.prompt_cache % (64 * MIB) == 0
        assert 0 <= found.prompt_cache <= 8 * GIB
        assert (found.prompt_cache == 8 * GIB) is ("--cache-ram" not in found.flags)
        assert reserve + (0 if grown else promised if found.prompt_cache else 0) <= max(free, reserve)


WINDOWED = [shape_of(gemma("gemma3")), shape_of(mamba()), LLAMA]


@given(room=st.integers(1 << 28, 1 << 36), slots=st.integers(1, 8), said=st.booleans())
def test_checkpoints_of_windows_and_states_take_no_more_than_the_cache_of_prompts(room: int, slots: int, said: bool):
    manual = Manual(options=f"{CACHE} {CHECKPOINTS}")
    flags = ["--parallel", str(slots), *((CHECKPOINTS, "7") if said else ())]
    for model in WINDOWED:
        found = plan(model, {RAM: room}, asked_of(flags, manual=manual))
        number = int(found.flags[found.flags.index(CHECKPOINTS) + 1]) if CHECKPOINTS in found.flags else 32
        each = sum(
            2 * model.window * (layer.keys + layer.values) * layer.windowed + 4 * layer.state for layer in model.layers
        )
        if said or not each:
            assert number == 32
        else:
            assert number == 4 or number * slots * each <= found.prompt_cache
