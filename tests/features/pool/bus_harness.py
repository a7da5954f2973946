"""Real servers of the bus, each a child of this process, and clients of them."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from port_blocks import port_block
from waiting import until

from appliance.features.pool.bucket import Bucket
from appliance.features.pool.bus import Bus, open_bus
from appliance.features.pool.bus_server import BusProcess, open_bus_server
from appliance.features.pool.core.buckets import BusError
from appliance.features.pool.core.bus_config import BusServing
from appliance.features.pool.core.bus_words import BusAccess, BusPlace
from appliance.features.pool.core.keys import BoxCertificate, PoolKeys
from appliance.features.pool.pool_file import certificate_files
from appliance.platform.children import open_children


def new_pool() -> PoolKeys:
    return PoolKeys(secrets.token_bytes(32))


def box_files(pool: PoolKeys, box: str) -> BoxCertificate:
    return pool.issue(box, ("127.0.0.1",), secrets.token_bytes(32))


def tls_of(files: BoxCertificate, *, trusted: str = "", certified: bool = True) -> ssl.SSLContext:
    """The context of a client with this certificate."""
    context = ssl.create_default_context(cadata=trusted or files.ca)
    if certified:
        with certificate_files(files) as names:
            context.load_cert_chain(*names)
    return context


class BusBox(Struct, frozen=True):
    """One box: its server's configuration, its files, and the server."""

    pool: PoolKeys
    files: BoxCertificate
    serving: BusServing
    server: BusProcess

    @property
    def place(self) -> BusPlace:
        return BusPlace(host="127.0.0.1", port=self.serving.port, name=f"{self.serving.name}.llama-pool")

    def access(self, *others: BusBox, **changes: object) -> BusAccess:
        access = BusAccess(
            places=(self.place, *(other.place for other in others)),
            client=self.serving.name,
            nkey=self.pool.bus_user,
            seed=self.pool.bus_seed,
        )
        return replace(access, **changes)

    async def ready(self) -> None:
        await until(lambda: self.server.state, lambda it: it.ready, changed=self.server.news.wait, told=self.log)

    def log(self) -> str:
        return "\n".join(self.server.log)


def serving(pool: PoolKeys, files: BoxCertificate, name: str, port: int) -> BusServing:
    return BusServing(
        group="all",
        name=name, host="127.0.0.1", port=port, files=files, keys=pool,
    )  # fmt: skip


@asynccontextmanager
async def boxes(folder: Path, number: int = 1, *, pool: PoolKeys | None = None) -> AsyncGenerator[list[BusBox]]:
    """So many boxes with servers that are ready: one alone, or voters of one bus."""
    pool = pool or new_pool()
    first = port_block(2 * number)
    async with AsyncExitStack() as stack:
        children = await stack.enter_async_context(open_children())
        made: list[BusBox] = []
        for each in range(number):
            name = f"b{each + 1}"
            files = box_files(pool, name)
            wanted = serving(pool, files, name, first + each)
            if number > 1:
                others = (first + number + other for other in range(number) if other != each)
                routes = tuple(BusPlace(host="127.0.0.1", port=other) for other in others)
                wanted = replace(wanted, routes_port=first + number + each, routes=routes)
            server = await stack.enter_async_context(open_bus_server(children, folder / name))
            server.serve(wanted)
            made.append(BusBox(pool, files, wanted, server))
        for box in made:
            await box.ready()
        yield made


@asynccontextmanager
async def server_alone(folder: Path, wanted: BusServing) -> AsyncGenerator[BusProcess]:
    async with open_children() as children, open_bus_server(children, folder) as server:
        server.serve(wanted)
        yield server


@asynccontextmanager
async def client(box: BusBox, *others: BusBox) -> AsyncGenerator[Bus]:
    """A client that is connected."""
    async with open_bus(box.access(*others), tls_of(box.files)) as bus:
        await until(lambda: bus.connected, changed=bus.news.wait, told=lambda: bus.state)
        yield bus


async def bucket(bus: Bus, replicas: int = 1) -> Bucket:
    """A bucket that is there: a cluster refuses to make one until it has chosen a leader."""
    made = Bucket(bus, "test")

    async def is_made() -> bool:
        try:
            await made.create(replicas)
        except BusError:
            return False
        return True

    await until(is_made, within=40, told=lambda: bus.state)
    return made


def pid_of(server: BusProcess) -> int:
    """The process id, which is at the beginning of each line of its log."""
    return int(server.log[-1].partition("]")[0].strip("[ "))
