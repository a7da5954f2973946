"""``payload.json``: the list of the frozen program's files, which stands for the whole of it."""

from __future__ import annotations

import hashlib

import msgspec
from msgspec import Struct

LIST = "payload.json"
SIGNATURE = "payload.json.sig"
FORMAT = 1


class PayloadFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file: its size in bytes and its sha256; or a link to ``link``, relative to the link's folder."""

    path: str
    size: int = 0
    sha256: str = ""
    executable: bool = False
    link: str = ""


class Payload(Struct, frozen=True, kw_only=True):
    """The whole list. Unknown keys are ignored, so that an older program can read a newer list."""

    format: int
    name: str
    version: str
    commit: str
    platform: str
    """``linux-x64`` and the like, see `core.machine_look.platform_of`."""
    made: str
    """The time of the commit, in UTC."""
    engines: tuple[str, ...]
    files: tuple[PayloadFile, ...]


def read_payload(content: bytes) -> Payload:
    """Decode the list. Raises ValueError for one that cannot be read, or of a format that is not known here."""
    try:
        payload = msgspec.json.decode(content, type=Payload)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if payload.format != FORMAT:
        raise ValueError(f"it has format {payload.format}, and this program reads format {FORMAT}")
    return payload


def digest_of(content: bytes) -> str:
    """Return the sha256 of the list's bytes, which stands for the whole payload."""
    return hashlib.sha256(content).hexdigest()
