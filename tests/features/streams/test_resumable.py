"""Generations that outlive their connections, over a real server and real sockets."""

from __future__ import annotations

import base64
import gc
import json
import random
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from http_harness import CHAT, Answer, Appliance, Client, OpenServer, chat, model, request
from test_fallback import text
from trio_websocket import ConnectionClosed
from waiting import until

from appliance.core.bodies.sse import Decoder
from appliance.core.settings import FleetSettings
from appliance.features import FEATURES
from appliance.features.streams.keys import StreamsConfig
from appliance.replay.generation import Generation
from appliance.traffic.record import Record

ID = "c0ffee::org/model:Q8_0"
DONE = b"data: [DONE]\n\n"


def named(conversation: str = ID) -> list[tuple[str, str]]:
    return [("X-Conversation-Id", conversation)]


async def post(client: Client, conversation: str = ID, **request: object) -> None:
    await client.send("POST", CHAT, chat(**{"stream": True, **request}), named(conversation))


async def begin(server: Appliance, conversation: str = ID, **request: object) -> bytes:
    """Post, read a little of the answer, and go."""
    async with server.begun(chat(**{"stream": True, **request}), CHAT, named(conversation)) as client:
        return await client.data()


async def read(server: Appliance, conversation: str = ID, offset: object = 0, **more: object) -> Answer:
    query = "".join(f"&{key}={value}" for key, value in more.items())
    return await server.ask("GET", f"/v1/stream?conv_id={quote(conversation, safe='')}&from={offset}{query}")


async def lookup(server: Appliance, *ids: object) -> list[dict[str, object]]:
    return (await server.good("POST", "/v1/streams/lookup", {"conversation_ids": list(ids)})).json


async def posted(server: Appliance, conversation: str = ID, **fake: object) -> bytes:
    """Post, and read the whole answer."""
    return (await server.good("POST", CHAT, chat(stream=True, **fake), named(conversation))).body


async def until_done(server: Appliance, conversation: str = ID) -> dict[str, object]:
    return (await until(lambda: lookup(server, conversation), lambda found: found and found[0]["is_done"]))[0]


async def test_a_stream_is_there_after_its_connection_and_the_same_in_both_addresses(server: Appliance):
    whole = await posted(server)
    assert whole.endswith(DONE)
    assert (await read(server)).body == whole
    for path in (quote(ID, safe=""), quote(ID, safe="/:"), ID):
        answer = await server.ask("GET", f"/v1/stream/{path}?from=0")
        assert (answer.status, answer.body) == (200, whole)
    assert answer.header("content-type") == "text/event-stream"
    assert answer.header("transfer-encoding") == "chunked"
    assert (await server.ask("GET", f"/v1/stream?conv_id=other&conv_id={ID}")).body == whole
    assert (await server.ask("HEAD", f"/v1/stream/{ID}")).status == 200
    echoed = await server.ask("POST", CHAT, chat(echo=True), named())
    assert "conversation" not in echoed.json["head"].lower()


async def test_cut_anywhere_and_resumed_it_is_the_same(server: Appliance, request: pytest.FixtureRequest):
    """The connection of the one who asked is cut at a random byte, and that of everyone who goes on."""
    chance = random.Random(3)
    whole = await server.ask("POST", CHAT, chat(stream=True, tokens=60), named("w"))
    option = request.config.getoption
    for number in range(1000 if option("--deep") else 60 if option("--all") else 10):
        conversation = f"cut-{number}"
        got = b""
        async with server.connect() as client:
            await post(client, conversation, tokens=60, token_delay=0.001)
            await client.head()
            limit = chance.randrange(len(whole.body))
            while len(got) < limit and (data := await client.data()):
                got += data
        while True:
            got = got[: chance.randrange(len(got) + 1)]
            async with server.connect() as client:
                await client.send("GET", f"/v1/stream/{conversation}?from={len(got)}")
                assert (await client.head()).status_code == 200
                limit = len(got) + chance.randrange(len(whole.body))
                data = b"-"
                while len(got) < limit and (data := await client.data()):
                    got += data
                if not data:
                    break
        assert text(Answer(200, [], got, cut=False)) == text(whole)
        assert (await read(server, conversation)).body == got


async def test_every_offset_of_a_finished_stream(server: Appliance, client: Client):
    """Odd ones as llama-server reads them."""
    whole = await posted(server)
    odd = {"5tokens": 5, "%205": 5, "-1": len(whole), len(whole) + 1: len(whole)}
    for offset, begins in ({at: at for at in [*range(0, len(whole), 7), len(whole)]} | odd).items():
        await client.send("GET", f"/v1/stream/{ID}?from={offset}")
        assert (await client.answer()).body == whole[begins:]
        client.next_request()


async def test_what_cannot_be_read(server: Appliance):
    await posted(server)
    for query, status, message in (
        ("conv_id=", 400, "Missing conversation id in path"),
        ("", 400, "Missing conversation id in path"),
        ("conv_id=nobody", 404, "Stream not found or expired"),
        *((f"conv_id={ID}&from={at}", 400, "Invalid 'from' offset") for at in ("x", "", "9" * 20)),
    ):
        answer = await server.ask("GET", f"/v1/stream?{query}")
        assert (answer.status, answer.error["message"]) == (status, message)
        assert answer.error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


async def test_what_the_ring_has_dropped_is_told(open_server: OpenServer):
    async with open_server(streams=StreamsConfig(max_bytes=1000)) as server:
        whole = await posted(server, tokens=50, token_delay=0.02)
        target, words = f"/v1/stream?conv_id={ID}&from={len(whole) - 1001}", "Stream offset lost, please restart"
        await server.refuses(400, None, "GET", target, words=words)
        assert (await read(server, offset=len(whole) - 1000)).body == whole[-1000:]


async def test_a_client_too_slow_for_the_ring_is_told(open_server: OpenServer):
    async with open_server(streams=StreamsConfig(max_bytes=100_000)) as server, server.connect() as client:
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await post(client, tokens=120, token_size=50_000)  # more than the server's side of the connection holds
        await until_done(server)
        answer = await client.answer()
        assert not answer.cut
        assert "offset lost" in json.loads(Decoder().feed(answer.body)[-1].data)["error"]["message"]
        assert (await read(server, offset=(await lookup(server, ID))[0]["total_bytes"] - 1000)).body.endswith(DONE)


async def test_a_client_that_reads_when_all_is_done_gets_all_of_it(open_server: OpenServer):
    async with open_server(streams=StreamsConfig(max_bytes=50_000_000)) as server, server.connect() as client:
        await server.ask("POST", CHAT, chat())  # loads the model: the next request needs no task
        await post(client, tokens=200, token_size=50_000)  # more than sockets hold
        await until_done(server)
        answer = await client.answer()
        assert (answer.cut, answer.body) == (False, (await read(server)).body)


async def test_lookup_tells_what_it_is_asked_for(server: Appliance):
    whole = await posted(server)
    await begin(server, "live", stall_after_tokens=2)
    first, again, by_prefix, live = await lookup(server, ID, ID, 7, "nobody", None, "c0ffee", "live")
    assert first == again == by_prefix
    assert first["conversation_id"] == ID
    assert (first["is_done"], first["total_bytes"]) == (True, len(whole))
    assert 0 < first["started_at"] <= first["completed_at"]
    assert (live["is_done"], live["completed_at"]) == (False, 0)
    assert await lookup(server, "", "c0f") == []
    assert (await server.ask("GET", "/v1/streams")).status == 404, "nobody learns the ids of others"
    for body in (b"{", b"[]", b'{"conversation_ids": 1}', b"{}"):
        assert (await server.ask("POST", "/v1/streams/lookup", body)).status == 400


async def test_a_stop_ends_all_readers_and_says_so(server: Appliance):
    bodies: list[bytes] = []

    async def follow(client: Client, *, task_status: trio.TaskStatus[None]) -> None:
        begun = await client.until(b"\n\n", 3)
        task_status.started()
        bodies.append(begun + await client.rest())

    path = f"/v1/stream/{quote(ID, safe='')}"
    async with (
        server.begun(chat(stream=True, stall_after_tokens=3), CHAT, named()) as first,
        server.connect() as second,
    ):
        await second.send("GET", path)
        async with trio.open_nursery() as nursery:
            await nursery.start(follow, first)
            await nursery.start(follow, second)
            stopped = await server.ask("DELETE", path)
            assert (stopped.status, stopped.body) == (204, b"")
            assert (await read(server)).status == 404
    for body in bodies:
        assert body.count(b"\n\n") >= 3
        assert b"[DONE]" not in body
        assert json.loads(Decoder().feed(body)[-1].data)["error"]["reason"] == "cancelled"
    await server.wait_idle("alpha")
    for query, status in ((f"?conv_id={ID}", 204), ("?conv_id=never-seen", 204), ("", 400)):
        assert (await server.ask("DELETE", f"/v1/stream{query}")).status == status


async def test_an_answer_that_is_no_stream_ends_the_stream_of_its_id_and_is_not_kept(server: Appliance):
    async with server.begun(chat(stream=True, stall_after_tokens=3), CHAT, named()) as client:
        assert (await server.ask("POST", CHAT, chat(), named())).json["choices"]
        assert b"[DONE]" not in await client.rest()
    assert (await read(server)).status == 404


KEYS = {
    "one": ("Authorization", "Bearer one"),
    "two": ("x-api-key", "two"),
    "basic": ("Authorization", "Basic " + base64.b64encode(b"user:basic").decode()),
}


@pytest.mark.parametrize("task", [False, True])
async def test_the_same_id_with_another_key_is_another_stream(open_server: OpenServer, task: bool):
    """Begun, read, looked up, followed, replaced and stopped: each key's holder alone."""
    headers = [("X-Appliance-Fallback", "none")] * task
    async with open_server(api_keys=tuple(KEYS)) as server, AsyncExitStack() as stack:
        await server.ask("POST", CHAT, chat(), [KEYS["one"]])  # the next needs no task
        clients: dict[str, Client] = {}
        for number, (key, credential) in enumerate(KEYS.items(), 2):
            body = chat(stream=True, stall_after_tokens=number)
            begun = server.begun(body, CHAT, [*named(), credential, *headers])
            clients[key] = await stack.enter_async_context(begun)
            await clients[key].until(b"\n\n", number + 1)
        for key, credential in KEYS.items():
            again = await stack.enter_async_context(server.connect())
            await again.send("GET", f"/v1/stream/{ID}", None, [credential])
            await again.until(b"data: ", list(KEYS).index(key) + 3)
            body = {"conversation_ids": [ID, "c0ffee"]}
            found = (await server.ask("POST", "/v1/streams/lookup", body, [credential])).json
            assert [each["conversation_id"] for each in found] == [ID, ID]
            extra = [tuple(part.encode() for part in credential)]
            async with server.joined("/v1/stream/ws", extra_headers=extra) as socket:
                await socket.send_message(json.dumps({"type": "subscribe", "id": ID}))
                assert json.loads(await socket.get_message())["id"] == ID
                if key == "two":
                    await socket.send_message(json.dumps({"type": "stop", "id": ID}))
                    assert b"cancelled" in await clients["two"].rest()
        stop = await server.ask("DELETE", f"/v1/stream/{ID}", headers=[KEYS["basic"]])
        assert stop.status == 204
        assert b"cancelled" in await clients["basic"].rest()
        for key, status in {"two": 404, "basic": 404}.items():
            assert (await server.ask("GET", f"/v1/stream/{ID}", headers=[KEYS[key]])).status == status
        [one] = (await server.ask("POST", "/v1/streams/lookup", body, [KEYS["one"]])).json[:1]
        assert not one["is_done"]


async def test_a_client_that_leaves_while_the_model_loads(open_server: OpenServer, fake_model: Path):
    slow = model(fake_model, "slow", args=("--load-delay", "0.6"))
    async with open_server(models=[slow]) as server:
        async with server.connect() as client:
            await post(client, model="slow")
            await until(lambda: server.state("slow") == "loading")
        words = "Stream owner model is loading, retry later"
        early = await server.refuses(503, None, "GET", f"/v1/stream?conv_id={ID}", words=words)
        assert early.header("retry-after") == "1"
        answer = await until(lambda: read(server), lambda answer: answer.status != 503)
        assert answer.body.endswith(DONE)


async def test_a_stop_while_the_model_loads(open_server: OpenServer, fake_model: Path):
    slow = model(fake_model, "slow", args=("--load-delay", "1"))
    async with open_server(models=[slow]) as server, server.connect() as client:
        await post(client, model="slow")
        await until(lambda: server.state("slow") == "loading")
        assert (await server.ask("DELETE", f"/v1/stream/{ID}")).status == 204
        answer = await client.answer()
        told = "request cancelled by a stop while the model was loading"
        assert (answer.status, answer.error["message"]) == (400, told)
        assert (await read(server)).status == 404


async def test_a_stream_outlives_its_model(open_server: OpenServer):
    async with open_server(fleet=FleetSettings(models_max=1, stop_timeout=2)) as server:
        whole = await posted(server)
        assert (await server.ask("POST", CHAT, chat("beta"))).status == 200  # evicts it
        assert server.state("alpha") == "unloaded"
        assert (await read(server)).body == whole
        assert server.state("alpha") == "unloaded"


async def test_a_model_that_is_unloaded_or_dies_leaves_an_error_at_the_end(open_server: OpenServer):
    async with open_server(fleet=FleetSettings(stop_timeout=0.3)) as server:
        await begin(server, "killed", die_after_tokens=5, token_delay=0.05)
        done = await until_done(server, "killed")
        body = (await read(server, "killed")).body
        assert done["total_bytes"] == len(body)
        assert b'"error"' in body.split(b"\n\n")[-2]
        await begin(server, "unloaded", stall_after_tokens=3)
        await server.ask("POST", "/models/unload", {"model": "alpha"})
        assert b'"error"' in (await read(server, "unloaded")).body


async def test_the_log_tells_the_whole_of_it(server: Appliance):
    """Tokens are counted to the end although nobody was there."""
    await begin(server, tokens=20, token_delay=0.03)
    assert [shown.model for shown in server.traffic.inflight.snapshot()] == ["alpha"]
    await until_done(server)
    rows = await server.rows()
    assert [(row["resp_status_code"], row["tokens"]["output_tokens"]) for row in rows] == [(200, 20)]
    assert b"llama_appliance_request_bodies_bytes 0" in (await server.ask("GET", "/metrics")).body
    assert server.traffic.inflight.snapshot() == []


@pytest.mark.slow
async def test_a_stream_that_is_forgotten_is_in_no_cycle(server: Appliance):
    """Python looks for cycles of old objects once in hours; until then each would hold the whole answer."""
    await begin(server, tokens=3)
    gc.collect()
    gc.disable()
    try:
        for number in range(8):
            await begin(server, f"c{number}", tokens=20)
            assert (await read(server, f"c{number}")).body.endswith(DONE)
            assert (await server.ask("DELETE", f"/v1/stream?conv_id=c{number}")).status == 204
        server.traffic.recorder.settle()
        kept = [each for each in gc.get_objects() if isinstance(each, Generation | Record)]
        assert len(kept) <= 6, kept  # of the first stream, and of what was asked last
    finally:
        gc.enable()


async def test_records_with_ids_resume_where_the_last_one_ended(server: Appliance):
    whole = await posted(server)
    events = Decoder().feed((await read(server, sse_ids=1)).body)
    assert [e.data for e in events] == [e.data for e in Decoder().feed(whole)]
    for at in (0, len(events) // 2, len(events) - 1):
        last = [("Last-Event-ID", str(events[at].id))]
        answer = await server.ask("GET", f"/v1/stream/{ID}?from=0&sse_ids=1", headers=last)
        assert answer.status == (200 if at < len(events) - 1 else 204)
        assert [e.id for e in Decoder().feed(answer.body)] == [e.id for e in events[at + 1 :]]
    assert (await read(server)).body == whole


async def test_the_websocket_of_streams_takes_no_long_message(server: Appliance):
    async with server.joined("/v1/stream/ws") as socket:
        await socket.send_message("x" * (1 << 16))
        assert json.loads(await socket.get_message())["type"] == "error"  # heard, and not understood
        await socket.send_message("x" * ((1 << 16) + 1))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.get_message()
        assert closed.value.reason.code == 1009


async def test_many_streams_over_one_websocket(server: Appliance):
    whole = await posted(server, "done")
    await begin(server, "live", tokens=100, token_delay=0.01)
    await begin(server, "stalled", stall_after_tokens=2)
    async with server.joined("/v1/stream/ws") as socket:

        async def say(**message: object) -> None:
            await socket.send_message(json.dumps(message))

        for conversation in ("done", "live", "stalled", "nobody"):
            await say(type="subscribe", id=conversation, **({"from": 10} if conversation == "done" else {}))
        got, ends, errors = dict[str, str](), dict[str, int](), dict[str, dict[str, object]]()
        places = {"done": 10}
        while len(ends) + len(errors) < 4:
            message = json.loads(await socket.get_message())
            match message["type"]:
                case "data":
                    assert places.get(message["id"], 0) == message["from"]
                    places[message["id"]] = message["to"]
                    got[message["id"]] = got.get(message["id"], "") + message["data"]
                case "end":
                    ends[message["id"]] = message["at"]
                    if message["id"] == "live":
                        await say(type="stop", id="stalled")
                case _:
                    errors[message["id"]] = message["error"]
        assert got["done"] == whole[10:].decode()
        assert got["live"] == (await read(server, "live")).body.decode()
        assert "[DONE]" not in got["stalled"]
        assert ends == places
        assert errors["nobody"]["code"] == 404
        await socket.send_message("nonsense")
        assert json.loads(await socket.get_message())["error"]["code"] == 400
    assert (await read(server, "stalled")).status == 404


async def test_a_subscription_that_ends_within_a_message_leaves_the_websocket_whole(server: Appliance):
    """The client reads nothing meanwhile, so that most messages are under way when their subscription ends."""
    whole = (await posted(server, "long", tokens=3000)).decode()
    async with server.joined("/v1/stream/ws") as socket:
        for _ in range(60):
            await socket.send_message('{"type": "subscribe", "id": "long"}')
            await trio.sleep(0.01)
            await socket.send_message('{"type": "unsubscribe", "id": "long"}')
        await socket.send_message('{"type": "subscribe", "id": "nobody"}')
        said = 0
        while (message := json.loads(await socket.get_message()))["type"] != "error":
            assert message["type"] == "end" or message["data"] == whole[message["from"] : message["to"]]
            said += 1
        assert said > 1
        assert message["error"]["code"] == 404


async def test_a_restart_keeps_what_was_said_and_tells_of_the_break(open_server: OpenServer, tmp_path: Path):
    kept = StreamsConfig(path=str(tmp_path / "streams"))
    async with open_server(streams=kept) as server:
        whole = await posted(server)
        got = await begin(server, "live", stall_after_tokens=5)
    async with open_server(streams=kept) as server:
        assert (await read(server)).body == whole
        body = (await read(server, "live")).body
        assert body.startswith(got)
        assert "the server was stopped" in json.loads(Decoder().feed(body)[-1].data)["error"]["message"]
        assert (await server.ask("DELETE", "/v1/stream/live")).status == 204
    async with open_server(streams=kept) as server:
        assert (await read(server, "live")).status == 404
        assert (await read(server)).body == whole


async def test_an_id_without_end_is_refused(server: Appliance):
    ask = ("POST", CHAT, chat(stream=True), named("x" * 1025))
    await server.refuses(400, None, *ask, words="X-Conversation-Id")
    assert server.state("alpha") == "unknown"


async def test_without_the_feature_the_header_means_nothing(open_server: OpenServer):
    async with open_server(features=[each for each in FEATURES if each.name != "streams"]) as server:
        for _ in range(2):  # in a task, and on the fast path
            assert (await server.ask("POST", CHAT, chat(stream=True), named())).body.endswith(DONE)
        assert "conversation" not in (await server.ask("POST", CHAT, chat(echo=True), named())).json["head"].lower()
        assert (await read(server)).error["message"].startswith("there is no route")


async def test_ids_of_all_kinds(server: Appliance) -> None:
    """What a header can say, a path can."""
    kernel = server.opened.kernel
    hold = next(each.hold for each in server.opened.parts if each.hold is not None)(kernel)
    for conversation in ("a", "é::ü/x", "a b", "conv::org/repo:Q4"):
        header = ("x-conversation-id", conversation.encode().decode("latin-1"))
        assert hold.name_in(request("/", header), kernel.edge.guard) == conversation
