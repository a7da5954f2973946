"""Every route: in one place, as HTTP wants it, described, and closed to strangers. What they say, others test."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import any_request
import pytest
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, request
from slow import one_of

from appliance.features.page import page
from appliance.http.control import own_routes
from appliance.http.control.edge_routes import ONE_MODEL
from appliance.http.control.openapi import PART
from appliance.http.control.own_routes import ON_QUART
from appliance.http.route_facts import MAX_CONTROL_BODY
from appliance.http.way.routes import POSTED
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


READ = re.compile(r"(?:read_as\(|parse_as\([^\n]*?, )(\w+)[,)]")
"""The shape that a view reads, in its source."""
BY_HELP = {"ControlRequest", "RunRequest", "ToolResults"}
"""Shapes that a function below the view reads."""


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from [each] if name == "$ref" else references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


async def test_every_route_is_described_and_every_shape_is_there(server: Appliance) -> None:
    told = (await server.good("GET", "/openapi.json")).json
    for rule in any_request.app_of(server).url_map.iter_rules():
        operations = told["paths"][PART.sub(r"{\1}", rule.rule)]
        assert {method.lower() for method in rule.methods or ()} - {"head", "options"} <= set(operations)
    edges = server.opened.kernel.described()
    assert any_request.edge_gets(server).keys() | POSTED <= set(told["paths"])
    assert {(PART.sub(r"{\1}", each.path), each.method.lower()) for each in edges} <= {
        (path, method) for path, operations in told["paths"].items() for method in operations
    }
    assert {name.rpartition("/")[2] for name in references(told)} <= set(told["components"]["schemas"])
    message = told["paths"]["/api/conversations/{conversation}/messages/{message}"]["put"]
    assert message["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/MessageNode"
    }
    assert [each["name"] for each in message["parameters"]] == ["conversation", "message"]


async def test_routes_that_change_the_program_are_closed_without_admin(server: Appliance) -> None:
    """Before anything of the body is read, whatever it is."""
    app, facts = any_request.app_and_facts(server)
    doors = [(rule, door) for rule in app.url_map.iter_rules() if (door := facts[rule.endpoint].admin) is not None]
    assert len(doors) > 10
    for rule, door in doors:
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            answer = await server.ask(method, PART.sub("1", rule.rule), [None])
            assert (answer.status, answer.json["error"]["reason"]) == (403, "admin_off"), rule
            assert f"'llama-appliance {door.verb}'" in answer.json["error"]["message"]


async def test_a_route_says_the_shape_that_it_reads(server: Appliance) -> None:
    app, facts = any_request.app_and_facts(server)
    for endpoint, view in app.view_functions.items():
        takes = facts[endpoint].takes
        said = {takes.__name__} - BY_HELP if takes is not None else set()
        assert set(READ.findall(inspect.getsource(view))) == said, endpoint


EVERYTHING = {"mcp_server": True, "mcp_server_open": True, "mcp_server_tools": ("*",), "cors_proxy": True}
PUBLIC = """/ /_app/version.json /favicon.ico /health /manifest.webmanifest /sw.js /ui /ui/ /ui/assets/x /ui/sandbox
 /ready /ui/status /ui/x /upstream /v1/health /wol-health /worker/x"""
"""Paths that anybody may ask for. What is new in the program is closed, or is named here."""
HELD = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")]
STRANGERS = [[("Origin", "http://evil.example")], [("Host", "evil.example")], HELD]
FORMS = ("text/plain;charset=UTF-8", "application/x-www-form-urlencoded")
"""Bodies that a browser sends without asking first."""


async def refused(server: Appliance, status: int, headers: list[tuple[str, str]], public: str) -> None:
    """Ask everything, and have this status of all but the public paths."""
    routes = any_request.all_routes(server)
    every = {(method, re.sub("<[^>]*>", "x", route.path)) for route in routes for method in (*route.methods, "POST")}
    assert len(every) > 200
    for number, (method, path) in enumerate(sorted(every)):
        form = [("Content-Type", FORMS[number % 2])] if method in ("POST", "PUT") else []
        answer = await server.ask(method, path, b"{}" if form else None, [*headers, *form])
        assert (answer.status == status) is (path not in public.split()), (method, path, answer.status)
        assert answer.header("Access-Control-Allow-Origin") is None
    assert server.fleet.status() == []


@pytest.mark.parametrize("stranger", one_of(STRANGERS))
async def test_nothing_is_done_for_pages_of_other_sites(open_server: OpenServer, stranger: list[tuple[str, str]]):
    async with open_server(**EVERYTHING) as server:
        await refused(server, 403, stranger, PUBLIC if stranger is HELD else "")


@pytest.mark.slow
async def test_a_key_is_wanted_for_all_of_it_however_its_path_is_spelled(open_server: OpenServer):
    async with open_server(**EVERYTHING, api_keys=("secret",)) as server:
        for headers in ([], [("Authorization", "Bearer wrong")]):
            await refused(server, 401, headers, PUBLIC)
        for path in ("//tools", "/ui/../tools", "/ui/%2e%2e/tools", "/%74ools", "/tools/", "/tools?x", "/ui//tools"):
            assert (await server.ask("POST", path, b"{}")).status in (401, 404), path
