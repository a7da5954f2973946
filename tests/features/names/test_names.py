"""Aliases, the fallback and decorated names over a real server with a models folder, and real command lines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import unquote

import pytest
from gguf_files import write_model
from http_harness import CHAT, Appliance, OpenServer, chat
from waiting import until

from appliance.catalog.downloads import DownloadSettings

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
    await until(lambda: server.traffic.recorder is not None)
    rows = await server.rows()
    assert len(rows) == before + 1
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
        await server.good("POST", "/api/create", {"model": "pirate", "from": "gpt-4o", "system": "Arr", "stream": False})
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
        (row,) = await server.rows()
        assert (row["model"], row["metadata"]["requested"]) == ("gemma", "gpt-4o")
        again = await server.ask("POST", path, body)
        assert again.header(SAID), "no request for an unknown name is taken for one for the model"
        (*_, last) = [one["id"] for one in (await server.good("GET", "/v1/models")).json["data"]]
        assert last == "qwen3", "the list has what is there"


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
    "name", ["openai/qwen3", "qwen3[1m]", "QWEN3@2024-05-13", " models/qwen3.gguf\n", "litellm_proxy/ollama/qwen3:latest"]
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
