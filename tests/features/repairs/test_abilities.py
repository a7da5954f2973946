"""What a model cannot do is a 4xx in the client's dialect, in words that name it, loaded or not; nothing is loaded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from clients import PATHS, message_in
from corpus import opened, random_model
from http_harness import Appliance
from msgspec import structs
from neutral import DIALECTS, Asked, Json, Picture, Sound, said, tool

from appliance.core.models.model import Model
from appliance.features.embedded import available

pytestmark = pytest.mark.skipif(not available(), reason="the wheel xllamacpp is not installed")
HI: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
WISHES = {
    "image": Asked((said("user", "See", Picture()),)),
    "audio": Asked((said("user", "Hear", Sound()),)),
    "tools": Asked((said("user", "Hi"),), (tool(),), "required"),
}
PLAIN = Asked((said("user", "Hi"),))
WORDS = {
    "image": "reads no pictures",
    "audio": "reads no sound",
    "tools": "has no place for tools",
    "chat of embeddings": "makes embeddings and no text",
    "chat of ranks": "makes ranks of documents and no text",
    "embeddings": "embeddings",
    "ranks": "ranks no documents",
}
TEXTS: Json = {"prompt": "Hi", "n_predict": 1}
RANKED: Json = {"query": "a", "documents": ["b"]}


def requests() -> Iterator[tuple[str, str, str, Json]]:
    """What is lacking, of which model, the path, and the body."""
    for what, asked in WISHES.items():
        for dialect, form in DIALECTS.items():
            if (what, dialect) not in (("audio", "messages"), ("audio", "responses"), ("tools", "ollama")):
                yield what, "no-tools", PATHS[dialect], form(asked)
    for model, what in (("embeds", "chat of embeddings"), ("ranks", "chat of ranks")):
        for dialect, form in DIALECTS.items():
            yield what, model, PATHS[dialect], form(PLAIN)
        for path in ("/completion", "/v1/completions"):
            yield what, model, path, TEXTS
    for path, body in (
        ("/v1/embeddings", {"input": "a"}),
        ("/embedding", {"content": "a"}),
        ("/api/embed", {"input": "a"}),
    ):
        yield "embeddings", "no-tools", path, body
    for model in ("no-tools", "embeds"):
        for path in ("/v1/rerank", "/reranking"):
            yield "ranks", model, path, RANKED


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    folder = tmp_path_factory.mktemp("models")
    text = random_model(folder, "no-tools")
    assert text.info is not None
    embeds, ranks = (structs.replace(text.info, kind=kind) for kind in ("embedding", "rerank"))
    return [
        text,
        structs.replace(text, id="embeds", info=embeds, args=("--pooling", "mean")),
        structs.replace(text, id="ranks", info=ranks),
    ]


@pytest.fixture
async def server(models: list[Model]) -> AsyncGenerator[Appliance]:
    async with opened(models, Path(models[0].path)) as opened_server:
        yield opened_server


async def check(server: Appliance) -> None:
    for what, model, path, arguments in requests():
        body = {name: value for name, value in arguments.items() if name != "extra_body"}
        answer = await server.ask("POST", path, {**body, "model": model})
        told = what, path, answer.status, answer.body[:300]
        assert 400 <= answer.status < 500, told
        message = message_in("ollama" if path.startswith("/api/") else "chat", answer.body)
        assert WORDS[what] in message or (path.startswith("/api/") and "does not support" in message), told
        assert model in message, told


async def test_before_the_model_is_loaded(server: Appliance) -> None:
    await check(server)
    assert {server.state(name) for name in ("no-tools", "embeds", "ranks")} == {"unknown"}


async def test_of_a_loaded_model(server: Appliance) -> None:
    for model, path, body in (
        ("no-tools", PATHS["chat"], HI),
        ("embeds", "/v1/embeddings", {"input": "a"}),
        ("ranks", "/v1/rerank", RANKED),
    ):
        await server.good("POST", path, {**body, "model": model})
    for _ in range(2):  # a head that is known comes by the fast path
        await check(server)
