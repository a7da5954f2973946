"""``/api/engines``: the table of engines over HTTP, and what cannot be done by it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from engine_folders import HERE, Lie, Listed, make_build, tell
from engine_runs import builds_in
from quart_trio import QuartTrio
from waiting import PATIENCE, until

from appliance.core.versions import StepDone, UpdateBegun
from appliance.errors import ApplianceError
from appliance.features.engines.owner import open_engines
from appliance.features.engines.routes import engine_routes, seats_in_use
from appliance.features.engines.shelf import Shelf, StateFile
from appliance.fleet.status import ChildStatus
from appliance.http import errors
from appliance.store.shelf import alone

CARD = Listed(name="Vulkan0")
CPU_SEAT = f"{HERE}-cpu/b100:CPU"


@asynccontextmanager
async def routes(root: Path, *, may_choose: bool = False) -> AsyncGenerator[QuartTrio]:
    """The routes alone, with the owner of the engines in this folder."""

    async def refuse(error: ApplianceError) -> tuple[str, int]:
        info = errors.describe(error)
        return errors.body(info).decode(), info.code

    async with open_engines(partial(builds_in, root), StateFile(root)) as engines:
        app = QuartTrio("appliance.http", static_folder=None)
        app.register_error_handler(ApplianceError, refuse)
        running = {"starter": "a seat"}
        app.register_blueprint(engine_routes(engines, lambda: running, lambda: None, may_choose=may_choose))
        yield app


async def ask(app: QuartTrio, method: str, path: str, body: object = None) -> tuple[int, Any]:
    client = app.test_client()
    response = await client.open(path, method=method, data=json.dumps(body).encode() if body is not None else None)
    return response.status_code, json.loads(await response.get_data())


async def test_the_table_tells_of_every_seat_and_of_the_one_in_use(tmp_path: Path) -> None:
    make_build(tmp_path, "cpu", "b100")
    card = make_build(tmp_path, "vulkan", "b100", devices=[CARD], lie=Lie(generation_speed=900, prompt_speed=9000))
    async with routes(tmp_path) as app:
        status, before = await ask(app, "GET", "/api/engines")
        assert status == 200
        assert {build["id"] for build in before["builds"]} == {f"{HERE}-cpu/b100", f"{HERE}-vulkan/b100"}
        assert all(seat["standing"] == "untried" for build in before["builds"] for seat in build["seats"])
        assert before["reason"].startswith("a first choice")
        assert before["may_choose"] is False
        status, seen = await ask(app, "POST", "/api/engines/probe")
        assert f"{HERE}-vulkan/b100:Vulkan0" in seen["order"]
        status, after = await ask(app, "POST", "/api/engines/prove")
        assert status == 200
        assert after["used"] == f"{HERE}-vulkan/b100:Vulkan0"
        (row,) = [seat for build in after["builds"] for seat in build["seats"] if seat["used"]]
        assert (row["standing"], round(row["generation_speed"])) == ("proven", 900)
        assert abs(row["tried_at"] - time.time()) < PATIENCE
        assert after["running"] == {"starter": "a seat"}
        tell(card, Lie(devices=[CARD], work="garbage"))
        status, again = await ask(app, "POST", "/api/engines/prove", {"seats": [f"{HERE}-vulkan/b100:Vulkan0"]})
        assert again["used"] == f"{HERE}-cpu/b100:CPU"
        (row,) = [seat for build in again["builds"] for seat in build["seats"] if seat["standing"] == "failed"]
        assert row["id"] == f"{HERE}-vulkan/b100:Vulkan0"
        assert row["why"]


async def test_nothing_but_seats_that_are_there_can_be_named(tmp_path: Path) -> None:
    make_build(tmp_path)
    async with routes(tmp_path) as app:
        for body, said in (
            ({"seats": ["nobody"]}, "there is no engine 'nobody'"),
            ({"seats": "cpu"}, "cannot be used"),
            ({"seats": [], "path": "/bin/sh"}, "unknown field `path`"),
        ):
            status, answer = await ask(app, "POST", "/api/engines/prove", body)
            assert status in (400, 404)
            assert said in answer["error"]["message"]


async def test_a_trial_under_way_is_named(tmp_path: Path) -> None:
    make_build(tmp_path, "cpu", "b100", lie=Lie(load_delay=1))
    async with routes(tmp_path) as app, trio.open_nursery() as nursery:

        async def trying() -> str:
            return (await ask(app, "GET", "/api/engines"))[1]["trying"]

        nursery.start_soon(ask, app, "POST", "/api/engines/prove")
        assert await until(trying, bool) == CPU_SEAT
        assert await until(trying, lambda seat: not seat) == ""


async def test_a_client_chooses_among_what_is_proven_and_nothing_else(tmp_path: Path) -> None:
    make_build(tmp_path, "cpu", "b100", lie=Lie(generation_speed=900, prompt_speed=9000))
    make_build(tmp_path, "vulkan", "b100", devices=[CARD], lie=Lie(generation_speed=90, prompt_speed=900))
    async with routes(tmp_path, may_choose=True) as app:

        async def use(status: int, **body: object) -> Any:
            told, answer = await ask(app, "POST", "/api/engines/use", body)
            assert told == status, answer
            return answer

        await ask(app, "POST", "/api/engines/probe")
        assert "is not proven here" in (await use(400, engine="vulkan"))["error"]["message"]
        assert (await ask(app, "POST", "/api/engines/prove"))[1]["used"] == CPU_SEAT
        for engine in ("/bin/sh", "nobody", ""):
            assert "is not an engine of this machine" in (await use(400, engine=engine))["error"]["message"]
        assert "unknown field" in (await use(400, engine="cpu", path="/bin/sh"))["error"]["message"]
        assert "cannot be pinned" in (await use(400, engine="auto", pinned=True))["error"]["message"]
        async with alone(Shelf(tmp_path)):
            assert "engines' command is at work now" in (await use(409, engine="vulkan"))["error"]["message"]
        chosen = await use(200, engine=f"{HERE}-vulkan/b100:Vulkan0", pinned=True)
        assert (chosen["used"], chosen["pinned"]) == (f"{HERE}-vulkan/b100:Vulkan0", True)
        assert StateFile(tmp_path).read().use == f"{HERE}-vulkan/b100:Vulkan0"
        assert (await use(200, engine="vulkan", model="m"))["models"] == {"m": "vulkan"}
        assert (await use(200, engine="auto"))["used"] == CPU_SEAT


async def test_a_client_returns_to_the_build_before_the_update(tmp_path: Path) -> None:
    make_build(tmp_path, "cpu", "b100")
    make_build(tmp_path, "cpu", "b200")
    async with routes(tmp_path, may_choose=True) as app:
        status, answer = await ask(app, "POST", "/api/engines/rollback")
        assert (status, "there is nothing to go back to" in answer["error"]["message"]) == (400, True)
        update = UpdateBegun(build=f"{HERE}-cpu/b200", old=f"{HERE}-cpu/b100", at=1.0)
        StateFile(tmp_path).apply([update, *[StepDone(2.0)] * 5])
        status, answer = await ask(app, "POST", "/api/engines/rollback", {"backend": "cpu"})
        assert status == 200
        assert {build["id"]: build["role"] for build in answer["builds"]} == {
            f"{HERE}-cpu/b100": "current",
            f"{HERE}-cpu/b200": "withdrawn",
        }


def test_only_models_with_a_process_count_as_running() -> None:
    statuses = [
        ChildStatus(model="a", state="loaded", pid=1, seat="x:CPU"),
        ChildStatus(model="b", state="unloaded", seat="x:CPU"),
        ChildStatus(model="c", state="loaded", pid=2),
    ]
    assert seats_in_use(statuses) == {"a": "x:CPU"}


@pytest.mark.skipif(sys.platform == "win32", reason="it counts starts in a shell script")
async def test_a_flood_of_requests_starts_no_flood_of_engines(tmp_path: Path) -> None:
    folder = make_build(tmp_path, "cpu", "b100", lie=Lie(list_delay=0.5))
    count = tmp_path / "starts"
    program, manifest = folder / "llama-server", folder / "engine.json"
    program.write_text(program.read_text().replace("\n", f"\necho x >> {count}\n", 1))
    listed = json.loads(manifest.read_text())
    del listed["files"]
    manifest.write_text(json.dumps(listed))
    async with routes(tmp_path) as app:

        async def flood(path: str) -> list[int]:
            statuses: list[int] = []

            async def send() -> None:
                statuses.append((await ask(app, "POST", path))[0])

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(send)
            return statuses

        assert await flood("/api/engines/probe") == [200] * 20
        assert len(count.read_text().splitlines()) <= 2, "one that was under way, and one for all others"
        assert sorted(await flood("/api/engines/prove")) == [200] * 4 + [409] * 16
        assert (await ask(app, "POST", "/api/engines/prove"))[0] == 200
