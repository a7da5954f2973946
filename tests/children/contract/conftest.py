"""The engines that have to agree: the fake, the embedded one, and a real llama-server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from contract_harness import Engine, Json

from appliance.engines.found import EMBEDDED, list_engines

REQUIRE = "LLAMA_APPLIANCE_REQUIRE_ENGINE"
"""Set to 1, an engine that is not there fails its tests instead of skipping them."""

LONG: Json = {"n_predict": 100_000, "max_tokens": 100_000, "ignore_eos": True}


@pytest.fixture(scope="module", params=["fake", "embedded", pytest.param("llama-server", marks=pytest.mark.real_llama)])
def engine(request: pytest.FixtureRequest, starter_model: Path, fake_llama_server: tuple[str, ...]) -> Engine:
    """Each engine in turn, with the starter model."""
    name: str = request.param
    if name == "fake":
        fake: Json = {"fake": {"tokens": 100_000, "token_delay": 0.002}}
        return Engine(name, fake_llama_server, starter_model, LONG | fake)
    for found in list_engines():
        if (found.name == EMBEDDED) == (name == "embedded"):
            return Engine(name, found.command, starter_model, dict(LONG))
    missing = f"no {name} engine on this machine"
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{missing}, and {REQUIRE}=1")
    pytest.skip(missing)


@pytest.fixture(scope="session")
def posix() -> None:
    """For tests of signals."""
    if sys.platform == "win32":
        pytest.skip("Windows has no SIGTERM")
