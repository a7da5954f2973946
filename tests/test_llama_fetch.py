"""llama-builds/fetch.py and its list: archives with the right sums alone, unpacked safely, whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from appliance.core.engines.builds import Build, Needs
from appliance.engines.integrity import check_build

BUILDS = Path(__file__).resolve().parents[1] / "llama-builds"
posix_only = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no links that everybody may make")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import one another as they do when run; nothing of that may stay."""
    monkeypatch.syspath_prepend(str(BUILDS))
    monkeypatch.syspath_prepend(str(BUILDS.parent))
    yield
    for name in ("archives", "build", "cuda", "fetch", "layout", "recipe", "source", "bootstrap"):
        sys.modules.pop(name, None)


# ---- the list --------------------------------------------------------------------------------------------------------

PLATFORMS = {"linux-x64", "linux-arm64", "macos-arm64", "macos-x64", "windows-x64", "windows-arm64"}
BACKENDS = {"cpu", "vulkan", "cuda12", "cuda13", "rocm", "metal", "sycl"}


def test_the_list_is_well_formed_and_each_build_is_there_once() -> None:
    content = tomllib.loads((BUILDS / "manifest.toml").read_text("utf-8"))
    ids: set[str] = set()
    for each in content["builds"]:
        assert each["platform"] in PLATFORMS
        assert each["backend"] in BACKENDS
        assert re.fullmatch(r"b\d+", each["build"])
        assert each["licence"].startswith("MIT")
        assert set(each["needs"]) <= {*Needs.__struct_fields__, "targets", "libc", "macos"}
        msgspec.convert(each["needs"], Needs)
        for archive in each["archives"]:
            assert set(archive) <= {"name", "size", "sha256", "url"}
            assert re.fullmatch(r"[0-9a-f]{64}", archive["sha256"])
            assert 10_000_000 < archive["size"] < 1_000_000_000
            assert archive["name"].endswith(".zip" if each["platform"].startswith("windows") else ".tar.gz")
        ids.add(f"{each['platform']}-{each['backend']}/{each['build']}")
    assert len(ids) == len(content["builds"])


def test_every_platform_has_a_build_and_no_archive_has_two_sums() -> None:
    import fetch

    entries = fetch.read_list()
    assert {entry.platform for entry in entries} == PLATFORMS
    sums = {(archive.name, archive.sha256, archive.size) for entry in entries for archive in entry.archives}
    assert len({name for name, _, _ in sums}) == len(sums)
    for entry in entries:
        for archive in entry.archives:
            assert (
                archive.url == f"https://github.com/ggml-org/llama.cpp/releases/download/{entry.build}/{archive.name}"
            )
        runtime = [archive.name for archive in entry.archives if archive.name.startswith("cudart-")]
        assert len(runtime) == entry.backend.startswith("cuda")


def test_the_newest_is_meant_and_what_there_is_is_told() -> None:
    import fetch

    entries = fetch.read_list()
    builds = sorted(int(e.build[1:]) for e in entries if (e.platform, e.backend) == ("linux-x64", "cpu"))
    assert len(builds) > 1
    assert fetch.find(entries, "linux-x64", "cpu", None).build == f"b{builds[-1]}"
    assert fetch.find(entries, "linux-x64", "cpu", f"b{builds[0]}").build == f"b{builds[0]}"
    with pytest.raises(fetch.SetupError, match=f"b{builds[0]}"):
        fetch.find(entries, "linux-x64", "cpu", "b1")
    with pytest.raises(fetch.SetupError, match="is listed, but metal"):
        fetch.find(entries, "macos-arm64", "cuda12", None)


# ---- a shop of archives ----------------------------------------------------------------------------------------------

SERVER = b"#!/bin/sh\necho version: 1\n"


def tar_gz(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if "llama-server" in name else 0o644
            tar.addfile(entry, io.BytesIO(content))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return path


def zipped(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def sum_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Shop:
    """Archives in a folder, and a list of them; a fetch is a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "shop"
        self.folder.mkdir()
        self.into = folder / "engines"
        self.list = folder / "manifest.toml"
        self.list.write_text('base = "http://127.0.0.1:9/{build}/{name}"\n')

    def add(self, platform: str, backend: str, *archives: Path, **changed: object) -> None:
        """List a build. ``changed``: of its first archive."""
        facts: list[dict[str, object]] = [
            {"name": path.name, "size": path.stat().st_size, "sha256": sum_of(path)} for path in archives
        ]
        facts[0] = {key: value for key, value in (facts[0] | changed).items() if value is not None}
        lines = ", ".join("{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in fact.items()) + "}" for fact in facts)
        with self.list.open("a") as file:
            file.write(f'[[builds]]\nplatform = "{platform}"\nbackend = "{backend}"\nbuild = "b7"\nlicence = "MIT"\n')
            file.write(f'archives = [{lines}]\nneeds.libraries = ["libx.so.1"]\n')

    def linux(self, name: str = "llama-b7-bin-ubuntu-x64.tar.gz", **changed: object) -> Path:
        files = {
            "llama-b7/llama-server": SERVER,
            "llama-b7/libggml.so.0.1": b"library",
            "llama-b7/LICENSE": b"MIT",
        }
        path = tar_gz(self.folder / name, files, {"llama-b7/libggml.so.0": "libggml.so.0.1"})
        self.add("linux-x64", "cpu", path, **changed)
        return path

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        code = (
            f"import sys; from pathlib import Path; sys.path[:0] = [{str(BUILDS)!r}]; import fetch; "
            f"fetch.read_list.__defaults__ = (Path({str(self.list)!r}),); fetch.main()"
        )
        words = [sys.executable, "-c", code, "--into", str(self.into), *args]
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=environment)

    def fetch(self, *args: str) -> Path:
        """The folder that a fetch which must succeed made."""
        done = self.run(*args)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.strip()).parent

    def refuse(self, *args: str) -> str:
        """What a fetch that must fail said; it must have left nothing that looks like a build."""
        done = self.run(*args)
        assert done.returncode == 1, done.stdout
        assert "Traceback" not in done.stderr
        assert not list(self.into.glob("[!.]*"))
        return done.stderr


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


CPU = ("--platform", "linux-x64", "--backend", "cpu")


@posix_only
def test_a_build_comes_from_a_folder_of_archives_and_lists_its_files(shop: Shop) -> None:
    shop.linux()
    folder = shop.fetch(*CPU, "--from", str(shop.folder))
    assert folder == shop.into / "linux-x64-cpu" / "b7"
    build = msgspec.json.decode((folder / "engine.json").read_bytes(), type=Build)
    assert (build.id, build.version, build.needs.libraries) == ("linux-x64-cpu/b7", "b7", ("libx.so.1",))
    assert [file.path for file in build.files] == ["LICENSE", "libggml.so.0", "libggml.so.0.1", "llama-server"]
    assert [file.path for file in build.files if file.executable] == ["llama-server"]
    assert check_build(folder, read_all=True) == ""
    assert [path.name for path in shop.into.iterdir() if path.is_dir()] == ["linux-x64-cpu"], "nothing else is left"
    assert shop.fetch(*CPU, "--from", "/nowhere") == folder, "what is there is not fetched again"


@posix_only
def test_one_archive_can_be_named_whatever_it_is_called(shop: Shop, tmp_path: Path) -> None:
    path = shop.linux().rename(tmp_path / "bundle.tar.gz")
    assert check_build(shop.fetch(*CPU, "--from", str(path)), read_all=True) == ""


def test_a_zip_for_another_system_gets_its_runtime_beside_its_program(shop: Shop) -> None:
    files = {"llama-server.exe": b"MZ", "ggml-cuda.dll": b"cuda", "cudart64_12.dll": b"its own"}
    build = zipped(shop.folder / "llama-b7-bin-win-cuda-12.4-x64.zip", files)
    runtime = zipped(shop.folder / "cudart.zip", {"bin/cublas64_12.dll": b"blas", "bin/cudart64_12.dll": b"another"})
    shop.add("windows-x64", "cuda12", build, runtime)
    folder = shop.fetch("--platform", "windows-x64", "--backend", "cuda12", "--from", str(shop.folder))
    assert (folder / "cublas64_12.dll").read_bytes() == b"blas"
    assert (folder / "cudart64_12.dll").read_bytes() == b"its own"
    facts = json.loads((folder / "engine.json").read_bytes())
    assert {file["path"] for file in facts["files"] if file.get("executable")} == {"llama-server.exe"}
    assert facts["archives"] == {build.name: sum_of(build), runtime.name: sum_of(runtime)}


def test_another_archive_is_refused_by_its_size_or_its_sum(shop: Shop) -> None:
    path = shop.linux()
    whole = path.read_bytes()
    path.write_bytes(whole + b"x")
    assert "bytes, and" in shop.refuse(*CPU, "--from", str(shop.folder))
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "its sha256 is" in shop.refuse(*CPU, "--from", str(shop.folder))
    path.unlink()
    assert "is not there" in shop.refuse(*CPU, "--from", str(shop.folder))


@posix_only
def test_a_sum_that_nobody_told_has_to_be_given(shop: Shop) -> None:
    path = shop.linux(sha256=None, size=None)
    assert "nobody has told the sha256" in shop.refuse(*CPU, "--from", str(shop.folder))
    assert "no sha256" in shop.refuse(*CPU, "--from", str(shop.folder), "--sha256", "abc")
    assert "its sha256 is" in shop.refuse(*CPU, "--from", str(shop.folder), "--sha256", "0" * 64)
    assert shop.fetch(*CPU, "--from", str(shop.folder), "--sha256", sum_of(path).upper()).is_dir()


def test_a_sum_that_is_told_cannot_be_replaced(shop: Shop) -> None:
    path = shop.linux()
    assert "leave --sha256 away" in shop.refuse(*CPU, "--from", str(path), "--sha256", "0" * 64)


# ---- what no build has in it -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", "C:evil", "a\\evil", "evil."])
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_names_that_leave_the_folder_are_refused(shop: Shop, name: str, kind: str) -> None:
    files = {"llama-server": SERVER, name: b"gotcha"}
    path = shop.folder / f"llama-b7.{kind}"
    shop.add("linux-x64", "cpu", zipped(path, files) if kind == "zip" else tar_gz(path, files))
    assert "has a file with the path" in shop.refuse(*CPU, "--from", str(shop.folder))
    assert not [found for found in shop.into.parent.rglob("*evil*")]


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd", "missing", ".", "sub/../llama-server"])
def test_links_lead_to_files_beside_them_or_are_refused(shop: Shop, target: str) -> None:
    path = tar_gz(shop.folder / "a.tar.gz", {"llama-server": SERVER}, {"link": target})
    shop.add("linux-x64", "cpu", path)
    assert "has a link link" in shop.refuse(*CPU, "--from", str(shop.folder))


def test_a_link_in_a_zip_is_no_way_out_either(shop: Shop) -> None:
    path = shop.folder / "a.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("llama-server", SERVER)
        link = zipfile.ZipInfo("link")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc/passwd")
    shop.add("linux-x64", "cpu", path)
    assert "has a link link" in shop.refuse(*CPU, "--from", str(shop.folder))


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.LNKTYPE])
def test_devices_pipes_and_hard_links_are_refused(shop: Shop, kind: bytes) -> None:
    path = shop.folder / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo("llama-server")
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    shop.add("linux-x64", "cpu", path)
    assert "neither a file nor a folder" in shop.refuse(*CPU, "--from", str(shop.folder))


def test_a_name_that_is_there_twice_is_refused(shop: Shop) -> None:
    path = shop.folder / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for content in (SERVER, b"another"):
            entry = tarfile.TarInfo("llama-server")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    shop.add("linux-x64", "cpu", path)
    assert "has llama-server twice" in shop.refuse(*CPU, "--from", str(shop.folder))


def test_bounds_on_files_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import archives

    path = tar_gz(tmp_path / "a.tar.gz", {f"{n}": b"x" * 1000 for n in range(10)})
    monkeypatch.setattr(archives, "MAX_FILES", 9)
    with pytest.raises(archives.SetupError, match="more than 9 files"):
        archives.unpack(path, tmp_path / "one")
    monkeypatch.setattr(archives, "MAX_FILES", 10)
    monkeypatch.setattr(archives, "MAX_BYTES", 9999)
    with pytest.raises(archives.SetupError, match="is larger than"):
        archives.unpack(path, tmp_path / "two")


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz"])
def test_a_damaged_archive_and_one_without_a_server_are_told(shop: Shop, name: str) -> None:
    (shop.folder / name).write_bytes(b"not an archive at all" * 10)
    shop.add("linux-x64", "cpu", shop.folder / name)
    assert "cannot be unpacked" in shop.refuse(*CPU, "--from", str(shop.folder))
    path = tar_gz(shop.folder / "b.tar.gz", {"README": b"hello"})
    shop.add("linux-x64", "vulkan", path)
    said = shop.refuse("--platform", "linux-x64", "--backend", "vulkan", "--from", str(shop.folder))
    assert "no llama-server in it" in said


# ---- over the network ------------------------------------------------------------------------------------------------


class Depot(BaseHTTPRequestHandler):
    """Serves one folder, in parts where it is asked to, and closes early while ``short`` is set."""

    folder: Path
    address: str
    short = 0
    asked: list[str | None]

    def do_GET(self) -> None:
        kind = type(self)
        content = (kind.folder / self.path.rpartition("/")[2]).read_bytes()
        wanted = self.headers.get("Range")
        kind.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: kind.short or None])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is said."""


@pytest.fixture
def depot(shop: Shop) -> Iterator[type[Depot]]:
    kind = type("ThisDepot", (Depot,), {"folder": shop.folder, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        kind.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield kind
        server.shutdown()
        thread.join()


@posix_only
def test_a_cut_download_goes_on_where_it_stopped(shop: Shop, depot: type[Depot]) -> None:
    path = shop.linux()
    depot.short = 50
    assert "cannot fetch" in shop.refuse(*CPU, "--from", f"{depot.address}/files")
    depot.short = 0
    folder = shop.fetch(*CPU, "--from", f"{depot.address}/files/{path.name}")
    assert depot.asked == [None, "bytes=50-"]
    assert check_build(folder, read_all=True) == ""


@posix_only
def test_a_download_that_is_something_else_is_thrown_away(shop: Shop, depot: type[Depot]) -> None:
    path = shop.linux()
    whole = path.read_bytes()
    path.write_bytes(b"x" * len(whole))
    assert "its sha256 is" in shop.refuse(*CPU, "--from", depot.address)
    path.write_bytes(whole)
    assert shop.fetch(*CPU, "--from", depot.address).is_dir()
    assert depot.asked == [None, None]


class Endless(Depot):
    """Says no length, and does not end by itself."""

    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while type(self).sent < 256 << 20:
                self.wfile.write(bytes(1 << 16))
                type(self).sent += 1 << 16


@posix_only
def test_a_server_that_does_not_end_does_not_fill_the_disk(shop: Shop) -> None:
    shop.linux()
    kind = type("ThisEndless", (Endless,), {"folder": shop.folder, "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            said = shop.refuse(*CPU, "--from", f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()
    assert "bytes, and llama-b7-bin-ubuntu-x64.tar.gz has" in said or "its sha256 is" in said
    assert kind.sent < 64 << 20


def test_without_a_network_the_address_is_named(shop: Shop) -> None:
    shop.linux()
    assert "cannot fetch http://127.0.0.1:9/b7/llama-b7-bin-ubuntu-x64.tar.gz" in shop.refuse(*CPU)
    assert "begins with https://" in shop.refuse(*CPU, "--from", "ftp://localhost/x")


# ---- finished builds -------------------------------------------------------------------------------------------------


@posix_only
def test_a_finished_build_is_copied_and_every_file_checked(shop: Shop, tmp_path: Path) -> None:
    shop.linux()
    made = shop.fetch(*CPU, "--from", str(shop.folder))
    elsewhere = made.rename(tmp_path / "stick")
    copied = shop.fetch(*CPU, "--from", str(elsewhere))
    assert (copied, check_build(copied, read_all=True)) == (made, "")
    other = shop.run("--platform", "linux-x64", "--backend", "vulkan", "--from", str(elsewhere))
    assert "is linux-x64-cpu/b7, and linux-x64-vulkan/... was asked for" in other.stderr
    copied.rename(tmp_path / "away")
    (made.parent).rmdir()
    (elsewhere / "libggml.so.0.1").write_bytes(b"lIbrary")
    assert "libggml.so.0 is changed" in shop.refuse(*CPU, "--from", str(elsewhere))
