"""The list of builds that can be fetched, as it is shipped; in a checkout it is ``llama-builds/manifest.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from appliance.core.engines.manifest import Archive, Entry, Wants, check_entry
from appliance.errors import UsageError

SHIPPED = Path(__file__).with_name("manifest.toml")
CHECKOUT = Path(__file__).parents[2] / "llama-builds" / "manifest.toml"


def manifest_file() -> Path:
    """Where the list is."""
    return SHIPPED if SHIPPED.is_file() or not CHECKOUT.is_file() else CHECKOUT


class _Archive(Struct, frozen=True, kw_only=True):
    name: str
    size: int = 0
    sha256: str = ""
    url: str = ""


class _Build(Struct, frozen=True, kw_only=True):
    platform: str
    backend: str
    build: str
    archives: tuple[_Archive, ...]
    licence: str = ""
    needs: Wants = Wants()


class _File(Struct, frozen=True, kw_only=True):
    base: str
    builds: tuple[_Build, ...]


def read_manifest(path: Path | None = None) -> list[Entry]:
    """Every build of the list. Raises UsageError for a list that cannot be used, and OSError."""
    path = path or manifest_file()
    try:
        with path.open("rb") as file:
            found = msgspec.convert(tomllib.load(file), type=_File)
    except FileNotFoundError:
        raise UsageError(f"there is no list of builds at {path}; name a build of your own with --from") from None
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as cause:
        raise UsageError(f"{path} is no list of builds: {cause}") from None
    return [_entry(found.base, build) for build in found.builds]


def _entry(base: str, build: _Build) -> Entry:
    entry = Entry(
        platform=build.platform,
        backend=build.backend,
        build=build.build,
        archives=tuple(_archive(base, build.build, archive) for archive in build.archives),
        needs=build.needs,
        licence=build.licence,
    )
    check_entry(entry)
    return entry


def _archive(base: str, build: str, archive: _Archive) -> Archive:
    url = archive.url or base.replace("{build}", build).replace("{name}", archive.name)
    if PurePosixPath(archive.name).name != archive.name or urlsplit(url).scheme not in ("https", "http"):
        raise UsageError(f"'{archive.name}' in the list of builds is no name of a file, or its address is none: {url}")
    return Archive(name=archive.name, url=url, sha256=archive.sha256, size=archive.size)
