"""llama-swap's keys on the list of models, and its event feed's."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from appliance.core.config.types import Capabilities, Config, ModelConfig, Peer, Profile, Selector, SelectorSettings
from appliance.core.models.model import Model
from appliance.core.models.swap_listing import ListedModel, ModelLister, Object, model_status, swap_state, with_found

NOW = 1_780_000_000


def base(model_id: str, value: str = "unloaded", **more: object) -> Object:
    return {
        "id": model_id,
        "aliases": [],
        "tags": [],
        "object": "model",
        "owned_by": "llamacpp",
        "created": 1,
        "status": {"value": value, "args": ["llama-server"]},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        "source": "path",
        "can_remove": False,
        **more,
    }


def listed(config: Config, entries: list[Object], profile: str | None = None, remote: Collection[str] = ()):
    """The list as JSON says it."""
    by_id = {entry.id: entry for entry in msgspec.convert(entries, list[ListedModel])}
    data = ModelLister(config).entries(by_id, profile=profile, now=NOW, remote=remote)
    return msgspec.json.decode(msgspec.json.encode(data))


def complete(model: ModelConfig) -> dict[str, object]:
    [entry] = listed(Config(models={"m": model}), [base("m")])
    return entry


def test_a_configured_model_keeps_the_routers_entry_and_gains_llama_swaps_keys():
    model = ModelConfig(name=" Llama ", description="big", aliases=["l"], metadata={"port": 5800, "list": [1.5]}, ttl=5)
    config = Config(models={"llama": model, "plain": ModelConfig(metadata={"context_length": 5})})
    found, entry, plain = listed(config, [base("found"), base("llama", "loaded"), base("plain")])
    assert found == base("found"), "a model that was only found stays as it is"
    assert plain == {**base("plain"), "meta": {"llamaswap": {"context_length": 5, "type": "model"}}}
    assert entry == {
        **base("llama", "loaded"),
        "name": "Llama",
        "description": "big",
        "meta": {"llamaswap": {"port": 5800, "list": [1.5], "type": "model", "aliases": ["l"]}},
    }


def test_the_engines_own_meta_is_kept_beside_llama_swaps():
    told = {"n_ctx": 4096, "n_params": 7}
    config = Config(models={"llama": ModelConfig(capabilities=Capabilities(context=8192))})
    [entry] = listed(config, [base("llama", "loaded", meta=told)])
    assert entry["meta"] == {"n_ctx": 8192, "n_params": 7, "llamaswap": {"type": "model"}}
    assert entry["context_length"] == 8192
    [entry] = listed(Config(models={"llama": ModelConfig()}), [base("llama", "loaded", meta={"n_ctx": 4096})])
    assert entry["meta"] == {"n_ctx": 4096, "llamaswap": {"type": "model"}}


def test_capabilities():
    everything = Capabilities(
        inputs=["text", "audio", "image"], outputs=["text", "audio", "image"], tools=True, reranker=True, context=10
    )
    metadata = {"architecture": "x", "capabilities": "x", "supported_parameters": 1, "context_length": 1, "kept": 1}
    entry = complete(ModelConfig(capabilities=everything, metadata=metadata))
    assert entry["architecture"] == {
        "input_modalities": ["text", "audio", "image"],
        "output_modalities": ["text", "audio", "image"],
        "modality": "text+audio+image->text+audio+image",
    }
    assert entry["capabilities"] == dict.fromkeys(
        ("vision", "audio_transcriptions", "audio_speech", "image_generation", "image_to_image", "function_calling",
         "reranker"), True,
    )  # fmt: skip
    assert entry["supported_parameters"] == ["tools", "tool_choice"]
    assert entry["meta"] == {"llamaswap": {"kept": 1, "type": "model"}, "n_ctx": 10}


def test_flags_that_speak_of_a_way_from_one_thing_to_another_need_both_ends():
    entry = complete(ModelConfig(capabilities=Capabilities(inputs=["image"])))
    assert "capabilities" not in entry
    assert entry["architecture"] == {"input_modalities": ["image"], "output_modalities": ["text"]}
    whisper = Capabilities(inputs=["audio"], outputs=["text"])
    assert complete(ModelConfig(capabilities=whisper))["capabilities"] == {"audio_transcriptions": True}


def test_unlisted_models_and_their_aliases_are_hidden():
    config = Config(models={"m": ModelConfig(unlisted=True, aliases=["a"])}, include_aliases_in_list=True)
    assert listed(config, [base("m")]) == []


def test_aliases_are_entries_where_that_is_wanted():
    model = ModelConfig(name="M", aliases=["zz", "aa"], metadata={"k": 1})
    config = Config(models={"m": model}, include_aliases_in_list=True)
    data = listed(config, [base("m", "loading")])
    assert [entry["id"] for entry in data] == ["aa", "m", "zz"]
    assert data[0]["meta"]["llamaswap"] == {"k": 1, "type": "alias", "modelID": "m"}
    assert data[0]["name"] == "M"
    assert data[0]["aliases"] == []
    assert data[0]["status"]["value"] == "loading"


def test_the_models_of_peers():
    config = Config(peers={"p": Peer(models=["x/y"]), "q": Peer(models=["z"])})
    data = listed(config, [base("m")], remote=["q/z", "gone/x"])
    assert [entry["id"] for entry in data] == ["m", "p/x/y", "q/z"]
    assert data[1]["name"] == "p: x/y"
    assert data[1]["meta"] == {"llamaswap": {"type": "peer", "peerID": "p"}}
    assert (data[1]["status"], data[1]["created"], data[1]["source"]) == ({"value": "unloaded"}, NOW, "peer")
    assert data[2]["status"] == {"value": "loaded"}


def test_a_selector_is_loaded_when_a_target_is():
    models = {"a": ModelConfig(), "b": ModelConfig(aliases=["bee"])}
    selectors = {
        "first": Selector(strategy="pin", targets=["a", "bee"], name="F", description="d"),
        "any": Selector(strategy="warm", targets=["a", "bee"]),
        "spill": Selector(strategy="spillover", targets=["a"], settings=SelectorSettings(spillover=3)),
    }
    data = listed(Config(models=models, selectors=selectors), [base("a"), base("b", "loading")])
    found = {entry["id"]: entry for entry in data}
    assert found["first"]["status"]["value"] == "unloaded"
    assert found["any"]["status"]["value"] == "loaded"
    assert (found["first"]["name"], found["first"]["description"]) == ("F", "d")
    assert found["spill"]["meta"]["llamaswap"] == {
        "type": "selector",
        "strategy": "spillover",
        "targets": ["a"],
        "spillover": 3,
    }
    assert "spillover" not in found["any"]["meta"]["llamaswap"]


def test_the_active_profile_adds_the_names_that_mean_nothing_else():
    pins = {"gpt": "a", "a": "b", "bee": "a", "off": None, "empty": "", "sel": "a", "p/x": "a"}
    config = Config(
        models={"a": ModelConfig(), "b": ModelConfig(aliases=["bee"])},
        selectors={"sel": Selector(targets=["a"])},
        peers={"p": Peer(models=["x"])},
        profiles={"work": Profile(pins=pins)},
    )
    entries = [base("a", "sleeping"), base("b")]
    assert "gpt" not in [entry["id"] for entry in listed(config, entries)]
    data = listed(config, entries, "work")
    assert [entry["id"] for entry in data] == ["a", "b", "gpt", "p/x", "sel"]
    assert data[2]["meta"]["llamaswap"] == {"type": "profile"}
    assert data[2]["status"]["value"] == "loaded"
    assert listed(config, entries, "gone") == listed(config, entries)


def test_model_status_has_local_models_first_and_peers_without_a_state():
    config = Config(
        models={
            "z": ModelConfig(name="Z", unlisted=True, capabilities=Capabilities(tools=True, context=7)),
            "a": ModelConfig(aliases=["b"]),
        },
        peers={"p": Peer(models=["y", "x"])},
    )
    words = ("queued", "loading", "loaded", "sleeping", "stopping", "unloaded", "anything else")
    swaps = ("starting", "starting", "ready", "ready", "stopping", "stopped", "stopped")
    assert tuple(map(swap_state, words)) == swaps
    blank = {"name": "", "description": "", "unlisted": False, "peerID": ""}
    assert msgspec.to_builtins(model_status(config, {"z": "sleeping"})) == [
        {**blank, "id": "a", "state": "stopped", "aliases": ["b"]},
        {
            **blank,
            "id": "z",
            "name": "Z",
            "state": "ready",
            "unlisted": True,
            "capabilities": {"function_calling": True},
            "context_length": 7,
        },
        {**blank, "id": "p/y", "state": "", "peerID": "p"},
        {**blank, "id": "p/x", "state": "", "peerID": "p"},
    ]


def test_found_models_stand_beside_the_configured_ones():
    found = [Model(id="m", source="path", path="/m.gguf"), Model(id="n", aliases=("nn",), source="path", path="/n")]
    config = with_found(Config(models={"m": ModelConfig(name="M")}), found)
    assert config.models == {"n": ModelConfig(aliases=["nn"]), "m": ModelConfig(name="M")}
    assert list(with_found(None, found).models) == ["m", "n"]
