"""Models that make embeddings: how a command says so, and the batch that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from appliance.core.llama.flags import last, split
from appliance.core.models.context import said_context
from appliance.core.models.gguf import GgufInfo
from appliance.errors import UsageError

USUAL_BATCH, MOST_UNASKED = 512, 8192
"""llama-server's physical batch. Above this many tokens a context has to be asked for: each batch takes memory."""
_EMBEDS = frozenset(("--embedding", "--embeddings"))
_RANKS = frozenset(("--reranking", "--rerank"))
_BATCHES = ("--batch-size", "--ubatch-size")


def served_kind(words: Sequence[str], environ: Sequence[str] = ()) -> Literal["embedding", "rerank", ""]:
    """Return what a llama-server command makes instead of text, by its words and ``NAME=value`` variables."""
    on = {name for name, _, value in (each.partition("=") for each in environ) if value in ("1", "true", "on")}
    if _RANKS.intersection(words) or "LLAMA_ARG_RERANKING" in on:
        return "rerank"
    return "embedding" if _EMBEDS.intersection(words) or "LLAMA_ARG_EMBEDDINGS" in on else ""


def embedding_batch(info: GgufInfo | None, words: Sequence[str]) -> tuple[str, ...]:
    """Return the batch flags with which a model takes every text that its context holds; () for others.

    Such a model looks at a text as a whole, so llama-server computes one in a single physical batch, and refuses a
    longer one. Only ``last`` pooling can be split (b11434). ``words`` are the start's other options; a batch among them
    counts. The context is what they ask for, else what the model was trained for.
    """
    try:
        said = split(words)
    except UsageError:
        return ()  # the engine will say so
    kind = served_kind([option.canonical for option in said])
    if info is None or not (kind or info.kind in ("embedding", "rerank")) or any(last(said, each) for each in _BATCHES):
        return ()
    pooling = last(said, "--pooling")
    if (pooling.values[-1].strip().lower() if pooling is not None and pooling.values else info.pooling) == "last":
        return ()
    trained = info.context_length or USUAL_BATCH
    size = str(min(said_context(words) or MOST_UNASKED, trained))
    return ("--batch-size", size, "--ubatch-size", size) if int(size) > USUAL_BATCH else ()
