"""The page and its files: who has one gets no other, and who takes it compressed gets it so; the page of the status."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from http_harness import Answer, Appliance, OpenServer, model

from appliance import __version__
from appliance.core.bodies.codings import accepts_gzip
from appliance.features.page import page

BROWSER = ("Accept", "text/html,*/*;q=0.8")
"""Clients of Ollama's API ask for anything, and are told that somebody is there."""
FILES = {path.name: path.read_bytes() for path in (page.DIST / "assets").iterdir()}
ASSETS = sorted(name for name, content in FILES.items() if len(content) > 1000)


def told(answer: Answer) -> list[tuple[str, str]]:
    return [(name, value) for name, value in answer.headers if name != "Date"]


async def test_a_client_that_has_a_file_gets_no_other(server: Appliance):
    for path in ("/", "/ui/", "/ui/sandbox", f"/ui/assets/{ASSETS[0]}"):
        full = await server.ask("GET", path, headers=[BROWSER])
        tag = full.header("etag") or ""
        for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            for method in ("GET", "HEAD"):
                answer = await server.ask(method, path, headers=[BROWSER, ("If-None-Match", given)])
                assert (answer.status, answer.body) == (304, b""), given
                kept = [each for each in told(full) if each[0] not in ("Content-Type", "Content-Length")]
                assert told(answer) == kept
        for given in ('"other"', ""):
            answer = await server.ask("GET", path, headers=[BROWSER, ("If-None-Match", given)])
            assert (answer.status, answer.body) == (200, full.body), given


async def test_a_compressed_file_is_the_same_file_under_another_tag(server: Appliance):
    name = ASSETS[0]
    packed, again, plain = [
        await server.ask("GET", f"/ui/assets/{name}", headers=[("Accept-Encoding", accepted)])
        for accepted in ("br, gzip", "gzip", "br")
    ]
    assert [each.header("content-encoding") for each in (packed, plain)] == ["gzip", None]
    assert gzip.decompress(packed.body) == plain.body == FILES[name]
    assert len(packed.body) < len(plain.body)
    assert told(packed) == told(again)
    assert packed.header("etag") != plain.header("etag")
    assert {each.header("vary") for each in (packed, plain)} == {"Accept-Encoding"}


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [("", False), ("identity", False), ("br", False), ("gzip, deflate, br", True), ("GZIP", True), ("x-gzip", False),
     ("*", True), ("*;q=0", False), ("gzip;q=0, *", False), ("*;q=0, gzip", True), ("gzip;q=0", False),
     ("br;q=1, gzip ; Q=0.5", True), ("br;q=1.0,gzip;q=0.", False), (",, ;gzip", True)],
)  # fmt: skip
def test_encodings_that_a_client_accepts(accepted: str, packed: bool):
    assert accepts_gzip(accepted) is packed


async def test_the_page_is_served_with_its_files_and_a_strict_policy(open_server: OpenServer):
    async with open_server(api_keys=("k",)) as server:
        for path, folder in (("/", "./ui/assets/"), ("/ui/", "./assets/")):
            answer = await server.good("GET", path, headers=[BROWSER])
            policy = answer.header("content-security-policy") or ""
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
            assert "unsafe" not in policy
            names = re.findall(rf'(?:src|href)="{re.escape(folder)}([^"]+)"', answer.body.decode())
            assert len(names) >= 3
        for name in names:
            plain = await server.good("GET", f"/ui/assets/{name}")
            if name.endswith((".js", ".css")):
                assert "immutable" in (plain.header("cache-control") or "")
        for other in ("nothing.js", "%2e%2e%2findex.html", ".hidden"):
            assert (await server.ask("GET", f"/ui/assets/{other}")).status == 404
    async with open_server(api_prefix="/a/b") as server:
        assert (await server.ask("GET", "/", headers=[BROWSER])).header("location") == "/a/b/ui/"
        assert b'src="./assets/' in (await server.ask("GET", "/a/b/ui/")).body


async def test_the_status_page_is_html_without_script_and_escapes_everything(open_server: OpenServer, fake_model: Path):
    bad = model(fake_model, "<script>alert(1)</script>", error="<b>broken</b>")
    async with open_server(models=[bad]) as server:
        answer = await server.ask("GET", "/ui/status")
        page = answer.body.decode()
        assert page.startswith("<!doctype html>")
        assert "<script" not in page
        assert "<b>" not in page
        assert "&lt;script&gt;" in page
        assert f"127.0.0.1:{server.port}" in page
        assert "http://localhost/v1" in page
        policy = answer.header("content-security-policy") or ""
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert (await server.ask("HEAD", "/ui/status")).status == 200
    async with open_server(models=[bad], api_keys=("k",)) as server:
        assert b"broken" not in (await server.ask("GET", "/ui/status")).body
        assert b"broken" in (await server.good("GET", "/ui/status", headers=[("Authorization", "Bearer k")])).body
    async with open_server(page=False) as server:
        assert (await server.ask("GET", "/ui/status")).status == 404
        assert (await server.ask("GET", "/", headers=[BROWSER])).status == 404


@pytest.mark.parametrize("more", [{}, {"single": "alpha"}])
async def test_what_belongs_to_the_page_is_public(open_server: OpenServer, more: dict[str, str]):
    async with open_server(api_keys=("k",), **more) as server:
        worker = await server.ask("GET", "/sw.js")
        assert (worker.status, worker.header("content-type")) == (200, "text/javascript; charset=utf-8")
        assert b"registration.unregister()" in worker.body
        assert (await server.ask("GET", "/_app/version.json")).json == {"version": __version__}
        manifest = await server.ask("GET", "/manifest.webmanifest")
        assert manifest.header("content-type") == "application/manifest+json; charset=utf-8"
        assert (await server.ask("GET", f"/{manifest.json['icons'][0]['src']}")).status == 200
        assert (await server.ask("POST", "/sw.js", b"")).status in (401, 404)
    async with open_server(page=False, **more) as server:
        for path in ("/sw.js", "/_app/version.json", "/manifest.webmanifest"):
            assert (await server.ask("GET", path)).status == 404
