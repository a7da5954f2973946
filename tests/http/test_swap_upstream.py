"""``/upstream/<model>/<rest>`` and ``/comfyui/<rest>``: everything below belongs to the model's server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from command_lines import command_line
from http_harness import CHAT, Answer, Appliance, OpenServer, model
from swap_harness import Configure

SERVER = Path(__file__).parent / "echo_server.py"
ECHO: dict[str, object] = {"cmd": f"{command_line((sys.executable, '-S', '-E', str(SERVER)))} ${{PORT}}"}


@pytest.fixture
async def echoing(open_server: OpenServer, configured: Configure) -> AsyncGenerator[Appliance]:
    """A server whose only model is that one. Requests for it are edited, but not what goes below ``/upstream``."""
    async with open_server(config=configured({"alpha": {**ECHO, "filters": {"setParams": {"x": 1}}}})) as server:
        yield server


def headers(answer: Answer) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.json["headers"]}


async def test_any_method_with_its_path_query_and_body(echoing: Appliance):
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"):
        body = b"\x00\xff not JSON" if method != "GET" else None
        path = "/upstream/alpha/a%2Fb//c%20d?q=%2f&model=beta&q"
        answer = await echoing.ask(method, path, body, [("X-Mine", "1")])
        assert (answer.status, answer.json["method"]) == (200, method)
        assert answer.json["target"] == "/a%2Fb//c%20d?q=%2f&model=beta&q"
        assert answer.json["body"].encode("latin-1") == (body or b"")
        assert headers(answer)["x-mine"] == "1"
        assert (answer.header("x-server"), answer.header("set-cookie")) == ("echo", "theme=dark")
    answer = await echoing.ask("HEAD", "/upstream/alpha/x")
    assert (answer.status, answer.body, answer.header("x-server")) == (200, b"", "echo")


async def test_a_page_there_gets_its_cookies_and_learns_where_it_is(echoing: Appliance):
    told = [("Cookie", "theme=dark"), ("Host", "box.localhost"), ("X-Forwarded-For", "9.9.9.9")]
    got = headers(await echoing.ask("GET", "/upstream/alpha/", headers=told))
    assert (got["cookie"], got["host"]) == ("theme=dark", "box.localhost")
    assert got["x-forwarded-for"] == "9.9.9.9, 127.0.0.1"


async def test_the_longest_name_wins(open_server: OpenServer, configured: Configure):
    """`tests/core/scheduling/test_routing.py` has the rule."""
    models = {"org": ECHO, "org/big": ECHO, "plain": {**ECHO, "aliases": ["né"]}}
    async with open_server(config=configured(models)) as server:
        found = (("org/bigger", "org", "/bigger"), ("org%2Fbig/x", "org/big", "/x"), ("n%C3%A9/", "plain", "/"))
        for path, owner, rest in found:
            answer = await server.ask("GET", f"/upstream/{path}")
            assert (answer.status, answer.json["target"]) == (200, rest)
            assert server.state(owner) == "loaded"


@pytest.mark.parametrize(("method", "status"), [("GET", 301), ("HEAD", 301), ("POST", 308), ("DELETE", 308)])
async def test_a_name_without_a_slash_moves(open_server: OpenServer, configured: Configure, method: str, status: int):
    async with open_server(config=configured({"org/big": ECHO}), api_prefix="/api0") as server:
        for query in ("", "?a=%2F&b"):
            answer = await server.ask(method, f"/api0/upstream/org/big{query}")
            assert (answer.status, answer.body) == (status, b"")
            assert answer.header("location") == f"./big/{query}"
        assert server.fleet.status() == []


async def test_unknown_names(echoing: Appliance):
    for path in ("/upstream/alpah/x", "/upstream/alpah", "/upstream//alpah", f"/upstream/{'a/' * 5000}"):
        await echoing.refuses(404, "model_not_found", "GET", path)
    assert "did you mean 'alpha'" in (await echoing.ask("GET", "/upstream/alpah/x")).error["message"]
    assert (await echoing.ask("GET", "/upstream")).status in (302, 303, 307)
    for path in ("/comfyui", "/comfyui/", "/comfyui/x", "/comfyuix"):
        assert (await echoing.ask("GET", path)).status == 404


async def test_what_belongs_to_a_page_does_not_start_its_model(echoing: Appliance):
    for path in ("/upstream/alpha/app.js", "/upstream/alpha/a/b.css?v=1", "/upstream/alpha/x%2Ejson"):
        await echoing.refuses(409, "conflict", "GET", path)
    assert echoing.fleet.status() == []
    assert (await echoing.ask("GET", "/upstream/alpha/page")).status == 200
    assert (await echoing.ask("GET", "/upstream/alpha/app.js")).json["target"] == "/app.js"


async def test_own_patterns(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"alpha": ECHO}, upstream={"ignorePaths": ["^/quiet"]})) as server:
        assert (await server.ask("GET", "/upstream/alpha/quiet/x")).status == 409
        assert (await server.ask("GET", "/upstream/alpha/app.js")).status == 200


async def test_models_on_disk_beside_a_configuration(open_server: OpenServer, fake_model: Path):
    models = [model(fake_model, "org/repo:Q4", "al"), model(fake_model, "plain")]
    async with open_server(models=models) as server:
        for path in ("org/repo:Q4/health", "org/repo%3AQ4/health", "al/health", "plain/health"):
            assert (await server.ask("GET", f"/upstream/{path}")).status == 200
        assert (await server.ask("POST", f"/upstream/org/repo:Q4{CHAT}", {"messages": []})).status < 500
        rows = await server.rows()
        assert [(row["model"], row["req_path"]) for row in rows] == [("org/repo:Q4", CHAT)]


# ---- ComfyUI ---------------------------------------------------------------------------------------------------------


async def test_comfyui(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"comfyui_auto": ECHO, "alpha": ECHO})) as server:
        moved = await server.ask("GET", "/comfyui?a=1")
        assert (moved.status, moved.header("location")) == (301, "./comfyui/?a=1")
        assert (await server.ask("POST", "/comfyui", b"")).status == 308
        for path in ("/comfyui/app.js", "/comfyui/prompt", "/comfyui//"):
            await server.refuses(409, "conflict", "GET", path)
        assert server.fleet.status() == []
        assert (await server.ask("GET", "/comfyui/?a=1")).json["target"] == "/?a=1"
        answer = await server.ask("POST", "/comfyui/api%2Fx?b", b"{}")
        assert (answer.json["target"], answer.json["body"]) == ("/api%2Fx?b", "{}")
        assert server.state("comfyui_auto") == "loaded"
        assert (await server.ask("GET", "/api/metrics/activity")).json["total"] == 0


# ---- other routes with a model in the query --------------------------------------------------------------------------


async def test_lists_start_the_model_that_the_query_names(open_server: OpenServer, configured: Configure):
    models = {"alpha": {**ECHO, "aliases": ["al"], "useModelName": "real name"}, "beta": ECHO}
    async with open_server(config=configured(models)) as server:
        answer = await server.ask("GET", "/v1/audio/voices?model=beta&x=%2F")
        assert answer.json["target"] == "/v1/audio/voices?model=beta&x=%2F"
        answer = await server.ask("GET", "/sdapi/v1/loras?x=%2F&model=al&y")
        assert answer.json["target"] == "/sdapi/v1/loras?x=%2F&model=real+name&y"
        assert server.state("alpha") == "loaded"
        assert (await server.ask("GET", "/v1/audio/voices?model=gamma")).status == 404
        assert (await server.ask("GET", "/v1/audio/voices")).status == 400


ARRIVES = {
    "/audioapi/v1/tasks/run": "/v1/tasks/run",
    "/v/embeddings": "/embeddings",
    "/v/chat/completions": "/chat/completions",
    "/v/messages/count_tokens": "/messages/count_tokens",
    "/v/rerank": "/rerank",
    **{same: same for same in ("/v1/audio/speech", "/v1/images/edits", "/sdapi/v1/txt2img", "/infill")},
}


async def test_where_a_models_routes_arrive(echoing: Appliance):
    for path, arrives in ARRIVES.items():
        answer = await echoing.ask("POST", f"{path}?a=%2F", {"model": "alpha"})
        assert answer.json["target"] == f"{arrives}?a=%2F"
        assert json.loads(answer.json["body"]) == {"model": "alpha", "x": 1}
        row = (await echoing.rows())[0]
        assert (row["req_path"], row["model"]) == (path, "alpha")


async def test_a_multipart_form_changes_in_its_models_name_alone(open_server: OpenServer, configured: Configure):
    body = (
        b'--XX\r\nContent-Disposition: form-data; name="image"; filename="model"\r\nContent-Type: image/png\r\n\r\n'
        b"\x89PNG\r\n--X\r\n--XX\r\n"
        b'X-Odd:  1\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n--XX--\r\ntail'
    )
    kind = 'multipart/form-data; boundary="XX"'
    async with open_server(config=configured({"alpha": {**ECHO, "useModelName": "real"}, "beta": ECHO})) as server:
        answer = await server.ask("POST", "/v1/images/edits", body % b"alpha", [("Content-Type", kind)])
        assert answer.json["body"].encode("latin-1") == body % b"real"
        assert headers(answer)["content-length"] == str(len(body % b"real"))
        assert headers(answer)["content-type"] == kind
