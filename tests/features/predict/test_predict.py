"""Vertex AI's predictions: many requests in one, each answered by its own route."""

from __future__ import annotations

from typing import Any

import pytest
from http_harness import OpenServer, chat

from appliance.errors import UsageError
from appliance.features.predict.route import MAX_INSTANCES, alias_of
from appliance.http.way.routes import POSTED


def instance(form: str = "chatCompletions", **more: object) -> dict[str, Any]:
    return {"@requestFormat": form, **chat(), **more}


@pytest.mark.parametrize("single", [None, "alpha"])
async def test_each_instance_has_its_own_prediction(open_server: OpenServer, single: str | None) -> None:
    async with open_server(predict="/ask", health="/alive", single=single) as server:
        given = [
            instance(tokens=2, stream=True),
            instance("/v1/messages", max_tokens=4),
            {"@requestFormat": "tokenize", "model": "alpha", "content": "a b"},
            instance("nonsense"),
            {"messages": []},
            [1],
        ]
        answer = await server.good("POST", "/ask", {"instances": given})
        talk, message, tokens, unknown, formless, listed = answer.json["predictions"]
        assert talk["choices"][0]["message"]["role"] == "assistant"
        assert message["type"] == "message"
        assert tokens["tokens"]
        assert "no handler registered for @requestFormat: nonsense" in unknown["error"]["message"]
        assert formless["error"]["message"] == "each instance must include a string @requestFormat"
        assert listed["error"]["message"] == "each instance must be a JSON object"
        assert (await server.ask("GET", "/alive")).json["status"] == "ok"


async def test_what_is_no_such_request(open_server: OpenServer) -> None:
    async with open_server(predict="/predict") as server:
        for body, message in (
            (b"{", "the request body is not JSON"),
            (b"[]", "request body must include an array field named instances"),
            (b'{"instances": 1}', "request body must include an array field named instances"),
            (b'{"instances": [%s]}' % b",".join([b"1"] * (MAX_INSTANCES + 1)), "exceeds maximum size of 128"),
        ):
            await server.refuses(400, None, "POST", "/predict", body, words=message)
        assert (await server.ask("POST", "/predict", b'{"instances": []}')).json == {"predictions": []}
        given = [instance(), instance(model="none")]  # a model that is not there fails alone
        good, bad = (await server.ask("POST", "/predict", {"instances": given})).json["predictions"]
        assert good["choices"]
        assert bad["error"]["code"] == 404


async def test_it_needs_the_key_and_is_off_by_default(open_server: OpenServer) -> None:
    async with open_server(predict="/predict", api_keys=("k",)) as server:
        assert (await server.ask("POST", "/predict", {"instances": []})).status == 401
        key = [("Authorization", "Bearer k")]
        [told] = (await server.ask("POST", "/predict", {"instances": [instance()]}, key)).json["predictions"]
        assert told["choices"]
    async with open_server() as server:
        assert (await server.ask("POST", "/predict", {"instances": []})).status == 404


async def test_its_path_is_nobody_elses(open_server: OpenServer) -> None:
    with pytest.raises(UsageError, match="is a route of the server already"):
        async with open_server(predict="/v1/completions"):
            pass


def test_every_route_has_an_alias() -> None:
    assert alias_of("/v1/chat/completions") == alias_of("/chat/completions") == "chatCompletions"
    assert alias_of("/apply-template") == "applyTemplate"
    assert alias_of("/v1/messages/count_tokens") == "messagesCountTokens"
    assert all(alias_of(path).isalnum() for path in POSTED)
