"""MCP servers that are processes, or at an address: they list, are called, die, lie, flood, and leave nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil
import pytest
import trio
from mcp_harness import entry, http_fake, living, opened, pids, servers_of, until_asked, until_gone, use
from waiting import until

from appliance.core.tools.box import ToolContext, ToolProblem
from appliance.errors import UsageError
from appliance.features.tools import mcp_client, mcp_session
from appliance.features.tools.mcp_client import open_mcp
from appliance.platform.children import open_children


async def test_tools_are_listed_and_used_by_server_and_name() -> None:
    async with opened(one=entry(), two=entry("--tools", "echo")) as tools:
        specs = {spec.name: spec for spec in tools.specs()}
        assert {"one_echo", "one_add", "two_echo"} <= set(specs)
        assert specs["two_echo"].server == "two"
        assert specs["two_echo"].kind == "mcp"
        assert not specs["two_echo"].writes
        assert json.loads(bytes(specs["two_echo"].parameters))["type"] == "object"
        found = await use(tools, "one_echo", message="hi\nthere ä")
        assert json.loads(found.body) == {"plain_text_response": "echo: hi\nthere ä\nsecond"}
        assert found.error is None
        assert (await use(tools, "one_add", a=3, b=5)).text == "8"


async def test_errors_are_told_as_llama_server_tells_them() -> None:
    async with opened(s=entry()) as tools:
        assert json.loads((await use(tools, "s_fail", message="no such city")).body) == {"error": "no such city"}
        assert json.loads((await use(tools, "s_fail")).body) == {"error": "MCP tool returned an error"}
        assert json.loads((await use(tools, "s_boom")).body) == {"error": "boom went the tool"}
        assert json.loads((await use(tools, "s_structured")).body) == {"plain_text_response": '{"n": 1}'}
        assert "image" in (await use(tools, "s_picture")).text
        bad = await tools.call("s_echo", b"[1]", ToolContext())
        assert "JSON object" in bad.error
        pretty = await tools.call("s_echo", b'{\n  "message":\n "x"\n}\n', ToolContext())
        assert pretty.text == "echo: x\nsecond"
        with pytest.raises(ToolProblem, match="nothing_here"):
            await tools.call("nothing_here", b"{}", ToolContext())


async def test_prompts_and_resources_of_a_server() -> None:
    async with opened(s=entry(), dumb=entry("--exit-at-start", "3")) as tools:
        server, dumb = tools.servers
        offers = await server.offers()
        assert [(prompt.name, prompt.arguments[0].name) for prompt in offers.prompts if prompt.arguments] == [
            ("poem", "topic")
        ]
        assert [resource.uri for resource in offers.resources] == ["fake://notes", "fake://picture"]
        assert await server.prompt("poem", {"topic": "zebras"}) == "Write a poem about zebras."
        assert await server.resource("fake://notes") == "the magic word is zebra"
        with pytest.raises(ToolProblem, match="topic is missing"):
            await server.prompt("poem", {})
        with pytest.raises(ToolProblem, match="not text"):
            await server.resource("fake://picture")
        with pytest.raises(ToolProblem, match="Method not found"):
            await server.resource("fake://nothing")
        silent = await dumb.offers()
        assert (silent.prompts, silent.resources) == ((), ())
        assert silent.error
        with pytest.raises(ToolProblem):
            await dumb.resource("fake://notes")


async def test_warm_up_stops_every_server_and_the_first_call_starts_one(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with opened(s=entry("--pid-file", str(file))) as tools:
        assert len(pids(file)) == 1
        assert not living(file), "the server that told its tools is gone"
        first = json.loads((await use(tools, "s_about")).text)["pid"]
        again = json.loads((await use(tools, "s_about")).text)["pid"]
        assert first == again == pids(file)[1], "the second one is kept"
        assert living(file) == [first]
    assert not living(file)


async def test_what_goes_over_the_wire(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with opened(s=entry("--log", str(log))) as tools:
        await use(tools, "s_echo", message="m")
    said = [json.loads(line) for line in log.read_text().splitlines()]
    assert [m["method"] for m in said] == [
        *("initialize", "notifications/initialized", "tools/list"),
        *("initialize", "notifications/initialized", "tools/call"),
    ]
    assert said[0]["params"] == {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "llama.cpp", "version": "1.0"},
    }
    assert said[-1]["params"] == {"name": "echo", "arguments": {"message": "m"}}
    assert all(m["jsonrpc"] == "2.0" for m in said)


async def test_environment_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "1")
    monkeypatch.setenv("TWICE", "outer")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    given = entry(env={"TWICE": "inner", "with-minus": "2", "NUMBER": 3}, cwd=str(tmp_path))
    async with opened(s=given) as tools:
        about = json.loads((await use(tools, "s_about")).text)
    assert about["cwd"] == str(tmp_path)
    assert about["env"]["OUTER"] == "1"
    assert about["env"]["TWICE"] == "inner"
    assert about["env"]["WITH-MINUS" if sys.platform == "win32" else "with-minus"] == "2"
    assert about["env"]["NUMBER"] == "3"
    assert "LLAMA_API_KEY" not in about["env"], "the program's own key is nothing for others"


async def test_pages_are_joined_and_names_that_collide_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(a_b=entry("--tools", "c,d,e", "--pages", "3"), a=entry("--tools", "b_c,x")) as tools:
        assert [spec.name for spec in tools.specs()] == ["a_b_c", "a_b_d", "a_b_e", "a_x"]
    assert "'b_c' of MCP server 'a' is skipped" in caplog.text


async def test_servers_that_do_not_start_do_not_hinder_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(
        none={"command": "this-executable-does-not-exist-12345"},
        folder=entry(cwd=str(tmp_path / "missing")),
        dying=entry("--exit-at-start", "9", "--errors", "10000"),
        refusing=entry("--refuse", "initialize"),
        listless=entry("--refuse", "tools/list"),
        empty=entry("--tools", ""),
        good=entry("--tools", "echo"),
    ) as tools:
        assert [spec.name for spec in tools.specs()] == ["good_echo"]
        assert (await use(tools, "good_echo", message="x")).error is None
    for words in ("this-executable-does-not-exist-12345", str(tmp_path / "missing"), "exit status 9", "not today"):
        assert words in caplog.text
    tail = next(r.message for r in caplog.records if "the last words" in r.message)
    assert 4000 < len(tail) < 4300, "of standard error the last 4 KiB are kept"


@pytest.mark.slow
async def test_a_server_that_hangs_at_the_start_costs_ten_seconds(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    began = trio.current_time()
    hanging = {f"h{at}": entry("--hang-at", "initialize", "--pid-file", str(file)) for at in range(3)}
    async with opened(**hanging, late=entry("--hang-at", "tools/list"), good=entry("--tools", "echo")) as tools:
        assert 9.5 < trio.current_time() - began < 40, "at once, not one after the other"
        assert [spec.name for spec in tools.specs()] == ["good_echo"]
        assert not living(file)


async def test_noise_of_all_kinds_is_skipped() -> None:
    """Also under a flood: memory stays where it is."""
    process = psutil.Process()
    async with opened(
        s=entry("--garbage", "--stale", "--burst", "--ask"),
        flood=entry("--flood", "60"),
        long=entry("--long-line", "100"),
    ) as tools:
        for at in range(5):
            assert (await use(tools, "s_echo", message=str(at))).text == f"echo: {at}\nsecond"
        replies = json.loads((await use(tools, "s_asked")).text)[-3:]
        assert replies[0] == {"jsonrpc": "2.0", "id": "server-ping", "result": {}}
        assert [r["error"]["code"] for r in replies[1:]] == [-32601, -32601]
        before = process.memory_info().rss
        assert (await use(tools, "flood_echo", message="f")).text == "echo: f\nsecond"
        assert (await use(tools, "long_echo", message="l")).text == "echo: l\nsecond"
        assert process.memory_info().rss - before < 48 << 20


@pytest.mark.slow
async def test_a_flood_without_an_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its time limit, and where that is long by its size; the server is ended, and started again when needed."""
    process, file = psutil.Process(), tmp_path / "pids"
    flags = ("--flood-for-ever", "--pid-file", str(file))
    async with opened(short=entry(*flags, timeout_ms=500), long=entry("--flood-for-ever", timeout_ms=50_000)) as tools:
        before = process.memory_info().rss
        assert (await use(tools, "short_echo")).error == "request timed out"
        monkeypatch.setattr(mcp_session, "MAX_NOISE", 128 << 20)  # which the first one reaches in half a second
        assert (await use(tools, "long_echo")).error == (
            "MCP server 'long' failed during the call: it wrote 128 MiB in a row without an answer"
        )
        assert process.memory_info().rss - before < 48 << 20
        await until_gone(file)


async def test_an_answer_may_be_large_but_not_too_large() -> None:
    """What was dropped is told, since the answer may have been in it."""
    async with opened(s=entry("--long-answer", "7"), big=entry("--long-answer", "9", timeout_ms=2000)) as tools:
        assert len((await use(tools, "s_echo")).text) > 7 << 20
        found = await use(tools, "big_echo")
        assert "timed out" in found.error
        assert "8 MiB" in found.error


async def test_time_is_up(tmp_path: Path) -> None:
    """The server is told, lives on, and its late answer is not taken for the next one."""
    log = tmp_path / "log"
    async with opened(s=entry("--log", str(log), timeout_ms=2000)) as tools:
        pid = json.loads((await use(tools, "s_about")).text)["pid"]
        found = await use(tools, "s_sleep", seconds=3)
        assert json.loads(found.body) == {"error": "request timed out"}
        about = await use(tools, "s_about")
        assert json.loads(about.text)["pid"] == pid
    told = [json.loads(line) for line in log.read_text().splitlines() if "notifications/cancelled" in line]
    assert len(told) == 1
    assert told[0]["params"]["requestId"] == 3


async def test_answers_to_nobody() -> None:
    async with opened(s=entry("--wrong-ids", timeout_ms=700)) as tools:
        assert (await use(tools, "s_echo")).error == "request timed out"
        assert (await use(tools, "s_echo")).error == "request timed out"


async def test_death_during_a_call_is_told_and_the_next_call_starts_it_again(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(s=entry()) as tools:
        first = json.loads((await use(tools, "s_about")).text)["pid"]
        found = await use(tools, "s_die", status=3)
        assert found.error == "MCP server 's' failed during the call: it ended (exit status 3)"
        assert "dying on purpose" in caplog.text
        assert json.loads((await use(tools, "s_about")).text)["pid"] != first


async def test_death_between_calls_is_nothing_to_notice(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with opened(s=entry("--die-after", "1", "--pid-file", str(file))) as tools:
        for at in range(6):
            assert (await use(tools, "s_echo", message=str(at))).text == f"echo: {at}\nsecond"
            await until_gone(file)


async def test_output_closed_without_dying() -> None:
    async with opened(s=entry("--close-output-at", "tools/call")) as tools:
        found = await use(tools, "s_echo")
        assert found.error == "MCP server 's' failed during the call: it closed its standard output"


async def test_a_server_that_stops_reading_does_not_hold_a_large_request(tmp_path: Path) -> None:
    """The line that was cut short ends the process, since no other could follow it."""
    file = tmp_path / "pids"
    async with opened(s=entry("--deaf-after", "tools/call", "--pid-file", str(file), timeout_ms=2000)) as tools:
        assert (await use(tools, "s_echo", message="x")).error is None
        assert (await use(tools, "s_echo", message="y" * 500_000)).error is not None
        again = await use(tools, "s_echo", message="z")
        assert again.text == "echo: z\nsecond"
        assert len(set(pids(file))) == 3


async def test_a_start_that_failed_is_not_tried_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works at the warm-up, then its folder is away, then it is back."""
    monkeypatch.setattr(mcp_client, "COOLDOWN", 1.0)
    folder = tmp_path / "work"
    folder.mkdir()
    async with opened(s=entry(cwd=str(folder))) as tools:
        folder.rmdir()
        began = trio.current_time()
        found = await use(tools, "s_echo")
        assert json.loads(found.body) == {"error": "MCP server unavailable: s"}
        folder.mkdir()
        assert (await use(tools, "s_echo")).error == "MCP server unavailable: s"
        await until(lambda: use(tools, "s_echo"), lambda used: used.error is None)
        assert trio.current_time() - began >= 1.0


async def test_calls_to_one_server_follow_one_another_and_servers_do_not_wait_for_each_other() -> None:
    async with opened(slow=entry(), fast=entry()) as tools:
        await use(tools, "slow_echo")
        await use(tools, "fast_echo")
        began = trio.current_time()
        done: dict[str, float] = {}

        async def call(key: str, name: str, **arguments: object) -> None:
            assert (await use(tools, name, **arguments)).error is None
            done[key] = trio.current_time() - began

        async with trio.open_nursery() as nursery:
            for at in range(3):
                nursery.start_soon(lambda at=at: call(f"slow{at}", "slow_sleep", seconds=0.4))
            nursery.start_soon(lambda: call("fast", "fast_echo", message="x"))
        assert max(done.values()) >= 1.2
        assert done["fast"] < max(done.values())


async def test_who_is_cancelled_ends_the_process(tmp_path: Path) -> None:
    file, log = tmp_path / "pids", tmp_path / "log"
    async with opened(s=entry("--pid-file", str(file), "--log", str(log))) as tools:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: use(tools, "s_sleep", seconds=60))
            await until_asked(log, "seconds")
            nursery.cancel_scope.cancel()
        await until_gone(file)
        assert (await use(tools, "s_echo", message="again")).text == "echo: again\nsecond"


async def test_leaving_is_quick_and_leaves_nothing(tmp_path: Path) -> None:
    """With a call in flight, a grandchild that holds the pipes, and a server that ignores all requests to end."""
    file, log = tmp_path / "pids", tmp_path / "log"
    flags = ("--pid-file", str(file), "--log", str(log), "--grandchild", "--ignore-term")
    took = -1.0
    with trio.fail_after(60):
        async with open_children() as children:
            servers = servers_of(a=entry(*flags), b=entry(*flags))
            async with open_mcp(servers, children) as tools:
                assert not living(file), "warm-up left nothing"
                await use(tools, "a_echo")
                await use(tools, "b_echo")
                assert len(living(file)) == 4
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(lambda: use(tools, "a_sleep", seconds=50))
                    await until_asked(log, "seconds")
                    nursery.cancel_scope.cancel()
                took = trio.current_time()
            took = trio.current_time() - took
            assert took < 6, "a second and a bit, on a machine that has nothing else to do"
            assert not living(file)


async def test_a_server_has_a_bounded_number_of_tools_and_a_bounded_description_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ",".join(f"t{n}" for n in range(2500))
    async with opened(many=entry("--tools", names, "--pages", "5")) as tools:
        assert [spec.name for spec in tools.specs()] == [f"many_t{n}" for n in range(1000)]
    assert "has more than 1000 tools" in caplog.text
    flags = ("--tools", "a,b,c,d", "--pages", "2", "--description", "1500")
    async with opened(large=entry(*flags), small=entry("--tools", "echo")) as tools:
        assert [spec.name for spec in tools.specs()] == ["large_a", "large_b", "small_echo"]
    assert "describes them in more than 4 MiB" in caplog.text


async def test_json_answers(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log") as fake, opened(web={"type": "http", "url": fake.url}) as tools:
        assert [spec.name for spec in tools.specs()] == ["web_echo", "web_sleep", "web_boom"]
        assert json.loads((await use(tools, "web_echo", message="ä")).body) == {"plain_text_response": "echo: ä"}
        assert (await use(tools, "web_boom")).error == "boom went the tool"
    first, *others = fake.requests
    assert first["message"]["params"]["protocolVersion"] == "2025-11-25"
    for each in fake.requests:
        assert each["headers"]["accept"] == "application/json, text/event-stream"
        assert each["headers"]["content-type"] == "application/json"
    assert [e["headers"].get("mcp-protocol-version") for e in others[:2]] == ["2025-06-18"] * 2  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--sse",), ("--sse", "--ask"), ("--sse", "--session", "--flood", "20")])
async def test_streams_of_events(tmp_path: Path, flags: tuple[str, ...]) -> None:
    process = psutil.Process()
    async with http_fake(tmp_path / "log", *flags) as fake, opened(web={"url": fake.url}) as tools:
        before = process.memory_info().rss
        for at in range(3):
            assert (await use(tools, "web_echo", message=at)).text == f"echo: {at}"
        assert process.memory_info().rss - before < 48 << 20
    answers = [e["message"] for e in fake.requests if "method" not in (e["message"] or {})]  # type: ignore[operator]
    if "--ask" in flags:
        assert answers[0] == {"jsonrpc": "2.0", "id": "p", "result": {}}
        assert answers[1]["error"]["code"] == -32601  # type: ignore[index]


async def test_a_session_is_kept_and_ended(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log", "--session") as fake:
        async with opened(web={"url": fake.url}) as tools:
            await use(tools, "web_echo", message="x")
            await use(tools, "web_echo", message="x")
        methods = fake.methods
        begun = ["initialize", "notifications/initialized"]
        assert methods == [*begun, "tools/list", "DELETE", *begun, "tools/call", "tools/call", "DELETE"]


async def test_a_forgotten_session_is_begun_again(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log", "--session", "--forget-once") as fake:
        async with opened(web={"url": fake.url}) as tools:
            assert (await use(tools, "web_echo", message="x")).text == "echo: x"
        assert fake.methods.count("initialize") == 3


async def test_headers_are_sent_and_their_lack_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with http_fake(tmp_path / "log", "--need", "Authorization:Bearer k") as fake:
        given = {"url": fake.url, "headers": {"Authorization": "Bearer k"}}
        async with opened(web=given, other={"url": fake.url}, wrong={"url": fake.url + "x"}) as tools:
            assert {spec.server for spec in tools.specs()} == {"web"}
    assert "HTTP status 401: who are you?" in caplog.text
    assert "Bearer k" not in caplog.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--status", "500"), "HTTP status 500: out of order"),
        (("--text", "nonsense"), "does not belong to the question"),
        (("--text", '{"jsonrpc":"2.0","id":77,"result":{}}'), "does not belong to the question"),
        (("--sse", "--cut"), "ended without the answer"),
        (("--break-off",), "closed the connection without an answer"),
        (("--long", "9"), "longer than"),
        (("--sse", "--long", "9"), "longer than 8 MiB"),
    ],
)
async def test_servers_that_break_the_rules(tmp_path: Path, flags: tuple[str, ...], words: str) -> None:
    async with http_fake(tmp_path / "log", *flags) as fake, opened(web={"url": fake.url}) as tools:
        found = await use(tools, "web_echo", message="x")
        assert words in found.error
        again = await use(tools, "web_echo", message="x")
        assert again.error == found.error, "it is tried again, from the beginning"


async def test_time_is_up_and_the_server_is_told(tmp_path: Path) -> None:
    async with http_fake(tmp_path / "log") as fake, opened(web={"url": fake.url, "timeout_ms": 500}) as tools:
        assert (await use(tools, "web_sleep", seconds=20)).error == "request timed out"
        assert fake.methods[-1] == "notifications/cancelled"


async def test_a_server_that_goes_away_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_client, "COOLDOWN", 1.0)
    async with http_fake(tmp_path / "log") as fake:
        port = fake.port
        found = opened(web={"url": fake.url})
        tools = await found.__aenter__()
        await use(tools, "web_echo", message="x")
    try:
        assert (await use(tools, "web_echo", message="x")).error == "MCP server unavailable: web"
        async with http_fake(tmp_path / "log", port=port):
            await until(lambda: use(tools, "web_echo", message="x"), lambda used: used.error is None)
    finally:
        await found.__aexit__(None, None, None)


async def test_an_address_with_a_slash_and_a_query_is_asked_as_it_is(tmp_path: Path) -> None:
    for path, end in (("/a/", None), ("/a?key=1", None), ("/", -1)):
        async with http_fake(tmp_path / "log", path=path) as fake, opened(web={"url": fake.url[:end]}) as tools:
            assert len(tools.specs()) == 3


async def test_an_address_of_no_use_is_said_before_anything_starts() -> None:
    with pytest.raises(UsageError, match="user name or password"):
        async with opened(web={"url": "http://user:password@127.0.0.1:1/mcp"}):
            pass


async def test_a_revision_that_is_none_is_not_repeated(tmp_path: Path) -> None:
    strange = "1\r\nX-Evil: 1"
    async with http_fake(tmp_path / "log", "--version", strange) as fake, opened(web={"url": fake.url}) as tools:
        assert (await use(tools, "web_echo", message="x")).text == "echo: x"
    told = [e["headers"].get("mcp-protocol-version") for e in fake.requests]  # type: ignore[union-attr]
    assert set(told) == {None, "2025-11-25"}
