"""Listening on a file: who may connect, what is replaced and removed, and what is not."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from http_harness import CHAT, Answer, Client, OpenServer, chat

from appliance.core.settings import HttpSettings, UnixSocket
from appliance.errors import UsageError
from appliance.http.bytes.listening import open_listeners, shown, url_of
from appliance.platform import unix_sockets

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Python has no Unix sockets on Windows")


@pytest.fixture
def folder() -> Generator[Path]:
    """With a short name: a socket's path has room for a hundred bytes."""
    with TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@asynccontextmanager
async def connected(path: Path) -> AsyncGenerator[Client]:
    async with await trio.open_unix_socket(path) as stream:
        yield Client(stream)


async def ask(path: Path, method: str, target: str, body: object = None, **headers: str) -> Answer:
    with trio.fail_after(10):
        async with connected(path) as client:
            content = None if body is None else json.dumps(body).encode()
            await client.send(method, target, content, headers.items())
            return await client.answer()


def listening(path: Path, **more: object) -> HttpSettings:
    return HttpSettings(listen=(UnixSocket(str(path)),), **more)


async def fails(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        await open_listeners([UnixSocket(str(path))])
    return str(caught.value)


async def test_a_server_on_a_file(open_server: OpenServer, folder: Path):
    path = folder / "a.sock"
    both = HttpSettings(listen=(("127.0.0.1", 0), UnixSocket(str(path))))
    async with open_server(http=both) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await ask(path, "GET", "/health")).status == 200
        assert len((await ask(path, "POST", CHAT, chat(stream=True, tokens=3))).events) >= 3
        page = await ask(path, "GET", "/ui/status")
        assert str(path).encode() in page.body
        assert (await server.ask("GET", "/health")).status == 200
        await server.end()
        assert not path.exists()


async def test_a_large_request_and_a_client_that_leaves(open_server: OpenServer, folder: Path):
    path = folder / "a.sock"
    async with open_server(http=HttpSettings(listen=(("127.0.0.1", 0), UnixSocket(str(path))))) as server:
        long = {**chat(tokens=2), "padding": "x" * 2_000_000}
        assert (await ask(path, "POST", CHAT, long)).status == 200
        async with connected(path) as client:
            body = json.dumps(chat(stream=True, tokens=10_000, token_delay=0.01)).encode()
            await client.send("POST", CHAT, body)
            await client.head()
        await server.wait_idle("alpha")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "unix"}, 200),
        ({"Host": ""}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost:3000"}, 200),
    ],
)
async def test_host_and_origin_are_checked_as_elsewhere(
    open_server: OpenServer, folder: Path, headers: dict[str, str], status: int
):
    """A web server in front, which reaches the file, may pass on what a page that is somebody else's has sent."""
    path = folder / "a.sock"
    async with open_server(http=HttpSettings(listen=(("127.0.0.1", 0), UnixSocket(str(path))))):
        assert (await ask(path, "GET", "/v1/models", **headers)).status == status


async def test_permissions_can_be_chosen(folder: Path):
    (listener,) = await open_listeners([UnixSocket(str(folder / "a.sock"), mode=0o660)])
    try:
        assert stat.S_IMODE((folder / "a.sock").stat().st_mode) == 0o660
    finally:
        listener.close()


@pytest.mark.needs("root")
async def test_other_users_are_kept_out(folder: Path):
    folder.chmod(0o755)  # noqa: ASYNC240
    (listener,) = await open_listeners([UnixSocket(str(folder / "a.sock"))])
    try:
        with as_nobody(), pytest.raises(PermissionError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(folder / "a.sock"))
    finally:
        listener.close()


@contextmanager
def as_nobody() -> Generator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_socket_that_nobody_answers_on_is_replaced(folder: Path):
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    (listener,) = await open_listeners([UnixSocket(str(path))])
    async with await trio.open_unix_socket(path):
        pass
    listener.close()
    listener.close()
    assert not path.exists()


async def test_a_socket_that_somebody_answers_on_is_left_alone(folder: Path):
    path = folder / "a.sock"
    (first,) = await open_listeners([UnixSocket(str(path))])
    try:
        assert "another program listens there already" in await fails(path)
        async with await trio.open_unix_socket(path):
            pass
    finally:
        first.close()


async def test_a_busy_program_counts_as_answering(folder: Path):
    path = folder / "a.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.setblocking(False)
        waiting.connect(str(path))
        assert "another program listens there already" in await fails(path)
        assert path.exists()


async def test_other_files_are_never_removed(folder: Path):
    for name, make in (("file", Path.touch), ("folder", Path.mkdir), ("pipe", os.mkfifo)):
        make(folder / name)
        assert "not a socket" in await fails(folder / name)
        assert (folder / name).exists()
    (folder / "link").symlink_to(folder / "nowhere")
    assert "not a socket" in await fails(folder / "link")
    assert (folder / "link").is_symlink()


async def test_a_file_that_another_program_put_there_meanwhile_is_not_removed(folder: Path):
    path = folder / "a.sock"
    (ours,) = await open_listeners([UnixSocket(str(path))])
    path.unlink()
    (theirs,) = await open_listeners([UnixSocket(str(path))])
    ours.close()
    async with await trio.open_unix_socket(path):
        pass
    theirs.close()
    assert not path.exists()


async def test_of_many_that_start_at_once_one_listens(folder: Path):
    """All find the same dead socket; none may remove what another has just made."""
    path = folder / "a.sock"
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
    async with await trio.open_unix_socket(path):
        pass
    unix_sockets.remove(found[0])
    found[0].socket.close()


async def test_mistakes_are_named(folder: Path):
    assert "there is no folder" in await fails(folder / "no" / "a.sock")
    assert "shorter path" in await fails(folder / ("x" * 200))
    (folder / "file").touch()
    assert "there is no folder" in await fails(folder / "file" / "a.sock")


async def test_when_one_place_cannot_be_listened_on_the_others_are_closed(folder: Path):
    path = folder / "a.sock"
    with pytest.raises(UsageError):
        await open_listeners([UnixSocket(str(path)), UnixSocket(str(folder / "no" / "b.sock"))])
    assert not path.exists()


def test_where_is_told_in_words():
    assert url_of(("::1", 80), tls=True) == "https://[::1]:80"
    assert url_of(("127.0.0.1", 80), tls=False) == "http://127.0.0.1:80"
    assert url_of(UnixSocket("/run/x.sock"), tls=True) == "unix:/run/x.sock"
    assert shown(UnixSocket("/run/x.sock")) == "/run/x.sock"
