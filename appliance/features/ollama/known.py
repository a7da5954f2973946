"""Facts about models for Ollama's clients: from headers of files, the configuration, and running engines."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import trio
from msgspec import Struct

from appliance.catalog.catalog import AT_ONCE, Catalog, file_in
from appliance.core.lenient_json import decoded
from appliance.core.models.gguf import GgufInfo
from appliance.core.models.model import Model
from appliance.core.models.names import meanings
from appliance.errors import ModelNotFound, UpstreamFailed
from appliance.features.ollama.core.models import Derived, EngineProps, LoadedModel, ModelFacts, preset_of, tags
from appliance.features.ollama.derived_models import DerivedModels
from appliance.fleet.owner import Fleet
from appliance.traffic.targets import Targets, refresh
from appliance.upstream.client import HttpCall

PROPS_TIME = 1.0
"""Seconds that a running engine gets to say what it can do; the files say nearly as much."""
MAX_PROPS = 1 << 20
SHOWN = ("queued", "loading", "loaded", "sleeping", "stopping")


class _Meta(Struct, frozen=True):
    n_ctx: int | None = None


class _Ready(Struct, frozen=True):
    meta: _Meta = _Meta()


class KnownModels:
    """Answers from memory, but for headers and properties that nobody has asked for before."""

    def __init__(self, catalog: Catalog, fleet: Fleet, targets: Targets, file: DerivedModels) -> None:
        self._catalog = catalog
        self._fleet = fleet
        self._targets = targets
        self._file = file
        self.models: Mapping[str, Derived] = {}
        """Models that clients have derived from others, by their names in lower case."""
        self._adopt(file.read())
        self._headers: dict[str, GgufInfo | None] = {}
        self._props: dict[tuple[str, float | None], EngineProps | None] = {}
        self._tags: tuple[object, bytes] = (None, b"")

    async def find(self, name: str, route: str = "") -> ModelFacts | None:
        """Resolve a name in a request, None if it means nothing, even on this ``route`` (`Targets.chosen`).

        Raises InvalidModelFile, and Busy of a selector.
        """
        derived = self.derived(name)
        try:
            async with self._targets.chosen(name, route=route) as target:
                model = target.model if target.selector is None else None
        except ModelNotFound:
            return None
        if derived is None:
            return await self._facts(name, model)
        return await self._facts(name, model, derived)

    async def change(self, models: Mapping[str, Derived]) -> None:
        """Keep these derived models from now on. Raises OSError."""
        await trio.to_thread.run_sync(self._file.write, models)
        self._adopt(models)

    def _adopt(self, models: Mapping[str, Derived]) -> None:
        self.models = models
        self._targets.aliases = {name: model.base for name, model in models.items()}

    def derived(self, name: str) -> Derived | None:
        """The model that clients have derived under this name."""
        for one in meanings(name):
            if (found := self.models.get(one.casefold())) is not None or self._find(one) is not None:
                return found
        return None

    async def tags(self) -> bytes:
        """``/api/tags``, encoded: every model that may be asked for, under each of its names.

        Reads the disk for new files, and asks nobody. Made anew only when something that it tells has changed.
        """
        await refresh(self._catalog)
        basis = self._catalog.snapshot, self._targets.aliases, self._targets.names(), tuple(self._props)
        if self._tags[0] != basis:
            whole = await self._read_headers()
            self._tags = basis if whole else None, msgspec.json.encode(tags(self._listed()))
        return self._tags[1]

    def _listed(self) -> list[ModelFacts]:
        found: list[ModelFacts] = []
        for model in self._catalog.snapshot.models:
            if not model.hidden and model.error is None:
                found += [self._known(name, model) for name in (model.id, *model.aliases)]
        there = {facts.name for facts in found}
        found += [ModelFacts(name=name) for name in self._targets.names() if name not in there and not self._find(name)]
        for derived in self.models.values():
            found.append(self._known(derived.name, self._find(derived.base), derived))
        return found

    async def running(self) -> list[LoadedModel]:
        """Every model that is loaded or on its way, and what it takes."""
        found: list[LoadedModel] = []
        for status in self._fleet.status():
            model = self._find(status.model)
            if status.state not in SHOWN or model is None:
                continue
            await self._read_header(model)
            left = self._fleet.stays_for(status.model)
            found.append(
                LoadedModel(
                    facts=self._known(model.id, model),
                    memory=self._fleet.memory(status.model),
                    left=left if left < 1e9 else None,
                    queue=status.waiting,
                    state=status.state,
                )
            )
        return found

    def _find(self, name: str) -> Model | None:
        return self._catalog.snapshot.find(name)

    async def _facts(self, name: str, model: Model | None, derived: Derived | None = None) -> ModelFacts:
        if model is None:
            return ModelFacts(name=name, preset=preset_of(None, derived))
        await self._read_header(model)
        await self._ask(model)
        return self._known(name, model, derived)

    def _known(self, name: str, model: Model | None, derived: Derived | None = None) -> ModelFacts:
        info = self._info(model) if model is not None else None
        return ModelFacts(
            name=name,
            model=model,
            info=info,
            props=self._props.get(self._key(model)) if model is not None else None,
            preset=preset_of(model, derived),
            base=derived.base if derived is not None else "",
            made_at=derived.made_at if derived is not None else 0.0,
            context=self.context(model) if model is not None else None,
        )

    # ---- headers of configured models --------------------------------------------------------------------------------

    def _info(self, model: Model) -> GgufInfo | None:
        return model.info or self._headers.get(_file_of(model) or "")

    async def _read_header(self, model: Model) -> None:
        path = _file_of(model)
        if path is not None and model.info is None and path not in self._headers:
            header = await trio.to_thread.run_sync(self._catalog.headers.read, path)
            self._headers[path] = header.info

    async def _read_headers(self) -> bool:
        """Read those of a list for as long as a look at the folders may. Return whether that was enough."""
        until = trio.current_time() + AT_ONCE
        for model in self._catalog.snapshot.models:
            if trio.current_time() > until:
                return False
            await self._read_header(model)
        return True

    # ---- running engines ---------------------------------------------------------------------------------------------

    def _key(self, model: Model) -> tuple[str, float | None]:
        status = self._fleet.known(model.id)
        return model.id, status.started_at if status is not None else None

    def context(self, model: Model) -> int | None:
        """Tokens that a running engine has for one request; None where it does not say."""
        status = self._fleet.known(model.id)
        raw = status.ready_info if status is not None and status.state in ("loaded", "sleeping") else None
        ready = decoded(_Ready, raw) if raw is not None else None
        return ready.meta.n_ctx if ready is not None else None

    async def _ask(self, model: Model) -> None:
        """Ask a running engine once what it can do, if no header tells. One that is being loaded is not waited for."""
        key = self._key(model)
        status = self._fleet.known(model.id)
        if self._info(model) is not None or key in self._props or status is None or status.state != "loaded":
            return
        address = self._fleet.address(model.id)
        if address is None:
            return
        for old in [known for known in self._props if known[0] == model.id]:
            del self._props[old]
        props: EngineProps | None = None
        with trio.move_on_after(PROPS_TIME):
            try:
                async with HttpCall(address, "GET", "/props") as response:
                    if response.status == 200:
                        props = decoded(EngineProps, await response.read(MAX_PROPS))
            except UpstreamFailed:
                pass
        self._props[key] = props


def _file_of(model: Model) -> str | None:
    """The file that a configured command names, as llama-server's options do."""
    return file_in(model.config.argv) if model.config is not None else None
