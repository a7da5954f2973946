"""A plain request that no task carries is answered, told of and cleaned up exactly as one that a task does."""

from __future__ import annotations

import gc
import itertools
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from http_harness import CHAT, Answer, Appliance, Client, OpenServer, chat, raw_post
from reload_harness import RELOAD, File
from waiting import PATIENCE, until

from appliance.http.way import known_heads
from appliance.http.way.known_heads import KnownHeads
from appliance.platform.poller import Poller
from appliance.traffic.record import Record

IN_A_TASK, CARRIED = "CONTENT-LENGTH", "Content-Length"
"""Two ways to write the header; a request is carried only with the second."""
VOLATILE = re.compile(r'"(?:id|created)":\s*(?:"[^"]*"|\d+)')
TOKENS = re.compile(rb'"completion_tokens":\s*(\d)')
JSON = ("Content-Type", "application/json")


class Steps(trio.abc.Instrument):
    """Counts how often the tasks of connections ran."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("Connection._run")


@contextmanager
def counted() -> Generator[Steps]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)


async def make_ready(server: Appliance, model_id: str = "alpha") -> None:
    """The model runs, and its name is known."""
    assert (await server.ask("POST", CHAT, chat(model_id))).status == 200


async def send(client: Client, body: dict[str, object], spelling: str = CARRIED, *headers: tuple[str, str]) -> None:
    content = json.dumps(body).encode()
    await client.send("POST", CHAT, content, [JSON, *headers, (spelling, str(len(content)))])


async def again(client: Client, body: dict[str, object], spelling: str = CARRIED) -> Answer:
    """One more request on the same connection."""
    if str(client.h11.our_state) != "IDLE":
        client.next_request()
    await send(client, body, spelling)
    return await client.answer()


def settled(text: str) -> str:
    """A process that dies is noticed when it breaks the connection, or when it does not take another one."""
    for refused in ("it does not accept connections (Connection refused)", "it does not accept connections"):
        text = text.replace(refused, "it broke the connection")
    return text


def same(answer: Answer) -> tuple[object, ...]:
    """All of an answer that does not differ from one to the next."""
    changing = ("date", "content-length", "x-queue-position", "x-queue-wait", "cache-control")  # the last if it pings
    headers = sorted(header for header in answer.headers if header[0].lower() not in changing)
    body = settled(answer.body.replace(b": ping\n\n", b"").decode("latin-1"))
    return answer.status, headers, VOLATILE.sub("", body), answer.cut


async def row(server: Appliance) -> dict[str, str]:
    """The newest row of the activity log, without times and ids."""
    told = ("model", "req_path", "resp_content_type", "resp_status_code", "error_msg", "metadata", "client", "build")
    found = (await server.rows())[0]
    found["metadata"] = {key: value for key, value in (found.get("metadata") or {}).items() if key != "parts"}  # times
    return {name: settled(str(found.get(name))) for name in told}


@pytest.mark.skipif(not Poller.listens, reason="a task answers every request where sockets have no poller of ours")
@pytest.mark.parametrize("stream", [False, True])
async def test_a_plain_request_wakes_no_task(server: Appliance, client: Client, stream: bool):
    await make_ready(server)
    first = await again(client, chat(stream=stream), IN_A_TASK)
    await until(lambda: server.traffic.metrics.under_way == 0)  # the client may know before the task
    with counted() as steps:
        second = await again(client, chat(stream=stream))
    assert steps.count == 0
    assert same(second) == same(first)
    with counted() as steps:
        await again(client, chat(stream=stream), IN_A_TASK)
    assert steps.count > 0


async def test_a_request_that_is_over_is_in_no_cycle(server: Appliance, client: Client):
    """Python's search for cycles holds all requests up; without them it has next to nothing to do."""
    await make_ready(server)
    gc.collect()
    gc.disable()
    try:
        for spelling, stream in itertools.product((CARRIED, IN_A_TASK), (False, True)):
            for _ in range(5):
                assert (await again(client, chat(stream=stream), spelling)).status == 200
        server.traffic.recorder.settle()
        assert sum(isinstance(each, Record) for each in gc.get_objects()) <= 1  # that of the last one
    finally:
        gc.enable()


FAULTS: tuple[dict[str, Any], ...] = (
    *({"tokens": 0}, {"tokens": 300, "token_size": 5000}, {"token_delay": 0.01}, {"echo": "true"}, {"status": 429}),
    *({"status": 500}, {"error_record": 0}, {"error_record": 3}, {"malformed_sse": "true"}, {"not_http": "true"}),
    *({"close_without_answer": "true"}, {"close_after_tokens": 3}),
)
DEATHS = {"die_after_tokens": 3, "die_mid_record": "true"}, {"die_after_tokens": 3}, {"die_before_head": "true"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("faults", [FAULTS, *((death,) for death in DEATHS), ({"slow_prompt": 0.3},)], ids=str)
async def test_whatever_its_engine_does(open_server: OpenServer, stream: bool, faults: tuple[dict[str, Any], ...]):
    """Answer, activity row and counters are those of a request that has a task."""
    ping_after = 0.1 if "slow_prompt" in faults[0] else PATIENCE  # a pinged client reads a failure in its stream
    async with open_server(ping_after=ping_after) as server:
        for fault in faults:
            await compare_ways(server, chat(stream=stream, **fault), fault)


async def compare_ways(server: Appliance, body: dict[str, Any], fault: dict[str, Any]) -> None:
    """Ask in both spellings."""
    told: list[tuple[object, ...]] = []
    for spelling in (IN_A_TASK, CARRIED):
        await make_ready(server)
        async with server.connect() as client:
            if "die" in str(fault):
                body["user"] = spelling  # two bodies: what has killed an engine is not asked again
            await send(client, body, spelling)
            answer = await client.answer()
        if "died" in str(answer.body) or "die_before_head" in fault or "die_after_tokens" in fault:
            await until(lambda: server.state("alpha") != "loaded")
        await until(lambda: server.traffic.metrics.under_way == 0)
        told.append((*same(answer), await row(server)))
    assert told[1] == told[0], fault
    assert server.traffic.inflight.snapshot() == []


@pytest.mark.slow
async def test_a_reader_who_is_slow_gets_all_of_it(server: Appliance, client: Client):
    """The engine waits while the client's socket is full, and the next request needs no task again."""
    await make_ready(server)
    await send(client, chat(stream=True, tokens=150, token_size=200_000))
    await server.wait_held_up("alpha")
    assert len(await client.rest()) > 150 * 200_000
    assert (await again(client, chat())).status == 200
    with counted() as steps:
        assert (await again(client, chat())).status == 200
    assert steps.count == 0 or not Poller.listens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("abrupt", [False, True])
async def test_a_client_that_leaves_frees_its_engine_at_once(server: Appliance, stream: bool, abrupt: bool):
    await make_ready(server)
    async with server.connect() as client:
        await again(client, chat())
        client.next_request()
        await send(client, chat(stream=stream, stall_after_tokens=2))
        await until(lambda: server.traffic.metrics.under_way == 1)
        if stream:
            await client.data()
        if abrupt:
            client.stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await server.wait_idle("alpha")
    await until(lambda: server.traffic.metrics.under_way == 0)
    noted = await row(server)
    left = "the client left before the answer was complete"
    assert (noted["resp_status_code"], noted["error_msg"]) == ("499", left)
    assert server.traffic.inflight.snapshot() == []


@pytest.mark.parametrize("spelling", [IN_A_TASK, CARRIED])
async def test_a_client_that_leaves_at_the_last_record_has_its_answer(server: Appliance, spelling: str):
    """Official clients do not wait for the end of the body."""
    await make_ready(server)
    async with server.connect() as client:
        await send(client, chat(stream=True, slow_end=60), spelling)
        await client.until(b"[DONE]")
    await until(lambda: server.traffic.metrics.under_way == 0)
    row = (await server.rows())[0]
    assert (row["resp_status_code"], row["tokens"]["output_tokens"]) == (200, 8)
    assert "error_msg" not in row


async def test_somebody_cancels_a_whole_answer(server: Appliance, client: Client):
    """`test_ends.py` has the streams."""
    await make_ready(server)
    await send(client, chat(stall_after_tokens=2))
    [shown] = await until(server.traffic.inflight.snapshot)
    path = f"/api/inflight/{shown.id}/cancel"
    assert (await server.ask("POST", path)).json == {"msg": "ok"}
    answer = await client.answer()
    assert (answer.status, answer.error["reason"]) == (400, "cancelled")
    await server.refuses(404, "not_found", "POST", path)
    await server.wait_idle("alpha")


async def test_requests_that_do_not_wait_for_each_other_are_answered_in_order(server: Appliance):
    """Pipelined (RFC 9112 section 9.3.2): in one piece, and while one is answered."""
    await make_ready(server)

    def raw(number: int, *, last: bool = False) -> bytes:
        body = json.dumps(chat(tokens=number, slow_prompt=0.2)).encode()
        return raw_post(body, "Connection: close") if last else raw_post(body)

    whole = await server.exchange(raw(1) + raw(2) + raw(3, last=True))
    assert re.findall(TOKENS, whole) == [b"1", b"2", b"3"]
    async with server.connect() as client:
        await client.stream.send_all(raw(1))
        await until(lambda: server.traffic.metrics.under_way == 1)
        await client.stream.send_all(raw(2)[:40])
        await trio.sleep(0.02)
        await client.stream.send_all(raw(2)[40:] + raw(3, last=True))
        got = await client.everything()
    assert re.findall(TOKENS, got) == [b"1", b"2", b"3"]


async def test_white_space_behind_a_request_is_not_of_its_body(server: Appliance, client: Client):
    """JSON may be followed by white space, a request may not: the next one would not begin with a method."""
    whole = raw_post(json.dumps(chat(slow_prompt=1.5)).encode())
    await make_ready(server)
    await client.stream.send_all(whole + b" \t")
    await until(lambda: server.traffic.metrics.under_way == 1)
    await client.stream.send_all(whole)
    assert re.findall(rb"HTTP/1.1 (\d+)", await client.everything()) == [b"200", b"400"]


async def test_a_request_may_come_in_pieces(server: Appliance, client: Client):
    whole = raw_post(json.dumps(chat()).encode() + b" ")
    await make_ready(server)
    for cut in (1, 1, 30, 90, 200, -1):
        await client.stream.send_all(whole[:cut])
        await trio.sleep(0.02)
        await client.stream.send_all(whole[cut:])
        with trio.fail_after(10):
            received = await client.stream.receive_some(1 << 16)
            while b"}" not in received:
                received += await client.stream.receive_some(1 << 16)
        assert received.startswith(b"HTTP/1.1 200 ")


async def test_a_model_that_goes_and_comes_back(server: Appliance, client: Client):
    await make_ready(server)
    before = await again(client, chat())
    assert (await server.ask("POST", "/models/unload", {"model": "alpha"})).status == 200
    await server.fleet.wait_gone("alpha")
    assert same(await again(client, chat())) == same(before)
    with counted() as steps:
        assert same(await again(client, chat())) == same(before)
    assert steps.count == 0 or not Poller.listens


async def test_what_a_head_means_is_forgotten_with_the_configuration(open_server: OpenServer, file: File):
    """Other keys, and edits that did not exist, count for the next request."""
    async with open_server(config=file.write({"m": ()}, apiKeys=["old"])) as server:
        body = json.dumps(chat("m", echo="true")).encode()

        async def ask(key: str) -> Answer:
            return await server.ask("POST", CHAT, body, [JSON, ("Authorization", f"Bearer {key}")])

        assert [(await ask(key)).status for key in ("old", "old", "new", "old")] == [200, 200, 401, 200]
        file.write({"m": {"filters": {"setParams": {"temperature": 0.25}}}}, apiKeys=["new"])
        await server.good("POST", RELOAD, headers=[("Authorization", "Bearer old")])
        assert (await ask("old")).status == 401
        assert json.loads((await ask("new")).json["body"])["temperature"] == 0.25
        file.write({"m": ()}, apiKeys=["new"])
        assert (await server.ask("POST", RELOAD, headers=[("Authorization", "Bearer new")])).status == 200
        assert [json.loads((await ask("new")).json["body"]) for _ in range(2)] == [json.loads(body)] * 2
        assert (await ask("old")).status == 401, "the model is known again, its old key is not"


async def test_heads_are_not_remembered_without_end(server: Appliance, client: Client, monkeypatch: pytest.MonkeyPatch):
    few = 20
    monkeypatch.setattr(known_heads, "MAX_KNOWN", few)
    body = json.dumps(chat()).encode()
    for number in range(few + 5):
        await client.send("POST", CHAT, body, [("X-Number", str(number))])
        assert (await client.answer()).status == 200
        client.next_request()
    assert max(len(each._known) for each in gc.get_objects() if isinstance(each, KnownHeads)) == few
