"""Listening on a file: who may connect, what is replaced and removed, and what is not."""

# ruff: noqa: ASYNC240  the folder is in memory, or as good as that

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from http_harness import CHAT, Answer, Client, OpenServer, chat
from msgspec.structs import replace

from appliance.core.settings import AlsoListen, HttpSettings, UnixSocket
from appliance.errors import UsageError
from appliance.http.bytes.listening import open_listeners
from appliance.platform import unix_sockets
from appliance.upstream.address import Address
from appliance.upstream.connect import ConnectFailed, connect

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets on Windows")


@pytest.fixture
def path() -> Generator[Path]:
    """A place with a short name, in a folder of its own: a socket's path has room for a hundred bytes."""
    with TemporaryDirectory(dir="/tmp") as name:
        yield Path(name) / "a.sock"


@pytest.fixture
def both(path: Path) -> HttpSettings:
    """Listen on the file, and on a port as well."""
    return HttpSettings(listen=(("127.0.0.1", 0), UnixSocket(str(path))))


@asynccontextmanager
async def connected(path: Path) -> AsyncGenerator[Client]:
    async with await trio.open_unix_socket(path) as stream:
        yield Client(stream)


async def ask(path: Path, method: str, target: str, body: object = None, **headers: str) -> Answer:
    async with connected(path) as client:
        await client.send(method, target, body, headers.items())
        return await client.answer()


@asynccontextmanager
async def listening(path: Path, mode: int = 0o600) -> AsyncGenerator[None]:
    (listener,) = await open_listeners([UnixSocket(str(path), mode=mode)])
    with closing(listener):
        yield


async def answers(path: Path) -> None:
    """Fail where nothing listens."""
    async with await trio.open_unix_socket(path):
        pass


async def fails(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        await open_listeners([UnixSocket(str(path))])
    return str(caught.value)


async def test_a_server_on_a_file(open_server: OpenServer, path: Path, both: HttpSettings):
    async with open_server(http=both) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await ask(path, "GET", "/health")).status == 200
        long = {**chat(stream=True, tokens=3), "padding": "x" * 2_000_000}
        assert len((await ask(path, "POST", CHAT, long)).events) >= 3
        assert str(path).encode() in (await ask(path, "GET", "/ui/status")).body
        assert (await server.ask("GET", "/health")).status == 200
        async with connected(path) as client:
            await client.send("POST", CHAT, chat(stream=True, tokens=10_000, token_delay=0.01))
            await client.head()
        await server.wait_idle("alpha")
        await server.end()
        assert not path.exists()


async def test_host_and_origin_are_checked_as_elsewhere(open_server: OpenServer, path: Path, both: HttpSettings):
    """A web server in front, which reaches the file, may pass on what a page that is somebody else's has sent."""
    async with open_server(http=both):
        for host in ("localhost", "unix", ""):
            assert (await ask(path, "GET", "/v1/models", Host=host)).status == 200
        assert (await ask(path, "GET", "/v1/models", Host="evil.example")).status == 403
        assert (await ask(path, "GET", "/v1/models", Origin="http://evil.example")).status == 403


@pytest.mark.needs("root")
async def test_other_users_are_kept_out(path: Path):
    path.parent.chmod(0o755)
    async with listening(path):
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError), socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
        finally:
            os.seteuid(0)


async def test_the_socket_of_the_home_takes_the_place_of_a_key_and_no_other_way_in_does(
    open_server: OpenServer, path: Path
):
    """The same bytes come from everywhere: what the server remembers of a head must not let in who has no key."""
    other = path.with_name("other.sock")
    home = AlsoListen(UnixSocket(str(path), trusted=True), "--home", required=False)
    http = HttpSettings(listen=(("127.0.0.1", 0), UnixSocket(str(other))), also=(home,), api_keys=("sesame",))
    async with open_server(http=http) as server:
        for _ in range(3):  # the first loads, the others take the fast path
            assert (await ask(path, "POST", CHAT, chat())).status == 200
            assert (await ask(other, "POST", CHAT, chat())).status == 401
            assert (await server.ask("POST", CHAT, chat())).status == 401
        assert (await ask(path, "GET", "/v1/models")).status == 200
        assert (await ask(path, "GET", "/v1/models", host="evil.example")).status == 403
        assert str(path).encode() not in (await ask(path, "GET", "/ui/status")).body
        async with open_server(http=HttpSettings(listen=(("127.0.0.1", 0),), also=(home,))) as second:
            assert (await second.ask("GET", "/health")).status == 200  # it does without
        assert (await ask(path, "GET", "/v1/models")).status == 200
    assert not path.exists()


async def test_a_socket_that_nobody_answers_on_is_replaced(path: Path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    (listener,) = await open_listeners([UnixSocket(str(path))])
    await answers(path)
    listener.close()
    listener.close()
    assert not path.exists()


async def test_permissions_can_be_chosen_and_a_socket_that_somebody_answers_on_is_left_alone(path: Path):
    async with listening(path, 0o660):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert "another program listens there already" in await fails(path)
        await answers(path)


async def test_a_busy_program_counts_as_answering(path: Path):
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.setblocking(False)
        waiting.connect(str(path))
        assert "another program listens there already" in await fails(path)
        assert path.exists()


async def test_other_files_are_never_removed(path: Path):
    for number, make in enumerate((Path.touch, Path.mkdir, os.mkfifo, lambda file: file.symlink_to("missing"))):
        file = path.with_name(str(number))
        make(file)
        assert "not a socket" in await fails(file)
        assert os.path.lexists(file)


async def test_a_file_that_another_program_put_there_meanwhile_is_not_removed(path: Path):
    (ours,) = await open_listeners([UnixSocket(str(path))])
    path.unlink()
    async with listening(path):
        ours.close()
        await answers(path)
    assert not path.exists()


async def test_of_many_that_start_at_once_one_listens(path: Path):
    """All find the same dead socket; none may remove what another has just made."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    found: list[unix_sockets.UnixListener] = []
    refused: list[OSError] = []

    def start() -> None:
        try:
            found.append(unix_sockets.listen_at(str(path), 0o600))
        except OSError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(partial(trio.to_thread.run_sync, start))
    assert (len(found), len(refused)) == (1, 11)
    await answers(path)
    unix_sockets.remove(found[0])
    found[0].socket.close()


async def test_mistakes_are_named(path: Path):
    folder = path.parent
    (folder / "file").touch()
    for mistake, words in (
        (folder / "no" / "a.sock", "there is no folder"),
        (folder / ("x" * 200), "shorter path"),
        (folder / "file" / "a.sock", "there is no folder"),
    ):
        assert words in await fails(mistake)


async def test_when_one_place_cannot_be_listened_on_the_others_are_closed(path: Path):
    with pytest.raises(UsageError):
        await open_listeners([UnixSocket(str(path)), UnixSocket(str(path.parent / "no" / "b.sock"))])
    assert not path.exists()


async def test_a_command_believes_a_socket_only_of_its_own_users(path: Path) -> None:
    """The folder's owner can exchange the file between a look and a connection, so the connection itself is asked."""
    listening = unix_sockets.listen_at(str(path), 0o666)
    mine = unix_sockets.believed_users()
    others = frozenset({max(mine) + 1})
    with closing(listening.socket):
        assert {0, os.geteuid()} <= mine
        assert unix_sockets.state_of(str(path), mine) == "answers"
        assert unix_sockets.state_of(str(path), others) == "missing"
        address = Address("localhost", 80, "secret", "it", socket=str(path))
        (await connect(replace(address, users=mine))).close()
        with pytest.raises(ConnectFailed, match="another user's program"):
            await connect(replace(address, users=others))
