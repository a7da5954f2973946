"""The lines of a partial file's journal (`appliance.store.partial_file`)."""

from __future__ import annotations

from msgspec import Struct


class PartialHead(Struct, frozen=True, kw_only=True, tag="file", tag_field="t"):
    """First line of a partial file's journal: the file that it will be. ``oid`` is empty if no hash is known."""

    oid: str
    size: int
    repo: str
    path: str
    version: int = 1


class PartialChunk(Struct, frozen=True, tag="chunk", tag_field="t"):
    """The file is on disk up to ``end``; the bytes since the line before have this CRC-32."""

    end: int
    crc: int


class PartialSource(Struct, frozen=True, tag="source", tag_field="t"):
    """The server that sent the file, and its ETag, which must not change between two connections to it."""

    host: str
    etag: str


PartialLine = PartialHead | PartialChunk | PartialSource
