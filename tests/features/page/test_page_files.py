"""The files of the page: who has one gets no other, and who takes it compressed gets it so."""

from __future__ import annotations

import gzip

import pytest
from http_harness import Answer, Appliance

from appliance.core.bodies.codings import accepts_gzip
from appliance.features.page import page

BROWSER = ("Accept", "text/html")
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
