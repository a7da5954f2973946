"""Archives of builds: had whole and with the right sum, unpacked so that nothing in them reaches out of its folder."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from bootstrap import SetupError

SUFFIXES = (".zip", ".tar.gz", ".tgz")
MAX_FILES = 5000
"""llama.cpp's archives have about a hundred."""
MAX_BYTES = 16 << 30
"""Unpacked; ROCm with its kernels takes 4 GB."""
BLOCK = 1 << 20
SECONDS = 60
"""Without a byte, after which a download has failed."""


class Archive(NamedTuple):
    """One file to have. Without a sum it is refused; a size of 0 is not known."""

    name: str
    url: str
    size: int
    sha256: str


class Member(NamedTuple):
    """A file of an archive, or with ``target`` a symbolic link."""

    name: str
    mode: int
    target: str | None
    content: IO[bytes] | None


def is_archive(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def check(path: Path, archive: Archive) -> None:
    """Raises SetupError when the file is not the one that is meant."""
    if not archive.sha256:
        raise SetupError(
            f"nobody has told the sha256 of {archive.name}; take it from a place that you trust and give it by --sha256"
        )
    size = path.stat().st_size
    if archive.size and size != archive.size:
        raise SetupError(f"{path} has {size} bytes, and {archive.name} has {archive.size}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != archive.sha256:
        raise SetupError(f"{path} is not {archive.name}: its sha256 is {found}, not {archive.sha256}")


def download(archive: Archive, folder: Path) -> Path:
    """The archive in ``folder``, checked; goes on where an earlier try was cut off. Raises SetupError."""
    path, part = folder / archive.name, folder / f"{archive.name}.part"
    if not archive.sha256:
        check(path, archive)
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            receive(archive.url, part, archive.size or MAX_BYTES)
        except (OSError, ValueError) as cause:
            raise SetupError(f"cannot fetch {archive.url}: {cause}") from None
        try:
            check(part, archive)
        except SetupError:
            part.unlink()
            raise
        part.replace(path)
    check(path, archive)
    return path


def receive(url: str, part: Path, most: int = MAX_BYTES) -> None:
    """Append what is missing of ``url``, or all of it where the server knows no parts. Raises OSError, ValueError.

    ``most``: bytes that it may have in all; where there are more, it is something else, and one byte more is kept.
    """
    if not url.startswith(("https://", "http://")):
        raise ValueError("an address begins with https:// or http://")
    done = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "llama-appliance"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        answer = urllib.request.urlopen(request, timeout=SECONDS)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing is missing, or it is another file: the sum will tell
            raise
        return
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        if not answer.url.startswith(url[: url.index(":") + 1]) and not answer.url.startswith("https:"):
            raise ValueError(f"it was sent on to {answer.url[:200]}, which is no safer place")
        left = most + 1 - (done if answer.status == 206 else 0)
        while left > 0 and (block := answer.read(min(BLOCK, left))):
            file.write(block)
            left -= len(block)
        if left <= 0:
            return
        declared = answer.headers.get("Content-Length")
        file.flush()
        os.fsync(file.fileno())
    if declared is not None and part.stat().st_size != int(declared) + (done if answer.status == 206 else 0):
        raise OSError("the connection was closed early; the next try goes on from there")


def unpack(path: Path, into: Path) -> None:
    """Unpack into the new folder ``into``. Raises SetupError for what no build has in it."""
    into.mkdir(parents=True)
    try:
        if path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as file:
                _write(_zipped(file), into, path.name)
        else:
            with tarfile.open(path, "r:gz") as file:
                _write(_tarred(file), into, path.name)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, RuntimeError, OSError) as cause:
        raise SetupError(f"{path.name} cannot be unpacked: {cause}") from None


def _zipped(file: zipfile.ZipFile) -> Iterator[Member]:
    for count, info in enumerate(file.infolist(), 1):
        _check_count(count)
        mode = info.external_attr >> 16
        if info.is_dir():
            continue
        if stat.S_ISLNK(mode):
            yield Member(info.filename, mode, file.read(info)[:4096].decode("utf-8", "replace"), None)
        elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
            with file.open(info) as content:
                yield Member(info.filename, mode, None, content)
        else:
            raise SetupError(f"{info.filename} in the archive is neither a file nor a folder")


def _tarred(file: tarfile.TarFile) -> Iterator[Member]:
    for count, info in enumerate(file, 1):
        _check_count(count)
        if info.isdir():
            continue
        if info.issym():
            yield Member(info.name, info.mode, info.linkname, None)
        elif info.isreg():
            yield Member(info.name, info.mode, None, file.extractfile(info))
        else:
            raise SetupError(f"{info.name} in the archive is neither a file nor a folder")


def _write(members: Iterator[Member], into: Path, archive: str) -> None:
    """Files first: a link that is not there yet can lead no file astray."""
    links: dict[str, str] = {}
    left = MAX_BYTES
    for member in members:
        name = _inside(member.name, archive)
        path = into / name
        if path.exists() or name in links:
            raise SetupError(f"{archive} has {name} twice")
        if member.target is not None:
            links[name] = member.target
            continue
        assert member.content is not None  # only links have none
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            while block := member.content.read(BLOCK):
                left -= len(block)
                if left < 0:
                    raise SetupError(f"{archive} is larger than {MAX_BYTES >> 30} GB when it is unpacked")
                file.write(block)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
    for name, target in links.items():
        _link(into, name, target, links, archive)


def _check_count(count: int) -> None:
    """Folders count, too."""
    if count > MAX_FILES:
        raise SetupError(f"the archive has more than {MAX_FILES} files")


def _link(into: Path, name: str, target: str, links: dict[str, str], archive: str) -> None:
    """A link to a file beside it, which may be a link of that kind itself."""
    beside = str(PurePosixPath(name).parent / target)
    plain = PurePosixPath(target).name == target and target not in ("", ".", "..") and "\\" not in target
    if not plain or not ((into / beside).is_file() or beside in links):
        raise SetupError(f"{archive} has a link {name} to {target[:200]!r}, which is no file beside it")
    (into / name).parent.mkdir(parents=True, exist_ok=True)
    (into / name).symlink_to(target)


def _inside(name: str, archive: str) -> str:
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or not name.isprintable() or any(_is_bad(part) for part in path.parts):
        raise SetupError(f"{archive} has a file with the path {name[:200]!r}")
    return str(path)


def _is_bad(part: str) -> bool:
    return part == ".." or any(sign in part for sign in "\\:\0") or part.endswith((" ", "."))
