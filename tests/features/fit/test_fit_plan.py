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
from appliance.features.fit.core.estimate import batch_of, estimate
from appliance.features.fit.core.options import AUTO_PARALLEL, CACHE, CHECKPOINTS, MOST, PER_SLOT, Options, asked_of
from appliance.features.fit.core.plan import LEAST_CONTEXT, SHARE, plan

MIB = 1 << 20
GIB = 1 << 30
RANK = {"no": 0, "partly": 1, "fits": 2}
LLAMA, GEMMA, BERT = shape_of(dense(context=131072)), shape_of(gemma("gemma3")), shape_of(bert())
SHAPES = [LLAMA, GEMMA, BERT, *map(shape_of, (experts(), latent(), mamba(), dense(weights="Q4_K")))]
NEW = Manual(options=f"{CACHE} {PER_SLOT} --kv-unified")
BIG = 8 * GIB


def planned(
    room: int | Mapping[str, int],
    flags: str = "",
    *,
    shape: Shape = LLAMA,
    manual: Manual | None = None,
    reserve: int = 0,
    spoken_for: int = 0,
    cache: str = "0",
) -> FitPlan:
    """Without a cache of prompts, unless ``cache`` is empty. A number is room in main memory."""
    room = {RAM: room} if isinstance(room, int) else room
    words = [*flags.split(), *((CACHE, cache) if cache else ())]
    asked = asked_of(words, gpus=[device for device in room if device != RAM], manual=manual)
    return plan(shape, room, asked, reserve=reserve, spoken_for=spoken_for)


def shared_out(context: int, slots: int, *, said: bool = False) -> str:
    size = "" if said else f"--ctx-size {context} "
    return f"{size}--parallel {slots} --kv-unified {PER_SLOT} {context // slots}"


# ---- what is chosen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "shape", "flags"),
    [
        (BIG, LLAMA, ""),
        (600 * MIB, LLAMA, "--ctx-size 16384"),
        (380 * MIB, GEMMA, "--ctx-size 4096 --parallel 1"),
        ({RAM: BIG, "gpu0": 20 * MIB}, LLAMA, "--device none"),
        ({RAM: BIG, "gpu0": 200 * MIB, "gpu1": 200 * MIB}, LLAMA, "--fit-target 0,0"),
    ],
)
def test_less_room_means_less_context_and_one_slot_at_last(room: int, shape: Shape, flags: str):
    assert " ".join(planned(room, shape=shape).flags) == flags


def test_a_plan_says_why():
    smaller, no = planned(600 * MIB), planned(200 * MIB)
    assert (smaller.word, smaller.context, smaller.parallel) == ("fits", 16384, AUTO_PARALLEL)
    assert "context 16384 of 131072 tokens" in smaller.why
    assert no.word == "will not fit"
    assert "MiB of 200 MiB on ram; give it a smaller quantisation" in no.why
    assert "less context" in planned(1200 * MIB, "--ctx-size 131072").why
    partly = planned({RAM: BIG, "gpu0": 200 * MIB}, "--fit off")
    assert 0 < partly.gpu_layers < 9
    assert partly.word == f"partly: {partly.gpu_layers} of 9 layers"
    assert partly.flags[-2:] == ("--n-gpu-layers", str(partly.gpu_layers))
    said, nowhere = planned({RAM: BIG, "gpu0": BIG}, "-ngl 4"), planned(BIG, "-ngl 4")
    assert (said.word, nowhere.word, nowhere.gpu_layers) == ("partly: 4 of 9 layers", "fits", 0)
    none = planned({RAM: BIG, "gpu0": 20 * MIB})
    assert (none.verdict, none.gpu_layers) == ("partly", 0)
    assert "no layer on a GPU" in none.why
    assert f"{partly.gpu_layers} of 9 layers on GPUs" in partly.why
    target = planned({RAM: BIG, "gpu0": GIB + 200 * MIB}, reserve=GIB).flags
    assert target[-2:] == ("--fit-target", "1024")


def test_separate_slots_get_their_own_context():
    found = planned(600 * MIB, "--parallel 2")
    assert (found.parallel, found.context) == (2, 32768)
    assert planned(100 * MIB, "--parallel 2").context == 2 * LEAST_CONTEXT
    said = planned(BIG, f"{PER_SLOT} 512", manual=NEW)
    assert (said.parallel, said.context, said.slot_context) == (AUTO_PARALLEL, 2048, 512), "the server sizes it so"


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("-c 1000 -np 2 -ngl 7", Options(context=1000, parallel=2, gpu_layers=7)),
        ("--ctx-size 5 --ctx-size 6 --n-gpu-layers all", Options(context=6, gpu_layers=MOST)),
        ("-ngl auto --parallel -1", Options()),
        ("-ctk q8_0 -ctv q4_0 -b 64 -ub 32", Options(keys_type="q8_0", values_type="q4_0", batch=64, ubatch=32)),
        ("-fa off --swa-full -nkvo -kvu", Options(flash=False, window_full=True, cache_in_ram=True, unified=True)),
        ("-ncmoe 3 --no-repack --fit off", Options(experts_in_ram=3, repack=False, fit=False)),
        ("--cpu-moe --device none", Options(experts_in_ram=MOST)),
        ("--reranking", Options(embedding=True, prompt_cache=0)),
        ("--pooling mean", Options(embedding=True, prompt_cache=0)),
        (f"{PER_SLOT} 512 {CACHE} 100", Options(context=2048, slot_context=512, prompt_cache=100 * MIB)),
        (f"{CACHE} -1", Options(prompt_cache=BIG)),
        ("--from-the-future 1", Options(understood=False, gpus=("gpu0",))),  # another engine's are no mistake
    ],
)
def test_flags_are_read_as_the_server_reads_them(flags: str, options: Options):
    assert asked_of(flags.split(), gpus=options.gpus or ["gpu0"] * ("--device" in flags)) == options


@pytest.mark.parametrize(
    ("room", "spoken_for", "flags", "size"),
    [
        (4 * GIB, 0, f"{CACHE} 1856", 1856 * MIB),
        (4 * GIB, 3 * GIB, f"{CACHE} 320", 320 * MIB),
        (4 * GIB, 4 * GIB, f"{CACHE} 0", 0),
        (64 * GIB, 0, "", 8 * GIB),
        (200 * MIB, 0, f"{CACHE} 0", 0),
    ],
)
def test_a_cache_of_prompts_takes_half_of_what_is_left(room: int, spoken_for: int, flags: str, size: int):
    for told in (Manual(options=CACHE), Manual(), None):
        found = planned(room, "-c 4096", spoken_for=spoken_for, manual=told, cache="")
        assert (" ".join(found.flags), found.prompt_cache) == (flags, size)
    old = planned(room, "-c 4096", spoken_for=spoken_for, manual=Manual(options="--ctx-size"), cache="")
    assert (old.flags, old.prompt_cache) == ((), 0)
    assert planned(room, "--from-the-future", cache="").flags == ()


@pytest.mark.parametrize(
    ("room", "said", "trained", "flags"),
    [
        (BIG, "", 131072, shared_out(131072, 4)),
        (1200 * MIB, "", 131072, shared_out(65536, 4)),
        (900 * MIB, "", 131072, shared_out(65536, 2)),
        (600 * MIB, "", 131072, "--ctx-size 16384 --parallel 1"),
        (BIG, "", 8192, shared_out(32768, 4)),
        (BIG, "", 40960, shared_out(40960, 2)),
        (BIG, "-c 1024", 131072, "--parallel 1"),
        (BIG, "-c 32768", 131072, shared_out(32768, 2, said=True)),
        (BIG, "-c 0", 131072, shared_out(131072, 4, said=True)),
        *((BIG, said, 131072, "") for said in ("-np 3", "-np 3 -kvu", "-kvu", "-no-kvu", f"{PER_SLOT} 512")),
        (BIG, "--embedding", 131072, ""),
    ],
)
def test_slots_do_not_use_up_each_others_context(room: int, said: str, trained: int, flags: str):
    found = planned(room, said, shape=shape_of(dense(context=trained)), manual=NEW)
    assert " ".join(found.flags) == flags
    told = f"{found.parallel} slots of {found.slot_context} tokens, so that none ends the others"
    assert (told in found.why) == (PER_SLOT in flags)


# ---- for any ---------------------------------------------------------------------------------------------------------

SIZES = st.integers(0, 900).map(lambda mib: mib * MIB)
ROOMS = st.one_of(
    st.fixed_dictionaries({RAM: SIZES}),
    st.fixed_dictionaries({RAM: SIZES, "gpu0": SIZES}),
    st.fixed_dictionaries({RAM: SIZES, "gpu0": SIZES, "gpu1": SIZES}),
)
SAID = ["--ctx-size 3000", "--parallel 3", "--n-gpu-layers 4", "--kv-unified", "--cache-type-k q8_0", "--fit off"]
SAID += ["--flash-attn off", "--n-cpu-moe 2", f"{PER_SLOT} 700", f"{CACHE} 100"]
FLAGS = st.lists(st.sampled_from(SAID), unique=True).map(" ".join)
MANUALS = st.none() | st.sets(st.sampled_from(NEW.options.split())).map(lambda names: Manual(options=" ".join(names)))


@given(st.sampled_from(SHAPES), ROOMS, FLAGS, SIZES, MANUALS)
def test_more_room_is_never_worse(shape: Shape, room: dict[str, int], flags: str, more: int, manual: Manual | None):
    before = planned(room, flags, shape=shape, manual=manual)
    for device in room:
        after = planned({**room, device: room[device] + more}, flags, shape=shape, manual=manual)
        assert RANK[after.verdict] >= RANK[before.verdict]
        assert before.verdict == "no" or after.gpu_layers >= before.gpu_layers


@given(st.sampled_from(SHAPES), ROOMS, FLAGS, MANUALS, SIZES, SIZES)
def test_a_plan_keeps_to_what_is_left_what_was_said_and_what_the_build_knows(
    shape: Shape, room: dict[str, int], flags: str, manual: Manual | None, reserve: int, spoken_for: int
):
    words, build = flags.split(), manual or Manual()
    found = planned(room, flags, shape=shape, manual=manual, reserve=reserve, spoken_for=spoken_for, cache="")
    assert not {word for word in words if word.startswith("--")} & set(found.flags)
    assert PER_SLOT not in found.flags or build.names(PER_SLOT)
    assert CACHE not in found.flags or not build.options or build.names(CACHE)
    if "--parallel" in words:
        assert found.parallel == 3
    if "--n-gpu-layers" in words and len(room) > 1:
        assert found.gpu_layers == 4
    if "--ctx-size" in words:
        assert 3000 <= found.context <= 3 * 1024 + 256 * 3
    elif PER_SLOT not in words:
        assert found.context >= min(LEAST_CONTEXT, shape.trained)
    if found.verdict == "no":
        return
    assert found.verdict == "partly" or found.gpu_layers == (found.layers if len(room) > 1 else 0)
    taken, left = found.by_device(), {device: max(0, size - reserve) for device, size in room.items()}
    assert all(size <= left[device] for device, size in taken.items())
    if CACHE not in words and found.prompt_cache:
        assert taken[RAM] + spoken_for + found.prompt_cache <= left[RAM]
    if not build.names(PER_SLOT) or {PER_SLOT, "--parallel", "--kv-unified"} & set(words):
        return
    assert found.parallel * found.slot_context <= found.context
    assert found.parallel == 1 or found.slot_context >= min(shape.trained, SHARE)
    if len(room) == 1:
        started = asked_of([*words, *found.flags], manual=manual)
        again = {device: use.total for device, use in estimate(shape, started).items()}
        assert (again, batch_of(shape, started).context) == (taken, found.context), (
            "what is started is what was planned"
        )
        assert not started.apart or found.parallel == 1


@given(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6), st.integers(0, 40_000), SIZES, st.booleans())
def test_models_and_their_caches_never_take_more_than_there_is(
    shapes: list[Shape], mib: int, reserve: int, grown: bool
):
    """One is started after the other; the caches of those before have grown to their whole size, or not at all."""
    free, promised = mib * MIB, 0
    for shape in shapes:
        found = planned(free, shape=shape, reserve=reserve, spoken_for=0 if grown else promised, cache="")
        if found.verdict == "no":
            assert found.prompt_cache == 0
            continue
        free -= found.memory[RAM].total + (found.prompt_cache if grown else 0)
        promised += found.prompt_cache
        assert found.prompt_cache % (64 * MIB) == 0
        assert (found.prompt_cache == 8 * GIB) is (CACHE not in found.flags)
        assert reserve + (0 if grown else promised if found.prompt_cache else 0) <= max(free, reserve)


@given(room=st.integers(1 << 28, 1 << 36), slots=st.integers(1, 8), said=st.booleans())
def test_checkpoints_of_windows_and_states_take_no_more_than_the_cache_of_prompts(room: int, slots: int, said: bool):
    flags, manual = f"--parallel {slots}" + f" {CHECKPOINTS} 7" * said, Manual(options=f"{CACHE} {CHECKPOINTS}")
    for model in (GEMMA, LLAMA, shape_of(mamba())):
        found = planned(room, flags, shape=model, manual=manual, reserve=GIB, cache="")
        number = int(found.flags[found.flags.index(CHECKPOINTS) + 1]) if CHECKPOINTS in found.flags else 32
        each = sum(2 * model.window * (one.keys + one.values) * one.windowed + 4 * one.state for one in model.layers)
        if said or not each:
            assert number == 32
        else:
            assert number == 4 or number * slots * each <= found.prompt_cache
