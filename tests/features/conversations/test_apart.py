"""Exports of conversations, read by a process of its own: what a file claims to be is not what it takes."""

from __future__ import annotations

import json
import re
import sys

import msgspec
import pytest
import trio
from hostile_files import CLAIMS, hostile
from memory import read_file_apart

from appliance.errors import BadRequest, Busy
from appliance.features.conversations import apart
from appliance.features.conversations.apart import read_apart
from appliance.features.conversations.core.files import MAX_PIECE, MAX_UNPACKED
from appliance.features.conversations.file_process import MEMORY
from appliance.features.conversations.shapes import Carton

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds and tells what a process takes so")
MOST = 3 * MAX_UNPACKED  # bytes: a line as long as all lines together may be, while it is put together
HEAD = json.dumps({"harness": "llama.app", "type": "session", "id": "abc", "name": "Greeting"}).encode()


def message(inner: bytes, name: bytes = b"a") -> bytes:
    return HEAD + b'\n{"type":"message","message":{"id":"%b","role":"user",%b}}\n' % (name, inner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "said"),
    {
        **dict.fromkeys(CLAIMS, r"the ZIP cannot be read: .+"),
        "bzip2": "'a.jsonl' is packed with bzip2; pack it again with deflate",
        "line ends": f"unpacked, the file has more than {MAX_UNPACKED} bytes or 500000 lines; export fewer",
        "one line": f"unpacked, the file has more than {MAX_UNPACKED} bytes",
        "zip64": f"unpacked, the file has more than {MAX_UNPACKED} bytes",
        "zip64, none": None,
        "a zip in it": None,
    }.items(),
)
def test_an_archive_is_refused_in_words_and_takes_a_bounded_memory(claim: str, said: str | None) -> None:
    verdict, _, most = read_file_apart("import", hostile(claim))
    print(f"{claim}, {len(hostile(claim))} bytes: {most >> 20} MiB")
    assert re.search(said, verdict.error) if said is not None else not verdict.error
    assert most < MOST


LISTS = 60 << 20
GREEDY = {
    "timings": lambda: message(b'"timings":{"a":[' + b"[]," * (LISTS // 3) + b"0]}"),
    "attachments": lambda: message(b'"extra":[' + b"{}," * (LISTS // 3) + b"{}]"),
    "calls": lambda: message(b'"toolCalls":[' + b"0," * (LISTS // 2) + b"0]"),
    "nothing": lambda: b'{"conv":{"id":"a"},"messages":[' + b'{"id":""},' * (LISTS // 8) + b'{"id":""}]}',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", GREEDY)
def test_json_that_would_become_gigabytes_ends_at_the_bound(name: str) -> None:
    data = GREEDY[name]()
    verdict, _, most = read_file_apart("import", data)
    print(f"{name}, {len(data)} bytes: {most >> 20} MiB")
    assert verdict.error == "the file cannot be read: that takes more than 1024 MiB of memory; take a part of it"
    assert most <= MEMORY


def test_a_chain_of_messages_is_read_in_time_that_grows_with_its_length() -> None:
    """Each is the answer to the next one, so that the first leads through all of them."""
    row = b'{"type":"message","message":{"id":"%d","role":"user","parent":"%d"}}\n'
    parents = b"".join(row % (each, each + 1) for each in range(50_000))
    verdict, output, _ = read_file_apart("unpack", HEAD + b"\n" + parents)
    assert not verdict.error
    (whole,) = msgspec.json.decode(output, type=Carton).conversations
    assert len(whole.messages) == 50_000


LARGE = {"a message": b'"content":"%b"', "a file": b'"extra":[{"type":"TEXT","name":"n","content":"%b"}]'}


@pytest.mark.parametrize("what", LARGE)
def test_what_is_too_large_for_the_store_is_named(what: str) -> None:
    verdict, _, _ = read_file_apart("import", message(LARGE[what] % (b"x" * (MAX_PIECE + 1))))
    assert verdict.error.startswith(f"{what} in the conversation 'Greeting' has 167772")
    assert f"may have {MAX_PIECE}: remove it there, and export again" in verdict.error


async def test_a_result_without_room_ends_the_process() -> None:
    taken = 0

    def room(size: int) -> None:
        nonlocal taken
        taken += size
        if taken > 1 << 20:
            raise Busy("no room", retry_after=1)

    with pytest.raises(Busy, match="no room"):
        await read_apart("unpack", message(b'"content":"%b"' % (b"x" * (8 << 20))), room)
    assert taken < 2 << 20


async def test_a_file_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "PATIENCE", 0.05)
    with pytest.raises(BadRequest, match="takes longer than 0 s; take a part of it"), trio.fail_after(20):
        await read_apart("import", message(b'"content":""') * 50_000, lambda _: None)
