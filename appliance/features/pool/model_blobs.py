"""The files of this box's models that other boxes of its pool may fetch, by their hash.

Files in the hub's cache are named by their hash. Others are read in the background when a box asks for their model, at
half the speed at most, and `FileHashes` remembers the result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Never

import trio

from appliance.catalog.catalog import Catalog
from appliance.catalog.found import all_shards, current_snapshot, why
from appliance.core.models.model import Model, Source
from appliance.core.models.names import folder_of
from appliance.errors import BadRequest, ModelNotFound, NotFound
from appliance.features.pool.core.blobs import FilesOfModel, HashedFile, cached_repo, check_names, names_in_folder
from appliance.store.file_hashes import FileHashes
from appliance.store.model_files import open_regular
from appliance.trio_parts import beside

GIVEN: tuple[Source, ...] = ("path", "models_dir", "cache", "lm_studio")  # others have options too, which stay here

log = logging.getLogger(__name__)


class ModelFilesHere:
    """Made by `open_model_files`."""

    def __init__(self, catalog: Catalog, hashes: FileHashes) -> None:
        self._catalog, self._hashes = catalog, hashes
        self._read: dict[Path, int] = {}  # bytes that were read of files whose hashes are wanted, in this order
        self._more = trio.Event()

    async def files(self, name: str) -> FilesOfModel:
        """Return the files of a model. Hashes that are not known are computed from now on: ask again.

        Raises ModelNotFound, NotFound for a model that cannot be given.
        """
        model = self._catalog.snapshot.find(name)
        if model is None:
            raise ModelNotFound(name, self._catalog.snapshot.near(name))

        def look() -> list[tuple[str, Path, int, str | None]]:
            found = given(model, self._catalog.sources.cache)
            return [(name, path, path.stat().st_size, self._hashes.known(path)) for name, path in found]

        try:
            found = await trio.to_thread.run_sync(look)
        except OSError as error:
            raise NotFound(f"a file of '{model.id}' cannot be read ({why(error)}): {error.filename}") from None
        if not found:
            raise NotFound(f"the files of '{model.id}' cannot be given to another box: copy the model there yourself")
        for _, path, _, sha256 in found:
            if sha256 is None and path not in self._read:
                self._read[path] = 0
                self._more.set()
        files = tuple(HashedFile(name=name, size=size, sha256=known) for name, _, size, known in found if known)
        return FilesOfModel(
            model=model.id,
            files=files if len(files) == len(found) else None,
            size=sum(size for _, _, size, _ in found),
            read=sum(size if known else self._read.get(path, 0) for _, path, size, known in found),
        )

    async def open(self, sha256: str) -> FileIO:
        """Open the file with this hash, which the caller closes. Raises NotFound if no model here has it."""

        cache = self._catalog.sources.cache

        def find() -> FileIO | None:
            for path in (path for model in self._catalog.snapshot.models for _, path in given(model, cache)):
                with suppress(OSError):
                    if self._hashes.known(path) == sha256:
                        file = open_regular(str(path))
                        if self._hashes.known(path) == sha256:  # it has not been replaced before it was opened
                            return file
                        file.close()
            return None

        file = await trio.to_thread.run_sync(find)
        if file is None:
            raise NotFound(f"no model on this box has a file with the hash {sha256}")
        return file

    async def compute(self) -> Never:
        while True:
            await self._more.wait()
            path = next(iter(self._read))
            began = time.monotonic()

            def note(count: int, path: Path = path) -> None:
                """Rest as long as the piece took, so that a model that loads meanwhile has the disk to itself."""
                nonlocal began
                self._read[path] = count
                trio.from_thread.run(trio.sleep, time.monotonic() - began)
                began = time.monotonic()

            try:
                await trio.to_thread.run_sync(self._hashes.compute, path, note)
            except OSError as error:
                log.warning("the hash of %s is not known: %s", path, error.strerror or error)
            del self._read[path]
            if not self._read:
                self._more = trio.Event()


@asynccontextmanager
async def open_model_files(catalog: Catalog, hashes: Path) -> AsyncGenerator[ModelFilesHere]:
    """Own the task that computes hashes; it ends with the block. ``hashes``: the file that remembers them."""
    here = ModelFilesHere(catalog, FileHashes(hashes))
    async with beside(here.compute):
        yield here


def given(model: Model, cache: Path | None) -> list[tuple[str, Path]]:
    """Return the files of a model with their names on other boxes, the first part first. Waits for the disk.

    Nothing is returned for a model that another box would not find under the same id by its files alone.
    """
    if model.source not in GIVEN or model.error or not model.path:
        return []
    paths = [Path(path) for path in (*all_shards(Path(model.path)), model.mmproj, model.draft) if path]
    repo = cached_repo(model.id)
    snapshot = current_snapshot(cache / folder_of(repo)) if repo and cache and model.source == "cache" else None
    if snapshot is not None and all(snapshot in path.parents for path in paths):
        names = [path.relative_to(snapshot).as_posix() for path in paths]
    else:
        names = [path.name for path in paths] if repo else names_in_folder(model.id, [path.name for path in paths])
    try:
        check_names(model.id, names)
    except BadRequest:
        return []
    return list(zip(names, paths, strict=True))
