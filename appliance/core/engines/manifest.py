"""The list of builds that can be fetched: platform and backend, source, and requirements."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from appliance.core.engines.builds import MACHINES, SYSTEMS, Needs, numbers_of
from appliance.errors import UsageError

BACKENDS = ("cpu", "vulkan", "cuda12", "cuda13", "rocm", "metal", "sycl")
PLATFORMS = tuple(f"{system}-{machine}" for system in SYSTEMS.values() for machine in sorted(set(MACHINES.values())))

_RELEASE = re.compile(r"(?:^|[^a-z0-9])(b[0-9]{2,9})(?:[^a-z0-9]|$)")
_WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Archive(Struct, frozen=True, kw_only=True):
    """One file to fetch. ``sha256`` is empty if unknown; ``size`` (bytes) is then 0."""

    name: str
    url: str
    sha256: str = ""
    size: int = 0


class Wants(Needs, frozen=True, kw_only=True):
    """The requirements of a listed build, beyond those in its ``engine.json``."""

    targets: tuple[str, ...] = ()
    """AMD's cards that it was compiled for, such as ``gfx1100``; no others can run it."""
    libc: str = ""
    """Least version of glibc."""
    macos: str = ""
    """Least version of macOS."""


class Entry(Struct, frozen=True, kw_only=True):
    """One available build. ``archives`` are unpacked into one folder: the build, then its runtime libraries."""

    platform: str
    backend: str
    build: str
    archives: tuple[Archive, ...] = ()
    needs: Wants = Wants()
    licence: str = ""

    @property
    def id(self) -> str:
        return f"{self.platform}-{self.backend}/{self.build}"

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(archive.size for archive in self.archives)


class Asked(Struct, frozen=True, kw_only=True):
    """The argument of ``engines install``."""

    platform: str
    backend: str
    build: str | None = None
    """None: the newest."""


def parse_asked(word: str, platform: str) -> Asked:
    """Read ``vulkan``, ``vulkan/b11434`` or ``linux-x64-vulkan/b11434``. Raises UsageError."""
    kind, slash, build = word.strip().partition("/")
    prefix = next((name for name in PLATFORMS if kind.startswith(f"{name}-")), None)
    backend = kind[len(prefix) + 1 :] if prefix else kind
    if backend not in BACKENDS or (slash and not _WORD.fullmatch(build)):
        raise UsageError(
            f"'{word}' is not a build; write a backend ({', '.join(BACKENDS)}), or a build such as vulkan/b11434"
        )
    return Asked(platform=prefix or platform, backend=backend, build=build or None)


def find_entry(entries: Sequence[Entry], asked: Asked) -> Entry:
    """Return the newest build that matches. Raises UsageError, which lists the existing ones."""
    here = [one for one in entries if one.platform == asked.platform]
    kind = [one for one in here if one.backend == asked.backend]
    found = [one for one in kind if asked.build in (None, one.build)]
    if found:
        return max(found, key=lambda one: numbers_of(one.build))
    if kind:
        builds = ", ".join(sorted({one.build for one in kind}, key=numbers_of))
        raise UsageError(
            f"there is no {asked.backend}/{asked.build} for {asked.platform}; there is "
            f"{builds}; --from installs another one from a file"
        )
    others = ", ".join(sorted({one.backend for one in here})) or "nothing"
    raise UsageError(
        f"no {asked.backend} build for {asked.platform} is listed; there is {others}; "
        "--from installs your own build; you can make one with 'python llama-builds/build.py'"
    )


def release_of(name: str) -> str | None:
    """Return ``b11434`` of ``llama-b11434-bin-ubuntu-x64.tar.gz``."""
    found = _RELEASE.search(name.lower())
    return found[1] if found else None


def check_entry(entry: Entry) -> None:
    """Raises UsageError for words that cannot be the name of a folder."""
    for word in (entry.platform, entry.backend, entry.build):
        if not _WORD.fullmatch(word) or ".." in word:
            raise UsageError(f"'{word}' cannot be part of a build's name; use letters, digits, '.', '_' and '-'")
