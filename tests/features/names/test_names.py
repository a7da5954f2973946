"""Aliases, the fallback and decorated names over a real server with a models folder, and real command lines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import unquote

import pytest
from command_line import Command, settings_of
from gguf_files import write_model
from http_harness import CHAT, Appliance, OpenServer, chat
from waiting import until

from appliance.catalog.supply import DownloadSettings
from appliance.errors import UsageError
from appliance.feature import open_first
from appliance.features import FEATURES
from appliance.http.control.listing import View
from appliance.traffic.targets import ActiveProfile

SAID = "X-Appliance-Model"
Serve = Callable[[str], AbstractAsyncContextManager[Appliance]]


@pytest.fixture
def serve_names(open_server: OpenServer, downloads: DownloadSettings, tmp_path: Path) -> Serve:
    """Serve ``qwen3`` and ``gemma`` of a models folder, under this configuration."""

    def serve_names(config: str) -> AbstractAsyncContextManager[Appliance]:
        for name in ("qwen3", "gemma"):
            write_model(downloads.models_dir / f"{name}.gguf", **{"llama.context_length": 4096})
        path = tmp_path / "config.yaml"
        path.write_text(config)
        return open_server(config=path, downloads=downloads)

    return serve_names


async def used(server: Appliance, name: str, path: str = CHAT) -> str:
    """The model of the newest row, after a chat for this name."""
    before = len(await server.rows())
    await server.good("POST", path, chat(name))
    rows = await until(server.rows, lambda rows: len(rows) > before)
    return rows[0]["model"]


async def test_an_alias_is_a_name_everywhere(serve_names: Serve) -> None:
    config = "aliases: {gpt-4o: qwen3, nobody: missing}\nincludeAliasesInList: true\n"
    async with serve_names(config) as server:
        assert await used(server, "gpt-4o") == "qwen3"
        assert await used(server, "openai/GPT-4o:latest") == "qwen3"
        listed = {one["id"]: one for one in (await server.good("GET", "/v1/models")).json["data"]}
        assert listed.keys() == {"gemma", "gpt-4o", "qwen3"}
        assert listed["qwen3"]["aliases"] == ["gpt-4o"]
        tags = {one["name"] for one in (await server.good("GET", "/api/tags")).json["models"]}
        assert {"gpt-4o:latest", "qwen3:latest"} <= tags
        assert any("no model 'missing'" in note for note in server.catalog.snapshot.notes)
        await server.refuses(404, "model_not_found", "POST", CHAT, chat("nobody"))
        answer = await server.ask("POST", "/v1/embeddings", {"model": "gpt-4o", "input": "x"})
        assert answer.error.get("reason") != "model_not_found", "an alias is a name, not a fallback"


async def test_a_derived_model_of_ollama_and_an_alias_live_together(serve_names: Serve) -> None:
    async with serve_names("aliases: {gpt-4o: qwen3}\n") as server:
        await server.good(
            "POST", "/api/create", {"model": "pirate", "from": "gpt-4o", "system": "Arr", "stream": False}
        )
        assert await used(server, "litellm_proxy/pirate") == "qwen3"
        assert await used(server, "gpt-4o") == "qwen3"
        shown = (await server.good("POST", "/api/show", {"model": "openai/pirate"})).json
        assert "Arr" in shown["system"]
        refused = await server.ask("POST", "/api/copy", {"source": "gemma", "destination": "gpt-4o"})
        assert refused.status == 400, "an alias is taken"


async def test_without_consent_an_unknown_name_is_a_404_with_near_names(serve_names: Serve) -> None:
    async with serve_names("aliases: {}\n") as server:
        await server.refuses(404, "model_not_found", "POST", CHAT, chat("qwen4"), words="qwen3")
        assert (await server.ask("POST", "/api/chat", {"model": "gpt-4o", "messages": []})).status == 404


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses", "/api/chat", "/v1/messages/count_tokens"]
)
async def test_a_chat_for_an_unknown_name_gets_the_fallback_and_is_told(serve_names: Serve, path: str) -> None:
    async with serve_names("fallbackModel: gemma\n") as server:
        body = {**chat("gpt-4o"), "prompt": "x", "input": "x", "max_tokens": 4, "stream": False}
        answer = await server.ask("POST", path, body)
        assert answer.header(SAID) == "requested=gpt-4o; used=gemma", answer.body
        (row,) = await until(server.rows)
        assert (row["model"], row["metadata"]["requested"]) == ("gemma", "gpt-4o")
        again = await server.ask("POST", path, body)
        assert again.header(SAID), "no request for an unknown name is taken for one for the model"
        (*_, last) = [one["id"] for one in (await server.good("GET", "/v1/models")).json["data"]]
        assert last == "qwen3", "the list has what is there"


async def test_a_fallback_that_is_not_here_is_named(serve_names: Serve) -> None:
    async with serve_names("fallbackModel: gemma4\n") as server:
        await server.refuses(404, "model_not_found", "POST", CHAT, chat("gpt-4o"), words="model 'gemma4' not found")


async def test_what_gets_no_fallback(serve_names: Serve) -> None:
    async with serve_names("fallbackModel: gemma\n") as server:
        await server.good("POST", CHAT, chat("gpt-4o"))
        for path in ("/v1/embeddings", "/v1/rerank"):
            body = {"model": "gpt-4o", "input": "x", "query": "x", "documents": ["x"]}
            await server.refuses(404, "model_not_found", "POST", path, body)
        assert (await server.ask("POST", "/api/embed", {"model": "gpt-4o", "input": "x"})).status == 404
        assert (await server.ask("POST", "/api/show", {"model": "gpt-4o"})).status == 404
        await server.refuses(404, "model_not_found", "POST", CHAT, chat("acme/x-GGUF:Q8_0"), words="pull acme/x-GGUF")
        assert (await server.good("POST", CHAT, chat("qwen3"))).header(SAID) is None


async def test_a_strange_name_cannot_write_into_the_head(serve_names: Serve) -> None:
    async with serve_names("fallbackModel: gemma\n") as server:
        name = 'a\r\nX-Evil: 1; used="ü"' + "x" * 1000
        answer = await server.good("POST", CHAT, chat(name))
        assert answer.header("X-Evil") is None
        said = answer.header(SAID) or ""
        assert unquote(said.split(";")[0].removeprefix("requested=")) in name
        assert said.endswith("; used=gemma")


@pytest.mark.parametrize(
    "name",
    ["openai/qwen3", "qwen3[1m]", "QWEN3@2024-05-13", " models/qwen3.gguf\n", "litellm_proxy/ollama/qwen3:latest"],
)
async def test_decorated_names_reach_the_model(serve_names: Serve, name: str) -> None:
    async with serve_names("fallbackModel: gemma\n") as server:
        assert await used(server, name) == "qwen3"


async def test_an_alias_that_hides_a_model_is_refused_at_a_reload(serve_names: Serve, tmp_path: Path) -> None:
    async with serve_names("aliases: {gpt-4o: qwen3}\n") as server:
        (tmp_path / "config.yaml").write_text("aliases: {gemma: qwen3}\n")
        await server.refuses(400, None, "POST", "/api/config/reload", words="give the alias another name")
        assert await used(server, "gemma") == "gemma"
        (tmp_path / "config.yaml").write_text("aliases: {claude: gemma}\n")
        await server.good("POST", "/api/config/reload")
        assert await used(server, "claude") == "gemma"
        await server.refuses(404, "model_not_found", "POST", CHAT, chat("gpt-4o"))


async def test_lists_tell_the_context_of_every_model_before_it_is_loaded(
    open_server: OpenServer, downloads: DownloadSettings, tmp_path: Path
) -> None:
    for name in ("qwen3", "gemma"):
        write_model(downloads.models_dir / f"{name}.gguf", **{"llama.context_length": 4096})
    file = downloads.models_dir / "qwen3.gguf"
    async with open_server(downloads=downloads) as server:
        assert await contexts(server) == {"gemma": 4096, "qwen3": 4096}
        assert {one.context_length for one in server_view(server).model_status()} == {4096}
        await server.good("POST", CHAT, chat("qwen3"))
        assert (await contexts(server))["gemma"] == 4096, "another one that is loaded changes nothing"
    path = tmp_path / "commands.yaml"
    path.write_text(
        f"models:\n  short:\n    cmd: llama-server --port ${{PORT}} -m {file} -c 1024\n"
        f"  whole:\n    cmd: llama-server --port ${{PORT}} -m {file}\n"
    )
    async with open_server(config=path) as server:
        assert await contexts(server) == {"short": 1024, "whole": 4096}


async def contexts(server: Appliance) -> dict[str, int]:
    """What every list says, which is the same."""
    found: list[dict[str, int]] = []
    for path in ("/v1/models", "/models"):
        listed = (await server.good("GET", path)).json["data"]
        found.append({one["id"]: one["context_length"] for one in listed})
        assert all(one["max_model_len"] == one["context_length"] for one in listed)
        assert all(
            one["meta"]["n_ctx"] == one["context_length"] for one in listed if one["status"]["value"] != "loaded"
        )
        assert all(one["architecture"]["input_modalities"] == ["text"] and one["status"]["value"] for one in listed)
    tags = (await server.good("GET", "/api/tags")).json["models"]
    found.append({one["name"].removesuffix(":latest"): one["details"]["context_length"] for one in tags})
    shown = [await server.good("POST", "/api/show", {"model": name}) for name in found[0]]
    found.append(dict(zip(found[0], (one.json["details"]["context_length"] for one in shown), strict=True)))
    assert found[0] == found[1]
    loaded = {name for name in found[0] if server.state(name) == "loaded"}
    for each in found:
        assert {name: size for name, size in each.items() if name not in loaded} == {
            name: size for name, size in found[0].items() if name not in loaded
        }
    return found[0]


def server_view(server: Appliance) -> View:
    return View(server.fleet, server.catalog, server.owners.peers, ActiveProfile())


@pytest.mark.parametrize(
    ("alias", "words"),
    [("qwen3=starter", "would hide a model whose real name is 'qwen3'"), ("qwen3", "write --alias NAME=MODEL")],
)
async def test_a_server_with_an_alias_of_no_use_does_not_start(
    command: Command, tmp_path: Path, alias: str, words: str
) -> None:
    write_model(tmp_path / "models" / "qwen3.gguf")
    settings = settings_of(command, "serve", "--models-dir", str(tmp_path / "models"), "--alias", alias)
    with pytest.raises(UsageError, match=words):
        async with open_first(FEATURES, settings):
            pass


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("aliases: {a: b}\nmodels: {a: {cmd: x}}\n", "'a' is the id of a model, which the alias would hide"),
        ("aliases: {a: ' '}\n", "aliases.a: has nothing on one side"),
        ("aliases: {'': a}\n", "has nothing on one side"),
        ("aliases: {a: b}\nmodels: {b: {cmd: x, aliases: [a]}}\n", "'a' is an alias of 'b'"),
        ("aliases: {'': b}\n", "write NAME: MODEL"),
    ],
)
def test_a_configuration_with_an_alias_of_no_use_is_refused(
    command: Command, tmp_path: Path, config: str, words: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config)
    outcome = command("config", "check", "--config", path)
    assert outcome.status != 0
    assert words in outcome.out + outcome.err


def test_the_flags_reach_the_settings(command: Command) -> None:
    settings = settings_of(command, "serve", "--alias", "a=b", "--alias", "c=d", "--fallback-model", "b")
    assert (settings.aliases, settings.fallback_model) == (("a=b", "c=d"), "b")
