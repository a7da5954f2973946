"""What the memory plan sets is what real engines then do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from command_line import Command
from program import Answer, StartServer, http

from appliance.catalog.sources import STARTER


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "context", "told"),
    [
        ((), 8192, "4 slots of 8192 tokens, so that none ends the others"),
        (("--", "--ctx-size", "1024"), 1024, "one slot, so that it has the whole context"),
    ],
    ids=["planned", "said"],
)
def test_one_conversations_growth_ends_no_other(
    start_server: StartServer, engine: str, flags: tuple[str, ...], context: int, told: str
) -> None:
    """llama-server ends the answers of all slots when the context that they share is full (llama.cpp #23652).

    ``context`` is what four slots would share. A conversation takes a third of it.
    """
    argv = ("serve", "--listen", "127.0.0.1:0", "--engine", engine, "--threads", "1", "--no-stores", *flags)
    server = start_server(*argv)
    assert http(server, "POST", "/api/engines/probe").status == 200

    def grow(number: int) -> Answer:
        prompt = [number + 1] * (context // 3 - 100)
        body = {"model": "starter", "prompt": prompt, "n_predict": 100, "ignore_eos": True}
        return http(server, "POST", "/completion", body, timeout=300)

    with ThreadPoolExecutor(4) as at_once:
        answers = list(at_once.map(grow, range(4)))
    assert [answer.status for answer in answers] == [200] * 4, [answer.body[:200] for answer in answers]
    assert [answer.json()["tokens_predicted"] for answer in answers] == [100] * 4
    fit = http(server, "GET", "/api/fit?model=starter").json()
    slots = http(server, "GET", "/slots?model=starter").json()
    assert [slot["n_ctx"] for slot in slots] == [fit["slot_context"]] * fit["parallel"]
    assert fit["slot_context"] * fit["parallel"] <= fit["context"]
    assert told in fit["why"]
    assert f"the memory plan sets {' '.join(fit['flags'])}: " in http(server, "GET", "/logs").body.decode()


def test_what_a_load_would_stop_is_said_before_and_is_what_goes(
    serve: StartServer, engine: str, command: Command
) -> None:
    server = serve("--no-stores", "--models-max", "1", "--model", f"two={STARTER}", engine=engine)
    cli = command.at(server.url)

    def foreseen(model: str) -> dict[str, object]:
        return http(server, "GET", f"/api/memory?model={model}").json()["load"]

    assert "No model has to go.\nIts time to load is not known yet." in cli.good("memory", "starter")
    cli.good("load", "starter")
    assert foreseen("two") | {"takes": 0, "why": ""} == {
        "model": "two", "state": "unloaded", "takes": 0, "goes": ["starter"], "held": [], "before": [],
        "expected": None, "fits": "fits", "why": "", "refused": False,
    }  # fmt: skip
    assert "It would stop starter." in cli.good("memory", "two")
    [ram, *_] = http(server, "GET", "/api/memory").json()["devices"]
    [share] = ram["models"]
    assert share["model"] == "starter"
    assert share["total"] == share["weights"] + share["context"] + share["compute"] + share["rest"]
    assert 2e6 < share["weights"] < 4e6, "the starter model's file has 2.6 MB"
    cli.good("load", "two")
    assert [status["model"] for status in http(server, "GET", "/running").json()["running"]] == ["two"]
    assert foreseen("starter")["goes"] == ["two"]
    assert "Loading would take about " in cli.good("memory", "starter"), "its load was measured before"
    assert http(server, "GET", "/api/memory?model=nobody").status == 404
