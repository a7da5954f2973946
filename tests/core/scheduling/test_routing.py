"""Names in requests, profiles, paths under /upstream/, and the choices of selectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.core.config.types import Config, ModelConfig, Peer, Profile, Selector, SelectorSettings
from appliance.core.scheduling.routing import UNPINNED, Local, Remote, RouteChoice, Router, TargetState, Virtual, choose

CONFIG = Config(
    models={
        "llama": ModelConfig(aliases=["gpt-4o", "meta/llama"]),
        "meta/llama/big": ModelConfig(aliases=["qwen"]),  # an alias that is also an id: the id wins
        "qwen": ModelConfig(aliases=["both"]),
    },
    peers={
        "lab": Peer(proxy="http://lab", models=["embeddings/m3", "shared", "qwen", "box/odd"]),
        "box": Peer(proxy="http://box", models=["shared", "odd", "rank"]),
        "wild": Peer(proxy="http://wild"),
    },
    profiles={
        "work": Profile(pins={"gpt-4o": "qwen", "fast": "any", "llama": None, "none": "", "team/x": "box/rank"}),
        "chain": Profile(pins={"a": "b", "b": "qwen", "team": "meta", "spaced": "no such"}),
    },
    selectors={"any": Selector(targets=["llama", "qwen"])},
)
ROUTER = Router(CONFIG)


# ---- laws ------------------------------------------------------------------------------------------------------------

NAME = st.text(alphabet="ab/", min_size=1, max_size=4)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    models = draw(st.dictionaries(NAME, st.lists(NAME, max_size=2), max_size=3))
    peers = draw(st.dictionaries(NAME, st.lists(NAME, max_size=3), max_size=3))
    selectors = draw(st.dictionaries(NAME, st.just(Selector(targets=["x"])), max_size=2))
    return Config(
        models={id: ModelConfig(aliases=aliases) for id, aliases in models.items()},
        peers={id: Peer(models=served) for id, served in peers.items()},
        selectors=selectors,
    )


@given(configs(), st.data())
def test_laws_of_names(config: Config, data: st.DataObject) -> None:
    router = Router(config)
    names = [*config.models, *config.selectors, *(alias for model in config.models.values() for alias in model.aliases)]
    names += [name for id, peer in config.peers.items() for model in peer.models for name in (model, f"{id}/{model}")]
    name = data.draw(st.sampled_from(names) | NAME if names else NAME)
    local = {*config.models, *(alias for model in config.models.values() for alias in model.aliases)}
    full = {f"{id}/{model}": (id, model) for id, peer in config.peers.items() for model in peer.models}
    bare = {model for peer in config.peers.values() for model in peer.models}
    match router.resolve(name):
        case Virtual(id, selector):
            assert config.selectors[id] is selector
            assert id == name
        case Local(model_id, requested):
            assert requested == name
            assert name == model_id or name in config.models[model_id].aliases
            assert name not in config.models or model_id == name, "an id wins over aliases"
            assert name not in config.selectors
        case Remote(peers, requested):
            assert requested == name
            assert name not in {*local, *config.selectors}, "local wins"
            assert len(peers) == len(set(peers)) > 0
            assert all(model in config.peers[peer].models for peer, model in peers)
            if name in full:
                assert [f"{peer}/{model}" for peer, model in peers] == [name], "a full name means one model"
            else:
                assert peers == tuple((peer, name) for peer in config.peers if name in config.peers[peer].models)
        case None:
            assert name not in {*config.selectors, *local, *full, *bare}


@given(configs(), NAME, st.text(alphabet="ab/%", max_size=5))
def test_a_path_begins_with_a_name_that_resolves(config: Config, name: str, more: str) -> None:
    router = Router(config)
    found = router.longest_prefix(f"{name}/{more}")
    if found is None:
        tidy = "/".join(part for part in name.split("/") if part)
        assert not isinstance(router.resolve(tidy), Local | Remote)
        return
    known, remainder = found
    assert isinstance(router.resolve(known), Local | Remote)
    assert remainder.startswith("/") or not remainder
    assert f"{name}/{more}".endswith(remainder)
    taken = f"{name}/{more}".removesuffix(remainder)
    assert [part for part in taken.split("/") if part] == known.split("/")


# ---- profiles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "name", "target"),
    [
        (None, "gpt-4o", UNPINNED),
        ("no such profile", "gpt-4o", UNPINNED),
        ("work", "qwen", UNPINNED),
        ("work", "gpt-4o", "qwen"),  # hides the alias
        ("work", "fast", "any"),
        ("work", "llama", None),  # hides the model
        ("chain", "a", "b"),  # one step
    ],
)
def test_pins(profile: str | None, name: str, target: object) -> None:
    assert ROUTER.pin(profile, name) == target


# ---- /upstream/ ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "rest", "found"),
    [
        (None, "llama", ("llama", "")),
        (None, "llama/", ("llama", "/")),
        (None, "meta/llama/x", ("meta/llama", "/x")),
        (None, "meta/llama/big/x", ("meta/llama/big", "/x")),
        (None, "meta/llama/big", ("meta/llama/big", "")),
        (None, "meta%2Fllama/x", ("meta/llama", "/x")),
        (None, "llama/a%2Fb//c", ("llama", "/a%2Fb//c")),
        (None, "//llama//x", ("llama", "//x")),
        (None, "box/rank/rerank", ("box/rank", "/rerank")),
        (None, "lab/embeddings/m3/", ("lab/embeddings/m3", "/")),
        (None, "shared/x", ("shared", "/x")),
        (None, "any/x", None),  # a selector has no server
        (None, "nothing/llama", None),
        (None, "", None),
        ("work", "gpt-4o/v1", ("qwen", "/v1")),
        ("work", "team/x/v1", ("box/rank", "/v1")),
        ("work", "team%2Fx/v1", ("box/rank", "/v1")),
        ("work", "llama/v1", None),
        ("work", "fast/v1", None),  # pinned to a selector
        ("work", "qwen/v1", ("qwen", "/v1")),
        ("chain", "a/v1", None),  # means b, which is pinned in turn, and that is not followed
        ("chain", "team/llama/v1", ("meta/llama", "/v1")),  # the prefix is replaced, then the longest name wins
    ],
)
def test_longest_prefix(profile: str | None, rest: str, found: tuple[str, str] | None) -> None:
    assert ROUTER.longest_prefix(rest, profile) == found


def test_a_very_long_path_costs_little() -> None:
    assert ROUTER.longest_prefix("llama" + "/a" * 200_000) == ("llama", "/a" * 200_000)


# ---- suggestions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "best"), [("lama", "llama"), ("LLAMA", "llama"), ("gpt-4", "llama"), ("rnak", "box/rank")]
)
def test_near(name: str, best: str) -> None:
    assert ROUTER.near(name)[0] == best


def test_near_knows_nothing_of_what_looks_like_nothing() -> None:
    assert ROUTER.near("zzzzzz") == ()


# ---- selectors -------------------------------------------------------------------------------------------------------

COLD = TargetState("stopped")
STARTING = TargetState("starting")
READY = TargetState("ready")
STOPPING = TargetState("stopping")


def busy(state: TargetState, reserved: int) -> TargetState:
    return TargetState(state.state, reserved, state.remote)


def choice(strategy: str, states: list[TargetState], turn: int = 0, spillover: int = 1) -> RouteChoice | None:
    names = "abcdef"[: len(states)]
    selector = Selector(
        strategy=strategy,  # type: ignore[arg-type]
        targets=list(names),
        settings=SelectorSettings(spillover=spillover),
    )
    return choose(selector, dict(zip(names, states, strict=True)).__getitem__, turn)


@pytest.mark.parametrize(
    ("strategy", "states", "target"),
    [
        ("pin", [COLD, READY], "a"),
        ("pin", [STOPPING, READY], "a"),
        ("pin", [], None),
        ("warm", [COLD, COLD], "a"),
        ("warm", [COLD, STARTING, READY], "c"),
        ("warm", [COLD, STARTING, STARTING], "b"),
        ("warm", [STARTING, READY, READY], "b"),
        ("warm", [STOPPING, COLD], "a"),
    ],
)
def test_choices(strategy: str, states: list[TargetState], target: str | None) -> None:
    found = choice(strategy, states)
    assert (found and found.target) == target


def test_equals_take_turns() -> None:
    turn, order = 0, ""
    for _ in range(7):
        found = choice("spillover", [READY, STOPPING, READY, busy(READY, 1), STARTING], turn)
        order, turn = order + found.target, found.turn
    assert order == "aceacea"
    assert turn == 7


STATE = st.builds(
    TargetState,
    st.sampled_from(["stopped", "starting", "ready", "stopping"]),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(STATE, min_size=1, max_size=6), st.integers(0, 9), st.integers(1, 3))
def test_laws_of_spillover(states: list[TargetState], turn: int, threshold: int) -> None:
    found = choice("spillover", states, turn, threshold)
    usable = {name: s for name, s in zip("abcdef", states, strict=False) if s.remote or s.state != "stopping"}
    assert (found is None) == (not usable)
    if found is None:
        return
    taken = usable[found.target]
    assert found.turn in (turn, turn + 1)
    used = {name: s for name, s in usable.items() if s.reserved or (not s.remote and s.state != "stopped")}
    if found.target in used:
        assert taken.reserved == min(s.reserved for s in used.values())
        assert taken.reserved < threshold or len(used) == len(usable), "nothing is piled up while something is cold"
    else:
        assert all(s.reserved >= threshold for s in used.values()), "nothing is begun while something is free"
        assert found == RouteChoice(next(name for name in usable if name not in used), turn)


@given(st.lists(STATE, min_size=1, max_size=6), st.booleans())
def test_laws_of_meanwhile(states: list[TargetState], stand_ins: bool) -> None:
    names = list("abcdef"[: len(states)])
    known = dict(zip(names, states, strict=True))
    selector = Selector(strategy="meanwhile", targets=names)
    found = choose(selector, known.__getitem__, stand_ins=stand_ins)
    if found.target == "a":
        assert found.stands_in_for is None
        others = any(state.at_once for state in states[1:])
        assert states[0].state == "ready" or not stand_ins or not others, "nobody waits who need not"
    else:
        assert stand_ins
        assert states[0].state != "ready"
        assert found.stands_in_for == "a", "the first is what is loaded"
        assert known[found.target].at_once, "a stand-in is neither loaded nor waited for"
        assert not any(known[name].at_once for name in names[1 : names.index(found.target)])
