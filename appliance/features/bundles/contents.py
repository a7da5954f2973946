"""Finds on this machine what goes into a bundle, and reads its sums. Everything here waits for the disk."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from appliance.catalog.found import all_shards, current_snapshot
from appliance.core.engines.builds import MANIFEST as ENGINE
from appliance.core.engines.builds import Build, parse_asked
from appliance.core.models.model import Model
from appliance.core.models.names import folder_of
from appliance.core.payload import LIST, SIGNATURE, Payload, PayloadFile, read_payload
from appliance.core.payload import digest_of as payload_digest
from appliance.core.versions import numbers_of
from appliance.engines.found import check_build, read_build
from appliance.errors import UsageError
from appliance.features.bundles.container import Check, Tell, sums_of
from appliance.features.bundles.core.manifest import Blob, BundleItem, digest_of, is_plain, model_digest

_SHA256 = re.compile(r"[0-9a-f]{64}")
_UNSAFE = re.compile(r"[^\w.+-]+")
LICENCES = ("licen", "copying", "notice")  # beginnings of the names of files with a licence


class SumReader:
    """Reads sums, each file's once, and remembers which file has which content."""

    def __init__(self, check: Check = lambda: None, tell: Tell = lambda _: None) -> None:
        self._check = check
        self._tell = tell
        self._known: dict[Path, Blob] = {}

    def file(self, path: Path, name: str) -> PayloadFile:
        """Describe a file under its name in the bundle. Raises UsageError, OSError."""
        if not is_plain(name):
            raise UsageError(f"{path} cannot be in a bundle: other systems would not take its name for a plain one")
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"{path} cannot be in a bundle: it is not a regular file")
        blob = self._known.get(path)
        if blob is None:
            blob = self._known[path] = sums_of(path, self._check, self._tell)
        return PayloadFile(path=name, size=blob.size, sha256=blob.sha256, executable=bool(mode & 0o100))

    def folder(self, folder: Path, below: str = "") -> Iterator[PayloadFile]:
        """Describe everything in a folder; links stay links."""
        for path in sorted(folder.rglob("*")):
            name = below + path.relative_to(folder).as_posix()
            if path.is_symlink():
                yield PayloadFile(path=name, link=path.readlink().as_posix())
            elif not path.is_dir() and "__pycache__" not in path.parts:
                yield self.file(path, name)

    def blobs(self, items: Iterable[BundleItem]) -> list[tuple[Blob, Path]]:
        """Return each content that the items carry, once, and a file that has it."""
        paths = {blob.sha256: (blob, path) for path, blob in self._known.items()}
        return [paths[sha256] for sha256 in dict.fromkeys(file.sha256 for item in items for file in item.carried)]


def builds_in(roots: Iterable[Path], target: str) -> list[tuple[Path, Build]]:
    """Return the whole builds for a platform in these folders, best place first, without those that are there twice."""
    found: dict[tuple[str, str], tuple[Path, Build]] = {}
    for root in roots:
        for manifest in sorted(root.glob(f"[!.]*/[!.]*/{ENGINE}")):
            try:
                build = read_build(manifest.parent)
            except (OSError, ValueError):
                continue
            if build.platform == target and build.files and not check_build(manifest.parent):
                found.setdefault((build.id, build.digest), (manifest.parent, build))
    return list(found.values())


def engine(builds: Sequence[tuple[Path, Build]], word: str, target: str, reader: SumReader) -> BundleItem:
    """Return the newest build that the word means. Raises UsageError."""
    asked = parse_asked(word, target)
    fitting = [
        (folder, build)
        for folder, build in builds
        if (build.platform, build.backend) == (asked.platform, asked.backend) and asked.build in (None, build.build)
    ]
    if asked.platform != target:
        raise UsageError(f"the bundle is for {target}, and the engine {word} is not")
    if not fitting:
        there = ", ".join(dict.fromkeys(build.id for _, build in builds)) or "none"
        raise UsageError(
            f"there is no whole build {word} for {target} here, but {there}; "
            f"'llama-appliance engines install {word} --platform {target}' fetches one"
        )
    folder, build = max(fitting, key=lambda found: numbers_of(found[1].build))
    files = tuple(reader.folder(folder))
    sums = {file.path: file.sha256 for file in files}
    if changed := [file.path for file in build.files if sums.get(file.path) != file.sha256 and file.path in sums]:
        raise UsageError(f"{', '.join(changed[:3])} in {folder} changed after the build was made; install it again")
    return BundleItem(kind="engine", name=build.id, digest=build.digest, files=files)


def program(folder: Path, target: str, reader: SumReader) -> BundleItem:
    """Return the frozen program in this folder, whole as its list has it. Raises UsageError, OSError."""
    payload, digest = payload_in(folder)
    if payload.platform != target:
        raise UsageError(f"the program in {folder} is for {payload.platform}, and the bundle is for {target}")
    for listed in payload.files:
        path = folder / listed.path
        if not is_plain(listed.path) or not os.path.lexists(path):
            raise UsageError(f"{listed.path} of the program in {folder} is missing; make the payload again")
        if not listed.link and reader.file(path, listed.path).sha256 != listed.sha256:
            raise UsageError(f"{path} is not what {LIST} says; make the payload again")
    own = [reader.file(folder / name, name) for name in (LIST, SIGNATURE) if (folder / name).is_file()]
    return BundleItem(kind="program", name=program_name(payload, digest), digest=digest, files=(*payload.files, *own))


def program_name(payload: Payload, digest: str) -> str:
    """Return the name of its folder among programs: ``0.2.0-`` and the first digits of its digest."""
    return f"{payload.version}-{digest[:12]}"


def payload_in(folder: Path) -> tuple[Payload, str]:
    """Return the list of the frozen program in this folder, and its digest. Raises UsageError."""
    try:
        content = (folder / LIST).read_bytes()
        return read_payload(content), payload_digest(content)
    except (OSError, ValueError) as cause:
        raise UsageError(f"{folder} does not hold a program as 'bootstrap.py freeze' makes it: {cause}") from None


def model(found: Model, cache: Path, reader: SumReader) -> BundleItem:
    """Return a model with all its parts. One of the hub's keeps its name; others get one that fits a file."""
    if found.config is not None or not found.path:
        raise UsageError(
            f"{found.id} is started by a command of its own, and has no file to export; export the model that the "
            "command names, and the configuration with --config"
        )
    if found.source == "starter":
        raise UsageError("the starter model is part of every program; leave it out")
    if found.error:
        raise UsageError(f"{found.id} cannot be used: {found.error}")
    paths = weights_of(found)
    repo, commit, snapshot = _in_hub_cache(found, cache)
    if snapshot is not None:
        named = [(path, path.relative_to(snapshot).as_posix()) for path in paths]
        named += [(path, path.name) for path in _licences(snapshot)]
    else:
        safe = _UNSAFE.sub("-", found.id).strip(".-") or "model"
        named = [(path, f"{safe}/{path.name}") for path in (*paths, *_licences_beside(paths))]
        if len(named) == 1:
            named = [(paths[0], f"{safe}.gguf")]
    files = tuple(_of_model(path, name, reader) for path, name in dict.fromkeys(named))
    name = found.id if snapshot is not None else named[0][1].partition("/")[0].removesuffix(".gguf")
    return BundleItem(kind="model", name=name, digest=model_digest(files), files=files, repo=repo, commit=commit)


def _in_hub_cache(found: Model, cache: Path) -> tuple[str, str, Path | None]:
    if found.source == "cache" and found.hf_repo:
        snapshot = current_snapshot(cache / folder_of(found.hf_repo))
        if snapshot is not None and Path(found.path).is_relative_to(snapshot):
            return found.hf_repo, snapshot.name, snapshot
    return "", "", None


def _of_model(path: Path, name: str, reader: SumReader) -> PayloadFile:
    """A blob of another program's store has no suffix; its model gets one."""
    if not Path(name).suffix and path.is_file() and not path.name.lower().startswith(LICENCES):
        name += ".gguf"
    return PayloadFile(path=name, size=(file := reader.file(path, name)).size, sha256=file.sha256)


def _licences(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.lower().startswith(LICENCES) and path.is_file())


def _licences_beside(paths: Sequence[Path]) -> list[Path]:
    """Return the licences in a folder that holds one model; in a folder of several nobody knows whose they are."""
    folder = paths[0].parent
    return _licences(folder) if set(folder.glob("*.gguf")) <= set(paths) else []


def weights_of(found: Model) -> list[Path]:
    return [Path(path) for path in (*all_shards(Path(found.path)), found.mmproj, found.draft) if path]


def sha256_of(path: Path, reader: SumReader) -> str:
    """Return a model file's sha256; the hub's cache has it in the name of the file that a link leads to."""
    target = path.readlink().name if path.is_symlink() else ""
    return target if _SHA256.fullmatch(target) else reader.file(path, "x.gguf").sha256


def settings(configs: Sequence[Path], plugins: Sequence[Path], reader: SumReader) -> BundleItem | None:
    """Return the configuration files, as they are, and the folders of plugins; None for none of either."""
    files = [reader.file(path, f"config/{path.name}") for path in configs]
    for folder in plugins:
        files += reader.folder(folder, "plugins/")
    if not files:
        return None
    return BundleItem(kind="settings", name="settings", digest=digest_of(files), files=tuple(files))
