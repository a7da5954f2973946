"""What a registry of container images answers, as far as it is read (OCI distribution specification 1.1)."""

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
    """What the token server of a registry gives to anybody."""

    token: str = ""
    access_token: str = ""
