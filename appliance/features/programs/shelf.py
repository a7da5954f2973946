"""The folder of versions, and what is done there to a payload: it is copied, compared with its signed list, placed.

Everything here waits for the disk, and raises OSError.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Never

from msgspec import Struct

from appliance.core.archives import BadArchive
from appliance.core.payload import LIST, SIGNATURE, Payload, PayloadFile, digest_of, read_payload
from appliance.core.programs import LINE, name_of, program_id, unpacked_link
from appliance.core.versions import VersionState
from appliance.errors import UsageError
from appliance.features.programs.rules import misplaced
from appliance.platform.strangers import stranger_at
from appliance.start import VARIABLE, program_file
from appliance.store.file_hashes import sha256_of
from appliance.store.shelf import CannotInstall, VersionShelf, copy_folder, size_of
from appliance.store.unpacking import SUFFIXES, is_archive, read_member, unpack
from appliance.store.version_file import VersionFile

MAX_LIST = 16 << 20  # bytes of a list of files; one of a whole payload has a megabyte
UNPACKED = 3  # bytes that a byte of an archive becomes at most, as far as payloads go


class PayloadSource(Struct, frozen=True, kw_only=True):
    """A payload that was found: a folder or an archive, with its list."""

    path: Path
    payload: Payload
    program: str


class Programs(VersionShelf[VersionState, Never]):
    """The folder of versions; each is one folder, or a link to the folder where the user has unpacked it."""

    verbs = "llama-appliance upgrade"
    variable = VARIABLE

    def __init__(self, root: Path) -> None:
        """Raises UsageError for a folder that another user could have filled, and OSError."""
        if why := stranger_at(root):
            raise UsageError(
                f"{root} is not used for versions of the program: {why}; set HOME to your own home, as 'sudo -H' does, "
                f"or name another folder with {VARIABLE}"
            )
        super().__init__(root)

    @property
    def state(self) -> VersionFile[VersionState, Never]:
        return program_file(self.root)

    def folder_name(self, build: str) -> str:
        return name_of(build)

    def builds_in(self, folder: Path) -> list[str]:
        found = [path.parent.name for path in folder.glob(f"*/{LIST}")]
        return sorted(f"{LINE}/{name}" for name in found if not name.startswith("."))

    def enter(self, folder: Path) -> str:
        """Have the folder among the versions, by a link if it lies elsewhere; its id. Raises UsageError."""
        source = find(folder)
        place = self.place_of(source.program)
        if folder.resolve() != place.resolve():
            self.root.mkdir(parents=True, exist_ok=True)
            fresh = self.root / f".{place.name}.new"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(folder.resolve())
            # A link whose folder has gone gives way; a copy, which `bundle import` makes, stays.
            is_copy = place.is_dir() and not place.is_symlink()
            fresh.replace(self.root / unpacked_link(place.name) if is_copy else place)
        return source.program

    def held(self) -> tuple[str, ...]:
        """Return the versions that the user installed elsewhere: no upgrade removes their links."""
        return tuple(program for program in self.placed() if self.place_of(program).is_symlink())

    def copy(self, source: PayloadSource, check: Callable[[], None]) -> Path:
        """Stage the payload. ``check`` is called often and may raise. Raises CannotInstall."""
        size = size_of(source.path) if source.path.is_dir() else source.path.stat().st_size * UNPACKED
        self.check_room("the new version", size)
        work = self.work_folder(name_of(source.program))
        try:
            if source.path.is_dir():
                copy_folder(source.path, work, check)
            else:
                unpack(source.path, work, check)
            found = [folder for folder in (work, *work.iterdir()) if (folder / LIST).is_file()]
            if not found:
                raise CannotInstall(f"{source.path} has no {LIST} at its top, so it is not a payload of this program")
            return self.stage(found[0], source.program)
        except BadArchive as cause:
            raise CannotInstall(str(cause)) from None
        finally:
            shutil.rmtree(work, ignore_errors=True)


def find(path: Path) -> PayloadSource:
    """Return the payload that a folder or an archive is. Raises UsageError."""
    try:
        if path.is_dir():
            content = (path / LIST).read_bytes() if (path / LIST).is_file() else None
        elif path.is_file() and is_archive(path):
            content = read_member(path, LIST, MAX_LIST)
        else:
            raise UsageError(f"{path} is not a payload: give its folder, or its archive ({', '.join(SUFFIXES)})")
        if content is None:
            raise UsageError(f"{path} has no {LIST}, so it is not a payload of this program")
        payload = read_payload(content)
    except (ValueError, BadArchive) as cause:
        raise UsageError(f"{LIST} in {path} cannot be read: {cause}; fetch it again") from None
    return PayloadSource(path=path, payload=payload, program=program_id(payload.version, digest_of(content)))


def damage_of(folder: Path, program: str, check: Callable[[], None]) -> str:
    """Return the first difference between the folder and its list, in words; empty: it is what the list says.

    ``program`` is the id that the list's own sum must give.
    """
    try:
        content = (folder / LIST).read_bytes()
        payload = read_payload(content)
    except (OSError, ValueError) as cause:
        return f"its {LIST} cannot be read: {cause}"
    if program_id(payload.version, digest_of(content)) != program:
        return f"its {LIST} is of another version than {name_of(program)}"
    if path := misplaced(payload):
        return f"its list names {path!r}, which is not a plain path inside it"
    files = {file.path: file for file in payload.files}
    for root, folders, names in os.walk(folder):
        for name in (*names, *(each for each in folders if Path(root, each).is_symlink())):
            path = Path(root, name)
            listed = files.pop(path.relative_to(folder).as_posix(), None)
            if listed is None:
                if path.parent != folder or name not in (LIST, SIGNATURE):
                    return f"{path.relative_to(folder)} is not in its list"
            elif not _is_as_listed(path, listed, check):
                return f"{listed.path} is not what its list says"
    return f"{next(iter(files))} is missing" if files else ""


def _is_as_listed(path: Path, listed: PayloadFile, check: Callable[[], None]) -> bool:
    if listed.link or path.is_symlink():
        return path.is_symlink() and path.readlink().as_posix() == listed.link
    state = path.stat()
    if state.st_size != listed.size or bool(state.st_mode & 0o100) != listed.executable:
        return False
    return sha256_of(path, check) == listed.sha256
