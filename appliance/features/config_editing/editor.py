"""Edits of the configuration's files: checked as a start would, written whole, with the text before kept.

An edit names the version that its author has seen. If the file is another one by then, nothing is written. Edits by
this program, the server's and the commands', wait for each other. Everything here waits for the disk.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from appliance.catalog.configuration import Files, config_paths, decoded, read_file
from appliance.core.config.nodes import Loaded
from appliance.core.config.types import Config
from appliance.errors import Conflict, NotFound, UsageError
from appliance.store.model_files import open_regular, write_whole

FOLDER = "config-versions"  # its name in the program's data folder
WAIT = 10.0  # seconds that an edit waits for another one, which takes milliseconds
MOST = 50  # versions that are kept
MOST_BYTES = 32 << 20  # bytes that they may take together; the newest is always kept
_BOM, _NAME = b"\xef\xbb\xbf", re.compile(r"[0-9]{6,18}")


class OpenedText(Struct, frozen=True, kw_only=True):
    """One file as it is now. ``fixed`` says why it cannot be written; empty: it can."""

    file: str
    text: str
    version: str
    fixed: str = ""


class TextChanged(Conflict):
    """The file is not the one that the author of an edit has seen. ``now`` is the file."""

    reason = "text_changed"

    def __init__(self, now: OpenedText) -> None:
        super().__init__(
            f"{now.file} has changed since you read it, and nothing was written; read it again, and put your edit in"
        )
        self.now = now


class ConfigEditor:
    """Edits the files of one configuration; ``folder`` gets the earlier versions."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder

    @property
    def config_type(self) -> type[Config]:
        """The type that has the keys of the configuration."""
        return self._files.config_type()

    def names(self) -> list[str]:
        return list(map(str, config_paths(self._files.config, self._files.config_dir)))

    def open(self, file: str | None = None) -> OpenedText:
        """Read a file of the configuration, by its name; without one, the only file. Raises UsageError."""
        names = self.names()
        if file is None and len(names) > 1:
            raise UsageError(f"the configuration has {len(names)} files; name one of {', '.join(names)}")
        if not names:
            raise UsageError("there is no configuration file to edit; name it with --config FILE")
        if file is not None and file not in names:
            raise UsageError(f"{file} is not a file of the configuration; there is {', '.join(names)}")
        return self._read(file or names[0])[0]

    def beside(self, file: str) -> list[str]:
        """The texts of the configuration's other files. Raises UsageError."""
        return [self._read(other)[0].text for other in self.names() if other != file]

    def check(self, file: str, text: str) -> Loaded:
        """Understand the configuration as it would be with another text of one file. Raises UsageError."""
        return self._files.understand(file, text)

    def write(self, file: str, version: str, edit: Callable[[OpenedText], str]) -> OpenedText:
        """Put another text into a file whose ``version`` was seen, and keep the text before.

        ``edit`` gets the file, which nothing else of this program changes meanwhile. It returns the text, or raises.
        Raises TextChanged, InvalidConfig, Conflict, UsageError; then nothing has changed.
        """
        from filelock import FileLock, Timeout  # several milliseconds that a start does not need

        kept = self.kept(file)
        try:
            kept.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(kept.folder / ".lock", timeout=WAIT):
                now, before = self._read(file)
                if now.version != version:
                    raise TextChanged(now)
                if now.fixed:
                    raise UsageError(now.fixed)
                text = edit(now)
                if "\r\n" in now.text and "\r" not in text:  # a browser's text area has lost these line ends
                    text = text.replace("\n", "\r\n")
                self.check(file, text).require()
                kept.keep(before)
                place = Path(os.path.realpath(file))
                data = (_BOM if before.startswith(_BOM) else b"") + text.encode()
                write_whole(place, data, like=place.stat())
                return self.open(file)
        except Timeout:
            raise Conflict("another edit of the configuration is under way; try again") from None
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror or error}; nothing has changed") from None

    def earlier(self, number: int, file: str) -> str:
        """The text of an earlier version. Raises NotFound, UsageError."""
        return decoded(Path(file), self.kept(file).read(number)).text

    def _read(self, file: str) -> tuple[OpenedText, bytes]:
        path, place, fixed = Path(file), Path(os.path.realpath(file)), ""
        data = read_file(path)
        if needed := next((each for each in (place, place.parent) if not os.access(each, os.W_OK)), None):
            fixed = f"{path} cannot be edited here: {needed} is read-only for this program; change its permissions"
        version = hashlib.sha256(data).hexdigest()[:16]
        return OpenedText(file=file, text=decoded(path, data).text, version=version, fixed=fixed), data

    def kept(self, file: str) -> KeptTexts:
        """The earlier versions of a file."""
        name = hashlib.sha256(os.path.realpath(file).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return KeptTexts(self._folder / name)


class KeptText(Struct, frozen=True, kw_only=True):
    """One earlier version. ``replaced_at`` is when another text took its place, in seconds since 1970."""

    number: int
    replaced_at: float
    bytes: int


class KeptTexts:
    """The versions in one folder, which need not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self) -> list[KeptText]:
        """Every version, the newest first. Raises OSError."""
        if not self.folder.is_dir():
            return []
        found = [(p, p.stat()) for p in self.folder.iterdir() if _NAME.fullmatch(p.name) and p.is_file()]
        kept = [KeptText(number=int(p.name), replaced_at=s.st_mtime, bytes=s.st_size) for p, s in found]
        return sorted(kept, key=lambda one: one.number, reverse=True)

    def read(self, number: int) -> bytes:
        """Raises NotFound, OSError."""
        try:
            with open_regular(str(self._path(number))) as file:
                return file.readall()
        except FileNotFoundError:
            raise NotFound(
                f"there is no version {number} of the configuration; 'llama-appliance config versions' lists them"
            ) from None

    def keep(self, data: bytes) -> None:
        """Add a version, unless it is the newest already, and remove those beyond the limits. Raises OSError."""
        kept = self.list()
        if kept and self.read(kept[0].number) == data:
            return
        number = kept[0].number + 1 if kept else 1
        write_whole(self._path(number), data, private=True)
        room = MOST_BYTES - len(data)
        for count, old in enumerate(kept, start=1):
            room -= old.bytes
            if count >= MOST or room < 0:
                self._path(old.number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}"
