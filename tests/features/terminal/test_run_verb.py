"""``run`` without a server: the command loads the model itself."""

from __future__ import annotations

import json

from command_line import Command
from program import STARTER_QUESTION


def test_run_loads_the_model_itself(command: Command, engine: str) -> None:
    done = command("run", "starter", STARTER_QUESTION, "--engine", engine)
    assert done.status == 0, done.err
    assert len(done.out.split()) >= 3
    assert "no server is running" in done.err
    piped = command("run", "starter", "--engine", engine, "--json", stdin=STARTER_QUESTION)
    assert json.loads(piped.out)["choices"][0]["message"]["content"] == done.out.strip()
    command.bad("run", "startr", "hi", "--engine", engine)
