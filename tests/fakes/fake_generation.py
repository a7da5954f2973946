"""The slots of the fake, and the generation of one answer with everything that can be told to go wrong in it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

from fake_dialects import Chat, Dialect
from fake_http import ClientLeft, Connection
from fake_json import Json, encode
from fake_options import NEVER, Misbehaviour
from fake_script import JSON, die, play, turn_of

STORY = "Once upon a time a small llama carried the whole library over the mountain without losing one page"
FOREVER = 3600.0
NOTICE = 0.1
"""Longest time, in seconds, until a request that waits for a slot notices that its client left."""
PROMPT_STEPS = 10
"""Reports of how much of a slow prompt has been read."""


class Slots:
    """What /slots and /metrics count. A slot is held from the prompt to the last byte."""

    def __init__(self, count: int) -> None:
        self.busy = [False] * count
        self.tasks = [-1] * count
        self.answers: list[Dialect | None] = [None] * count
        self.changed = threading.Condition()
        self.stopped = threading.Event()
        """Set once the server is told to end: as with llama-server, answers under way fall silent then."""
        self.deferred = 0
        self.served = 0
        self.prompt_tokens = 0
        self.predicted_tokens = 0

    @contextmanager
    def hold(self, connection: Connection) -> Generator[int]:
        """Wait for a free slot as long as the client does, and free it whatever happens."""
        with self.changed:
            self.deferred += 1
            try:
                while all(self.busy):
                    self.changed.wait(NOTICE)
                    connection.wait(0)
            finally:
                self.deferred -= 1
            slot = self.busy.index(False)
            self.busy[slot] = True
            self.served += 1
            self.tasks[slot] = self.served
        try:
            yield slot
        finally:
            with self.changed:
                self.busy[slot] = False
                self.changed.notify_all()


def pieces(count: int, size: int, said: int = 0) -> Iterator[str]:
    words = STORY.split()
    for n in range(said, said + count):
        word = words[n % len(words)]
        yield (word * (size // len(word) + 1))[:size] if size else (word if n == 0 else f" {word}")


def words_in(prompt: str) -> int:
    """How much of the story the end of a prompt tells already: the answer goes on behind it."""
    words = STORY.split()
    return next((n for n in range(len(words), 0, -1) if prompt.endswith(" ".join(words[:n]))), 0)


def generate(connection: Connection, slots: Slots, dialect: Dialect, bad: Misbehaviour, *, stream: bool) -> None:
    """Answer one completion request, whole or as a stream."""
    if bad.not_http:
        connection.closing = True
        connection.write(b"\x00\x01 this is not HTTP\r\n\r\n")
        return
    if bad.close_without_answer:
        raise ClientLeft
    with slots.hold(connection) as dialect.slot:
        slots.answers[dialect.slot] = dialect
        dialect.cached = min(bad.cached, dialect.prompt_tokens)
        _read_prompt(connection, dialect, bad, stream=stream)
        if bad.die_before_head:
            die(bad.exit_code)
        if bad.error_record == 0:
            connection.respond(500, JSON, encode({"error": server_error()}))
            return
        slots.prompt_tokens += dialect.prompt_tokens
        if bad.script and isinstance(dialect, Chat):
            play(connection, dialect, turn_of(bad.script, dialect), stream=stream)
        elif stream:
            _stream(connection, slots, dialect, bad)
        else:
            _whole(connection, slots, dialect, bad)


def _read_prompt(connection: Connection, dialect: Dialect, bad: Misbehaviour, *, stream: bool) -> None:
    """Tell how far it is where the client wants that; the head then leaves with the first of it."""
    asked = stream and bad.slow_prompt and dialect.body.get("return_progress") is True
    tells = dialect if asked and isinstance(dialect, Chat) else None
    if tells is not None:
        connection.start_stream()
    for step in range(PROMPT_STEPS if bad.slow_prompt else 0):
        dialect.read = dialect.prompt_tokens * step // PROMPT_STEPS
        if tells is not None:
            connection.chunk(tells.reading())
        connection.wait(bad.slow_prompt / PROMPT_STEPS)
    dialect.read = dialect.prompt_tokens
    connection.wait(0)


def server_error() -> Json:
    return {"code": 500, "message": "the fake was told to fail", "type": "server_error"}


def _whole(connection: Connection, slots: Slots, dialect: Dialect, bad: Misbehaviour) -> None:
    cut = False
    for piece in pieces(bad.tokens, bad.token_size, words_in(dialect.prompt)):
        cut = cut or dialect.tokens in (bad.close_after_tokens, bad.die_after_tokens if bad.die_mid_record else NEVER)
        if not cut:
            _misbehave(connection, dialect.tokens, bad)
        _pace(connection, slots, bad)
        for _ in dialect.add(piece):
            pass
        slots.predicted_tokens += 1
    body = encode(dialect.whole())
    _say_lines(bad)
    if cut:
        connection.respond(200, JSON, body, sent=len(body) // 2)
        if bad.die_mid_record:
            die(bad.exit_code)
        raise ClientLeft
    connection.respond(200, JSON, body)


def _say_lines(bad: Misbehaviour) -> None:
    lines = "".join(f"line {number} of {bad.end_lines}\n" for number in range(1, bad.end_lines + 1))
    if lines:
        sys.stderr.write(lines)
        sys.stderr.flush()


def _pace(connection: Connection, slots: Slots, bad: Misbehaviour) -> None:
    """Let the time of one token pass, or all time once the server is ending."""
    connection.wait(bad.token_delay)
    if slots.stopped.is_set():
        connection.wait(FOREVER)


def _misbehave(connection: Connection, tokens: int, bad: Misbehaviour) -> None:
    """What may happen in place of the next token."""
    if tokens == bad.stall_after_tokens:
        connection.wait(FOREVER)
    if tokens == bad.die_after_tokens:
        die(bad.exit_code)
    if tokens == bad.close_after_tokens:
        raise ClientLeft


def _stream(connection: Connection, slots: Slots, dialect: Dialect, bad: Misbehaviour) -> None:
    """One chunk per token; the head leaves with the first of them, as llama-server's does."""
    records = list(dialect.begin())
    connection.framed = not bad.until_close
    for piece in pieces(bad.tokens, bad.token_size, words_in(dialect.prompt)):
        _pace(connection, slots, bad)
        if dialect.tokens == 0:
            connection.start_stream()
        if dialect.tokens == bad.error_record:
            connection.chunk(dialect.error(server_error()))
            connection.end_stream()
            return
        if bad.die_mid_record and dialect.tokens in (bad.die_after_tokens, bad.close_after_tokens):
            dies, record = dialect.tokens == bad.die_after_tokens, b"".join(dialect.add(piece))
            connection.chunk(record, len(record) // 2)
            if dies:
                die(bad.exit_code)
            raise ClientLeft
        _misbehave(connection, dialect.tokens, bad)
        records += dialect.add(piece)
        connection.chunk(b"".join(_mangled(record) if bad.malformed_sse else record for record in records))
        records.clear()
        slots.predicted_tokens += 1
    if dialect.tokens == 0:
        connection.start_stream()
    _say_lines(bad)
    _misbehave(connection, dialect.tokens, bad)
    connection.chunk(b"".join([*records, *dialect.end()]))
    if dialect.done:
        connection.chunk(dialect.done)
    connection.wait(bad.slow_end)
    connection.end_stream()


def _mangled(record: bytes) -> bytes:
    """Bad JSON, a bad UTF-8 byte, a field nobody knows, and a NUL: what a broken engine might send."""
    return b"dta: \xff{\x00" + record[6:-3] + b"\n\n"
