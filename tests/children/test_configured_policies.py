"""Which of the configured models run side by side, with real processes; the policies' own tests have the rest."""

from __future__ import annotations

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
