"""Models from other boxes of the pool: several boxes that have the same files are one source.

One box sends at a time. Each request is for a span of the file, and the next span comes from the box that
`core.blobs.FileSources` chooses; after a break the next byte comes from another box. The receiver is the limit,
not the sender: over plain HTTP a GiB took it 12 s of a processor and the sender 2 s, and the hash has to follow the
order of the bytes. So a second sender at the same time was not built.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from msgspec import structs

from appliance import __version__
from appliance.catalog.found import UnsafeName, current_snapshot, join_inside
from appliance.core.models.names import folder_of
from appliance.core.models.transfer import StartOver, is_passing, judge, retry_after
from appliance.errors import BadRequest, Conflict, UpstreamFailed
from appliance.features.pool.core.blobs import FileSources, HashedFile, blob_path, cached_repo, check_names
from appliance.store.file_hashes import SHA256
from appliance.store.partial_file import holds
from appliance.upstream.address import Address
from appliance.upstream.client import HttpCall
from appliance.upstream.file_transfer import DownloadPlan, PlannedFile
from appliance.upstream.hub import HubAnswer, HubFailed

SPAN = 64 << 20  # bytes of one request: half a second on a line of 1 Gbit/s, after which a faster box can take over

HEAD_TIME = 15.0  # seconds until the next box is asked instead; one whose disk sleeps takes several to answer


class MemberFailed(HubFailed):
    """Another box of the pool could not be reached, or did not give a file of a model."""

    reason = "member_failed"

    def __init__(self, host: str, why: str, *, passing: bool = True, retry_after: float | None = None) -> None:
        super().__init__(host, why, passing=passing, retry_after=retry_after)
        self.message = f"the box {host} did not give a file: {why}"


class Members:
    """The boxes that give the files of one model; a `file_transfer.ModelSource`."""

    def __init__(self, members: Sequence[Address], files: Sequence[HashedFile], model_id: str) -> None:
        """``members``: the doors of boxes that have all of the files, in the order of `ModelFilesHere.files`.

        They are dialled with limits of time. Raises BadRequest for no box.
        """
        if not members:
            raise BadRequest("no box of the pool has the model")
        self._members = [structs.replace(member, header_timeout=HEAD_TIME) for member in members]
        self._sources: defaultdict[str, FileSources] = defaultdict(partial(FileSources, len(members)))
        self._files, self._model_id = files, model_id
        self.servers = len(members)

    def plan(self, cache: Path, models_dir: Path | None) -> DownloadPlan:
        """Return the plan by which the model gets the same id as on the other boxes. Waits for the disk.

        A model of the hub gets its place in the cache, where `pull` would put it, in the snapshot that is there. Any
        other one is fetched beside its place in the models folder, and gets its names there when all of it has come.
        Raises BadRequest for names or hashes that cannot be used, Conflict where another file has such a name.
        """
        model_id, files = self._model_id, self._files
        check_names(model_id, [file.name for file in files])
        if not all(SHA256.fullmatch(file.sha256) and file.size > 0 for file in files):
            raise BadRequest(f"a file of '{model_id}' has no SHA-256, or no contents")
        try:
            if (repo := cached_repo(model_id)) is not None:
                plan = _in_cache(model_id, repo, files, join_inside(cache, folder_of(repo)))
            elif models_dir is not None:
                plan = _in_folder(model_id, files, models_dir, cache / ".locks")
            else:
                raise Conflict(
                    f"there is no models folder for '{model_id}' here; start the server with --models-dir DIR"
                )
        except UnsafeName as error:
            raise BadRequest(f"'{model_id}' has a file whose name cannot be used here: {error}") from None
        for file in plan.files:
            if file.entry.exists() and not holds(file.entry, file.oid, file.size, trio.from_thread.check_cancelled):
                raise Conflict(f"{file.entry} is another file than that of '{model_id}' on the other box; remove one")
        return plan

    @asynccontextmanager
    async def open_from(self, repo: str, url: str, have: int, size: int) -> AsyncGenerator[HubAnswer]:
        """Request the next span of a file. Raises MemberFailed, which passes while another box may give the file."""
        sources = self._sources[url]
        box = sources.choose(have)
        if box is None:
            raise MemberFailed(repo, "no box has the file any more", passing=False)
        member, stop = self._members[box], min(have + SPAN, size)
        part = b"bytes=%d-%d" % (have, stop - 1)
        headers = [(b"User-Agent", f"llama-appliance/{__version__}".encode()), (b"Range", part)]
        began, well, count = trio.current_time(), False, 0

        def add(received: int) -> None:
            nonlocal count
            count += received

        try:
            async with HttpCall(member, "GET", url, headers) as response:
                fields = {name.lower(): value for name, value in response.headers}
                if (why := _wrong(response.status, fields, have, size)) is not None:
                    if not is_passing(response.status):
                        sources.lacks(box)
                    after = retry_after(fields.get(b"retry-after"), time.time())
                    raise MemberFailed(member.label, why, passing=sources.left, retry_after=after)
                yield HubAnswer(response.status, member.label, fields, response, MemberFailed, add)
                well = True
        except UpstreamFailed as cause:
            raise MemberFailed(member.label, cause.why) from None
        finally:
            sources.ended(box, well=well)
            sources.gave(box, count, trio.current_time() - began)

    def doubt(self, url: str, times: int) -> bool:
        """Return whether a box is left that may have the right file."""
        self._sources[url].came_wrong()
        return self._sources[url].left


def _wrong(status: int, headers: Mapping[bytes, bytes], have: int, size: int) -> str | None:
    """Return why an answer is not the wanted part of the file; None for one that is."""
    if status not in (200, 206):
        return f"it answered {status}; its log says more"
    verdict = judge(status, headers, have, size)
    return verdict.why if isinstance(verdict, StartOver) else None


def _in_cache(model_id: str, repo: str, files: Sequence[HashedFile], folder: Path) -> DownloadPlan:
    snapshot = current_snapshot(folder) or folder / "snapshots" / files[0].sha256[:40]
    planned: list[PlannedFile] = []
    for file in files:
        url, entry = blob_path(file.sha256), join_inside(snapshot, *file.name.split("/"))
        planned.append(PlannedFile.in_repo(url, file.name, file.sha256, file.size, entry, folder))
    return DownloadPlan(model_id=model_id, repo=repo, commit=snapshot.name, folder=folder, files=tuple(planned))


def _in_folder(model_id: str, files: Sequence[HashedFile], models_dir: Path, locks: Path) -> DownloadPlan:
    coming = models_dir / f".{model_id}.coming"  # a repository of its own, into which no scan looks
    planned: list[PlannedFile] = []
    for file in files:
        entry, name = join_inside(models_dir, *file.name.split("/")), file.name.rpartition("/")[2]
        planned.append(
            PlannedFile(
                url=blob_path(file.sha256),
                path=name,
                oid=file.sha256,
                size=file.size,
                blob=coming / "blobs" / name,
                entry=entry,
                lock=locks / f"{file.sha256}.lock",
            )
        )
    return DownloadPlan(model_id=model_id, repo=model_id, commit="", ref=None, folder=coming, files=tuple(planned))
