"""Everything at once: requests that leave, unloads, new configurations, dying servers; afterwards all is in order."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import psutil
import pytest
import trio
from configured_harness import Fleets, World, ask, script

from appliance.errors import ApplianceError

SECONDS = 3.0
WANTED = ("served", "left", "ModelFailedToStart", "UpstreamFailed")
"""What has to become of some requests, at least."""
MOST = 1000
"""Requests after which that is waited for in vain."""
MATRIX = {"sets": {"one": "(a | b) & c", "two": "d & +one", "three": "e"}, "evict_costs": {"c": 4}}
GROUPS = {"turns": {"members": ["a", "b"]}, "free": {"swap": False, "exclusive": False, "members": ["c", "d"]}}


@pytest.mark.slow
async def test_chaos(fleets: Fleets) -> None:
    dice = random.Random(7)
    servers = {
        "a": fleets.server("a", {"patience": 1}),
        "b": fleets.server(
            "b", {"cmdStop": f"{script('import os, sys; os.kill(int(sys.argv[1]), 15)')} ${{PID}}"}, term=0.02
        ),
        "c": fleets.server("c", exit_after=0.4, status=4),
        "d": fleets.server("d", before="closed", ready_after=0.05),
        "e": fleets.server("e", before="closed", ready_after=60, exit_after=0.03, status=5),
    }
    changes = {name: {"ttl": 0.1, "unload_timeout": 0.2} for name in servers}
    outcomes: Counter[str] = Counter()

    async def request(world: World) -> None:
        name, leaves_after = dice.choice(list(servers)), dice.choice([0.01, 0.1, 1.0, 60.0])
        left = True
        with trio.move_on_after(leaves_after):
            try:
                async with world.lease(name) as address:
                    await ask(address, dice.choice(["/echo", "/drip", "/die"]))
                    await trio.sleep(dice.random() * 0.05)
                outcomes["served"] += 1
            except ApplianceError as error:
                outcomes[type(error).__name__] += 1
            left = False
        outcomes["left"] += left

    async with fleets.open(servers, changes, matrix=MATRIX) as world:
        async with trio.open_nursery() as nursery:
            until = trio.current_time() + SECONDS
            turns = 0
            while trio.current_time() < until or (turns < MOST and not all(outcomes[each] for each in WANTED)):
                await trio.sleep(dice.random() * 0.02)
                nursery.start_soon(request, world)
                turns += 1
                if turns % 17 == 0:
                    nursery.start_soon(world.fleet.unload, dice.choice(list(servers)))
                if turns % 40 == 0:
                    top = {"groups": GROUPS} if turns % 80 == 0 else {"matrix": MATRIX}
                    servers["d"]["env"] = [f"TURN={turns // 80}"]  # every other time it is another process
                    world.adopt(servers, changes, **top)
                if turns % 50 == 0:
                    kill_one(world, dice)
        assert all(status.leases == 0 and status.waiting == 0 for status in world.fleet.status())
        await world.until(lambda: all(status.pid is None for status in world.fleet.status()))  # ttl
        for name in "abd":
            async with world.lease(name) as address:
                assert await ask(address) == b"hello"
    print(f"\n{turns} requests: {dict(outcomes)}")
    assert sum(outcomes.values()) == turns
    assert all(outcomes[each] for each in WANTED), outcomes


def kill_one(world: World, dice: random.Random) -> None:
    pids = [status.pid for status in world.fleet.status() if status.pid is not None]
    if pids:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has died of itself, and is about to be told of
            psutil.Process(dice.choice(pids)).kill()
