"""``explain``: requests of every dialect over HTTP, captured, and told from their bytes to the engine's cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import Command
from fleet_harness import InOrder
from http_harness import CHAT, Appliance, OpenServer, chat, model
from reload_harness import File
from serving import Serve
from swap_harness import Configure

from appliance.core.engine import EMBEDDED
from appliance.core.records.captures import CaptureBuffer
from appliance.features.engines.found import find_engine
from appliance.features.explain.rules import SHOWN

ChatMessage = dict[str, object]
TOOL = {"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}


def keep_captures(server: Appliance) -> None:
    """As a configuration does, which these models need not be in."""
    server.traffic.recorder.captures = CaptureBuffer(5 << 20)


async def explained(server: Appliance, which: object = "last") -> dict[str, Any]:
    return (await server.good("GET", f"/api/explain/{which}")).json


def user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


def talk(*texts: str, **more: object) -> dict[str, object]:
    return {"model": "alpha", "messages": [user(text) for text in texts], **more}


async def test_a_chat_from_its_bytes_to_its_cache(open_server: OpenServer) -> None:
    async with open_server() as server:
        keep_captures(server)
        await server.good("POST", CHAT, talk("hello there", tools=[TOOL], temperature=0.5))
        first = await explained(server)
        assert (first["previous"], first["differs"], first["unknown"]) == (None, None, [])
        body = talk("hello there", "and again", tools=[TOOL], fake={"cached": 9})
        await server.good("POST", CHAT, body, headers=[("User-Agent", "tester/1.0")])
        told = await explained(server)
        assert (told["row"]["model"], told["row"]["client"]) == ("alpha", "tester/1.0, 127.0.0.1")
        came = told["came"]
        assert (came["path"], came["size"]) == (CHAT, len(json.dumps(body)))
        sizes = [len(json.dumps(user(text))) for text in ("hello there", "and again")]
        assert came["messages"] == [["user", size] for size in sizes]
        assert (came["tools"], came["others"]["model"]) == (["read_file"], '"alpha"')
        assert (told["translated"], told["body"], told["ignored"]) == (None, "", "")
        turns = "".join(f"<|im_start|>user\n{text}<|im_end|>\n" for text in ("hello there", "and again"))
        assert told["prompt"] == f"{turns}<|im_start|>assistant\n"
        assert told["row"]["metadata"]["prompt_cache"].startswith("9 of 21 prompt tokens")
        assert told["unknown"][0].startswith("end of the cached part: the prompt has "), "the fake counts texts alone"
        assert (told["previous"], told["differs"]) == (first["row"]["id"], None), "it begins with all of the other"
        assert (await explained(server, first["row"]["id"]))["came"]["others"]["temperature"] == "0.5"
        assert len(await server.rows()) == 2, "its own questions are in no log"


async def test_the_end_of_the_cached_part(open_server: OpenServer) -> None:
    """The fake's tokens are bytes, behind a first one that is no text."""
    async with open_server() as server:
        keep_captures(server)
        prompt = f"{'a long story ' * 20}until here\u2026 and then it goes on"
        cached = len(prompt.partition(" and then")[0].encode()) + 1
        await server.good("POST", "/v1/completions", {"model": "alpha", "prompt": prompt, "fake": {"cached": cached}})
        told = await explained(server)
        assert (told["prompt"], told["unknown"]) == (prompt, [])
        assert told["cached"].endswith("a long story until here\u2026")
        assert len(told["cached"]) <= 80
        assert told["read"] == " and then it goes on"


async def test_a_real_engine(open_server: OpenServer, starter_model: Path) -> None:
    """Messages of a turn and of the next one, whose prompt goes on behind what the engine still has."""
    async with open_server(
        chooser=InOrder(find_engine(EMBEDDED)), models=[model(starter_model, "starter", args=("--ctx-size", "512"))]
    ) as server:
        keep_captures(server)
        asked = {"model": "starter", "max_tokens": 2, "temperature": 0, "system": "Be kind to everyone."}
        turns = [user("Who are you?"), {"role": "assistant", "content": "A small model."}, user("And who am I?")]
        for messages in (turns[:1], turns):
            await server.good("POST", "/v1/messages", {**asked, "messages": messages}, patience=60)
        told = await explained(server)
        assert told["unknown"] == []
        assert told["row"]["tokens"]["cache_tokens"] > 0
        assert "Who are you?" in told["cached"]
        assert f"{told['cached']}{told['read']}" in told["prompt"]
        assert told["read"].startswith("A small model.")
        assert told["differs"] is None


async def test_the_place_that_broke_the_cache(open_server: OpenServer) -> None:
    """A date in the first message, as clients write it; a title that was asked for in between is not compared."""
    async with open_server() as server:
        keep_captures(server)
        await server.good("POST", CHAT, talk("It is 10:41. " + "Be brief. " * 40, "hello"))
        await server.good("POST", CHAT, talk("Give this a title"))
        await server.good("POST", CHAT, talk("It is 10:42. " + "Be brief. " * 40, "hello", "more"))
        ids = [row["id"] for row in await server.rows()]
        told = await explained(server)
        assert told["previous"] == ids[2]
        found = told["differs"]
        assert found["where"] == "message 1"
        assert "It is 10:41. Be brief." in found["before"]
        assert "It is 10:42. Be brief." in found["now"]
        assert found["at"] == json.dumps(user("It is 10:4")).index("10:4") + 4
        assert found["before"].partition("10:41")[2] == found["now"].partition("10:42")[2]
        assert len(found["now"]) == found["at"] + SHOWN // 2, "as much follows the place as is shown before one"
        await server.good("POST", CHAT, talk("It is 10:42. " + "Be brief. " * 40, tools=[TOOL]))
        assert (await explained(server))["differs"]["where"].startswith("tools, "), "there were none"
        changed = {**TOOL, "function": {"name": "write_file"}}
        await server.good("POST", CHAT, talk("It is 10:42. " + "Be brief. " * 40, tools=[changed]))
        assert (await explained(server))["differs"]["where"].startswith("tools, system prompt")
        await server.good("POST", CHAT, talk("It is 10:42. " + "Be brief. " * 40))
        assert (await explained(server))["differs"] is None, "the first one had none either"


async def test_a_request_is_compared_within_its_conversation(open_server: OpenServer) -> None:
    async with open_server() as server:
        keep_captures(server)
        for name, text in (("a", "one two three"), ("b", "one two four"), ("a", "one two five")):
            await server.good("POST", CHAT, talk(text, prompt_cache_key=name))
        first = (await server.rows())[-1]["id"]
        told = await explained(server)
        assert (told["row"]["conversation"], told["previous"]) == ("a", first)
        assert "five" in told["differs"]["now"]


DIALECTS: Sequence[tuple[str, dict[str, object], list[str]]] = [
    ("/v1/messages", {"max_tokens": 5, "system": "Be kind", "messages": [user("hi")]}, ["system", "user"]),
    ("/v1/responses", {"instructions": "Be kind", "input": "hi"}, ["instructions", "input"]),
    ("/v1/responses", {"input": [{"type": "message", **user("hi")}], "stream": True}, ["user"]),
    ("/api/chat", {"messages": [user("hi")], "stream": False}, ["user"]),
    ("/api/generate", {"prompt": "hi", "system": "Be kind", "stream": False}, ["system", "prompt"]),
    ("/api/v1/chat", {"input": "hi", "system_prompt": "Be kind"}, ["input"]),
]


@pytest.mark.parametrize(
    ("path", "body", "roles"), DIALECTS, ids=[f"{at} {each[0]}" for at, each in enumerate(DIALECTS)]
)
async def test_what_a_dialect_made_of_it(
    open_server: OpenServer, path: str, body: dict[str, object], roles: list[str]
) -> None:
    async with open_server() as server:
        keep_captures(server)
        await server.good("POST", path, {"model": "alpha", **body})
        told = await explained(server)
        assert told["unknown"] == []
        assert told["came"]["path"] == path
        assert [role for role, _ in told["came"]["messages"]] == roles
        assert told["translated"]["path"] == CHAT
        asked = json.loads(told["body"])
        assert asked["messages"][-1]["role"] == "user"
        assert asked.get("stream", False) is body.get("stream", False)
        assert "hi<|im_end|>" in told["prompt"]
        assert ("Be kind" in told["prompt"]) == ("Be kind" in str(body))


async def test_members_without_effect_are_named(open_server: OpenServer) -> None:
    async with open_server() as server:
        keep_captures(server)
        body = {"model": "alpha", "max_tokens": 5, "messages": [user("hi")], "diagnostics": {"x": 1}}
        await server.good("POST", "/v1/messages", body)
        assert (await explained(server))["ignored"] == "diagnostics"


async def test_a_refused_request_is_explained_too(open_server: OpenServer) -> None:
    async with open_server() as server:
        keep_captures(server)
        await server.refuses(400, None, "POST", "/v1/messages", {"model": "alpha", "max_tokens": 5, "messages": 7})
        told = await explained(server)
        assert told["row"]["resp_status_code"] == 400
        assert told["unknown"][0].startswith("translation: ")
        assert "messages" in told["unknown"][0]
        assert told["translated"] is None


async def test_no_model_is_loaded_for_it(open_server: OpenServer) -> None:
    async with open_server() as server:
        keep_captures(server)
        await server.good("POST", "/api/chat", {"model": "alpha", "messages": [user("hi " * 5000)], "stream": False})
        await server.good("POST", "/models/unload", {"model": "alpha", "wait": True})
        told = await explained(server)
        assert (told["prompt"], told["cached"]) == (None, "")
        assert told["unknown"] == ["prompt: the model is not loaded here now, and is not loaded for this"]
        assert json.loads(told["body"])["messages"] == [user("hi " * 5000)], "a dialect needs no model"
        assert server.state("alpha") == "unloaded"


async def test_pictures_are_not_fetched_again(open_server: OpenServer) -> None:
    async with open_server() as server:
        keep_captures(server)
        picture = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}
        await server.ask("POST", CHAT, {"model": "alpha", "messages": [{"role": "user", "content": [picture]}]})
        told = await explained(server)
        assert told["prompt"] is None
        assert told["unknown"] == ["prompt: it is made again only of a chat of texts alone"]


async def test_completions_and_bodies_that_are_no_chat(open_server: OpenServer) -> None:
    async with open_server() as server:
        keep_captures(server)
        await server.good("POST", "/v1/completions", {"model": "alpha", "prompt": "Once upon"})
        assert (await explained(server))["prompt"] == "Once upon"
        odd = {"model": "alpha", "messages": [1, {"role": 5}, {"role": "\x1b]0;x"}], "tools": [7, {"name": "x" * 999}]}
        await server.ask("POST", CHAT, odd)
        came = (await explained(server))["came"]
        assert [role for role, _ in came["messages"]] == ["input", "input", "\x1b]0;x"]
        assert came["tools"] == ["?", "x" * 80]
        many = {"model": "alpha", "messages": [user("")] * 3000, **{f"x{at}": at for at in range(3000)}}
        await server.ask("POST", CHAT, many)
        came = (await explained(server))["came"]
        assert (len(came["messages"]), len(came["others"])) == (1000, 1000)
        await server.ask("POST", f"{CHAT}?model=alpha", b"\xff\x00{")
        told = await explained(server)
        assert (told["came"]["size"], told["came"]["messages"]) == (3, [])
        deep = b'{"messages":' + b"[" * 100_000
        for body in (b"[1]", b'{"messages":"\xff"}', deep, b'{"tools":5,"input":{"a":1}}'):
            for path in (CHAT, "/v1/messages", "/v1/responses", "/api/chat", "/api/v1/chat"):
                await server.ask("POST", f"{path}?model=alpha", body)
                told = await explained(server)
                assert (told["came"]["path"], told["came"]["size"]) == (path, len(body))


async def test_captures_that_are_off_or_gone(open_server: OpenServer, file: File) -> None:
    async with open_server(config=file.write({"alpha": ()}, captureBuffer=0)) as server:
        await server.good("POST", CHAT, chat("alpha"))
        for which in ("last", "1"):
            await server.refuses(404, "not_found", "GET", f"/api/explain/{which}", words="captureBuffer: 5")
        file.write({"alpha": ()}, captureBuffer=1)
        await server.good("POST", "/api/config/reload")
        await server.refuses(404, "not_found", "GET", "/api/explain/last", words="no capture of any request")
        await server.refuses(404, "not_found", "GET", "/api/explain/1", words="no capture of request 1")
        await server.good("POST", CHAT, chat("alpha"))
        assert (await explained(server, 2))["row"]["id"] == 2
        await server.refuses(404, "not_found", "GET", "/api/explain/1", words="no capture of request 1")
        await server.ask("POST", CHAT, {"model": "alpha", "messages": [user("x" * (2 << 20))]})
        await server.refuses(404, "not_found", "GET", "/api/explain/3", words="not kept")


@pytest.mark.parametrize("id", ["x", "-1", "1.5", "%00", "1%20", "9" * 40, "%F0%9F%98%80", "LAST", "١"])
async def test_ids_of_strangers(server: Appliance, id: str) -> None:
    keep_captures(server)
    target = "".join(letter if letter.isascii() else "%D9%A1" for letter in id)
    assert (await server.refuses(400, "invalid_request", "GET", f"/api/explain/{target}")).error["param"] == "id"
    await server.refuses(404, "not_found", "GET", f"/api/explain/{'9' * 18}")
    await server.refuses(404, "not_found", "GET", "/api/explain/0")


async def test_it_takes_the_key_of_the_captures(open_server: OpenServer) -> None:
    async with open_server(api_keys=("secret",)) as server:
        for target in ("/api/captures/1", "/api/explain/1", "/api/explain/last"):
            await server.refuses(401, None, "GET", target)


def test_the_verb(serve: Serve, command: Command, configured: Configure, tmp_path: Path) -> None:
    server = serve(config=configured({"alpha": {}}, captureBuffer=5))
    at = command.at(server.url)
    assert "no capture of any request" in at.bad("explain")
    at.good("run", "alpha", "tell me")
    said = at.good("explain")
    for words in ("request 1 for alpha, 200", f"came: {CHAT}", "  user: ", "translated: no", "cache: ", "prompt: "):
        assert words in said
    assert at.json("explain", "1")["row"]["id"] == 1
    assert "there is no capture of request 5" in at.bad("explain", "5")
    at.bad("explain", "x")
