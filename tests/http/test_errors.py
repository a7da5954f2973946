"""Every error has one status, one type and one shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from http_harness import CHAT, Appliance, OpenServer, chat

from appliance import errors as hierarchy
from appliance.core.bodies.sse import Dialect
from appliance.errors import ApplianceError, BadRequest, Busy, ModelFailedToStart, ModelNotFound, Unauthorized
from appliance.http import errors

TYPES = {
    **dict.fromkeys((400, 408, 409, 413, 415), "invalid_request_error"),
    **{401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"},
    **{500: "server_error", 501: "not_supported_error", 502: "server_error", 503: "unavailable_error"},
    507: "server_error",
}
ANTHROPIC = {
    *("invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "not_found_error"),
    *("request_too_large", "api_error", "overloaded_error"),
}


def descendants(cls: type[ApplianceError]) -> Iterator[type[ApplianceError]]:
    for child in cls.__subclasses__():
        if child.__module__ == hierarchy.__name__:
            yield child
            yield from descendants(child)


@pytest.mark.parametrize("cls", [ApplianceError, *descendants(ApplianceError)])
def test_every_error_has_a_status_of_its_kind_and_a_reason(cls: type[ApplianceError]):
    status, kind = next(errors.TABLE[each] for each in cls.__mro__ if each in errors.TABLE)
    assert TYPES[status] == kind
    assert re.fullmatch(r"[a-z_]+", cls.reason)


def test_reasons_tell_the_leaves_apart():
    leaves = [cls for cls in descendants(ApplianceError) if not cls.__subclasses__()]
    assert len({cls.reason for cls in leaves}) == len(leaves)


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("no", param="model"),
        ModelNotFound("x", ["y"]),
        ModelFailedToStart("m", "exit status 1", ["a", 'b"\n']),
        Busy("full", retry_after=1.2),
        Unauthorized(),
    ],
)
def test_the_body_says_everything_a_client_may_look_for(error: ApplianceError):
    info = errors.describe(error)
    told = json.loads(errors.body(info))["error"]
    assert list(told) == ["message", "type", "code", "param", "reason"]
    assert (told["message"], told["code"]) == (str(error), info.code)
    assert told["param"] == getattr(error, "param", None)
    there = json.loads(errors.body(errors.describe(error, Dialect.ANTHROPIC), Dialect.ANTHROPIC))
    assert there["type"] == "error"
    assert there["error"]["type"] in ANTHROPIC


def test_retry_after_is_whole_seconds_and_not_too_early():
    assert (b"Retry-After", b"2") in errors.headers(Busy("full", retry_after=1.2), close=False)


@pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("POST", "/v1/messages"), ("GET", "/v1/models")])
async def test_a_bug_costs_one_request_and_tells_the_client_nothing_but_its_number(
    server: Appliance, caplog: pytest.LogCaptureFixture, method: str, path: str
):
    good = server.catalog.snapshot
    server.catalog.snapshot = None  # pyright: ignore[reportAttributeAccessIssue]
    answer = await server.refuses(500, "internal_error", method, path, chat() if method == "POST" else None)
    number = re.fullmatch(r"internal error ([0-9a-f]{8}); the log says more", answer.error["message"])
    assert number[1] in caplog.text
    assert "AttributeError" in caplog.text
    assert b"NoneType" not in answer.body
    server.catalog.snapshot = good
    assert (await server.ask("POST", CHAT, chat())).status == 200


@pytest.mark.parametrize("path", ["/v1/messages", CHAT])
async def test_a_wrong_key_is_told_once_and_in_the_dialect_of_the_route(open_server: OpenServer, path: str):
    """Anthropic's clients repeat what does not tell them to stop."""
    async with open_server(api_keys=("secret",)) as server:
        refused = await server.ask("POST", path, chat(), headers=[("x-api-key", "wrong")])
        assert (refused.status, refused.header("x-should-retry")) == (401, "false")
        assert refused.error["type"] == "authentication_error"
        assert refused.json.get("type") == ("error" if path == "/v1/messages" else None)


async def test_no_message_echoes_what_was_sent_at_length(server: Appliance):
    long = chat("m" * 3_000_000)
    answer = await server.refuses(404, "model_not_found", "POST", CHAT, long, words="m" * 200 + "...")
    assert len(answer.body) < 2000
    assert len((await server.ask("POST", "/models/load", long)).body) < 2000


async def test_bytes_that_are_no_text_are_the_callers_fault(server: Appliance):
    posted = "/v1/streams/lookup /api/runs /api/runs/id/tool_results /api/engines/prove /models/load /tools"
    for method, path in (("PUT", "/api/profiles/active"), *(("POST", path) for path in posted.split())):
        for body in (b'{"\xff":1}', b'{"name":"\xff","model":"\xff","seats":["\xff"]}', b"\xff"):
            answer = await server.ask(method, path, body, headers=[("Content-Type", "application/json")])
            assert 400 <= answer.status < 500, answer.body
