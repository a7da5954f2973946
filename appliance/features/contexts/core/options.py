"""The flags of a process whose contexts can be kept."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.core.engine import Manual
from appliance.core.fit.plan import CACHE
from appliance.core.llama.flags import Option, last
from appliance.features.contexts.core.slots import LEAST_SIMILARITY

SAVE_PATH, KEEP_SLOTS = "--slot-save-path", "--no-cache-idle-slots"
SIMILARITY = "--slot-prompt-similarity"
"""llama-server's own is a tenth of a prompt. Many helpers have more than that in common with their main session."""
_NO_CONTEXT = ("--embedding", "--reranking", "--pooling", "--model-draft", "--spec-type", "--lora", "--lora-scaled")
"""A file has nothing of a draft, and nothing says how strong an adapter was when it was written."""


def context_flags(folder: str, slots: int, manual: Manual, said: Sequence[Option]) -> tuple[str, ...]:
    """Return the flags that let this program keep the contexts of ``slots`` slots; empty where it cannot.

    ``said`` are the options that are set already: none of them is changed. ``manual`` is what the build says of itself.
    """
    # With a unified cache llama-server (b11434) copies all idle slots to main memory with each new request, and empties
    # them. A request that names its slot then finds it empty, and nothing is looked up for it. KEEP_SLOTS ends that. A
    # build that has no such option has no such habit.
    is_ours = slots > 0 and not any(last(said, name) for name in (SAVE_PATH, "--cache-idle-slots", *_NO_CONTEXT))
    if not is_ours or not manual.names(SAVE_PATH):
        return ()
    flags = [SAVE_PATH, folder]
    if slots > 1:
        flags += [KEEP_SLOTS] if manual.names(KEEP_SLOTS) else []
        flags += [SIMILARITY, str(LEAST_SIMILARITY)] if manual.names(SIMILARITY) and not last(said, SIMILARITY) else []
    return tuple(flags)


def may_name_slots(manual: Manual, said: Sequence[Option]) -> bool:
    """True if requests may name slots that may be in use, in an engine that is started with these options.

    A request that names a slot in use waits for it. But llama-server (b11434) first exchanges the slot's context for
    one of its cache of prompts, while another answer is being written there: that answer goes on with words of a third
    conversation. Requests may overtake each other on their way to the engine, and the table of slots may be wrong
    about the slots in use. So only an engine without that cache is given names. The others choose, and find in their
    cache what has lost its slot.
    """
    cache = last(said, CACHE)
    return cache.values == ("0",) if cache is not None else not manual.names(CACHE)
