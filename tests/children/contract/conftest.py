"""The engines that have to agree: the fake, the embedded one, and a real llama-server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest
from contract_harness import Engine, Json, Running, Start, started

from appliance.core.engine import EMBEDDED
from appliance.features.engines.found import list_engines

LONG: Json = {"n_predict": 100_000, "max_tokens": 100_000, "ignore_eos": True}


REAL = pytest.param("llama-server", marks=(pytest.mark.needs("llama-server"), pytest.mark.slow))


@pytest.fixture(scope="module", params=["fake", "embedded", REAL])
def engine(request: pytest.FixtureRequest, starter_model: Path, fake_llama_server: tuple[str, ...]) -> Engine:
    """Each engine in turn, with the starter model."""
    name: str = request.param
    if name == "fake":
        fake: Json = {"fake": {"tokens": 100_000, "token_delay": 0.002}}
        return Engine(name, fake_llama_server, starter_model, LONG | fake)
    for found in list_engines():
        if (found.name == EMBEDDED) == (name == "embedded"):
            return Engine(name, found.command, starter_model, dict(LONG))
    pytest.skip(f"no {name} engine on this machine")


@pytest.fixture
def start(engine: Engine, free_port: Callable[[], int], tmp_path: Path) -> Generator[Start]:
    """Start the engine with these flags and environment; ``ready=False`` does not wait for it."""
    with ExitStack() as stack:

        def begin(
            *flags: str, env: dict[str, str] | None = None, model: Path | None = None, ready: bool = True
        ) -> Running:
            port = free_port()
            argv = engine.argv(port, *flags, model=model)
            running = stack.enter_context(started(argv, port, tmp_path, env))
            if ready:
                running.wait_ready()
            return running

        yield begin


@pytest.fixture(scope="session")
def posix() -> None:
    """For tests of signals."""
    if sys.platform == "win32":
        pytest.skip("Windows has no SIGTERM")
