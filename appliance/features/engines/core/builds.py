"""Engine builds that can be fetched, what they require of a machine, and which of them a card here is offered."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from appliance.core.builds import BuildNeeds
from appliance.core.machine_look import PLATFORMS, Gpu, MachineLook
from appliance.core.versions import numbers_of
from appliance.errors import UsageError

BACKENDS = ("cpu", "vulkan", "cuda12", "cuda13", "rocm", "metal", "sycl")
VENDORS = {"cuda12": "nvidia", "cuda13": "nvidia", "rocm": "amd"}  # backends that run only on one vendor's cards
CARD_BACKENDS = {
    "nvidia": ("cuda13", "cuda12", "vulkan"),
    "amd": ("rocm", "vulkan"),
    "intel": ("sycl", "vulkan"),
    "apple": ("metal",),
}
"""The builds that compute on each vendor's cards, the usual one first."""
CUDA_DRIVERS = {"cuda13": "580.0", "cuda12": "525.60"}
"""The least NVIDIA driver of each generation of CUDA, by NVIDIA's compatibility tables."""
LOADERS = {"vulkan": "vulkan", "cuda12": "cuda", "cuda13": "cuda", "rocm": "rocm"}
"""The word in `MachineLook.loaders` for each backend."""

_RELEASE = re.compile(r"(?:^|[^a-z0-9])(b[0-9]{2,9}|v[0-9]{1,6}(?:\.[0-9]{1,6}){2})(?:[^a-z0-9]|$)")
_NUMBER = re.compile(r"b([0-9]{1,18})(?![0-9])")
_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})")
_WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class Archive(Struct, frozen=True, kw_only=True):
    """One file to fetch. ``sha256`` is empty if unknown; ``size`` (bytes) is then 0."""

    name: str
    url: str = ""  # empty in the list of builds, for one that lies where most do
    sha256: str = ""
    size: int = 0


class AvailableBuild(Struct, frozen=True, kw_only=True):
    """One available build. ``archives`` are unpacked into one folder: the build, then its runtime libraries."""

    platform: str
    backend: str
    build: str
    archives: tuple[Archive, ...] = ()
    needs: BuildNeeds = BuildNeeds()
    licence: str = ""

    @property
    def id(self) -> str:
        return f"{self.platform}-{self.backend}/{self.build}"

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return sum(archive.size for archive in self.archives)


class Installed(Struct, frozen=True, kw_only=True):
    """One engine that was found, usable or not, as the doctor examines it."""

    id: str
    backend: str
    source: str  # its place, in words
    digest: str = ""
    damage: str = ""
    needs: BuildNeeds = BuildNeeds()


UpdateChannel = Literal["latest", "stable"]  # the newest build, or the newest that is a version of llama.cpp


class Release(Struct, frozen=True, kw_only=True):
    """A version of llama.cpp, such as 0.6.0, and the build that it is, such as b11429."""

    version: str
    build: str


class Catalogue(Struct, frozen=True, kw_only=True):
    """The list of builds that can be fetched, and what it knows of llama.cpp's versions."""

    entries: tuple[AvailableBuild, ...] = ()
    releases: tuple[Release, ...] = ()

    def version_of(self, build: str) -> str:
        """Return ``0.6.0`` of ``b11429``; empty for a build without one."""
        number = self._number(build)
        same = (one.version for one in self.releases if number is not None and self._number(one.build) == number)
        return next(same, "")

    # Builds are numbered in their order, and versions are ordered among themselves. Nothing in the two says how a
    # number and a version compare: a patch of an old version may be younger than a new one. So only the list says which
    # build a version is, and without its word there is no answer. A version with a suffix does not count here:
    # llama.cpp calls what comes after 0.6.0 "0.6.0-dev", which SemVer puts before it.
    def is_newer(self, one: str, other: str) -> bool | None:
        """Return whether one build is newer than the other, each by its number or version; None: nobody knows."""
        mine, its = self._number(one), self._number(other)
        if mine is not None and its is not None:
            return mine > its
        first, second = _version(one), _version(other)
        if mine is not None or its is not None or first is None or second is None:
            return None
        return first > second

    def is_same(self, one: str, other: str) -> bool:
        """Return whether the two name one build, as ``v0.6.0`` and ``b11429`` do."""
        first, second = self._number(one), self._number(other)
        is_version = _version(one) is not None or _version(other) is not None
        return one == other or (is_version and first is not None and first == second)

    def newest(self, entries: Sequence[AvailableBuild], channel: UpdateChannel = "latest") -> AvailableBuild | None:
        """Return the newest of these entries that the channel takes."""
        taken = [one for one in entries if channel == "latest" or self.version_of(one.build)]
        return max(taken, key=lambda one: (self._number(one.build) or 0, numbers_of(one.build)), default=None)

    def _number(self, build: str) -> int | None:
        if found := _NUMBER.match(build):
            return int(found[1])
        wanted = _version(build)
        named = (one for one in self.releases if wanted is not None and _version(one.version) == wanted)
        return next((int(found[1]) for one in named if (found := _NUMBER.match(one.build))), None)


def _version(text: str) -> tuple[int, ...] | None:
    found = _VERSION.fullmatch(text)
    return tuple(map(int, found.groups())) if found else None


class InstallWish(Struct, frozen=True, kw_only=True):
    """The argument of ``engines install``."""

    platform: str
    backend: str
    build: str | None = None  # None: the newest


def parse_asked(word: str, platform: str) -> InstallWish:
    """Read ``vulkan``, ``vulkan/b11434`` or ``linux-x64-vulkan/b11434``. Raises UsageError."""
    kind, slash, build = word.strip().partition("/")
    prefix = next((name for name in PLATFORMS if kind.startswith(f"{name}-")), None)
    backend = kind[len(prefix) + 1 :] if prefix else kind
    if backend not in BACKENDS or (slash and not _WORD.fullmatch(build)):
        raise UsageError(
            f"'{word}' is not a build; write a backend ({', '.join(BACKENDS)}), or a build such as vulkan/b11434"
        )
    return InstallWish(platform=prefix or platform, backend=backend, build=build or None)


def find_entry(catalogue: Catalogue, asked: InstallWish) -> AvailableBuild:
    """Return the newest build that matches. Raises UsageError, which lists the existing ones."""
    here = [one for one in catalogue.entries if one.platform == asked.platform]
    kind = [one for one in here if one.backend == asked.backend]
    found = [one for one in kind if asked.build is None or catalogue.is_same(asked.build, one.build)]
    if newest := catalogue.newest(found):
        return newest
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
    """Return ``b11434`` of ``llama-b11434-bin-ubuntu-x64.tar.gz``, and ``0.6.0`` of ``llama-v0.6.0-x64.zip``."""
    found = _RELEASE.search(name.lower())
    return found[1].removeprefix("v") if found else None


def check_entry(entry: AvailableBuild) -> None:
    """Raises UsageError for words that cannot be the name of a folder."""
    for word in (entry.platform, entry.backend, entry.build):
        if not _WORD.fullmatch(word) or ".." in word:
            raise UsageError(f"'{word}' cannot be part of a build's name; use letters, digits, '.', '_' and '-'")


def unmet(
    needs: BuildNeeds, backend: str, platform: str, look: MachineLook, *, libc: str = "", macos: str = ""
) -> list[str]:
    """Return what is missing, one line each; empty: nothing known. ``libc`` and ``macos`` are this machine's."""
    if platform != look.platform:
        return [f"it is for {platform}, and this machine is {look.platform}"]
    missing = [feature for feature in needs.cpu if look.cpu_features and feature not in look.cpu_features]
    return [
        *_too_old("glibc", needs.libc, libc),
        *_too_old("macOS", needs.macos, macos),
        *_cards(needs, backend, look),
        *_libraries(needs, backend, look),
        *([f"it needs a processor with {', '.join(missing)}, which {look.cpu} lacks"] if missing else []),
    ]


def _too_old(what: str, least: str, has: str) -> list[str]:
    old = least and has and numbers_of(has) < numbers_of(least)
    return [f"it needs {what} {least} or newer; this system has {has}"] if old else []


def _cards(needs: BuildNeeds, backend: str, look: MachineLook) -> list[str]:
    vendor = VENDORS.get(backend)
    if vendor is None:
        return []
    cards = [gpu for gpu in look.gpus if vendor in gpu.vendor.lower()]
    if not cards:
        seen = ", ".join(gpu.name for gpu in look.gpus) or "none"
        return [f"it needs a graphics card of {vendor.upper()}; this machine's are: {seen}"]
    problems: list[str] = []
    least, has = numbers_of(needs.driver), [gpu.driver_version for gpu in cards]
    if all(version and numbers_of(version) < least for version in has):  # an unknown version: the proof will show
        problems.append(f"it needs the driver {needs.driver} or newer; {cards[0].name} has {has[0]}: update the driver")
    if needs.compute and not any(
        gpu.compute is None or runs_on(one, gpu.compute) for gpu in cards for one in needs.compute
    ):
        known = ", ".join(f"{gpu.name} ({gpu.compute})" for gpu in cards)
        problems.append(f"it was made for cards of compute capability {', '.join(needs.compute)}, not for {known}")
    if needs.targets and not any(gpu.gfx is None or gpu.gfx in needs.targets for gpu in cards):
        problems.append(f"it was not made for {', '.join(f'{gpu.name} ({gpu.gfx})' for gpu in cards)}")
    return problems


def runs_on(made_for: str, has: str) -> bool:
    """True for a later compute capability of the same major version, which runs builds for an earlier one."""
    made, card = numbers_of(made_for), numbers_of(has)
    return bool(made and card) and made[0] == card[0] and made <= card


def _libraries(needs: BuildNeeds, backend: str, look: MachineLook) -> list[str]:
    problems: list[str] = []
    loader = LOADERS.get(backend)
    if loader is not None and look.loaders.get(loader) == "":
        problems.append(f"the system has no {loader} library, which comes with the card's driver")
    for library in needs.libraries:
        word = next((word for word in look.loaders if word in library.lower()), None)
        if word is not None and word != loader and not look.loaders[word]:
            problems.append(f"the system has no {library}")
    return problems


class EngineOffer(Struct, frozen=True, kw_only=True):
    """The best listed build for a card. ``size`` is in bytes, 0 if nobody has told it."""

    card: str
    word: str = ""  # the argument of ``engines install``; empty: no listed build can use the card here
    build: str = ""
    size: int = 0
    problems: tuple[str, ...] = ()  # why better ones are not offered, one line each


def suited(gpu: Gpu) -> tuple[str, ...]:
    """Return backends for the card, by its driver; the best one first."""
    known = CARD_BACKENDS.get(gpu.vendor.lower(), ())
    have = numbers_of(gpu.driver_version)
    return tuple(name for name in known if not have or have >= numbers_of(CUDA_DRIVERS.get(name, "")))


def offers(
    look: MachineLook, catalogue: Catalogue, present: Collection[str], **versions: str
) -> tuple[EngineOffer, ...]:
    """Return an offer for each card that no build of the ``present`` backends can use. The rest is as in `unmet`."""
    found: dict[str, EngineOffer] = {}
    for gpu in look.gpus:
        backends = suited(gpu)
        if backends and gpu.name not in found and not any(backend in present for backend in backends):
            found[gpu.name] = _offer(gpu, backends, look, catalogue, versions)
    return tuple(found.values())


def _offer(
    gpu: Gpu, backends: Collection[str], look: MachineLook, catalogue: Catalogue, versions: Mapping[str, str]
) -> EngineOffer:
    problems: list[str] = []
    for backend in backends:
        listed = [one for one in catalogue.entries if (one.platform, one.backend) == (look.platform, backend)]
        lacks = {one.id: unmet(one.needs, backend, look.platform, look, **versions) for one in listed}
        best = catalogue.newest([one for one in listed if not lacks[one.id]])
        if best is not None:
            return EngineOffer(card=gpu.name, word=backend, build=best.id, size=best.size, problems=tuple(problems))
        newest = catalogue.newest(listed)
        problems += [f"{newest.id}: {problem}" for problem in lacks[newest.id]] if newest is not None else []
    return EngineOffer(card=gpu.name, problems=tuple(problems))
