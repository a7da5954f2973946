"""What the doctor reads of a system, ``GET /api/doctor``, and the page that a terminal shows of it."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from file_trees import card
from http_harness import CHAT, Appliance, OpenServer, chat
from swap_harness import Configure
from waiting import until

from appliance.core.examination import BusCard, Known
from appliance.core.findings import Finding
from appliance.errors import UsageError
from appliance.features.doctor import examining
from appliance.features.doctor.core.facts import Facts
from appliance.features.doctor.system import checkup, port_owner
from appliance.features.doctor.verb import ALL_WELL, free_path, page


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


@pytest.mark.skipif(sys.platform == "win32", reason="symbolic links")
def test_cards_with_and_without_a_driver(tmp_path: Path) -> None:
    card(tmp_path, "0000:01:00.0", "0x10de", "0x2684", "nouveau")
    card(tmp_path, "0000:02:00.0", "0x1002", "0x744c", kind="0x038000")
    card(tmp_path, "0000:03:00.0", "0x8086", "0x100e", "e1000", kind="0x020000")
    assert checkup({}, tmp_path).cards == (
        BusCard(pci="0000:01:00.0", vendor="NVIDIA", driver="nouveau"),
        BusCard(pci="0000:02:00.0", vendor="AMD", driver=""),
    )


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
def test_files_of_cards_and_who_may_use_them(tmp_path: Path) -> None:
    folder = tmp_path / "dev" / "dri"
    folder.mkdir(parents=True)
    for name in ("renderD128", "card0"):
        (folder / name).touch()
    (file,) = checkup({}, tmp_path).device_files
    assert file.path == str(folder / "renderD128")
    assert file.usable
    assert file.group
    if os.geteuid() != 0:
        (folder / "renderD128").chmod(0)
        assert not checkup({}, tmp_path).device_files[0].usable


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_its_parent(tmp_path: Path) -> None:
    folders = {"models": tmp_path / "a" / "b", "downloads": tmp_path / "c"}
    (disk,) = checkup(folders).disks
    assert (disk.what, disk.path) == ("models", str(tmp_path / "a" / "b"))
    assert 0 < disk.total >= disk.free


def test_this_machine_has_processors_and_memory() -> None:
    found = checkup({})
    assert found.cores >= 1
    assert found.memory > 1 << 28


def test_who_listens_on_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        owner = port_owner(port)
        assert owner.pid == os.getpid()
        assert owner.name
    assert port_owner(port) is None


FACTS = Facts(Known(version="1.0", now=0.0))


def test_the_page_has_evidence_and_commands_or_fits_a_screen() -> None:
    finding = Finding(
        id="x", severity="warning", title="It is slow", evidence=("2 \x1b[31mthreads",), advice="Do this.",
        commands=("llama-appliance ls",),
    )  # fmt: skip
    text = page(FACTS, [finding], colours=False)
    assert "WARNING It is slow  [x]\n" in text
    assert "\n        $ llama-appliance ls" in text
    assert "\x1b" not in text
    assert ALL_WELL not in text
    text = page(FACTS, [], colours=False)
    assert text.endswith(ALL_WELL)
    assert len(text.splitlines()) <= 24


def test_a_folder_that_is_not_there_is_no_place_for_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        free_path(str(tmp_path / "none" / "x.zip"))
    (tmp_path / "x.zip").touch()
    with pytest.raises(UsageError, match="exists already"):
        free_path(str(tmp_path / "x.zip"))
