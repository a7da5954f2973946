"""The answers of the Hugging Face hub, as far as they are read (https://huggingface.co/docs/hub/api)."""

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
