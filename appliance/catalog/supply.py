"""The source of models that are not here yet, as the rest of the program asks for them; it also removes models.

`catalog.found` knows whether a model is here already.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio
from msgspec import Struct

from appliance.core.models.download_status import DownloadStatus, UnfinishedSpace
from appliance.core.models.hub_address import HubAccess
from appliance.core.models.transfer import retry_delay
from appliance.errors import ApplianceError, Forbidden, ModelNotFound, NotFound

if TYPE_CHECKING:
    from appliance.catalog.catalog import Catalog
    from appliance.core.config.types import Config
    from appliance.core.models.download import Remote, WantedModel
    from appliance.core.models.model import Model
    from appliance.upstream.file_transfer import ModelSource

log = logging.getLogger(__name__)

PARALLEL = 2  # files at once, of all downloads; the others queue
SPARE = 256 << 20
HERE_ONLY = "; this program downloads nothing, it serves the models that are here"


class RemovedModel(Struct, frozen=True, kw_only=True):
    """The removed model. ``size`` is the number of bytes freed."""

    model: str
    paths: tuple[str, ...]
    size: int


class DownloadSettings(Struct, frozen=True, kw_only=True):
    """The sources and places of downloads."""

    cache: Path
    models_dir: Path | None = None  # where models of other boxes may come, and what may be removed
    hub: HubAccess = HubAccess()
    parallel: int = PARALLEL
    rate: int | None = None  # bytes per second; None means no limit
    spare: int = SPARE  # bytes that a download leaves free on the disk
    retry_delay: Callable[[int, float | None], float] = retry_delay
    tell: Callable[[str], object] = log.info  # gets a sentence when somebody has to wait for a source


class Download(Protocol):
    """One model under way, or one that has ended. ``number`` tells it from a later one of the same model."""

    model: str
    number: int
    queued_at: float
    """In the time of Trio's clock."""
    error: ApplianceError | None
    """The reason of its failure."""

    @property
    def status(self) -> DownloadStatus: ...

    @property
    def hashes(self) -> Mapping[str, str]:
        """The hash of each file, by its address."""
        ...

    async def wait(self) -> DownloadStatus:
        """Wait until it has ended, in any way."""
        ...

    def cancel(self) -> None:
        """End it. The part that has come stays on the disk, for the next one of this model."""
        ...


TellPart = Callable[[Callable[[], float | None]], None]
"""Is given a function that says how much of a download is here, from 0 to 1."""


class Supply(Protocol):
    """Brings models that are not here, and removes those that are.

    ``fetch`` and ``remove`` are for clients: they raise Forbidden where no model is downloaded on request.
    """

    def meant(self, name: str, config: Config) -> WantedModel | None:
        """Return the download that a request for this name begins, if the configuration lets it begin one."""
        ...

    def advice(self, name: str, config: Config) -> str:
        """Return how to get a model that no request may fetch, for `ModelNotFound`; empty for a name without sense."""
        ...

    async def bring(self, model: Model, tell: TellPart | None = None) -> Model:
        """Return the same model as it is when all of its files are here.

        Downloads continue if the caller leaves, and all callers share them. Raises ModelUnloaded when a download is
        cancelled, and any other error of a download.
        """
        ...

    async def fetch(self, wanted: Remote | str) -> Download:
        """Download a model; one that is under way is not begun twice. A text is a name or an address on the hub.

        Returns when the source has listed its files. Raises BadRequest, NotFound, Forbidden, and what the source says.
        """
        ...

    async def fetch_from(self, source: ModelSource) -> Download:
        """Download the model of a source. Raises as `ModelSource.plan`, ModelError where there is no room, OSError."""
        ...

    def snapshot(self) -> Sequence[DownloadStatus]:
        """Return every download, the oldest first, also those that have ended."""
        ...

    async def wait_changed(self) -> None:
        """Wait until a download's state has changed, or its number of bytes has."""
        ...

    def find(self, model: str) -> Download | None:
        """Return the download of a model, even one that has ended."""
        ...

    def under_way(self, name: str, model: Model | None) -> Download | None:
        """Return the one download that a name means which has not ended; ``model`` is what the catalog has of it."""
        ...

    async def remove(self, name: str, *, from_folder: bool = False) -> RemovedModel:
        """Stop the model's process, or its download, and remove its files. ``from_folder``: also of the models folder.

        A download that has ended leaves a part, which goes by its model's name too. Raises ModelNotFound, Forbidden for
        what the program may not remove, and Conflict for files that the system does not release.
        """
        ...

    def frees(self, model: Model) -> int:
        """Return the bytes that its removal gives back. Waits for the disk. Raises Forbidden, OSError."""
        ...

    def unfinished(self) -> Sequence[UnfinishedSpace]:
        """Return what downloads have left of which nothing is under way. Waits for the disk."""
        ...


class SupplyGround(Struct, frozen=True, kw_only=True):
    """The facts with which a supply opens. ``unload`` stops a model's process; ``removed`` tells that files went."""

    catalog: Catalog
    settings: DownloadSettings
    unload: Callable[[str], Awaitable[object]]
    removed: Callable[[str], Awaitable[None]]


class NoSupply:
    """A program that downloads and removes nothing."""

    def meant(self, name: str, config: Config) -> None:
        """Every name that is not here is unknown."""

    def advice(self, name: str, config: Config) -> str:
        return ""

    async def bring(self, model: Model, tell: TellPart | None = None) -> Model:
        raise ModelNotFound(model.id, (), HERE_ONLY)

    async def fetch(self, wanted: Remote | str) -> Download:
        raise NotFound(f"'{wanted}' is not here{HERE_ONLY}")

    async def fetch_from(self, source: ModelSource) -> Download:
        raise NotFound(f"no model comes from another box{HERE_ONLY}")

    def snapshot(self) -> Sequence[DownloadStatus]:
        return ()

    async def wait_changed(self) -> None:
        await trio.sleep_forever()

    def find(self, model: str) -> None:
        """There is none."""

    def under_way(self, name: str, model: Model | None) -> None:
        """There is none."""

    async def remove(self, name: str, *, from_folder: bool = False) -> RemovedModel:
        raise Forbidden(f"model '{name}' cannot be removed: this program removes no files of models")

    def frees(self, model: Model) -> int:
        raise Forbidden(f"'{model.id}' cannot be removed: this program removes no files of models")

    def unfinished(self) -> Sequence[UnfinishedSpace]:
        return ()
