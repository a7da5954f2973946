"""The owner of this program's place in a pool: in none, or in one whose `Membership` it runs.

The file decides at the start. After that people do: create, invite, join, leave, drain, rotate.
"""

from __future__ import annotations

import logging
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import msgspec
import psutil
import trio

from appliance.core.findings import Trouble
from appliance.core.settings import is_loopback
from appliance.errors import ApplianceError, BadRequest, Conflict, Forbidden, StoreFailed, UsageError
from appliance.feature import Assembled
from appliance.features.pool.core.bus_words import external_access
from appliance.features.pool.core.join_code import LIFE, read_code
from appliance.features.pool.core.keys import SECRET_SIZE
from appliance.features.pool.core.roster import DEFAULT_PORT, MOST_ADDRESSES, Box, Roster, box_name
from appliance.features.pool.core.shapes import CreatePool, JoinPool, PoolInvitation, PoolState
from appliance.features.pool.door import BoxDoor, claim_door
from appliance.features.pool.doors import JoinRequest, NewSecret, join_with
from appliance.features.pool.hands import OwnHands
from appliance.features.pool.membership import Membership
from appliance.features.pool.model_blobs import ModelFilesHere, open_model_files
from appliance.features.pool.peers import Peers
from appliance.features.pool.pool_file import KeptPool, read_pool, write_pool
from appliance.store.model_files import unlink
from appliance.trio_parts import AGAIN, beside

OF_CONTAINERS = ("docker", "br-", "veth", "virbr", "cni", "podman", "lxc")  # they lead to containers here
HASHES = "pool-hashes.json"  # the file, beside the pool's, that remembers hashes of models' files

log = logging.getLogger(__name__)


class BoxPool:
    """Made by `open_box_pool`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        path: Path,
        program: Assembled,
        peers: Peers,
        files: ModelFilesHere,
        *,
        offline: bool,
    ) -> None:
        self._nursery, self._path, self._program, self._peers = nursery, path, program, peers
        self.files = files  # those that other boxes may fetch
        self._offline = offline
        self._turn = trio.Lock()
        self._problems: Sequence[Trouble] = ()
        self.membership: Membership | None = None

    def require(self) -> Membership:
        """Raises Conflict while this box is in no pool."""
        if self.membership is None:
            raise Conflict(
                "this box is in no pool: 'llama-appliance pool create' makes one, and 'pool join CODE' joins one"
            )
        return self.membership

    def state(self) -> PoolState:
        return PoolState(problems=self._of_file()) if self.membership is None else self.membership.state()

    def _of_file(self) -> Sequence[Trouble]:
        """The file's mistake, until somebody has removed the file."""
        if self._problems and not self._path.exists():
            self._problems = ()
        return self._problems

    async def resume(self) -> None:
        """Be in the pool again that the file names, if there is one."""
        try:
            kept = await trio.to_thread.run_sync(read_pool, self._path)
        except StoreFailed as error:
            log.warning("%s", error)
            self._problems = (Trouble(id="file", text=str(error), fix=f"remove {self._path}, and join again"),)
            return
        if kept is not None:
            self.membership = self._member(kept)
            self._nursery.start_soon(self._resume, self.membership)

    def _member(self, kept: KeptPool) -> Membership:
        kernel = self._program.kernel
        hands = OwnHands(self._nursery, kernel.owners, self._peers)
        return Membership(self._path, kept, kernel, self._peers, hands)

    async def create(self, asked: CreatePool) -> PoolInvitation:
        """Make a pool of this box, and a code that lets the next one in. Raises BadRequest, Conflict, UsageError."""

        async def found(box: Box) -> NewSecret:
            if asked.bus:
                external_access(asked.bus, "")  # so that a mistake in it is found now
            roster = Roster(pool=secrets.token_hex(8), boxes=(box,), bus=asked.bus)
            return NewSecret(secrets.token_bytes(SECRET_SIZE), roster)

        await self._enter(asked, found)
        return self.invite()

    async def join(self, asked: JoinPool) -> PoolState:
        """Join the pool of a code. Raises BadRequest, Conflict, BoxFailed, UsageError."""
        code = read_code(asked.code)
        await self._enter(asked, lambda box: join_with(code, JoinRequest(token=code.token, box=box)))
        return self.state()

    def invite(self) -> PoolInvitation:
        """Make a code. Raises Conflict."""
        return PoolInvitation(code=self.require().invite().text(), until=time.time() + LIFE)

    async def leave(self, box: str | None) -> PoolState:
        """Take a box out of the pool, without a name this one. Raises BadRequest, Conflict, BoxFailed."""
        membership = self.require()
        if box is not None and box != membership.me:
            await membership.change(lambda roster: roster.without(box))
            return self.state()
        async with self._turn:
            try:
                await membership.leave()
            finally:
                await membership.ended.wait()
        return self.state()

    async def drain(self, box: str, *, drained: bool) -> PoolState:
        """Give a box no new work, or work again. Raises as `leave`."""
        await self.require().change(lambda roster: roster.drained(box, drained))
        return self.state()

    async def _enter(self, asked: CreatePool | JoinPool, agree: Callable[[Box], Awaitable[NewSecret]]) -> None:
        """Be in the pool that ``agree`` has found for this box.

        The port is claimed first: a box that could not open its door would be in the pool and out of reach.
        """
        async with self._turn:
            if (pool := self.membership) is not None:
                raise Conflict(
                    f"this box is in a pool already, as '{pool.me}' among {len(pool.roster.boxes)}: "
                    "'llama-appliance pool leave' leaves it"
                )
            for problem in self._of_file():
                raise StoreFailed(problem.text)
            door = await claim_door(self._program, self._peers, DEFAULT_PORT if asked.port is None else asked.port)
            try:
                box = self._box(asked, door.port)
                found = await agree(box)
                kept = KeptPool(secret=found.secret, me=box.name, roster=found.roster, chosen=bool(asked.addresses))
                await trio.to_thread.run_sync(write_pool, self._path, kept)
                self.membership = self._member(kept)
            except BaseException:
                door.close()
                raise
            self._nursery.start_soon(self._run, self.membership, door)

    def _box(self, asked: CreatePool | JoinPool, port: int) -> Box:
        """Return this box as others will know it. Raises BadRequest, and Forbidden with --offline."""
        box = Box(
            name=box_name(socket.gethostname()) if asked.name is None else asked.name,
            addresses=tuple(asked.addresses or own_addresses()),
            port=port,
            dials_out=isinstance(asked, JoinPool) and asked.dials_out,
        )
        try:
            box = msgspec.convert(msgspec.to_builtins(box), Box)  # only a conversion checks the forms
        except msgspec.ValidationError:
            raise BadRequest(
                f"'{box.name}' at {', '.join(box.addresses)} port {port} is not a box: a name has lower-case letters, "
                "digits and hyphens, an address is an IP address or a host name"
            ) from None
        if self._offline and not box.dials_out and not all(map(is_loopback, box.addresses)):
            raise Forbidden(
                "this server was started with --offline, which keeps it from other machines: start it without that "
                "to have it in a pool"
            )
        return box

    async def _resume(self, membership: Membership) -> None:
        """Open the door as soon as its port is free."""
        own = membership.own
        assert own is not None  # `read_pool` has looked
        door: BoxDoor | None = None
        while door is None and not membership.over.is_set():
            try:
                door = await claim_door(self._program, self._peers, own.port)
            except UsageError as error:
                if membership.problem is None:
                    log.warning("the other boxes of the pool cannot reach this one: %s", error)
                fix = f"stop the other program, or leave and join again with another --port than {own.port}"
                membership.problem = Trouble(id="door", text=str(error), fix=fix)
                with trio.move_on_after(AGAIN):
                    await membership.over.wait()
        membership.problem = None
        if not membership.kept.chosen:
            self._nursery.start_soon(self._move, membership)
        await self._run(membership, door)

    async def _move(self, membership: Membership) -> None:
        """Tell the others where this box is, if it has none of the addresses any more that they know."""
        here = own_addresses()
        while not membership.over.is_set():
            own = membership.own
            if own is None or set(own.addresses) & set(here):
                return
            try:
                await membership.change(partial(Roster.moved, name=own.name, addresses=here, port=own.port))
            except ApplianceError as error:
                log.info("the other boxes do not know this box's new addresses yet: %s", error)
                await trio.sleep(AGAIN)

    async def _run(self, membership: Membership, door: BoxDoor | None) -> None:
        """Be in the pool until this box is not any more; then forget it."""
        if door is not None:
            with closing(door):
                await membership.run(door.renew, partial(door.serve, membership))
        log.info("this box is not in the pool any more")
        with suppress(OSError):
            await trio.to_thread.run_sync(unlink, self._path)
        self.membership = None
        membership.ended.set()


def own_addresses() -> list[str]:
    """Return at most `MOST_ADDRESSES` of the machine, the likeliest way in first; loopback if there is no other."""
    found: list[tuple[bool, bool, str]] = []
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    for interface, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family not in (socket.AF_INET, socket.AF_INET6) or interface not in up:
                continue
            address = ip_address(one.address.partition("%")[0])
            if not (address.is_loopback or address.is_link_local):
                found.append((interface.startswith(OF_CONTAINERS), address.version == 6, str(address)))
    return [address for _, _, address in sorted(found)][:MOST_ADDRESSES] or ["127.0.0.1"]


@asynccontextmanager
async def open_box_pool(path: Path, program: Assembled, peers: Peers, *, offline: bool) -> AsyncGenerator[BoxPool]:
    """Own this program's place in a pool. ``path`` is its file, and its presence means that there is a pool.

    ``offline``: the program may reach no other machine.
    """
    hashes, catalog = path.with_name(HASHES), program.kernel.owners.catalog
    async with open_model_files(catalog, hashes) as files, beside() as nursery:
        pool = BoxPool(nursery, path, program, peers, files, offline=offline)
        await pool.resume()
        yield pool
