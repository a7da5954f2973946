"""The answers for routers in front: readiness apart from life, one model as a whole server, and how busy it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from fleet_harness import InOrder
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from swap_harness import Configure

from appliance.catalog.catalog import Snapshot
from appliance.core.models.model import Model
from appliance.features.routers.answers import server_info
from appliance.fleet.status import ChildStatus

LOADS = "/v1/loads?include=core,disagg,queues,memory"


async def reason(server: Appliance) -> str | None:
    """Return why ``GET /ready`` says no, None if it says yes. The program lives in each case."""
    assert (await server.ask("GET", "/health")).status == 200
    answer = await server.ask("GET", "/ready")
    if answer.status == 200:
        assert answer.json == {"status": "ready"}
        return None
    assert (answer.status, answer.json["status"]) == (503, "not ready")
    assert answer.json["message"]
    return answer.json["reason"]


def ids(answer: Answer) -> list[str]:
    return [entry["id"] for entry in answer.json["data"]]


async def test_a_drained_server_lives_and_answers_and_is_not_ready(server: Appliance):
    assert await reason(server) is None
    server.traffic.lifetime.drain(True)
    assert await reason(server) == "draining"
    assert (await server.ask("POST", CHAT, chat())).status == 200
    server.traffic.lifetime.end_followers()  # as the first stop signal does
    assert await reason(server) == "stopping"


async def test_without_an_engine_a_server_is_not_ready_if_a_model_needs_one(
    open_server: OpenServer, configured: Configure
):
    """A configured command does not."""
    async with open_server(chooser=InOrder()) as server:
        assert await reason(server) == "no_seat"
        server.catalog.snapshot = Snapshot(models=[])
        assert await reason(server) is None
    async with open_server(config=configured({"alpha": {}}), chooser=InOrder()) as server:
        assert await reason(server) is None


async def test_one_model_alone_is_ready_when_it_is_loaded(open_server: OpenServer, fake_model: Path):
    only = model(fake_model, "only")
    async with open_server(models=[only], single="only") as server:
        first = await server.ask("GET", "/ready")
        assert (first.status, first.json["reason"]) == (503, "starting")
        await server.fleet.load(only)
        assert await reason(server) is None


async def test_strangers_learn_whether_it_is_ready_and_nothing_else(open_server: OpenServer):
    async with open_server(api_keys=("k",)) as server:
        for path in ("/ready", "/worker/alpha/ready", "/worker/nope/health"):
            assert (await server.ask("GET", path)).status == 200
        for path in ("/get_server_info", "/model_info", LOADS, "/worker/alpha/v1/models", "/worker/alpha/v1/loads"):
            assert (await server.ask("GET", path)).status == 401
        assert (await server.ask("GET", "/worker/alpha/ready", headers=[("Host", "evil.example")])).status == 403
        assert (await server.ask("POST", f"/worker/alpha{CHAT}", chat())).status == 401


@pytest.mark.parametrize("name", ["alpha", "al"])
async def test_below_worker_a_model_is_a_whole_server(server: Appliance, name: str):
    assert ids(await server.ask("GET", f"/worker/{name}/v1/models")) == ["alpha"]
    answer = await server.ask("POST", f"/worker/{name}{CHAT}", chat())
    assert (answer.status, answer.json["model"]) == (200, "alpha")
    assert (await server.ask("GET", f"/worker/{name}/get_server_info")).json["served_model_name"] == "alpha"
    told = (await server.ask("GET", f"/worker/{name}/model_info")).json
    assert told == (await server.ask("GET", f"/worker/{name}/get_model_info")).json
    assert (told["is_generation"], told["has_image_understanding"]) == (True, False)
    assert (await server.ask("GET", f"/worker/{name}/server_info")).status == 404  # it would mean SGLang
    assert (await server.ask("GET", f"/worker/{name}/version")).status == 404  # it would mean vLLM


@pytest.mark.parametrize(("slots", "told"), [(3, {"max_running_requests": 3, "context_length": 2048}), (0, {})])
def test_figures_that_are_not_known_are_left_out(slots: int, told: dict[str, int]):
    about = Model(id="m", source="path")
    child = ChildStatus(model="m", state="loaded", slots=slots, slot_context=2048)
    assert server_info(about, child) == {**server_info(about, None), **told}


async def test_a_name_with_slashes_is_one_part_of_the_path(open_server: OpenServer, fake_model: Path):
    named = model(fake_model, "org/repo:Q4")
    async with open_server(models=[named, model(fake_model, "beta")]) as server:
        assert ids(await server.ask("GET", "/worker/org%2Frepo%3AQ4/v1/models")) == ["org/repo:Q4"]
        assert (await server.ask("GET", "/worker/org/model_info")).status == 404
        assert ids(await server.ask("GET", "/worker/nope/v1/models")) == []


async def test_an_api_prefix_stands_before_worker_and_a_model_says_what_it_can_see(
    open_server: OpenServer, fake_model: Path
):
    sees = Model(id="eyes", source="path", path=str(fake_model), input_modalities=("text", "image"))
    async with open_server(models=[sees], api_prefix="/a") as server:
        assert (await server.ask("GET", "/a/model_info")).json["has_image_understanding"] is True
        assert ids(await server.ask("GET", "/a/worker/eyes/v1/models")) == ["eyes"]
        assert (await server.ask("GET", "/worker/eyes/v1/models")).status == 404


async def test_loads_are_those_of_the_model_that_the_path_names(server: Appliance):
    async with server.begun(chat(stream=True, tokens=1000, token_delay=0.02)):
        busy = (await server.ask("GET", f"/worker/alpha{LOADS}")).json["loads"][0]
        idle = (await server.ask("GET", f"/worker/beta{LOADS}")).json["loads"][0]
        both = (await server.ask("GET", LOADS)).json
    assert (busy["num_running_reqs"], busy["num_waiting_reqs"], busy["num_total_reqs"]) == (1, 0, 1)
    assert (idle["num_running_reqs"], idle["num_total_reqs"]) == (0, 0)
    assert both["loads"] == [busy]
    assert both["aggregate"]["total_running_reqs"] == 1
