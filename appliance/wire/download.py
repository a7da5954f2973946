"""The outside shapes of downloads: answers of the Hugging Face hub and of container registries, lines of a journal.

The answers are described as far as they are read (https://huggingface.co/docs/hub/api; OCI distribution specification
1.1). The journal is that of a partial file (`appliance.store.partial_file`).
"""

from __future__ import annotations

from msgspec import Struct


class Branch(Struct, frozen=True, rename="camel"):
    """One branch of a repository."""

    name: str
    target_commit: str


class Refs(Struct, frozen=True):
    """``GET /api/models/<repo>/refs``."""

    branches: tuple[Branch, ...] = ()


class Lfs(Struct, frozen=True):
    """For a file that is kept outside git: ``oid`` is the sha256 of its contents."""

    oid: str
    size: int | None = None


class TreeEntry(Struct, frozen=True):
    """One line of ``GET /api/models/<repo>/tree/<commit>?recursive=true``. ``oid`` is git's own hash."""

    type: str
    path: str
    oid: str = ""
    size: int | None = None
    lfs: Lfs | None = None


class Layer(Struct, frozen=True, rename="camel"):
    """One blob of an image; ``digest`` is ``sha256:`` and the hash of its contents."""

    media_type: str
    digest: str
    size: int


class Manifest(Struct, frozen=True):
    """``GET /v2/<name>/manifests/<tag>``."""

    layers: tuple[Layer, ...] = ()


class Grant(Struct, frozen=True):
    """The token that a registry's token server gives to anybody."""

    token: str = ""
    access_token: str = ""


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
