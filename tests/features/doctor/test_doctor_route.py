"""``GET /api/doctor``: the server's own findings, examined when somebody asks, and shared by those who ask at once."""

from __future__ import annotations

import io
import json
import zipfile
from functools import partial
from typing import Any

import pytest
import trio
from http_harness import CHAT, Appliance, OpenServer, chat
from swap_harness import Configure
from waiting import until

from appliance.core.findings import Finding
from appliance.features.doctor import examining


@pytest.fixture(autouse=True)
def examines_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "EVERY", 0.2)


async def findings(server: Appliance) -> dict[str, dict[str, Any]]:
    told = (await server.good("GET", "/api/doctor")).json
    assert told["ok"] == all(one["severity"] == "note" for one in told["findings"])
    assert all(set(one) == set(Finding.__struct_fields__) for one in told["findings"])
    return {one["id"]: one for one in told["findings"]}


async def test_a_model_that_failed_and_a_setting_without_effect(configured: Configure, open_server: OpenServer) -> None:
    file = configured({"sick": {"args": ["--fail-to-load"], "env": ["JUST_A_NAME"]}})
    async with open_server(config=file) as server:
        before = await findings(server)
        assert "model-failed" not in before
        (evidence,) = before["config-warnings"]["evidence"]
        assert "env[0]" in evidence
        assert "JUST_A_NAME" not in evidence, "it may be a secret"
        assert (await server.ask("POST", CHAT, chat("sick"))).status == 500
        after = await until(partial(findings, server), lambda found: "model-failed" in found)
        assert after["model-failed"]["severity"] == "error"
        assert "llama-appliance logs sick" in after["model-failed"]["commands"]
        assert after["model-failed"]["since"] > after["config-warnings"]["since"] == before["config-warnings"]["since"]
        line = (await server.ask("GET", "/api/doctor?line=1")).json
        assert (line["ok"], line["findings"][0]) == (False, "model-failed")
        assert line["errors"] + line["warnings"] + line["notes"] == len(after)

        for _ in range(4):
            await server.ask("POST", CHAT, chat("sick"))
        again = await until(partial(findings, server), lambda found: {"crash-loop", "requests-fail"} <= found.keys())
        assert (again["crash-loop"]["severity"], again["crash-loop"]["model"]) == ("error", "sick")
        assert again["requests-fail"]["evidence"][0] == "5 of 5 in the last hour"

        file.write_text("models: [", "utf-8")
        broken = await until(partial(findings, server), lambda found: "config-errors" in found)
        assert str(file) in broken["config-errors"]["evidence"][0]
        assert (await server.ask("GET", "/v1/models")).json["data"][0]["id"] == "sick", "what is in force stays"


async def test_a_collector_that_is_away_is_told(configured: Configure, open_server: OpenServer) -> None:
    async with open_server(config=configured({"alpha": {}}, tracing={"endpoint": "http://127.0.0.1:9"})) as server:
        assert (await server.ask("POST", CHAT, chat())).status == 200
        found = await until(partial(findings, server), lambda found: "traces-not-taken" in found)
        assert "http://127.0.0.1:9" in found["traces-not-taken"]["evidence"][0]


async def test_those_who_ask_at_once_share_an_examination(server: Appliance) -> None:
    async def facts() -> dict[str, Any]:
        return (await server.ask("GET", "/api/doctor")).json["facts"]

    at_once: list[float] = []

    async def note() -> None:
        at_once.append((await facts())["now"])

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(note)
    assert len(set(at_once)) == 1
    later = await until(facts, lambda found: found["now"] > at_once[0])
    assert later["server"]["answer"] == "answers"


async def test_a_server_with_a_key_says_nothing_to_others(open_server: OpenServer) -> None:
    async with open_server(api_keys=("secret",)) as server:
        assert (await server.ask("GET", "/api/doctor")).status == 401
        told = await server.good("GET", "/api/doctor", headers=[("Authorization", "Bearer secret")])
        assert b"secret" not in told.body


async def test_a_command_line_that_has_no_effect_is_named(server: Appliance) -> None:
    """The words are those of an engine at its start."""
    assert (await server.ask("POST", CHAT, chat())).status == 200
    server.fleet.logs.append("alpha", "warning: --log-colors has no effect: the embedded engine has none")
    found = await until(partial(findings, server), lambda found: "option-without-effect" in found)
    assert "alpha" in found["option-without-effect"]["title"]
    await server.fleet.unload("alpha")
    assert (await server.ask("POST", CHAT, chat())).status == 200
    await until(partial(findings, server), lambda found: "option-without-effect" not in found)


async def test_the_bundle_is_what_the_command_packs_and_logs_come_when_asked_for(
    configured: Configure, open_server: OpenServer
) -> None:
    key, said = "qKeyOfTheTest7Z", "what the engine said to qKeyOfTheTest7Z"
    file = configured({"model": {"env": [f"A_TOKEN={key}"]}})
    async with open_server(config=file, api_keys=("of-the-server",)) as server:
        allowed = [("Authorization", "Bearer of-the-server")]
        assert (await server.ask("GET", "/api/report")).status == 401
        assert (await server.ask("POST", CHAT, chat("model"), headers=allowed)).status == 200
        server.fleet.logs.append("model", f"{said} in /home/somebody/x, of-the-server")

        async def files(query: str = "") -> dict[str, str]:
            answer = await server.good("GET", f"/api/report{query}", headers=allowed)
            with zipfile.ZipFile(io.BytesIO(answer.body)) as packed:
                return {name: packed.read(name).decode() for name in packed.namelist()}

        whole = await files("?logs=1")
        assert set(whole) == {"report.json", "logs/program.log", "logs/model-1.log"}
        assert "what the engine said to [REDACTED] in /home/<user>/x, <removed>\n" in whole["logs/model-1.log"]
        assert "model 'model'" in whole["logs/program.log"]
        report = json.loads(whole["report.json"])
        assert [(one["kind"], one["model"]) for one in report["history"]] == [("loading", 1), ("loaded", 1)]
        assert not [name for name, text in whole.items() if key in text or "of-the-server" in text]
        assert set(await files()) == {"report.json"}
