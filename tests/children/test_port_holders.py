"""A model's port is held by the model's own process, or the model is not ready."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
from configured_harness import PLAIN, Fleets, Settings, ask
from waiting import until

from appliance.core.config.types import Compat, ModelConfig
from appliance.errors import ModelFailedToStart
from appliance.fleet.launch import listens_itself
from appliance.platform.ports import foreign_holder, free_port
from appliance.upstream.client import Address

SOON = {"m": {"health_check_timeout": 1.5}}


def late(port: int, compat: Settings | None = None) -> Settings:
    """A model whose command does not listen, as one that still reads its file."""
    said: Settings = {"compat": compat} if compat else {}
    # it is given up long before
    return {"cmd": f"sh -c 'echo up on {port}; exec sleep 30'", "proxy": f"http://127.0.0.1:{port}", **said}


async def answer_all(stream: trio.SocketStream) -> None:
    await stream.receive_some(1 << 16)
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nforeign")
    await stream.aclose()


@pytest.mark.skipif(sys.platform == "win32", reason="the model is a shell's")
async def test_another_program_on_the_port_is_not_the_model(fleets: Fleets, caplog: pytest.LogCaptureFixture):
    port = free_port()
    async with fleets.open({"m": late(port)}, SOON) as world, trio.open_nursery() as nursery:
        failed: list[ModelFailedToStart] = []

        async def load() -> None:
            with pytest.raises(ModelFailedToStart) as told:
                await world.load("m")
            failed.append(told.value)
            nursery.cancel_scope.cancel()

        nursery.start_soon(load)
        await world.until_logged("m", f"up on {port}")
        await nursery.start(partial(trio.serve_tcp, answer_all, port, host="127.0.0.1"))
    (failure,) = failed
    assert f"port {port} is held by " in str(failure)
    assert f"(process {os.getpid()})" in str(failure)
    assert f"(process {os.getpid()})" in caplog.text  # at once, and once
    assert caplog.text.count("is not used: ") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="the model is a shell's")
async def test_a_container_or_a_service_says_that_it_holds_the_port(fleets: Fleets):
    port = free_port()
    async with fleets.open({"m": late(port, {"foreignPort": True})}) as world, trio.open_nursery() as nursery:
        nursery.start_soon(world.load, "m")
        await world.until_logged("m", f"up on {port}")
        await nursery.start(partial(trio.serve_tcp, answer_all, port, host="127.0.0.1"))
        await world.until_state("m", "loaded")
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform == "win32", reason="the model is a shell's")
async def test_what_the_command_has_started_may_hold_it(fleets: Fleets):
    """A wrapper that waits for its server, and one whose server has left it."""
    # it is stopped long before
    for shell in ("{}; true", "({} &) ; sleep 30"):
        model = fleets.server("m", within=f'sh -c "{shell}"')
        async with fleets.open({"m": model}) as world, world.lease("m") as address:
            assert await ask(address)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_the_holder_of_a_port():
    port = free_port()
    command = [sys.executable, "-S", "-E", str(PLAIN), f"port={port}"]
    with subprocess.Popen(  # noqa: ASYNC220
        command, stdout=subprocess.DEVNULL, start_new_session=True
    ) as server:
        try:
            await until(lambda: is_open(port))
            assert foreign_holder(server.pid, port) is None
            assert foreign_holder(os.getpid(), port) is None  # it is a child of this process
            with subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
            ) as no:
                assert f"(process {server.pid})" in str(foreign_holder(no.pid, port))
                no.kill()
        finally:
            server.kill()


@pytest.mark.parametrize(
    ("argv", "compat", "itself"),
    [
        (["llama-server", "--port", "5800"], Compat(), True),
        (["/usr/bin/docker", "run", "-p", "5800:8080", "image"], Compat(), False),
        (["sh", "-c", "exec podman run -p 5800:8080 image"], Compat(), False),
        (["llama-server", "--port", "5800"], Compat(foreign_port=True), False),
        (["llama-server", "--port", "5801"], Compat(), False),
        (["llama-server", "-m", str(Path("/models/docker-like.gguf")), "--port", "5800"], Compat(), True),
    ],
)
def test_whose_port_is_looked_at(argv: list[str], compat: Compat, itself: bool):
    config = ModelConfig(argv=argv, compat=compat)
    assert listens_itself(config, Address("127.0.0.1", 5800, None, "m")) is itself
