"""The builds that a bundle may carry from this machine, and the place of those that came in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import trio

from appliance.core.builds import MANIFEST, Build
from appliance.core.versions import numbers_of
from appliance.engines.builds import check_build, read_build
from appliance.errors import UsageError
from appliance.features.engines.core.builds import parse_asked
from appliance.features.engines.found import builds_below
from appliance.features.engines.shelf import Shelf
from appliance.store.carried import CarriedBuild
from appliance.store.shelf import alone


class CarriedHere:
    """The builds below ``roots``, best place first; ``shelf`` is where others come. ``packaged`` has some that stay."""

    def __init__(self, shelf: Shelf, roots: Sequence[Path], packaged: Path | None) -> None:
        self.root = shelf.root
        self._shelf = shelf
        self._roots = roots
        self._staying = [shelf.root, *([packaged] if packaged is not None else [])]

    def find(self, word: str, target: str) -> CarriedBuild:
        builds, asked = _builds_in(self._roots, target), parse_asked(word, target)
        if asked.platform != target:
            raise UsageError(f"the bundle is for {target}, and the engine {word} is not")
        fitting = [each for each in builds if each[1].backend == asked.backend and asked.build in (None, each[1].build)]
        if not fitting:
            there = ", ".join(dict.fromkeys(build.id for _, build in builds)) or "none"
            raise UsageError(
                f"there is no whole build {word} for {target} here, but {there}; "
                f"'llama-appliance engines install {word} --platform {target}' fetches one"
            )
        return _carried(*max(fitting, key=lambda found: numbers_of(found[1].build)))

    def lasting(self, target: str) -> Sequence[CarriedBuild]:
        return [_carried(*each) for each in _builds_in(self._staying, target)]

    def places_of(self, name: str) -> Sequence[Path]:
        parse_asked(name, "")
        return [root / name for root in self._staying]

    def digest_at(self, place: Path) -> str:
        return read_build(place).digest if place.is_dir() and not check_build(place) else ""

    async def take_in(self, folder: Path, name: str) -> None:
        async with alone(self._shelf):
            await trio.to_thread.run_sync(self._put, folder, name)

    def _put(self, folder: Path, name: str) -> None:
        (folder / MANIFEST).touch()  # the newest of its files: what is older need not be read again
        if damage := check_build(folder, read_all=True):
            raise UsageError(f"the bundle's engine {name} is not whole: {damage}; export it again")
        self._shelf.stage(folder, name)
        self._shelf.put(name)


def _builds_in(roots: Iterable[Path], target: str) -> list[tuple[Path, Build]]:
    """Return the whole builds for a platform in these folders, best place first, without those that are there twice."""
    found: dict[tuple[str, str], tuple[Path, Build]] = {}
    for root in roots:
        for folder, build in builds_below(root):
            if build.platform == target and build.files and not check_build(folder):
                found.setdefault((build.id, build.digest), (folder, build))
    return list(found.values())


def _carried(folder: Path, build: Build) -> CarriedBuild:
    sums = {file.path: file.sha256 for file in build.files}
    return CarriedBuild(folder=folder, name=build.id, digest=build.digest, sums=sums)
