"""The file of a bundle, or its parts: written in one go, read at any place. `core.manifest` says how it looks.

Everything here waits for the disk: call it in a thread. ``check`` is called between chunks and may raise.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path

from appliance.core.one_file import BEGINNING, end_of_program
from appliance.errors import UsageError
from appliance.features.bundles.core.manifest import (
    BLOBS,
    CHUNK,
    MANIFEST,
    MAX_MANIFEST,
    SIGNATURE,
    SIGNATURE_SIZE,
    TAR_BLOCK,
    Blob,
    BundleManifest,
    offsets,
    padded,
    read_manifest,
)
from appliance.features.bundles.core.plan import BundleSigner, signer_in
from appliance.store.model_files import free_bytes, sync_folder

PART = re.compile(r"(?P<name>.+)\.[0-9]{3,}")
TOLD = 5  # damaged pieces that one message names

Check = Callable[[], None]
Tell = Callable[[int], None]  # called with the number of bytes that were done since the last call


def sums_of(path: Path, check: Check, tell: Tell, end: int = sys.maxsize) -> Blob:
    """Read a file once, up to byte ``end``, and return its size and sums. Raises OSError."""
    whole, chunks, size = hashlib.sha256(), list[str](), 0
    with path.open("rb") as file:
        while data := file.read(min(CHUNK, end - size)):
            check()
            whole.update(data)
            chunks.append(hashlib.sha256(data).hexdigest())
            size += len(data)
            tell(len(data))
    return Blob(sha256=whole.hexdigest(), size=size, chunks=tuple(chunks))


def write_bundle(
    path: Path,
    manifest: bytes,
    signature: bytes,
    blobs: Sequence[tuple[Blob, Path]],
    part: int,
    check: Check,
    tell: Tell,
    front: tuple[Blob, Path] | None = None,
) -> list[Path]:
    """Write the bundle, in files of ``part`` bytes each if that is not 0. Return the files.

    ``front`` is a program to stand before it. No file has its name before all are whole and on the disk. Raises
    UsageError, OSError.
    """
    if len(manifest) > MAX_MANIFEST:
        most = MAX_MANIFEST >> 20
        raise UsageError(f"the list of its contents takes more than {most} MiB; export fewer models at once")
    _, size = offsets(len(manifest), [blob for blob, _ in blobs])
    size += front[0].size if front is not None else 0
    free = free_bytes(path.parent)
    if free < size:
        raise UsageError(
            f"the bundle takes {size / 1e6:.0f} MB, and {free / 1e6:.0f} MB are free in {path.parent}; name another "
            "place with -o"
        )
    out = _Out(path, part)
    try:
        if front is not None:
            for data in _same(front[1], front[0], check, tell):
                out.write(data)
            out.make_executable()
        out.member(MANIFEST, len(manifest), [manifest])
        out.member(SIGNATURE, SIGNATURE_SIZE, [signature])
        for blob, source in blobs:
            out.member(BLOBS + blob.sha256, blob.size, _same(source, blob, check, tell))
        out.write(bytes(2 * TAR_BLOCK))
        return out.finish()
    except BaseException:
        out.discard()
        raise


def _same(source: Path, blob: Blob, check: Check, tell: Tell) -> Iterator[bytes]:
    """Yield the file's chunks, and tell of each that was taken. Raises UsageError for others than the manifest's."""
    with source.open("rb") as file:
        for number, wanted in enumerate(blob.chunks):
            check()
            data = file.read(min(CHUNK, blob.size - number * CHUNK))
            if hashlib.sha256(data).hexdigest() != wanted:
                raise UsageError(f"{source} changed while it was exported; export again")
            yield data
            tell(len(data))


class _Out:
    """The files being written, under names of their own until `finish`."""

    def __init__(self, path: Path, part: int) -> None:
        self._path = path
        self._part = part
        self._files: list[tuple[Path, FileIO]] = []
        self._left = 0

    def member(self, name: str, size: int, content: Iterable[bytes]) -> None:
        head = tarfile.TarInfo(name)
        head.size, head.mode = size, 0o644
        self.write(head.tobuf(tarfile.GNU_FORMAT))
        for data in content:
            self.write(data)
        self.write(bytes(-size % TAR_BLOCK))

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if not self._left:
                final = part_of(self._path, len(self._files) + 1) if self._part else self._path
                self._files.append((final, FileIO(_fresh(final), "w")))
                self._left = self._part or 1 << 62
            count = self._files[-1][1].write(rest[: self._left])
            rest = rest[count:]
            self._left -= count

    def make_executable(self) -> None:
        path = _fresh(self._files[0][0])
        path.chmod(path.stat().st_mode | 0o111)

    def finish(self) -> list[Path]:
        for _, file in self._files:
            os.fsync(file.fileno())
            file.close()
        for final, _ in self._files:
            _fresh(final).replace(final)
        sync_folder(self._path.parent)
        return [final for final, _ in self._files]

    def discard(self) -> None:
        for final, file in self._files:
            file.close()
            _fresh(final).unlink(missing_ok=True)


def part_of(path: Path, number: int) -> Path:
    """``X.001`` and so on."""
    return path.with_name(f"{path.name}.{number:03}")


def _fresh(final: Path) -> Path:
    return final.with_name(f".{final.name}.new")


def refuse_existing(path: Path) -> None:
    """Raise UsageError if the bundle's name, or that of one of its parts, is taken."""
    for there in (path, part_of(path, 1)):
        if there.exists():
            raise UsageError(f"{there} is there already; remove it, or name another file with -o")


def program_size(path: Path) -> int:
    """Return the size of the one-file program that the file begins with; 0: it does not. Raises OSError."""
    with path.open("rb") as file:
        return end_of_program(file.read(BEGINNING))


def is_runnable(path: Path) -> bool:
    """True for a one-file program with something behind it. Raises OSError."""
    return 0 < program_size(path) < path.stat().st_size


class Bundle:
    """A bundle that is open for reading. ``path`` is its file, one of its parts, or their common name.

    The file may begin with the one-file program.
    """

    def __init__(self, path: Path) -> None:
        """Read and check the manifest. Raises UsageError, OSError."""
        found = PART.fullmatch(path.name)
        whole = path.with_name(found["name"]) if found is not None else path
        is_part = part_of(whole, 1).exists()
        self._path = whole if is_part else path
        self._split = is_part and (whole != path or not path.exists())
        self._file: tuple[int, FileIO] | None = None
        self._part = self._size = 1 << 62  # until the manifest tells
        first = part_of(whole, 1) if self._split else path
        if not first.is_file():
            raise UsageError(f"there is no bundle {path}; name its file, or its first part, {part_of(whole, 1).name}")
        self._begin = program_size(first)
        if self._begin and not is_runnable(first):
            raise UsageError(f"{path} has no bundle behind its program: name the bundle's file, or copy this one again")
        try:
            self.text, self.signature = self._opening(first)
            self.manifest: BundleManifest = read_manifest(self.text)
            front = self.manifest.front
            if self._begin != (front.size if front is not None else 0):
                raise UsageError(f"{path} does not begin with the program that it was exported with; export it again")
        except BaseException:
            self.close()
            raise
        self._part = self.manifest.part or 1 << 62
        places, self._size = offsets(len(self.text), self.manifest.blobs)
        self._places = {sha256: self._begin + place for sha256, place in places.items()}
        if front is not None:
            self._places[front.sha256] = 0
        self._checked: set[tuple[str, int]] = set()
        self.blobs: Mapping[str, Blob] = {blob.sha256: blob for blob in self.manifest.blobs}  # what its items carry
        self._of = {file.sha256: f"{item.kind} {item.name}" for item in self.manifest.items for file in item.files}

    def signer(self, trusted: Sequence[bytes]) -> BundleSigner:
        """Say which key has signed it; ``trusted`` are public keys."""
        return signer_in(self.text, self.signature, self.manifest.signer, trusted)

    @property
    def files(self) -> list[Path]:
        """All files that it should have."""
        return self._parts(0, -(-self._size // self._part))

    def _parts(self, first: int, end: int) -> list[Path]:
        return [part_of(self._path, each + 1) for each in range(first, end)] if self._split else [self._path]

    def chunk(self, blob: Blob, number: int) -> bytes:
        """Return a verified piece. Raises UsageError for a damaged or missing one, OSError."""
        begin = self._places[blob.sha256] + number * CHUNK
        count = min(CHUNK, blob.size - number * CHUNK)
        data = self._read(begin, count)
        if hashlib.sha256(data).hexdigest() != blob.chunks[number]:
            last = (begin + count - 1) // self._part
            names = [file.name for file in self._parts(begin // self._part, last + 1)]
            what = self._of.get(blob.sha256, "the program at its beginning")
            where = f"{' or '.join(names)} is damaged within {count} bytes of {what}"
            raise UsageError(f"{where}: copy it again from where it comes from")
        self._checked.add((blob.sha256, number))
        return data

    def verify(self, check: Check, tell: Tell) -> None:
        """Read everything that was not read yet. Raises UsageError, which names what is damaged or missing."""
        told: list[str] = []
        for blob in self.manifest.all_blobs:
            for number in range(len(blob.chunks)):
                if (blob.sha256, number) in self._checked:
                    continue
                check()
                try:
                    tell(len(self.chunk(blob, number)))
                except UsageError as cause:
                    told += [str(cause)] if str(cause) not in told else []
        if told:
            more = f"; and {len(told) - TOLD} more" if len(told) > TOLD else ""
            raise UsageError("; ".join(told[:TOLD]) + more)

    def close(self) -> None:
        if self._file is not None:
            self._file[1].close()
            self._file = None

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opening(self, first: Path) -> tuple[bytes, bytes]:
        """Return manifest and signature, which are whole in the first file."""
        size = self._head(self._begin, MANIFEST, first)
        if size > MAX_MANIFEST:
            raise UsageError(f"{first} is not a bundle: its manifest is too long")
        text = self._read(self._begin + TAR_BLOCK, size)
        at = self._begin + padded(size)
        if self._head(at, SIGNATURE, first) != SIGNATURE_SIZE:
            raise UsageError(f"{first} is not a bundle: its signature has another length")
        return text, self._read(at + TAR_BLOCK, SIGNATURE_SIZE)

    def _head(self, at: int, name: str, first: Path) -> int:
        """Return the size of the member that begins there. One block is read, whatever it says of others."""
        try:
            head = tarfile.TarInfo.frombuf(self._read(at, TAR_BLOCK), "ascii", "surrogateescape")
        except tarfile.HeaderError:
            head = tarfile.TarInfo()
        if head.name != name or not head.isreg() or head.size < 0:
            raise UsageError(f"{first} is not a bundle of llama-appliance, or is damaged at its beginning")
        return head.size

    def _read(self, at: int, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            index, within = divmod(at + len(data), self._part)
            data += self._piece(index, within, min(count - len(data), self._part - within))
        return bytes(data)

    def _piece(self, index: int, within: int, count: int) -> bytes:
        path = part_of(self._path, index + 1) if self._split else self._path
        if self._file is None or self._file[0] != index:
            self.close()
            try:
                self._file = index, FileIO(path)
            except FileNotFoundError:
                raise UsageError(f"{path} is not here: put it beside the other parts, and try again") from None
        self._file[1].seek(within)
        piece = self._file[1].read(count)
        if not piece:
            raise UsageError(f"{path} ends too early: copy it again from where it comes from")
        return piece
