"""One model the program can serve, and the engine flags that follow from what kind of model it is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from appliance.core.config.types import ModelConfig
from appliance.core.elsewhere import Remote
from appliance.core.gguf import GgufInfo

Source = Literal["config", "preset", "path", "models_dir", "cache", "lm_studio", "ollama", "starter"]
"""Where a model was found: in the configuration, in a preset file, named on the command line, in a models folder, in
the Hugging Face cache, in the store of LM Studio or Ollama, shipped along."""

STRENGTH: tuple[Source, ...] = ("starter", "ollama", "lm_studio", "cache", "models_dir", "path", "preset", "config")
"""Of two models with one id the stronger source's is served; weakest first."""

FOREIGN: tuple[Source, ...] = ("lm_studio", "ollama")
"""Files of other programs: used where they are, never changed or deleted."""


class Model(Struct, frozen=True, kw_only=True):
    """A model on disk, or a configured command that serves one.

    With ``error`` it is listed and cannot be started; ``info`` is then None or incomplete.
    """

    id: str
    aliases: tuple[str, ...] = ()
    source: Source
    path: str = ""
    """Absolute; of a sharded model the first shard, which is what the engine is given. Empty for a configured one, and
    where the engine fetches it."""
    config: ModelConfig | None = None
    """The command that serves it; without one the program's own engine does."""
    mmproj: str | None = None
    """Projector that lets it see or hear."""
    draft: str | None = None
    """Small model for speculative decoding."""
    size: int = 0
    """Bytes on disk of all shards, without companions."""
    created: int = 0
    """When the file was last changed, Unix seconds."""
    info: GgufInfo | None = None
    error: str | None = None
    """Why it cannot be used, one line without the path."""
    args: tuple[str, ...] = ()
    """Engine flags of this model alone."""
    tags: tuple[str, ...] = ()
    """Words about it, for people."""
    hidden: bool = False
    """Served when asked for by name, and not listed: a preset stands for it."""
    load_on_startup: bool = False
    stop_timeout: float | None = None
    """Seconds its process gets to end by itself; None: what is usual."""
    preset: str = ""
    """What applies to it as a section of llama-server's INI; empty where nothing but its files does."""
    origins: tuple[tuple[str, str], ...] = ()
    """Each option in ``preset`` with who said it: ``models.ini:12``, a variable, a flag of the command line."""
    hf_repo: str | None = None
    """``org/repo`` of a model from the cache."""
    tag: str | None = None
    input_modalities: tuple[str, ...] = ("text",)
    engine: str = ""
    """Which engine its own configuration asks for, as `Wanted.word`; empty: none of its own."""
    fetch: tuple[Remote, ...] = ()
    """What has to be downloaded before it can be started; ``args`` then say the same, for people to read."""


def engine_flags(model: Model) -> tuple[str, ...]:
    """llama-server flags that the model's files and kind call for, without ``--model`` and ``model.args``.

    The names are good for every llama.cpp since 2025: ``--model-draft`` is still an alias of ``--spec-draft-model``,
    and a reranker must not be given ``--embedding``, which older servers take as a refusal of reranking.
    """
    flags: list[str] = []
    if model.mmproj:
        flags += ["--mmproj", model.mmproj]
    if model.draft:
        flags += ["--model-draft", model.draft]
    kind = model.info.kind if model.info else None
    if kind == "rerank":
        flags += ["--reranking", "--pooling", "rank"]
    elif kind == "embedding":
        flags += ["--embedding"]
    return tuple(flags)


def started_with(model: Model) -> tuple[object, ...]:
    """What a process of a model without a command depends on. While this stays equal, a running process is up to date:
    names, tags and times that are merely told, or used when it ends, are no part of it."""
    return model.path, model.size, model.created, engine_flags(model), model.args, model.engine
