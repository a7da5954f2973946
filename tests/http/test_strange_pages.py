"""What a page of another site, or a client without a key, gets of every route that the program has: a refusal."""

from __future__ import annotations

import re

import any_request
import pytest
from http_harness import Appliance, OpenServer
from slow import one_of

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
