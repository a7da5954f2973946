"""Digests of this box's models, for the other boxes of its pool; see `core.models.identity`.

A file of many gigabytes is not read whole: its size, its head and pieces from all over it tell it from another one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import trio

from appliance.catalog.found import all_shards
from appliance.core.models.identity import FileIdentity, identity_of
from appliance.core.models.model import Model, started_with
from appliance.store.file_hashes import identity_of as file_now
from appliance.store.model_files import open_regular

HEAD = 16 << 20
"""Bytes from the beginning on that are read: the description of every known model, its vocabulary and template."""
PIECE = 4096
PIECES = 512
"""Number of pieces of the rest. A file that has less is read whole."""
MOST_LETTERS = 4096
"""Letters of a path; longer words name no file."""
MOST_FILES = 1000
"""Files of one folder that stands for a model."""
MOST_KNOWN = 10_000
Key = tuple[object, ...]


class ModelIdentities:
    """Remembers digests until a file changes. ``engine_args`` are the options of every model on disk."""

    def __init__(self, engine_args: tuple[str, ...]) -> None:
        self.engine_args = engine_args
        self._known: dict[Key, tuple[str, tuple[FileIdentity, ...]]] = {}
        self._prints: dict[FileIdentity, str] = {}
        self._turn = trio.Lock()

    def current(self, model: Model) -> str:
        """Return what the model is, empty while that is not known, or no file is any more what it was. Looks at the
        disk, which is quick.
        """
        found = self._known.get(self._key(model))
        if found is None:
            return ""
        try:
            return found[0] if all(file_now(Path(file.path)) == file for file in found[1]) else ""
        except OSError:
            return ""

    async def of(self, model: Model) -> str:
        """Return what the model is, empty if its file is not the one that the catalog has seen."""
        async with self._turn:
            if not (known := self.current(model)):
                await trio.to_thread.run_sync(self._compute, model)
                known = self.current(model)
        return known

    async def tell(self, models: Iterable[Model], within: float) -> Mapping[str, str]:
        """Return by id what these models are. Those that take longer than ``within`` seconds are empty: ask again."""
        until = trio.current_time() + within
        found: dict[str, str] = {}
        for model in models:
            found[model.id] = self.current(model) if trio.current_time() > until else await self.of(model)
        return found

    def _key(self, model: Model) -> Key:
        config = model.config
        if config is None:
            return (*started_with(model), model.fetch, self.engine_args)
        return tuple(config.argv), tuple(config.env), config.proxy, config.use_model_name, config.engine

    def _compute(self, model: Model) -> None:
        """Waits for the disk."""
        files: list[FileIdentity] = []

        def print_of(path: str, is_program: bool) -> str | None:
            place = shutil.which(path) if is_program else path
            found = _files(place) if place and (not is_program or _begins(place, b"#!")) else []
            files.extend(found)
            return ",".join(map(self._print, found)) or None

        try:
            told = identity_of(model, self.engine_args, print_of)
        except (OSError, ValueError):
            return
        own = {*all_shards(Path(model.path))} if model.config is None and model.path else ()
        if own and model.size and sum(file.size for file in files if file.path in own) != model.size:
            return
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
            self._prints.clear()
        self._known[self._key(model)] = told, tuple(files)

    def _print(self, file: FileIdentity) -> str:
        if file not in self._prints:
            self._prints[file] = _digest(file)
        return self._prints[file]


def made_of(model: Model) -> tuple[object, ...]:
    """Return all that a process of the model is made of if it starts now. Looks at the disk, which is quick."""
    config = model.config
    words = (model.path, model.mmproj or "") if config is None else tuple(config.argv)
    around = model.args if config is None else (*config.env, config.proxy)
    try:
        return words, around, [file for word in words for file in _files(word)]
    except OSError:
        return words, around


def _files(path: str) -> list[FileIdentity]:
    """Return the files that a word names: a file with its other parts, or those of a folder with a model.

    Raises OSError.
    """
    if not 0 < len(path) < MOST_LETTERS or "\0" in path or not os.path.exists(path):  # noqa: PTH110  most name nothing
        return []
    place = Path(path)
    if place.is_file():
        return [file_now(Path(part)) for part in all_shards(place)]
    if not (place / "config.json").is_file():
        return []
    return [file_now(each) for each in sorted(place.iterdir())[:MOST_FILES] if each.is_file()]


def _begins(path: str, words: bytes) -> bool:
    with open_regular(path) as file:
        return file.read(len(words)) == words


def _digest(file: FileIdentity) -> str:
    """Raises OSError."""
    found = hashlib.sha256(b"%d " % file.size)
    with open_regular(file.path) as opened:
        whole = file.size <= HEAD + PIECES * PIECE
        left = file.size if whole else HEAD
        while left > 0 and (data := opened.read(min(left, 1 << 20))):
            found.update(data)
            left -= len(data)
        for piece in () if whole else range(1, PIECES + 1):
            opened.seek(HEAD + (file.size - HEAD - PIECE) * piece // PIECES)
            found.update(opened.read(PIECE))
    return found.hexdigest()
