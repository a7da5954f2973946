"""Who of the configured models runs beside whom, who waits, and who is refused; with real processes."""

from __future__ import annotations

import time

import trio
from configured_harness import Fleets, Settings, World, ask

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


async def test_without_groups_models_take_turns(fleets: Fleets) -> None:
    async with fleets.open(servers(fleets, "a", "b")) as world:
        assert await in_order(world, "a", "b", "a") == [{"a"}, {"b"}, {"a"}]


async def test_groups_swap_exclude_and_persist(fleets: Fleets) -> None:
    groups = {
        "turns": {"members": ["a", "b"]},
        "together": {"swap": False, "exclusive": False, "members": ["c", "d"]},
        "kept": {"persistent": True, "swap": False, "exclusive": False, "members": ["e"]},
    }
    async with fleets.open(servers(fleets, *FIVE), groups=groups) as world:
        assert await in_order(world, "e", "a", "c", "d", "b", "e", "c") == [
            {"e"},
            {"e", "a"},
            {"e", "a", "c"},  # one that is not exclusive displaces no other group, even an exclusive one
            {"e", "a", "c", "d"},
            {"e", "b"},  # one that is displaces them all, but for the persistent
            {"e", "b"},
            {"e", "b", "c"},
        ]


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


async def test_a_stream_of_requests_starves_nobody(fleets: Fleets) -> None:
    """a is never without a request of its own; b gets its turn all the same, soon after its patience is over."""
    async with fleets.open(servers(fleets, "a", "b"), {"b": {"patience": 0.3}}) as world:
        served = 0
        turn = 0.0

        async def use_a_again_and_again(delay: float) -> None:
            nonlocal served
            await trio.sleep(delay)
            while True:
                async with world.lease("a") as address:
                    await ask(address)
                    await trio.sleep(0.15)
                served += 1

        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(use_a_again_and_again, number * 0.05)
            await world.until_state("a", "loaded")
            began = time.monotonic()
            async with world.lease("b") as address:
                turn = time.monotonic() - began
                assert await ask(address) == b"hello"
                assert world.loaded() == {"b"}
                before = served
            await world.until(lambda: served > before + 3)  # and then a goes on
            nursery.cancel_scope.cancel()
        assert 0.3 <= turn < 1.2


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


async def test_the_more_important_goes_first(fleets: Fleets) -> None:
    routing = {"scheduler": {"settings": {"fifo": {"priority": {"c": 5, "b": -1}}}}}
    order: list[str] = []
    async with fleets.open(servers(fleets, "a", "b", "c", "d"), routing=routing) as world:

        async def use(name: str) -> None:
            async with world.lease(name):
                order.append(name)

        async with trio.open_nursery() as nursery, world.lease("a"):
            for name in ("b", "d", "c"):
                nursery.start_soon(use, name)
                await world.until_state(name, "queued")
        assert order == ["c", "d", "b"]
