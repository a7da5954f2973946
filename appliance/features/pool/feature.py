"""The sign-in of the feature."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature, Ground, ServerParts

if TYPE_CHECKING:
    import click

    from appliance.core.config.types import Config
    from appliance.core.examination import Examiner
    from appliance.core.findings import Trouble
    from appliance.features.pool.peers import Peers
    from appliance.features.pool.seat import PoolSeat
    from appliance.http.control.routes import Routes
    from appliance.http.kernel import Get, Kernel
    from appliance.http.route_facts import DescribedRoute
    from appliance.http.way.ask import Ask
    from appliance.http.way.context import RequestContext
    from appliance.http.way.hooks import Placing
    from appliance.traffic.request import Request

TELLS = "Make several boxes one: each answers for the models of all."
FILE = "pool.json"  # the file of the pool that this box is in, in the program's data folder


class PoolParts(ServerParts, frozen=True, kw_only=True):
    """The parts of this feature, and its owner for its tests."""

    seat: PoolSeat


@asynccontextmanager
async def _open(ground: Ground) -> AsyncGenerator[ServerParts]:
    """A trial of a version, and a server for one model, have no place in a pool."""
    from appliance.features.pool.link import PeerLink, model_states
    from appliance.features.pool.peers import open_peers
    from appliance.features.pool.seat import open_pool_seat

    settings, fleet = ground.settings, ground.fleet
    path = None if settings.trial or settings.http.single else ground.data / FILE

    def routes(_: Kernel) -> Routes:
        from appliance.features.pool.routes import pool_routes

        return pool_routes(peers, seat)

    def show_pool(kernel: Kernel) -> Get:
        from appliance.features.pool.edges import state_get

        return state_get(kernel, seat.state)

    def at_others(kernel: Kernel) -> Placing:
        from appliance.features.pool.at_peers import AtOthers

        return AtOthers(kernel.ask, peers, _at_boxes)

    def adopt(config: Config) -> Sequence[str]:
        peers.adopt(config)
        return ()

    async with (
        open_peers(settings.config, partial(model_states, fleet), fleet.wait_changed) as peers,
        open_pool_seat(path, ground, peers) as seat,
    ):
        yield PoolParts(
            routes=routes,
            gets={"/api/pool": show_pool},
            edges=(lambda _: _Blobs(seat),),
            door=(lambda _: _Blobs(seat),),
            sockets=(lambda kernel, _: PeerLink(fleet, peers.guest, kernel.traffic.lifetime),),
            adopt=adopt,
            wait_ended=seat.wait_quiet,
            other_servers=peers,
            placings=(at_others,),
            examiners=(partial(_examiner, lambda: seat.state().problems),),
            seat=seat,
        )


class _Blobs:
    """Files of models for the other boxes, while this one is in a pool: an `EdgeRoute` that imports what it needs."""

    def __init__(self, seat: PoolSeat) -> None:
        self._seat = seat

    def answers(self, request: Request) -> bool:
        if self._seat.owner is None:
            return False
        from appliance.features.pool.core.blobs import asks_for_blob

        return asks_for_blob(request.method, request.path)

    async def answer(self, context: RequestContext) -> None:
        from appliance.features.pool.edges import answer_blob

        assert self._seat.owner is not None  # else it is not asked
        await answer_blob(context, self._seat.owner.files)


def _at_boxes(ask: Ask, peers: Peers) -> Placing:
    from appliance.features.pool.at_boxes import AtBoxes

    return AtBoxes(ask, peers)


def _verb() -> click.Command:
    from appliance.features.pool.verb import pool

    return pool


def _examiner(problems: Callable[[], Sequence[Trouble]] | None = None) -> Examiner:
    from appliance.features.pool.findings import pool_examiner

    return pool_examiner(problems)


def _described() -> Sequence[DescribedRoute]:
    from appliance.features.pool.core.shapes import PoolState
    from appliance.http.route_facts import DescribedRoute, RouteFacts

    return [
        DescribedRoute("GET", "/api/pool", RouteFacts(gives=PoolState), "The pool of boxes as this one sees it."),
        DescribedRoute("GET", "/api/blobs", says="The files of a model, with their hashes."),
        DescribedRoute("GET", "/api/blobs/<hash>", says="A file of a model by its hash, or a part of it."),
        DescribedRoute("GET", "/api/link", says="A websocket: the live link with another appliance."),
    ]


POOL = Feature(
    name="pool",
    described=_described,
    verbs=(Verb("pool", "several machines", TELLS, _verb, page="pool.md"),),
    open=_open,
    examiners=(_examiner,),
)
