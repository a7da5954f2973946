"""The list of models, scanned from disk on request.

A look at the folders takes milliseconds, the reading of large headers that nobody has read before takes seconds. So a
look lists models by what is known of them, and the headers of the others are read afterwards: the one that a request
names at once, the rest in pieces.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from appliance.catalog.found import (
    FoundModel,
    all_shards,
    scan_cache,
    scan_folder,
    why,
)
from appliance.catalog.headers import Header, Headers, headers_file
from appliance.catalog.sources import ModelFolders, scan_lm_studio, scan_ollama
from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.core.models.file_names import is_meant
from appliance.core.models.gguf import GgufInfo, merge_shards
from appliance.core.models.model import STRENGTH, Model
from appliance.core.models.names import ModelNames, Named, is_speakable
from appliance.core.scheduling.routing import Router
from appliance.errors import InvalidModelFile, ModelNotFound

if TYPE_CHECKING:
    from appliance.catalog.identities import ModelIdentities

NEWS = 1.0
"""Seconds for which a look at the disk stays good enough, however many requests name a model that is not there."""
AT_ONCE = 0.05
"""Seconds of reading headers that a look at the folders may add: enough for a few new files."""
NOTHING_READ: Mapping[str, Header] = {}
STARTER_ID = "starter"
STARTER_ARGS = (
    "--n-predict", "512",
    "--temp", "0",
    "--dry-multiplier", "0.8",
    "--dry-allowed-length", "6",
    "--frequency-penalty", "0.1",
    "--repeat-last-n", "256",
)  # fmt: skip
"""The starter model was trained for short answers and says the same thing every time.

The penalties touch only text that repeats itself at length: with them 300 of 300 strange inputs
(``starter-model/stress.py``) ended by themselves, without them 299.
"""
NOT_SERVABLE = {
    "projector": "it is a projector for images or sound, not a model; put it into a folder beside its model",
    "adapter": "it is a LoRA adapter, not a model; give it to its model's engine with --lora",
    "imatrix": "it is an importance matrix for quantising, not a model",
}


class Snapshot:
    """The models of one scan, and the configuration that belongs to them. Immutable."""

    def __init__(self, models: Iterable[Model], notes: Iterable[str] = (), config: Config | None = None) -> None:
        self.config = config
        self.router = Router(config or Config())
        self.models: tuple[Model, ...] = tuple(sorted(models, key=lambda model: model.id))
        self.notes: tuple[str, ...] = tuple(notes)
        """Skipped files with the reasons, in sentences for a log or ``doctor``."""
        self._by_id = {model.id: model for model in self.models}
        self._names = ModelNames(Named(m.id, m.aliases, m.hf_repo, m.tag) for m in self.models)

    def find(self, name: str) -> Model | None:
        """Look up by id or alias, then without regard to case, then by cached repository without a tag, or with more of
        a file's name than its tag has.
        """
        model_id = self._names.find(name) or self._find_longer(*name.casefold().partition(":"))
        return self._by_id[model_id] if model_id is not None else None

    def _find_longer(self, repo: str, _colon: str, tag: str) -> str | None:
        """Return the only model of a repository that is meant so."""
        here = self._repos.get(repo, ()) if tag else ()
        found = [model.id for model in here if is_meant(tag.upper(), model.tag, Path(model.path).name)]
        return found[0] if len(found) == 1 else None

    @cached_property
    def _repos(self) -> dict[str, list[Model]]:
        found: dict[str, list[Model]] = {}
        for model in self.models:
            if model.hf_repo:
                found.setdefault(model.hf_repo.casefold(), []).append(model)
        return found

    def near(self, name: str) -> tuple[str, ...]:
        """Return ids that look like an unknown name, best first."""
        return self._names.near(name)

    def require(self, name: str) -> Model:
        """Return a model that can be started. Raises ModelNotFound, or InvalidModelFile with its file's mistake."""
        model = self.find(name)
        if model is None:
            raise ModelNotFound(name, self.near(name))
        if model.error:
            raise InvalidModelFile(model.path or f"'{model.id}'", model.error)
        return model


class Catalog:
    """Owns the latest snapshot. Call `scan`, `look`, `refresh`, `complete`, `read_on` and `keep` in a thread: they wait
    for the disk.
    """

    def __init__(self, sources: ModelFolders, config: Config | None = None, headers: Headers | None = None) -> None:
        self.sources = sources
        self.snapshot = Snapshot(_configured(config), config=config)
        self._config = config
        self._found: list[tuple[FoundModel, Model]] = []
        self._just_read: dict[str, Header] = {}
        self._notes: list[str] = []
        self.headers = headers or Headers()
        self._looking = threading.Lock()
        self._reading = threading.Lock()
        self._scanned_at = self._published_at = -math.inf
        self._presets = sources.presets
        self.preset_notes: list[Problem] = []
        """The oddities of the presets that were read last."""
        self.engine_args: tuple[str, ...] = ()
        """Options that engines get for every model on disk."""
        self.amended: Callable[[list[Model], Config | None], tuple[list[Model], list[str]]] = lambda models, _: (
            models,
            [],
        )
        """Returns the models as they are published under a configuration, with notes; a feature may set it."""
        self.on_looked: Callable[[], object] = bool
        """Is called after each look at the folders, in its thread."""

    @cached_property
    def identities(self) -> ModelIdentities:
        """Digests of the models, for other boxes of a pool."""
        from appliance.catalog.identities import ModelIdentities  # only a server needs it

        return ModelIdentities(self.engine_args)

    def scan(self) -> Snapshot:
        """Read all sources again and make the result the current snapshot. A broken model file raises nothing.

        Presets are also read again, except the first time, because they were just read. With a mistake in them (raises
        UsageError, InvalidConfig among them) everything stays as it is.
        """
        with self._looking:
            if self._presets is not None and self._scanned_at > -math.inf:
                self._presets, self.preset_notes = self._presets.read()
            self._look()
        self.read_on(math.inf)
        self.keep()
        return self.snapshot

    def adopt(self, config: Config | None) -> None:
        """Follow another configuration at once; the models on disk stay until the next scan."""
        self._config = config
        self._publish()

    def models_with(self, config: Config) -> list[Model]:
        """The models that there would be with another configuration; nothing changes."""
        return self.amended(_stronger(_configured(config), self._models()), config)[0]

    def is_fresh(self, max_age: float) -> bool:
        """True if the last look is not older than ``max_age`` seconds, or no folder may hold more. Waits for nobody."""
        return time.monotonic() - self._scanned_at < max_age or not self.sources.has_folders

    def look(self) -> None:
        """Look at the folders, and read no headers."""
        with self._looking:
            self._look()

    def refresh(self, max_age: float, within: float = AT_ONCE) -> None:
        """Look at the folders again unless that `is_fresh`, and read new headers for about ``within`` seconds."""
        with self._looking:
            if self.is_fresh(max_age):
                return
            self._look()
        self.read_on(within)

    def complete(self, name: str) -> None:
        """Read the headers of the model that this name means, if they are `Model.unread`, and no others."""
        model = self.snapshot.find(name)
        if model is not None and model.unread:
            for found, _ in [pair for pair in self._found if pair[1].id == model.id]:
                self._read(found)
            self._publish_read()

    def info(self, model: Model) -> GgufInfo | None:
        """Return what is known of the header of the model's file, also of one that a configured command names."""
        path = _command_file(model)
        return model.info if path is None else self.headers.known(path).info

    def unread_files(self, *models: Model) -> list[str]:
        """Return the files in configured commands of these models, or of all, whose headers nobody has read yet."""
        paths = filter(None, map(_command_file, models or self.snapshot.models))
        return [path for path in dict.fromkeys(paths) if self.headers.known(path).unread]

    def read_on(self, seconds: float, *, publish_after: float = 0.0) -> bool:
        """Read headers of models that are `unread` for about so many seconds. Return True while some are left.

        They are published then, unless that was done less than ``publish_after`` seconds ago and some are left.
        """
        until = time.monotonic() + seconds
        if not self._reading.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            return True
        try:
            unread = [
                found
                for found, model in self._found
                if model.unread and not self._just_read.keys() >= {*_own_files(found)}
            ]
            done = 0
            while done < len(unread) and time.monotonic() < until:
                self._read(unread[done])
                done += 1
            left = done < len(unread)
            if self._just_read and (not left or time.monotonic() >= self._published_at + publish_after):
                self._publish_read()
            return left
        finally:
            self._reading.release()

    def keep(self) -> None:
        """Write facts that are new to the disk."""
        self.headers.keep()

    def _read(self, found: FoundModel) -> None:
        self._just_read |= {path: self.headers.read(path) for path in _own_files(found)}

    def _publish_read(self) -> None:
        """Describe models again that were unread at the last look. A file that grows is as it was read."""
        with self._looking:
            read, self._just_read = self._just_read, {}
            self._found = [
                (found, self._describe(found, self._notes, read) if model.unread else model)
                for found, model in self._found
            ]
            self._publish()

    def _look(self) -> None:
        self.headers.load()
        self._just_read = {}
        notes = [str(note) for note in self.preset_notes]
        strongest: dict[str, FoundModel] = {}
        found = sorted(self._find(notes), key=lambda found: STRENGTH.index(found.source), reverse=True)
        for model in found:
            if is_speakable(model.id):
                known = strongest.setdefault(model.id, model)
                if known is not model and known.source == model.source == "models_dir":
                    notes.append(f"{model.files[0]} is left out: '{model.id}' is also {known.files[0]}; rename one")
            else:
                notes.append(f"a model whose name cannot be written down was skipped: {model.id!r}")
        wanted = list(strongest.values())
        if self._presets is not None:
            wanted = self._presets.applied(wanted, notes, self.sources.lookup)
        self._found, self._notes = [(found, self._describe(found, notes)) for found in wanted], notes
        of_commands = (_file_in(model.argv) for model in (self._config or Config()).models.values())
        self.headers.forget_but({*of_commands, *(path for found in wanted for path in _own_files(found))})
        self._scanned_at = time.monotonic()
        self._publish()
        self.on_looked()

    @property
    def is_read(self) -> bool:
        """True if the last look left no header unread."""
        return not any(model.unread for model in self._models())

    def _models(self) -> list[Model]:
        return [model for _, model in self._found]

    def _publish(self) -> None:
        """Join again, if another thread has set another configuration meanwhile."""
        self._published_at = time.monotonic()
        unread = sum(model.unread for _, model in self._found)
        more = [f"{unread} models are listed by their names alone, until their headers are read"] if unread else []
        while True:
            config = self._config
            models, notes = self.amended(_stronger(_configured(config), self._models()), config)
            self.snapshot = Snapshot(models, [*self._notes, *more, *notes], config)
            if self._config is config:
                return

    def _find(self, notes: list[str]) -> Iterator[FoundModel]:
        sources = self.sources
        for file in sources.files:
            yield FoundModel(id=file.id, source="path", files=all_shards(Path(file.path)))
        if sources.models_dir:
            yield from _tolerant(scan_folder(sources.models_dir, notes), sources.models_dir, notes)
        if sources.cache:
            yield from _tolerant(scan_cache(sources.cache), sources.cache, notes)
        for store in sources.lm_studio:
            yield from _tolerant(scan_lm_studio(store, notes), store, notes)
        for store in sources.ollama:
            yield from _tolerant(scan_ollama(store, notes), store, notes)
        if sources.starter and sources.starter.is_file():
            yield FoundModel(id=STARTER_ID, source="starter", files=(str(sources.starter),), args=STARTER_ARGS)

    def _describe(self, found: FoundModel, notes: list[str], read: Mapping[str, Header] = NOTHING_READ) -> Model:
        known = {path: read.get(path) or self.headers.known(path) for path in _own_files(found)}
        headers = [known[path] for path in found.files] if not found.error else []
        unread = any(header.unread for header in known.values())
        info, error = _sum_up(found, headers) if not unread else (None, None)
        mmproj = _companion(found.id, found.mmproj, known, notes)
        draft = _companion(found.id, found.draft, known, notes)
        definition = found.definition
        modalities = ("text",)
        if mmproj is not None:
            heard = ("audio",) if mmproj.audio else ()
            modalities += (("image",) if mmproj.vision or not mmproj.audio else ()) + heard
        return Model(
            id=found.id,
            aliases=found.aliases,
            source=found.source,
            path=found.files[0] if found.files else "",
            mmproj=found.mmproj if mmproj else None,
            draft=found.draft if draft else None,
            size=sum(header.size for header in headers),
            created=max((header.modified_ns for header in headers), default=0) // 1_000_000_000,
            info=info,
            error=error,
            unread=unread,
            args=found.args,
            words=found.words,
            hf_repo=found.repo,
            tag=found.tag,
            input_modalities=modalities,
            tags=definition.tags,
            hidden=found.hidden,
            load_on_startup=definition.load_on_startup,
            stop_timeout=definition.stop_timeout,
            engine=definition.engine,
            preset=definition.preset,
            origins=definition.origins,
            fetch=found.fetch,
        )


def _companion(model_id: str, path: str | None, known: Mapping[str, Header], notes: list[str]) -> GgufInfo | None:
    """Return the header of a model's companion; a broken one is left out, and the model works without."""
    if path is None:
        return None
    if error := known[path].error:
        notes.append(f"model '{model_id}' is used without {path}: {error}")
    return known[path].info


def scan_models(sources: ModelFolders) -> Snapshot:
    """Return all models, for a command."""
    return Catalog(sources, headers=Headers(headers_file())).scan()


async def find_model(catalog: Catalog, name: str) -> Model:
    """Return the model to run. Its own header is read, and no other file's is waited for.

    Raises ModelNotFound, or InvalidModelFile with what is wrong with its file.
    """
    found = catalog.snapshot.find(name)
    if found is None and not catalog.is_fresh(NEWS):
        await trio.to_thread.run_sync(catalog.refresh, NEWS, 0.0, abandon_on_cancel=True)
        found = catalog.snapshot.find(name)
    if found is not None and found.unread:
        await trio.to_thread.run_sync(catalog.complete, name, abandon_on_cancel=True)
    return catalog.snapshot.require(name)


def _own_files(found: FoundModel) -> tuple[str, ...]:
    """Return the files whose headers say what the model is."""
    beside = tuple(path for path in (found.mmproj, found.draft) if path is not None)
    return (*(found.files if not found.error else ()), *beside)


def _configured(config: Config | None) -> list[Model]:
    if config is None:
        return []
    return [
        Model(
            id=model_id,
            aliases=tuple(model.aliases),
            source="config",
            config=model,
            engine=model.engine,
            cards=model.cards,
            size=_weights(model.argv),
            input_modalities=tuple(model.capabilities.inputs) or ("text",),
        )
        for model_id, model in config.models.items()
        if not model.disabled
    ]


def _weights(argv: Sequence[str]) -> int:
    """Return the size of the model file in a llama-server command in bytes, for an estimate of its memory; else 0."""
    path = _file_in(argv)
    try:
        return Path(path).stat().st_size if path is not None else 0
    except OSError:
        return 0


def _file_in(argv: Sequence[str]) -> str | None:
    """Return the model file that a command names as llama-server's options do."""
    return next((value for flag, value in pairwise(argv) if flag in ("-m", "--model")), None)


def _command_file(model: Model) -> str | None:
    return _file_in(model.config.argv) if model.config is not None else None


def _stronger(configured: Sequence[Model], found: Iterable[Model]) -> list[Model]:
    """A configured model hides one on disk that has the same name."""
    ids = {model.id for model in configured}
    return [*configured, *(model for model in found if model.id not in ids)]


def _tolerant(models: Iterator[FoundModel], root: Path, notes: list[str]) -> Iterator[FoundModel]:
    """List a folder. One that does not exist holds nothing; an unreadable one is reported in the notes."""
    try:
        yield from models
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"the models in {root} cannot be listed: {why(error)}")


def _sum_up(found: FoundModel, headers: list[Header]) -> tuple[GgufInfo | None, str | None]:
    """Return one description of all shards, or their mistake."""
    total = len(headers)
    for number, header in enumerate(headers, start=1):
        if total > 1 and header.missing:
            return None, f"part {number} of {total} is missing; copy or download it again"
        if header.error:
            return None, header.error if total == 1 else f"part {number} of {total}: {header.error}"
    infos = [header.info for header in headers if header.info]
    if not infos:
        return None, found.error
    info = merge_shards(infos[0], infos[1:])
    if reason := NOT_SERVABLE.get(info.kind):
        return info, reason
    parts = info.split_count or 1
    if parts != total:
        return info, f"it belongs to a model of {parts} parts, but by its name of {total}; restore its original name"
    if not info.tensor_count:
        return info, "it holds a vocabulary and no weights"
    return info, None
