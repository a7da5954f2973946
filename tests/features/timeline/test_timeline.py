"""The timeline of the running program: what it decided is there once, with the reason, for scripts and for pages."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import trio
from event_reader import feed
from fleet_harness import InOrder, fake_engine
from http_harness import CHAT, Appliance, OpenServer, chat, model
from reload_harness import RELOAD, reload
from swap_harness import Configure
from test_fallback import DIES
from waiting import PATIENCE

from appliance.core.settings import FleetSettings

MODELS = ["a", "b", "c", "d"]
REQUESTS = 150
SEED = 20261127


async def timeline(server: Appliance, query: str = "after=0&limit=1000") -> list[dict[str, object]]:
    return (await server.good("GET", f"/api/history?{query}")).json["data"]


@pytest.mark.slow
async def test_a_run_of_random_requests(open_server: OpenServer, fake_model: Path) -> None:
    """Evictions, refusals and fallbacks, each once, with the reason that the client or the counter has got."""
    chance, seats = random.Random(SEED), InOrder(fake_engine("gpu", *DIES), fake_engine("cpu"))
    models = [model(fake_model, name) for name in MODELS]
    fleet = FleetSettings(models_max=2, queue_limit=3, stop_timeout=2, patience=0.5)
    refused: Counter[str] = Counter()
    moved: Counter[str] = Counter()

    async def ask(server: Appliance, number: int, name: str) -> None:
        body = chat(name, tokens=8) | {"messages": [{"role": "user", "content": f"question {number}"}]}
        answer = await server.ask("POST", CHAT, body, patience=PATIENCE)
        if answer.status == 200:
            moved[name] += (answer.header("X-Appliance-Fallback") or "").startswith("replayed; from=gpu; on=cpu")
        else:
            refused[answer.error["message"]] += 1

    async with open_server(models=models, fleet=fleet, chooser=seats) as server:
        for begun in range(0, REQUESTS, 6):
            if begun % 30 == 0:
                seats.engines.sort(key=lambda each: each.seat, reverse=True)  # new processes die again
            async with trio.open_nursery() as nursery:
                for number in range(begun, begun + 6):
                    nursery.start_soon(ask, server, number, chance.choice(MODELS))
        told = await timeline(server)
        metrics = (await server.ask("GET", "/metrics")).body.decode()

    assert [entry["id"] for entry in told] == list(range(1, len(told) + 1))
    evicted = [entry for entry in told if entry["kind"] == "evicted"]
    counted = Counter[str]()
    for name, number in re.findall(r'evictions_total\{model="(.*?)".*?\} (\d+)', metrics):
        counted[name] += int(number)
    assert Counter(entry["model"] for entry in evicted) == +counted
    assert len(evicted) > 10
    for entry in evicted:
        assert entry["cause"]["rule"] == "number"
        assert entry["why"].startswith(f"{entry['model']} went for {entry['cause']['by']}: 2 models may run at once, ")
    expected: Counter[str] = Counter()
    for entry in told:
        if entry["kind"] == "refused":
            expected[entry["error"]] += entry["requests"]
            assert entry["error"] in entry["why"]
    assert expected == refused
    assert refused
    fallen = Counter(entry["model"] for entry in told if entry["kind"] == "fallback")
    assert fallen == +moved
    assert moved.total() > 1


async def test_questions(open_server: OpenServer, fake_model: Path) -> None:
    """`tests/features/timeline/test_history_store.py` has the answers to every question."""
    models = [model(fake_model, "a"), model(fake_model, "b")]
    async with open_server(models=models, fleet=FleetSettings(models_max=1, stop_timeout=2)) as server:
        for each in models:
            await server.fleet.load(each)
        await server.ask("POST", "/models/unload", {"model": "b", "wait": True})
        told = await timeline(server, "")
        expected = "loading a, loaded a, evicted a, loading b, loaded b, unloaded b"
        assert ", ".join(f"{entry['kind']} {entry['model']}" for entry in told) == expected
        assert told[2]["cause"]["by"] == "b"
        assert told[5]["why"] == "b was stopped: somebody unloaded it"
        assert await timeline(server, "before=5&limit=2") == await timeline(server, "after=2&limit=2") == told[2:4]
        assert await timeline(server, "model=b&kind=evicted&kind=unloaded") == [told[2], told[5]]
        assert (await server.refuses(400, None, "GET", "/api/history?kind=stopped")).error["param"] == "kind"


async def test_a_page_gets_each_entry_as_it_is_made(server: Appliance, fake_model: Path) -> None:
    async with feed(server) as reader:
        await reader.first()
        await server.fleet.load(model(fake_model, "alpha"))
        told = [await reader.until("history"), await reader.until("history")]
        assert [entry["kind"] for entry in told] == ["loading", "loaded"]
        assert told == await timeline(server)


async def test_reloads(open_server: OpenServer, configured: Configure) -> None:
    file = configured({"a": {}})
    async with open_server(config=file) as server:
        await server.ask("POST", CHAT, chat("a"))
        configured({"a": {"args": ["--alias", "other"]}})
        await reload(server)
        file.write_text(json.dumps({"models": 3}), "utf-8")
        assert (await server.ask("POST", RELOAD)).status == 400
        read, not_read = await timeline(server, "kind=reload")
        assert read["changed"] == ["a"]
        assert read["why"].endswith("processes out of date: a (a request asked for it)")
        assert "models" in not_read["error"]
        [gone] = await timeline(server, "kind=unloaded")
        assert gone["why"] == "a was stopped: its settings or files have changed"
        marks = (await server.good("GET", "/api/speed")).json["marks"]
        assert [mark["kind"] for mark in marks if mark["kind"] == "reload"] == ["reload"], "a broken one is none"
