"""A chat that follows a script: what the model says in each turn, and what goes wrong in it.

A script is JSON, a list of turns; the turn is chosen by how many assistant messages the request has, and the last one
stays. A turn is an object with any of these, said in this order:

    {"reasoning": "...", "text": "...", "calls": [{"name": "f", "arguments": "{}", "id": "c1"}], "raw": "data: ...",
     "pace": 0.005, "dribble": 0.1, "stall": true, "die": 1, "close": true, "finish": "stop", "done": false}

``pace`` is the time between two pieces of a stream, in seconds; ``raw`` goes into the stream as it is, with ``dribble``
byte by byte and so many seconds apart; ``die`` is an exit status; ``close`` cuts the connection; without ``done`` the
stream ends well-formed but without its end. With
``echo`` the text is the request's body.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from fake_dialects import DONE, Chat, data
from fake_http import ClientLeft, Connection
from fake_json import Json, as_array, as_object, encode

JSON = "application/json; charset=utf-8"
FOREVER = 3600.0
NTSTATUS = {-6: 0xC0000409, -11: 0xC0000005}
PIECE = 7


def die(status: int) -> None:
    """End the process here and now; a negative status is a signal, or an NTSTATUS in its place on Windows."""
    if os.name == "nt" and status in NTSTATUS:
        os._exit(NTSTATUS[status] - (1 << 32))
    if status < 0:
        os.kill(os.getpid(), -status)
        time.sleep(5)  # the signal ends it
    os._exit(status)


def turn_of(script: str, dialect: Chat) -> Json:
    from json import loads

    turns = loads(script)
    spoken = [m for m in as_array(dialect.body.get("messages")) if as_object(m).get("role") == "assistant"]
    turn = as_object(turns[min(len(spoken), len(turns) - 1)])
    return turn | {"text": encode(dialect.body).decode()} if turn.get("echo") else turn


def play(connection: Connection, dialect: Chat, turn: Json, *, stream: bool) -> None:
    if not stream:
        message: Json = {"role": "assistant", "content": str(turn.get("text", ""))}
        if calls := list(_calls(turn)):
            message["tool_calls"] = calls
        whole = dialect.whole()
        whole["choices"] = [{"finish_reason": _finish(turn), "index": 0, "message": message}]
        connection.respond(200, JSON, encode(whole))
        return
    connection.start_stream()
    for record in _records(dialect, turn):
        dialect.tokens += 1
        connection.chunk(record)
        connection.wait(float(str(turn.get("pace", 0))))
    raw = str(turn.get("raw", "")).encode()
    size = 1 if "dribble" in turn else max(len(raw), 1)
    for at in range(0, len(raw), size):
        connection.chunk(raw[at : at + size])
        connection.wait(float(str(turn.get("dribble", 0))))
    if turn.get("stall"):
        connection.wait(FOREVER)
    if status := turn.get("die"):
        die(int(str(status)))
    if turn.get("close"):
        raise ClientLeft
    if turn.get("done", True):
        connection.chunk(
            data(dialect._delta({}, _finish(turn))) + data(dialect._chunk([]) | {"usage": dialect.usage()})
        )
        connection.chunk(DONE)
    connection.end_stream()


def _records(dialect: Chat, turn: Json) -> Iterator[bytes]:
    yield from dialect.begin()
    for field, member in (("reasoning", "reasoning_content"), ("text", "content")):
        text = str(turn.get(field, ""))
        for piece in _pieces(text):
            yield data(dialect._delta({member: piece}, None))
    for at, call in enumerate(_calls(turn)):
        function = as_object(call["function"])
        arguments = str(function["arguments"])
        begun = {**call, "index": at, "function": {"name": function["name"], "arguments": ""}}
        yield data(dialect._delta({"tool_calls": [begun]}, None))
        for piece in _pieces(arguments):
            yield data(dialect._delta({"tool_calls": [{"index": at, "function": {"arguments": piece}}]}, None))


def _pieces(text: str) -> Iterator[str]:
    """As tokens would come; of long texts no more than some thousands."""
    size = max(PIECE, len(text) // 5000)
    return (text[at : at + size] for at in range(0, len(text), size))


def _calls(turn: Json) -> Iterator[Json]:
    for at, each in enumerate(as_array(turn.get("calls"))):
        call = as_object(each)
        function: Json = {"name": call.get("name", ""), "arguments": call.get("arguments", "{}")}
        yield {"id": call.get("id", f"c{at}"), "type": "function", "function": function}


def _finish(turn: Json) -> str:
    return str(turn.get("finish", "tool_calls" if turn.get("calls") else "stop"))
