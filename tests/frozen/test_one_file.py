"""The one-file program: what it unpacks, when, for whom; and what a kill, a damage and a full disk do to that."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
from booted import package
from fixed_work import multiples_of_fixed_work
from frozen_harness import DIST, PATIENCE, Server

fcntl = pytest.importorskip("fcntl", reason="the one-file program is Linux's")
pytestmark = [pytest.mark.frozen, pytest.mark.skipif(sys.platform != "linux", reason="the one-file program is Linux's")]

NOBODY = 65534
MORE = 0.75
"""Multiples of fixed work that a start may cost beyond the program's own."""
KILLS = (
    "openat:when=3",
    "mkdirat:when=5",
    "write:when=20",
    "utimensat:when=100",
    "syncfs:when=1",
    "rename:when=2",
    "execve:when=2",
)
"""Calls of the system at which it is killed, in their order; `when` counts them."""

Ran = subprocess.CompletedProcess[str]
root_only = pytest.mark.needs("root", "unshare")


@pytest.fixture(scope="module")
def file() -> Path:
    return package("*.AppImage")


@pytest.fixture(scope="module")
def warm(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that it has unpacked itself into. Tests change nothing in it."""
    cache = tmp_path_factory.mktemp("warm")
    assert start(file, cache).returncode == 0
    return cache


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder that every user can look into, which those of pytest are not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def start(file: Path, cache: Path, *words: str, before: tuple[str, ...] = (), **environ: str) -> Ran:
    words = words or ("version", "--json")
    home = str(cache / "no home")
    environment = {"PATH": os.environ["PATH"], "HOME": home, "XDG_CACHE_HOME": str(cache)} | environ
    command = [*before, str(file), *words]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=2 * PATIENCE)


def unpacked(cache: Path) -> Path:
    """The one folder in the cache; everything in it must be as the payload's list says."""
    [folder] = (cache / "llama-appliance" / "unpacked").glob("[!l]*")
    listed = json.loads((folder / "llama-appliance" / "payload.json").read_bytes())
    for entry in listed["files"]:
        path = folder / "llama-appliance" / entry["path"]
        if "link" in entry:
            assert path.readlink().as_posix() == entry["link"]
        else:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"], path
            assert os.access(path, os.X_OK) == entry.get("executable", False)
    return folder


def test_it_unpacks_once_and_starts_as_fast_as_the_folder(
    file: Path, warm: Path, record_property: pytest.RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    first = unpacked(warm).stat().st_ino
    programs = DIST / "llama-appliance", file
    folder, one = (multiples_of_fixed_work(partial(start, program, warm, "--version")) for program in programs)
    with capsys.disabled():
        print(f"\n  a start in fixed work: {one:.2f}, of the folder {folder:.2f}; {file.stat().st_size / 1e6:.1f} MB")
    record_property("one_file_start", one)
    assert one <= folder + MORE
    assert unpacked(warm).stat().st_ino == first


@root_only
def test_another_user_starts_it_from_a_read_only_medium_without_fuse(
    file: Path, open_folder: Path, tmp_path: Path
) -> None:
    """Nobody has no home, and may not enter the folder of the start: the program unpacks itself in /var/tmp."""
    medium, starter = open_folder / "medium", open_folder / "start"
    medium.mkdir()
    shutil.copy(file, medium / "llama-appliance")
    own = Path(f"/var/tmp/llama-appliance-{NOBODY}")
    shutil.rmtree(own, ignore_errors=True)
    script = f"""#!/bin/sh
    exec unshare --mount sh -c '
        [ ! -e /dev/fuse ] || mount --bind /dev/null /dev/fuse
        mount --bind {medium} {medium} && mount -o remount,bind,ro {medium} && ! touch {medium}/x 2>/dev/null &&
        exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups {medium}/llama-appliance "$@"' - "$@"
    """
    starter.write_text(script, "utf-8")
    starter.chmod(0o755)
    try:
        environ = {"PATH": os.defpath + ":/usr/sbin:/sbin", "HOME": str(open_folder / "no home")}
        with Server(starter, tmp_path, environ) as server:
            question = {"model": "starter", "messages": [{"role": "user", "content": "What is your name?"}]}
            answer = json.loads(server.ask("/v1/chat/completions", question))
            assert "appliance" in answer["choices"][0]["message"]["content"].lower()
            assert server.stop() == 0
        assert own.stat().st_uid == NOBODY
    finally:
        shutil.rmtree(own, ignore_errors=True)


def test_first_starts_at_once_unpack_one_folder(file: Path, tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    command = [file, "--version"]
    starts = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {each.communicate(timeout=2 * PATIENCE)[0] for each in starts}
    assert [each.returncode for each in starts] == [0] * 4
    assert len(said) == 1
    unpacked(tmp_path)


@pytest.mark.slow
@pytest.mark.needs("strace")
def test_a_kill_at_any_step_is_repaired_by_the_next_start(file: Path, tmp_path: Path) -> None:
    for number, kill in enumerate(KILLS):
        cache = tmp_path / str(number)
        call, _, when = kill.partition(":")
        inject = ("-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:{when}")
        killed = start(file, cache, before=("strace", "-o", "/dev/null", *inject))
        assert killed.returncode in (-9, 137), (kill, killed)
        after = start(file, cache)
        assert (after.returncode, after.stderr) == (0, ""), kill
        unpacked(cache)
        shutil.rmtree(cache)


def test_what_was_lost_or_changed_in_the_folder_is_unpacked_again(file: Path, tmp_path: Path) -> None:
    assert start(file, tmp_path).returncode == 0
    payload = unpacked(tmp_path) / "llama-appliance"
    (payload / "payload.json").write_bytes(b"0" * (payload / "payload.json").stat().st_size)
    assert start(file, tmp_path).returncode == 0
    payload = unpacked(tmp_path) / "llama-appliance"
    shutil.rmtree(payload / "_internal")
    (payload / "llama-server").unlink()
    assert start(file, tmp_path).returncode == 0
    unpacked(tmp_path)


@pytest.mark.parametrize("place", ["a bit of it", "its end"])
def test_a_damaged_file_is_refused_and_leaves_nothing(file: Path, tmp_path: Path, place: str) -> None:
    broken = tmp_path / "broken"
    content = bytearray(file.read_bytes())
    if place == "its end":
        del content[-5000:]
    else:
        content[len(content) // 2] ^= 1
    broken.write_bytes(content)
    broken.chmod(0o755)
    done = start(broken, tmp_path / "cache")
    assert (done.returncode, done.stderr) == (1, f"error: {broken} is damaged: copy or download it again\n")
    assert {path.name for path in (tmp_path / "cache").rglob("*") if not path.is_dir()} <= {"lock"}


@root_only
@pytest.mark.parametrize("disk", ["size=30m", "size=300m,nr_inodes=90"])
def test_a_full_disk_is_told_in_words(file: Path, tmp_path: Path, disk: str) -> None:
    """The first disk is refused before anything is written to it; the second one fills up on the way."""
    mount = f'mount -t tmpfs -o {disk} none {tmp_path} && "$@"; status=$?; ls {tmp_path}/*/unpacked; exit $status'
    done = start(file, tmp_path, before=("unshare", "--mount", "sh", "-c", mount, "-"))
    assert done.returncode == 1
    assert f"cannot unpack into {tmp_path}/llama-appliance/unpacked: No space left on device; it takes" in done.stderr
    assert "LLAMA_APPLIANCE_UNPACK_DIR" in done.stderr
    assert done.stdout == "lock\n"


@root_only
def test_a_disk_that_starts_nothing_is_told_in_words(file: Path, tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o noexec none {tmp_path} && exec "$@"'
    done = start(file, tmp_path, before=("unshare", "--mount", "sh", "-c", mount, "-"))
    assert done.returncode == 1
    assert "Permission denied; its disk may be mounted noexec" in done.stderr


def test_other_versions_are_deleted_unless_a_program_runs_from_them(file: Path, tmp_path: Path) -> None:
    base = tmp_path / "llama-appliance" / "unpacked"
    unused, used, strange = (base / name for name in ("0.0.1-0123456789abcdef", "0.0.2-0123456789abcdef", "mine"))
    for folder in (unused, used, strange):
        (folder / "below").mkdir(parents=True)
    base.chmod(0o700)
    held = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_SH)
        assert start(file, tmp_path).returncode == 0
    finally:
        os.close(held)
    assert [folder.is_dir() for folder in (unused, used, strange)] == [False, True, True]


def test_a_program_that_runs_holds_its_folder(file: Path, warm: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(warm)}
    folder = os.open(unpacked(warm), os.O_RDONLY)
    try:
        with Server(file, Path("/"), environ) as server:
            with pytest.raises(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            assert server.stop() == 0
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)


def test_a_folder_that_others_can_write_to_is_refused(file: Path, tmp_path: Path) -> None:
    base = tmp_path / "llama-appliance" / "unpacked"
    base.mkdir(parents=True)
    base.chmod(0o777)
    done = start(file, tmp_path / "unused", LLAMA_APPLIANCE_UNPACK_DIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot unpack into {base}: other users may write to {base}; name a folder")
    relative = start(file, tmp_path, LLAMA_APPLIANCE_UNPACK_DIR="here")
    assert (relative.returncode, "must be an absolute path" in relative.stderr) == (2, True)


@pytest.mark.needs("unsquashfs")
def test_it_is_an_appimage(file: Path, warm: Path, tmp_path: Path) -> None:
    assert file.read_bytes()[8:11] == b"AI\x02"
    offset = start(file, warm, "--appimage-offset").stdout.strip()
    listing = subprocess.run(
        ["unsquashfs", "-o", offset, "-l", file], capture_output=True, text=True, check=True
    ).stdout
    for name in ("AppRun", "llama-appliance.desktop", "llama-appliance.svg", ".DirIcon", "licenses/libsquashfuse-dev"):
        assert f"squashfs-root/{name}\n" in listing
    command = [file, "--appimage-extract", "llama-appliance/licenses/*"]
    subprocess.run(command, cwd=tmp_path, env={}, check=True)
    assert [path.name for path in (tmp_path / "squashfs-root" / "llama-appliance").iterdir()] == ["licenses"]
    again = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert again.stderr == "error: cannot make the folder squashfs-root here: File exists\n"
    plain = start(file, warm, "--version").stdout
    assert start(file, warm, "--appimage-extract-and-run", "--version").stdout == plain
    assert start(file, warm, "--appimage-version").stdout.strip() in plain
    for option, words in (("--appimage-mount", "is not mounted but unpacked"), ("--appimage-no", "there is no option")):
        refused = start(file, warm, option)
        assert (refused.returncode, words in refused.stderr) == (2, True)


def test_it_stands_in_for_llama_server_and_is_installed_as_a_service_by_its_own_path(
    file: Path, warm: Path, tmp_path: Path
) -> None:
    second = tmp_path / "llama-server"
    second.symlink_to(file)
    assert start(second, warm, "--version").stderr == start(file, warm, "llama-server", "--version").stderr != ""
    unit = start(file, warm, "service", "unit").stdout
    assert f"ExecStart={file} serve" in unit.replace('"', "")
