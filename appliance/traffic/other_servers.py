"""The other servers that have models, as far as the way of a request and the lists of models know them.

Some are configured; others are *boxes*, which have a pool with this one, so that a name means the same on all of them.
A pair is the id of a server and the name of a model there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NoReturn, Protocol

import trio

from appliance.core.config.types import Config
from appliance.core.models.holders import Holder
from appliance.errors import PeerFailed
from appliance.upstream.address import Address

Pair = tuple[str, str]
NO_BOXES: Mapping[str, tuple[str, ...]] = {}


class OtherServers(Protocol):
    """Everything except `wait_changed` is synchronous."""

    @property
    def me(self) -> str:
        """The name of this server among the boxes; empty where there are none."""
        ...

    @property
    def revision(self) -> int:
        """A number that changes with what the boxes list."""
        ...

    def names(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return ids of servers and their models: everything that `complete` depends on, and cheap."""
        ...

    def complete(self, config: Config) -> Config:
        """Return the configuration with the boxes as peers, and with the models of each server for which it names
        none; for resolving names.
        """
        ...

    def loaded(self) -> Sequence[Pair]:
        """Return the pairs whose model is loaded."""
        ...

    async def wait_changed(self) -> None:
        """Return after the next change of anything here."""
        ...

    def boxes(self) -> Mapping[str, tuple[str, ...]]:
        """Return the models of each box."""
        ...

    def boxes_in_reach(self) -> Sequence[str]:
        """Return the boxes that are not known to be down."""
        ...

    def holders(self, model: str) -> Sequence[Holder]:
        """Return the boxes that have a model of this name, and what it is there."""
        ...

    def decides(self, boxes: Sequence[Pair]) -> bool:
        """Return whether a model that is loaded here, and that these boxes have too, may be asked of one of them."""
        ...

    def may_answer(self, candidates: Sequence[Pair]) -> bool:
        """True unless every server of these pairs is known to be down."""
        ...

    def order(self, candidates: Sequence[Pair]) -> Sequence[Pair]:
        """Return the pairs of servers that are known, best first."""
        ...

    def address(self, peer_id: str, /) -> Address:
        """Return the server's address. Raises PeerFailed when there is no such server any more."""
        ...

    def using(self, peer_id: str, /) -> AbstractContextManager[None]:
        """Count one request at the server for as long as the block runs. Raises PeerFailed as `address` does."""
        ...

    def failed(self, peer_id: str, why: str, /) -> None:
        """A request could not reach the server."""
        ...


class NoOtherServers:
    """The `OtherServers` of a program that knows of none."""

    me = ""
    revision = 0

    def names(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ()

    def complete(self, config: Config) -> Config:
        return config

    def loaded(self) -> Sequence[Pair]:
        return ()

    async def wait_changed(self) -> None:
        await trio.sleep_forever()

    def boxes(self) -> Mapping[str, tuple[str, ...]]:
        return NO_BOXES

    def boxes_in_reach(self) -> Sequence[str]:
        return ()

    def holders(self, model: str) -> Sequence[Holder]:
        return ()

    def decides(self, boxes: Sequence[Pair]) -> bool:
        return False

    def may_answer(self, candidates: Sequence[Pair]) -> bool:
        return False

    def order(self, candidates: Sequence[Pair]) -> Sequence[Pair]:
        return ()

    def address(self, peer_id: str, /) -> NoReturn:
        raise PeerFailed(peer_id, "this program asks no other servers")

    using = address

    def failed(self, peer_id: str, why: str, /) -> None:
        pass
