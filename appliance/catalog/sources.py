"""The places of models, checked once at the start so that the user sees mistakes on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from platformdirs import user_data_path

from appliance.catalog.files import stat_regular, why
from appliance.catalog.hub_cache import cache_directory
from appliance.catalog.other_stores import lm_studio_directories, ollama_directories
from appliance.catalog.presets import PresetSource
from appliance.core.models.names import is_speakable, model_name, split_named_path, stem_of
from appliance.errors import UsageError

STARTER = Path(__file__).parent / "starter" / "llama-appliance-starter-Q8_0.gguf"
"""The small model that ships with the program; also found when the program is frozen."""


class NamedFile(Struct, frozen=True):
    """A model named on the command line."""

    id: str
    path: str


class Sources(Struct, frozen=True, kw_only=True):
    """The places for ``Catalog`` to scan. Folders that do not exist (any more) hold no models."""

    files: tuple[NamedFile, ...] = ()
    models_dir: Path | None = None
    cache: Path | None = None
    lm_studio: tuple[Path, ...] = ()
    ollama: tuple[Path, ...] = ()
    starter: Path | None = STARTER
    presets: PresetSource | None = None
    """Options of models beside their files; may add models of its own."""

    @property
    def lookup(self) -> Path | None:
        """The cache in which presets find their models, which need not be listed themselves."""
        return self.cache or (self.presets.cache if self.presets is not None else None)

    @property
    def has_folders(self) -> bool:
        """True if some place may hold other models later than now."""
        return bool(self.models_dir or self.lookup or self.lm_studio or self.ollama)


def default_models_dir() -> Path:
    """Return the folder for a user's models; it may not exist yet."""
    return user_data_path("llama-appliance", appauthor=False) / "models"


def resolve_sources(
    *,
    models: Sequence[str] = (),
    models_dir: str | None = None,
    environ: Mapping[str, str],
    home: Path,
    starter: Path | None = STARTER,
    stores: bool = False,
) -> Sources:
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
    return Sources(
        files=tuple(dict.fromkeys(files)),
        models_dir=default_models_dir() if models_dir is None else _folder(models_dir),
        cache=cache_directory(environ, home).absolute(),
        lm_studio=lm_studio_directories(home) if stores else (),
        ollama=ollama_directories(environ, home) if stores else (),
        starter=starter,
    )


def _folder(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        wrong = "is not a directory" if path.exists() else "does not exist"
        raise UsageError(f"the models directory {path} {wrong}; create it, or name another with --models-dir")
    return path


def _named_file(text: str) -> NamedFile:
    # A file whose own name holds "=" is meant as it is written.
    name, written = (None, text) if Path(text).exists() else split_named_path(text)
    path = Path(written).expanduser().absolute()
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
