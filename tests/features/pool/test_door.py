"""The door of a box of a pool: who is let in, what is answered there, and connections that the other side has made."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
import trio
from connection_harness import Gateway, echo, serving, websocket_server
from http_harness import CHAT, Appliance, OpenServer, chat
from msgspec import structs
from pool_seat import seat_of
from trio.testing import wait_all_tasks_blocked
from waiting import until

from appliance.core.config.types import Config, Peer
from appliance.errors import BadRequest, BoxFailed, Conflict, StoreFailed, UpstreamFailed
from appliance.features.pool import owner as owner_module
from appliance.features.pool.core.join_code import TOKEN_SIZE, JoinCode, read_code
from appliance.features.pool.core.keys import PoolKeys
from appliance.features.pool.core.roster import Box, Roster
from appliance.features.pool.core.shapes import CreatePool, PoolState
from appliance.features.pool.doors import (
    PROTOCOL,
    ROSTER,
    SWITCHED,
    Dialled,
    JoinRequest,
    OtherKeys,
    Ways,
    ask_at,
    join_with,
)
from appliance.features.pool.membership import Membership
from appliance.features.pool.peers import Peers, open_peers
from appliance.features.pool.pool_file import KeptPool, certificate_files, write_pool
from appliance.features.pool.reverse import dial
from appliance.features.sockets.relay import join_peers
from appliance.http.bytes import listening
from appliance.http.sockets.handshake import Handshake
from appliance.traffic.request import Request
from appliance.upstream.client import Address, HttpCall
from appliance.upstream.connect import ConnectFailed, NotTrusted
from appliance.upstream.pool import open_pool
from appliance.upstream.websocket import Close, open_upstream_websocket

B2 = Box(name="b2", addresses=("127.0.0.1",), port=4280)
JSON = ((b"Content-Type", b"application/json"),)
QUESTION = b'{"model":"alpha","messages":[{"role":"user","content":"hi"}]}'


@asynccontextmanager
async def first_box(open_server: OpenServer, file: Path) -> AsyncGenerator[tuple[Appliance, Membership, JoinCode]]:
    """A program in a pool of its own, and a code of it."""
    async with open_server(pool=file) as server:
        owner = await seat_of(server).require()
        made = await owner.create(CreatePool(name="b1", addresses=["127.0.0.1"], port=0))
        yield server, owner.require(), read_code(made.code)


async def test_a_box_of_another_version_is_told_which_one_to_upgrade(open_server: OpenServer, tmp_path: Path) -> None:
    async with first_box(open_server, tmp_path / "pool.json") as (_, _, code):
        for protocol, older in ((PROTOCOL + 1, "this box"), (PROTOCOL - 1, "the box that joins")):
            with pytest.raises(BadRequest, match=f"upgrade {older}"):
                await join_with(code, JoinRequest(token=code.token, box=B2, protocol=protocol))
        await join_with(code, JoinRequest(token=code.token, box=B2))


@asynccontextmanager
async def impostor() -> AsyncGenerator[tuple[int, list[bytes]]]:
    """A server with a certificate of another pool for b1: its port, and the bytes that it has heard over TLS."""
    own = PoolKeys(b"i" * 32).issue("b1", ("127.0.0.1",), b"s" * 32)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with certificate_files(own) as files:
        context.load_cert_chain(*files)
    heard: list[bytes] = []

    async def impose(stream: trio.SocketStream) -> None:
        secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        try:
            heard.append(bytes(await secure.receive_some()))
        except trio.BrokenResourceError:
            heard.append(b"")

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, impose, [listener])
        yield listener.socket.getsockname()[1], heard
        nursery.cancel_scope.cancel()


async def test_an_impostor_at_the_address_gets_no_token() -> None:
    real = PoolKeys(bytes(32))
    async with impostor() as (port, heard):
        token = bytes(TOKEN_SIZE)
        code = JoinCode(addresses=("127.0.0.1",), port=port, ca_public=real.ca_public, token=token)
        with pytest.raises(BoxFailed, match="another server, or a box of another pool"):
            await join_with(code, JoinRequest(token=token, box=B2))
    assert b"".join(heard) == b""


async def test_an_impostor_gets_no_key_of_a_box_that_dials_out() -> None:
    async with impostor() as (port, heard):
        b1 = Box(name="b1", addresses=("127.0.0.1",), port=port)
        with pytest.raises(NotTrusted):
            await dial(Ways(PoolKeys(bytes(32))).guess(b1), "b2")
    assert b"".join(heard) == b""


async def test_members_get_answers_of_models_here_alone(open_server: OpenServer, tmp_path: Path) -> None:
    async with first_box(open_server, tmp_path / "pool.json") as (_, membership, _):
        address = Ways(membership.keys).guess(membership.roster.boxes[0])
        other = QUESTION.replace(b"alpha", b"gamma")
        for body, status in ((QUESTION, 200), (QUESTION, 200), (other, 404)):  # the second takes the fast path
            async with HttpCall(address, "POST", CHAT, JSON, body) as answer:
                content = await answer.read(1 << 20)
            assert answer.status == status, content
        bare = structs.replace(address, key_headers=())
        async with HttpCall(bare, "POST", CHAT, (), QUESTION) as refused:
            assert refused.status == 401
        async with HttpCall(address, "GET", "/api/blobs") as unnamed:
            assert (unnamed.status, b"name a model" in await unnamed.read(1 << 20)) == (400, True)


async def test_a_renewed_secret_ends_what_old_keys_have_begun(open_server: OpenServer, tmp_path: Path) -> None:
    async with first_box(open_server, tmp_path / "pool.json") as (_, membership, _):
        box, old = membership.roster.boxes[0], Ways(membership.keys)
        slow = msgspec.json.encode(chat(stream=True, tokens=10_000, token_delay=0.01))
        async with HttpCall(old.guess(box), "POST", CHAT, JSON, slow) as answer:
            assert (await answer.receive()).startswith(b"data: ")
            await membership.rotate(())
            with trio.fail_after(20):
                assert b"invalid_api_key" in await answer.read(1 << 20)
        with pytest.raises(OtherKeys):
            await old.ask(box, "GET", ROSTER, Roster)
        assert await Ways(membership.keys).ask(box, "GET", ROSTER, Roster) == membership.roster


async def test_of_two_changes_on_the_same_roster_one_is_in_force(open_server: OpenServer, tmp_path: Path) -> None:
    async with first_box(open_server, tmp_path / "pool.json") as (_, membership, _):
        box, ways = membership.roster.boxes[0], Ways(membership.keys)
        address, base = ways.guess(box), membership.roster
        wanted = [base.with_box(structs.replace(B2, name=name)) for name in ("b2", "b3")]
        found = [await ask_at(address, "POST", ROSTER, Roster, one) for one in wanted]
        assert found == [wanted[0], wanted[0]]
        with pytest.raises(Conflict, match="another pool"):
            await ask_at(address, "PUT", ROSTER, Roster, structs.replace(wanted[0], pool="other"))
        assert await ask_at(address, "PUT", ROSTER, Roster, base) == wanted[0]


async def test_a_damaged_file_is_a_problem_and_no_silent_end_of_the_pool(
    open_server: OpenServer, tmp_path: Path
) -> None:
    file = tmp_path / "pool.json"
    file.write_bytes(b'{"version":1,"secret":"')
    async with open_server(pool=file) as server:
        owner = await seat_of(server).require()
        (problem,) = owner.state().problems
        assert str(file) in problem.text
        with pytest.raises(StoreFailed, match="damaged"):
            await owner.create(CreatePool(name="b1", addresses=["127.0.0.1"], port=0))
    assert file.read_bytes() == b'{"version":1,"secret":"'


async def test_a_box_whose_port_is_taken_says_so_and_opens_its_door_later(
    open_server: OpenServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "PROBE_TIME", 0.3)  # nothing answers there
    monkeypatch.setattr(owner_module, "AGAIN", 0.1)
    file = tmp_path / "pool.json"
    async with first_box(open_server, file) as (_, membership, _):
        port, roster = membership.roster.boxes[0].port, membership.roster
    with socket.create_server(("0.0.0.0", port)):
        async with open_server(pool=file) as server:
            owner = await seat_of(server).require()
            state = await until(owner.state, lambda state: state.problems)
            assert (state.pool, [one.id for one in state.problems]) == (roster.pool, ["door"])
            assert f":{port}" in state.problems[0].text
            await owner.leave(None)
            assert owner.state() == PoolState()
            assert not file.exists()
    write_pool(file, KeptPool(secret=bytes(32), me="b1", roster=roster, chosen=True))
    sock = socket.create_server(("0.0.0.0", port))
    async with open_server(pool=file) as server:
        owner = await seat_of(server).require()
        await until(owner.state, lambda state: state.problems)
        sock.close()
        await until(owner.state, lambda state: not state.problems)
        assert await Ways(PoolKeys(bytes(32))).ask(roster.boxes[0], "GET", ROSTER, Roster) == roster


async def test_a_program_that_ends_lets_other_boxes_finish(open_server: OpenServer, tmp_path: Path) -> None:
    async with first_box(open_server, tmp_path / "pool.json") as (server, membership, _):
        address = Ways(membership.keys).guess(membership.roster.boxes[0])
        body = msgspec.json.encode(chat(stream=True, tokens=100, token_delay=0.01))
        async with HttpCall(address, "POST", CHAT, JSON, body) as answer:
            assert (await answer.receive()).startswith(b"data: ")
            server.shutdown.set()
            assert b"[DONE]" in await answer.read(1 << 20)
        with pytest.raises(UpstreamFailed):
            async with HttpCall(address, "GET", "/health"):
                pass


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def pair() -> tuple[socket.socket, socket.socket]:
    near, far = socket.socketpair()
    near.setblocking(False)
    far.settimeout(10)
    return near, far


@pytest.mark.parametrize("polled", [False, True])
async def test_a_request_goes_out_on_a_connection_that_came_in(polled: bool) -> None:
    dialled = Dialled()
    address = Address("box.llama-pool", 1, None, "box", tls=True, dialled=dialled, connect_timeout=5)
    (broken, gone), (good, far) = pair(), pair()
    gone.close()
    far.sendall(ANSWER)
    async with open_pool() as pool:
        with dialled.waiting(lambda: None), dialled.waiting(lambda: good), dialled.waiting(lambda: broken):
            async with HttpCall(address, "GET", "/health", pool=pool if polled else None) as answer:
                assert await answer.read(10) == b"ok"
            with far:
                received = far.recv(4096)
            assert received.startswith(SWITCHED + b"GET /health HTTP/1.1\r\nHost: box.llama-pool:1\r\n")
            with pytest.raises(ConnectFailed, match="has no connection to this box"):
                async with HttpCall(structs.replace(address, connect_timeout=0.01), "GET", "/health"):
                    pass
    assert (broken.fileno(), good.fileno()) == (-1, -1)


async def test_a_request_waits_for_the_next_connection() -> None:
    dialled, (near, far) = Dialled(), pair()
    taken: list[object] = []

    async def take() -> None:
        taken.append(await dialled.take(10))

    with near, far:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            await wait_all_tasks_blocked()
            with dialled.waiting(lambda: near):
                await wait_all_tasks_blocked()
                assert taken == [near]
        with dialled.waiting(lambda: near):
            pass
        assert await dialled.take(0.01) is None  # it ended while it waited


class Joining(Gateway):
    """Joins every websocket with a peer's."""

    def __init__(self, peers: Peers, *candidates: str) -> None:
        self._peers = peers
        self._candidates = [(name, "m") for name in candidates]

    async def join(self, request: Request, handshake: Handshake) -> None:
        await join_peers(self._peers, self._candidates, handshake, request.target, request.headers)


async def test_it_goes_to_the_peer_that_is_there(free_port: Callable[[], int]):
    async with websocket_server(echo) as port:
        gone, well = Peer(proxy=f"http://127.0.0.1:{free_port()}"), Peer(proxy=f"http://127.0.0.1:{port}")
        async with (
            open_peers(Config(peers={"gone": gone, "well": well})) as peers,
            serving(Joining(peers, "gone", "well")) as relay,
            open_upstream_websocket(Address("127.0.0.1", relay, None, "the relay"), "/") as websocket,
        ):
            assert await websocket.send("hello")
            assert await websocket.receive() == "hello"
            assert {status.id: status.busy for status in peers.snapshot()} == {"gone": 0, "well": 1}
            await websocket.close(Close(1000))


def test_other_boxes_are_told_no_address_that_leads_them_to_themselves() -> None:
    found = [ip_address(each) for each in owner_module.own_addresses()]
    assert found == [ip_address("127.0.0.1")] or not any(each.is_loopback or each.is_link_local for each in found)
    assert found
