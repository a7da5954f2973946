"""The places of models, checked once at the start so that the user sees mistakes on the command line.

Two of them are stores of other programs, used in place. LM Studio: ``<publisher>/<repository>/*.gguf``, a projector
beside its model. The ids are those that the same repository has in a Hugging Face cache,
``<publisher>/<repository>:<TAG>``, so that a model in both is listed once.

Ollama: ``manifests/<registry>/<namespace>/<model>/<tag>`` is a JSON manifest whose layers name files
``blobs/sha256-<digest>``: the weights, a projector, adapters, parameters, the system prompt, messages. Its template is
not used: the chat template is the one inside the weights.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Struct

from appliance.catalog.found import (
    FoundModel,
    UnsafeName,
    cache_directory,
    join_inside,
    list_folder,
    models_of,
    why,
)
from appliance.core.config.nodes import Problem
from appliance.core.lenient_json import decoded
from appliance.core.models.download import ImageLayer, ImageManifest
from appliance.core.models.model import OwnWords
from appliance.core.models.names import (
    is_speakable,
    model_name,
    split_named_path,
    stem_of,
)
from appliance.errors import UsageError
from appliance.platform.home import expanded, users_data
from appliance.store.model_files import read_start, stat_regular

HOME_POINTER = ".lmstudio-home-pointer"
"""The file with the place of LM Studio's own folder, if it was moved."""
HOMES = ((".lmstudio",), (".cache", "lm-studio"))
"""Its folder below the user's, today and before 2025."""
MAX_SETTINGS = 1 << 20
DEFAULT_REGISTRY = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"
"""Parts of a name that are the default and may be left out."""
SERVICE_HOME = Path("/usr/share/ollama")
"""Home of the user that Ollama's installer for Linux makes."""
MAX_MANIFESTS = 5000
MAX_TEXT = 1 << 20
"""Largest manifest or parameters file in bytes; they have a few hundred."""
LAYER = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256[:-](?P<hex>[0-9a-f]{64})")
T = TypeVar("T")
STARTER = Path(__file__).parent / "starter" / "llama-appliance-starter-Q8_0.gguf"
"""The small model that ships with the program; also found when the program is frozen."""


class _Settings(Struct, rename="camel"):
    """A part of ``settings.json``: the folder for downloads, if the user has chosen one."""

    downloads_folder: str = ""


def lm_studio_directories(home: Path) -> tuple[Path, ...]:
    """Return folders that may hold models of LM Studio, for the user whose folder is ``home``. Raises nothing."""
    homes = [home.joinpath(*parts) for parts in HOMES]
    if pointed := _text(home / HOME_POINTER).strip():
        homes.insert(0, Path(pointed))
    found: list[Path] = []
    for folder in homes:
        settings = decoded(_Settings, _text(folder / "settings.json"))
        found += [Path(settings.downloads_folder)] if settings is not None and settings.downloads_folder else []
        found.append(folder / "models")
    return tuple(dict.fromkeys(path for path in found if path.is_absolute()))


def scan_lm_studio(root: Path, notes: list[str]) -> Iterator[FoundModel]:
    """Scan a folder. Raises OSError if the folder itself cannot be read; unreadable parts below it are in ``notes``."""
    for publisher in list_folder(root)[1]:
        for repo in _listed(root / publisher, notes, "LM Studio")[1]:
            folder = root / publisher / repo
            yield from models_of(f"{publisher}/{repo}", folder, _listed(folder, notes, "LM Studio")[0], "lm_studio")


def _listed(folder: Path, notes: list[str], program: str) -> tuple[list[str], list[str]]:
    try:
        return list_folder(folder)
    except OSError as error:
        notes.append(f"the models of {program} in {folder} cannot be listed: {why(error)}")
        return [], []


def _text(path: Path) -> str:
    try:
        return read_start(path, MAX_SETTINGS).decode("utf-8", "replace")
    except (OSError, ValueError):  # ValueError: a NUL in a path that a file named
        return ""


class _Number(NamedTuple):
    """A parameter of the same meaning in llama-server, and the values with the same meaning."""

    flag: str
    least: float
    most: float
    whole: bool = False


PARAMETERS = {
    "num_ctx": _Number("--ctx-size", 1, 1 << 30, whole=True),
    "num_predict": _Number("--n-predict", 1, 1 << 30, whole=True),
    "seed": _Number("--seed", 1, (1 << 31) - 1, whole=True),
    "temperature": _Number("--temp", 0, 100),
    "top_k": _Number("--top-k", 0, 1 << 30, whole=True),
    "top_p": _Number("--top-p", 0, 1),
    "min_p": _Number("--min-p", 0, 1),
    "typical_p": _Number("--typical", 0, 1),
    "repeat_last_n": _Number("--repeat-last-n", -1, 1 << 30, whole=True),
    "repeat_penalty": _Number("--repeat-penalty", 0, 100),
    "presence_penalty": _Number("--presence-penalty", -100, 100),
    "frequency_penalty": _Number("--frequency-penalty", -100, 100),
}
"""https://docs.ollama.com/modelfile. Left out is what is not the same there (-2 of ``num_predict`` has no meaning) and
what belongs to the machine rather than to the model (``num_gpu``, ``num_thread``)."""


class _Stop(Struct):
    stop: list[str] | str = []


class _Message(Struct):
    role: str
    content: str


class _Unusable(Exception):
    """The reason why a manifest's model is skipped, as part of a sentence."""


def ollama_directories(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return folders that may hold models of Ollama: of its variable, else the user's and the one of its service."""
    if chosen := environ.get("OLLAMA_MODELS"):
        return (Path(chosen).absolute(),)
    homes = [home, SERVICE_HOME] if sys.platform == "linux" else [home]
    return tuple(folder / ".ollama" / "models" for folder in homes)


def scan_ollama(root: Path, notes: list[str]) -> Iterator[FoundModel]:
    """Scan a store. Raises OSError if the store itself cannot be read; broken parts are in ``notes``."""
    same: dict[tuple[object, ...], list[FoundModel]] = {}
    for number, (name, path) in enumerate(_manifests(root / "manifests", notes)):
        if number == MAX_MANIFESTS:
            notes.append(f"only the first {MAX_MANIFESTS} models of Ollama in {root} were read")
            break
        try:
            found = _model(root, name, path, notes)
        except _Unusable as error:
            notes.append(f"the model '{name}' of Ollama was skipped: {error} ({path})")
        else:
            same.setdefault((found.files, found.mmproj, found.args, found.words), []).append(found)
    for tags in same.values():
        yield _named_by_all(tags)


def engine_args(content: bytes) -> tuple[str, ...]:
    """Return the llama-server flags for a parameters layer, if that is certain. Raises nothing."""
    values = decoded(dict[str, object], content) or {}
    flags: list[str] = []
    for name, number in PARAMETERS.items():
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        if number.least <= value <= number.most and not (number.whole and value != int(value)):
            flags += [number.flag, str(int(value) if number.whole else value)]
    return tuple(flags)


def stop_words(content: bytes) -> tuple[str, ...]:
    """Return the stop words of a parameters layer. They have no flag: each request says them. Raises nothing."""
    stop = (decoded(_Stop, content) or _Stop()).stop
    return tuple(filter(None, [stop] if isinstance(stop, str) else stop))


def blob_name(digest: str) -> str | None:
    """Return the file's name for a digest, None for text that is not one: it decides about a path."""
    match = _DIGEST.fullmatch(digest)
    return match and f"sha256-{match['hex']}"


def _manifests(root: Path, notes: list[str]) -> Iterator[tuple[str, Path]]:
    """Yield every model's name, as Ollama shows it, and its manifest."""
    for registry in list_folder(root)[1]:
        for namespace in _listed(root / registry, notes, "Ollama")[1]:
            for model in _listed(root / registry / namespace, notes, "Ollama")[1]:
                folder = root / registry / namespace / model
                for tag in _listed(folder, notes, "Ollama")[0]:
                    if not tag.startswith("."):
                        yield _shown(registry, namespace, f"{model}:{tag}"), folder / tag


def _shown(registry: str, namespace: str, model: str) -> str:
    if registry != DEFAULT_REGISTRY:
        return f"{registry}/{namespace}/{model}"
    return model if namespace == DEFAULT_NAMESPACE else f"{namespace}/{model}"


def _model(root: Path, name: str, path: Path, notes: list[str]) -> FoundModel:
    """Raises _Unusable."""
    manifest = decoded(ImageManifest, _read(path, "its manifest"))
    if manifest is None:
        raise _Unusable("its manifest cannot be understood; pull it again")
    weights = _layers(manifest, "model")
    if not weights:
        raise _Unusable("it has no GGUF weights here; it runs elsewhere, or is in another format")
    if len(weights) > 1:
        raise _Unusable("its weights are in several parts, which the engine cannot open under these names")
    args: list[str] = []
    stop: tuple[str, ...] = ()
    for layer in _layers(manifest, "params")[:1]:
        parameters = _read(_blob(root, layer), "its parameters")
        args += engine_args(parameters)
        stop = stop_words(parameters)
    for layer in _layers(manifest, "adapter"):
        args += ["--lora", str(_blob(root, layer))]
    return FoundModel(
        id=name,
        source="ollama",
        files=(str(_blob(root, weights[0])),),
        mmproj=_projector(root, name, manifest, notes),
        args=tuple(args),
        words=OwnWords(system=_system(root, manifest), stop=stop, messages=_messages(root, manifest)),
    )


def _system(root: Path, manifest: ImageManifest) -> str:
    texts = [_read(_blob(root, layer), "its system prompt") for layer in _layers(manifest, "system")]
    return texts[-1].decode("utf-8", "replace") if texts else ""


def _messages(root: Path, manifest: ImageManifest) -> tuple[tuple[str, str], ...]:
    """Return those that can be understood."""
    contents = [_read(_blob(root, layer), "its messages") for layer in _layers(manifest, "messages")[:1]]
    found = [decoded(list[_Message], content) or [] for content in contents]
    return tuple((message.role, message.content) for messages in found for message in messages)


def _layers(manifest: ImageManifest, kind: str) -> list[ImageLayer]:
    return [layer for layer in manifest.layers if layer.media_type == LAYER + kind]


def _projector(root: Path, name: str, manifest: ImageManifest, notes: list[str]) -> str | None:
    """A model works without its projector."""
    for layer in _layers(manifest, "projector"):
        try:
            return str(_blob(root, layer))
        except _Unusable as error:
            notes.append(f"the model '{name}' of Ollama is used without its projector: {error}")
    return None


def _blob(root: Path, layer: ImageLayer) -> Path:
    """Return the file of a layer, complete as far as its size tells. Raises _Unusable."""
    name = blob_name(layer.digest)
    if name is None:
        raise _Unusable("its manifest names a file that cannot be one; pull it again")
    try:
        path = join_inside(root, "blobs", name)
        size = stat_regular(str(path)).st_size
    except UnsafeName:
        raise _Unusable("its manifest names a file that cannot be one; pull it again") from None
    except OSError as error:
        raise _Unusable(f"its file {name} cannot be used: {why(error)}") from None
    if layer.size > 0 and size != layer.size:
        raise _Unusable(f"its file {name} has {size} bytes instead of {layer.size}; pull it again")
    return path


def _read(path: Path, what: str) -> bytes:
    try:
        return read_start(path, MAX_TEXT)
    except OSError as error:
        raise _Unusable(f"{what} cannot be read: {why(error)}") from None


def _named_by_all(tags: list[FoundModel]) -> FoundModel:
    """Join several tags for the same files and parameters into one model; ``NAME`` also means ``NAME:latest``."""
    default = f":{DEFAULT_TAG}"
    first, *others = sorted(tags, key=lambda found: (found.id.endswith(default), len(found.id), found.id))
    short = [found.id.removesuffix(default) for found in tags if found.id.endswith(default)]
    return msgspec.structs.replace(first, aliases=(*(found.id for found in others), *short))


class NamedFile(Struct, frozen=True):
    """A model named on the command line."""

    id: str
    path: str


class ModelPresets(Protocol):
    """Options of models beside their files, and models of their own. A feature reads them."""

    @property
    def file(self) -> Path | None:
        """Their file, None if there are only options from elsewhere."""
        ...

    @property
    def cache(self) -> Path | None:
        """The cache that may have the repositories that they name, if the cache is not served anyway."""
        ...

    def signature(self) -> object:
        """Changes when the file does."""
        ...

    def read(self) -> tuple[ModelPresets, list[Problem]]:
        """Read the file again; the problems are warnings. Raises UsageError, InvalidConfig among them."""
        ...

    def applied(self, found: Sequence[FoundModel], notes: list[str], cache: Path | None) -> list[FoundModel]:
        """Return the found models with the presets applied, and those that only presets name. Ids are unique."""
        ...


class ModelFolders(Struct, frozen=True, kw_only=True):
    """The places for ``Catalog`` to scan. Folders that do not exist (any more) hold no models."""

    files: tuple[NamedFile, ...] = ()
    models_dir: Path | None = None
    cache: Path | None = None
    lm_studio: tuple[Path, ...] = ()
    ollama: tuple[Path, ...] = ()
    starter: Path | None = STARTER
    presets: ModelPresets | None = None

    @property
    def lookup(self) -> Path | None:
        """The cache in which presets find their models, which need not be listed themselves."""
        return self.cache or (self.presets.cache if self.presets is not None else None)

    @property
    def others(self) -> tuple[str, ...]:
        """Folders of other programs that are here, each with the program's name. Asks the disk."""
        kept = (("LM Studio", self.lm_studio), ("Ollama", self.ollama))
        return tuple(f"{name} in {path}" for name, paths in kept for path in paths if path.is_dir())

    @property
    def has_folders(self) -> bool:
        """True if some place may hold other models later than now."""
        return bool(self.models_dir or self.lookup or self.lm_studio or self.ollama)


def default_models_dir() -> Path:
    """Return the folder for a user's models; it may not exist yet."""
    return users_data() / "models"


def resolve_sources(
    *,
    models: Sequence[str] = (),
    models_dir: str | None = None,
    environ: Mapping[str, str],
    home: Path,
    starter: Path | None = STARTER,
    stores: bool = False,
) -> ModelFolders:
    """Turn flags and environment into sources. ``models_dir`` replaces the default models folder.

    ``stores``: also the models of LM Studio and Ollama. Raises UsageError for a requested model or folder that does not
    exist.
    """
    files = tuple(_named_file(text) for text in models)
    seen: dict[str, str] = {}
    for file in files:
        if seen.setdefault(file.id, file.path) != file.path:
            raise UsageError(
                f"--model {seen[file.id]} and --model {file.path} would both be called '{file.id}'; "
                f"name one of them yourself: --model NAME={file.path}"
            )
    return ModelFolders(
        files=tuple(dict.fromkeys(files)),
        models_dir=default_models_dir() if models_dir is None else _folder(models_dir),
        cache=cache_directory(environ, home).absolute(),
        lm_studio=lm_studio_directories(home) if stores else (),
        ollama=ollama_directories(environ, home) if stores else (),
        starter=starter,
    )


def _folder(text: str) -> Path:
    path = expanded(text).absolute()
    if not path.is_dir():
        wrong = "is not a directory" if path.exists() else "does not exist"
        raise UsageError(f"the models directory {path} {wrong}; create it, or name another with --models-dir")
    return path


def _named_file(text: str) -> NamedFile:
    # A file whose own name holds "=" is meant as it is written.
    name, written = (None, text) if Path(text).exists() else split_named_path(text)
    path = expanded(written).absolute()
    if path.is_dir():
        raise UsageError(f"--model {path} is a directory; name the .gguf file in it, or use --models-dir {path}")
    try:
        stat_regular(str(path))
    except FileNotFoundError as error:
        raise UsageError(f"--model {path}: there is no such file") from error
    except OSError as error:
        raise UsageError(f"--model {path} cannot be used: {why(error)}") from error
    model_id = name or model_name(stem_of(path.name) or path.name)
    if not is_speakable(model_id):
        raise UsageError(f"the name {model_id!r} cannot be used for a model; give another with --model NAME=PATH")
    return NamedFile(model_id, str(path))
