"""The list of models, scanned from disk on request. Each GGUF header is read once per change of its file."""

from __future__ import annotations

import math
import shlex
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from appliance.catalog.found import (
    FoundModel,
    all_shards,
    scan_cache,
    scan_folder,
    why,
)
from appliance.catalog.presets import with_presets
from appliance.catalog.sources import ModelFolders, scan_lm_studio, scan_ollama
from appliance.core.config.nodes import Problem
from appliance.core.config.types import Config
from appliance.core.models.gguf import GgufInfo, merge_shards, read_gguf
from appliance.core.models.gguf_bytes import GgufError
from appliance.core.models.model import STRENGTH, Model
from appliance.core.models.names import ModelNames, Named, is_speakable
from appliance.core.scheduling.routing import Router
from appliance.errors import InvalidModelFile, ModelNotFound
from appliance.store.model_files import NotRegular, open_regular, stat_regular

if TYPE_CHECKING:
    from appliance.catalog.identities import ModelIdentities

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


class Header(Struct, frozen=True, kw_only=True):
    """The facts about one file. Either ``info`` or ``error`` is set."""

    size: int = 0
    modified_ns: int = 0
    info: GgufInfo | None = None
    error: str | None = None
    missing: bool = False


class Headers:
    """Remembers headers by path, size and time of change. Not for two threads at once."""

    def __init__(self) -> None:
        self._known: dict[str, Header] = {}
        self._used: dict[str, Header] = {}

    def read(self, path: str) -> Header:
        """Never raises for the content of the disk: see ``error``. File-system errors are not remembered."""
        try:
            found = stat_regular(path)
            known = self._known.get(path)
            if known is None or (known.size, known.modified_ns) != (found.st_size, found.st_mtime_ns):
                with open_regular(path) as file:
                    known = _read(file, found.st_size, found.st_mtime_ns)
        except NotRegular as error:
            return Header(error=why(error))
        except PermissionError as error:
            return Header(error=f"it cannot be read: {why(error)}; 'sudo chmod a+r {shlex.quote(path)}' changes that")
        except OSError as error:
            return Header(error=f"it cannot be read: {why(error)}", missing=isinstance(error, FileNotFoundError))
        self._used[path] = known
        return known

    def forget_unused(self) -> None:
        """Drop headers that nobody asked for since the last call, so that deleted files do not pile up."""
        self._known, self._used = self._used, {}


def _read(file: FileIO, size: int, modified_ns: int) -> Header:
    def read_at(offset: int, count: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    try:
        info = read_gguf(read_at, size)
    except GgufError as error:
        return Header(size=size, modified_ns=modified_ns, error=str(error))
    return Header(size=size, modified_ns=modified_ns, info=info)


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
        """Look up by id or alias, then without regard to case, then by cached repository without a tag."""
        model_id = self._names.find(name)
        return self._by_id[model_id] if model_id is not None else None

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
    """Owns the latest snapshot. `scan` and `refresh` wait for the disk and for each other: call them in a thread."""

    def __init__(self, sources: ModelFolders, config: Config | None = None) -> None:
        self.sources = sources
        self.snapshot = Snapshot(_configured(config), config=config)
        self._config = config
        self._found: list[Model] = []
        self._notes: list[str] = []
        self._headers = Headers()
        self._scanning = threading.Lock()
        self._scanned_at = -math.inf
        self._layers = sources.presets.layers if sources.presets is not None else None
        self.preset_notes: list[Problem] = []
        """The oddities of the presets that were read last."""
        self.engine_args: tuple[str, ...] = ()
        """Options that engines get for every model on disk."""

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
        with self._scanning:
            if self.sources.presets is not None and self._scanned_at > -math.inf:
                self._layers, self.preset_notes = self.sources.presets.read()
            return self._scan()

    def adopt(self, config: Config | None) -> None:
        """Follow another configuration at once; the models on disk stay until the next scan."""
        self._config = config
        self._publish()

    def models_with(self, config: Config) -> list[Model]:
        """The models that there would be with another configuration; nothing changes."""
        return _stronger(_configured(config), self._found)

    def is_fresh(self, max_age: float) -> bool:
        """True if the last scan is not older than ``max_age`` seconds, or no folder may hold more. Waits for nobody."""
        return time.monotonic() - self._scanned_at < max_age or not self.sources.has_folders

    def refresh(self, max_age: float) -> None:
        """Scan again unless it `is_fresh`."""
        with self._scanning:
            if not self.is_fresh(max_age):
                self._scan()

    def _scan(self) -> Snapshot:
        notes = [str(note) for note in self.preset_notes]
        strongest: dict[str, FoundModel] = {}
        found = sorted(self._find(notes), key=lambda found: STRENGTH.index(found.source), reverse=True)
        for model in found:
            if is_speakable(model.id):
                strongest.setdefault(model.id, model)
            else:
                notes.append(f"a model whose name cannot be written down was skipped: {model.id!r}")
        wanted = list(strongest.values())
        if self._layers is not None:
            wanted = with_presets(wanted, self._layers, notes, self.sources.lookup)
        models = [self._describe(model, notes) for model in wanted]
        self._headers.forget_unused()
        self._found, self._notes = models, notes
        self._scanned_at = time.monotonic()
        return self._publish()

    def _publish(self) -> Snapshot:
        """Join again, if another thread has set another configuration meanwhile."""
        while True:
            config = self._config
            self.snapshot = Snapshot(_stronger(_configured(config), self._found), self._notes, config)
            if self._config is config:
                return self.snapshot

    def _find(self, notes: list[str]) -> Iterator[FoundModel]:
        sources = self.sources
        for file in sources.files:
            yield FoundModel(id=file.id, source="path", files=all_shards(Path(file.path)))
        if sources.models_dir:
            yield from _tolerant(scan_folder(sources.models_dir), sources.models_dir, notes)
        if sources.cache:
            yield from _tolerant(scan_cache(sources.cache), sources.cache, notes)
        for store in sources.lm_studio:
            yield from _tolerant(scan_lm_studio(store, notes), store, notes)
        for store in sources.ollama:
            yield from _tolerant(scan_ollama(store, notes), store, notes)
        if sources.starter and sources.starter.is_file():
            yield FoundModel(id=STARTER_ID, source="starter", files=(str(sources.starter),), args=STARTER_ARGS)

    def _describe(self, found: FoundModel, notes: list[str]) -> Model:
        headers = [self._headers.read(path) for path in found.files] if not found.error else []
        info, error = _sum_up(found, headers)
        mmproj = self._companion(found.id, found.mmproj, notes)
        draft = self._companion(found.id, found.draft, notes)
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

    def _companion(self, model_id: str, path: str | None, notes: list[str]) -> GgufInfo | None:
        """Return the header of a model's companion; a broken one is left out, and the model works without."""
        if path is None:
            return None
        header = self._headers.read(path)
        if header.error:
            notes.append(f"model '{model_id}' is used without {path}: {header.error}")
        return header.info


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
    for flag, value in pairwise(argv):
        if flag in ("-m", "--model"):
            try:
                return Path(value).stat().st_size
            except OSError:
                return 0
    return 0


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
