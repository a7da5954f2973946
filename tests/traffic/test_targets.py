"""What a name means is kept, and asked anew as soon as anything has changed that it depends on."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice, product
from pathlib import Path

import pytest
from gguf_files import write_model

from appliance.catalog.catalog import Catalog
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import NoSupply
from appliance.core.config.load import SourceFile, load
from appliance.core.config.types import Config
from appliance.core.settings import FleetSettings
from appliance.errors import InvalidModelFile, ModelNotFound
from appliance.features.pool.peers import Peers, open_peers
from appliance.fleet.owner import open_fleet
from appliance.traffic.targets import MAX_KNOWN, ActiveProfile, Target, Targets


def configuration(**top: object) -> Config:
    models = {name: {"cmd": f"{name} --port ${{PORT}}", "aliases": [f"the {name}"]} for name in ("a", "b")}
    models |= {"c": {"cmd": "c --port ${PORT}", "filters": {"stripParams": "top_k"}, "useModelName": "cc"}}
    return load([SourceFile("config.yaml", json.dumps({"models": models, **top}))], {}).require()


class World:
    def __init__(self, catalog: Catalog, peers: Peers, profile: ActiveProfile, targets: Targets) -> None:
        self.catalog = catalog
        self.peers = peers
        self.profile = profile
        self.targets = targets

    async def ask(self, name: str) -> Target:
        async with self.targets.chosen(name) as target:
            return target

    async def model(self, name: str) -> str | None:
        target = await self.ask(name)
        return target.model.id if target.model is not None else None


@asynccontextmanager
async def world_of(config: Config, folder: Path | None = None) -> AsyncGenerator[World]:
    async with open_fleet(FleetSettings(), None) as fleet, open_peers(config) as peers:
        catalog, profile = Catalog(ModelFolders(starter=None, models_dir=folder), config), ActiveProfile()
        yield World(catalog, peers, profile, Targets(catalog, fleet, peers, NoSupply(), profile))


async def test_a_name_is_known_from_the_second_time_on() -> None:
    async with world_of(configuration()) as world:
        assert world.targets.known("the a") is None
        first = await world.ask("the a")
        assert await world.ask("the a") is first
        assert world.targets.known("the a") is first
        assert (await world.model("the b"), await world.model("a")) == ("b", "a")


async def test_another_configuration_changes_what_a_name_means() -> None:
    async with world_of(configuration()) as world:
        before = await world.ask("a")
        config = configuration(models={"x": {"cmd": "x --port ${PORT}", "aliases": ["a"]}})
        world.catalog.adopt(config)
        assert await world.model("a") == "x"
        with pytest.raises(ModelNotFound):
            await world.ask("b")
        world.catalog.adopt(configuration())
        after = await world.ask("a")
        assert after == before
        assert after is not before


async def test_a_profile_changes_what_a_name_means_while_it_is_active() -> None:
    config = configuration(profiles={"p": {"pins": {"a": "b", "c": ""}}})
    async with world_of(config) as world:
        assert await world.model("a") == "a"
        assert await world.model("c") == "c"
        world.profile.choose("p")
        assert await world.model("a") == "b"
        assert (await world.ask("a")).renamed
        with pytest.raises(ModelNotFound):
            await world.ask("c")
        world.profile.choose(None)
        assert await world.model("a") == "a"
        assert await world.model("c") == "c"


async def test_what_peers_have_changes_what_a_name_means() -> None:
    def with_peer(*models: str) -> Config:
        return configuration(peers={"p": {"proxy": "http://127.0.0.1:1", "models": models}})

    async with world_of(with_peer("far")) as world:
        assert (await world.ask("far")).peers == (("p", "far"),)
        assert world.targets.known("far") is not None
        world.peers.adopt(with_peer("other"))
        assert world.targets.known("far") is None


async def test_a_file_that_comes_and_one_that_is_damaged_later_are_seen(tmp_path: Path) -> None:
    async with world_of(configuration(), tmp_path) as world:
        with pytest.raises(ModelNotFound):
            await world.ask("new")
        path = write_model(tmp_path / "new.gguf")
        world.catalog.scan()
        assert await world.model("new") == "new"
        assert await world.model("NEW") == "new"
        path.write_bytes(b"no model")
        world.catalog.scan()
        for _ in range(2):
            with pytest.raises(InvalidModelFile):
                await world.ask("new")


async def test_a_selectors_answer_depends_on_who_is_asked_at_the_moment() -> None:
    groups = {"g": {"swap": False, "members": ["a", "b"]}}
    spill = {"strategy": "spillover", "targets": ["a", "b"], "settings": {"spillover": 1}}
    async with world_of(configuration(selectors={"s": spill}, groups=groups)) as world, AsyncExitStack() as under_way:
        assert [await world.model("s") for _ in range(3)] == ["a"] * 3, "one after the other they all have room"
        first = await under_way.enter_async_context(world.targets.chosen("s"))
        second = await under_way.enter_async_context(world.targets.chosen("s"))
        assert [target.model.id for target in (first, second) if target.model is not None] == ["a", "b"]
        assert first.selector == "s"
        await under_way.aclose()
        assert await world.model("s") == "a", "what they had reserved is given back"


async def test_names_that_are_kept_are_bounded(tmp_path: Path) -> None:
    write_model(tmp_path / "abcdefghijklmn.gguf")
    async with world_of(configuration(), tmp_path) as world:
        world.catalog.scan()
        pairs = zip("abcdefghijklmn", "ABCDEFGHIJKLMN", strict=True)
        names = ["".join(letters) for letters in islice(product(*pairs), MAX_KNOWN + 5)]
        for name in names:
            assert await world.model(name) == "abcdefghijklmn"
        assert 0 < sum(world.targets.known(name) is not None for name in names) <= MAX_KNOWN


async def test_the_name_that_is_sent() -> None:
    async with world_of(configuration()) as world:
        for name, sent in (("a", None), ("the a", None), ("c", "cc")):
            assert world.targets.sent_name(await world.ask(name)) == sent
