"""The listing of the program's models (configured, found, running at this moment) and of itself.

`View` is for all routes and feeds that show models. The words are those of llama-server's router (its README).
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import trio
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from appliance import __version__
from appliance.catalog.catalog import Catalog
from appliance.core.config.types import Config, ModelConfig
from appliance.core.lenient_json import decoded
from appliance.core.models.context import asked_context
from appliance.core.models.download_status import DownloadStatus, is_for
from appliance.core.models.gguf import GgufInfo
from appliance.core.models.holders import groups_of
from appliance.core.models.model import Model
from appliance.core.models.swap_listing import (
    RUNNING,
    ListedModel,
    ListedModels,
    ListedStatus,
    ModelLister,
    ModelStatus,
    Object,
    model_status,
    swap_state,
    with_found,
)
from appliance.core.secrets import Secrets, shown_command, shown_lines, shown_text
from appliance.core.settings import HttpSettings
from appliance.fleet.owner import Fleet
from appliance.fleet.status import ChildStatus, state_of
from appliance.traffic.other_servers import OtherServers
from appliance.traffic.targets import ActiveProfile

TELLING = 3.0
"""Seconds in which a list waits for what models are: another box waits for it ten seconds, and asks again."""
NO_IDENTITIES: Mapping[str, str] = {}


class _EngineDescription(Struct, frozen=True):
    """The part that is listed of a loaded model's description by its engine."""

    architecture: dict[str, object] | None = None
    meta: dict[str, object] | None = None


class View:
    """Reads, decides nothing."""

    def __init__(self, fleet: Fleet, catalog: Catalog, peers: OtherServers, profile: ActiveProfile) -> None:
        self.fleet = fleet
        self.catalog = catalog
        self.peers = peers
        self.profile = profile
        self._whole: tuple[object, Config] = (None, Config())
        self._listing: tuple[object, ModelLister] = (None, ModelLister(Config()))

    @property
    def config(self) -> Config:
        """The configuration with what was found on disk and at peers beside it; the defaults without one."""
        basis = snapshot, _ = self.catalog.snapshot, self.peers.names()
        if self._whole[0] != basis:
            self._whole = (basis, self.peers.complete(with_found(snapshot.config, snapshot.models)))
        return self._whole[1]

    def entries(self, base: Mapping[str, ListedModel], now: int) -> list[ListedModel]:
        """The ``data`` of ``GET /v1/models``, see `ModelLister`; models found on disk are not part of the file."""
        apart = self._apart()
        basis = config, *_ = self.catalog.snapshot.config, self.peers.names(), apart
        if self._listing[0] != basis:
            self._listing = (basis, ModelLister(self.peers.complete(config or Config()), self.peers.boxes(), apart))
        remote = set(map("/".join, self.peers.loaded()))
        return self._listing[1].entries(base, profile=self.profile.name, now=now, remote=remote)

    def _apart(self) -> list[str]:
        """The models of boxes that have a name in common with another model, as ``BOX/MODEL``: one box of each."""
        found: list[str] = []
        for name in dict.fromkeys(name for names in self.peers.boxes().values() for name in names):
            groups, own = groups_of(self.peers.holders(name)), self.catalog.snapshot.find(name)
            known = self.catalog.identities.current(own) if own is not None else ""
            if own is not None or len(groups) > 1:
                found += [f"{one.box}/{name}" for group in groups if not known or group[0].identity != known
                          for one in group]  # fmt: skip
        return found

    def running(self) -> list[Object]:
        """Every process that is not stopped, by id; ``state`` is llama-swap's word."""
        models = self.config.models
        statuses = [status for status in self.fleet.status() if swap_state(status.state) != "stopped"]
        return [_running(status, models.get(status.model, ModelConfig())) for status in statuses]

    def model_status(self) -> list[ModelStatus]:
        states = {status.model: status.state for status in self.fleet.status()}
        return model_status(self.config, states)

    def model_id(self, name: str) -> str | None:
        """The id of a local model by id or alias, of one that runs although its file is gone too."""
        model = self.catalog.snapshot.find(name)
        if model is not None:
            return model.id
        return name if self.fleet.known(name) is not None or self.fleet.logs.knows(name) else None

    async def read_commands(self) -> None:
        """Read the headers of the files in configured commands, once each, for as long as a list may wait."""
        with trio.move_on_after(TELLING):
            for path in self.catalog.unread_files():
                await trio.to_thread.run_sync(self.catalog.headers.read, path, abandon_on_cancel=True)

    def profiles(self) -> Object:
        """``GET /api/profiles``."""
        profiles = sorted(self.config.profiles.items())
        return {
            "active": self.profile.name,
            "profiles": [{"id": name, **msgspec.to_builtins(profile)} for name, profile in profiles],
        }


def _running(status: ChildStatus, model: ModelConfig) -> Object:
    own = not model.cmd
    address = f"http://127.0.0.1:{status.port}" if status.port else ""
    return {
        "model": status.model,
        "state": swap_state(status.state),
        "cmd": shlex.join(shown_command(status.argv)) if own else shown_text(model.cmd, model.argv),
        "proxy": address if own else model.proxy,
        "ttl": max(model.ttl, 0),
        "name": model.name,
        "description": model.description,
    }


async def tell_models(view: View, downloads: Iterable[DownloadStatus] = (), *, identities: bool) -> ListedModels:
    """`list_models`, once it is known which models other boxes of the pool have too; with what each of them is."""
    await view.read_commands()
    shown = [model for model in view.catalog.snapshot.models if not model.hidden and model.error is None]
    if not identities:
        shown = [model for model in shown if view.peers.holders(model.id)]
    told = await view.catalog.identities.tell(shown, TELLING) if shown else NO_IDENTITIES
    return list_models(view, downloads, told if identities else NO_IDENTITIES)


def list_models(
    view: View,
    downloads: Iterable[DownloadStatus] = (),
    identities: Mapping[str, str] = NO_IDENTITIES,
    *,
    commands: bool = True,
) -> ListedModels:
    """``GET /v1/models``: one entry for each model, and for each name that stands for one, sorted by id.

    ``commands``: with the command that would start each, which is most of the work.
    """
    known = {status.model: status for status in view.fleet.status()}
    shown = [model for model in view.catalog.snapshot.models if not model.hidden]
    going = [download for download in downloads if not download.ended]
    now = int(time.time())
    argv_of, secrets = view.fleet.launches.argv_of if commands else _no_command, view.fleet.logs.secrets
    base = {
        model.id: _entry(model, view.catalog.info(model), known.get(model.id), argv_of(model), going, now, secrets)
        for model in shown
    }
    base |= {id: replace(base[id], identity=identity) for id, identity in identities.items() if id in base}
    if view.catalog.sources.cache is not None:
        base |= {d.model: _coming(d, now) for d in going if d.model not in base}
    return ListedModels(view.entries(base, now))


def _no_command(_: Model) -> tuple[str, ...]:
    return ()


def _coming(download: DownloadStatus, now: int) -> ListedModel:
    """A model that is on its way from the hub."""
    return ListedModel(
        id=download.model,
        created=now,
        status=_going(ListedStatus(value="", args=()), [download]),
        architecture={"input_modalities": ["text"], "output_modalities": ["text"]},
        source="cache",
        can_remove=True,
    )


def _going(status: ListedStatus, downloads: Sequence[DownloadStatus]) -> ListedStatus:
    """The status with their common progress."""
    progress = {url: file for download in downloads for url, file in download.files.items()}
    paused = any(download.state == "paused" for download in downloads)
    return replace(status, value="downloading", progress=progress, paused=paused)


def router_props(fleet: Fleet, settings: HttpSettings, *, tools: bool) -> Object:
    """``GET /props`` without a model; ``role`` is how a client knows a router."""
    engine = fleet.launches.engine
    return {
        "role": "router",
        "max_instances": fleet.capacity,
        "models_autoload": settings.autoload,
        "model_alias": "llama-server",
        "model_path": "none",
        "default_generation_settings": {"params": None, "n_ctx": 0},
        "ui_settings": Raw(settings.ui_settings),
        "build_info": _build_info(engine.version if engine else None),
        "cors_proxy_enabled": settings.cors_proxy,
        "tools_enabled": tools,
        "version": __version__,
        "engine": {"name": engine.name, "backend": engine.backend, "version": engine.version} if engine else None,
    }


def health(fleet: Fleet, *, trusted: bool) -> Object:
    """``GET /health``. A caller that is not trusted learns only that the server lives."""
    if not trusted:
        return {"status": "ok"}
    statuses = fleet.status()
    children = [status for status in statuses if status.pid is not None]
    servers = [_server(child.model, child.state, leases=child.leases) for child in children]
    servers += [
        _server(status.model, "unhealthy", leases=0, reason=status.error.partition("\n")[0])
        for status in statuses
        if state_of(status) == "unloaded" and status.error is not None
    ]
    loaded = [child.model for child in children if state_of(child) in ("loaded", "sleeping")]
    return {"status": "ok", "pool": {"capacity": fleet.capacity, "servers": servers}, "models": loaded}


def _server(model: str, state: str, **more: object) -> Object:
    return {"model": model, "state": state, **more}


def _entry(
    model: Model,
    info: GgufInfo | None,
    status: ChildStatus | None,
    planned: Sequence[str],
    downloads: Sequence[DownloadStatus],
    now: int,
    secrets: Secrets,
) -> ListedModel:
    """``now`` is ``created`` of what has no file, Unix seconds. Every client sees this: ``secrets`` are hidden."""
    state = state_of(status)
    argv = status.argv if status and status.pid is not None and status.argv else planned
    args = [secrets.hidden(word) for word in shown_command(tuple(argv))]
    preset = shown_lines(secrets.hidden(model.preset)) if model.preset else model.preset
    told = ListedStatus(value=state, args=args, preset=preset, error=model.error)
    ready = _EngineDescription()
    if status is not None:
        progress = status.progress if state == "loading" else None
        told = replace(told, engine=status.seat, progress=progress, queued=status.state == "queued")
        if state == "unloaded" and status.error is not None:
            told = replace(told, exit_code=status.exit_code or 1, failed=True, error=secrets.hidden(status.error))
        if state in RUNNING and status.ready_info is not None:
            ready = decoded(_EngineDescription, status.ready_info) or ready
    if downloads and (coming := [d for d in downloads if any(is_for(d, wanted) for wanted in model.fetch)]):
        told = _going(told, coming)
    slot = status.slot_context if status is not None and state in RUNNING else 0
    context = slot or asked_context(info, argv) or UNSET
    meta = ready.meta or (_meta(info, model.size, context) if info is not None else UNSET)
    return ListedModel(
        id=model.id,
        aliases=model.aliases,
        tags=model.tags,
        created=model.created or now,
        status=told,
        architecture=ready.architecture or {"input_modalities": model.input_modalities, "output_modalities": ("text",)},
        source=model.source,
        can_remove=model.source == "cache",
        meta=meta,
        context_length=context,
        max_model_len=context,
    )


def _meta(info: GgufInfo, size: int, context: int | UnsetType) -> Object:
    return {
        "n_ctx": context or None,
        "n_vocab": info.vocabulary_size,
        "n_ctx_train": info.context_length,
        "n_embd": info.embedding_length,
        "n_params": info.parameters,
        "size": size,
        "ftype": info.quantisation,
    }


def _build_info(version: str | None) -> str:
    """llama.cpp's build as ``b<number>-<commit>``; clients test for the letter.

    The version of the embedded engine is its wheel's: year, month, build.
    """
    found = re.search(r"(?:\bb|^|\.)(\d{3,6})(?:-([0-9a-f]{6,}))?$", version or "")
    return f"b{found[1]}-{found[2] or 'unknown'}" if found else "b0-unknown"
