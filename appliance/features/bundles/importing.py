"""Takes a bundle in: brings each item beside its place, continues where an earlier import stopped, and renames it.

An item's files arrive in a hidden folder on the file system of its place, each as `store.partial_file` has it. So a
kill at any moment costs at most a piece, and nothing that is in use changes before an item is whole. Models of the
hub's cache arrive as its blobs, and get their names last. Nothing here starts or switches anything.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from appliance.catalog.catalog import Snapshot
from appliance.catalog.found import current_snapshot
from appliance.core.models.names import folder_of
from appliance.core.payload import LIST, PayloadFile
from appliance.core.programs import unpacked_link
from appliance.errors import Conflict, UsageError
from appliance.features.bundles.container import Bundle, Check, Tell
from appliance.features.bundles.contents import SumReader, payload_in, program_name, sha256_of, weights_of
from appliance.features.bundles.core.manifest import CHUNK, BundleItem, PresentItem, model_digest
from appliance.features.bundles.core.plan import Standing, to_bring
from appliance.store.carried import CarriedEngines
from appliance.store.model_files import free_bytes, link, remove_empty, share, sync_folder, write_whole
from appliance.store.partial_file import FileTaken, PartialHead, WrongContents, claim, discard, journaled, open_partial

if TYPE_CHECKING:
    from filelock import FileLock

INCOMING = ".incoming"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Homes(Struct, frozen=True, kw_only=True):
    """The folders of this machine that things come into; none need be there yet."""

    data: Path  # the program's own data
    models: Path
    cache: Path  # the Hugging Face cache
    engines: CarriedEngines
    programs: Path  # the versions of the program
    packaged: Path | None = None
    """This program's folder, if a package manager keeps it: it stays, as none on a medium does."""

    def place_of(self, item: BundleItem) -> Path:
        """Return where the item is once it is here."""
        match item.kind:
            case "program":
                return self.programs / item.name
            case "engine":
                return self.engines.places_of(item.name)[0]
            case "model" if item.repo:
                return self.cache / folder_of(item.repo)
            case "model":
                return self.models / item.files[0].path.partition("/")[0]
            case "settings":
                return self.data / "settings" / item.digest[:12]

    def lasting(self, item: BundleItem) -> list[Path]:
        """Return the places where the item would stay."""
        match item.kind:
            case "engine":
                return list(self.engines.places_of(item.name))
            case "program" if self.packaged is not None:
                return [self.place_of(item), self.packaged]
            case _:
                return [self.place_of(item)]

    def incoming(self, item: BundleItem) -> Path:
        """Return the folder in which its files arrive, under their paths: on the file system of its place."""
        roots = {"program": self.programs, "engine": self.engines.root, "model": self.models}
        root = roots.get(item.kind, self.data / "settings")
        return root / INCOMING / (item.name if item.kind in ("program", "engine") else item.digest[:12])

    def arrival_of(self, item: BundleItem, file: PayloadFile) -> Path:
        """Return where a file has all its bytes for the first time."""
        if item.kind == "model" and item.repo:
            return self.place_of(item) / "blobs" / file.sha256
        return self.incoming(item) / file.path

    def snapshot_of(self, item: BundleItem) -> Path:
        """Return the names of a model of the hub: those in use, else those of the bundle's commit."""
        folder = self.place_of(item)
        return current_snapshot(folder) or folder / "snapshots" / item.commit


def plan(bundle: Bundle, homes: Homes, reader: SumReader) -> tuple[list[Standing], list[Standing]]:
    """Return how every item stands, and those to bring. Raises UsageError, OSError."""
    standings = [_standing(item, homes, reader) for item in bundle.manifest.items]
    return standings, to_bring(standings, {standing.disk: free_bytes(Path(standing.place)) for standing in standings})


def known(homes: Homes, snapshot: Snapshot, target: str, reader: SumReader) -> list[PresentItem]:
    """List what stays here, with its digests. Models outside the hub's cache are read whole."""
    builds = homes.engines.lasting(target)
    found = [PresentItem(kind="engine", name=build.name, digest=build.digest) for build in builds]
    placed = [path.parent for path in sorted(homes.programs.glob(f"[!.]*/{LIST}")) if not path.parent.is_symlink()]
    for folder in (*placed, *([homes.packaged] if homes.packaged is not None else [])):
        payload, digest = payload_in(folder)
        found.append(PresentItem(kind="program", name=program_name(payload, digest), digest=digest))
    for one in snapshot.models:
        if one.config is None and one.path and not one.error and one.source != "starter":
            sums = [PayloadFile(path="x.gguf", sha256=sha256_of(path, reader)) for path in weights_of(one)]
            found.append(PresentItem(kind="model", name=one.id, digest=model_digest(sums)))
    return found


def _standing(item: BundleItem, homes: Homes, reader: SumReader) -> Standing:
    found = next((place for place in homes.lasting(item) if _is_at(place, item, homes, reader)), None)
    place = found or homes.place_of(item)
    state = "here" if found is not None else "other" if _is_taken(item, homes, reader) else "missing"
    left = sum(_left(homes, item, file) for file in item.carried) if state == "missing" else 0
    there = next(each for each in (place, *place.parents) if each.exists())
    return Standing(item=item, state=state, left=left, disk=there.stat().st_dev, place=str(place))


def _is_at(place: Path, item: BundleItem, homes: Homes, reader: SumReader) -> bool:
    match item.kind:
        case "program":
            return (place / LIST).is_file() and not place.is_symlink() and _holds_program(place, item.digest)
        case "engine":
            return homes.engines.digest_at(place) == item.digest
        case "settings":
            return place.is_dir()
        case "model":
            named = not item.repo or current_snapshot(place) is not None  # the commit's name comes last
            return named and all(_same(path, file, reader) for path, file in _names(item, homes))


def _holds_program(folder: Path, digest: str) -> bool:
    """True if no file of it is missing, or has another size."""
    payload, found = payload_in(folder)
    return found == digest and all(
        path.is_symlink() if file.link else path.is_file() and path.stat().st_size == file.size
        for file in payload.files
        for path in [folder / file.path]
    )


def _is_taken(item: BundleItem, homes: Homes, reader: SumReader) -> bool:
    """True if something else has its place. A damaged engine has not, nor a link to a program: they are replaced."""
    if item.repo:
        return any(path.exists() and not _same(path, file, reader) for path, file in _names(item, homes))
    place = homes.place_of(item)
    is_damaged = item.kind == "engine" and not homes.engines.digest_at(place)
    return os.path.lexists(place) and not is_damaged and not (item.kind == "program" and place.is_symlink())


def _names(item: BundleItem, homes: Homes) -> Iterator[tuple[Path, PayloadFile]]:
    """Return the places of a model's files when it is here."""
    root = homes.snapshot_of(item) if item.repo else homes.models
    return ((root / file.path, file) for file in item.files)


def _same(path: Path, file: PayloadFile, reader: SumReader) -> bool:
    return path.is_file() and path.stat().st_size == file.size and sha256_of(path, reader) == file.sha256


def _left(homes: Homes, item: BundleItem, file: PayloadFile) -> int:
    final = homes.arrival_of(item, file)
    if _has_arrived(final, file) or _twin(homes, item, file) is not None:
        return 0
    begun = journaled(final)
    return file.size - (begun[1] if begun is not None and begun[0].oid == file.sha256 else 0)


def _has_arrived(final: Path, file: PayloadFile) -> bool:
    """Nothing gets its name before it is whole and has its sum."""
    return final.is_file() and final.stat().st_size == file.size


def _twin(homes: Homes, item: BundleItem, file: PayloadFile) -> Path | None:
    """Return a file of the Hugging Face cache with these contents, which it has by its name."""
    if item.kind != "model":
        return None
    return next((blob for blob in homes.cache.glob(f"*/blobs/{file.sha256}") if _has_arrived(blob, file)), None)


async def bring(
    bundle: Bundle, homes: Homes, wanted: Sequence[Standing], tell: Tell, came: Callable[[BundleItem], None]
) -> None:
    """Bring the items, one after the other, each into its place. Raises Conflict, UsageError, OSError.

    ``came`` is called in a thread for each that is in its place. The caller holds `exclusive`. Cancelled or killed, it
    keeps what has come; the next time continues there.
    """
    for standing in wanted:
        item = standing.item
        arrive = partial(_arrive, bundle, homes, item, trio.from_thread.check_cancelled, tell)
        with _explaining_full_disks(standing):
            await trio.to_thread.run_sync(arrive)
            if item.kind == "engine":
                incoming = homes.incoming(item)
                await trio.to_thread.run_sync(_make_links, incoming, item.files)
                await homes.engines.take_in(incoming, item.name)
                await trio.to_thread.run_sync(remove_empty, incoming.parent, homes.engines.root)
            else:
                await trio.to_thread.run_sync(_put, homes, item)
            await trio.to_thread.run_sync(came, item)


@contextmanager
def exclusive(homes: Homes) -> Generator[None]:
    """Let nobody else import meanwhile. Raises Conflict, OSError."""
    under_way = "another 'llama-appliance bundle import' is under way; wait until it ends"
    lock = _claimed(homes.data / ".import.lock", under_way)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explaining_full_disks(standing: Standing) -> Generator[None]:
    try:
        yield
    except OSError as cause:
        if cause.errno not in FULL:
            raise
        raise OSError(
            cause.errno,
            f"the disk is full ({cause.strerror}) at {standing.item.kind} {standing.item.name}: what has come is kept; "
            f"make room where {standing.place} is to be, and import again",
        ) from None


def _arrive(bundle: Bundle, homes: Homes, item: BundleItem, check: Check, tell: Tell) -> None:
    for file in item.carried:
        final = homes.arrival_of(item, file)
        with ExitStack() as held:
            if item.kind == "model" and item.repo:  # where a download may be writing, too
                lock = homes.cache / ".locks" / folder_of(item.repo) / f"{file.sha256}.lock"
                under_way = f"a download of {item.name} is under way; wait until it ends, or stop it"
                held.callback(_claimed(lock, under_way).release)
            if _has_arrived(final, file):
                discard(final)  # the journal, if a kill came between the file's name and the journal's end
            elif (twin := _twin(homes, item, file)) is not None:
                discard(final)
                share(twin, final)
            else:
                _receive(bundle, item, file, final, check, tell)
            if file.executable:
                final.chmod(0o755)


def _claimed(lock: Path, under_way: str) -> FileLock:
    """Raises Conflict with these words where another program has the lock."""
    try:
        return claim(lock)
    except FileTaken:
        raise Conflict(under_way) from None


def _receive(bundle: Bundle, item: BundleItem, file: PayloadFile, final: Path, check: Check, tell: Tell) -> None:
    head = PartialHead(oid=file.sha256, size=file.size, repo=item.repo, path=file.path)
    blob = bundle.blobs[file.sha256]
    coming = open_partial(final, head, check)
    try:
        while coming.length < file.size:
            check()
            number, within = divmod(coming.length, CHUNK)
            data = bundle.chunk(blob, number)[within:]
            coming.write(data)
            tell(len(data))
        coming.finish()
    except WrongContents as cause:
        at = f"{item.name}, {file.path}"
        raise UsageError(f"the bundle contradicts itself at {at}: {cause}; export it again") from None
    finally:
        coming.close()


def _put(homes: Homes, item: BundleItem) -> None:
    place, incoming = homes.place_of(item), homes.incoming(item)
    if item.kind == "model" and item.repo:
        snapshot = homes.snapshot_of(item)
        for file in item.files:
            link(place / "blobs" / file.sha256, snapshot / file.path)
        if current_snapshot(place) is None:  # the commit's name comes last: before it nothing new is seen
            write_whole(place / "refs" / "main", snapshot.name.encode())
        return
    _make_links(incoming, item.files)
    place.parent.mkdir(parents=True, exist_ok=True)
    source = incoming / place.name if item.kind == "model" else incoming
    if place.is_symlink():  # to the folder, maybe on a medium, that the user unpacked: starts from there are led on
        place.replace(place.with_name(unpacked_link(place.name)))
    source.rename(place)
    sync_folder(place.parent)
    remove_empty(source.parent, place.parent)


def _make_links(folder: Path, files: Sequence[PayloadFile]) -> None:
    """Make the links, which lead to files of the folder: see `core.manifest`. Windows gets copies."""
    for file in files:
        if not file.link:
            continue
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if sys.platform == "win32":
            copyfile(path.parent / file.link, path)
        else:
            path.symlink_to(file.link)
