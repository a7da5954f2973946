"""The program's own log and its readers."""

from __future__ import annotations

import json
import logging
import time
import urllib.request
from collections.abc import Generator
from functools import partial

import pytest
import trio
from http_harness import CHAT, Appliance, chat, request
from waiting import PATIENCE

from appliance.core.records.flood import WINDOW
from appliance.core.records.log_lines import LineStyle, LogToStdout
from appliance.fleet.logs import MODEL_LIMIT, Logs
from appliance.traffic.program_log import LIMIT, LogFeeds, ProgramLog, ToProgramLog

ask = partial(request, client="10.0.0.1")
CURL = ("User-Agent", "curl/8")


class World:
    def __init__(self) -> None:
        self.processes = Logs()
        self.log = ProgramLog(self.processes)
        self.mode: LogToStdout = "both"
        self.feeds = LogFeeds(self.log, self.processes, lambda: self.mode)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def python_logger() -> Generator[logging.Logger]:
    logger = logging.getLogger("test_program_log")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()


async def test_lines_stand_in_the_order_in_which_they_were_written(world: World):
    world.log.say("info", "one")
    world.processes.append("alpha", "two")
    world.log.say("warn", "three")
    world.log.say("info", "four")
    world.processes.append("beta", "five")
    everything = ["[INFO] one", "[alpha] two", "[WARN] three", "[INFO] four", "[beta] five"]
    assert world.feeds.combined().take() == everything
    assert world.feeds.program().take() == [line for line in everything if "INFO" in line or "WARN" in line]
    assert world.feeds.upstream().take() == ["[alpha] two", "[beta] five"]
    assert world.feeds.upstream("beta").take() == ["five"]
    world.mode = "proxy"
    assert world.feeds.combined().take() == world.feeds.program().take()
    world.mode = "upstream"
    assert world.feeds.combined().take() == world.feeds.upstream().take()
    world.mode = "none"
    assert world.feeds.combined().take() == []


async def test_lines_have_their_times_where_a_reader_wants_them(world: World):
    before = time.time()
    world.log.say("info", "one")
    world.processes.append("alpha", "two")
    reader = world.feeds.combined()
    reader.times = True
    told = [line.split(" ", 1) for line in reader.take()]
    assert [text for _, text in told] == ["[INFO] one", "[alpha] two"]
    assert all(before - 0.001 <= float(at) <= time.time() + 0.001 for at, _ in told)  # it is rounded


async def test_what_a_browser_reads_for_the_page_is_no_line_unless_it_fails(world: World):
    of_page = ("Sec-Fetch-Site", "same-origin")
    read = partial(ask, method="GET")
    world.log.answered(read("/api/now", of_page), 200, 2, 0.1)
    world.log.answered(read("/api/now"), 200, 2, 0.1)
    world.log.answered(read("/api/disk", of_page), 503, 2, 0.1)
    world.log.answered(ask("/models/load", of_page), 200, 2, 0.1)
    said = [line.split('"')[1] for line in world.feeds.program().take()]
    assert said == ["GET /api/now HTTP/1.1", "GET /api/disk HTTP/1.1", "POST /models/load HTTP/1.1"]


async def test_a_reader_hears_what_comes_and_nothing_twice(world: World):
    world.log.say("info", "old")
    world.processes.append("alpha", "old")
    reader = world.feeds.combined(history=False)
    assert reader.take() == []
    for say in (lambda: world.log.say("info", "new"), lambda: world.processes.append("alpha", "new")):
        async with trio.open_nursery() as nursery:
            with trio.fail_after(PATIENCE):
                nursery.start_soon(reader.wait)
                await trio.testing.wait_all_tasks_blocked()
                say()
    assert reader.take() == ["[INFO] new", "[alpha] new"]
    assert reader.take() == []


async def test_a_slow_reader_is_told_how_much_it_missed(world: World):
    slow = world.feeds.combined(history=False)
    one = world.feeds.upstream("alpha", history=False)
    for number in range(5):
        world.processes.append("alpha", "x" * (MODEL_LIMIT // 64))
        world.log.say("info", f"{number}" * (LIMIT // 2 - 20))
    assert slow.take()[0] == "... 3 lines lost ..."
    assert len(one.take()) == 5
    for _ in range(1000):
        world.processes.append("alpha", "x" * 8000)
    assert one.take()[0].endswith(" lines lost ...")
    assert one.take() == []


async def test_the_log_keeps_the_newest(world: World):
    for number in range(10_000):
        world.log.say("info", f"line {number} {'x' * 50}")
    lines = world.feeds.program().take()
    assert sum(map(len, lines)) <= LIMIT
    assert lines[-1].startswith("[INFO] line 9999")
    assert "lost" not in lines[0]


async def test_the_line_of_a_request_is_that_of_its_time_whenever_it_is_read(world: World):
    asked = ask("/v1/chat/completions", CURL)
    world.log.answered(asked, 200, 1024, 0.0125)
    world.processes.append("alpha", "between")
    world.log.style = LineStyle("info", "rfc3339")
    world.log.answered(asked, 500, 0, 61.5)
    world.log.style = LineStyle("warn")
    world.log.answered(asked, 200, 1, 1.0)
    world.log.style = LineStyle()
    for quiet in ("/wol-health", "/metrics"):
        world.log.answered(ask(quiet), 200, 1, 1.0)
    for _ in range(2):
        first, between, second = world.feeds.combined().take()
        assert first == '[INFO] Request 10.0.0.1 "POST /v1/chat/completions HTTP/1.1" 200 1024 "curl/8" 12.5ms'
        assert between == "[alpha] between"
        assert second.endswith('[INFO] Request 10.0.0.1 "POST /v1/chat/completions HTTP/1.1" 500 0 "curl/8" 1m1.5s')
        assert second[:2] == "20"


async def test_lines_of_requests_keep_within_the_limit_and_those_that_went_are_counted(world: World):
    reader = world.feeds.program()
    for number in range(5000):
        world.log.answered(ask(f"/v1/{number}"), 200, number, 0.001)
    lost, *lines = reader.take()
    assert lost == f"... {5000 - len(lines)} lines lost ..."
    assert lines[-1].startswith('[INFO] Request 10.0.0.1 "POST /v1/4999 HTTP/1.1" 200 4999')
    assert LIMIT * 0.8 < sum(len(line) + 1 for line in lines) < LIMIT * 1.2
    assert reader.take() == []


async def test_pythons_logging_ends_here_from_any_thread(world: World, python_logger: logging.Logger):
    world.log.style = LineStyle("debug")
    python_logger.addHandler(ToProgramLog(world.log))
    for level, number in (("DEBUG", 10), ("INFO", 20), ("WARN", 30), ("ERROR", 40), ("ERROR", 50)):
        python_logger.log(number, "here %s", number)
        assert world.feeds.program().take()[-1] == f"[{level}] here {number}"
    reader = world.feeds.program(history=False)
    await trio.to_thread.run_sync(python_logger.info, "from a thread")
    with trio.fail_after(PATIENCE):
        await reader.wait()
    assert reader.take() == ["[INFO] from a thread"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("task", [False, True])
async def test_an_engines_lines_about_an_answer_are_there_before_its_end(
    server: Appliance, task: bool, stream: bool
) -> None:
    """On the console that echoes them at once, and in the log that is read then; of a flood the newest."""
    echoed: list[str] = []
    server.fleet.logs.echo = lambda _, text: echoed.append(text)
    await server.ask("POST", "/models/load", {"model": "alpha", "wait": True})
    headers = [("X-Appliance-Fallback", "none")] * task
    for lines in (1, 2, 400, 1500, 3):
        async with server.connect() as client:
            await client.send("POST", CHAT, chat(stream=stream, end_lines=lines), headers)
            while await client.data():
                pass
            assert f"line {lines} of {lines}" in echoed
    server.fleet.logs.echo = None
    await trio.sleep(WINDOW)  # else the lines of this would belong to the flood
    address = server.fleet.address("alpha")
    body = json.dumps(chat(stream=stream, end_lines=7)).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{address.port}{CHAT}", body)
    asked.add_header("Authorization", f"Bearer {address.key}")
    with urllib.request.urlopen(asked) as answer:  # noqa: ASYNC210  no task reads the engine's output meanwhile
        answer.read()
    assert "line 7 of 7" in server.traffic.logs.upstream("alpha").take()
