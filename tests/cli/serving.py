"""Servers for verbs to ask: in this process, and followed by a verb in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
from command_line import Command
from gguf_files import write_big, write_model
from http_harness import Appliance, OpenServer
from hub_process import FakeHub, fake_hub
from program import COMMAND
from waiting import PATIENCE, wait

Serve = Callable[..., Appliance]
HUB_SIZE = 24 << 20
"""Bytes of the larger model's weights."""


@contextmanager
def two_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[FakeHub]:
    """Run a hub with two sizes of a model, for commands; no two parts of the larger one are alike."""
    write_big(folder / "hub" / "acme" / "tiny-GGUF" / "tiny-Q8_0.gguf", HUB_SIZE)
    write_model(folder / "hub" / "acme" / "tiny-GGUF" / "tiny-F16.gguf", weights=1000)
    with fake_hub(folder / "hub") as running:
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
def serve(command: Command, open_server: OpenServer) -> Generator[Serve]:
    """Start the whole program with keywords of `http_harness.open_appliance`; all are ended after the test."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(in_thread(open_server(**settings)))


@contextmanager
def followed(*words: str) -> Generator[Iterator[str]]:
    """The lines of a verb that goes on, from a process of its own, until it is asked to end."""
    with subprocess.Popen([COMMAND, *words], stdout=subprocess.PIPE, text=True, encoding="utf-8") as reader:
        try:
            yield iter(reader.stdout.readline, "")
        finally:
            reader.terminate()
            reader.communicate(timeout=PATIENCE)
