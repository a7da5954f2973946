"""Builds come whole into their place, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
from engine_folders import HERE, make_build, pack
from engine_runs import builds_in

from appliance.core.builds import Build, BuildNeeds
from appliance.engines.builds import EXECUTABLE, check_build
from appliance.errors import UsageError
from appliance.features.engines.core.builds import BACKENDS, Archive, AvailableBuild
from appliance.features.engines.installing import BuildSources, described, install, manifest_file, read_manifest, stage
from appliance.features.engines.shelf import Shelf
from appliance.store import shelf as folder_of_versions
from appliance.store.shelf import CannotInstall

WINDOWS = sys.platform == "win32"
ENTRY = AvailableBuild(platform=HERE, backend="cpu", build="b200", needs=BuildNeeds(libraries=("libgomp.so.1",)))


async def no_fetch(archive: Archive, path: Path) -> None:
    raise AssertionError(f"{archive.name} was asked for, which is here")


def copying(folder: Path) -> Callable[[Archive, Path], object]:
    """Fetches from a folder."""

    async def fetch(archive: Archive, path: Path) -> None:
        await trio.Path(path.parent).mkdir(parents=True, exist_ok=True)
        await trio.Path(path).write_bytes((folder / archive.name).read_bytes())

    return fetch


def upstream_archive(path: Path, *, extra: dict[str, bytes] | None = None) -> Path:
    """As llama.cpp's releases are: no engine.json, one folder, links between versions of libraries."""
    source = path.with_name(f"{path.name}.source")
    source.mkdir()
    program = make_build(path.with_name(f"{path.name}.build"), build="b200") / EXECUTABLE
    (source / EXECUTABLE).write_bytes(program.read_bytes())
    (source / EXECUTABLE).chmod(0o755)
    (source / "libggml.so.0.1").write_bytes(b"library")
    if WINDOWS:  # whose archives have none
        (source / "libggml.so.0").write_bytes(b"library")
    else:
        (source / "libggml.so.0").symlink_to("libggml.so.0.1")
    for name, content in (extra or {}).items():
        (source / name).write_bytes(content)
    with tarfile.open(path, "w:gz") as tar:
        tar.add(source, "llama-b200")
    return path


async def test_an_upstream_archive_becomes_a_build_with_sums(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "engines")
    archive = upstream_archive(tmp_path / "llama-b200-bin-ubuntu-x64.tar.gz")
    place = await install(shelf, BuildSources(entry=ENTRY, files=(archive,)), no_fetch)
    assert place == shelf.root / f"{HERE}-cpu" / "b200"
    build = msgspec.json.decode((place / "engine.json").read_bytes(), type=Build)
    assert (build.id, build.version, build.needs.libraries) == (f"{HERE}-cpu/b200", "b200", ("libgomp.so.1",))
    assert [file.path for file in build.files] == ["libggml.so.0", "libggml.so.0.1", EXECUTABLE]
    assert WINDOWS or (place / "libggml.so.0").is_symlink()
    assert check_build(place, read_all=True) == ""
    assert [engine.id for engine in builds_in(shelf.root)] == [f"{HERE}-cpu/b200"]
    assert archive.exists()


async def test_runtime_libraries_of_a_second_archive_lie_beside_the_server(tmp_path: Path) -> None:
    upstream_archive(tmp_path / "llama-b200-cuda.tar.gz", extra={"libcublas.so": b"its own"})
    with zipfile.ZipFile(tmp_path / "cudart-b200.zip", "w") as file:
        file.writestr("lib/libcudart.so.13", b"runtime")
        file.writestr("lib/libcublas.so", b"another")
    sums = {
        name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
        for name in ("llama-b200-cuda.tar.gz", "cudart-b200.zip")
    }
    archives = tuple(Archive(name=name, url=f"http://x/{name}", sha256=sums[name], size=1) for name in sums)
    entry = AvailableBuild(platform=HERE, backend="cuda13", build="b200", archives=archives)
    shelf = Shelf(tmp_path / "engines")
    place = await install(shelf, BuildSources(entry=entry), copying(tmp_path))  # type: ignore[arg-type]
    assert (place / "libcudart.so.13").read_bytes() == b"runtime"
    assert (place / "libcublas.so").read_bytes() == b"its own"
    build = msgspec.json.decode((place / "engine.json").read_bytes(), type=Build)
    assert "libcudart.so.13" in [file.path for file in build.files]
    assert check_build(place, read_all=True) == ""
    assert not list(shelf.downloads.iterdir())


async def test_a_build_with_its_own_sums_is_held_to_them(tmp_path: Path) -> None:
    folder = make_build(tmp_path / "source", build="b200")
    shelf = Shelf(tmp_path / "engines")
    sources = BuildSources(entry=ENTRY, folder=folder)
    await stage(shelf, sources, no_fetch)
    with (folder / EXECUTABLE).open("ab") as file:
        file.write(b"# something else\n")
    with pytest.raises(CannotInstall, match=f"{EXECUTABLE} is changed"):
        await stage(shelf, sources, no_fetch)
    (folder / EXECUTABLE).unlink()
    with pytest.raises(CannotInstall, match=f"{EXECUTABLE} is missing"):
        await stage(shelf, sources, no_fetch)
    assert builds_in(shelf.root) == []


async def test_what_is_not_what_it_should_be_is_refused_and_leaves_nothing_in_its_place(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "engines")
    archive = upstream_archive(tmp_path / "llama-b200.tar.gz")
    with pytest.raises(CannotInstall, match="another sum"):
        await install(shelf, BuildSources(entry=ENTRY, files=(archive,), sums={archive.name: "0" * 64}), no_fetch)
    empty = tmp_path / "empty.zip"
    zipfile.ZipFile(empty, "w").close()
    with pytest.raises(CannotInstall, match=f"no {EXECUTABLE}"):
        await install(shelf, BuildSources(entry=ENTRY, files=(empty,)), no_fetch)
    other = make_build(tmp_path / "source", backend="vulkan", build="b200")
    with pytest.raises(UsageError, match="says backend vulkan, and cpu was asked for"):
        await install(shelf, BuildSources(entry=ENTRY, folder=other), no_fetch)
    assert shelf.placed() == []


async def test_a_full_disk_is_told_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_of_versions, "SPARE", 1 << 60)
    with pytest.raises(CannotInstall, match="make room"):
        await install(Shelf(tmp_path), BuildSources(entry=read_manifest().entries[0]), no_fetch)


async def test_a_damaged_build_is_repaired_by_installing_it_again(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "engines")
    folder = make_build(tmp_path / "source", build="b200")
    place = await install(shelf, BuildSources(entry=ENTRY, folder=folder), no_fetch)
    (place / EXECUTABLE).write_text("quarantined")
    assert builds_in(shelf.root)[0].damage
    await install(shelf, BuildSources(entry=ENTRY, folder=folder), no_fetch)
    assert builds_in(shelf.root)[0].damage == ""
    assert not (shelf.root / ".work").exists()


def test_what_is_staged_is_found_by_nobody_until_a_start_completes_its_installation(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "engines")
    make_build(shelf.root / ".staged", build="b200")
    make_build(shelf.work_folder("new").parent, build="b200")
    assert shelf.staged() == [f"{HERE}-cpu/b200"]
    assert shelf.placed() == []
    assert builds_in(shelf.root) == []
    shelf.recover()
    assert [engine.id for engine in builds_in(shelf.root)] == [f"{HERE}-cpu/b200"]
    make_build(shelf.root / ".staged", "vulkan", build="b200")
    whole = make_build(shelf.root / ".staged", build="b200") / EXECUTABLE
    whole.write_text("begun in place of a build that was damaged, and is whole")
    shelf.recover()
    assert shelf.placed() == [f"{HERE}-cpu/b200", f"{HERE}-vulkan/b200"]
    assert builds_in(shelf.root)[0].damage == ""
    assert not [path.name for path in shelf.root.iterdir() if path.name in (".staged", ".work")]


def test_archives_and_folders_say_what_they_are(tmp_path: Path) -> None:
    folder = make_build(tmp_path / "source", backend="vulkan", build="b200")
    for source in (folder, pack(folder, tmp_path / "a.tar.gz")):
        assert described(source).id == f"{HERE}-vulkan/b200"
    assert described(upstream_archive(tmp_path / "llama-b200.tar.gz")) is None


def test_every_listed_build_has_an_address_and_a_sum_and_is_there_once() -> None:
    entries = read_manifest().entries
    assert len({entry.id for entry in entries}) == len(entries)
    assert {entry.platform for entry in entries} == {
        "linux-x64", "linux-arm64", "macos-arm64", "macos-x64", "windows-x64", "windows-arm64",
    }  # fmt: skip
    archives = {(archive.name, archive.sha256, archive.size) for entry in entries for archive in entry.archives}
    assert len({name for name, _, _ in archives}) == len(archives)
    for entry in entries:
        assert entry.backend in BACKENDS
        assert entry.licence.startswith("MIT")
        assert re.fullmatch(r"b\d+", entry.build)
        for archive in entry.archives:
            place = f"https://github.com/ggml-org/llama.cpp/releases/download/{entry.build}"
            assert archive.url == f"{place}/{archive.name}"
            assert re.fullmatch(r"[0-9a-f]{64}", archive.sha256)
            assert 10_000_000 < archive.size < 1_000_000_000
            assert archive.name.endswith(".zip" if entry.platform.startswith("windows") else ".tar.gz")
        runtime = [archive.name for archive in entry.archives if archive.name.startswith("cudart-")]
        assert len(runtime) == entry.backend.startswith("cuda")


def test_the_list_has_no_words_that_nobody_reads() -> None:
    content = tomllib.loads(manifest_file().read_text("utf-8"))
    assert set(content) == {"base", "releases", "builds"}
    for each in content["builds"]:
        assert set(each) == {"platform", "backend", "build", "licence", "archives", "needs"}
        assert set(each["needs"]) <= set(BuildNeeds.__struct_fields__)
        assert all(set(archive) <= {"name", "size", "sha256", "url"} for archive in each["archives"])


async def test_a_link_that_stayed_in_its_archive_leads_nowhere_else(tmp_path: Path) -> None:
    """Of an archive the server's folder alone is kept: what led to a file beside it would lead out of the build."""
    archive = tmp_path / "llama-b200-cpu.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name in (f"a/b/{EXECUTABLE}", "tmp/evil.so"):
            info = tarfile.TarInfo(name)
            info.size, info.mode = 1, 0o755
            tar.addfile(info, io.BytesIO(b"x"))
        link = tarfile.TarInfo("a/b/libggml.so")
        link.type, link.linkname = tarfile.SYMTYPE, "../../tmp/evil.so"
        tar.addfile(link)
    shelf = Shelf(tmp_path / "engines")
    with pytest.raises(
        CannotInstall, match=r"libggml.so is a link, and" if WINDOWS else r"libggml.so in it is a link that leads out"
    ):
        await stage(shelf, BuildSources(entry=ENTRY, files=(archive,)), no_fetch)
    assert not list((shelf.root / ".work").rglob("*.so")), "what is no good is not left on the disk"


def test_a_manifest_says_nothing_that_a_terminal_would_obey(tmp_path: Path) -> None:
    for bad in (
        {"build": "../../x"},
        {"build": "--help"},
        {"backend": "$(x)"},
        {"platform": "a b"},
        {"name": "a\x1b[2J"},
        {"build": "b1\nb2"},
        {"version": "b" * 1000},
        {"rpc": "\u202e7"},
    ):
        facts = {"name": "x", "backend": "cpu", "build": "b1"} | bad
        (tmp_path / "engine.json").write_text(json.dumps(facts))
        with pytest.raises(CannotInstall, match="can be no name"):
            described(tmp_path)


def test_a_manifest_that_is_nested_without_end_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text('{"name":"x","backend":"cpu","more":' + "[" * 400_000)
    with pytest.raises(CannotInstall, match="nested too deeply"):
        described(tmp_path)
    assert "nested too deeply" in check_build(tmp_path)
    (tmp_path / "engine.json").write_text(
        json.dumps({"name": "x", "backend": "cpu", "files": [{"path": "a\0b\x1b", "size": 1, "sha256": ""}]})
    )
    assert check_build(tmp_path) == repr("a\0b\x1b") + " is changed"
