"""Facts about models for Ollama's clients: from headers of files, the configuration, and running engines.

Below is the file of the models that clients have derived from others; it waits for the disk.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import trio
from msgspec import Raw, Struct, structs

from appliance.catalog.catalog import AT_ONCE, Catalog
from appliance.core.bodies.json_text import OBJECT
from appliance.core.lenient_json import UNREADABLE, decoded
from appliance.core.models.model import Model
from appliance.core.models.names import meanings
from appliance.errors import ModelNotFound, UpstreamFailed
from appliance.features.ollama.core.asking import DerivedPreset
from appliance.features.ollama.core.models import Derived, EngineProps, LoadedModel, ModelFacts, preset_of, tags
from appliance.fleet.owner import Fleet
from appliance.store.model_files import read_start, replace, write_whole
from appliance.traffic.targets import Targets, refresh
from appliance.upstream.client import HttpCall

PROPS_TIME = 1.0  # seconds that a running engine gets to say what it can do; the files say nearly as much
MAX_PROPS = 1 << 20
FILE_VERSION = 1
MAX_FILE = 16 << 20
SHOWN = ("queued", "loading", "loaded", "sleeping", "stopping")


log = logging.getLogger(__name__)


class _Meta(Struct, frozen=True):
    n_ctx: int | None = None


class _Ready(Struct, frozen=True):
    meta: _Meta = _Meta()


class KnownModels:
    """Answers from memory, but for headers and properties that nobody has asked for before."""

    def __init__(self, catalog: Catalog, fleet: Fleet, targets: Targets, file: Path) -> None:
        self._catalog = catalog
        self._fleet = fleet
        self._targets = targets
        self._file = file
        self.models: Mapping[str, Derived] = {}  # that clients have derived from others, by their names in lower case
        self._adopt(read_derived(file))
        self._props: dict[tuple[str, float | None], EngineProps | None] = {}
        self._tags: tuple[object, bytes] = (None, b"")

    async def find(self, name: str, route: str = "") -> ModelFacts | None:
        """Resolve a name in a request, None if it means nothing, even on this ``route`` (`Targets.chosen`).

        Raises InvalidModelFile, and Busy of a selector.
        """
        try:
            async with self._targets.chosen(name, route=route) as target:
                model = target.model if target.selector is None else None
        except ModelNotFound:
            return None
        if model is not None:
            await self._read_headers(model)
            await self._ask(model)
        return self._known(name, model, self.derived(name))

    async def change(self, models: Mapping[str, Derived]) -> None:
        """Keep these derived models from now on. Raises OSError."""
        await trio.to_thread.run_sync(write_derived, self._file, models)
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
            await self._read_headers(model)
            facts, memory = self._known(model.id, model), self._fleet.memory(status.model)
            left = self._fleet.stays_for(status.model)
            left = left if left < 1e9 else None
            found.append(LoadedModel(facts=facts, memory=memory, left=left, queue=status.waiting, state=status.state))
        return found

    def _find(self, name: str) -> Model | None:
        return self._catalog.snapshot.find(name)

    def _known(self, name: str, model: Model | None, derived: Derived | None = None) -> ModelFacts:
        base, made_at = (derived.base, derived.made_at) if derived is not None else ("", 0.0)
        preset = preset_of(model, derived)
        if model is None:
            return ModelFacts(name=name, preset=preset, base=base, made_at=made_at)
        info, props, context = self._catalog.info(model), self._props.get(self._key(model)), self.context(model)
        return ModelFacts(
            name=name, model=model, info=info, props=props, preset=preset, base=base, made_at=made_at, context=context
        )

    async def _read_headers(self, *models: Model) -> bool:
        """Read those of these models, or of a list for as long as a look may take. Return whether that was enough."""
        until = trio.current_time() + (math.inf if models else AT_ONCE)
        for path in self._catalog.unread_files(*models):
            if trio.current_time() > until:
                return False
            await trio.to_thread.run_sync(self._catalog.headers.read, path)
        return True

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
        status, address = self._fleet.known(model.id), self._fleet.address(model.id)
        if self._catalog.info(model) is not None or key in self._props or status is None or status.state != "loaded":
            return
        if address is None:
            return
        for old in [known for known in self._props if known[0] == model.id]:
            del self._props[old]
        props: EngineProps | None = None
        with trio.move_on_after(PROPS_TIME), suppress(UpstreamFailed):
            async with HttpCall(address, "GET", "/props") as response:
                if response.status == 200:
                    props = decoded(EngineProps, await response.read(MAX_PROPS))
        self._props[key] = props


class _Kept(Struct, frozen=True, kw_only=True):
    """One model; the values of its members are any JSON."""

    name: str
    base: str
    system: str
    parameters: Raw
    messages: list[Raw]
    made_at: float

    def model(self) -> Derived:
        messages = tuple(OBJECT.decode(message) for message in self.messages)
        preset = DerivedPreset(system=self.system, parameters=OBJECT.decode(self.parameters), messages=messages)
        return Derived(name=self.name, base=self.base, preset=preset, made_at=self.made_at)


class _DerivedFile(Struct, frozen=True, kw_only=True):
    version: int
    models: list[_Kept]


def read_derived(path: Path) -> Mapping[str, Derived]:
    """Return the models by their names in lower case; the file need not be there yet.

    One that cannot be understood is set aside, with a line in the log.
    """
    try:
        contents = msgspec.json.decode(read_start(path, MAX_FILE), type=_DerivedFile)
        if contents.version != FILE_VERSION:
            raise ValueError(f"its version is {contents.version}")
        models = [kept.model() for kept in contents.models]
    except FileNotFoundError:
        return {}
    except OSError as error:
        log.warning("%s cannot be read: %s", path, error.strerror or error)
        return {}
    except (*UNREADABLE, ValueError) as error:
        aside = path.with_name(f"{path.name}.unreadable")
        replace(path, aside)
        log.warning("%s is damaged, or from a newer version (%s); it is now %s", path, error, aside.name)
        return {}
    return {model.name.casefold(): model for model in models}


def write_derived(path: Path, models: Mapping[str, Derived]) -> None:
    """Replace the file. Raises OSError."""
    kept = [
        {"name": each.name, "base": each.base, **structs.asdict(each.preset), "made_at": each.made_at}
        for each in models.values()
    ]
    write_whole(path, msgspec.json.encode({"version": FILE_VERSION, "models": kept}), private=True)
