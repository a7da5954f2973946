"""A staged build, proven before it has its place: on every device on which the one in use is proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from appliance.core.engines.choice import Ranked, best
from appliance.core.engines.proofs import Proof
from appliance.engines.found import Engine, find_engine
from appliance.engines.owner import open_engines
from appliance.store.engine_book import BookFile


def devices_of(ranked: Sequence[Ranked], build: str) -> dict[str, str]:
    """The devices on which a build is proven: ids to names."""
    proven = [one.seat for one in ranked if one.seat.build == build and one.standing == "proven"]
    return {device.id: device.name for seat in proven for device in seat.devices}


async def prove_staged(
    folder: Path, book: BookFile, starter: Path, needed: Mapping[str, str], tell: Callable[[Proof], None]
) -> tuple[str, Engine | None]:
    """Why the build will not do, or empty; and its engine on the devices of its best seat.

    What is found out goes into the book: it holds for the build wherever it lies.
    """
    engine = find_engine(str(folder))
    async with open_engines(lambda: [engine], book, starter=starter, only=True) as engines:
        await engines.probe()
        proofs = await engines.prove(list(engines.seats), tell)
        ranked = engines.ranked(word=engine.id)
        proven = devices_of(ranked, engine.id)
        if missing := [name for device, name in needed.items() if device not in proven]:
            why = next((proof.why for proof in proofs if not proof.ok), "it does not list it")
            return f"it does not work on {', '.join(missing)}, where the build in use does: {why}", None
        found = best(ranked)
        if found is None or not proven:
            why = next((proof.why for proof in proofs if not proof.ok), "it has no device that it could use")
            return f"it does not work here: {why}", None
        return "", engines.engine_on(found.seat)
