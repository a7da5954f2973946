"""Which engine is used: real folders, real executables, the order that the help promises."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from msgspec import structs

from appliance.core.builds import MANIFEST
from appliance.engines.builds import EXECUTABLE, check_build
from appliance.engines.named import ENGINE_VARIABLE
from appliance.errors import EngineNotFound, UsageError
from appliance.features import embedded
from appliance.features.embedded.feature import EMBEDDED
from appliance.features.engines.found import EngineFolders, find_engine, list_engines
from appliance.platform.home import ENGINES_VARIABLE
from appliance.platform.machine import this_platform

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no execute permission")


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n# {path}\n", "utf-8")
    path.chmod(0o755)
    return path


def build(root: Path, name: str, backend: str = "cpu", platform: str | None = None, **facts: object) -> Path:
    """A build below ``root`` as ``llama-builds/build.py`` makes it."""
    folder = root / f"{platform or this_platform()}-{backend}" / name
    program(folder / EXECUTABLE)
    library = folder / "libggml-cpu-x64.so"
    library.write_bytes(b"not really\n" * 10)
    files = [
        {"path": path.name, "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in (folder / EXECUTABLE, library)
    ]
    manifest = {
        "name": f"llama-server-{backend}",
        "backend": backend,
        "platform": platform or this_platform(),
        "build": name,
        "version": name,
        "rpc": "7.0.0",
        "files": files,
        "options": ["-DX=1"],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest | facts))
    return folder


@pytest.fixture
def places(tmp_path: Path) -> EngineFolders:
    """A machine without any engine of its own but, where it is installed, the embedded one."""
    return EngineFolders(
        named=None,
        beside=tmp_path / "beside",
        installed=tmp_path / "installed",
        cache=tmp_path / "cache",
        search_path=str(tmp_path / "bin"),
        inside=EMBEDDED.engine,
    )


def test_shipped_comes_before_installed_before_built_before_the_path(places: EngineFolders, tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin" / EXECUTABLE)
    assert find_engine(None, places).command == (str(on_path),)
    cached = build(places.cache, "b9")
    assert find_engine(None, places).command == (str(cached / EXECUTABLE),)
    installed = build(places.installed, "b8")
    assert find_engine(None, places).command == (str(installed / EXECUTABLE),)
    shipped = build(places.beside, "b1")
    assert find_engine(None, places).command == (str(shipped / EXECUTABLE),)
    found = list_engines(places)
    assert [engine.version for engine in found][:4] == ["b1", "b8", "b9", None]
    assert found[3].command == (str(on_path),)


def test_a_folder_of_the_path_that_cannot_be_looked_into_is_passed_over(places: EngineFolders, tmp_path: Path) -> None:
    """As root's folders are for others; here a name that is too long, which root may not look for either."""
    on_path = program(tmp_path / "bin" / EXECUTABLE)
    places = structs.replace(places, search_path=f"/{'x' * 300}{os.pathsep}{tmp_path / 'bin'}")
    assert find_engine(None, places).command == (str(on_path),)


def test_the_newest_build_wins_by_number_and_of_one_release_the_processors(places: EngineFolders) -> None:
    for version in ("b9999", "b11434", "b10441"):
        build(places.cache, version)
    build(places.cache, "b11434", "vulkan")
    build(places.cache, "b11434-native", version="b11434")
    order = ("cpu/b11434-native", "cpu/b11434", "vulkan/b11434", "cpu/b10441", "cpu/b9999")
    assert [engine.id for engine in list_engines(places)][:5] == [f"{this_platform()}-{each}" for each in order]


def test_what_is_being_made_and_what_is_for_other_machines_is_not_found(places: EngineFolders) -> None:
    good = build(places.cache, "b1")
    build(places.cache, "b3", platform="beos-vax")
    build(places.cache, "b2").rename(places.cache / ".staging")
    (places.cache / ".staging").rename(good.parent / ".b2")
    folders = [engine.folder for engine in list_engines(places) if engine.folder]
    assert folders == [str(good)]
    with pytest.raises(UsageError, match=f"for beos-vax, and this machine is {this_platform()}"):
        find_engine(str(places.cache / "beos-vax-cpu" / "b3"), places)


def test_an_engine_says_what_it_is_called_and_changes_its_digest_with_its_files(places: EngineFolders) -> None:
    folder = build(places.cache, "b7")
    engine = find_engine(None, places)
    assert (engine.id, engine.folder, engine.rpc) == (f"{this_platform()}-cpu/b7", str(folder), "7.0.0")
    assert len(engine.digest) == 16
    facts = json.loads((folder / MANIFEST).read_bytes())
    facts["files"][1]["sha256"] = "0" * 64
    (folder / MANIFEST).write_text(json.dumps(facts))
    assert find_engine(None, places).digest != engine.digest


def test_a_program_that_is_no_build_changes_its_digest_when_it_is_replaced(
    places: EngineFolders, tmp_path: Path
) -> None:
    path = program(tmp_path / "bin" / EXECUTABLE)
    before = find_engine(None, places)
    assert (before.id, before.folder) == (str(path), None)
    path.write_text("#!/bin/sh\n# another one\n")
    assert find_engine(None, places).digest != before.digest


def test_a_build_that_lists_no_files_is_still_read(places: EngineFolders) -> None:
    folder = places.cache / "old" / "b5"
    path = program(folder / EXECUTABLE)
    (folder / MANIFEST).write_text('{"name": "old", "backend": "cpu", "version": "b5", "sha256": "0"}')
    engine = find_engine(None, places)
    assert (engine.id, engine.version, engine.damage) == (str(path), "b5", "")
    os.utime(path, ns=(1, 1))
    assert find_engine(None, places).digest != engine.digest


def test_one_build_in_two_places_is_named_once_unless_the_first_is_damaged(places: EngineFolders) -> None:
    first = build(places.installed, "b1")
    second = places.cache / first.parent.name / "b1"
    shutil.copytree(first, second)
    assert [engine.folder for engine in list_engines(places) if engine.folder] == [str(first)]
    (first / EXECUTABLE).unlink()
    found = [(engine.folder, bool(engine.damage)) for engine in list_engines(places) if engine.folder]
    assert found == [(str(first), True), (str(second), False)]
    assert find_engine(None, places).folder == str(second)
    assert find_engine(f"{this_platform()}-cpu/b1", places).folder == str(second)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1, "backend": "cpu"}', '{"backend": "cpu"}', "\xff"])
def test_a_broken_build_is_passed_over_and_explained_when_named(places: EngineFolders, text: str) -> None:
    good = build(places.cache, "b1")
    broken = build(places.cache, "b2")
    (broken / MANIFEST).write_bytes(text.encode("latin-1"))
    assert find_engine(None, places).command == (str(good / EXECUTABLE),)
    with pytest.raises(UsageError, match="cannot be used"):
        find_engine(str(broken), places)


@pytest.mark.parametrize("name", [EXECUTABLE, "libggml-cpu-x64.so"])
def test_a_missing_file_is_named_and_the_build_never_started(places: EngineFolders, name: str) -> None:
    good = build(places.cache, "b1")
    folder = build(places.cache, "b2")
    (folder / name).unlink()
    damaged = next(engine for engine in list_engines(places) if engine.id.endswith("/b2"))
    assert damaged.damage == f"{name} is missing" == check_build(folder)
    assert find_engine(None, places).folder == str(good)
    for named in (str(folder), f"{this_platform()}-cpu/b2"):
        with pytest.raises(UsageError, match=rf"{name} is missing .*antivirus"):
            find_engine(named, places)
    with pytest.raises(UsageError, match="is missing"):
        find_engine(None, structs.replace(places, named=str(folder)))


def test_a_changed_file_is_found_by_its_size_or_its_time_and_by_a_careful_look_alone_without(
    places: EngineFolders,
) -> None:
    folder = build(places.cache, "b2")
    library = folder / "libggml-cpu-x64.so"
    whole = library.read_bytes()
    listed = (folder / MANIFEST).stat().st_mtime_ns
    library.write_bytes(whole[:-1])
    assert check_build(folder) == "libggml-cpu-x64.so is changed"
    library.write_bytes(whole[:-1] + b"X")
    os.utime(library, ns=(listed + 10**9, listed + 10**9))
    assert check_build(folder) == "libggml-cpu-x64.so is changed"
    library.write_bytes(whole)
    os.utime(library, ns=(listed + 2 * 10**9, listed + 2 * 10**9))
    assert check_build(folder) == "", "a copy is newer, and whole"
    library.write_bytes(b"X" * len(whole))
    os.utime(library, ns=(listed - 10**9, listed - 10**9))
    assert check_build(folder) == ""
    assert check_build(folder, read_all=True) == "libggml-cpu-x64.so is changed"


def test_a_list_that_points_elsewhere_is_damage_and_many_files_are_told_in_one_line(places: EngineFolders) -> None:
    folder = build(places.cache, "b2")
    facts = json.loads((folder / MANIFEST).read_bytes())
    for path in ("/etc/hostname", "../b2/llama-server", "C:x", ""):
        (folder / MANIFEST).write_text(json.dumps(facts | {"files": [{"path": path, "size": 1, "sha256": ""}]}))
        assert check_build(folder).endswith("is changed")
    folder = build(places.cache, "b3", files=[{"path": f"{n}.so", "size": 1, "sha256": ""} for n in range(9)])
    assert check_build(folder) == "0.so, 1.so, 2.so and 6 more are missing"
    (folder / MANIFEST).unlink()
    assert check_build(folder).startswith("engine.json cannot be read")


def test_nothing_but_damaged_builds_says_what_is_damaged(places: EngineFolders) -> None:
    folder = build(places.cache, "b2")
    (folder / EXECUTABLE).unlink()
    with pytest.raises(EngineNotFound, match=f"{re.escape(EXECUTABLE)} is missing"):
        find_engine(None, structs.replace(places, inside=None))


def test_a_folder_without_its_program_and_without_a_list_is_passed_over(places: EngineFolders) -> None:
    folder = build(places.cache, "b2", files=[])
    (folder / EXECUTABLE).unlink()
    assert all(engine.folder is None for engine in list_engines(places))
    with pytest.raises(UsageError, match=f"no executable {EXECUTABLE}"):
        find_engine(str(folder), places)


def test_a_backend_or_a_build_can_be_named(places: EngineFolders) -> None:
    build(places.cache, "b1", "vulkan")
    build(places.cache, "b2", "vulkan")
    build(places.cache, "b1", "cuda13")
    build(places.cache, "b1")
    assert find_engine("vulkan", places).id == f"{this_platform()}-vulkan/b2"
    assert find_engine("cuda", places).id == find_engine("cuda13", places).id == f"{this_platform()}-cuda13/b1"
    assert find_engine(f"{this_platform()}-vulkan/b1", places).id == f"{this_platform()}-vulkan/b1"
    assert find_engine(None, structs.replace(places, named="vulkan")).backend == "vulkan"
    for word in ("cuda12", "metal", f"{this_platform()}-vulkan/b3"):
        with pytest.raises(UsageError, match=f"{word}: there is no such build; here are {this_platform()}-"):
            find_engine(word, places)


def test_what_the_user_names_beats_everything_and_the_option_beats_the_variable(
    places: EngineFolders, tmp_path: Path
) -> None:
    build(places.cache, "b9")
    mine, other = program(tmp_path / "mine" / "my-server"), program(tmp_path / "other-server")
    named = structs.replace(places, named=str(other))
    assert find_engine(None, named).command == (str(other),)
    assert find_engine(None, named).source == ENGINE_VARIABLE
    assert find_engine(str(mine), named).command == (str(mine),)
    assert find_engine(str(build(tmp_path / "folder", "b3")), named).version == "b3"
    assert find_engine(str(program(tmp_path / "bare" / EXECUTABLE).parent), named).version is None


def test_a_relative_path_is_good_from_any_folder(
    places: EngineFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "server")
    monkeypatch.chdir(tmp_path)
    assert find_engine("./server", places).command == (str(tmp_path / "server"),)


def test_a_named_thing_that_cannot_be_used_is_not_replaced_by_another(places: EngineFolders, tmp_path: Path) -> None:
    build(places.cache, "b9")
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match=f"no such file or folder; .* here are {this_platform()}-cpu/b9"):
        find_engine(str(tmp_path / "missing"), places)
    with pytest.raises(UsageError, match="holds neither"):
        find_engine(str(tmp_path / "nothing"), places)


@posix_only
def test_a_file_that_is_not_executable_is_refused(places: EngineFolders, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a program")
    with pytest.raises(UsageError, match="not executable"):
        find_engine(str(text), places)


def test_the_folder_of_installed_builds_can_be_moved(tmp_path: Path) -> None:
    assert EngineFolders.of_this_machine({ENGINES_VARIABLE: str(tmp_path)}).installed == tmp_path
    assert EngineFolders.of_this_machine({}).installed.name == "engines"


def test_the_embedded_engine_is_last_and_can_be_named(places: EngineFolders) -> None:
    if embedded.available():
        engine = list_engines(places)[-1]
        assert (engine.name, engine.id) == ("embedded", "embedded")
        assert engine.digest.startswith("xllamacpp-")
        assert find_engine("embedded", places).command == tuple(embedded.command())
    else:
        with pytest.raises(EngineNotFound, match="--engine"):
            find_engine(None, places)
        with pytest.raises(UsageError, match="pip install"):
            find_engine("embedded", places)


def test_a_program_without_the_embedded_engine_says_how_to_get_another(places: EngineFolders) -> None:
    without = structs.replace(places, inside=None)
    assert list_engines(without) == []
    with pytest.raises(EngineNotFound, match=r"on PATH\);"):
        find_engine(None, without)
    with pytest.raises(UsageError, match=r"this program has none; 'llama-appliance engines install' .* --engine PATH"):
        find_engine("embedded", without)


def on_path(places: EngineFolders) -> list[str]:
    return [engine.id for engine in list_engines(places) if engine.source == "PATH"]


@posix_only
@pytest.mark.parametrize("entry", [".", "", "bin", "./bin"])
def test_a_program_in_the_folder_that_one_happens_to_be_in_is_not_found(
    entry: str, places: EngineFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / EXECUTABLE)
    program(tmp_path / "bin" / EXECUTABLE)
    monkeypatch.chdir(tmp_path)
    places = structs.replace(places, search_path=f"{entry}:{tmp_path / 'nothing'}")
    assert on_path(places) == []
    own = program(tmp_path / "own" / EXECUTABLE)
    places = structs.replace(places, search_path=f"{entry}:{own.parent}")
    assert on_path(places) == [str(own)]


@posix_only
def test_a_program_that_anybody_may_have_put_into_path_is_not_found(places: EngineFolders, tmp_path: Path) -> None:
    theirs = program(tmp_path / "theirs" / EXECUTABLE)
    own = program(tmp_path / "own" / EXECUTABLE)
    places = structs.replace(places, search_path=f"{theirs.parent}:{own.parent}")
    for anybodys in (theirs, theirs.parent):
        before = anybodys.stat().st_mode
        anybodys.chmod(0o777)
        assert on_path(places) == [str(own)]
        anybodys.chmod(before)
    assert on_path(places) == [str(theirs)]
    assert find_engine(str(theirs), places).id == str(theirs)


@pytest.mark.needs("root")
def test_root_finds_no_engine_that_another_user_could_have_put_there(
    places: EngineFolders, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its HOME may be a user's, as with a `sudo` that keeps it. What root names itself is used."""
    theirs = (build(places.installed, "b1"), build(places.cache, "b1"), program(tmp_path / "bin" / EXECUTABLE).parent)
    for folder in (places.installed, places.cache, theirs[-1]):
        os.chown(folder, 65534, 65534)
    for _ in range(2):
        assert [engine.source for engine in list_engines(places) if engine.source != "the Python environment"] == []
    told = [record.getMessage() for record in caplog.records]
    assert ["belongs to another user" in each for each in told] == [True] * 3, told
    assert find_engine(str(theirs[0]), places).folder == str(theirs[0])
