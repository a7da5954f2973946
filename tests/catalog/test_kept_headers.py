"""What is remembered of model files, on the disk too: always what a fresh look would say, and read once."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import time_ns

import pytest
from gguf_files import header, write_model
from hypothesis import given
from hypothesis import strategies as st

from appliance.catalog.catalog import Catalog, find_model
from appliance.catalog.headers import SETTLED, Headers
from appliance.catalog.sources import ModelFolders
from appliance.core.models.model import Model

NAMES = ("a.gguf", "a.gguf", "seeing/model.gguf", "seeing/mmproj-F16.gguf", "big-00001-of-00002.gguf")
OLD = 1_000_000_000 * 10**9
opened: list[str] | None = None
"""Files that were opened, while a test wants to know."""


def _on_event(event: str, args: tuple[object, ...]) -> None:
    if opened is not None and event == "open" and isinstance(args[0], str):
        opened.append(Path(args[0]).name)


sys.addaudithook(_on_event)


@pytest.fixture
def reads() -> Iterator[list[str]]:
    global opened
    opened = []
    yield opened
    opened = None


class Folder:
    """A folder of models that somebody changes, and the file of facts beside it."""

    def __init__(self, root: Path) -> None:
        self.models, self.facts = root / "models", root / "cache" / "headers"
        self.models.mkdir()
        self.time = OLD
        self.catalog = self.started()

    def started(self) -> Catalog:
        return catalog_of(self.models, self.facts)

    def write(self, name: str, content: bytes, *, in_place: bool = False) -> None:
        """The time is always another one; the size may be the same, and so may the file."""
        path = self.models / name
        path.parent.mkdir(exist_ok=True)
        if not in_place:
            path.unlink(missing_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.write(content)
            file.truncate()
        self.time += 1
        os.utime(path, ns=(self.time, self.time))

    def listed(self) -> list[Model]:
        self.catalog.refresh(0.0, 60.0)
        return list(self.catalog.snapshot.models)


def catalog_of(models: Path, facts: Path | None = None) -> Catalog:
    return Catalog(ModelFolders(models_dir=models, starter=None), headers=Headers(facts))


def model(word: str, *, projector: bool = False) -> bytes:
    architecture = "clip" if projector else "llama"
    keys = {"general.architecture": architecture, "general.name": word, "clip.has_vision_encoder": True}
    return header(keys, 0) + bytes(64)


contents = st.one_of(
    st.builds(model, st.sampled_from(("xx", "yy", "long")), projector=st.booleans()),
    st.builds(model, st.sampled_from(("xx", "yy"))),
    st.builds(lambda end: model("xx")[:end], st.integers(0, 60)),
)
written = st.tuples(st.just("write"), st.sampled_from(NAMES), contents, st.booleans())
damaged = st.tuples(st.just("damage"), st.integers(0, 10**6), st.integers(1, 3))
"""Of the facts on the disk, before another start: the lowest bits of a byte, which may leave them readable."""
steps = st.one_of(
    written,
    written,
    written,
    damaged,
    damaged,
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("start again")),
    st.tuples(st.just("cut"), st.integers(0, 10**6)),
    st.tuples(st.just("replace"), st.binary(max_size=40)),
)


def carry_out(folder: Folder, step: tuple[object, ...]) -> None:
    match step:
        case ("write", str(name), bytes(content), bool(in_place)):
            folder.write(name, content, in_place=in_place)
            return
        case ("delete", str(name)):
            (folder.models / name).unlink(missing_ok=True)
            return
        case _:
            folder.catalog.keep()
            folder.facts.parent.mkdir(exist_ok=True)
            data = bytearray(folder.facts.read_bytes() if folder.facts.exists() else b"")
    match step:
        case ("replace", bytes(content)):
            folder.facts.write_bytes(content)
        case ("cut", int(end)):
            folder.facts.write_bytes(data[: end % (len(data) + 1)])
        case ("damage", int(place), int(change)) if data:
            data[place % len(data)] ^= change
            folder.facts.write_bytes(data)
        case _:
            pass
    folder.catalog = folder.started()


def test_facts_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("appliance.catalog.headers.SETTLED", 0)  # every file counts as old enough
    path, facts = tmp_path / "x.gguf", tmp_path / "facts"
    path.write_bytes(model("xx"))
    catalog = catalog_of(tmp_path, facts)
    catalog.scan()
    facts.unlink()
    catalog.scan()
    assert not facts.exists(), "nothing was new"


@given(st.lists(steps, min_size=8, max_size=25))
def test_a_listing_is_what_a_fresh_look_says(drawn: list[tuple[object, ...]]):
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr("appliance.catalog.headers.SETTLED", 0)  # every file counts as old enough
        folder = Folder(Path(root))
        for step in drawn:
            carry_out(folder, step)
            assert folder.listed() == list(catalog_of(folder.models).scan().models)


@pytest.fixture
def old_models(tmp_path: Path) -> Path:
    """Three models that nobody has changed for longer than a file system's clock takes for a step."""
    for name in ("a", "b", "c"):
        write_model(tmp_path / "models" / f"{name}.gguf", general__name=name)
    changed = max(path.stat().st_ctime_ns for path in (tmp_path / "models").iterdir())
    while time_ns() < changed + 2 * SETTLED:
        pass
    return tmp_path / "models"


def test_a_header_is_read_once_and_forgotten_with_its_file(tmp_path: Path, old_models: Path, reads: list[str]):
    facts = tmp_path / "headers"
    before = catalog_of(old_models, facts).scan().models
    assert sorted(name for name in reads if name.endswith(".gguf")) == ["a.gguf", "b.gguf", "c.gguf"]
    reads.clear()
    assert catalog_of(old_models, facts).scan().models == before
    assert not [name for name in reads if name.endswith(".gguf")]
    others = write_model(tmp_path / "others" / "d.gguf").parent
    catalog_of(others, facts).scan()  # another program's folders: facts of files that are there stay
    (old_models / "b.gguf").unlink()
    size = facts.stat().st_size
    catalog_of(old_models, facts).scan()
    assert b"b.gguf" not in facts.read_bytes()
    assert b"a.gguf" in facts.read_bytes()
    assert facts.stat().st_size < size


async def test_a_request_reads_its_own_models_header_alone(old_models: Path, reads: list[str]):
    catalog = catalog_of(old_models)
    catalog.refresh(0.0, 0.0)
    assert [(model.id, model.unread) for model in catalog.snapshot.models] == [("a", True), ("b", True), ("c", True)]
    assert (await find_model(catalog, "b")).info is not None
    assert [name for name in reads if name.endswith(".gguf")] == ["b.gguf"]
    assert [model.unread for model in catalog.snapshot.models] == [True, False, True]
    assert not catalog.read_on(60.0)
    assert sorted(name for name in reads if name.endswith(".gguf")) == ["a.gguf", "b.gguf", "c.gguf"]
    assert catalog.is_read
