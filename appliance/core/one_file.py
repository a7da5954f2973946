"""The one-file program as bytes (installer/onefile.c): where it ends, and so where a bundle behind it begins."""

from __future__ import annotations

from struct import Struct

MAGIC = b"AI\x02"
"""At offset 8: an AppImage of type 2."""
RECORD_NAME = b"llama-appliance!"
RECORD = Struct("<16s32s72sQQ")
"""`record` of onefile.c: its name, version, sha256 of the image, where the image begins, its size."""
BEGINNING = 4 << 20
"""Bytes of the file among which the record is; the compiled part has 1.2 MB."""


def end_of_program(beginning: bytes) -> int:
    """Return the size of the program without anything behind it, by the file's first bytes; 0: it is another file."""
    at = beginning.find(RECORD_NAME)
    if beginning[8 : 8 + len(MAGIC)] != MAGIC or at < 0 or at + RECORD.size > len(beginning):
        return 0
    _, _, _, offset, size = RECORD.unpack_from(beginning, at)
    return offset + size
