"""Routes that are answered without Quart: each in one place, and as HTTP wants it. What they say, others test."""

from __future__ import annotations

from datetime import UTC, datetime

import any_request
from http_harness import CHAT, Answer, Appliance, chat, request

from appliance.features.page import page
from appliance.http.control import own_routes
from appliance.http.control.edge_routes import MAX_CONTROL_BODY, ONE_MODEL
from appliance.http.control.own_routes import ON_QUART
from appliance.traffic.request import PAGE_PATHS, PUBLIC_PATHS

BROWSER = ("Accept", "text/html")
ASSETS = sorted(path.name for path in (page.DIST / "assets").iterdir())
PATHS = (
    *sorted(PAGE_PATHS),
    *(f"{ONE_MODEL}alpha", "/ui/", "/ui/status", "/ui/sandbox", f"/ui/assets/{ASSETS[0]}"),
)
LED = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]


def told(answer: Answer) -> list[tuple[str, str]]:
    return [(name, value) for name, value in answer.headers if name != "Date"]


async def test_quart_has_no_route_that_is_answered_before_it(server: Appliance):
    app = any_request.app_of(server)
    rules = [(rule.rule, rule.methods or set()) for rule in app.url_map.iter_rules()]
    assert {path.split("/")[1] for path, _ in rules} == set(ON_QUART)
    asked = {path for path, methods in rules if "GET" in methods}
    assert not asked & (any_request.edge_gets(server).keys() | PUBLIC_PATHS)
    assert not [path for path in asked if path.startswith((ONE_MODEL, "/ui"))]


def test_nothing_public_leads_to_quart():
    for path in PUBLIC_PATHS | {"/ui", "/ui/x"}:
        assert not own_routes.may_be_on_quart(request(path)), path


async def test_head_is_get_without_its_body_and_a_slash_behind_a_path_changes_nothing(server: Appliance):
    await server.ask("POST", CHAT, chat())
    await server.wait_idle("alpha")
    for path in (*sorted(any_request.edge_gets(server)), *PATHS):
        full = await server.ask("GET", path, headers=[BROWSER])
        assert full.status == (302 if path == "/upstream" else 200), path
        assert full.header("location") == ("ui/" if path == "/upstream" else None)
        assert path != "/wol-health" or full.body == b"OK"
        assert full.header("content-length") == str(len(full.body)), path
        head = await server.ask("HEAD", path, headers=[BROWSER])
        assert (head.status, head.body) == (full.status, b""), path
        if path != "/metrics":  # which counts these requests
            assert told(head) == told(full), path
        if path not in ("/", "/ui/", "/upstream") and not path.startswith(ONE_MODEL):
            same = await server.ask("GET", f"{path}/")
            assert (same.status, len(told(same))) == (full.status, len(told(full))), path
        for method in ("PUT", "PATCH", "TRACE"):
            await server.refuses(404, "route_not_found", method, path)


async def test_a_base_address_with_a_slash_or_a_version_too_many_is_understood_by_the_guard_too(server: Appliance):
    """Another site's link to it could unload a model otherwise."""
    assert (await server.good("POST", f"//v1{CHAT}/", chat(echo=True))).json["head"].startswith(f"POST {CHAT} HTTP/1.1")
    for path in ("//unload", "/unload//", "//models/?reload=1", "/v1//v1//models/?reload=1"):
        await server.refuses(403, "forbidden", "GET", path, headers=[BROWSER, *LED])
    assert server.state("alpha") == "loaded"
    for path in ("//health", "/v1/v1/models", "//v1//models/", "/v1/api/tags", "//api//agents/", "/api/speed//"):
        assert (await server.ask("GET", path)).status == 200, path
    await server.refuses(404, "route_not_found", "GET", "/v1/v1/v1/models")


async def test_a_connection_outlives_a_body_that_nobody_wants_unless_a_stranger_may_send_it(server: Appliance):
    async with server.connect() as client:
        for path in ("/running", "/v1/models", "/props"):
            await client.send("GET", path, b"nobody reads this")
            answer = await client.answer()
            assert (answer.status, answer.header("connection")) == (200, None)
            client.next_request()
        await client.send("GET", "/health", b"nobody reads this")
        answer = await client.answer()
        assert (answer.status, answer.header("connection")) == (200, "close")
        await server.refuses(413, "body_too_large", "GET", "/running", bytes(MAX_CONTROL_BODY + 1))


async def test_a_list_of_models_says_when_each_was_last_used(server: Appliance):
    began = datetime.now(UTC).replace(microsecond=0)
    await server.ask("POST", CHAT, chat())
    found = {each["id"]: each["last_used"] for each in (await server.ask("GET", "/api/ls")).json["models"]}
    assert began <= datetime.fromisoformat(found.pop("alpha")) <= datetime.now(UTC)
    assert found
    assert set(found.values()) == {None}
