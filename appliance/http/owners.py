"""The owners that the program's own routes show and drive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import ConfigInForce, Reloads
from appliance.catalog.download_status import DownloadStatus
from appliance.catalog.downloads import Downloads
from appliance.core.tools.box import Toolbox
from appliance.errors import Conflict, Forbidden, ModelNotFound
from appliance.fleet.chooser import EngineChoice
from appliance.fleet.owner import Fleet
from appliance.platform.samples import Samples
from appliance.store.history import History
from appliance.traffic.other_servers import OtherServers
from appliance.traffic.targets import refresh
from appliance.wire import RemovedModel


class Owners(Struct, frozen=True, kw_only=True):
    """The owners that the composition root has opened. ``configuration`` is None without a configuration file."""

    engines: EngineChoice
    fleet: Fleet
    catalog: Catalog
    peers: OtherServers
    samples: Samples
    downloads: Downloads | None
    """None where nothing is ever downloaded. Without a cache that is served it is only what presets name."""
    configuration: ConfigInForce | None
    tools: Toolbox
    """Empty where no tool was switched on."""
    reloads: Reloads
    history: History
    folders: Mapping[str, Path]
    """The program's folders on the disk, by their kind, and its databases by their first file."""
    removed: Sequence[Callable[[str], Awaitable[None]]]
    """Called with each model whose files were removed."""

    def require_downloads(self) -> Downloads:
        """Raises Forbidden where no model is downloaded on request."""
        if self.downloads is None or self.catalog.sources.cache is None:
            raise Forbidden("downloads are off: the configuration names its models, and the cache is not served")
        return self.downloads

    def downloading(self) -> list[DownloadStatus]:
        """Downloads that are known, those that have ended included."""
        return self.downloads.snapshot() if self.downloads is not None else []

    async def remove_model(self, name: str, *, from_folder: bool = False) -> RemovedModel:
        """Stop the model's process, or its download, and remove its files. ``from_folder``: also of the models folder.

        A download that has ended leaves a part, which goes by its model's name too. Raises ModelNotFound, Forbidden for
        what the program may not remove, and Conflict for files that the system does not release.
        """
        downloads = self.require_downloads()
        await refresh(self.catalog)
        model = next((model for model in self.catalog.snapshot.models if model.id == name), None)
        download = downloads.find(name)
        try:
            if model is None or (download is not None and not download.status.ended):
                if (discarded := await downloads.discard(name)) is None:
                    raise ModelNotFound(name, self.catalog.snapshot.near(name))
                return discarded
            if model.source != "cache" and not from_folder:
                why = f"it is not from the Hugging Face cache ({model.source})"
                raise Forbidden(f"model '{name}' is not removable: {why}")
            await self.fleet.unload(model.id)
            removed = await downloads.delete(model)
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            raise Conflict(f"model '{name}' cannot be removed: {error.strerror or error}{where}") from None
        await self.fleet.unload(model.id)  # somebody may have asked for it while its files went
        downloads.forget(name)
        for tell in self.removed:
            await tell(model.id)
        return removed
