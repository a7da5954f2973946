"""One model the program can serve, and the engine flags that follow from what kind of model it is."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from appliance.core.config.types import ModelConfig
from appliance.core.gguf import GgufInfo

Source = Literal["config", "path", "models_dir", "cache", "starter"]
"""Where a model was found: in the configuration, named on the command line, in a models folder, in the Hugging Face
cache, shipped along."""

STRENGTH: tuple[Source, ...] = ("starter", "cache", "models_dir", "path", "config")
"""Of two models with one id the stronger source's is served; weakest first."""


class Model(Struct, frozen=True, kw_only=True):
    """A model on disk, or a configured command that serves one.

    With ``error`` it is listed and cannot be started; ``info`` is then None or incomplete.
    """

    id: str
    aliases: tuple[str, ...] = ()
    source: Source
    path: str = ""
    """Absolute; of a sharded model the first shard, which is what the engine is given. Empty for a configured one."""
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
    hf_repo: str | None = None
    """``org/repo`` of a model from the cache."""
    tag: str | None = None
    input_modalities: tuple[str, ...] = ("text",)


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
