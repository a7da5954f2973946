"""What is noted of requests: nothing is missed however bytes pass, whoever looks finds all, and passing is cheap."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from appliance.core.records.accounting import TokenCounter
from appliance.core.records.activity import CLIENT_LEFT, Query, Row
from appliance.core.records.captures import BLOCK, CaptureBuffer, CapturedBody, CapturedExchange
from appliance.core.records.ended import EndedRequest
from appliance.features.metrics.counts import Counters, ModelCounts
from appliance.store.activity import Activity, open_activity
from appliance.traffic import recorder as recording
from appliance.traffic.metrics import Metrics
from appliance.traffic.packing import Load, Packer
from appliance.traffic.record import LOOK_EVERY, Record, RecordingSink, aside
from appliance.traffic.recorder import Recorder, open_recorder
from appliance.traffic.request import Request

CHAT = "/v1/chat/completions"
MIB = 1 << 20
EVENTS = [(b"Content-Type", b"text/event-stream")]
JSON = [(b"Content-Type", b"application/json"), (b"Set-Cookie", b"secret")]
REQUEST = Request(
    method="POST",
    path=CHAT,
    target=CHAT,
    query={},
    headers=[(b"host", b"localhost"), (b"authorization", b"Bearer secret")],
    http_version="1.1",
)
ANSWER = b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}'


class Client:
    """A sink that takes everything."""

    def __init__(self, *, event_stream: bool = False) -> None:
        self.status: int | None = None
        self.event_stream = event_stream
        self.ended = False
        self.got: list[bytes] = []

    @property
    def sent(self) -> int:
        return sum(map(len, self.got))

    def start(self, status: int, headers: object) -> None:
        self.status = status

    def push(self, data: bytes) -> bool:
        self.got.append(data)
        return True

    async def flush(self) -> None:
        pass

    async def write(self, data: bytes) -> None:
        self.push(data)

    async def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True


@pytest.fixture
def metrics() -> Counters:
    return Counters(Metrics())


@asynccontextmanager
async def open_counted(
    activity: Activity, metrics: Counters, load: Callable[[], Load] = Load
) -> AsyncGenerator[Recorder]:
    """A recorder whose requests are counted, to the last."""
    async with open_recorder(activity, load) as made:
        with made.follow_requests(metrics.on_request_ended):
            yield made


@pytest.fixture
async def recorder(metrics: Counters) -> AsyncGenerator[Recorder]:
    """One that keeps ten rows in memory, and a MiB of captures."""
    async with open_activity(None, 10) as activity, open_counted(activity, metrics) as made:
        made.captures = CaptureBuffer(MIB)
        yield made


def begin(
    recorder: Recorder, body: bytes = b'{"model":"m"}', *, streaming: bool = False
) -> tuple[Record, RecordingSink]:
    record = Record(REQUEST, CHAT)
    record.body, record.model, record.known = body, "m", True
    return record, recorder.watch(record, Client(event_stream=streaming))


async def answer(recorder: Recorder, *pieces: bytes, body: bytes = b'{"model":"m"}', status: int = 200) -> None:
    """One whole request."""
    record, sink = begin(recorder, body)
    sink.start(status, JSON)
    for piece in pieces:
        sink.push(piece)
    recorder.finish(record, sink, "chat", status)


async def rows(recorder: Recorder) -> list[Row]:
    return list((await recorder.page(Query(order="asc", limit=999))).data)


async def test_whoever_looks_right_after_finds_everything(recorder: Recorder, metrics: Counters):
    await answer(recorder, ANSWER)
    [row] = await rows(recorder)
    assert (row.tokens.input_tokens, row.tokens.output_tokens, row.has_capture) == (3, 4, True)
    assert row.resp_content_type == "application/json"
    await answer(recorder, ANSWER)
    assert (await recorder.read(lambda table: table.stats(()))).total_output_tokens == 8
    await answer(recorder, ANSWER[:9], ANSWER[9:])
    capture = await recorder.capture(3)
    assert (capture.req_body, capture.resp_body) == (b'{"model":"m"}', ANSWER)
    assert capture.req_headers == {"Host": "localhost", "Authorization": "[REDACTED]"}
    assert capture.resp_headers == {"Content-Type": "application/json", "Set-Cookie": "[REDACTED]"}
    await answer(recorder, b'{"error":"no"}', status=500)
    recorder.settle()
    assert metrics.models["m"].requests == {("chat", 200): 3, ("chat", 500): 1}
    assert metrics.models["m"].generated_tokens == 12
    failed = await recorder.capture(4)
    assert (failed.resp_headers, failed.resp_body) == (None, None)
    assert (await rows(recorder))[-1].error_msg == "no"


async def test_what_ends_is_written_down_without_being_asked_for_and_in_order():
    async with open_activity(None, 1000) as activity, open_recorder(activity) as recorder:
        await answer(recorder, ANSWER)
        heard: list[int] = []
        with recorder.follow(heard.append):
            for _ in range(200):
                await answer(recorder, ANSWER)
            assert heard == []
            await until(lambda: len(heard) >= 200)
            assert heard == list(range(2, 202)), "what was before is not told"
        await answer(recorder, ANSWER)
        recorder.settle()
        assert len(heard) == 200


async def test_a_follower_is_told_of_what_ends_while_it_follows(recorder: Recorder, metrics: Counters):
    told, other = list[EndedRequest](), list[EndedRequest]()
    await answer(recorder, ANSWER)
    with recorder.follow_requests(told.append):
        with recorder.follow_requests(other.append):
            await answer(recorder, ANSWER)
            await answer(recorder, b'{"error":"no"}', status=500)
            assert not told, "that is made later"
        assert other == told
        await answer(recorder, ANSWER)
    await answer(recorder, ANSWER)
    recorder.settle()
    assert [one.status for one in told] == [200, 500, 200]
    good, bad, _ = told
    assert good.usage is not None
    assert (good.usage.tokens.output_tokens, good.error) == (4, None)
    assert (bad.usage, bad.error) == (None, "no")
    assert (good.route, good.model, good.requested, good.known, good.streaming) == ("chat", "m", "m", True, False)
    assert (good.headers, good.steps, good.fault) == (REQUEST.headers, (), None)
    assert good.began <= good.first_byte <= good.ended
    assert abs(good.epoch + good.ended - time.time()) < 60
    assert metrics.models["m"].requests == {("chat", 200): 4, ("chat", 500): 1}


async def test_what_cannot_be_written_down_takes_nothing_with_it(
    recorder: Recorder, metrics: Counters, caplog: pytest.LogCaptureFixture
):
    record, sink = begin(recorder)
    record.began = None  # pyright: ignore[reportAttributeAccessIssue]  such a thing does not exist
    sink.start(200, JSON)
    recorder.finish(record, sink, "chat", 200)
    await answer(recorder, ANSWER)
    recorder.settle()
    assert metrics.models["m"].requests == {("chat", 200): 1}
    assert "this is a bug" in caplog.text


async def test_another_budget_is_for_what_ends_from_then_on(recorder: Recorder):
    recorder.captures = CaptureBuffer(0)
    await answer(recorder, ANSWER)
    recorder.captures = CaptureBuffer(MIB)
    await answer(recorder, ANSWER)
    assert [row.has_capture for row in await rows(recorder)] == [False, True]


async def test_what_is_told_to_a_waiting_client_is_no_part_of_the_answer(recorder: Recorder):
    record, sink = begin(recorder, streaming=True)
    sink.start(200, EVENTS)
    await aside(sink).write(b": load")
    assert aside(sink).push(b"ing\n\n")
    assert record.first_byte_at is None
    sink.push(b"data: [DONE]\n\n")
    assert record.first_byte_at is not None
    assert sink.passed == 11 + 14
    recorder.finish(record, sink, "chat", 200)
    recorder.settle()
    capture = await recorder.capture(1)
    assert capture.resp_body == b"data: [DONE]\n\n"


async def test_the_first_token_comes_behind_comments_and_behind_the_reading_of_the_prompt(recorder: Recorder):
    reading = b'data: {"choices":[],"prompt_progress":{"total":%d,"processed":1}}\n\n'
    for pieces in ([b"data: [DONE]\n\n"], [b":\n\n", reading % 1, reading % 2 * 80, b"data: 1\n\ndata: 2\n\n"]):
        record, sink = begin(recorder, streaming=True)
        sink.start(200, EVENTS)
        for piece in pieces:
            assert record.first_token_at is None
            sink.push(piece)
        assert record.first_token_at is not None
        record.began = record.first_token_at - 0.25
        sink.push(reading % 3)
        recorder.finish(record, sink, "chat", 200)
    record, sink = begin(recorder, streaming=True)
    sink.start(200, EVENTS)
    sink.push(reading % 1)
    recorder.finish(record, sink, "chat", CLIENT_LEFT)
    assert [row.first_token_ms for row in await rows(recorder)] == [250, 250, -1]


async def test_the_engine_tells_when_the_first_token_of_a_whole_answer_was_there(recorder: Recorder):
    for timings, status in ((b'{"predicted_ms":1500}', 200), (b"{}", 200), (b'{"predicted_ms":9}', 500)):
        record, sink = begin(recorder)
        record.began -= 2.0
        sink.start(status, JSON)
        sink.push(b'{"timings":%b}' % timings)
        recorder.finish(record, sink, "chat", status)
    first, *others = [row.first_token_ms for row in await rows(recorder)]
    assert 500 <= first < 1500
    assert others == [-1, -1]


class Always(Load):
    """A load that tests decide."""

    light = False

    def is_light(self) -> bool:
        return type(self).light


class Busy(Always):
    pass


class Free(Always):
    light = True


async def test_under_load_nothing_is_written_down_that_newer_requests_push_out():
    """Ids and counters are those of all requests, rows and captures those of the newest."""
    keep, budget, body = 10, 64 << 10, b"x" * 2000
    metrics = Counters(Metrics())
    async with open_activity(None, keep) as activity, open_counted(activity, metrics, Busy) as recorder:
        recorder.captures = CaptureBuffer(budget)
        count = 2 * recording.MOST
        for _ in range(count):
            await answer(recorder, ANSWER, body=body)
            await trio.lowlevel.checkpoint()
        assert (await activity.page(Query())).total == 0, "no row was worth making"
        assert recorder.captures.used == 0
        assert metrics.models["m"].generated_tokens > 0, "more than may wait have come"
        found = await rows(recorder)
        assert [row.id for row in found] == list(range(count - keep + 1, count + 1))
        assert all(row.has_capture and row.tokens.output_tokens == 4 for row in found)
        assert metrics.models["m"].requests == {("chat", 200): count}
        assert metrics.models["m"].generated_tokens == 4 * count
        assert budget * 0.9 < recorder.captures.used <= budget
        assert recorder.captures.has(count - 20)


async def test_many_bytes_do_not_wait():
    body = random.Random(2).randbytes(MIB)
    async with open_activity(None, 1000) as activity, open_recorder(activity, Busy) as recorder:
        recorder.captures = CaptureBuffer(4 * MIB)
        for _ in range(20):
            await answer(recorder, ANSWER, body=body)
            await trio.testing.wait_all_tasks_blocked()
        assert (await activity.page(Query())).total >= 20 - recording.MOST_BYTES // MIB
        assert [row.has_capture for row in await rows(recorder)] == [False] * 17 + [True] * 3


@pytest.mark.parametrize("why", ["a file", "a follower", "time"])
async def test_what_somebody_wants_is_written_down_at_once(why: str, tmp_path: Path):
    path = tmp_path / "log.db" if why == "a file" else None
    load = Free if why == "time" else Busy
    async with open_activity(path, 10) as activity, open_recorder(activity, load) as recorder:
        with recorder.follow(lambda _: None) if why == "a follower" else nullcontext():
            await answer(recorder, ANSWER)

            async def written() -> int:
                return (await activity.page(Query())).total

            assert await until(written) == 1


async def test_captures_are_not_compressed_under_load():
    packer = Packer(Busy)
    packer.captures = CaptureBuffer(MIB)
    packer.captures.add(1, CapturedExchange(CHAT, [], b"a word " * 2000))
    long = CapturedBody(MIB)
    packer.open(long)
    long.feed(b"a word " * BLOCK)
    assert [job.size for job in packer.batch(light=False)] == [7 * BLOCK], "but an answer under way is"
    assert len(packer.batch()) == 1


def test_a_thread_that_works_has_no_time():
    give_up = time.monotonic() + 20
    while time.monotonic() < give_up:
        began, load, until_then = time.monotonic(), Load(), time.thread_time() + 0.001  # less than a turn of a thread
        while time.thread_time() < until_then:
            pass
        light = load.is_light()
        if time.monotonic() < began + 0.002:  # nothing else had the processor
            break
    else:
        pytest.fail("this thread never had half of a processor's time")
    assert not light
    time.sleep(0.1)
    assert load.is_light()


STEPS = st.lists(
    st.tuples(st.just("answer"), st.sampled_from([200, 200, 200, 500, CLIENT_LEFT]), st.integers(0, 5000))
    | st.tuples(st.sampled_from(["counters", "page", "follow", "unfollow", "turn", "budget", "some"])),
    max_size=60,
)


@given(STEPS, st.booleans(), st.booleans(), st.integers(1, 30))
def test_whenever_one_looks_all_is_there(steps: list[tuple[object, ...]], light: bool, file: bool, keep: int):
    """Counters are exact, ids are in the order of the ends, followers hear each once, a stop loses nothing."""

    async def run(path: Path | None) -> None:
        ended: list[int] = []
        heard: list[int] = []
        expected: list[int] = []
        metrics = Counters(Metrics())
        following, follows = ExitStack(), False
        with trio.CancelScope() as scope:
            async with (
                open_activity(path, keep) as activity,
                open_counted(activity, metrics, Free if light else Busy) as made,
            ):
                for step, *values in steps:
                    match step:
                        case "answer":
                            status, size = values
                            await answer(made, ANSWER, body=b"x" * size, status=status)
                            ended.append(status)
                            if follows:
                                expected.append(len(ended))
                        case "follow" if not follows:
                            following.enter_context(made.follow(heard.append))
                            follows = True
                        case "unfollow" if follows:
                            made.settle()
                            following.close()
                            follows = False
                        case "turn":
                            await trio.lowlevel.checkpoint()
                        case "some":
                            made.settle(3)
                        case "budget":
                            made.captures = CaptureBuffer(16 << 10)
                        case "page":
                            found = [(row.id, row.resp_status_code) for row in await rows(made)]
                            of_all = list(enumerate(ended, 1))
                            assert found == (of_all if file else of_all[-keep:])
                        case _:
                            made.settle()
                            counts = metrics.models.get("m", ModelCounts())
                            assert counts.requests == Counter(("chat", status) for status in ended)
                            assert counts.generated_tokens == 4 * ended.count(200)
                            assert made.captures.used <= made.captures.limit
                scope.cancel()
        assert heard == expected
        assert metrics.models.get("m", ModelCounts()).seconds.counts[0] <= len(ended)
        assert sum(metrics.models["m"].requests.values()) == len(ended) if ended else True
        if path is not None:
            async with open_activity(path, keep) as activity:
                assert (await activity.page(Query())).total == len(ended)

    with TemporaryDirectory() as folder:
        trio.run(run, Path(folder) / "log.db" if file else None)


RECORD = st.builds(
    lambda text, usage: f"data: {json.dumps({'choices': [text]} | usage)}\n\n".encode(),
    st.text(max_size=20) | st.just("x" * LOOK_EVERY),
    st.just({}) | st.builds(lambda n: {"usage": {"completion_tokens": n}}, st.integers(1, 9)),
)


@given(st.lists(RECORD, max_size=12), st.lists(st.integers(0, 20_000), max_size=12), st.booleans())
def test_however_a_stream_passes_the_same_is_noted(records: list[bytes], at: list[int], push: bool):
    """Its row is that of a reader of the whole, its capture is the whole, and the client has the whole."""
    whole = b"".join(records)
    counter = TokenCounter(CHAT, streaming=True)
    counter.feed(whole)
    usage = counter.end()
    places = sorted({0, len(whole), *(place for place in at if place < len(whole))})

    async def pass_by() -> None:
        async with open_activity(None, 10) as activity, open_recorder(activity) as recorder:
            recorder.captures = CaptureBuffer(MIB)
            record, sink = begin(recorder, streaming=True)
            sink.start(200, EVENTS)
            client = sink.inner
            for a, b in pairwise(places):
                if push:
                    assert sink.push(whole[a:b])
                else:
                    await sink.write(whole[a:b])
            recorder.finish(record, sink, "chat", 200)
            [row] = await rows(recorder)
            capture = await recorder.capture(1)
            assert capture.resp_body == whole
            assert row.tokens == usage.tokens
            assert client.sent == sink.passed == len(whole)

    trio.run(pass_by)


# ---- what it costs ----


def tokens(count: int, seed: int = 0) -> Iterable[bytes]:
    source = random.Random(seed)
    for _ in range(count):
        yield b'data: {"choices":[{"index":0,"delta":{"content":"%x"}}]}\n\n' % source.getrandbits(64)


async def test_an_open_stream_holds_little_more_than_its_data(recorder: Recorder):
    count, length = 200, 40
    chunks = list(tokens(length))
    data = sum(map(len, chunks))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        open_ones = [begin(recorder, streaming=True) for _ in range(count)]
        for _, sink in open_ones:
            sink.start(200, EVENTS)
            for chunk in chunks:
                sink.push(bytes(bytearray(chunk)))
            sink.inner.got.clear()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / count < data + 3000


@pytest.mark.parametrize("status", [200, CLIENT_LEFT, 502])
async def test_an_answer_that_is_over_holds_memory_only_for_its_capture(recorder: Recorder, status: int):
    """Many long ones end at once, as after a break of the network."""
    piece, under_way = random.Random(3).randbytes(BLOCK), []
    for _ in range(40):
        record, sink = begin(recorder, streaming=True)
        sink.start(200, EVENTS)
        under_way.append((record, sink))
    tracemalloc.start()
    try:
        for _, sink in under_way:
            for _ in range(12):
                sink.push(bytes(bytearray(piece)))
            sink.inner.got.clear()
        assert tracemalloc.get_traced_memory()[0] > 40 * 11 * BLOCK
        while under_way:
            recorder.finish(*under_way.pop(), "chat", status)
        del sink
        recorder.settle()
        assert tracemalloc.get_traced_memory()[0] < 2 * MIB
    finally:
        tracemalloc.stop()


async def test_a_large_request_body_holds_nobody_up():
    large = random.Random(1).randbytes(20 * MIB)
    for budget in (5 * MIB, 64 * MIB):
        async with open_activity(None, 10) as activity, open_recorder(activity) as recorder:
            recorder.captures = CaptureBuffer(budget)
            began = time.thread_time()
            await answer(recorder, ANSWER, body=large)
            recorder.settle()
            assert time.thread_time() - began < 0.25
            capture = await recorder.capture(1)
            assert capture.req_body == (large if budget > len(large) else None)


async def test_captures_are_compressed_when_there_is_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording, "PAUSE", 0.01)
    body = b"a word " * 2000
    async with open_activity(None, 100) as activity, open_recorder(activity) as recorder:
        recorder.captures = CaptureBuffer(MIB)
        for _ in range(20):
            await answer(recorder, ANSWER, body=body)
        recorder.settle()
        raw = recorder.captures.used
        assert raw > 20 * len(body)
        await until(lambda: recorder.captures.used <= raw / 10, within=10)
        for row in range(1, 21):
            capture = await recorder.capture(row)
            assert (capture.req_body, capture.resp_body) == (body, ANSWER)


async def test_a_long_answer_is_compressed_while_it_comes():
    """Twice the budget, and still all of it is kept."""
    packer = Packer(Load)
    packer.captures = CaptureBuffer(4 * BLOCK)
    sink = RecordingSink(Client(event_stream=True), Record(REQUEST, CHAT), packer)
    sink.start(200, EVENTS)
    whole, batches = b"", 0
    while len(whole) < 8 * BLOCK:
        for chunk in tokens(200):
            sink.push(chunk)
            whole += chunk
        for job in packer.batch():
            assert job.size >= BLOCK
            job.put(job.work())
            batches += 1
    assert batches >= 5
    sink.usage_or_error(200)
    assert packer.captures.add(1, sink.exchange(200))
    assert packer.captures.find(1)().resp_body == whole
