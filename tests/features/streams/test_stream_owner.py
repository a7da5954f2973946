"""The owner of streams, on a clock that does not wait: keeping, expiry, limits, replacement, and every way to end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from appliance.core.answers.ring import Ring
from appliance.errors import BadRequest, Busy, ShuttingDown
from appliance.features.streams.boxes import StreamAtBox
from appliance.features.streams.ends import FirstReader, RingSink
from appliance.features.streams.ids import TAKE_OVER_AFTER, name_of, open_reader
from appliance.features.streams.keeping import OVERHEAD
from appliance.features.streams.keys import StreamsConfig
from appliance.features.streams.owner import Streams, open_streams, status_of
from appliance.replay.generation import Generation, GenerationEnd, GenerationHead, GenerationReader, Headers

EVENTS = ((b"Content-Type", b"text/event-stream; charset=utf-8"),)
JSON = ((b"Content-Type", b"application/json"),)
LAST = b"data: interrupted\n\n"
LOST = b"data: lost\n\n"

Work = Callable[[RingSink], Awaitable[None]]


@pytest.fixture
async def streams(autojump_clock: MockClock) -> AsyncGenerator[Streams]:
    async with open_streams(StreamsConfig()) as opened:
        yield opened


def says(*records: bytes, after: float = 0, pause: float = 0, status: int = 200, then: Work | None = None) -> Work:
    async def work(sink: RingSink) -> None:
        await trio.sleep(after)
        sink.start(status, EVENTS if status == 200 else JSON)
        for record in records:
            await trio.sleep(pause)
            await sink.write(record)
        if then is not None:
            await then(sink)
        await sink.end()

    return work


def begin(streams: Streams, name: str, work: Work, /, **options: Any) -> Generation:
    generation = streams.open_generation(name, **options)
    streams.start_work(generation, partial(work, RingSink(generation)))
    return generation


async def stalls(sink: RingSink) -> None:
    await trio.sleep_forever()


async def begun(streams: Streams, name: str, *records: bytes) -> Generation:
    """One that has said this, and says nothing more."""
    generation = begin(streams, name, says(*records, then=stalls))
    await wait_all_tasks_blocked()
    return generation


async def read(generation: Generation | None, offset: int = 0) -> bytes:
    return await rest(generation.reader(offset))


async def rest(reader: GenerationReader) -> bytes:
    got = b""
    while data := await reader.receive():
        got += data
    return got


class Answer:
    """A first reader's side."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""
        self.ended = False
        self.aborted = False

    def start(self, status: int, headers: Headers) -> None:
        self.status = status

    def push(self, data: bytes) -> bool:
        self.body += data
        return True

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def write(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self.push(data)

    async def end(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.aborted = True


async def test_it_goes_on_when_its_first_reader_has_left(autojump_clock: MockClock, streams: Streams):
    generation = begin(streams, "a", says(b"1\n\n", b"2\n\n", b"3\n\n", pause=1))
    answer = Answer()
    with trio.move_on_after(1.5):
        await generation.pass_on(answer)
    assert (answer.status, answer.body, answer.ended) == (200, b"1\n\n", False)
    assert await read(streams.ids.stream_of("a"), 3) == b"2\n\n3\n\n"
    assert generation.end is GenerationEnd.DONE


async def test_it_goes_on_when_its_first_reader_has_left_before_its_head(autojump_clock: MockClock, streams: Streams):
    work = says(b"1\n\n", after=5)
    generation = begin(streams, "a", work, loading=lambda: trio.current_time() < began + 3)
    began = trio.current_time()
    with trio.move_on_after(1):
        await generation.pass_on(Answer())
    assert streams.ids.stream_of("a") is None
    assert streams.ids.is_loading("a")
    await trio.sleep(3)
    assert not streams.ids.is_loading("a")
    assert streams.ids.waiting_of("a") is generation
    await generation.wait_begun()
    assert await read(streams.ids.stream_of("a")) == b"1\n\n"


async def test_what_is_no_stream_goes_to_the_first_reader_alone(autojump_clock: MockClock, streams: Streams):
    async def work(sink: RingSink) -> None:
        sink.start(200, JSON)
        assert (sink.status, sink.event_stream, sink.ended) == (200, False, False)
        await sink.write(b"{")
        await sink.write(b"}")
        await sink.end()

    answer = Answer()
    assert await begin(streams, "a", work, streams=False).pass_on(answer) is None
    assert (answer.status, answer.body, answer.ended) == (200, b"{}", True)
    assert streams.ids.stream_of("a") is streams.ids.waiting_of("a") is None
    assert (streams.lookup(["a"]), streams.kept.held) == ([], 0)


@pytest.mark.parametrize("streaming", [False, True])
async def test_what_is_no_stream_is_given_up_with_its_reader(
    autojump_clock: MockClock, streams: Streams, streaming: bool
):
    ended = trio.Event()

    async def work(sink: RingSink) -> None:
        try:
            if streaming:
                sink.start(200, JSON)
            await trio.sleep_forever()
        finally:
            ended.set()

    with trio.move_on_after(1):
        await begin(streams, "a", work, streams=streaming).pass_on(Answer())
    await ended.wait()
    await wait_all_tasks_blocked()
    assert streams.ids.waiting_of("a") is None


async def test_a_refusal_without_a_reader_is_dropped(autojump_clock: MockClock, streams: Streams):
    generation = begin(streams, "a", says(b"{}", after=2, status=500))
    with trio.move_on_after(1):
        await generation.pass_on(Answer())
    await trio.sleep(2)
    assert generation.end is not None
    assert streams.ids.waiting_of("a") is None


async def test_ended_streams_expire_and_live_ones_never(autojump_clock: MockClock):
    async with open_streams(StreamsConfig(keep=300)) as streams:
        begin(streams, "long", says(b"x\n\n", pause=2000))
        begin(streams, "first", says(b"1\n\n"))
        await trio.sleep(100)
        begin(streams, "second", says(b"2\n\n"))
        await trio.sleep(199)
        reader = streams.ids.stream_of("first").reader(0)
        await trio.sleep(2)
        assert streams.ids.stream_of("first") is None
        assert await rest(reader) == b"1\n\n"
        assert streams.ids.stream_of("second") is not None
        await trio.sleep(100)
        assert streams.ids.stream_of("second") is None
        assert streams.ids.stream_of("long") is not None
        assert streams.kept.held == OVERHEAD
        await trio.sleep(2000)
        assert streams.kept.held == 0


async def test_the_oldest_that_have_ended_make_room(autojump_clock: MockClock):
    async with open_streams(StreamsConfig(max_total=3 * OVERHEAD + 3000)) as streams:
        for name in ("a", "b", "c", "d", "e"):
            begin(streams, name, says(b"x" * 1000))
            await wait_all_tasks_blocked()
            assert streams.kept.held <= streams.kept.settings.max_total
        assert [name for name in "abcde" if streams.ids.stream_of(name)] == ["c", "d", "e"]


async def test_live_streams_lose_their_oldest_bytes_when_nothing_else_is_left(autojump_clock: MockClock):
    async with open_streams(StreamsConfig(max_total=2 * OVERHEAD + 1000)) as streams:
        big = await begun(streams, "big", *[b"x" * 100] * 20)
        assert big.ring.held == 2000
        small = await begun(streams, "small", *[b"y" * 100] * 3)
        assert streams.kept.held <= streams.kept.settings.max_total
        assert (small.ring.held, big.ring.held) == (300, 700)


async def test_a_stop_ends_it_for_all_with_its_last_words(autojump_clock: MockClock, streams: Streams):
    generation = begin(streams, "a", says(b"1\n\n", then=stalls), interrupted=LAST)
    answer = Answer()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(generation.pass_on, answer)
        await wait_all_tasks_blocked()
        reader = generation.reader(0)
        assert streams.ids.stop_stream("a")
        assert streams.ids.stream_of("a") is None
        assert streams.kept.held == 0
    assert (answer.body, answer.ended, answer.aborted) == (b"1\n\n" + LAST, True, False)
    assert await rest(reader) == b"1\n\n" + LAST
    assert not streams.ids.stop_stream("a")


async def test_a_stop_before_the_head_tells_the_first_reader(autojump_clock: MockClock, streams: Streams):
    async with trio.open_nursery() as nursery:
        generation = begin(streams, "a", stalls)
        ends: list[GenerationEnd | None] = []

        async def be_first() -> None:
            ends.append(await generation.pass_on(Answer()))

        nursery.start_soon(be_first)
        await wait_all_tasks_blocked()
        streams.ids.stop_stream("a")
        await wait_all_tasks_blocked()
        assert ends == [GenerationEnd.STOPPED]
        assert streams.ids.waiting_of("a") is None


async def test_the_next_one_takes_over_when_it_has_an_answer(autojump_clock: MockClock, streams: Streams):
    old = await begun(streams, "a", b"old\n\n")
    new = begin(streams, "a", says(b"new\n\n", after=0.1))
    assert streams.ids.stream_of("a") is old
    assert not streams.ids.is_loading("a")
    await new.wait_begun()
    assert old.end is GenerationEnd.REPLACED
    assert await read(streams.ids.stream_of("a")) == b"new\n\n"
    assert await read(old) == b"old\n\n"


async def test_the_next_one_takes_over_when_it_takes_long(autojump_clock: MockClock, streams: Streams):
    old = await begun(streams, "a", b"old\n\n")
    begin(streams, "a", stalls)
    await trio.sleep(TAKE_OVER_AFTER / 2)
    assert old.end is None
    await trio.sleep(TAKE_OVER_AFTER)
    assert old.end is GenerationEnd.REPLACED
    assert streams.ids.stream_of("a") is None


async def test_a_refused_one_leaves_everything_as_it_was(autojump_clock: MockClock, streams: Streams):
    old = await begun(streams, "a", b"old\n\n")
    answer = Answer()
    await begin(streams, "a", says(b"{}", status=400)).pass_on(answer)
    assert (answer.status, answer.body) == (400, b"{}")
    await trio.sleep(1)
    assert streams.ids.stream_of("a") is old
    assert old.end is None


async def test_three_at_once_and_the_last_one_wins(autojump_clock: MockClock, streams: Streams):
    first = await begun(streams, "a", b"1\n\n")
    second = begin(streams, "a", stalls)
    third = begin(streams, "a", stalls)
    assert second.end is GenerationEnd.REPLACED
    assert streams.ids.stream_of("a") is first
    fourth = begin(streams, "a", says(b"4\n\n"))
    await wait_all_tasks_blocked()
    assert (first.end, third.end) == (GenerationEnd.REPLACED, GenerationEnd.REPLACED)
    assert streams.ids.stream_of("a") is fourth
    assert streams.kept.held == OVERHEAD + 3


async def test_a_slow_first_reader_is_cut_off(autojump_clock: MockClock):
    class Slow(Answer):
        async def write(self, data: bytes) -> None:
            await trio.sleep(1)
            await super().write(data)

    async with open_streams(StreamsConfig(max_bytes=10)) as streams:
        answer = Slow()
        await begin(streams, "a", says(*[b"12345\n\n"] * 5, pause=0.1)).pass_on(answer)
        assert (answer.ended, answer.aborted) == (False, True)
        assert await read(streams.ids.stream_of("a"), 7 * 5 - 10) == b"45\n\n12345\n\n"[-10:]


async def test_a_broken_record_is_nobodys_whole_answer(autojump_clock: MockClock, streams: Streams):
    async def work(sink: RingSink) -> None:
        sink.start(200, EVENTS)
        await sink.write(b"data: hal")
        sink.abort()

    answer = Answer()
    await begin(streams, "a", work).pass_on(answer)
    assert (answer.body, answer.ended, answer.aborted) == (b"data: hal", False, True)


async def test_the_end_of_the_program_is_told(autojump_clock: MockClock):
    answer, ends = Answer(), list[GenerationEnd | None]()
    async with trio.open_nursery() as nursery:
        async with open_streams(StreamsConfig()) as streams:
            generation = begin(streams, "a", says(b"1\n\n", then=stalls), interrupted=LAST)
            waiting = begin(streams, "b", stalls, interrupted=LAST)

            async def be_first(of: Generation) -> None:
                ends.append(await of.pass_on(answer))

            nursery.start_soon(be_first, generation)
            nursery.start_soon(be_first, waiting)
            await wait_all_tasks_blocked()
        with pytest.raises(ShuttingDown):
            begin(streams, "c", stalls)
    assert sorted(ends, key=str) == sorted([None, GenerationEnd.SHUT_DOWN], key=str)
    assert (answer.body, answer.ended) == (b"1\n\n" + LAST, True)


async def test_cancelled_from_outside_it_still_ends(autojump_clock: MockClock):
    found: list[Generation] = []
    with trio.CancelScope() as scope:
        async with open_streams(StreamsConfig()) as streams:
            found.append(begin(streams, "a", says(b"1\n\n", then=stalls), interrupted=LAST))
            await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    assert found[0].end is GenerationEnd.SHUT_DOWN
    assert await read(found[0]) == b"1\n\n" + LAST


async def test_there_is_a_limit(autojump_clock: MockClock):
    async with open_streams(StreamsConfig(), max_live=2) as streams:
        begin(streams, "a", stalls)
        begin(streams, "b", stalls)
        with pytest.raises(Busy):
            begin(streams, "c", stalls)
        streams.ids.stop_stream("a")
        await wait_all_tasks_blocked()
        begin(streams, "c", stalls)


async def test_lookup_by_id_and_by_what_stands_before_its_model(autojump_clock: MockClock, streams: Streams):
    for name in ("u::org/m", "u::n", "v", "a::b::c"):
        begin(streams, name, says(b"1\n\n"))
    await wait_all_tasks_blocked()

    def names(*ids: str) -> list[str]:
        return [status.conversation_id for status in streams.lookup(ids)]

    assert names("u", "v", "v", "x", "") == ["u::org/m", "u::n", "v", "v"]
    assert names("a", "a::b", "a::b::c", "a:") == ["a::b::c"] * 3


async def test_readers_at_any_offset_while_it_is_written(autojump_clock: MockClock):
    whole = b"".join(b"data: %d\n\n" % number for number in range(300))
    async with open_streams(StreamsConfig()) as streams, trio.open_nursery() as nursery:
        records = [record + b"\n\n" for record in whole.split(b"\n\n")[:-1]]
        generation = begin(streams, "a", says(*records, pause=0.01))
        await generation.wait_begun()

        async def compare(offset: int, delay: float) -> None:
            await trio.sleep(delay)
            assert await read(generation, offset) == whole[offset:]

        for number in range(100):
            nursery.start_soon(compare, number * len(whole) // 100, number * 0.04)


@pytest.mark.parametrize("moment", [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35])
async def test_stopped_at_any_moment_nothing_is_left(autojump_clock: MockClock, streams: Streams, moment: float):
    begin(streams, "a", says(b"1\n\n", b"2\n\n", pause=0.1))

    async def stop() -> None:
        await trio.sleep(moment)
        streams.ids.stop_stream("a")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop)
        with trio.move_on_after(0.12):
            await begin(streams, "a", says(b"3\n\n", pause=0.2)).pass_on(Answer())
    await trio.sleep(0.5)
    streams.ids.stop_stream("a")
    assert streams.kept.held == 0
    assert streams.ids.waiting_of("a") is None


class Client(Answer):
    """Takes a first reader's bytes without a task, so many at a time."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.full = 0
        self.drained: Callable[[], None] | None = None

    def push(self, data: bytes) -> bool:
        self.body += data
        self.full += len(data)
        return self.full < self.room

    def finish(self) -> bool:
        self.ended = True
        return True

    def drain(self) -> None:
        self.full = 0
        drained, self.drained = self.drained, None
        if drained is not None:
            drained()


BREAKS = st.sampled_from([b"\n\n", b"\r\n\r\n"])
RECORD = st.builds(lambda size, end: b"data: " + b"x" * size + end, st.integers(0, 90), BREAKS)
ENDS = st.sampled_from([*GenerationEnd])


@given(st.lists(RECORD | st.none(), max_size=30), ENDS, st.integers(0, 300), st.integers(10, 200), st.booleans())
def test_no_reader_takes_for_whole_what_is_not(
    steps: list[bytes | None], end: GenerationEnd, room: int, kept: int, torn: bool
):
    """At any pace, whatever ends it: all of it and its own end, its last words behind whole records, or a break."""
    generation = Generation("a", 0, Ring(kept), NoKeeper())
    generation.last_words, generation.overrun = lambda _: LAST, LOST
    client, overs = Client(room), list[object]()
    generation.follow(FirstReader(generation, client, partial(setattr, client, "drained"), overs.append))
    generation.begin(GenerationHead(200, EVENTS))
    for record in steps:
        client.drain() if record is None else generation.keep(record)
    if torn and end is not GenerationEnd.DONE:
        generation.keep(b"data: hal")
    if end in (GenerationEnd.DONE, GenerationEnd.BROKEN):
        generation.finish(end)
    else:
        generation.cut(end)
    while client.drained is not None:
        client.drain()
    said = b"".join(record for record in steps if record is not None)
    broken = end is GenerationEnd.BROKEN or (torn and end is not GenerationEnd.DONE)
    seen, last = client.body.removesuffix(LOST), LAST if not broken and end is not GenerationEnd.DONE else b""
    whole_records = not seen or seen.endswith((b"\n\n", b"\n\r\n"))
    assert overs == [None]
    assert client.ended is not client.aborted
    if client.aborted:
        assert broken or not whole_records
    elif seen != client.body:
        assert (said + last).startswith(seen)
        assert whole_records
    else:
        assert client.body == said + last
        assert not broken


class NoKeeper:
    def began(self, generation: Generation) -> None: ...
    def grew(self, generation: Generation, data: bytes, held: int) -> None: ...
    def ended(self, generation: Generation) -> None: ...


@given(st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9))
def test_a_stream_of_another_box_begins_where_it_does_there(offset: int, dropped: int, interrupted_at: int | None):
    generation = Generation("a", 0, Ring(9, dropped), NoKeeper())
    generation.interrupted_at = interrupted_at
    told = StreamAtBox("a", status_of(generation), "", dropped, interrupted_at)
    try:
        there = open_reader(generation, offset).offset
    except BadRequest:
        with pytest.raises(BadRequest):
            told.begin(offset)
    else:
        assert told.begin(offset) == there


IDS = st.sampled_from(["a", "a::m", "b"])
HOLDERS = st.sampled_from(["", "one", "two"])


@given(st.lists(st.tuples(st.sampled_from(["ask", "stop"]), HOLDERS, IDS), max_size=20))
def test_the_holder_of_one_key_finds_and_ends_nothing_of_another(steps: list[tuple[str, str, str]]):
    """Each holder's ids are a world of their own."""

    async def run() -> None:
        async with open_streams(StreamsConfig()) as streams:
            alive = dict[tuple[str, str], Generation]()
            for what, holder, conversation in steps:
                name = name_of(conversation, holder)
                if what == "stop":
                    assert streams.ids.stop_stream(name) is (alive.pop((holder, conversation), None) is not None)
                else:
                    alive[holder, conversation] = await begun(streams, name, b"1\n\n")
            for holder in ("", "one", "two"):
                for conversation in ("a", "a::m", "b"):
                    assert streams.ids.stream_of(name_of(conversation, holder)) is alive.get((holder, conversation))
                found = streams.lookup(name_of(conversation, holder) for conversation in ("a", "b"))
                own = [each for of, each in alive if of == holder and (each != "a::m" or (holder, "a") not in alive)]
                assert sorted(status.conversation_id for status in found) == sorted(own)
            assert all(each.end is None for each in alive.values())

    trio.run(run)
