"""One file from the hub into the cache: fetched in ranges, retried, checked, named when it is complete; its deletion.

Models are deleted from the hub cache and the models folder, never from another program's store. In the cache a model is
its names in the snapshots; a blob goes when no name leads to it any more. A projector goes with the last model beside
it. Links are removed, never what they lead to outside the cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import trio
from msgspec import Struct

from appliance.catalog.download_plan import PlannedFile, begun_in
from appliance.catalog.download_status import DownloadFailed, HubFailed, UnderWay
from appliance.catalog.found import join_inside, list_folder, model_files
from appliance.catalog.hub import Hub, HubAnswer
from appliance.core.models.download import StartOver, Throttle, judge, retry_delay
from appliance.core.models.model import Model
from appliance.core.models.names import folder_of, is_companion, model_name, shard_of, stem_of, tag_of
from appliance.errors import Forbidden
from appliance.store.model_files import remove, remove_empty
from appliance.store.partial_file import FileTaken, PartialFile, WrongContents, claim, discard, open_partial
from appliance.wire import PartialHead, PartialSource, RemovedModel

log = logging.getLogger(__name__)

ATTEMPTS = 6
"""Attempts in a row without a new byte, over about a minute."""
BLOCK = 1 << 20
"""Bytes gathered before a thread writes them."""
CLOSE_TIME = 10.0
"""Seconds that a cancelled download may take to keep its part."""

ANEW = "the server breaks off, and begins the file anew each time instead of continuing it"

Report = Callable[[int], None]
MAX_DEPTH = 5


class Transfer(Struct, frozen=True, kw_only=True):
    """The settings of file transfers; shared by all of them."""

    hub: Hub
    throttle: Throttle
    delay: Callable[[int, float | None], float] = retry_delay
    """Seconds before an attempt; tests have less patience."""


class _Outdated(Exception):
    """The part on disk does not belong to the server's current file."""


async def fetch(transfer: Transfer, repo: str, model_id: str, file: PlannedFile, report: Report) -> None:
    """Bring the file into the cache. Raises UnderWay, HubFailed, a refusal's error, DownloadFailed, OSError."""
    try:
        lock = await trio.to_thread.run_sync(claim, file.lock)
    except FileTaken:
        raise UnderWay(model_id) from None
    try:
        if not await trio.to_thread.run_sync(file.here):  # another program may have finished it meanwhile
            await _fetch(transfer, repo, file, report)
        report(file.size)
    finally:
        lock.release()


async def _fetch(transfer: Transfer, repo: str, file: PlannedFile, report: Report) -> None:
    wrong: WrongContents | None = None
    for _ in range(2):
        partial = await _open(repo, file)
        try:
            report(partial.length)
            await _complete(transfer, repo, file, partial, report)
            await trio.to_thread.run_sync(partial.finish)
            return
        except WrongContents as error:
            wrong = error
            log.warning("%s of %s was received with wrong contents: %s", file.path, repo, error)
        finally:
            with trio.move_on_after(CLOSE_TIME, shield=True):
                await trio.to_thread.run_sync(partial.close)
    raise DownloadFailed(file.path, f"it came with wrong contents twice ({wrong}); the server's copy is damaged")


async def _open(repo: str, file: PlannedFile) -> PartialFile:
    head = PartialHead(oid=file.oid, size=file.size, repo=repo, path=file.path)
    return await trio.to_thread.run_sync(open_partial, file.blob, head, trio.from_thread.check_cancelled)


async def _complete(transfer: Transfer, repo: str, file: PlannedFile, partial: PartialFile, report: Report) -> None:
    """Fetch all bytes, over as many connections as it takes. Only bytes that are new are progress."""
    attempt, most, again = 0, partial.length, False
    while partial.length < file.size:
        before = partial.length
        try:
            await _receive(transfer, repo, file, partial, report)
            continue
        except HubFailed as failure:
            attempt = 1 if partial.length > most else attempt + 1
            most = max(most, partial.length)
            if not failure.passing:
                raise
            if attempt >= ATTEMPTS:
                if again:
                    raise DownloadFailed(file.path, f"{failure}; {ANEW}") from None
                raise
            delay = transfer.delay(attempt, failure.retry_after)
            log.info("%s: %s; continuing in %.0f s", file.path, failure, delay)
        except _Outdated as cause:
            attempt += 1
            if attempt >= ATTEMPTS or before == 0:
                why = ANEW if again else "it has changed since it was listed: try again"
                raise DownloadFailed(file.path, f"{cause}; {why}") from None
            log.info("%s: %s; starting it again", file.path, cause)
            await trio.to_thread.run_sync(partial.start_over)
            delay, again = 0.0, True
        await trio.sleep(delay)


async def _receive(transfer: Transfer, repo: str, file: PlannedFile, partial: PartialFile, report: Report) -> None:
    """Fetch the bytes of one connection. Raises HubFailed and _Outdated."""
    have = partial.length
    headers = [(b"Range", b"bytes=%d-" % have)] if have else []
    async with transfer.hub.open("GET", file.url, headers) as answer:
        if answer.status not in (200, 206, 416):
            raise transfer.hub.refusal(answer, repo)
        verdict = judge(answer.status, answer.headers, have, file.size)
        if isinstance(verdict, StartOver):
            raise _Outdated(verdict.why)
        await _note_source(answer, partial)
        await _pump(transfer, answer, partial, verdict.skip, report)


async def _note_source(answer: HubAnswer, partial: PartialFile) -> None:
    """One server's ETag of one file does not change; two servers may have two."""
    etag = answer.headers.get(b"etag", b"").decode("latin-1")
    source = PartialSource(answer.host, etag)
    known = partial.source
    if partial.length and known and known.etag and etag and known.host == source.host and known.etag != etag:
        raise _Outdated("the server has another version of it than the unfinished one")
    await trio.to_thread.run_sync(partial.came_from, source)


async def _pump(transfer: Transfer, answer: HubAnswer, partial: PartialFile, skip: int, report: Report) -> None:
    block = bytearray()
    try:
        while data := await answer.receive():
            delay = transfer.throttle.take(len(data), trio.current_time())
            if skip:
                data, skip = data[skip:], max(0, skip - len(data))
            block += data
            report(partial.length + len(block))
            if len(block) >= BLOCK:
                await _write(partial, block)
            if delay:
                await trio.sleep(delay)
    finally:
        with trio.move_on_after(CLOSE_TIME, shield=True):  # received bytes are not fetched again
            await _write(partial, block)
    if partial.length < partial.head.size:
        raise HubFailed(answer.host, "it closed the connection before the end of the file")


async def _write(partial: PartialFile, block: bytearray) -> None:
    """Write and empty ``block``. One that is cancelled before a thread has it stays as it is."""
    if block:
        data = bytes(block)
        block.clear()
        try:
            await trio.to_thread.run_sync(partial.write, data)
        except trio.Cancelled:
            block += data  # Trio waits for a thread that has begun, so this one has not
            raise


def remove_model(model: Model, cache: Path, models_dir: Path | None) -> RemovedModel:
    """Raises Forbidden for a model from anywhere else, OSError."""
    if model.source == "cache" and model.hf_repo and model.tag:
        return _remove_cached(model.id, join_inside(cache, folder_of(model.hf_repo)), model.tag)
    path = Path(model.path)
    if model.source == "models_dir" and models_dir is not None and models_dir in path.parents:
        return _remove_from_folder(model, path, models_dir)
    where = {
        "config": "it is in the configuration; take it out there",
        "path": f"it was named on the command line; delete {model.path} yourself",
        "starter": "it is part of the program; --no-starter leaves it out",
    }.get(model.source, "it is in a folder that belongs to another program")
    raise Forbidden(f"'{model.id}' cannot be removed: {where}")


def discard_begun(folder: Path, blobs: Sequence[Path]) -> None:
    """Remove the unfinished parts of a repository's files, and its folders if nothing else is left."""
    for blob in blobs:
        discard(blob)
    _remove_empty_folders(folder)


def _remove_cached(model_id: str, folder: Path, tag: str) -> RemovedModel:
    snapshots = folder / "snapshots"
    entries = list(_files_below(snapshots))
    gone = [entry for entry in entries if _belongs(entry.name, tag)]
    if not any(_is_model(entry.name) for entry in entries if entry not in gone):
        gone = [entry for entry in entries if stem_of(entry.name) is not None]
    left = [entry for entry in entries if entry not in set(gone)]
    blobs = {blob for entry in gone if (blob := _blob_of(entry, folder))} - {_blob_of(entry, folder) for entry in left}
    size = sum(remove(path) for path in (*gone, *sorted(blob for blob in blobs if blob)))
    for blob, head in begun_in(folder):
        if _belongs(head.path.rpartition("/")[2], tag):
            discard(blob)
    for entry in gone:
        remove_empty(entry.parent, folder)
    _remove_empty_folders(folder)
    return RemovedModel(model=model_id, paths=tuple(str(entry) for entry in gone), size=size)


def _remove_from_folder(model: Model, path: Path, models_dir: Path) -> RemovedModel:
    """Return ``X.gguf`` with its other shards, or the files of ``D/``'s model."""
    shard = shard_of(stem_of(path.name) or "")
    parts = [path.with_name(shard.name(number)) for number in range(1, shard.total + 1)] if shard else [path]
    others = [Path(found) for found in (model.mmproj, model.draft) if found]
    if path.parent != models_dir and _other_models(path.parent, model_name(stem_of(path.name) or "")):
        others = []
    gone = [found for found in (*parts, *others) if found.is_symlink() or found.exists()]
    size = sum(remove(found) for found in gone)
    remove_empty(path.parent, models_dir)
    return RemovedModel(model=model.id, paths=tuple(str(found) for found in gone), size=size)


def _other_models(folder: Path, stem: str) -> bool:
    """Return True if companions are still needed by another model."""
    found = model_files(list_folder(folder)[0])
    return any(model.stem != stem and not is_companion(model.stem, anywhere=False) for model in found)


def _belongs(name: str, tag: str) -> bool:
    return _is_model(name) and tag_of(stem_of(name) or "") == tag


def _is_model(name: str) -> bool:
    stem = stem_of(name)
    return stem is not None and not is_companion(stem, anywhere=True)


def _blob_of(entry: Path, folder: Path) -> Path | None:
    """Return the blob that a name leads to; None for a file of its own, and for a link out of the repository."""
    if not entry.is_symlink():
        return None
    target = Path(entry.parent, entry.readlink())
    blob = folder / "blobs" / target.name
    return blob if target.parent.resolve() == (folder / "blobs").resolve() else None


def _files_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    try:
        files, folders = list_folder(folder)
    except OSError:
        return
    yield from (folder / name for name in files)
    if depth < MAX_DEPTH:
        for name in folders:
            if not (folder / name).is_symlink():
                yield from _files_below(folder / name, depth + 1)


def _remove_empty_folders(folder: Path) -> None:
    """If nothing is left of a repository, also remove its branch names."""
    below: Iterable[Path] = (*_files_below(folder / "snapshots"), *_files_below(folder / "blobs"))
    if next(iter(below), None) is None:
        for name in list(_files_below(folder / "refs")):
            remove(name)
        for part in ("refs", "blobs", "snapshots"):
            remove_empty(folder / part, folder.parent)
