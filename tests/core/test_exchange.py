"""One exchange: every interleaving of bytes, ends, full clients and cancels ends once, and tears no record."""

from __future__ import annotations

from dataclasses import dataclass, field

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from appliance.core import exchange as exchanges
from appliance.core.answers.families import Family
from appliance.core.bodies.sse import MAX_RECORD
from appliance.core.exchange import MAX_REFUSAL, Exchange, ExchangeState, Refused, RelayOptions, Stale, Trail
from appliance.core.headers import Headers
from appliance.errors import UpstreamFailed
from appliance.features.continuation.core.reading import BreakableStream

RECORD = b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'


class Left(Exception):
    """The client has left."""


@dataclass
class Client:
    """A client that is full when it is told to be; it may leave while it is given something."""

    full: bool = False
    leaves: Exchange | None = None
    status: int | None = None
    headers: Headers = ()
    got: bytearray = field(default_factory=bytearray)
    finished: bool = False
    aborted: bool = False
    over: bool = False

    def start(self, status: int, headers: Headers) -> None:
        assert not self.over
        assert self.status is None
        self.status, self.headers = status, headers

    def push(self, data: bytes) -> bool:
        assert (self.over, self.finished, self.aborted) == (False, False, False)
        assert self.status is not None
        self.got += data
        if self.leaves is not None:
            leaves, self.leaves = self.leaves, None
            leaves.cancel(Left())
            return True
        return not self.full

    def finish(self) -> bool:
        assert (self.over, self.finished, self.aborted) == (False, False, False)
        self.finished = True
        return not self.full

    def abort(self) -> None:
        assert not self.over
        self.aborted = True


@dataclass
class Engine:
    """What an exchange does with its engine; ``ready`` says whether the client may have the head at once."""

    client: Client
    ready: bool = True
    paused: bool = False
    waits: bool = False
    released: bool = False
    reusable: bool = False
    ends: list[Exception | None] = field(default_factory=list[Exception | None])
    announced: Exception | None = None

    def answering(self) -> bool:
        self.paused = not self.ready
        return self.ready

    def when_drained(self) -> None:
        assert not self.waits, "it waits already"
        self.waits = True

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        assert not self.released
        self.paused = False

    def release(self, *, reusable: bool, failure: Exception | None = None) -> None:
        assert not self.released, "it was released before"
        assert not (reusable and failure is not None)
        self.released, self.reusable, self.announced = True, reusable, failure

    def done(self, failure: Exception | None) -> None:
        assert self.released
        assert not self.ends, "it has ended before"
        self.ends.append(failure)
        self.client.over = True


def begun(client: Client) -> tuple[Exchange, Engine]:
    engine = Engine(client)
    return Exchange(RelayOptions(label="e"), client, engine), engine


def framed(content: list[bytes], framing: str) -> bytes:
    if framing != "chunked":
        return b"".join(content)
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in content if piece) + b"0\r\n\r\n"


def head_of(framing: str, length: int, *, streaming: bool, status: int = 200, close: bool = False) -> bytes:
    lines = [b"HTTP/1.1 %d x" % status, b"Server: engine", b"Access-Control-Allow-Origin: *", b"X-Own: 1"]
    lines.append(b"Content-Type: " + (b"text/event-stream" if streaming else b"application/json"))
    if framing == "sized":
        lines.append(b"Content-Length: %d" % length)
    elif framing == "chunked":
        lines.append(b"Transfer-Encoding: chunked")
    if close:
        lines.append(b"Connection: close")
    return b"\r\n".join(lines) + b"\r\n\r\n"


answers = st.fixed_dictionaries(
    {
        "framing": st.sampled_from(["sized", "chunked", "close"]),
        "streaming": st.booleans(),
        "pieces": st.lists(st.sampled_from([RECORD, b"{}", b"data: half", b"\n\n"]), max_size=6),
        "close": st.booleans(),
    }
)


class Exchanges(RuleBasedStateMachine):
    """Every event may come in every state, but for what the pause forbids. At most one kind of them is a disaster."""

    @initialize(
        answer=answers,
        ready=st.booleans(),
        reused=st.booleans(),
        interim=st.booleans(),
        disaster=st.sampled_from(["", "", "garbled", "ended", "cancelled", "left"]),
    )
    def begin(self, answer: dict[str, object], ready: bool, reused: bool, interim: bool, disaster: str) -> None:
        self.disaster = disaster
        pieces = answer["pieces"]
        framing, self.streaming = str(answer["framing"]), bool(answer["streaming"])
        self.content = b"".join(pieces)
        self.until_close = framing == "close"
        head = head_of(framing, len(self.content), streaming=self.streaming, close=bool(answer["close"]))
        first = b"HTTP/1.1 100 Continue\r\n\r\n" if interim else b""
        self.rest = first + head + framed(pieces, framing)
        self.whole = len(self.rest)
        self.client = Client()
        self.engine = Engine(self.client, ready=ready)
        trail = Trail(BreakableStream(Family.CHAT), lambda: 0.0)
        self.reused, self.stays = reused, not answer["close"]
        self.garbled = self.cancelled = False
        self.exchange = Exchange(RelayOptions(label="e", trail=trail), self.client, self.engine, reused=reused)

    @property
    def hears(self) -> bool:
        return not (self.engine.paused or self.engine.released)

    @precondition(lambda self: self.hears and self.rest)
    @rule(size=st.integers(1, 200), full=st.booleans(), leaves=st.booleans())
    def bytes_come(self, size: int, full: bool, leaves: bool) -> None:
        data, self.rest = self.rest[:size], self.rest[size:]
        self.client.full = full
        self.client.leaves = self.exchange if leaves and self.disaster == "left" else None
        wants = self.exchange.on_engine_bytes(data)
        self.client.leaves = None
        assert wants == self.hears
        self.cancelled = self.cancelled or any(isinstance(end, Left) for end in self.engine.ends)

    @precondition(lambda self: self.hears and self.disaster == "garbled")
    @rule()
    def garbled_bytes_come(self) -> None:
        self.garbled = True
        self.client.full = False
        self.exchange.on_engine_bytes(b"\0\r\nx\r\n\r\n")

    @precondition(lambda self: self.hears and (self.disaster == "ended" or not self.rest))
    @rule(broken=st.booleans())
    def the_engine_ends(self, broken: bool) -> None:
        state, nothing = self.exchange.state, len(self.rest) == self.whole
        self.client.full = False
        self.exchange.on_engine_ended(broken=broken)
        if state is ExchangeState.HEAD and self.reused and nothing:
            assert isinstance(self.engine.ends[0], Stale)
        elif not (self.until_close and state is ExchangeState.BODY and not broken):
            assert isinstance(self.engine.ends[0], UpstreamFailed)

    @rule()
    def the_client_is_drained(self) -> None:
        self.client.full = False
        self.engine.ready = True
        self.engine.waits = False
        self.exchange.on_client_drained()

    @precondition(lambda self: self.disaster == "cancelled" or self.engine.ends)
    @rule()
    def somebody_cancels(self) -> None:
        over = bool(self.engine.ends)
        self.exchange.cancel(Left())
        assert self.engine.ends
        assert over or isinstance(self.engine.ends[0], Left)

    @invariant()
    def a_full_client_is_waited_for(self) -> None:
        if not self.engine.ends:
            full = self.exchange.state in (ExchangeState.FULL, ExchangeState.DRAINING)
            assert full == self.engine.waits

    @invariant()
    def only_what_was_said_leaves(self) -> None:
        if self.garbled:
            return
        got = bytes(self.client.got)
        assert self.content.startswith(got)
        left = any(isinstance(end, Left) for end in self.engine.ends) and not self.rest
        if self.streaming and not self.client.finished and not left:  # at the last bytes, which may be no whole record
            assert not got or got.endswith(b"\n\n")

    @invariant()
    def an_end_is_honest(self) -> None:
        if not self.engine.ends:
            return
        (failure,) = self.engine.ends
        assert self.exchange.state is ExchangeState.OVER
        if failure is None:
            assert self.client.finished
            assert not self.client.full
            cut = self.until_close and self.rest  # nobody can see that
            assert self.garbled or cut or bytes(self.client.got) == self.content
            assert not self.engine.reusable or (self.stays and not self.until_close)
        elif self.engine.announced is not failure:
            # It left at the last bytes, or behind them: the engine was released before, since it had said all.
            assert self.engine.announced is None
            assert isinstance(failure, Left)
            assert not self.rest
            assert not self.engine.reusable or (self.stays and not self.until_close)
        else:
            assert not self.engine.reusable


TestExchanges = Exchanges.TestCase


def test_a_client_that_leaves_at_the_last_bytes_is_given_no_end() -> None:
    """They are what is left of a stream whose last record is not whole; the engine is released in front of them."""

    class Ending(Client):
        asked = 0

        def finish(self) -> bool:
            Ending.asked += 1
            return super().finish()

    client = Ending()
    exchange, engine = begun(client)
    client.leaves = exchange
    exchange.on_engine_bytes(head_of("sized", 2, streaming=True) + b"{}")
    assert (client.finished, Ending.asked) == (False, 0)
    assert (len(engine.ends), engine.reusable) == (1, True)


@given(answer=answers, cuts=st.lists(st.integers(1, 60), max_size=20), again=st.booleans(), full=st.booleans())
def test_h11_reads_the_same(answer: dict[str, object], cuts: list[int], again: bool, full: bool) -> None:
    """However the bytes are cut, whether or not such a head has come before, and whether or not the client is slow."""
    pieces, framing = answer["pieces"], str(answer["framing"])
    raw = head_of(framing, len(b"".join(pieces)), streaming=bool(answer["streaming"]), close=bool(answer["close"]))
    raw += framed(pieces, framing)
    peer = h11.Connection(h11.CLIENT)
    peer.send(h11.Request(method="POST", target="/", headers=[("Host", "x"), ("Content-Length", "0")]))
    peer.send(h11.EndOfMessage())
    peer.receive_data(raw)
    peer.receive_data(b"")
    response = peer.next_event()
    assert isinstance(response, h11.Response)
    body = b""
    while isinstance(event := peer.next_event(), h11.Data):
        body += bytes(event.data)
    if not again:
        exchanges._usual.cache_clear()  # pyright: ignore[reportPrivateUsage]
    client = Client(full=full)
    exchange, engine = begun(client)
    at = 0
    for size in [*cuts, len(raw)]:
        if raw[at : at + size] and not engine.ends:
            wants = exchange.on_engine_bytes(raw[at : at + size])
            assert wants is not (engine.paused or engine.released)
        if engine.waits:
            engine.waits = False
            exchange.on_client_drained()
        at += size
    if not engine.released:
        exchange.on_engine_ended()
    if not engine.ends:
        exchange.on_client_drained()
    assert engine.ends == [None]
    assert engine.reusable is (framing != "close" and not answer["close"])
    assert (client.status, bytes(client.got)) == (response.status_code, body)
    theirs = {(name.lower(), value) for name, value in response.headers}
    assert {(name.lower(), value) for name, value in client.headers} - {(b"x-accel-buffering", b"no")} <= theirs
    assert not {b"server", b"access-control-allow-origin"} & {name.lower() for name, _ in client.headers}


@pytest.mark.parametrize("head", ["sized", "chunked"])
def test_a_usual_head_is_remembered_and_its_length_is_not(head: str) -> None:
    exchanges._usual.cache_clear()  # pyright: ignore[reportPrivateUsage]
    for length in (2, 2, 30):
        client = Client()
        exchange, engine = begun(client)
        content = b"x" * length
        exchange.on_engine_bytes(head_of(head, length, streaming=False) + framed([content], head))
        assert engine.ends == [None]
        assert (bytes(client.got), engine.reusable) == (content, True)
        assert dict(client.headers).get(b"Content-Length") == (b"%d" % length if head == "sized" else None)
    found = exchanges._usual.cache_info()  # pyright: ignore[reportPrivateUsage]
    assert (found.misses, found.hits) == (1, 2)


@pytest.mark.parametrize("more", [(), ((b"X-Placed", b"box"),)])
def test_the_head_has_the_fields_that_the_way_adds(more: Headers) -> None:
    client = Client()
    Exchange(RelayOptions(label="e", headers=more), client, Engine(client)).on_engine_bytes(
        head_of("sized", 2, streaming=False) + b"{}"
    )
    assert b"Content-Length" in dict(client.headers)
    assert [field for field in client.headers if field[0] == b"X-Placed"] == list(more)


def test_a_stream_goes_on_behind_what_a_client_has_already() -> None:
    client = Client(status=200)
    engine = Engine(client)
    Exchange(RelayOptions(label="e"), client, engine).on_engine_bytes(
        head_of("sized", len(RECORD), streaming=True) + RECORD
    )
    assert engine.ends == [None]
    assert bytes(client.got) == RECORD


def test_an_answer_that_is_not_a_stream_becomes_a_record_for_a_client_that_waits_for_one() -> None:
    client = Client(status=200)
    exchange, engine = begun(client)
    refusal = b'{"error": {"message": "no", "type": "t"}}'
    exchange.on_engine_bytes(head_of("sized", len(refusal), streaming=False, status=400) + refusal)
    assert engine.ends == [None]
    assert client.got.startswith(b"data: ")
    assert b'"message":"no"' in client.got


REFUSAL = b'{"error": {"message": "no", "type": "t"}}'
HOLDS = RelayOptions(label="e", holds_refusals=True)


@given(st.sampled_from([None, 200]), st.sampled_from([400, 404, 500, 503]), st.integers(1, 60), st.booleans())
def test_a_refusal_is_held_whatever_the_client_has_had(began: int | None, status: int, cut: int, close: bool) -> None:
    client = Client(status=began)
    engine = Engine(client)
    exchange = Exchange(HOLDS, client, engine)
    answer = head_of("sized", len(REFUSAL), streaming=False, status=status, close=close) + REFUSAL
    for at in range(0, len(answer), cut):
        exchange.on_engine_bytes(answer[at : at + cut])
    [refused] = engine.ends
    assert isinstance(refused, Refused)
    assert (refused.status, refused.content) == (status, REFUSAL)
    assert (b"X-Own", b"1") in refused.headers
    assert (client.status, client.got, client.finished) == (began, b"", False)
    assert (engine.reusable, engine.announced) == (not close, None)


@pytest.mark.parametrize(
    ("framing", "status", "size"),
    [("sized", 400, MAX_REFUSAL + 1), ("chunked", 400, 5), ("close", 400, 5), ("sized", 200, 5)],
)
def test_what_is_no_short_refusal_passes(framing: str, status: int, size: int) -> None:
    client = Client()
    engine = Engine(client)
    exchange = Exchange(HOLDS, client, engine)
    exchange.on_engine_bytes(head_of(framing, size, streaming=False, status=status) + framed([b"x" * size], framing))
    exchange.on_engine_ended()
    assert engine.ends == [None]
    assert (client.status, len(client.got), client.finished) == (status, size, True)


def test_a_refusal_that_breaks_off_is_a_failure_and_one_that_is_cancelled_ends() -> None:
    for end, kind in ((lambda it: it.on_engine_ended(), UpstreamFailed), (lambda it: it.cancel(Left()), Left)):
        client = Client()
        engine = Engine(client)
        exchange = Exchange(HOLDS, client, engine)
        exchange.on_engine_bytes(head_of("sized", 9, streaming=False, status=400) + b"half")
        end(exchange)
        assert [type(one) for one in engine.ends] == [kind]
        assert client.status is None


@pytest.mark.parametrize("torn", [True, False])
def test_a_record_that_is_too_long_to_hold_is_broken_off_and_nothing_is_put_behind_it(torn: bool) -> None:
    """An error record would be read as its other half."""
    client = Client()
    exchange, engine = begun(client)
    exchange.on_engine_bytes(head_of("close", 0, streaming=True) + RECORD + b"data: ")
    exchange.on_engine_bytes(b"x" * (MAX_RECORD if torn else 10))
    exchange.on_engine_ended(broken=True)
    exchange.cancel(Left())
    assert [type(end) for end in engine.ends] == [UpstreamFailed]
    assert client.aborted is torn
    assert len(client.got) > MAX_RECORD if torn else bytes(client.got) == RECORD
