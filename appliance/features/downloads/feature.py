"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature, ServerParts

if TYPE_CHECKING:
    from pathlib import Path

    import click

    from appliance.catalog.supply import Supply, SupplyGround
    from appliance.core.examination import Examiner
    from appliance.core.models.download import Remote
    from appliance.core.models.hub_address import HubAccess
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Kernel


def _pull() -> click.Command:
    from appliance.features.downloads.pull_verb import pull

    return pull


def _rm() -> click.Command:
    from appliance.features.downloads.remove_verb import rm

    return rm


async def _bring(wanted: Remote, cache: Path, hub: HubAccess) -> int | None:
    from appliance.features.downloads.following import bring

    return await bring(wanted, cache, hub)


def _examiner(supply: Supply | None = None) -> Examiner:
    from appliance.features.downloads.findings import downloads_examiner

    return downloads_examiner(supply)


@asynccontextmanager
async def _supply(ground: SupplyGround) -> AsyncGenerator[tuple[Supply, ServerParts]]:
    from appliance.features.downloads.supply import open_supply

    async with open_supply(ground) as supply:

        def routes(kernel: Kernel) -> Routes:
            from appliance.features.downloads.routes import download_routes

            return download_routes(supply, kernel)

        yield supply, ServerParts(routes=routes, examiners=(partial(_examiner, supply),))


_PULL = Verb("pull", "models", "Download a model from the Hugging Face hub.", _pull, page="downloads.md", brings=_bring)
_RM = Verb("rm", "models", "Remove a downloaded model.", _rm, page="downloads.md")
DOWNLOADS = Feature(name="downloads", verbs=(_PULL, _RM), supply=_supply, examiners=(_examiner,))
