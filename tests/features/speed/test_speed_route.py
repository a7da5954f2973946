"""Speed over time of the running program: by model, client and build, with what changed meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fleet_harness import InOrder, fake_engine
from http_harness import CHAT, Appliance, OpenServer, chat, model


async def speed(server: Appliance, query: str = "") -> dict[str, Any]:
    return (await server.good("GET", f"/api/speed?{query}")).json


def requests(told: dict[str, Any]) -> dict[str, int]:
    return {curve["name"]: curve["total"]["requests"] for curve in told["curves"]}


async def test_curves_of_real_requests(open_server: OpenServer, fake_model: Path) -> None:
    """`tests/features/speed/test_speed_figures.py` has the figures."""
    seats = InOrder(fake_engine("cpu"), fake_engine("gpu"))
    async with open_server(models=[model(fake_model, "a"), model(fake_model, "b")], chooser=seats) as server:
        assert requests(await speed(server)) == {}
        for name, stream in (("a", True), ("a", False), ("a", True), ("b", False)):
            headers = [("User-Agent", f"{name}-tester/1.0")]
            assert (await server.ask("POST", CHAT, chat(name, stream=stream), headers)).status == 200
        told = await speed(server, "span=1h")
        assert (told["seconds"], told["marks"]) == (15, [])
        assert requests(told) == {"a": 3, "b": 1}
        total = told["curves"][0]["total"]
        assert total["tokens_per_second"] > 0
        rows = [row for row in await server.rows() if row["model"] == "a"]
        firsts = sorted(row["first_token_ms"] for row in rows)
        assert [total["first_token_p50_ms"], total["first_token_p95_ms"]] == firsts[1:]
        assert total["waited_ms"] > 0, "its model was loaded for the first one"
        for curve in told["curves"]:
            assert {len(values) for values in curve["points"].values()} == {told["points"]}
        by_client = requests(await speed(server, "by=client"))
        assert by_client == {"a-tester/1.0, 127.0.0.1": 3, "b-tester/1.0, 127.0.0.1": 1}
        assert requests(await speed(server, "by=build&model=a")) == {"cpu": 3}, "with a task, and without"
        seats.engines.reverse()
        await server.ask("POST", "/models/unload", {"model": "a", "wait": True})
        await server.ask("POST", CHAT, chat("a"))
        told = await speed(server, "by=build&model=a")
        assert requests(told) == {"cpu": 3, "gpu": 1}
        [mark] = told["marks"]
        assert (mark["kind"], mark["model"]) == ("loaded", "a")
        assert mark["why"].endswith(" on gpu")
        assert (await speed(server, "end=2026-01-01T00:00:00Z"))["curves"] == []
        assert (await server.refuses(400, None, "GET", "/api/speed?span=long")).error["param"] == "span"
