"""Presets over real folders and a real cache. The expectations are what llama-server b11434's router listed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from gguf_files import WriteModel, cached_repository

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import STARTER, ModelFolders
from appliance.core.llama import flags
from appliance.core.models.download import Location
from appliance.core.models.model import Model
from appliance.errors import InvalidConfig, InvalidModelFile, UsageError
from appliance.features.stand_in.core.preset_file import chosen
from appliance.features.stand_in.preset_models import LARGEST, open_presets

BOTH = {"org/repo:Q8_0", "org/draft:F32"}


class Disk:
    """A models folder, a cache, and a preset file."""

    def __init__(self, root: Path, write_model: WriteModel) -> None:
        self.models = root / "models"
        self.cache = root / "cache"
        self.file = root / "p.ini"
        self._write = write_model
        self.models.mkdir()
        self.file.write_text("")

    def model(self, *names: str) -> None:
        self._fill(self.models, names)

    def cached(self, repo: str, *names: str) -> Path:
        return self._fill(cached_repository(self.cache, repo), names)

    def _fill(self, folder: Path, names: Iterable[str]) -> Path:
        for name in names:
            mmproj = {"architecture": "clip", "clip__has_vision_encoder": True} if "mmproj" in name else {}
            self._write(folder / name, **mmproj)
        return folder

    def catalog(self, text: str, argv: str = "", starter: Path | None = None) -> Catalog:
        self.file.write_text(text)
        presets, _ = open_presets(self.file, command=chosen(flags.split(argv.split())))
        catalog = Catalog(ModelFolders(models_dir=self.models, cache=self.cache, starter=starter, presets=presets))
        catalog.scan()
        return catalog

    def serve(self, text: str, argv: str = "", starter: Path | None = None) -> dict[str, Model]:
        return {model.id: model for model in self.catalog(text, argv, starter).snapshot.models}


@pytest.fixture
def disk(tmp_path: Path, write_model: WriteModel) -> Disk:
    return Disk(tmp_path, write_model)


def absolute(path: str) -> str:
    """As the program writes it: with the drive of the working directory, where there are drives."""
    return str(Path(path).absolute())


def listed(models: dict[str, Model]) -> list[str]:
    return [model.id for model in models.values() if not model.hidden]


def test_sections_beside_and_over_what_is_on_disk(disk: Disk) -> None:
    disk.model("plain.gguf", "D/a-Q8_0.gguf", "D/mmproj-F16.gguf", "D/mtp-x.gguf", "other.gguf")
    snapshot = disk.cached("org/repo", "model-Q4_K_M.gguf", "model-Q8_0.gguf", "mmproj-F16.gguf")
    models = disk.serve(
        f"[*]\nc=1\n[plain]\nngl=3\nalias=zz\n[org/repo:q8_0]\nngl=4\n[new]\nm={disk.models / 'other.gguf'}\ntags=t\n"
    )
    assert {model.id: (model.source, " ".join(model.args)) for model in models.values()} == {
        "D": ("models_dir", "--ctx-size 1"),
        "new": ("preset", "--ctx-size 1"),
        "org/repo:Q4_K_M": ("cache", "--ctx-size 1"),
        "org/repo:Q8_0": ("preset", "--ctx-size 1 --n-gpu-layers 4"),
        "other": ("models_dir", "--ctx-size 1"),
        "plain": ("preset", "--ctx-size 1 --n-gpu-layers 3"),
    }
    assert models["plain"].aliases == ("zz",)
    assert models["plain"].path == str(disk.models / "plain.gguf")
    assert models["new"].path == str(disk.models / "other.gguf")
    assert models["new"].tags == ("t",)
    assert models["new"].info is not None
    assert models["new"].size == models["other"].size
    assert models["org/repo:Q8_0"].path == str(snapshot / "model-Q8_0.gguf")
    assert models["org/repo:Q8_0"].mmproj == str(snapshot / "mmproj-F16.gguf")
    assert (models["D"].mmproj, models["D"].draft) == (
        str(disk.models / "D" / "mmproj-F16.gguf"),
        str(disk.models / "D" / "mtp-x.gguf"),
    )
    assert not any(model.error for model in models.values())


@pytest.mark.parametrize("key", ["mmproj", "model-draft", "chat-template-file", "grammar-file", "json-schema-file"])
def test_a_file_beside_the_model_that_is_missing_is_told_before_the_load(disk: Disk, key: str) -> None:
    disk.model("a.gguf", "there.gguf")
    text = f"[m]\nmodel={disk.models / 'a.gguf'}\n{key}="
    assert "does not exist" not in (disk.serve(f"{text}{disk.models / 'there.gguf'}\n")["m"].error or "")
    told = disk.serve(f"{text}{disk.models / 'gone.gguf'}\n")["m"].error or ""
    assert told == f"its {key} {disk.models / 'gone.gguf'} does not exist; correct the path, or remove the key"


def test_a_section_replaces_the_files_of_a_model_and_what_is_said_for_all_does_not(disk: Disk) -> None:
    disk.model("D/a.gguf", "D/mmproj-F16.gguf", "other.gguf", "own-mmproj.gguf")
    disk.cached("org/repo", "model-Q8_0.gguf")
    draft = disk.cached("org/draft", "d-F32.gguf") / "d-F32.gguf"
    models = disk.serve("[*]\nmodel=/star.gguf\n[m]\nc=1\n")
    assert models["D"].path == str(disk.models / "D" / "a.gguf")
    assert models["org/repo:Q8_0"].path.endswith("model-Q8_0.gguf")
    assert models["m"].path == absolute("/star.gguf")
    own, other = disk.models / "own-mmproj.gguf", disk.models / "other.gguf"
    models = disk.serve(f"[D]\nmmproj={own}\n[org/repo:Q8_0]\nmodel={other}\n[other]\nhf-repo-draft=org/draft\n")
    assert (models["D"].mmproj, models["org/repo:Q8_0"].path) == (str(own), str(other))
    assert (models["other"].draft, models["other"].args) == (str(draft), ())
    declined = disk.serve("[D]\nno-mmproj = true\n")["D"]
    assert (declined.mmproj, declined.input_modalities) == (None, ("text",))


@pytest.mark.parametrize(
    ("setting", "file"),
    [
        ("hf-repo=org/repo:q8_0", "model-Q8_0.gguf"),
        ("hf-repo=org/repo", "model-Q4_K_M.gguf"),
        ("hf-repo=org/repo\nhf-file=model-Q8_0.gguf", "model-Q8_0.gguf"),
    ],
)
def test_a_repository_that_is_in_the_cache(disk: Disk, setting: str, file: str) -> None:
    snapshot = disk.cached("org/repo", "model-Q4_K_M.gguf", "model-Q8_0.gguf", "mmproj-F16.gguf")
    model = disk.serve(f"[a]\n{setting}\n")["a"]
    assert (model.path, model.mmproj, model.args) == (str(snapshot / file), str(snapshot / "mmproj-F16.gguf"), ())
    assert (model.error, model.source) == (None, "preset")
    assert disk.serve("[org/repo]\nngl=5\n")["org/repo"].path == str(snapshot / "model-Q4_K_M.gguf")


URL = "https://example.org/x.gguf"


def test_what_is_not_here_is_to_be_fetched(disk: Disk) -> None:
    models = disk.serve(
        f"[a]\nhf-repo=org/none:q8_0\nhfd=org/draft\n[b]\nmodel-url={URL}\n[c]\ndocker-repo=smol:7\n"
        f"[d]\nmodel-url={URL}\nmodel=mine/d.gguf\nmmproj-url={URL}p\nmmproj=mine/p.gguf\n"
        f"[e]\nmodel-url={URL}\ndocker-repo=smol\nhf-repo=org/none\n[f]\nmodel-url={URL}\ndocker-repo=smol\n"
    )
    assert models["a"].args == ("--hf-repo", "org/none:q8_0", "--hf-repo-draft", "org/draft")
    assert models["b"].args == ("--model-url", URL)
    assert models["c"].args == ("--docker-repo", "smol:7")
    assert {name: [str(wanted) for wanted in model.fetch] for name, model in models.items()} == {
        "a": ["org/none:Q8_0", "org/draft"],
        "b": [URL],
        "c": ["ai/smol:7"],
        "d": [URL, f"{URL}p"],
        "e": ["org/none"],
        "f": ["ai/smol:latest"],
    }
    wanted = [want for want in models["d"].fetch if isinstance(want, Location)]
    assert [want.path for want in wanted] == [str(Path("mine/d.gguf").absolute()), str(Path("mine/p.gguf").absolute())]
    assert {(model.path, model.error) for model in models.values()} == {("", None)}


def test_an_address_whose_file_is_here(disk: Disk, write_model: WriteModel) -> None:
    cache, mine = disk.cache, disk.models.parent / "mine.gguf"
    for path in (cache / "x.gguf", mine):
        write_model(path)
    models = disk.serve(f"[a]\nmodel-url={URL}\nc=7\n[b]\nmodel-url={URL}.gguf\nmodel={mine}\n")
    assert [(model.path, model.args, model.fetch) for model in models.values()] == [
        (str(cache / "x.gguf"), ("--ctx-size", "7"), ()),
        (str(mine), (), ()),
    ]


@pytest.mark.parametrize(
    "setting", ["model-url=ftp://example.org/x.gguf", "docker-repo=No Name", "hf-repo=org/none\nmmproj-url=nowhere"]
)
def test_an_address_that_is_none_is_told(disk: Disk, setting: str) -> None:
    models = disk.serve(f"[a]\nhf-repo=org/none\n[b]\n{setting}\n")
    assert setting.rpartition("=")[2] in models["b"].error


def test_a_section_without_a_file_is_listed_and_says_what_to_do(disk: Disk) -> None:
    catalog = disk.catalog("[m]\nc=1\n")
    with pytest.raises(InvalidModelFile, match=r"'m' is not a usable.*add model = PATH, or hf-repo = ORG/REPO:TAG"):
        catalog.snapshot.require("m")


def test_a_sharded_model_goes_by_both_its_names(disk: Disk) -> None:
    disk.model("big-00001-of-00002.gguf", "big-00002-of-00002.gguf")
    models = disk.serve("[big-00001-of-00002]\nc=1\n")
    assert [(model.id, model.aliases, model.args) for model in models.values()] == [
        ("big", ("big-00001-of-00002",), ("--ctx-size", "1"))
    ]


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("[*]\ndedup-cache-models=true\n[a]\nhf-repo=org/repo:q8_0\n", {"org/repo:Q8_0"}),
        ("[a]\ndedup-cache-models=true\nhf-repo=org/repo\n", {"org/repo:Q4_K_M"}),
        ("[a]\ndedup-cache-models=true\nhf-repo=org/repo\nhf-file=model-Q8_0.gguf\n", {"org/repo:Q8_0"}),
        ("[a]\ndedup-cache-models=true\nhf-repo=org/repo:Q8_0\nspec-draft-hf=org/draft:F32\n", BOTH),
        ("[a]\ndedup-cache-models=true\nhf-repo=org/repo:Q8_0\nspec-draft-hf=org/draft\n", BOTH),
        ("[org/repo:Q8_0]\ndedup-cache-models=true\nngl=1\n", set()),
        ("[*]\ndedup-cache-models=1\n[b]\ndedup-cache-models=off\nhf-repo=org/repo:Q4_K_M\n", set()),
        ("[a]\nhf-repo=org/repo:q8_0\n", set()),
    ],
)
def test_cached_models_that_a_preset_stands_for_are_not_listed(disk: Disk, text: str, hidden: set[str]) -> None:
    disk.cached("org/repo", "model-Q4_K_M.gguf", "model-Q8_0.gguf")
    disk.cached("org/draft", "d-F32.gguf")
    catalog = disk.catalog(text)
    assert {model.id for model in catalog.snapshot.models if model.hidden} == hidden
    assert all(catalog.snapshot.require(name).path for name in hidden)


def test_an_alias_that_a_model_on_disk_has_for_a_name_is_left_out_and_told(disk: Disk) -> None:
    disk.model("plain.gguf")
    catalog = disk.catalog("[a]\nm=/x\nalias=plain,free\n")
    assert {model.id: model.aliases for model in catalog.snapshot.models} == {"a": ("free",), "plain": ()}
    assert any("'a' does not get the alias 'plain'" in note for note in catalog.snapshot.notes)


def test_a_relative_path_counts_from_where_the_program_was_started(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.model("plain.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    models = disk.serve("[a]\nmodel = models/plain.gguf\n[b]\nmodel = ~/models/plain.gguf\n")
    assert models["a"].path == models["b"].path == str(disk.models / "plain.gguf")


def test_the_starters_own_flags_stand_between_star_and_section(disk: Disk) -> None:
    args = disk.serve("[*]\ntemp=1\nc=1\n", starter=STARTER)["starter"].args
    assert args[args.index("--temperature") + 1] == "0"
    args = disk.serve("[starter]\ntemp=1\n", starter=STARTER)["starter"].args
    assert args[args.index("--temperature") + 1] == "1"
    assert args.count("--temperature") == 1


def test_the_routers_own_keys_reach_the_model(disk: Disk) -> None:
    disk.model("plain.gguf", "other.gguf")
    models = disk.serve("[*]\nload-on-startup=true\nstop-timeout=4\n[plain]\nload-on-startup=off\n", argv="--metrics")
    assert {m.id: (m.load_on_startup, m.stop_timeout, m.args) for m in models.values()} == {
        "other": (True, 4.0, ("--metrics",)),
        "plain": (False, 4.0, ("--metrics",)),
    }
    assert "load-on-startup = off\n" in models["plain"].preset
    assert ("--metrics", "--metrics") in models["plain"].origins
    assert ("load-on-startup", f"{disk.file}:5") in models["plain"].origins


# ---- reading again ---------------------------------------------------------------------------------------------------


def test_a_changed_file_shows_when_the_catalog_is_asked_to_look(disk: Disk) -> None:
    catalog = disk.catalog("[a]\nm=/x\n[gone]\nm=/g\n")
    disk.file.write_text("[a]\nm=/y\nalias=q\n[b]\nm=/z\nport=3\n")
    catalog.refresh(0)
    assert [model.id for model in catalog.snapshot.models] == ["a", "gone"]
    snapshot = catalog.scan()
    assert any("port is for the server" in note for note in snapshot.notes)
    assert {model.id: (model.path, model.aliases) for model in snapshot.models} == {
        "a": (absolute("/y"), ("q",)),
        "b": (absolute("/z"), ()),
    }


def test_a_mistake_changes_nothing(disk: Disk) -> None:
    catalog = disk.catalog("[a]\nm=/x\n")
    before = catalog.snapshot
    for text, message in (("[a]\nzip=3\n", "zip"), ("[a]\nm=/y\n[b]\nalias=a\n", "alias 'a'")):
        disk.file.write_text(text)
        with pytest.raises(InvalidConfig, match=message):
            catalog.scan()
        assert catalog.snapshot is before
    disk.file.unlink()
    with pytest.raises(UsageError, match="there is no file"):
        catalog.scan()
    catalog.refresh(0)
    assert [model.path for model in catalog.snapshot.models] == [absolute("/x")]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "p.ini"
    with pytest.raises(UsageError, match="there is no file"):
        open_presets(file)
    with pytest.raises(UsageError, match="cannot be read: it is not a regular file"):
        open_presets(tmp_path)
    file.write_bytes(b"[m]\nm=\xff\n")
    with pytest.raises(UsageError, match=r"p\.ini:2: is not UTF-8"):
        open_presets(file)
    file.write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        open_presets(file)
