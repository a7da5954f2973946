"""Configured models with real processes: which run side by side, and everything at once."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import psutil
import pytest
import trio
from configured_harness import Fleets, Settings, World, ask, script

from appliance.errors import ApplianceError

FIVE = ("a", "b", "c", "d", "e")


def servers(fleets: Fleets, *names: str, **settings: object) -> dict[str, Settings]:
    return {name: fleets.server(name, settings) for name in names}


async def in_order(world: World, *names: str) -> list[set[str]]:
    """Which models are loaded after each of these was used."""
    seen: list[set[str]] = []
    for name in names:
        async with world.lease(name) as address:
            await ask(address)
            seen.append(world.loaded())
    return seen


async def test_a_matrix_evicts_what_costs_least(fleets: Fleets) -> None:
    matrix = {"sets": {"one": "(a | b) & c", "two": "d & (b | c)"}, "evict_costs": {"c": 5}}
    async with fleets.open(servers(fleets, *FIVE), matrix=matrix) as world:
        assert await in_order(world, "a", "c", "b", "d", "e") == [
            {"a"},
            {"a", "c"},
            {"b", "c"},
            {"c", "d"},  # beside d only one may stay, and c is dear
            {"e"},  # in no set: alone
        ]


async def test_memory_is_what_was_measured_and_never_less_than_was_told(fleets: Fleets) -> None:
    together = {"all": {"swap": False, "members": ["grown", "told", "c", "d"]}}
    models = {
        "grown": fleets.server("grown", {"memory": {"gpu0": "6GiB"}}, allocate=120),
        "told": fleets.server("told", {"memory": {"ram": "50MiB"}}),
        "c": fleets.server("c", {"memory": {"ram": "40MiB"}}),
        "d": fleets.server("d", {"memory": {"gpu0": "6GiB"}}),
    }
    budget = {"ram": "200MiB", "gpu0": "10GiB"}
    async with fleets.open(models, groups=together, memory=budget) as world:
        await world.load("grown", "told")
        for _ in range(2):  # each is looked at a second after it got ready
            await world.fleet.wait_changed()
        assert await in_order(world, "c") == [{"told", "c"}], "of 200 MiB, 'grown' takes more than 120, not nothing"
        assert await in_order(world, "grown") == [{"grown", "c"}], "'told' counts 50 MiB, though it takes 10"
        assert await in_order(world, "d") == [{"c", "d"}], "no measurement says that 'grown' needs no gpu0"


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
