"""A hub for the command line, and servers in this process for it to ask."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
from command_line import Command
from gguf_files import write_big, write_model
from http_harness import Appliance, OpenServer
from hub_process import FakeHub, fake_hub
from waiting import PATIENCE, wait

HUB_SIZE = 24 << 20
"""Bytes of the larger model's weights."""


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    """A file that may be named as a model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_environment: None) -> Generator[FakeHub]:
    """A hub with two sizes of a model; no two parts of the larger one are alike."""
    folder = tmp_path / "hub" / "acme" / "tiny-GGUF"
    write_big(folder / "tiny-Q8_0.gguf", HUB_SIZE)
    write_model(folder / "tiny-F16.gguf", weights=1000)
    with fake_hub(tmp_path / "hub") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@contextmanager
def in_thread(opening: AbstractAsyncContextManager[Appliance]) -> Generator[Appliance]:
    """Serve in a thread with a loop of its own, so that verbs can ask from this one."""
    opened: list[tuple[Appliance, Callable[[], None]]] = []

    async def serve() -> None:
        async with opening as appliance:
            end, token = trio.Event(), trio.lowlevel.current_trio_token()
            opened.append((appliance, lambda: token.run_sync_soon(end.set)))
            await end.wait()

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(trio.run, serve)
        [(appliance, end)] = wait(lambda: opened or (serving.done() and serving.result()))
        try:
            yield appliance
        finally:
            end()
            serving.result(PATIENCE)


@pytest.fixture
def serve(command: Command, open_server: OpenServer) -> Generator[Callable[..., Appliance]]:
    """Start the whole program with keywords of `http_harness.open_appliance`; all are ended after the test."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(in_thread(open_server(**settings)))
