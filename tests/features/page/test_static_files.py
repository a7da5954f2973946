"""A folder served in place of the page: what is found, how it is described, and that nothing else can be read."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from http_harness import CHAT, Appliance, OpenServer, chat
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import UsageError
from appliance.features.page.static_files import INDEX, StaticFiles, names_of

POSIX = sys.platform != "win32"
SECRET = b"nobody may read this"
PAGE = b"<!doctype html><title>mine</title>"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A web page, and beside it what is none of it."""
    root = tmp_path / "site"
    (root / "empty").mkdir(parents=True)
    for name, content in (
        (INDEX, PAGE),
        ("sw.js", b"self"),
        ("_app/version.json", b"{}"),
        ("_app/immutable/x.12345.js", b"export {}"),
        ("docs/index.html", b"docs"),
        ("docs/deep/a b \u00fc%41.txt", b"umlaut"),
        ("UPPER.HTML", b"upper"),
        ("noextension", b"?"),
        ("models", b"a file that would hide a route"),
        ("health", b"another"),
        (".env", SECRET),
        (".git/config", SECRET),
        (".well-known/security.txt", b"contact"),
        ("v1/models", b"hidden"),
        ("../secret.txt", SECRET),
        ("../site-secret/x.txt", SECRET),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
async def server(open_server: OpenServer, site: Path) -> AsyncGenerator[Appliance]:
    async with open_server(static=str(site)) as running:
        yield running


async def test_the_index_is_the_page_and_needs_no_key(open_server: OpenServer, site: Path):
    async with open_server(static=str(site), page=False, api_keys=("k",)) as server:
        for target in ("/", "/index.html", "/?x=1"):
            answer = await server.good("GET", target)
            told = [answer.header(name) for name in ("content-type", "cache-control", "x-content-type-options")]
            assert (answer.body, told) == (PAGE, ["text/html; charset=utf-8", "no-cache", "nosniff"])
        for asked in (("GET", "/models"), ("GET", "/nothing-there"), ("POST", CHAT, chat())):
            assert (await server.ask(*asked)).status == 401


async def test_routes_go_before_files(server: Appliance):
    for target in ("/models", "/v1/models"):
        assert (await server.ask("GET", target)).json["object"] == "list"
    assert (await server.ask("GET", "/health")).json["status"] == "ok"
    assert (await server.ask("POST", CHAT, chat())).status == 200
    assert (await server.ask("POST", "/sw.js", b"")).status == 404


async def test_files_of_single_model_mode(open_server: OpenServer, site: Path):
    async with open_server(static=str(site), single="alpha") as server:
        assert (await server.ask("GET", "/")).body == PAGE
        assert (await server.ask("GET", "/sw.js")).body == b"self"
        await server.fleet.load(server.catalog.snapshot.require("alpha"))
        assert (await server.ask("GET", "/v1/chat/nothing")).status == 404


async def test_types_and_caching(server: Appliance):
    for target, kind, cached in (
        ("/sw.js", "text/javascript; charset=utf-8", "no-cache"),
        ("/_app/version.json", "application/json; charset=utf-8", "no-cache"),
        ("/_app/immutable/x.12345.js", "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"),
        ("/UPPER.HTML", "text/html; charset=utf-8", "no-cache"),
        ("/noextension", "application/octet-stream", "no-cache"),
        ("/.well-known/security.txt", "text/plain; charset=utf-8", "no-cache"),
    ):
        answer = await server.good("GET", target)
        assert (answer.header("content-type"), answer.header("cache-control")) == (kind, cached)
    assert (await server.ask("GET", "/docs/deep/a%20b%20%C3%BC%2541.txt")).body == b"umlaut"


async def test_head_and_what_the_client_has_already(server: Appliance, site: Path):
    """`test_edge_routes.py` has every way to say what a client has."""
    first = await server.ask("GET", "/sw.js")
    head = await server.ask("HEAD", "/sw.js")
    assert (head.status, head.body, head.header("content-length")) == (200, b"", "4")
    has = [("If-None-Match", first.header("etag") or "")]
    again = await server.ask("GET", "/sw.js", headers=has)
    assert (again.status, again.body, again.header("etag")) == (304, b"", first.header("etag"))
    (site / "sw.js").write_bytes(b"changed")
    changed = await server.ask("GET", "/sw.js", headers=has)
    assert (changed.status, changed.body) == (200, b"changed")


async def test_a_folder_leads_to_its_own_page(server: Appliance):
    moved = await server.ask("GET", "/docs?x=1")
    assert (moved.status, moved.header("location")) == (301, "docs/?x=1")
    assert (await server.ask("GET", "/docs/")).body == b"docs"
    assert (await server.ask("GET", "//docs")).header("location") == "docs/"  # below this server, not at a host "docs"
    for target in ("/empty", "/empty/", "/docs/deep", "//evil.example"):
        assert (await server.ask("GET", target)).status == 404, target


OUTSIDE = r"""/../secret.txt /%2e%2e/secret.txt /..%2fsecret.txt /docs/../../secret.txt /docs/%2E%2E/%2E%2E/secret.txt
 /..%5csecret.txt /docs/..%5c..%5csecret.txt /%252e%252e/secret.txt /....//secret.txt /./index.html //secret.txt
 /docs//index.html /../site-secret/x.txt /secret.txt%00.html /index.html%00 /C:%5csecret.txt /c:/secret.txt
 /index.html::$DATA /index.html. /index.html%20 /nul /CON.html /com1.txt /.env /.git/config
 /%c0%ae%c0%ae/secret.txt /%ff /index.html/ /index.html/index.html"""


async def test_nothing_outside_can_be_read(server: Appliance):
    for target in (*OUTSIDE.split(), "/" + "a" * 300, "/" + "a/" * 3000):
        answer = await server.ask("GET", target)
        assert (answer.status, SECRET in answer.body) == (404, False), target


@pytest.mark.skipif(not POSIX, reason="links of POSIX")
async def test_links_are_followed_inside_and_not_outside(open_server: OpenServer, site: Path, tmp_path: Path):
    (site / "inside.js").symlink_to(site / "sw.js")
    (site / "out.txt").symlink_to(tmp_path / "secret.txt")
    (site / "relative.txt").symlink_to("../secret.txt")
    (site / "folder").symlink_to(tmp_path / "site-secret")
    (site / "proc").symlink_to("/proc/self")
    (site / "loop").symlink_to("loop")
    os.mkfifo(site / "pipe")
    linked = tmp_path / "linked"
    linked.symlink_to(site)
    async with open_server(static=str(linked)) as server:
        assert (await server.ask("GET", "/inside.js")).body == b"self"
        for name in ("out.txt", "relative.txt", "folder/x.txt", "proc/environ", "loop", "pipe"):
            answer = await server.ask("GET", f"/{name}", patience=3)
            assert (answer.status, SECRET in answer.body) == (404, False), name


SWAP = """
import os, sys
site, outside = sys.argv[1:]
os.chdir(site)
os.symlink(outside, "link")
while True:
    for old, new in (("swapped", "kept"), ("link", "swapped"), ("swapped", "link"), ("kept", "swapped")):
        os.rename(old, new)
"""


@pytest.mark.skipif(not POSIX, reason="links of POSIX")
def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere(site: Path, tmp_path: Path):
    """Another process does nothing else, as fast as it can. Both are seen: what is in the folder, and nothing."""
    (site / "swapped").mkdir()
    (site / "swapped" / "x.txt").write_bytes(b"inside")
    files, found = StaticFiles(str(site)), Counter[bytes | None]()
    with subprocess.Popen([sys.executable, "-c", SWAP, str(site), str(tmp_path / "site-secret")]) as swapper:
        try:
            until = time.monotonic() + 4
            while time.monotonic() < until and not (len(found) == 2 and min(found.values()) > 500):
                opened = files.open(("swapped", "x.txt"))
                if opened is not None:
                    with opened.file as file:
                        found[file.read()] += 1
                else:
                    found[None] += 1
        finally:
            swapper.kill()
    assert found.keys() == {b"inside", None}


async def test_a_large_file_arrives_whole_and_one_that_is_cut_does_not_look_whole(open_server: OpenServer, site: Path):
    content = os.urandom(5_000_000)
    (site / "large.bin").write_bytes(content)
    (site / "huge.bin").touch()
    os.truncate(site / "huge.bin", 100_000_000)
    async with open_server(static=str(site)) as server:
        assert (await server.ask("GET", "/large.bin")).body == content
        async with server.connect() as client:
            await client.send("GET", "/huge.bin")
            await client.stream.receive_some(1000)
            os.truncate(site / "huge.bin", 1000)
            assert len(await client.everything()) < 100_000_000


@pytest.mark.parametrize("what", ["nowhere", "site/sw.js"])
def test_a_folder_that_is_none_is_refused_at_the_start(tmp_path: Path, site: Path, what: str):
    with pytest.raises(UsageError, match="--path"):
        StaticFiles(str(tmp_path / what))


PIECES = st.sampled_from(["..", ".", "", "a", "~", "\\", "c:", "\0", "%2e%2e", "nul", " ", "\u2024\u2024", "\ud800"])


@given(st.lists(PIECES | st.text(max_size=5), max_size=6).map("/".join).map("/".__add__))
@example("/")
@example("/a/../b")
def test_names_never_lead_anywhere(path: str):
    names = names_of(path)
    for name in names or ():
        assert name not in ("", ".", "..")
        assert "/" not in name
        assert not name.endswith((".", " "))
