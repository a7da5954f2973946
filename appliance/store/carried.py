"""The part of engines in a bundle: the builds that one may carry from here, and what becomes of those that came.

A feature that has builds fills it in (`EngineSource.carried`). Refuses to know how bundles look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from appliance.errors import UsageError


class CarriedBuild(Struct, frozen=True, kw_only=True):
    """A whole build that is here."""

    folder: Path
    name: str  # its id, ``linux-x64-cpu/b11434``
    digest: str  # changes when any file of it does
    sums: Mapping[str, str]  # the sha256 of the files that it lists, by path


class CarriedEngines(Protocol):
    """The builds of one machine. Everything here waits for the disk, and raises OSError."""

    root: Path
    """The folder into which builds come."""

    def find(self, word: str, target: str) -> CarriedBuild:
        """Return the newest build for the platform ``target`` that the word means. Raises UsageError."""
        ...

    def lasting(self, target: str) -> Sequence[CarriedBuild]:
        """Return the builds for the platform that stay here when every medium is taken away."""
        ...

    def places_of(self, name: str) -> Sequence[Path]:
        """Return the places where a build would stay; the first one is where it comes. Raises UsageError."""
        ...

    def digest_at(self, place: Path) -> str:
        """Return the digest of the build in this folder; empty: there is none that is whole."""
        ...

    async def take_in(self, folder: Path, name: str) -> None:
        """Give a folder that lies on the file system of ``root`` its place. Raises Conflict, UsageError."""
        ...


class NoCarriedEngines:
    """The builds of a program without a feature that has some."""

    root = Path()

    def find(self, word: str, target: str) -> CarriedBuild:
        raise UsageError(f"the engine {word} cannot be exported: this program knows no builds")

    def lasting(self, target: str) -> Sequence[CarriedBuild]:
        return ()

    def places_of(self, name: str) -> Sequence[Path]:
        raise UsageError(f"the engine {name} cannot be taken in: this program knows no builds")

    def digest_at(self, place: Path) -> str:
        return ""

    async def take_in(self, folder: Path, name: str) -> None:
        self.places_of(name)
