"""What a configured model's server gets of a request, and its client back; and all that is below ``/upstream/``."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from command_lines import command_line
from http_harness import CHAT, Answer, Appliance, OpenServer, chat, model
from swap_harness import Configure

ECHO = {"echo": True}
URLENCODED = ("Content-Type", "application/x-www-form-urlencoded")
ODD = b'{ "fake":{"echo":true},\t"n": 1.50e0, "model" :"alpha",\n"messages":[{"role":"user","content":"\\u00e9"}] }\n'
"""Spacing, order, an escape and a number's form that no encoder would give back."""


def sent(answer: Answer) -> bytes:
    """The body that reached the engine."""
    assert answer.status == 200, answer.body
    return answer.json["body"].encode("latin-1")


def sent_headers(answer: Answer) -> dict[str, list[str]]:
    """Those that reached the engine."""
    assert answer.status == 200, answer.body
    found: dict[str, list[str]] = {}
    for line in answer.json["head"].strip().split("\r\n")[1:]:
        name, _, value = line.partition(":")
        found.setdefault(name.lower(), []).append(value.strip())
    return found


# ---- the model's name in a request -----------------------------------------------------------------------------------


async def test_a_body_in_json_arrives_byte_for_byte_whatever_its_type(open_server: OpenServer, configured: Configure):
    """And one that comes in chunks."""
    async with open_server(config=configured({"alpha": {}, "beta": {}})) as server:
        for content_type in ("application/json", None, "text/plain", URLENCODED[1], "Application/JSON"):
            told = [("Content-Type", content_type)] if content_type else []
            answer = await server.ask("POST", CHAT, ODD, told)
            assert sent(answer) == ODD
            assert sent_headers(answer).get("content-type") == ([content_type] if content_type else None)
            assert sent_headers(answer)["content-length"] == [str(len(ODD))]
        wire = b"POST %b HTTP/1.1\r\nHost: x.localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (ODD[:30], ODD[30:]))
        got = await server.exchange(wire % CHAT.encode() + pieces + b"0\r\n\r\n")
        content = json.loads(got.partition(b"\r\n\r\n")[2])
        assert content["body"].encode("latin-1") == ODD
        assert "transfer-encoding" not in content["head"].lower()


async def test_a_json_body_called_a_form_is_still_edited_as_json(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"alpha": {"useModelName": "real"}})) as server:
        answer = await server.ask("POST", CHAT, ODD, [URLENCODED])
        assert sent(answer) == ODD.replace(b'"alpha"', b'"real"')


# ---- edits -----------------------------------------------------------------------------------------------------------


async def test_edits_in_their_order_and_nothing_else(open_server: OpenServer, configured: Configure):
    filters = {
        "stripParams": "temperature, top_k, model",
        "setParams": {"top_k": 5, "a.b": [1], "model": "no"},
        "setParamsByID": {"alpha:high": {"a.b": "high", "effort": True}},
    }
    async with open_server(config=configured({"alpha": {"filters": filters}, "beta": {}})) as server:
        body = b'{"fake": {"echo":true},  "model":"%b","temperature":0.70, "messages": [],"top_k":1 , "z":1e3}'
        plain = sent(await server.ask("POST", CHAT, body % b"alpha"))
        edited = {"fake": ECHO, "model": "alpha", "messages": [], "z": 1e3, "a": {"b": [1]}, "top_k": 5}
        assert json.loads(plain) == edited
        assert b'{"fake": {"echo":true},  "model":"alpha"' in plain
        assert b"1e3" in plain
        high = json.loads(sent(await server.ask("POST", CHAT, body % b"alpha:high")))
        assert (high["model"], high["a"], high["effort"]) == ("alpha:high", {"b": "high"}, True)
        untouched = sent(await server.ask("POST", CHAT, body % b"beta"))
        assert untouched == body % b"beta"


async def test_variants_share_a_process_and_keep_their_names(open_server: OpenServer, configured: Configure):
    filters = {"setParamsByID": {"alpha": {"t": 0}, "fast": {"t": 1}, "best": {"t": 2}}}
    async with open_server(config=configured({"alpha": {"filters": filters, "aliases": ["al"]}})) as server:
        seen = {}
        for name in ("alpha", "fast", "best", "al"):
            found = json.loads(sent(await server.ask("POST", CHAT, chat(name, **ECHO))))
            seen[found["model"]] = found.get("t")
        assert seen == {"alpha": 0, "fast": 1, "best": 2, "al": None}
        assert [status.model for status in server.fleet.status()] == ["alpha"]


# ---- who asks --------------------------------------------------------------------------------------------------------

SECRETS = [("Authorization", "Bearer mine"), ("X-Api-Key", "mine"), ("Cookie", "theme=dark")]
MINE = [*SECRETS, ("X-Forwarded-For", "1.2.3.4")]


async def test_credentials_travel_on_where_the_program_asks_for_none(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"alpha": {}})) as server:
        got = sent_headers(await server.ask("POST", CHAT, chat("alpha", **ECHO), [*MINE, ("Host", "box.localhost:1")]))
        assert (got["authorization"], got["x-api-key"], got["cookie"]) == (["Bearer mine"], ["mine"], ["theme=dark"])
        assert got["x-forwarded-for"] == ["1.2.3.4, 127.0.0.1"]
        assert got["host"] == ["box.localhost:1"]


async def test_the_programs_keys_stay_with_it(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"alpha": {}}, apiKeys=["mine"])) as server:
        await server.refuses(401, "invalid_api_key", "POST", CHAT, chat("alpha"))
        got = sent_headers(await server.ask("POST", CHAT, chat("alpha", **ECHO), MINE))
        assert not {"authorization", "x-api-key"} & got.keys()
        assert got["cookie"] == ["theme=dark"]


async def test_an_engine_of_the_programs_own_learns_nothing_of_the_client(server: Appliance):
    got = sent_headers(await server.ask("POST", CHAT, chat("alpha", **ECHO), [*SECRETS, ("Host", "box.localhost")]))
    assert got["authorization"] != ["Bearer mine"]
    assert not {"x-api-key", "cookie", "x-forwarded-for"} & got.keys()
    assert got["host"] == [f"127.0.0.1:{server.fleet.known('alpha').port}"]


# ---- limits ----------------------------------------------------------------------------------------------------------


async def test_more_requests_than_the_limit_are_refused_at_once(open_server: OpenServer, configured: Configure):
    file = configured({"alpha": {"concurrencyLimit": 2, "args": ("--load-delay", "0.6")}}, sendLoadingState=True)
    async with open_server(config=file) as server:
        for stream in (True, False):
            async with server.asking(chat("alpha", stream=stream, slow_prompt=0.5), times=5) as answers:
                pass
            assert sorted(answer.status for answer in answers) == [200, 200, 429, 429, 429]
            refused = answers[0]
            assert (refused.status, refused.header("retry-after")) == (429, "1")
            assert (refused.error["type"], refused.error["reason"]) == ("rate_limit_error", "concurrency_limit")


# ---- the loading stream ----------------------------------------------------------------------------------------------


async def test_where_nothing_is_told_of_a_load(open_server: OpenServer, configured: Configure):
    slow = ("--load-delay", "0.3")
    models = {"alpha": {"args": slow}, "quiet": {"args": slow, "sendLoadingState": False}}
    async with open_server(config=configured(models, sendLoadingState=True)) as server:
        for path, name, stream in (
            (CHAT, "alpha", False),
            (CHAT, "quiet", True),
            ("/v/chat/completions", "alpha", True),
            ("/v1/completions", "alpha", True),
            (f"/upstream/alpha{CHAT}", "alpha", True),
        ):
            answer = await server.ask("POST", path, {**chat(name, stream=stream), "prompt": "hi"})
            assert (answer.status, b"loading model" in answer.body) == (200, False)
            assert (answer.header("content-type") == "text/event-stream") is stream
            await server.fleet.unload(name)


# ---- the log ---------------------------------------------------------------------------------------------------------


async def test_one_row_for_every_post_on_a_models_route(open_server: OpenServer, configured: Configure):
    models = {"alpha": {"aliases": ["al"]}, "bad": {"args": ("--fail-to-load",)}}
    async with open_server(config=configured(models)) as server:
        await server.ask("POST", CHAT, chat("al"))
        await server.ask("POST", CHAT, chat("al", stream=True))
        for name in ("gamma", None, "bad"):
            await server.ask("POST", CHAT, chat(name))
        await server.ask("POST", CHAT, chat("alpha", status=418))
        await server.ask("POST", f"/upstream/al{CHAT}", chat("ignored"))
        await server.ask("POST", f"/upstream/gamma{CHAT}", chat("ignored"))
        await server.ask("POST", "/v1/messages", {**chat("alpha"), "max_tokens": 3})
        await server.ask("POST", "/upstream/al/tokenize", {"content": "x"})
        await server.ask("GET", "/upstream/al/health")
        await server.ask("GET", CHAT)
        rows = sorted(await server.rows(), key=lambda row: row["id"])
        told = [(row["model"], row["req_path"], row["resp_status_code"]) for row in rows]
        assert told == [
            ("alpha", CHAT, 200),
            ("alpha", CHAT, 200),
            ("gamma", CHAT, 404),
            ("", CHAT, 400),
            ("bad", CHAT, 500),
            ("alpha", CHAT, 418),
            ("alpha", CHAT, 200),
            ("gamma", CHAT, 404),
            ("alpha", "/v1/messages", 200),
        ]
        assert [row["tokens"]["output_tokens"] for row in rows] == [8, 8, 0, 0, 0, 0, 8, 0, 3]
        assert all(row["tokens"]["input_tokens"] > 0 for row in rows if row["resp_status_code"] == 200)
        assert "gamma" in str(rows[2]["error_msg"])
        assert rows[5]["error_msg"] == "the fake was told to refuse"


async def test_strangers_write_nothing(open_server: OpenServer, configured: Configure):
    async with open_server(config=configured({"alpha": {}}, apiKeys=["mine"])) as server:
        for told in ((), [("Authorization", "Bearer yours")], [("Host", "evil.example")]):
            assert (await server.ask("POST", CHAT, chat("alpha"), told)).status in (401, 403)
        page = await server.ask("GET", "/api/metrics/activity", headers=[("X-Api-Key", "mine")])
        assert page.json["total"] == 0


# ---- the list --------------------------------------------------------------------------------------------------------


CAN = {"in": ["text", "image"], "out": ["text"], "tools": True, "context": 4096}


async def test_the_list_of_a_configuration(open_server: OpenServer, configured: Configure):
    """`tests/core/models/test_swap_listing.py` has each key."""
    models = {
        "alpha": {"name": "Alpha", "aliases": ["al"], "capabilities": CAN},
        "hidden": {"unlisted": True},
        "plain": {},
    }
    async with open_server(config=configured(models)) as server:
        alpha, plain = (await server.ask("GET", "/v1/models")).json["data"]
        assert (alpha["id"], alpha["name"], alpha["aliases"], plain["id"]) == ("alpha", "Alpha", ["al"], "plain")
        assert alpha["meta"]["n_ctx"] == alpha["context_length"] == 4096
        assert alpha["architecture"]["modality"] == "text+image->text"
        assert "name" not in plain
        assert plain["status"]["value"] == "unloaded"
        assert (await server.ask("POST", CHAT, chat("hidden"))).status == 200
    async with open_server(config=configured(models, includeAliasesInList=True)) as server:
        listed = (await server.ask("GET", "/v1/models")).json["data"]
        assert [entry["id"] for entry in listed] == ["al", "alpha", "plain"]


SERVER = Path(__file__).parent / "echo_server.py"
ECHO_SERVER: dict[str, object] = {"cmd": f"{command_line((sys.executable, '-S', '-E', str(SERVER)))} ${{PORT}}"}


@pytest.fixture
async def echoing(open_server: OpenServer, configured: Configure) -> AsyncGenerator[Appliance]:
    """A server whose only model is that one. Requests for it are edited, but not what goes below ``/upstream``."""
    async with open_server(config=configured({"alpha": {**ECHO_SERVER, "filters": {"setParams": {"x": 1}}}})) as server:
        yield server


def told_headers(answer: Answer) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.json["headers"]}


async def test_any_method_with_its_path_query_and_body(echoing: Appliance):
    for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "PROPFIND"):
        body = b"\x00\xff not JSON" if method != "GET" else None
        path = "/upstream/alpha/a%2Fb//c%20d?q=%2f&model=beta&q"
        answer = await echoing.ask(method, path, body, [("X-Mine", "1")])
        assert (answer.status, answer.json["method"]) == (200, method)
        assert answer.json["target"] == "/a%2Fb//c%20d?q=%2f&model=beta&q"
        assert answer.json["body"].encode("latin-1") == (body or b"")
        assert told_headers(answer)["x-mine"] == "1"
        assert (answer.header("x-server"), answer.header("set-cookie")) == ("echo", "theme=dark")
    answer = await echoing.ask("HEAD", "/upstream/alpha/x")
    assert (answer.status, answer.body, answer.header("x-server")) == (200, b"", "echo")


async def test_a_page_there_gets_its_cookies_and_learns_where_it_is(echoing: Appliance):
    told = [("Cookie", "theme=dark"), ("Host", "box.localhost"), ("X-Forwarded-For", "9.9.9.9")]
    got = told_headers(await echoing.ask("GET", "/upstream/alpha/", headers=told))
    assert (got["cookie"], got["host"]) == ("theme=dark", "box.localhost")
    assert got["x-forwarded-for"] == "9.9.9.9, 127.0.0.1"


async def test_the_longest_name_wins(open_server: OpenServer, configured: Configure):
    """`tests/core/scheduling/test_routing.py` has the rule."""
    models = {"org": ECHO_SERVER, "org/big": ECHO_SERVER, "plain": {**ECHO_SERVER, "aliases": ["né"]}}
    async with open_server(config=configured(models)) as server:
        found = (("org/bigger", "org", "/bigger"), ("org%2Fbig/x", "org/big", "/x"), ("n%C3%A9/", "plain", "/"))
        for path, owner, rest in found:
            answer = await server.ask("GET", f"/upstream/{path}")
            assert (answer.status, answer.json["target"]) == (200, rest)
            assert server.state(owner) == "loaded"


@pytest.mark.parametrize(("method", "status"), [("GET", 301), ("HEAD", 301), ("POST", 308), ("DELETE", 308)])
async def test_a_name_without_a_slash_moves(open_server: OpenServer, configured: Configure, method: str, status: int):
    async with open_server(config=configured({"org/big": ECHO_SERVER}), api_prefix="/api0") as server:
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
    async with open_server(config=configured({"alpha": ECHO_SERVER}, upstream={"ignorePaths": ["^/quiet"]})) as server:
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
    async with open_server(config=configured({"comfyui_auto": ECHO_SERVER, "alpha": ECHO_SERVER})) as server:
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
    models = {"alpha": {**ECHO_SERVER, "aliases": ["al"], "useModelName": "real name"}, "beta": ECHO_SERVER}
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
    async with open_server(
        config=configured({"alpha": {**ECHO_SERVER, "useModelName": "real"}, "beta": ECHO_SERVER})
    ) as server:
        answer = await server.ask("POST", "/v1/images/edits", body % b"alpha", [("Content-Type", kind)])
        assert answer.json["body"].encode("latin-1") == body % b"real"
        assert told_headers(answer)["content-length"] == str(len(body % b"real"))
        assert told_headers(answer)["content-type"] == kind
