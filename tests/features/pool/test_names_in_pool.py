"""Names in a pool: what each box means by them, where boxes have different models under one name."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
import trio
from gguf_files import write_model
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.catalog.catalog import Catalog, Snapshot
from appliance.catalog.identities import HEAD, PIECES
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import NoSupply
from appliance.core.models.holders import Holder, groups_of
from appliance.core.models.model import Model
from appliance.core.settings import FleetSettings
from appliance.errors import ModelNotFound, NotPlaced
from appliance.features.pool.core.remarks import names_apart
from appliance.features.pool.peers import Peers, PoolSide, open_peers
from appliance.fleet.owner import open_fleet
from appliance.http.control.listing import View, tell_models
from appliance.traffic.targets import ActiveProfile, Target, Targets
from appliance.upstream.client import address_of

Files = dict[str, dict[str, int]]  # by box and name, which of two files the model is


class Box:
    """One box, as far as it knows what names mean."""

    def __init__(self, name: str, catalog: Catalog, peers: Peers, targets: Targets, view: View) -> None:
        self.name = name
        self.catalog = catalog
        self.peers = peers
        self.targets = targets
        self.view = view

    async def listing(self, *, older: bool) -> bytes:
        return msgspec.json.encode(await tell_models(self.view, identities=not older))

    async def ask(self, name: str) -> Target:
        async with self.targets.chosen(name) as target:
            return target


def write(file: Path, content: int) -> None:
    """Files of different content have the same size, head and time."""
    write_model(file, weights=4)
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(bytes([content]))
    os.utime(file, (1_000_000, 1_000_000))


@asynccontextmanager
async def pool(folder: Path, files: Files, older: frozenset[str]) -> AsyncGenerator[dict[str, Box]]:
    async with AsyncExitStack() as stack:
        boxes: dict[str, Box] = {}
        for name, models in files.items():
            fleet = await stack.enter_async_context(open_fleet(FleetSettings(), None))
            peers = await stack.enter_async_context(open_peers(None))
            catalog, profile = Catalog(ModelFolders(starter=None)), ActiveProfile()
            found = [Model(id=model, source="path", path=str(folder / str(models[model]))) for model in models]
            catalog.snapshot = Snapshot(found)
            view = View(fleet, catalog, peers, profile)
            boxes[name] = Box(name, catalog, peers, Targets(catalog, fleet, peers, NoSupply(), profile), view)
        lists = {name: await box.listing(older=name in older) for name, box in boxes.items()}
        for name, box in boxes.items():
            others = {b: address_of("http://127.0.0.1:9", b) for b in boxes if b != name}
            box.peers.adopt_members(others, PoolSide(me=name))
            for peer in box.peers.members():
                peer.learn(lists[peer.id])
        yield boxes


POOLS = st.fixed_dictionaries({
    box: st.dictionaries(st.sampled_from(("same", "other", "b2/same")), st.integers(1, 2), max_size=3)
    for box in ("b1", "b2", "b3")
})  # fmt: skip


def places(target: Target, asked: Box, files: Files) -> set[tuple[str, str]]:
    """The boxes that may answer, with the name of the model that each answers with."""
    found = set(target.boxes) | ({(asked.name, target.model.id)} if target.model is not None else set())
    return {(box, at_door(box, name, files)) for box, name in found}


def at_door(box: str, name: str, files: Files) -> str:
    """The name that a box looks up when another one asks it for this name."""
    rest = name.removeprefix(f"{box}/")
    return rest if rest in files[box] else name


async def check_box_names(boxes: dict[str, Box], files: Files) -> None:
    for asked in boxes.values():
        for box, name in ((box, name) for box, models in files.items() for name in models):
            means_another_box = name == "b2/same" and "same" in files["b2"] and box != "b2"
            try:
                target = await asked.ask(f"{box}/{name}")
            except NotPlaced:
                assert means_another_box  # a model that is called like another box's is nobody's
                continue
            assert places(target, asked, files) == {(box, at_door(box, name, files))}
            assert asked.targets.known(f"{box}/{name}") is target


async def check_bare_names(asked: Box, files: Files, older: frozenset[str]) -> None:
    for name in {name for models in files.values() for name in models}:
        if name == "b2/same" and "same" in files["b2"]:
            continue
        contents = {box: models[name] for box, models in files.items() if name in models}
        first = asked.name if asked.name in contents else next(iter(contents))
        is_same = {
            b: b == first or (contents[b] == contents[first] and not older & ({b, first} - {asked.name}))
            for b in contents
        }
        if asked.name in contents or all(is_same.values()):
            alike = {(box, name) for box, same in is_same.items() if same}
            assert places(await asked.ask(name), asked, files) == alike
        else:
            with pytest.raises(ModelNotFound) as raised:
                await asked.ask(name)
            assert all(box in str(raised.value) for box in contents)
            assert f"/{name}'" in str(raised.value)


@settings(max_examples=60, deadline=None)
@given(files=POOLS, older=st.frozensets(st.sampled_from(("b1", "b2", "b3")), max_size=1))
def test_a_name_is_one_model_or_told_apart_and_the_name_of_a_boxs_model_is_the_same_everywhere(
    files: Files, older: frozenset[str]
):
    async def check() -> None:
        with TemporaryDirectory() as folder:
            for content in (1, 2):
                write(Path(folder, str(content)), content)
            async with pool(Path(folder), files, older) as boxes:
                await check_box_names(boxes, files)
                for asked in boxes.values():
                    await check_bare_names(asked, files, older)
                    for entry in (await tell_models(asked.view, identities=False)).data:
                        await asked.ask(entry.id)  # what is listed has one meaning

    trio.run(check)


TOLD = st.sampled_from((None, "", "x", "y"))


@given(boxes=st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("mn"), TOLD)))
def test_only_boxes_that_tell_the_same_are_one_group(boxes: dict[str, dict[str, str | None]]):
    for name in "mn":
        holders = [Holder(box, models[name]) for box, models in boxes.items() if name in models]
        groups = groups_of(holders)
        assert sorted(one.box for group in groups for one in group) == sorted(one.box for one in holders)
        for group in groups:
            assert len(group) == 1 or group[0].identity in ("x", "y")
            assert len({one.identity for one in group}) == 1
        known = [one for one in holders if one.identity != ""]
        assert (name in names_apart(boxes)) == (len(groups_of(known)) > 1)


async def test_a_file_that_was_replaced_is_another_model_at_once(tmp_path: Path):
    file = tmp_path / "same.gguf"
    write(file, 1)
    catalog = Catalog(ModelFolders(starter=None, models_dir=tmp_path))
    catalog.scan()
    model = catalog.snapshot.require("same")
    first = await catalog.identities.of(model)
    assert first == catalog.identities.current(model)
    write(tmp_path / "next", 2)
    (tmp_path / "next").replace(file)
    assert catalog.identities.current(model) == ""
    assert await catalog.identities.of(model) not in ("", first)


async def test_pieces_of_a_large_file_are_compared_wherever_it_differs(tmp_path: Path):
    catalog = Catalog(ModelFolders(starter=None))
    size, found = HEAD * 2, set[str]()
    for at in (None, HEAD - 1, HEAD + (size - HEAD) // 2, size - 1):
        file = tmp_path / f"{at}.gguf"
        with file.open("wb") as opened:
            opened.truncate(size)
            for place in range(max(at - size // PIECES, 0), min(at + size // PIECES, size), 512) if at else ():
                opened.seek(place)
                opened.write(b"x")
        began = time.monotonic()
        found.add(await catalog.identities.of(Model(id="m", source="path", path=str(file))))
        assert time.monotonic() - began < 5
    assert len(found) == 4
