"""Websockets of configured models: a real server's, through the program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio
from command_lines import command_line
from http_harness import UPGRADE, Appliance, OpenServer
from swap_harness import Configure
from trio_websocket import ConnectionClosed, WebSocketConnection
from waiting import until

from appliance.upstream import websocket

SERVER = Path(__file__).parent / "socket_server.py"


def sockets(*args: object, **keys: object) -> dict[str, object]:
    """A model whose server is `SERVER`."""
    return {"cmd": f"{command_line((sys.executable, str(SERVER)))} ${{PORT}} {command_line([*map(str, args)])}", **keys}


async def refused(server: Appliance, target: str, *headers: tuple[str, str]) -> tuple[int, str]:
    """Status and reason of a handshake's refusal."""
    answer = await server.ask("GET", target, headers=[*UPGRADE, *headers])
    return answer.status, answer.error.get("reason", answer.error["message"])


async def closing(socket: WebSocketConnection) -> tuple[int, str | None]:
    """Code and reason with which it is closed."""
    with pytest.raises(ConnectionClosed) as closed:
        await socket.get_message()
    return int(closed.value.reason.code), closed.value.reason.reason


async def test_messages_pass_in_both_directions(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"org/m": sockets(aliases=["al"])})) as server:
        for target in ("/upstream/org/m/ws", "/upstream/al/ws", "/v1/realtime?model=org/m", "/anything?model=al"):
            async with server.joined(target, subprotocols=["one", "two"]) as socket:
                assert socket.subprotocol == "two"
                for message in ("text é", b"x" * 1_000_000):
                    await socket.send_message(message)
                    assert await socket.get_message() == message
                assert server.fleet.known("org/m").leases == 1
                await socket.aclose()
            await until(lambda: not server.fleet.known("org/m").leases)


async def test_much_of_a_message_without_its_end_is_not_held_for_ever(
    open_server: OpenServer, configured: Configure, monkeypatch: pytest.MonkeyPatch
):
    """One that ended may be followed by as long a silence as the client likes."""
    monkeypatch.setattr(websocket, "CLOSE_TIME", 0.5)
    part = b"\x01\xfe" + (60_000).to_bytes(2, "big") + bytes(4) + b"x" * 60_000  # of a text that goes on
    async with (
        open_server(config=configured({"m": sockets()}), body_stall=0.5) as server,
        server.joined("/upstream/m") as silent,
        server.connect() as client,
    ):
        await silent.send_message("x" * 1_000_000)
        assert len(await silent.get_message()) == 1_000_000
        await client.send("GET", "/upstream/m", headers=UPGRADE)
        assert b" 101 " in await client.stream.receive_some(1000)
        await client.stream.send_all(part + (b"\x00" + part[1:]) * 30)
        assert b"progress" in await client.everything()
        await silent.send_message("there")
        assert await silent.get_message() == "there"


ARRIVES = {
    "/upstream/m/a%2Fb/tell?x=%2F&model=zzz": "/a%2Fb/tell?x=%2F&model=zzz",
    "/tell?model=any&x=1": "/tell?model=m&x=1",
    "/tell?model=al": "/tell?model=al",
    "/tell?model=named": "/tell?model=real",
}


async def test_what_the_server_is_asked_for(open_server: OpenServer, configured: Configure):
    models = {"m": sockets(aliases=["al"]), "named": sockets(useModelName="real")}
    selectors = {"any": {"strategy": "pin", "targets": ["m"]}}
    mine = [(b"Authorization", b"Bearer mine"), (b"Cookie", b"a=b"), (b"X-Forwarded-For", b"9.9.9.9")]
    async with open_server(config=configured(models, selectors=selectors)) as server:
        for target in ("/upstream/m", "/upstream/m?x"):
            async with server.joined(target) as socket:
                await socket.send_message("there")
                assert await socket.get_message() == "there"
        for target, arrives in ARRIVES.items():
            async with server.joined(target, extra_headers=mine) as socket:
                told = json.loads(await socket.get_message())
                assert told["target"] == arrives
                headers = dict(told["headers"])
                assert (headers["authorization"], headers["cookie"]) == ("Bearer mine", "a=b")
                assert headers["x-forwarded-for"] == "9.9.9.9, 127.0.0.1"


async def test_a_server_that_dies_ends_its_websockets(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"m": sockets()})) as server:
        async with server.joined("/upstream/m/die") as socket:
            await socket.send_message("now")
            code, reason = await closing(socket)
            assert (code, "'m' broke the connection" in str(reason)) == (1011, True)
        await until(lambda: server.state("m") == "unloaded")
        async with server.joined("/upstream/m/x") as socket:
            await socket.send_message("again")
            assert await socket.get_message() == "again"


async def test_a_client_that_leaves_while_the_model_loads(open_server: OpenServer, configured: Configure):
    models = {"slow": {"args": ("--load-delay", "90")}}
    async with open_server(config=configured(models)) as server:
        with trio.move_on_after(0.5):
            async with server.joined("/upstream/slow/ws"):
                pass
        await until(lambda: not (server.fleet.known("slow").waiting))


async def test_refusals(open_server: OpenServer, configured: Configure):
    models = {"m": sockets(), "bad": {"args": ("--fail-to-load",)}}
    async with open_server(config=configured(models)) as server:
        assert (await refused(server, "/upstream/gone/ws"))[0] == 404
        assert (await refused(server, "/ws?model=gone"))[1] == "model_not_found"
        assert (await refused(server, "/ws"))[0] == 404
        assert (await refused(server, "/upstream/m/app.js"))[0] == 409
        assert await refused(server, "/upstream/bad/ws") == (500, "model_failed_to_start")


async def test_who_may_open_one(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"m": sockets()}, apiKeys=["mine"])) as server:
        right, evil = ("Authorization", "Bearer mine"), ("Origin", "http://evil.example")
        assert (await refused(server, "/upstream/m/ws"))[0] == 401
        assert (await refused(server, "/upstream/m/ws", ("X-Api-Key", "yours")))[0] == 401
        assert (await refused(server, "/upstream/m/ws", right, evil))[0] == 403
        assert server.fleet.status() == []
        async with server.joined("/upstream/m/tell", extra_headers=[(b"Authorization", b"Bearer mine")]) as socket:
            told = json.loads(await socket.get_message())
            assert "authorization" not in dict(told["headers"])


async def test_one_counts_against_the_limit(open_server: OpenServer, configured: Configure):
    async with (
        open_server(config=configured({"m": sockets(concurrencyLimit=1)})) as server,
        server.joined("/upstream/m/ws"),
    ):
        assert await refused(server, "/upstream/m/ws") == (429, "concurrency_limit")


# ---- ignoreWebsockets ------------------------------------------------------------------------------------------------


async def test_ignored_ones_neither_start_nor_keep_their_model(open_server: OpenServer, configured: Configure):
    models = {"m": sockets(ttl=1, concurrencyLimit=1, compat={"ignoreWebsockets": True}), "comfyui_auto": sockets()}
    groups = {"all": {"swap": False, "members": ["m", "comfyui_auto"]}}
    async with open_server(config=configured(models, groups=groups)) as server:
        for target in ("/upstream/m/ws", "/ws?model=m", "/comfyui/", "/upstream/comfyui_auto/ws"):
            assert await refused(server, target) == (409, "conflict")
        assert server.fleet.status() == []
        used_at = trio.current_time()
        assert (await server.ask("GET", "/upstream/m/x")).status == 200
        async with server.joined("/upstream/m/ws") as first, server.joined("/upstream/m/ws") as second:
            await second.send_message("both")
            assert await second.get_message() == "both"
            assert server.fleet.known("m").leases == 0
            assert (await closing(first))[0] in (1001, 1011)  # its model's time was over
            assert trio.current_time() - used_at >= 1
        await until(lambda: server.state("m") == "unloaded")


# ---- ends from outside -----------------------------------------------------------------------------------------------


async def test_the_end_of_the_server_is_a_goodbye(open_server: OpenServer, configured: Configure, tmp_path: Path):
    note = tmp_path / "note"
    async with open_server(config=configured({"m": sockets(note)}), grace=1.5) as server:
        async with server.joined("/upstream/m/note") as socket, server.joined("/api/link") as link:
            await socket.send_message("x")
            assert await socket.get_message() == "x"
            assert await link.get_message()
            server.shutdown.set()
            assert await closing(link) == (1001, "the server is shutting down")  # at once, and not after the grace
            await socket.send_message("still")
            assert await socket.get_message() == "still"
            assert await closing(socket) == (1001, "the server is shutting down")
        await server.end()


async def test_the_end_of_the_server_refuses_who_waits(open_server: OpenServer, configured: Configure):
    async with (
        open_server(config=configured({"slow": {"args": ("--load-delay", "90")}}), grace=0.3) as server,
        server.connect() as client,
    ):
        await client.send("GET", "/upstream/slow/ws", headers=UPGRADE)
        await until(lambda: server.state("slow") == "loading")
        server.shutdown.set()
        answer = await client.answer()
        assert (answer.status, answer.error["reason"]) == (503, "shutting_down")


async def test_one_can_be_cancelled(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"m": sockets()})) as server:
        async with server.joined("/upstream/m/ws") as socket:
            await socket.send_message("there")
            await socket.get_message()
            assert (await server.ask("POST", "/api/inflight/1/cancel")).status == 200
            code, reason = await closing(socket)
            assert (code, "cancelled" in str(reason)) == (1001, True)
        await until(lambda: not server.fleet.known("m").leases)
