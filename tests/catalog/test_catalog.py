"""The catalog over real folders: what is found, what wins, and what is merely reported."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gguf_files import COMMIT
from gguf_files import cached_repository as hub
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs
from two_users import STRANGER, acting_as, open_folder

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.found import UnsafeName, here, join_inside
from appliance.catalog.sources import ModelFolders, NamedFile, default_models_dir, resolve_sources
from appliance.core.models.download import RegistryImage
from appliance.core.models.model import Model
from appliance.errors import InvalidModelFile, UsageError

POSIX = sys.platform != "win32"


def scan(**sources) -> Snapshot:
    return Catalog(ModelFolders(**{"starter": None, **sources})).scan()


def ids(snapshot: Snapshot) -> list[str]:
    return [model.id for model in snapshot.models]


def only(snapshot: Snapshot) -> Model:
    (model,) = snapshot.models
    return model


# ---- a models folder -------------------------------------------------------------------------------------------------


def test_a_models_folder(tmp_path: Path, write_model):
    write_model(tmp_path / "plain.gguf", general__name="Plain", general__file_type=7)
    write_model(tmp_path / "mmproj-plain.gguf", architecture="clip")
    write_model(tmp_path / "mtp-plain.gguf")
    write_model(tmp_path / ".hidden.gguf")
    write_model(tmp_path / "seeing" / "model-Q4_K_M.gguf")
    write_model(tmp_path / "seeing" / "mmproj-BF16.gguf", architecture="clip", clip__has_vision_encoder=True)
    write_model(
        tmp_path / "seeing" / "mmproj-F16.gguf",
        architecture="clip",
        clip__has_vision_encoder=True,
        clip__has_audio_encoder=True,
    )
    write_model(tmp_path / "fast" / "model.gguf")
    write_model(tmp_path / "fast" / "mtp-model.gguf")
    write_model(tmp_path / "fast" / "eagle3-model.gguf")
    write_model(tmp_path / "several" / "a-F16.gguf")
    write_model(tmp_path / "several" / "b-Q8_0.gguf")
    write_model(tmp_path / "companions-only" / "mmproj-F16.gguf")
    write_model(tmp_path / "deep" / "er" / "model.gguf")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "empty").mkdir()

    snapshot = scan(models_dir=tmp_path)

    assert ids(snapshot) == ["deep/er:model", "fast", "plain", "seeing", "several"]
    deep, fast, plain, seeing, several = snapshot.models
    assert (deep.path, deep.aliases) == (str(tmp_path / "deep" / "er" / "model.gguf"), ("model",))
    assert plain.path == str(tmp_path / "plain.gguf")
    assert (plain.source, plain.error, plain.mmproj, plain.draft) == ("models_dir", None, None, None)
    assert (plain.info.name, plain.info.quantisation) == ("Plain", "Q8_0")
    assert plain.size == (tmp_path / "plain.gguf").stat().st_size
    assert plain.created == int((tmp_path / "plain.gguf").stat().st_mtime)
    assert seeing.mmproj == str(tmp_path / "seeing" / "mmproj-F16.gguf")
    assert seeing.input_modalities == ("text", "image", "audio")
    assert fast.draft == str(tmp_path / "fast" / "mtp-model.gguf")
    assert fast.path == str(tmp_path / "fast" / "model.gguf")
    assert several.path == str(tmp_path / "several" / "b-Q8_0.gguf")
    left = [Path(note.partition(" is left out: ")[0]).relative_to(tmp_path).as_posix() for note in snapshot.notes]
    assert left == [
        "companions-only/mmproj-F16.gguf",
        "fast/eagle3-model.gguf",
        "seeing/mmproj-BF16.gguf",
        "several/a-F16.gguf",
        "mmproj-plain.gguf",
        "mtp-plain.gguf",
    ]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b", "Q4_K_M", "link", ".hidden"]), max_size=7),
            st.sampled_from(["x-Q4_K_M", "x-Q8_0", "Q8_0", "X", "mmproj-x", "mtp-x", "imatrix", "y-00001-of-00002"]),
            st.sampled_from([".gguf", ".GGUF"]),
        ),
        max_size=9,
    )
)
@example([(["a"], "x-Q4_K_M", ".gguf"), (["a"], "x-Q4_K_M", ".GGUF"), (["a", "a"], "x-Q4_K_M", ".gguf")])
def test_every_file_of_a_deep_folder_is_a_model_or_is_reported(files: list[tuple[list[str], str, str]]) -> None:
    with TemporaryDirectory() as folder:
        root, paths = Path(folder) / "models", list[Path]()
        for folders, stem, end in files:
            path = root.joinpath(*folders, stem + (".gguf" if stem[0] == "y" else end))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            paths.append(path)
        root.mkdir(exist_ok=True)
        found = scan(models_dir=root)
        used = {str(path) for model in found.models for path in (model.path, model.mmproj, model.draft)}
        assert len({model.path for model in found.models}) == len(found.models)
        for path in paths:
            hidden = ".hidden" in path.parts
            said = any(str(one) in note for note in found.notes for one in (path, *path.parents) if root in one.parents)
            assert hidden or str(path) in used or said, (path, found.notes)
            assert not (hidden and str(path) in used)


def test_shards_are_one_model(tmp_path: Path, write_model):
    for folder in (tmp_path, tmp_path / "folder"):
        for part, weights in ((1, 0), (2, 8), (3, 16)):
            name = f"big-Q8_0-{part:05}-of-00003.gguf"
            architecture = "llama" if part == 1 else ""  # as llama-gguf-split writes them
            write_model(folder / name, weights=weights, architecture=architecture, split__count=3, split__no=part - 1)
    write_model(tmp_path / "folder" / "single-Q4_K_M.gguf")

    big, folder = scan(models_dir=tmp_path).models

    assert big.id == "big-Q8_0"
    assert big.aliases == ("big-Q8_0-00001-of-00003",)
    assert big.path == str(tmp_path / "big-Q8_0-00001-of-00003.gguf")
    assert (big.error, folder.error) == (None, None)
    assert (big.info.parameters, big.info.tensor_count) == (24, 2)
    assert big.size == sum(path.stat().st_size for path in tmp_path.glob("big*"))
    assert folder.path == str(tmp_path / "folder" / "big-Q8_0-00001-of-00003.gguf")


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_shard_is_the_models_error(tmp_path: Path, write_model, missing: int):
    for part in {1, 2, 3} - {missing}:
        write_model(tmp_path / f"big-{part:05}-of-00003.gguf", split__count=3)
    model = only(scan(models_dir=tmp_path))
    assert model.id == "big"
    assert model.error == f"part {missing} of 3 is missing; copy or download it again"


def test_files_that_are_no_models_are_listed_with_their_error(tmp_path: Path, write_model):
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "page.gguf").write_text("<!doctype html><title>404</title>")
    whole = write_model(tmp_path / "short.gguf").read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[:-1])
    write_model(tmp_path / "vocabulary.gguf", weights=0)
    write_model(tmp_path / "lora.gguf", general__type="adapter")
    write_model(tmp_path / "eyes.gguf", architecture="clip")
    write_model(tmp_path / "renamed.gguf", split__count=2)
    write_model(tmp_path / "seeing" / "model.gguf")
    (tmp_path / "seeing" / "mmproj-F16.gguf").write_bytes(b"GGUF")

    snapshot = scan(models_dir=tmp_path)
    seeing = snapshot.require("seeing")
    assert (seeing.mmproj, seeing.input_modalities) == (None, ("text",)), "it works without its broken companion"
    assert "mmproj-F16.gguf" in "".join(snapshot.notes)

    errors = {model.id: model.error for model in snapshot.models if model.error}
    assert set(errors) == {"empty", "page", "short", "vocabulary", "lora", "eyes", "renamed"}
    for model_id, words in {
        "empty": "is empty",
        "page": "GGUF",
        "short": "past the end",
        "vocabulary": "no weights",
        "lora": "--lora",
        "eyes": "projector",
        "renamed": "2 parts",
    }.items():
        assert words in errors[model_id]
    with pytest.raises(InvalidModelFile, match="is empty"):
        snapshot.require("empty")


@pytest.mark.skipif(not POSIX, reason="Windows has no FIFOs, and its links need a privilege")
def test_special_files_and_links(tmp_path: Path, write_model):
    models = tmp_path / "models"
    models.mkdir()
    os.mkfifo(models / "fifo.gguf")
    os.mkfifo(models / "mmproj-fifo.gguf")
    (models / "folder").mkdir()
    os.mkfifo(models / "folder" / "inner.gguf")
    (models / "device.gguf").symlink_to("/dev/zero")
    (models / "directory.gguf").mkdir()
    (models / "nowhere.gguf").symlink_to(tmp_path / "gone")
    (models / "loop.gguf").symlink_to(models / "loop.gguf")
    (models / "up").symlink_to(models)
    (models / "round").symlink_to(models / "round")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(models / "socket.gguf"))
    write_model(tmp_path / "elsewhere" / "real.gguf")
    (models / "linked.gguf").symlink_to(tmp_path / "elsewhere" / "real.gguf")
    (models / "linked-folder").symlink_to(tmp_path / "elsewhere")

    found = {model.id: model.error for model in scan(models_dir=models).models}

    assert found.pop("linked") is None
    assert found.pop("linked-folder") is None
    assert "does not exist" in (found.pop("nowhere") or "")
    assert "cannot be read" in (found.pop("loop") or "")
    assert found.pop("up")  # the folder again, one level deep: its first model is the device, which is not opened
    assert found == dict.fromkeys(("fifo", "folder", "device", "socket"), "it is not a regular file")


@pytest.mark.needs("root")
def test_what_may_not_be_read_is_reported(write_model):
    with open_folder() as folder:
        closed = write_model(folder / "closed" / "model.gguf").parent
        secret = write_model(folder / "secret.gguf")
        write_model(folder / "open.gguf")
        catalog = Catalog(ModelFolders(models_dir=folder, starter=None))
        for path in (secret, closed):
            path.chmod(0)
        with acting_as(STRANGER):
            assert {model.id: model.error for model in catalog.scan().models} == {
                "closed": "the folder cannot be read: Permission denied",
                "open": None,
                "secret": f"it cannot be read: Permission denied; 'sudo chmod a+r {secret}' changes that",
            }
            snapshot = scan(models_dir=closed)
        assert (ids(snapshot), "Permission denied" in snapshot.notes[0]) == ([], True)
        for path in (secret, closed):
            path.chmod(0o755)
        with acting_as(STRANGER):
            assert [model.error for model in catalog.scan().models] == [None, None, None]


@pytest.mark.skipif(not POSIX, reason="Windows does not allow these names")
def test_names_that_cannot_be_written_down_are_noted(tmp_path: Path, write_model):
    write_model(tmp_path / "two\nlines.gguf")
    write_model(tmp_path / "escape\x1b[2J.gguf")
    write_model(Path(os.fsdecode(os.fsencode(tmp_path) + b"/not-utf8-\xff.gguf")))
    write_model(tmp_path / "fine.gguf")
    snapshot = scan(models_dir=tmp_path)
    assert ids(snapshot) == ["fine"]
    assert len(snapshot.notes) == 3
    assert all(note.isprintable() for note in snapshot.notes)


# ---- the Hugging Face cache ------------------------------------------------------------------------------------------


def test_a_cache(tmp_path: Path, write_model):
    snapshot = hub(tmp_path, "ggml-org/tiny-GGUF")
    blob = write_model(tmp_path / "models--ggml-org--tiny-GGUF" / "blobs" / "abc", general__name="Tiny")
    if POSIX:
        (snapshot / "tiny-q8_0.gguf").symlink_to("../../blobs/abc")
    else:
        (snapshot / "tiny-q8_0.gguf").write_bytes(blob.read_bytes())
    for part in (1, 2):
        write_model(snapshot / "F16" / f"tiny-F16-0000{part}-of-00002.gguf", split__count=2)
    write_model(snapshot / "tiny-F32-00001-of-00002.gguf", split__count=2)
    write_model(snapshot / "F16" / "mmproj-tiny-F16.gguf", architecture="clip", clip__has_vision_encoder=True)
    write_model(snapshot / "mmproj-tiny-Q8_0.gguf", architecture="clip", clip__has_audio_encoder=True)
    write_model(snapshot / "mtp-tiny-Q8_0.gguf")
    write_model(snapshot / "tiny-mtp-Q4_K_M.gguf")
    write_model(snapshot / "no tag.gguf")
    write_model(tmp_path / "models--ggml-org--tiny-GGUF" / "snapshots" / ("f" * 40) / "old-Q4_0.gguf")
    write_model(tmp_path / "stray-Q4_0.gguf")

    models = scan(cache=tmp_path).models

    plain, f16, f32, q8 = models
    assert plain.id == "ggml-org/tiny-GGUF/no tag.gguf"
    assert [model.id for model in models[1:]] == [f"ggml-org/tiny-GGUF:{tag}" for tag in ("F16", "F32", "Q8_0")]
    assert (f16.error, f32.error) == (None, "part 2 of 2 is missing; copy or download it again")
    assert (q8.source, q8.hf_repo, q8.tag, q8.error) == ("cache", "ggml-org/tiny-GGUF", "Q8_0", None)
    assert q8.path == str(snapshot / "tiny-q8_0.gguf")
    assert q8.info.name == "Tiny"
    assert q8.size == blob.stat().st_size
    assert (q8.mmproj, q8.input_modalities) == (str(snapshot / "mmproj-tiny-Q8_0.gguf"), ("text", "audio"))
    assert f16.mmproj == str(snapshot / "F16" / "mmproj-tiny-F16.gguf")
    assert (f16.draft, q8.draft) == (None, None)


def test_a_cached_model_is_found_without_its_tag(tmp_path: Path, write_model):
    snapshot = hub(tmp_path, "Org/Repo")
    for tag in ("BF16", "Q8_0", "Q4_K_M"):
        write_model(snapshot / f"x-{tag}.gguf")
    found = scan(cache=tmp_path)
    for name in ("Org/Repo", "org/repo", "org/repo:q4_k_m", "Org/Repo:Q4_K_M"):
        assert found.require(name).id == "Org/Repo:Q4_K_M"
    (snapshot / "x-Q4_K_M.gguf").unlink()
    assert scan(cache=tmp_path).require("Org/Repo").id == "Org/Repo:Q8_0"


def test_a_cache_made_to_hurt(tmp_path: Path, write_model):
    write_model(tmp_path / "outside-Q6_K.gguf")
    root = tmp_path / "hub"
    for number, ref in enumerate(
        ("", "main", "../../..", "f" * 40, "..", "/etc", COMMIT[:-1], COMMIT + "0", "\0" * 40, "é" * 20, "a" * 100_000)
    ):
        write_model(hub(root, f"bad/ref{number}", ref=ref) / "x-Q8_0.gguf")
    for name in (
        *(["models--..--.."] if POSIX else []),  # Windows drops the last dots of a name
        "models--a",
        "models--a--b--c",
        "models--a--b c",
        "models--",
        "--",
        "datasets--a--b",
    ):
        write_model(root / name / "snapshots" / COMMIT / "x-Q8_0.gguf")
        (root / name / "refs").mkdir()
        (root / name / "refs" / "main").write_text(COMMIT)
    (root / "models--ref--folder" / "refs" / "main").mkdir(parents=True)
    (root / "models--no--refs").mkdir()
    (root / "models--a--file").touch()
    hub(root, "no/snapshot").rmdir()
    write_model(hub(root, "no/commit", ref="main").with_name("main") / "x-Q8_0.gguf")
    deep = hub(root, "deep/tree")
    write_model(deep.joinpath(*"abcdefgh") / "x-Q8_0.gguf")
    good = hub(root, "good/one", ref=COMMIT + "\n")
    write_model(good / "x-Q8_0.gguf")
    expected = ["good/one:Q8_0"]
    if POSIX:
        (good / "up").symlink_to(tmp_path)
        (good / "y-F16.gguf").symlink_to("../../blobs/gone")
        (root / "models--fifo--ref" / "refs").mkdir(parents=True)
        os.mkfifo(root / "models--fifo--ref" / "refs" / "main")
        expected.insert(0, "good/one:F16")

    assert ids(scan(cache=root)) == expected


# ---- precedence, rescans, lookup -------------------------------------------------------------------------------------


def test_the_stronger_source_wins(tmp_path: Path, write_model):
    explicit = write_model(tmp_path / "explicit" / "m.gguf", general__name="explicit")
    write_model(tmp_path / "models" / "m.gguf", general__name="models")
    write_model(tmp_path / "models" / "starter.gguf", general__name="mine")
    write_model(hub(tmp_path / "hub", "o/r") / "x-Q8_0.gguf", general__name="cache")
    starter = write_model(tmp_path / "starter" / "s.gguf", general__name="shipped")
    everything = {"models_dir": tmp_path / "models", "cache": tmp_path / "hub", "starter": starter}

    def names(*files: NamedFile) -> dict[str, tuple[str, str | None]]:
        models = scan(files=files, **everything).models
        return {model.id: (model.source, model.info and model.info.name) for model in models}

    assert names() == {"m": ("models_dir", "models"), "o/r:Q8_0": ("cache", "cache"), "starter": ("models_dir", "mine")}
    assert names(NamedFile("m", str(explicit)), NamedFile("o/r:Q8_0", str(explicit))) == {
        "m": ("path", "explicit"),
        "o/r:Q8_0": ("path", "explicit"),
        "starter": ("models_dir", "mine"),
    }


def test_the_starter_model_has_its_own_flags(tmp_path: Path, write_model, starter_model: Path):
    model = only(scan(starter=write_model(tmp_path / "s.gguf")))
    assert (model.id, model.source) == ("starter", "starter")
    flags = dict(zip(model.args[::2], model.args[1::2], strict=True))
    assert flags["--n-predict"] == "512", "an answer of this model must not run for ever"
    assert flags["--temp"] == "0"
    shipped = only(Catalog(ModelFolders()).scan())
    assert (shipped.id, shipped.path, shipped.error) == ("starter", str(starter_model), None)


def test_a_rescan_sees_what_changed_and_reads_nothing_twice(tmp_path: Path, write_model):
    for number in range(5):
        write_model(tmp_path / f"m{number}.gguf", general__name="old")
    catalog = Catalog(ModelFolders(models_dir=tmp_path, starter=None))
    before = {model.id: model for model in catalog.scan().models}
    (tmp_path / "m0.gguf").unlink()
    write_model(tmp_path / "m1.gguf", general__name="a new name")
    write_model(tmp_path / "m5.gguf")
    after = {model.id: model for model in catalog.scan().models}
    assert sorted(after) == ["m1", "m2", "m3", "m4", "m5"]
    assert after["m1"].info.name == "a new name"
    assert all(after[same].info is before[same].info for same in ("m2", "m3", "m4"))
    assert catalog.snapshot.find("m0") is None


def test_a_folder_that_vanishes_holds_nothing(tmp_path: Path, write_model):
    model = write_model(tmp_path / "models" / "m.gguf")
    catalog = Catalog(ModelFolders(files=(NamedFile("x", str(model)),), models_dir=tmp_path / "models", starter=None))
    assert ids(catalog.scan()) == ["m", "x"]
    model.unlink()
    model.parent.rmdir()
    (gone,) = catalog.scan().models
    assert gone.id == "x"
    assert "does not exist" in (gone.error or "")


# ---- the command line ------------------------------------------------------------------------------------------------


def resolve(tmp_path: Path, **more) -> ModelFolders:
    return resolve_sources(**{"environ": {}, "home": tmp_path / "home", **more})


def test_models_on_the_command_line(tmp_path: Path, write_model, monkeypatch: pytest.MonkeyPatch):
    one = write_model(tmp_path / "one-00001-of-00002.gguf", split__count=2)
    two = write_model(tmp_path / "one-00002-of-00002.gguf", split__count=2)
    odd = write_model(tmp_path / "a=b.gguf")
    sources = resolve(tmp_path, models=[str(two), f"chat={one}", str(odd), str(odd)])
    assert [file.id for file in sources.files] == ["one", "chat", "a=b"]
    models = scan(files=sources.files).models
    assert {model.id: model.path for model in models} == {"one": str(one), "chat": str(one), "a=b": str(odd)}
    assert not any(model.error for model in models)
    monkeypatch.chdir(tmp_path)
    assert resolve(tmp_path, models=["a=b.gguf"]).files == (NamedFile("a=b", str(odd)),)
    assert resolve(tmp_path, models=["x=a=b.gguf"]).files == (NamedFile("x", str(odd)),)


def test_mistakes_on_the_command_line(tmp_path: Path, write_model):
    model = write_model(tmp_path / "a" / "m.gguf")
    other = write_model(tmp_path / "b" / "m.gguf")
    for words, arguments in (
        ("gone.gguf: there is no such file", {"models": [str(tmp_path / "gone.gguf")]}),
        ("gone.gguf: there is no such file", {"models": [f"x={tmp_path / 'gone.gguf'}"]}),
        ("use --models-dir", {"models": [str(tmp_path)]}),
        ("--model NAME=", {"models": [str(model), str(other)]}),
        ("cannot be used for a model", {"models": [f"\t={model}"]}),
        ("does not exist", {"models_dir": str(tmp_path / "gone")}),
        ("is not a directory", {"models_dir": str(model)}),
    ):
        with pytest.raises(UsageError, match=words):
            resolve(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("home", ".cache", "huggingface", "hub")),
        ({"XDG_CACHE_HOME": "xdg"}, ("xdg", "huggingface", "hub")),
        ({"XDG_CACHE_HOME": "xdg", "HF_HOME": "hf"}, ("hf", "hub")),
        ({"HF_HOME": "hf", "HUGGINGFACE_HUB_CACHE": "old"}, ("old",)),
        ({"HUGGINGFACE_HUB_CACHE": "old", "HF_HUB_CACHE": "new"}, ("new",)),
        ({"HF_HUB_CACHE": "new", "LLAMA_CACHE": "llama"}, ("llama",)),
        ({"LLAMA_CACHE": "", "HF_HUB_CACHE": "new"}, ("new",)),
    ],
)
def test_where_the_cache_is(tmp_path: Path, environ, expected):
    absolute = {name: value and str(tmp_path / value) for name, value in environ.items()}
    assert resolve(tmp_path, environ=absolute).cache == tmp_path.joinpath(*expected)


def test_the_default_models_folder_need_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_model):
    for variable in ("XDG_DATA_HOME", "WIN_PD_OVERRIDE_LOCAL_APPDATA", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    sources = resolve(tmp_path, starter=None)
    assert sources.models_dir == default_models_dir()
    assert ids(Catalog(sources).scan()) == []
    write_model(default_models_dir() / "m.gguf")
    assert ids(Catalog(sources).scan()) == ["m"]
    assert resolve(tmp_path, models_dir=str(tmp_path)).models_dir == tmp_path


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\\b", "C:", "file:stream", "a\0b"])
def test_names_that_would_lead_out(tmp_path: Path, name: str):
    with pytest.raises(UnsafeName):
        join_inside(tmp_path, "fine", name)


@given(st.lists(st.text(max_size=8) | st.sampled_from(["..", ".", "a/..", "/"]), max_size=4))
def test_a_joined_path_is_below_its_root(names: list[str]):
    root = Path("root").absolute()
    try:
        joined = join_inside(root, *names)
    except UnsafeName:
        return
    assert joined.parts[: len(root.parts)] == root.parts
    assert len(joined.parts) == len(root.parts) + len(names)
    assert ".." not in joined.parts


def test_an_image_is_here_when_its_tag_leads_to_a_model(tmp_path: Path):
    image = RegistryImage(repo="ai/smol", tag="1")
    snapshot = tmp_path / image.folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "mmproj.gguf").touch()
    assert here(tmp_path, image) is None
    (tmp_path / image.folder / "refs").mkdir()
    (tmp_path / image.folder / "refs" / "1").write_text(COMMIT)
    assert here(tmp_path, image) is None, "there is a projector alone"
    (snapshot / "model.gguf").touch()
    found = here(tmp_path, image)
    assert found is not None
    assert (found.files, found.tag) == ((str(snapshot / "model.gguf"),), "1")
    assert found.mmproj == str(snapshot / "mmproj.gguf")
    assert here(tmp_path, structs.replace(image, tag="2")) is None
