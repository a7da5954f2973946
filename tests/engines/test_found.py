"""Which engine is used: real folders, real executables, the order that the help promises."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from appliance.engines import embedded
from appliance.engines.found import ENGINE_VARIABLE, EXECUTABLE, MANIFEST, Places, find_engine, list_engines
from appliance.errors import EngineNotFound, UsageError

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no execute permission")


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def build(folder: Path, version: str, name: str = "llama-server-cpu") -> Path:
    program(folder / EXECUTABLE)
    (folder / MANIFEST).write_text(
        json.dumps(
            {"name": name, "backend": "cpu", "version": version, "options": ["-DX=1"], "sha256": "0", "built": "-"}
        )
    )
    return folder


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A machine without any engine of its own but, where it is installed, the embedded one."""
    return Places(named=None, beside=tmp_path / "beside", cache=tmp_path / "cache", search_path=str(tmp_path / "bin"))


def test_what_is_shipped_comes_first_then_the_cache_then_the_path(places: Places, tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin" / EXECUTABLE)
    assert find_engine(None, places).command == (str(on_path),)
    cached = build(places.cache / "a", "b9")
    assert find_engine(None, places).command == (str(cached / EXECUTABLE),)
    assert places.beside is not None
    shipped = build(places.beside / "cpu", "b1")
    assert find_engine(None, places).command == (str(shipped / EXECUTABLE),)
    found = list_engines(places)
    assert [engine.version for engine in found][:3] == ["b1", "b9", None]
    assert found[2].command == (str(on_path),)


def test_the_newest_build_of_the_cache_wins_by_number_not_by_letters(places: Places) -> None:
    for version in ("b9999", "b11434", "b10441"):
        build(places.cache / version, version)
    engine = find_engine(None, places)
    assert (engine.version, engine.backend, engine.name) == ("b11434", "cpu", "llama-server-cpu")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1, "backend": "cpu"}', '{"backend": "cpu"}', "\xff"])
def test_a_broken_build_is_passed_over_and_explained_when_named(places: Places, text: str) -> None:
    good = build(places.cache / "good", "b1")
    broken = build(places.cache / "broken", "b2")
    (broken / MANIFEST).write_bytes(text.encode("latin-1"))
    assert find_engine(None, places).command == (str(good / EXECUTABLE),)
    with pytest.raises(UsageError, match="cannot be used"):
        find_engine(str(broken), places)


def test_a_build_without_its_program_is_passed_over_and_explained_when_named(places: Places) -> None:
    folder = build(places.cache / "empty", "b2")
    (folder / EXECUTABLE).unlink()
    assert all(engine.command[0] != str(folder / EXECUTABLE) for engine in list_engines(places))
    with pytest.raises(UsageError, match=f"no executable {EXECUTABLE}"):
        find_engine(str(folder), places)


def test_what_the_user_names_beats_everything_and_the_option_beats_the_variable(places: Places, tmp_path: Path) -> None:
    build(places.cache / "a", "b9")
    mine, other = program(tmp_path / "mine" / "my-server"), program(tmp_path / "other-server")
    named = Places(named=str(other), beside=places.beside, cache=places.cache, search_path=places.search_path)
    assert find_engine(None, named).command == (str(other),)
    assert find_engine(None, named).source == ENGINE_VARIABLE
    assert find_engine(str(mine), named).command == (str(mine),)
    assert find_engine(str(build(tmp_path / "folder", "b3")), named).version == "b3"
    assert find_engine(str(program(tmp_path / "bare" / EXECUTABLE).parent), named).version is None


def test_a_relative_path_is_good_from_any_folder(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "server")
    monkeypatch.chdir(tmp_path)
    assert find_engine("./server", places).command == (str(tmp_path / "server"),)


def test_a_named_thing_that_cannot_be_used_is_not_replaced_by_another(places: Places, tmp_path: Path) -> None:
    build(places.cache / "a", "b9")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="no such file or folder"):
        find_engine(str(tmp_path / "missing"), places)
    with pytest.raises(UsageError, match="holds neither"):
        find_engine(str(tmp_path / "nothing"), places)


@posix_only
def test_a_file_that_is_not_executable_is_refused(places: Places, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a program")
    with pytest.raises(UsageError, match="not executable"):
        find_engine(str(text), places)


def test_the_embedded_engine_is_last_and_can_be_named(places: Places) -> None:
    if embedded.available():
        assert list_engines(places)[-1].name == "embedded"
        assert find_engine("embedded", places).command == tuple(embedded.command())
    else:
        with pytest.raises(EngineNotFound, match="--engine"):
            find_engine(None, places)
        with pytest.raises(UsageError, match="pip install"):
            find_engine("embedded", places)
