"""GGUF headers from disk, each read once per change of its file."""

from __future__ import annotations

from io import FileIO

from msgspec import Struct

from appliance.catalog.files import NotRegular, open_regular, stat_regular, why
from appliance.core.models.gguf import GgufInfo, read_gguf
from appliance.core.models.gguf_bytes import GgufError


class Header(Struct, frozen=True, kw_only=True):
    """The facts about one file. Either ``info`` or ``error`` is set."""

    size: int = 0
    modified_ns: int = 0
    info: GgufInfo | None = None
    error: str | None = None
    missing: bool = False


class Headers:
    """Remembers headers by path, size and time of change. Not for two threads at once."""

    def __init__(self) -> None:
        self._known: dict[str, Header] = {}
        self._used: dict[str, Header] = {}

    def read(self, path: str) -> Header:
        """Never raises for the content of the disk: the reason is in ``error``. File-system errors are not
        remembered.
        """
        try:
            found = stat_regular(path)
            known = self._known.get(path)
            if known is None or (known.size, known.modified_ns) != (found.st_size, found.st_mtime_ns):
                with open_regular(path) as file:
                    known = _read(file, found.st_size, found.st_mtime_ns)
        except NotRegular as error:
            return Header(error=why(error))
        except OSError as error:
            return Header(error=f"it cannot be read: {why(error)}", missing=isinstance(error, FileNotFoundError))
        self._used[path] = known
        return known

    def forget_unused(self) -> None:
        """Drop headers that nobody asked for since the last call, so that deleted files do not pile up."""
        self._known, self._used = self._used, {}


def _read(file: FileIO, size: int, modified_ns: int) -> Header:
    def read_at(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    try:
        info = read_gguf(read_at, size)
    except GgufError as error:
        return Header(size=size, modified_ns=modified_ns, error=str(error))
    return Header(size=size, modified_ns=modified_ns, info=info)
