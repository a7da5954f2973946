"""Earlier versions of one file, each in a file of its own that only this user can read. Everything here waits for the
disk.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from appliance.errors import NotFound
from appliance.store.model_files import open_regular, write_whole

MOST = 50  # versions that are kept
MOST_BYTES = 32 << 20  # bytes that they may take together; the newest is always kept
_NAME = re.compile(r"[0-9]{6,18}")


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
