"""The cost of decisions: which models run, names, edits of a body, reading a configuration.

Run by the Python whose `appliance` is measured; prints microseconds as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import trio

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from speed_cases import (
    WANTED,
    Timed,
    busy_schedule,
    chat_edits,
    configuration,
    configuration_text,
    groups,
    overlapping,
    products,
    running,
    timed,
)

from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import ConfigInForce, Files
from appliance.catalog.sources import ModelFolders
from appliance.catalog.supply import NoSupply
from appliance.core.config.types import Config
from appliance.core.scheduling.routing import Router
from appliance.core.settings import FleetSettings
from appliance.features.pool.peers import open_peers
from appliance.fleet.owner import open_fleet
from appliance.traffic.targets import ActiveProfile, Targets

CONFIGURED = 300


class Decision(NamedTuple):
    """One kind of decision."""

    what: str
    time: Timed


def decisions(folder: Path) -> list[Decision]:
    """All of them, the pure ones first."""
    found: list[Decision] = []
    for name, policy in (("groups", groups()), ("matrix", products()), ("matrix that overlaps", overlapping())):
        for loaded in (3, 20):
            there = running(loaded)
            plan = timed(lambda policy=policy, there=there: policy.plan(WANTED, there))
            found.append(Decision(f"plan, {name}, 200 models, {loaded} loaded", plan))
    for name, policy in (("groups", groups()), ("matrix", products()), ("matrix that overlaps", overlapping())):
        _, request = busy_schedule(policy, loaded=8, waiting=50)
        found.append(Decision(f"request and release, {name}, 50 wait", timed(request)))
    _, request = busy_schedule(groups(), loaded=8, waiting=0)
    found.append(Decision("request and release, nobody waits", timed(request, calls=10)))
    edits, body = chat_edits()
    apply = timed(lambda: edits.apply(body, "fast"), calls=10)
    found.append(Decision("filters: 3 strips, 3 sets, name; 2 KiB", apply))
    text = configuration_text(CONFIGURED)
    config = configuration(text)
    router = Router(config)
    resolve = timed(lambda: router.resolve("alias-150"), calls=100)
    found.append(Decision(f"name to model, {CONFIGURED} models", resolve))
    found.append(Decision(f"read a configuration, {CONFIGURED} models", timed(lambda: configuration(text), rounds=10)))
    return [*found, *trio.run(_awaited, folder, text)]


async def _awaited(folder: Path, text: str) -> list[Decision]:
    """Those of owners that may wait for something, and do not here."""
    path = folder / "many.yaml"
    path.write_text(text, encoding="utf-8")
    files = Files(config=path)
    loaded = files.read()
    config = loaded.require()
    following = ConfigInForce(files, config, loaded.ports)
    async with _targets(config) as targets:

        async def choose() -> None:
            async with targets.chosen("alias-150"):
                pass

        return [
            Decision(f"target of a request, {CONFIGURED} models", await _timed(choose)),
            Decision("reload of an unchanged file", await _timed(following.reload, rounds=10)),
        ]


@asynccontextmanager
async def _targets(config: Config) -> AsyncGenerator[Targets]:
    async with open_fleet(FleetSettings(), None) as fleet, open_peers(config) as peers:
        yield Targets(Catalog(ModelFolders(starter=None), config), fleet, peers, NoSupply(), ActiveProfile())


async def _timed(call: Callable[[], Awaitable[object]], rounds: int = 300) -> Timed:
    times: list[float] = []
    for number in range(rounds + 5):
        began = time.perf_counter()
        await call()
        if number >= 5:
            times.append((time.perf_counter() - began) * 1e6)
    times.sort()
    return Timed(times[rounds // 2], times[min(rounds - 1, rounds * 99 // 100)])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = decisions(Path(folder))
    print(json.dumps({what: {"median_us": took.median, "p99_us": took.p99} for what, took in found}))


if __name__ == "__main__":
    main()
