"""The answers of a registry of container images, as far as they are read (OCI distribution specification 1.1)."""

from __future__ import annotations

from msgspec import Struct


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
