"""The place for the owner of a pool, which few programs need: it is imported when a pool is there, or is asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from appliance.errors import Forbidden
from appliance.features.pool.core.shapes import PoolState
from appliance.trio_parts import beside, persist

if TYPE_CHECKING:
    from appliance.feature import Assembled, Ground
    from appliance.features.pool.owner import BoxPool
    from appliance.features.pool.peers import Peers


class PoolSeat:
    """Made by `open_pool_seat`."""

    def __init__(self, nursery: trio.Nursery, path: Path | None, ground: Ground, peers: Peers) -> None:
        self._nursery, self._path, self._ground, self._peers = nursery, path, ground, peers
        self._making = trio.Lock()
        self.owner: BoxPool | None = None

    async def wait_quiet(self) -> None:
        """Return when nobody is answered through the door any more, after the program has begun to end."""
        if self.owner is not None and (membership := self.owner.membership) is not None:
            await membership.door_closed.wait()

    def state(self) -> PoolState:
        return self.owner.state() if self.owner is not None else PoolState()

    async def resume(self) -> None:
        """Have the owner if its file is there."""
        if self._path is not None and await trio.Path(self._path).exists():
            await self.require()

    async def require(self) -> BoxPool:
        """Return the owner, which is there from now on. Raises Forbidden where its file would have no place."""
        if self._path is None:
            raise Forbidden("a server for one model cannot be in a pool; start 'llama-appliance serve'")
        async with self._making:
            if self.owner is None:
                made = await trio.to_thread.run_sync(self._make, self._path, await self._ground.assembled())
                await self._nursery.start(self._own, made)
            assert self.owner is not None
            return self.owner

    def _make(self, path: Path, program: Assembled) -> AbstractAsyncContextManager[BoxPool]:
        from appliance.features.pool.owner import open_box_pool

        return open_box_pool(path, program, self._peers, offline=self._ground.settings.offline)

    async def _own(self, made: AbstractAsyncContextManager[BoxPool], *, task_status: trio.TaskStatus[None]) -> None:
        async with made as self.owner:
            task_status.started()
            await trio.sleep_forever()


@asynccontextmanager
async def open_pool_seat(path: Path | None, ground: Ground, peers: Peers) -> AsyncGenerator[PoolSeat]:
    """Own the owner. With a file at ``path`` there will be one soon after the program is put together."""
    async with beside() as nursery:
        seat = PoolSeat(nursery, path, ground, peers)
        nursery.start_soon(persist, "being in the pool", seat.resume)
        yield seat
