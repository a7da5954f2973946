"""Every reader of a file that somebody else may have made ends, whatever kind of thing has its name."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from kept_files import context, opened
from msgspec import structs
from odd_files import KINDS, assert_ends

from appliance.catalog.configuration import read_sources
from appliance.catalog.found import read_start
from appliance.features.contexts.core.kept import manifest_of
from appliance.features.engines.shelf import StateFile
from appliance.features.ollama.known import read_derived
from appliance.features.pool.pool_file import read_pool
from appliance.features.streams.files import Folder
from appliance.store.file_hashes import FileHashes
from appliance.store.model_files import write_whole
from appliance.store.partial_file import holds

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")

NAME = "ab" * 16


def kept_contexts(path: Path) -> None:
    async def start() -> None:
        async with opened(path.parent):
            pass

    trio.run(start)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "pool": ("pool.json", read_pool),
    "derived models": ("derived.json", read_derived),
    "engine state": ("state.json", lambda path: StateFile(path.parent).read()),
    "hashes": ("hashes.json", lambda path: FileHashes(path).compute(Path(__file__), lambda _: None)),
    "a hashed file": ("x.gguf", lambda path: FileHashes(path.with_name("h")).compute(path, lambda _: None)),
    "a stream": ("stream-1.sse", lambda path: Folder(path.parent, 100, 100).load()),
    "a manifest": (f"{NAME}.json", kept_contexts),
    "a kept context": (f"{NAME}.kv", kept_contexts),
    "a download": ("x.part", lambda path: holds(path, hashlib.sha256().hexdigest(), None, lambda: None)),
    "a configuration": ("a.yaml", lambda path: read_sources(None, path.parent)),
    "a reference": ("main", lambda path: read_start(path, 64)),
    "a file that is written": (".whole.new", lambda path: write_whole(path.with_name("whole"), b"data", private=True)),
    "one for others": (".whole.new", lambda path: write_whole(path.with_name("whole"), b"data")),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_never_waits_for_what_is_no_file(
    reader: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    name, read = READERS[reader]
    if reader == "a kept context":
        (folder / f"{NAME}.json").write_bytes(manifest_of(structs.replace(context(), name=NAME)))
    assert_ends(read, folder / name, kind)
