"""A model that the program can serve, and the engine flags that follow from its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from appliance.core.config.types import ModelConfig
from appliance.core.models.download import Remote
from appliance.core.models.embedding import embedding_batch
from appliance.core.models.gguf import GgufInfo

Source = Literal["config", "preset", "path", "models_dir", "cache", "lm_studio", "ollama", "starter"]
"""The place where a model was found: in the configuration, in a preset file, named on the command line, in a models
folder, in the Hugging Face cache, in the store of LM Studio or Ollama, shipped with the program.
"""

STRENGTH: tuple[Source, ...] = ("starter", "ollama", "lm_studio", "cache", "models_dir", "path", "preset", "config")
"""If two models have the same id, the stronger source wins; weakest first."""

FOREIGN: tuple[Source, ...] = ("lm_studio", "ollama")
"""Files of other programs: used in place, never changed or deleted."""


class OwnWords(Struct, frozen=True, kw_only=True):
    """The words that a model of Ollama's store brings for its chats."""

    system: str = ""
    stop: tuple[str, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    """Roles and texts before the first message."""


NO_WORDS = OwnWords()


class ModelPreset(Struct, frozen=True, kw_only=True):
    """The settings of a model beside its files and flags."""

    tags: tuple[str, ...] = ()  # words about it, for people
    load_on_startup: bool = False
    stop_timeout: float | None = None  # seconds that its process gets to end by itself; None means the default
    engine: str = ""  # the engine that its own configuration asks for, as `Wanted.word`; empty: none
    preset: str = ""  # its options as a section of llama-server's INI; empty if only its files set any
    origins: tuple[tuple[str, str], ...] = ()
    """The source of each option in ``preset``: ``models.ini:12``, a variable, a flag of the command line."""


class Model(ModelPreset, frozen=True, kw_only=True):
    """A model on disk, or a configured command that serves one.

    With ``error`` it is listed and cannot be started; ``info`` is then None or incomplete.
    """

    id: str
    aliases: tuple[str, ...] = ()
    source: Source
    path: str = ""
    """Absolute; for a sharded model the first shard, which the engine gets. Empty for a configured model, and when the
    engine fetches it.
    """
    config: ModelConfig | None = None
    """The command that serves it; without one the program's own engine does."""
    mmproj: str | None = None
    """Projector for images or sound."""
    draft: str | None = None
    """Small model for speculative decoding."""
    size: int = 0
    """Bytes on disk of all shards, without companions."""
    created: int = 0
    """When the file was last changed, Unix seconds."""
    info: GgufInfo | None = None
    error: str | None = None
    """Why it cannot be used; one line, without the path."""
    unread: bool = False
    """Its header is not read yet, so kind, companions, facts and mistakes are not known."""
    args: tuple[str, ...] = ()
    """Engine flags for this model only."""
    words: OwnWords = NO_WORDS
    hidden: bool = False
    """Not listed, but served when named: a preset stands for it."""
    hf_repo: str | None = None
    """``org/repo`` of a model from the cache."""
    tag: str | None = None
    input_modalities: tuple[str, ...] = ("text",)
    cards: tuple[str, ...] = ()
    """The graphics cards that its own configuration names; none: whatever the engine uses."""
    fetch: tuple[Remote, ...] = ()
    """The downloads that it needs before a start; ``args`` then say the same, for people."""


def engine_flags(model: Model) -> tuple[str, ...]:
    """Return the llama-server flags for the model's files and kind, without ``--model`` and ``model.args``.

    The names work in every llama.cpp since 2025: ``--model-draft`` is still an alias of ``--spec-draft-model``, and a
    reranker must not get ``--embedding``, which older servers take as a refusal of reranking.
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


def start_flags(model: Model, more: Sequence[str]) -> tuple[str, ...]:
    """`engine_flags`, the batch of a model for embeddings, what the model says, and ``more``. The last counts."""
    own = engine_flags(model)
    return (*own, *embedding_batch(model.info, (*own, *model.args, *more)), *model.args, *more)


def started_with(model: Model) -> tuple[object, ...]:
    """Return everything that the process of a model without a command depends on.

    While this stays equal, a running process is up to date. Names, tags and times that are only shown, or used when it
    ends, are not part of it.
    """
    return model.path, model.size, model.created, engine_flags(model), model.args, model.engine
