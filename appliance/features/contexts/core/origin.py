"""The processes that have to do with a context: the flags of one whose contexts are kept, and which may have it back.

The engine compares the tokens of a file with a new prompt's, so a context is never wrong for a prompt. It is wrong for
another model, build or kind of cache, which the engine cannot see. So all of that is in the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

import msgspec
from msgspec import Struct

from appliance.core.engine import Manual
from appliance.core.llama import flags
from appliance.core.llama.flags import Option, last
from appliance.core.models.identity import OF_SEAT, WITHOUT_EFFECT, FileIdentity
from appliance.core.models.names import shard_of, stem_of
from appliance.core.versions import line_of, numbers_of
from appliance.features.contexts.core.slots import LEAST_SIMILARITY

_FILES = tuple(map(flags.canonical, ("--model", "--mmproj")))
_VECTORS, _SCALED_VECTORS = "--control-vector", "--control-vector-scaled"
"""Nothing is kept of a model with a draft or an adapter: see `context_flags`."""
SAVE_PATH, KEEP_SLOTS, _CACHE = "--slot-save-path", "--no-cache-idle-slots", "--cache-ram"
SIMILARITY = "--slot-prompt-similarity"
"""llama-server's own is a tenth of a prompt. Many helpers have more than that in common with their main session."""
_NO_CONTEXT = ("--embedding", "--reranking", "--pooling", "--model-draft", "--spec-type", "--lora", "--lora-scaled")
"""A file has nothing of a draft, and nothing says how strong an adapter was when it was written."""


class Origin(Struct, frozen=True, kw_only=True):
    """A process with a model. Only ``key`` decides whether it may have a context back."""

    key: str
    """The digest of everything on which its contexts depend; only a process with the same key may have one back."""
    shape: str = ""
    """The part of the key that does not depend on the seat: the digest of the model's files, and of its options."""
    build: str = ""  # the id of its engine's build
    engine: str = ""  # the digest of that build
    seat: str = ""  # the id of the seat


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
    cache = last(said, _CACHE)
    return cache.values == ("0",) if cache is not None else not manual.names(_CACHE)


def files_named(options: Iterable[Option]) -> tuple[str, ...]:
    """Return the paths of every file that makes the model what it is: all parts, projector and control vectors.

    Empty: the engine fetches the model, so that nothing is known of its file.
    """
    return tuple(part for path in _paths(options) for part in _shards(path))


def origin_of(
    files: Sequence[FileIdentity], options: Sequence[Option], engine: str, *, build: str = "", seat: str = ""
) -> Origin:
    """Return the origin of the contexts of a process.

    ``options`` are all of the process, those of its environment included, and ``files`` those that they name.
    ``engine`` is the digest of the build.
    """
    _, said = flags.partition(options, WITHOUT_EFFECT)
    _, shaping = flags.partition(said, OF_SEAT)
    key, shape = _digest(engine, files, _plain(said)), _digest(files, _plain(shaping))
    return Origin(key=key, shape=shape, build=build, engine=engine, seat=seat)


def outdated(context: Origin, now: Origin) -> str:
    """Return why a context of a model is of no use any more when the model is started as ``now``; empty: keep it.

    Keep those of another seat: the model returns there, as it does some time after a crash.
    """
    if context.key == now.key:
        return ""
    if context.shape != now.shape:
        return "its model is started with another file or option"
    if context.build == now.build and context.engine != now.engine:
        return "another engine has taken the place of its own"
    if line_of(context.build) == line_of(now.build) and _release(context.build) < _release(now.build):
        return "its model is started with a newer release of the engine"
    if context.seat in (now.seat, f"{now.build}:"):  # the latter: its devices were not known yet
        return "its model is started with another option on the same devices"
    return ""


def _release(build: str) -> tuple[int, ...]:
    """The number of llama.cpp's release alone: behind it may be a word for another way of building it."""
    return numbers_of(build.rpartition("/")[2])[:1]


def _plain(options: Iterable[Option]) -> list[tuple[str, bool, tuple[str, ...]]]:
    return [(option.canonical, option.on, option.values) for option in options]


def _digest(*facts: object) -> str:
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()


def _paths(options: Iterable[Option]) -> Iterator[str]:
    for option in options:
        if option.canonical in _FILES:
            yield option.values[0]
        elif option.canonical == _VECTORS:
            yield from option.values[0].split(",")
        elif option.canonical == _SCALED_VECTORS:
            yield from (each.rpartition(":")[0] or each for each in option.values[0].split(","))


def _shards(path: str) -> Iterator[str]:
    shard = shard_of(stem_of(PurePath(path).name) or "")
    if shard is None:
        yield path
    else:
        yield from (str(PurePath(path).with_name(shard.name(number))) for number in range(1, shard.total + 1))
