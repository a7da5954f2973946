"""Updates the index: changed files, then missing vectors, for as long as there is time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

from appliance.plugins import AskFailed, Context, Refused

from .chunks import chunks
from .files import Found, NoText, decode, find
from .sections import sections
from .settings import Settings
from .store import Counts, Known, Store, open_store
from .vectors import pack

TOO_LARGE = (400, 413, 500)
"""Engines' statuses for a text with more tokens than they take at once; llama-server says 500."""
SHORTEST = 200
"""In characters; such a short text is not refused because of its length."""
TELL_EVERY = 5.0
"""Seconds between two lines of progress in the log."""

_at_work: set[Path] = set()
"""Indexes that a request is updating at this moment; other requests use them as they are."""


async def refresh(context: Context, settings: Settings, database: Path, model: str, like: bytes) -> Counts:
    """Update the index, but for no longer than allowed; the rest is left for the next request.

    ``like`` is a vector of ``model``. Everything done is kept, however this ends: one file, one batch at a time.
    """
    places = await context.in_thread(partial(settings.places, context.data))
    if database not in _at_work:
        _at_work.add(database)
        try:
            until = time.monotonic() + settings.index_seconds
            left = await context.in_thread(partial(_update_files, database, places, settings, until))
            if left:
                context.logger.warning("%d files are not in the index: no time left, or 'max_chunks' reached", left)
            await context.in_thread(partial(_forget, database, settings, model, like))
            await _embed_missing(context, settings, database, model, until)
        finally:
            _at_work.discard(database)
    return await context.in_thread(partial(_counts, database, model))


def _update_files(database: Path, places: Sequence[Path], settings: Settings, until: float) -> int:
    """Add new and changed files, and drop deleted ones. Return for how many files there was no time or no room."""
    found = list(find(places, settings.exclude))
    with open_store(database) as store:
        known = store.files()
        store.remove(known[path].id for path in known.keys() - {file.path for file in found})
        waiting = [file for file in found if not _unchanged(known.get(file.path), file, settings.recipe)]
        room = settings.max_chunks - store.chunk_count()
        for done, file in enumerate(waiting):
            if room <= 0 or (done and time.monotonic() > until):
                return len(waiting) - done
            room -= _take_in(store, known.get(file.path), file, settings)
    return 0


def _unchanged(known: Known | None, file: Found, recipe: str) -> bool:
    return known is not None and (known.size, known.mtime_ns, known.recipe) == (file.size, file.mtime_ns, recipe)


def _take_in(store: Store, known: Known | None, file: Found, settings: Settings) -> int:
    """Add one file to the index; return the number of its chunks, 0 if its content is unchanged or left out."""
    if file.size > settings.max_file_mb * 1e6:
        store.put(file, "", settings.recipe, (), "too large")
        return 0
    try:
        content = Path(file.path).read_bytes()
    except OSError as error:
        store.put(file, "", "", (), f"unreadable ({error.strerror})")  # no recipe: it is tried again
        return 0
    digest = blake2b(content, digest_size=16).hexdigest()
    if known is not None and (known.hash, known.recipe) == (digest, settings.recipe):
        store.touch(known.id, file)
        return 0
    try:
        text = decode(file.name, content)
    except NoText as reason:
        store.put(file, digest, settings.recipe, (), str(reason))
        return 0
    cut = list(chunks(sections(file.name, text), settings.chunk_chars, settings.overlap_chars))
    store.put(file, digest, settings.recipe, cut, None if cut else "empty")
    return len(cut)


def _forget(database: Path, settings: Settings, model: str, like: bytes) -> None:
    with open_store(database) as store:
        store.forget_unlike(model, like)
        if settings.embedding_model:
            store.forget_models(but=model)


def _counts(database: Path, model: str) -> Counts:
    with open_store(database) as store:
        return store.counts(model)


async def _embed_missing(context: Context, settings: Settings, database: Path, model: str, until: float) -> None:
    """Compute vectors for the chunks without one: at least one batch, then more while there is time."""

    def missing() -> list[tuple[int, str]]:
        with open_store(database) as store:
            return store.unembedded(model, settings.batch)

    def keep(batch: Sequence[tuple[int, str]], vectors: Sequence[Sequence[float]]) -> Counts:
        packed = [(chunk, pack(vector)) for (chunk, _), vector in zip(batch, vectors, strict=True)]
        with open_store(database) as store:
            store.add_vectors(model, packed)
            return store.counts(model)

    tell_at = time.monotonic()
    while batch := await context.in_thread(missing):
        vectors = await _embed(context, model, [text for _, text in batch])
        counts = await context.in_thread(partial(keep, batch, vectors))
        now = time.monotonic()
        if now >= tell_at or now > until or counts.embedded == counts.chunks:
            tell_at = now + TELL_EVERY
            context.logger.info("embedded %d of %d passages with %s", counts.embedded, counts.chunks, model)
        if now > until:
            return


async def embed_question(context: Context, model: str, question: str) -> bytes:
    """Return the question's vector. Raises Refused, which names the setting, if ``model`` cannot embed."""
    try:
        [vector] = await _embed(context, model, [question])
        return pack(vector)
    except (AskFailed, ValueError) as error:
        raise Refused(
            f"model '{model}' does not embed text ({error}). Name one that does as 'embedding_model' in the plugin's "
            "settings; llama-server embeds with --embeddings and, for a chat model, --pooling mean"
        ) from error


async def _embed(context: Context, model: str, texts: Sequence[str]) -> list[list[float]]:
    """Return vectors of ``texts``. Too many are sent in halves; of a single text that is too long only the start is
    embedded.
    """
    try:
        return await context.appliance.embed(model, texts)
    except AskFailed as error:
        if error.status not in TOO_LARGE:
            raise
        if len(texts) > 1:
            middle = len(texts) // 2
            first = await _embed(context, model, texts[:middle])
            return first + await _embed(context, model, texts[middle:])
        if len(texts[0]) <= SHORTEST:
            raise
        return await _embed(context, model, [texts[0][: len(texts[0]) // 2]])
