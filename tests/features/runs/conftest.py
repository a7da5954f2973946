"""Command lines that ask a server which has this process's event loop."""

from __future__ import annotations

import pytest
import trio
from http_harness import Appliance
from runs_harness import Outcome, Verb

from appliance.cli.app import run
from appliance.feature import verb_ground
from appliance.features import FEATURES
from appliance.settings import Program


@pytest.fixture
def verb(capsys: pytest.CaptureFixture[str]) -> Verb:
    """Carry out a verb of the group ``agent``, or of another, against the server."""

    async def awaited(program: Program) -> int:
        return await program or 0  # pyright: ignore[reportGeneralTypeIssues]

    async def carry_out(server: Appliance, word: str, *words: object, group: str = "agent") -> Outcome:
        argv = [group, word, "--url", f"http://127.0.0.1:{server.port}", *map(str, words)]
        capsys.readouterr()
        status = await trio.to_thread.run_sync(
            run, argv, lambda program: trio.from_thread.run(awaited, program), verb_ground(FEATURES)
        )
        return Outcome(status, *capsys.readouterr())

    return carry_out
