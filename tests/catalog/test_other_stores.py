"""Models that LM Studio and Ollama have downloaded, in stores laid out as theirs are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gguf_files import cached_repository, write_model
from hypothesis import example, given
from hypothesis import strategies as st
from two_users import STRANGER, acting_as, open_folder

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.sources import (
    ModelFolders,
    engine_args,
    lm_studio_directories,
    ollama_directories,
    resolve_sources,
)
from appliance.core.models.model import FOREIGN, Model, OwnWords, engine_flags

LAYER = b'{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:?", "size": 1}'
LIBRARY = ("registry.ollama.ai", "library")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def ollama(root: Path) -> Snapshot:
    return Catalog(ModelFolders(starter=None, ollama=(root,))).scan()


def lm_studio(root: Path) -> Snapshot:
    return Catalog(ModelFolders(starter=None, lm_studio=(root,))).scan()


def only(snapshot: Snapshot) -> Model:
    (model,) = snapshot.models
    return model


def note(snapshot: Snapshot) -> str:
    assert snapshot.models == ()
    (text,) = snapshot.notes
    return text


def blob(root: Path, content: bytes) -> dict[str, object]:
    """Put a file into Ollama's store; returns its layer without a kind."""
    digest = hashlib.sha256(content).hexdigest()
    path = root / "blobs" / f"sha256-{digest}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {"digest": f"sha256:{digest}", "size": len(content)}


def gguf(root: Path, **keys: str | int | bool) -> bytes:
    path = write_model(root.parent / "made" / "some.gguf", **keys)
    return path.read_bytes()


def layer(root: Path, kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": f"application/vnd.ollama.image.{kind}", **blob(root, content)}


def pulled(root: Path, name: str, *layers: dict[str, object], where: tuple[str, ...] = LIBRARY) -> Path:
    """A manifest of ``model:tag`` with these layers."""
    model, _, tag = name.partition(":")
    path = root.joinpath("manifests", *where, model, tag)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "config": blob(root, b"{}"), "layers": layers}))
    return path


# ---- Ollama ----------------------------------------------------------------------------------------------------------


def test_a_pulled_model_is_served_from_its_blob(store: Path) -> None:
    weights = layer(store, "model", gguf(store, llama__context_length=4096))
    pulled(store, "llama3.2:3b", weights, layer(store, "license", b"MIT"), layer(store, "template", b"{{ .Prompt }}"))
    model = only(ollama(store))
    assert (model.id, model.source, model.error) == ("llama3.2:3b", "ollama", None)
    assert model.source in FOREIGN
    assert Path(model.path).parent == store / "blobs"
    assert model.info.context_length == 4096


def test_parameters_become_flags_and_what_is_not_certain_does_not(store: Path) -> None:
    parameters = {
        "temperature": 0.6,
        "top_k": 20,
        "num_ctx": 8192,
        "num_gpu": 99,
        "stop": ["<|im_end|>"],
        "seed": True,
        "top_p": 3,
        "num_predict": -2,
    }
    weights = layer(store, "model", gguf(store))
    pulled(store, "qwen:latest", weights, layer(store, "params", json.dumps(parameters).encode()))
    assert only(ollama(store)).args == ("--ctx-size", "8192", "--temp", "0.6", "--top-k", "20")
    assert only(ollama(store)).words == OwnWords(stop=("<|im_end|>",))


def test_a_model_keeps_the_words_of_its_maker(store: Path) -> None:
    weights = layer(store, "model", gguf(store))
    said = layer(store, "messages", b'[{"role": "user", "content": "hi"}]')
    pulled(store, "mario:8b", weights, layer(store, "system", b"You are Mario"), said)
    pulled(store, "plain:8b", weights, layer(store, "messages", b"damaged"), layer(store, "params", b'{"stop": "<x>"}'))
    mario, plain = ollama(store).models
    assert mario.words == OwnWords(system="You are Mario", messages=(("user", "hi"),))
    assert plain.words == OwnWords(stop=("<x>",))


def test_projector_and_adapter_go_with_their_model(store: Path) -> None:
    sees = gguf(store, architecture="clip", general__type="mmproj", clip__has_vision_encoder=True)
    adapter = layer(store, "adapter", b"an adapter")
    pulled(store, "llava:7b", layer(store, "model", gguf(store)), layer(store, "projector", sees), adapter)
    model = only(ollama(store))
    assert model.input_modalities == ("text", "image")
    assert engine_flags(model)[0] == "--mmproj"
    flag, path = model.args
    assert flag == "--lora"
    assert Path(path).read_bytes() == b"an adapter"


def test_tags_of_the_same_files_are_one_model(store: Path) -> None:
    weights = layer(store, "model", gguf(store))
    for name in ("llama3.2:latest", "llama3.2:3b", "llama3.2:3b-instruct-q4_K_M"):
        pulled(store, name, weights)
    pulled(store, "llama3.2:long", weights, layer(store, "params", b'{"num_ctx": 65536}'))
    snapshot = ollama(store)
    assert [model.id for model in snapshot.models] == ["llama3.2:3b", "llama3.2:long"]
    for name in ("llama3.2", "llama3.2:latest", "llama3.2:3b-instruct-q4_K_M", "LLAMA3.2"):
        found = snapshot.find(name)
        assert found.id == "llama3.2:3b"


def test_names_are_those_that_ollama_shows(store: Path) -> None:
    weights = [layer(store, "model", gguf(store, weights=8 * number)) for number in (1, 2, 3)]
    pulled(store, "tiny:v1", weights[0], where=("registry.ollama.ai", "someone"))
    pulled(store, "Qwen3-GGUF:Q4_K_M", weights[1], where=("hf.co", "unsloth"))
    pulled(store, "phi:latest", weights[2])
    assert [m.id for m in ollama(store).models] == ["hf.co/unsloth/Qwen3-GGUF:Q4_K_M", "phi:latest", "someone/tiny:v1"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be understood"),
        (b"\xff\xfe", "cannot be understood"),
        (b'{"layers": 5}', "cannot be understood"),
        (b"[" * 100_000, "cannot be understood"),
        (b"{}", "no GGUF weights"),
        (b'{"layers": [%b]}' % LAYER.replace(b"?", b"../../x"), "cannot be one"),
        (b'{"layers": [%b]}' % LAYER.replace(b"?", b"0" * 64), "does not exist"),
    ],
)
def test_a_broken_manifest_is_noted_and_the_others_stay(store: Path, content: bytes, said: str) -> None:
    path = pulled(store, "broken:latest")
    path.write_bytes(content)
    text = note(ollama(store))
    assert said in text
    assert "'broken:latest'" in text
    assert str(path) in text
    pulled(store, "good:latest", layer(store, "model", gguf(store)))
    assert only(ollama(store)).id == "good:latest"


def test_a_download_that_is_not_finished_is_noted(store: Path) -> None:
    weights = layer(store, "model", gguf(store))
    pulled(store, "half:latest", {**weights, "size": 10**9})
    assert "instead of 1000000000" in note(ollama(store))
    lost = {"mediaType": "application/vnd.ollama.image.projector", "digest": "sha256:" + "1" * 64, "size": 5}
    pulled(store, "half:latest", layer(store, "model", b"not a model at all"), lost)
    snapshot = ollama(store)
    model = only(snapshot)
    assert "GGUF" in (model.error or "")
    assert model.mmproj is None
    assert "is used without its projector" in snapshot.notes[0]


def test_stores_that_are_not_there_are_no_matter(tmp_path: Path) -> None:
    nowhere = (tmp_path / "nowhere",)
    snapshot = Catalog(ModelFolders(starter=None, ollama=nowhere, lm_studio=nowhere)).scan()
    assert (snapshot.models, snapshot.notes) == ((), ())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.mark.needs("root")
def test_stores_that_may_not_be_read_are_noted() -> None:
    with open_folder() as root:
        pulled(root / "ollama", "a:latest", layer(root / "ollama", "model", gguf(root / "ollama")))
        write_model(root / "lm" / "pub" / "repo" / "x-Q4_0.gguf")
        closed = (root / "ollama" / "manifests", root / "ollama" / "blobs", root / "lm" / "pub")
        for path in closed:
            path.chmod(0)
        with acting_as(STRANGER):
            first = Catalog(ModelFolders(starter=None, ollama=(root / "ollama",), lm_studio=(root / "lm",))).scan()
        closed[0].chmod(0o755)
        with acting_as(STRANGER):
            second = ollama(root / "ollama")
    assert first.models == ()
    assert len(first.notes) == 2
    assert all("Permission denied" in text for text in (*first.notes, note(second)))


LAYERS = st.dictionaries(st.sampled_from(["mediaType", "digest", "size", "from"]), JSON)


@given(
    st.fixed_dictionaries({"layers": st.lists(LAYERS, max_size=4) | JSON}).map(json.dumps).map(str.encode)
    | st.binary(),
    st.dictionaries(st.text(), JSON).map(json.dumps).map(str.encode) | st.binary(),
)
@example(b'{"layers": [{"size": 1e999}]}', b"[" * 100_000)
def test_no_content_makes_the_readers_raise(manifest: bytes, parameters: bytes) -> None:
    with TemporaryDirectory() as folder:
        pulled(Path(folder), "m:latest").write_bytes(manifest)
        snapshot = ollama(Path(folder))
        assert (snapshot.models, len(snapshot.notes)) == ((), 1)
    engine_args(parameters)


@given(st.sampled_from(["num_ctx", "temperature", "seed", "top_p", "repeat_last_n"]), JSON)
def test_every_flag_has_a_plain_number(name: str, value: object) -> None:
    flags = engine_args(json.dumps({name: value}).encode())
    assert len(flags) in (0, 2)
    if flags:
        assert float(flags[1]) == value
        assert "e" not in flags[1] or float(flags[1]) < 1


# ---- LM Studio -------------------------------------------------------------------------------------------------------


def test_models_of_lm_studio_have_the_ids_of_their_repositories(store: Path) -> None:
    write_model(store / "unsloth" / "Qwen3-8B-GGUF" / "Qwen3-8B-Q4_K_M.gguf")
    write_model(store / "unsloth" / "Qwen3-8B-GGUF" / "Qwen3-8B-Q8_0.gguf")
    write_model(
        store / "unsloth" / "Qwen3-8B-GGUF" / "mmproj-F16.gguf", architecture="clip", clip__has_vision_encoder=True
    )
    (store / "unsloth" / "Qwen3-8B-GGUF" / "downloading_x.gguf.part").write_bytes(b"")
    (store / "mlx-community" / "x").mkdir(parents=True)
    snapshot = lm_studio(store)
    assert [(m.id, m.source) for m in snapshot.models] == [
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "lm_studio"),
        ("unsloth/Qwen3-8B-GGUF:Q8_0", "lm_studio"),
    ]
    for name in ("unsloth/qwen3-8b-gguf", "Qwen3-8B-Q4_K_M"):
        found = snapshot.find(name)
        assert found.id == "unsloth/Qwen3-8B-GGUF:Q4_K_M"
        assert found.input_modalities == ("text", "image")


def test_models_that_share_a_tag_or_have_none_keep_their_own_names(store: Path) -> None:
    for name in ("small-Q4_0", "large-Q4_0", "plain", "big-Q8_0-00001-of-00002", "big-Q8_0-00002-of-00002"):
        write_model(store / "pub" / "repo" / f"{name}.gguf")
    assert [m.id for m in lm_studio(store).models] == [
        "pub/repo:Q8_0",
        "pub/repo:large-Q4_0",
        "pub/repo:plain",
        "pub/repo:small-Q4_0",
    ]


def test_a_model_in_the_hub_cache_and_in_lm_studio_is_listed_once(store: Path, tmp_path: Path) -> None:
    write_model(cached_repository(tmp_path / "hub", "org/repo") / "m-Q4_0.gguf")
    write_model(store / "org" / "repo" / "m-Q4_0.gguf")
    snapshot = Catalog(ModelFolders(starter=None, cache=tmp_path / "hub", lm_studio=(store,))).scan()
    assert only(snapshot).source == "cache"


# ---- where they are --------------------------------------------------------------------------------------------------


def test_where_models_are_kept_and_looked_for_only_when_asked(tmp_path: Path) -> None:
    assert ollama_directories({"OLLAMA_MODELS": "/data/models"}, tmp_path) == (Path("/data/models").absolute(),)
    assert ollama_directories({"OLLAMA_MODELS": ""}, tmp_path)[0] == tmp_path / ".ollama" / "models"
    without = resolve_sources(environ={}, home=tmp_path)
    assert (without.lm_studio, without.ollama) == ((), ())
    found = resolve_sources(environ={}, home=tmp_path, stores=True)
    assert (found.lm_studio, found.ollama) == (lm_studio_directories(tmp_path), ollama_directories({}, tmp_path))
    assert lm_studio_directories(tmp_path) == (
        tmp_path / ".lmstudio" / "models",
        tmp_path / ".cache" / "lm-studio" / "models",
    )
    moved = tmp_path / "moved"
    moved.mkdir()
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    (moved / "settings.json").write_text(json.dumps({"downloadsFolder": str(tmp_path / "chosen"), "x": {"y": 1}}))
    assert lm_studio_directories(tmp_path)[:2] == (tmp_path / "chosen", moved / "models")
    (moved / "settings.json").write_bytes(b"\xff{")
    (tmp_path / ".lmstudio-home-pointer").write_bytes(b"relative\0path")
    assert lm_studio_directories(tmp_path)[0] == tmp_path / ".lmstudio" / "models"
