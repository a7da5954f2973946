"""Files of conversations: what is written is read again without loss, and the formats of others are read."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
from typing import Any

import msgspec
import pytest
from drawn_json import json_values
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import BadRequest
from appliance.features.conversations.core import files as conversation_files
from appliance.features.conversations.core.files import each_arrived, for_page, for_store, pack, read_file, write_export
from appliance.features.conversations.core.tree import stored
from appliance.features.conversations.shapes import Attachment, Carton, Conversation, MessageNode, Whole

PIXEL = b"\x89PNG\r\n\x1a\n and so on"
IMAGE = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
ROWS: list[dict[str, Any]] = [
    {"id": "root", "convId": "c", "type": "root", "timestamp": 1, "role": "system", "content": "", "parent": None},
    {"id": "u1", "type": "text", "timestamp": 2, "role": "user", "content": "hi", "parent": "root",
     "extra": [{"type": "IMAGE", "name": "p.png", "base64Url": IMAGE},
               {"type": "TEXT", "name": "t.txt", "content": "text"},
               {"type": "AUDIO", "name": "a.wav", "base64Data": "AAAA", "mimeType": "audio/wav"},
               {"type": "PDF", "name": "d.pdf", "base64Data": "AAAA", "content": "", "processedAsImages": False},
               {"type": "MCP_RESOURCE", "name": "r", "uri": "file:///x", "serverName": "s", "content": "c"}]},
    {"id": "a1", "type": "text", "timestamp": 3, "role": "assistant", "content": "yo", "parent": "u1", "model": "m",
     "reasoningContent": "hm", "toolCalls": '[{"id":"1","function":{"name":"f","arguments":"{}"}}]'},
    {"id": "a2", "type": "text", "timestamp": 4, "role": "assistant", "content": "or", "parent": "u1",
     "toolCalls": [{"id": "1"}]},
    {"id": "lost", "type": "text", "timestamp": 5, "role": "user", "content": "?", "parent": "nobody"},
]  # fmt: skip
CONV = {"id": "abc", "name": "Greeting", "lastModified": 9, "currNode": "a2", "alwaysAllowedTools": ["rm"]}


def lines(*records: object) -> bytes:
    return "\n".join(map(json.dumps, records)).encode()


HEAD = {"harness": "llama.app", "type": "session", **CONV}
SESSION = lines(HEAD, *({"type": "message", "message": row} for row in ROWS))
PAIR = json.dumps({"conv": CONV, "messages": ROWS}).encode()


def zipped(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content)
    return out.getvalue()


@pytest.mark.parametrize("data", [SESSION, PAIR, b"[" + PAIR + b"]", b"\n" + SESSION + b"\n\n"])
def test_every_export_of_llama_cpp_is_read(data: bytes) -> None:
    ((whole, files),) = read_file(data)
    conversation = whole.conversation
    by_content = {message.content: message for message in whole.messages}
    assert (conversation.title, conversation.updated) == ("Greeting", 9)
    assert conversation.leaf == by_content["or"].id
    assert by_content["yo"].parent == by_content["or"].parent == by_content["hi"].id
    assert by_content["?"].parent is None
    assert (by_content["yo"].reasoning, by_content["yo"].model) == ("hm", "m")
    assert len(by_content["yo"].tool_calls) == len(by_content["or"].tool_calls) == 1
    kinds = [each.type for each in by_content["hi"].attachments]
    assert kinds == ["image/png", "text/plain", "audio/wav", "application/pdf", "text/plain"]
    assert ("image/png", PIXEL) in files
    assert {each.hash for each in by_content["hi"].attachments} == {
        hashlib.sha256(data).hexdigest() for _, data in files
    }


def test_the_text_of_a_pdf_is_taken_from_an_export() -> None:
    pdf = {"type": "PDF", "name": "d.pdf", "base64Data": "AAAA", "content": "its text", "processedAsImages": False}
    ((whole, files),) = read_file(lines(HEAD, {"type": "message", "message": {**ROWS[1], "extra": [pdf]}}))
    (message,) = whole.messages
    assert (message.attachments[0].name, message.attachments[0].type) == ("d.pdf", "text/plain")
    assert files == [("text/plain", b"its text")]


def test_several_sessions_and_a_zip_of_them() -> None:
    found = list(read_file(SESSION + b"\n" + SESSION.replace(b'"abc"', b'"def"')))
    assert len(found) == 2
    files = {hashlib.sha256(data).hexdigest(): (kind, data) for _, several in found for kind, data in several}
    again = list(read_file(write_export([whole for whole, _ in found], files)[1]))
    assert msgspec.json.encode(again) == msgspec.json.encode(found)


def test_open_web_ui_is_read() -> None:
    messages = {
        "1": {"id": "1", "parentId": None, "childrenIds": ["2"], "role": "user", "content": "hi", "timestamp": 10},
        "2": {"id": "2", "parentId": "1", "role": "assistant", "content": "yo", "model": "m", "timestamp": 11},
    }
    chat = {"title": "t", "history": {"messages": messages, "currentId": "2"}}
    data = json.dumps([{"id": "x", "title": "Theirs", "chat": chat, "updated_at": 12, "pinned": True}]).encode()
    ((whole, _),) = read_file(data)
    conversation, read = whole.conversation, whole.messages
    assert (conversation.title, conversation.updated, conversation.pinned) == ("Theirs", 12000, True)
    assert [(each.role, each.content) for each in read] == [("user", "hi"), ("assistant", "yo")]
    assert read[1].parent == read[0].id == next(read_file(data))[0].messages[0].id


@st.composite
def gpt_trees(draw: st.DrawFn) -> dict[str, Any]:
    """ChatGPT's: a root without a message, then anything, also parents that are missing or lead round."""
    names = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(draw(st.integers(1, 8)))]
    mapping: dict[str, Any] = {"client-created-root": {"id": "client-created-root", "message": None, "parent": None}}
    for at, name in enumerate(names):
        parent = draw(st.sampled_from(["client-created-root", *names[:at]]))
        content: Any = {"content_type": draw(st.sampled_from(["text", "text", "multimodal_text", "thoughts", "code"]))}
        content["parts"] = draw(
            st.lists(st.sampled_from([f"{at} words", "", {"content_type": "image_asset_pointer"}]), max_size=2)
        )
        hidden = draw(st.sampled_from([None, False, True]))
        metadata = {"model_slug": "gpt", "is_visually_hidden_from_conversation": hidden}
        role = draw(st.sampled_from(["user", "assistant", "assistant", "tool", "system"]))
        message = {
            "author": {"role": role, "name": None},
            "content": content,
            "create_time": draw(st.sampled_from([None, 1.5 + at])),
            "recipient": draw(st.sampled_from(["all", "all", "all", "python"])),
            "metadata": metadata if draw(st.integers(0, 3)) else None,
        }
        mapping[name] = {"id": name, "message": message, "parent": parent, "children": []}
    return {
        "title": draw(st.sampled_from([None, "Theirs"])),
        "mapping": mapping,
        "current_node": draw(st.sampled_from(list(mapping))),
        "conversation_id": "00000000-0000-4000-8000-00000000000c",
        "update_time": 12.5,
    }


def seen_there(message: dict[str, Any] | None) -> str:
    """What ChatGPT's page shows of a message, written a second time and without a look at the reader."""
    if message is None or message["author"]["role"] in ("tool", "system") or message["recipient"] != "all":
        return ""
    if message["metadata"] is not None and message["metadata"]["is_visually_hidden_from_conversation"]:
        return ""
    if message["content"]["content_type"] in ("thoughts", "code"):
        return ""
    return "\n\n".join(part if isinstance(part, str) else "[image]" for part in message["content"]["parts"] if part)


@given(gpt_trees(), st.booleans())
def test_what_chatgpt_shows_is_shown_here(export: dict[str, Any], packed: bool) -> None:
    data = json.dumps([export, {**export, "conversation_id": "another"}]).encode()
    if packed:
        data = zipped(**{"user.json": b"{}", "conversations-000.json": data})
    (found, _), (other, _) = read_file(data)
    assert not {each.id for each in found.messages} & {each.id for each in other.messages}
    assert (found.conversation.title, found.conversation.updated) == (export["title"] or "", 12500)

    def path_there(at: str | None) -> list[str]:
        node = export["mapping"].get(at)
        words = seen_there(node["message"]) if node else ""
        return (path_there(node["parent"]) if node else []) + ([words] if words else [])

    known = {each.id: each for each in found.messages}

    def path_here(at: str | None) -> list[str]:
        return [*path_here(known[at].parent), known[at].content] if at in known else []

    shown = [path_there(name) for name, node in export["mapping"].items() if seen_there(node["message"])]
    assert sorted(map(path_here, known)) == sorted(shown)
    if current := path_there(export["current_node"]):
        assert path_here(found.conversation.leaf) == current


@given(gpt_trees(), st.data())
def test_a_hostile_export_of_chatgpt_is_read_or_refused(export: dict[str, Any], data: st.DataObject) -> None:
    nodes: list[dict[str, Any]] = list(export["mapping"].values())
    node = data.draw(st.sampled_from(nodes))
    node["parent"] = data.draw(st.sampled_from(list(export["mapping"])))
    message: list[dict[str, Any]] = [node["message"]] if node["message"] else []
    place = data.draw(st.sampled_from([export, node, *message]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(json_values(["parts", "role", "x"]))
    try:
        for found, _ in read_file(json.dumps([export]).encode()):
            assert len({each.id for each in found.messages}) == len(found.messages)
    except BadRequest:
        pass


CUT = b'{"type":"session","id":"a"}\n{"type":"message"'


@pytest.mark.parametrize("data", [b"", b"{}", b"PK\x03\x04 broken", b"\xff\xfe", CUT, b"[" * 5000])
def test_other_files_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(BadRequest):
        list(read_file(data))


IDS = st.sampled_from([f"{n:032x}" for n in range(6)])


@st.composite
def trees(draw: st.DrawFn) -> Whole:
    names = draw(st.lists(IDS, unique=True, max_size=6))
    data = draw(st.binary(min_size=1, max_size=9))
    file = Attachment(hash=hashlib.sha256(data).hexdigest(), name="n", type="image/png", size=len(data))
    messages = [
        MessageNode(
            id=name, parent=draw(st.sampled_from([None, *names[:at]])), created=at, revision=1,
            role=draw(st.sampled_from(["user", "assistant", "tool"])), content=draw(st.text(max_size=5)),
            reasoning=draw(st.text(max_size=3)), attachments=(file,) if draw(st.booleans()) else (),
        )
        for at, name in enumerate(names)
    ]  # fmt: skip
    title, leaf = draw(st.text(max_size=9)), names[-1] if names else None
    conversation = Conversation(id="f" * 32, title=title, created=0, updated=7, leaf=leaf)
    FILES[file.hash] = ("image/png", data)
    return Whole(conversation=conversation, messages=tuple(messages))


FILES: dict[str, tuple[str, bytes]] = {}


@given(trees())
def test_a_conversation_is_read_as_it_was_written(whole: Whole) -> None:
    _, content = write_export([whole], FILES)
    ((found, files),) = read_file(content)
    assert {each.id: each for each in found.messages} == {each.id: each for each in whole.messages}
    for member in ("id", "title", "leaf"):
        assert getattr(found.conversation, member) == getattr(whole.conversation, member)
    (arrived,) = each_arrived(io.BytesIO(b"".join(for_store(content))).read)
    assert (arrived.conversation, arrived.files) == (found.conversation, files)
    assert arrived.messages == list(map(stored, found.messages))
    assert tuple(msgspec.json.decode(each.body, type=MessageNode) for each in arrived.messages) == found.messages
    carton = b"".join(for_page(content))
    assert msgspec.json.decode(carton, type=Carton).conversations == (found,)
    assert list(read_file(pack(carton)[1])) == [(found, files)]


def named(*ids: str) -> list[Whole]:
    return [Whole(conversation=Conversation(id=each, title="Same", created=1, updated=1)) for each in ids]


def test_many_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"{number:032x}" for number in range(9)]
    _, packed = write_export(named(*ids), {})
    arrived = each_arrived(io.BytesIO(b"".join(for_store(packed))).read)
    assert [each.conversation.id for each in arrived] == ids
    carton = msgspec.json.decode(b"".join(for_page(packed)), type=Carton)
    assert [each.conversation.id for each in carton.conversations] == ids
    monkeypatch.setattr(conversation_files, "MAX_LINES", 9)
    reading = read_file(packed)
    assert [next(reading)[0].conversation.id for _ in range(4)] == ids[:4]
    with pytest.raises(BadRequest, match="or 9 lines; export fewer"):
        list(reading)


def test_a_line_that_cannot_be_used_is_named_with_its_file() -> None:
    broken = zipped(a_jsonl=SESSION, notes_txt=b"?", b_jsonl=lines(HEAD, HEAD) + b"\n{")
    early = zipped(a_jsonl=lines({"type": "other"}, {"type": "message", "message": ROWS[0]}, HEAD))
    for packed, said in (
        (broken, r"^'b.jsonl', line 3 cannot be read: "),
        (early, r"^'a.jsonl', line 2 is a message before any conversation"),
    ):
        with pytest.raises(BadRequest, match=said):
            list(read_file(packed))


def test_conversations_of_one_name_are_files_of_their_own() -> None:
    """Of ids that begin alike; the order stays."""
    ids = ["0123456789abcdef" * 2, "0123456789abcdee" * 2]
    assert [found.conversation.id for found, _ in read_file(write_export(named(*ids), {})[1])] == ids
