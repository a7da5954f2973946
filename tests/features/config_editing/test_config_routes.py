"""The configuration over HTTP, and the editor's files: shown, checked, written, restored; and what is never changed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
from http_harness import Answer, Appliance, OpenServer
from odd_files import KINDS, assert_ends
from reload_harness import File, load, pid, program_log

from appliance.catalog.configuration import Files
from appliance.errors import UsageError
from appliance.features.config_editing.editor import ConfigEditor, KeptTexts

CONFIG = "/api/config"
CHECK = f"{CONFIG}/check"
VERSIONS = f"{CONFIG}/versions"


async def shown(server: Appliance) -> dict[str, Any]:
    return (await server.good("GET", CONFIG)).json


async def checked(server: Appliance, **asked: object) -> dict[str, Any]:
    return (await server.good("POST", CHECK, asked)).json


async def write(server: Appliance, edit: dict[str, Any]) -> dict[str, Any]:
    return (await server.good("PUT", CONFIG, {"text": edit["text"], "version": edit["version"]})).json


def modes_of_kept(data: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in data.rglob("config-versions/*/0*")}


def setting(path: str, value: object) -> dict[str, object]:
    return {"path": path.split("."), "value": value}


async def test_without_admin_every_route_says_how_to_switch_it_on(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": ()})) as server:
        before = file.path.read_bytes()
        for method, path in (
            ("GET", CONFIG), ("PUT", CONFIG), ("POST", CHECK), ("GET", VERSIONS), ("GET", f"{VERSIONS}/1")
        ):  # fmt: skip
            body = {"text": "", "version": ""} if method == "PUT" else {} if method == "POST" else None
            answer = await server.refuses(403, "admin_off", method, path, body, words="--admin")
            assert "llama-appliance config " in answer.error["message"]
        assert file.path.read_bytes() == before


async def test_a_ttl_is_changed_and_every_process_goes_on(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": (), "n": ()}), admin=True) as server:
        before = await load(server, "m", "n")
        found = await shown(server)
        assert found["values"]["models"]["m"] == {}
        edit = await checked(server, set=[setting("models.m.ttl", 77)])
        assert (edit["problems"], edit["refused"], edit["changed"]) == ([], [], [])
        assert '"ttl": 77' in edit["difference"]
        written = await write(server, {**found, "text": edit["text"]})
        assert (written["changed"], written["warnings"]) == ([], [])
        assert written["version"] == (await shown(server))["version"]
        assert [pid(server, "m"), pid(server, "n")] == before
        assert await load(server, "m", "n") == before
        assert server.catalog.snapshot.config.models["m"].ttl == 77
        assert file.path.read_text("utf-8") == edit["text"]
        assert (await checked(server, set=[setting("models.m.disabled", True)]))["changed"] == ["m"]


async def test_two_edits_at_once_lose_neither(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": (), "n": ()}), admin=True) as server:
        version = (await shown(server))["version"]
        edits = [(await checked(server, set=[setting(f"models.{model}.ttl", 5)]))["text"] for model in "mn"]
        answers: list[Answer] = []

        async def race(text: str) -> None:
            answers.append(await server.ask("PUT", CONFIG, {"text": text, "version": version}))

        async with trio.open_nursery() as nursery:
            for text in edits:
                nursery.start_soon(race, text)
        _, refused = sorted(answers, key=lambda answer: answer.status)
        loser = refused.json
        assert (refused.status, loser["error"]["reason"]) == (409, "text_changed")
        assert loser["yours"] in edits
        assert loser["text"] == file.path.read_text("utf-8") == edits[loser["yours"] == edits[0]]
        model = "mn"[loser["yours"] == edits[1]]
        again = await checked(server, set=[setting(f"models.{model}.ttl", 5)])
        await write(server, {**loser, "text": again["text"]})
        assert [one.ttl for one in server.catalog.snapshot.config.models.values()] == [5, 5]


async def test_what_runs_is_not_changed_over_http(open_server: OpenServer, file: File) -> None:
    """`test_remote_edits.py` has every key."""
    async with open_server(config=file.write({"m": ()}, apiKeys=["sk-secret"]), admin=True) as server:
        key = [("Authorization", "Bearer sk-secret")]
        found = (await server.ask("GET", CONFIG, headers=key)).json
        assert "sk-secret" not in str(found)
        before = file.path.read_bytes()
        for old, new, path in (('"cmd": "', '"cmd": "nice ', "models.m.cmd"), ("(secret 1)", '"mine"', "apiKeys")):
            body = {"text": found["text"].replace(old, new, 1), "version": found["version"]}
            answer = await server.refuses(403, "edit_refused", "PUT", CONFIG, body, key, words=f"{path}: ")
            assert "config edit" in answer.error["message"]
            edit = await server.ask("POST", CHECK, {"text": body["text"]}, key)
            assert [one["path"] for one in edit.json["refused"]] == [path]
        for more, status in (("# (secret 1)\n", 400), ("# a comment\n", 200)):
            assert file.path.read_bytes() == before
            body = {"text": found["text"] + more, "version": found["version"]}
            assert (await server.ask("PUT", CONFIG, body, key)).status == status
        assert file.path.read_bytes() == before + b"# a comment\n"
        assert (await server.ask("GET", CONFIG, headers=key)).status == 200


async def test_a_mistake_is_found_before_and_writes_nothing(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"m": ()}), admin=True) as server:
        found, before = await shown(server), file.path.read_bytes()
        for text in (found["text"] + "]", found["text"].replace('"swap": false', '"swap": 7')):
            (problem, *_) = (await checked(server, text=text))["problems"]
            assert problem["at"]["line"] > 1
            await server.refuses(400, "invalid_config", "PUT", CONFIG, {"text": text, "version": found["version"]})
        assert file.path.read_bytes() == before
        assert (await server.ask("GET", VERSIONS)).json == {"versions": []}


async def test_earlier_versions_are_kept_and_one_is_restored(
    open_server: OpenServer, file: File, tmp_path: Path
) -> None:
    async with open_server(config=file.write({"m": ()}), admin=True) as server:
        first = await shown(server)
        for ttl in (5, 6):
            await write(server, await checked(server, set=[setting("models.m.ttl", ttl)]))
        kept = (await server.ask("GET", VERSIONS)).json["versions"]
        assert [one["number"] for one in kept] == [2, 1]
        if sys.platform != "win32":
            assert modes_of_kept(tmp_path) == {0o600}
        old = (await server.ask("GET", f"{VERSIONS}/1")).json
        assert old == {"number": 1, "text": first["text"]}
        await write(server, {**(await shown(server)), **old})
        assert file.path.read_text("utf-8") == first["text"]
        assert (await server.ask("GET", f"{VERSIONS}/9")).status == 404
        assert "the configuration was read again" in program_log(server)


@pytest.mark.skipif(sys.platform == "win32", reason="links and modes are POSIX's")
async def test_a_link_and_the_permissions_stay(open_server: OpenServer, file: File, tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.yaml"
    real.parent.mkdir()
    file.write({"m": ()}).rename(real)
    real.chmod(0o640)
    file.path.symlink_to(real)
    async with open_server(config=file.path, admin=True) as server:
        edit = await checked(server, set=[setting("globalTTL", 5)])
        await write(server, edit)
        assert file.path.is_symlink()
        assert real.read_text("utf-8") == edit["text"]
        assert stat.S_IMODE(real.stat().st_mode) == 0o640
        if os.geteuid():
            real.parent.chmod(0o500)
            assert "read-only" in (await shown(server))["fixed"]
            real.parent.chmod(0o700)


def test_a_file_of_the_configuration_is_opened_by_its_name_or_alone(tmp_path: Path) -> None:
    one, folder = tmp_path / "one.yaml", tmp_path / "folder"
    one.write_text("globalTTL: 1\n", "utf-8")
    folder.mkdir()

    def opened(files: Files, name: str | None = None) -> str:
        return ConfigEditor(files, tmp_path / "earlier").open(name).text

    alone = Files(config=one)
    assert opened(alone) == opened(alone, str(one)) == "globalTTL: 1\n"
    with pytest.raises(UsageError, match=r"x is not a file of the configuration; there is .*one"):
        opened(alone, "x")
    with pytest.raises(UsageError, match="there is no configuration file"):
        opened(Files(config_dir=folder))
    for name in ("a.yaml", "b.yaml"):
        (folder / name).write_text(f"# {name}", "utf-8")
    both = Files(config_dir=folder)
    with pytest.raises(UsageError, match="has 2 files; name one of"):
        opened(both)
    assert opened(both, str(folder / "b.yaml")) == "# b.yaml"
    assert ConfigEditor(both, tmp_path / "earlier").beside(str(folder / "a.yaml")) == ["# b.yaml"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes in folders")
@pytest.mark.parametrize("kind", KINDS)
def test_keeping_never_waits_for_what_is_no_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert_ends(lambda path: KeptTexts(path.parent).keep(b"text"), folder / "000001", kind)
