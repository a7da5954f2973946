"""The load of the machine, and its hardware, as a client asks for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import quote

import trio
from http_harness import Appliance
from quart import Response
from quart_trio import QuartTrio

from appliance.core.machine import Hardware
from appliance.errors import ApplianceError
from appliance.features.metrics.routes import machine_routes
from appliance.features.metrics.samples import open_samples
from appliance.http.errors import describe
from appliance.platform.gpus import NoGpus


async def nothing_seen() -> None:
    """The system does not tell."""


@asynccontextmanager
async def records(
    every: float | None, detect: Callable[[], Awaitable[Hardware | None]] = nothing_seen
) -> AsyncGenerator[Callable[[str], Awaitable[Response]]]:
    """Ask the routes of a Quart application about a machine that is sampled so often."""
    app = QuartTrio("appliance.http", static_folder=None)

    async def refuse(error: ApplianceError) -> tuple[str, int]:
        return str(error), describe(error).code

    app.register_error_handler(ApplianceError, refuse)
    async with open_samples(NoGpus(), every) as samples:
        app.register_blueprint(machine_routes(samples, detect))
        yield app.test_client().get


async def test_performance(server: Appliance):
    off = await server.ask("GET", "/api/performance")
    assert (off.status, off.json) == (503, {"enabled": False})
    async with records(0.05) as get:
        on = {"sys_stats": []}
        with trio.fail_after(10):
            while not on["sys_stats"]:
                on = await (await get("/api/performance")).get_json()
        assert on["enabled"] is True
        assert on["sys_stats"][0]["mem_total_mb"] > 0
        assert "gpu_stats" in on
        later = quote("2100-01-01T00:00:00+02:00")
        assert (await (await get(f"/api/performance?after={later}")).get_json())["sys_stats"] == []
        for wrong in ("noon", "2026-01-01T00:00:00"):
            refused = await get(f"/api/performance?after={wrong}")
            assert refused.status_code == 400
            assert "after must be" in await refused.get_data(as_text=True)


async def test_hardware_and_version(server: Appliance):
    async with records(None) as get:
        refused = await get("/api/hardware")
        assert refused.status_code == 503
        assert "cannot be described" in await refused.get_data(as_text=True)
    hardware = await server.good("GET", "/api/hardware")
    assert hardware.json["cpu"]["logical_thread_count"] >= 1
    assert (await server.ask("GET", "/api/hardware")).json == hardware.json  # looked at once
    version = (await server.ask("GET", "/api/version")).json
    assert sorted(version) == ["build_date", "commit", "llama_appliance", "version"]
