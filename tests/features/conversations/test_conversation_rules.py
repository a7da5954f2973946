"""The tree of a conversation, the ends of its streams, and the search that finds every part and nothing else."""

from __future__ import annotations

import itertools
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule
from msgspec import structs

from appliance.errors import BadRequest
from appliance.features.conversations.core import tree
from appliance.features.conversations.core.tree import excerpt, folded, stored, words_of
from appliance.features.conversations.shapes import Conversation, MessageNode
from appliance.features.conversations.store import MAX_HITS, VERSION, ConversationStore

TEXTS = st.text(max_size=8)


class Tree(RuleBasedStateMachine):
    """Two writers with their own, maybe outdated, copies of one conversation."""

    copies: Bundle[MessageNode] = Bundle("copies")

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, MessageNode] = {}
        self.sent: set[tuple[str | None, str]] = set()
        self.made = 0

    def put(self, message: MessageNode) -> MessageNode:
        self.made += 1
        outcome = tree.write(self.stored, message, f"n{self.made}", self.made)
        written = outcome.message
        assert outcome.branched == (written.id != message.id)
        assert 0 < written.created <= self.made
        self.stored[written.id] = written
        self.sent.add((message.parent, message.content))
        return written

    @rule(target=copies, content=TEXTS)
    def begin(self, content: str) -> MessageNode:
        self.made += 1
        return self.put(MessageNode(id=f"m{self.made}", role="user", content=content))

    @rule(target=copies, parent=copies, content=TEXTS)
    def answer(self, parent: MessageNode, content: str) -> MessageNode:
        self.made += 1
        return self.put(MessageNode(id=f"m{self.made}", parent=parent.id, role="assistant", content=content))

    @rule(target=copies, copy=copies, content=TEXTS)
    def edit(self, copy: MessageNode, content: str) -> MessageNode:
        """From a copy of any age."""
        before = self.stored[copy.id]
        written = self.put(structs.replace(copy, content=content))
        if before.revision == copy.revision:
            assert (written.id, written.revision, written.created) == (copy.id, copy.revision + 1, before.created)
        elif written.id == copy.id:
            assert before.content == content  # both wrote the same
        else:
            assert self.stored[copy.id] == before
            assert (written.parent, written.content) == (copy.parent, content)
            assert (written.revision, written.created) == (1, self.made)
        return written

    @rule(copy=consumes(copies), role=st.sampled_from(["system", "tool"]))
    def a_role_is_for_ever(self, copy: MessageNode, role: Any) -> None:
        with pytest.raises(BadRequest, match="keeps its parent"):
            tree.write(self.stored, structs.replace(copy, role=role), "x", 0)

    @invariant()
    def every_branch_reaches_a_root(self) -> None:
        parents = {each.id: each.parent for each in self.stored.values()}
        for leaf in parents:
            path = tree.path_to(parents, leaf)
            assert path[-1] == leaf
            assert parents[path[0]] is None
            assert all(leaf in tree.below(parents, each) for each in path)

    @invariant()
    def the_newest_of_each_place_is_there(self) -> None:
        """Every parent that was written below has still got children, and none of the newest texts is gone."""
        assert {parent for parent, _ in self.sent} == {each.parent for each in self.stored.values()}


TestTree = Tree.TestCase


@given(st.text(max_size=200))
def test_a_title_is_one_short_line(text: str) -> None:
    title = tree.title_of(text)
    assert len(title) <= tree.MAX_TITLE + 1
    assert "\n" not in title
    assert bool(title) == bool(text.strip())


def record(**delta: object) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) + b"\n\n"


END = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"model":"m","timings":{"predicted_n":2}}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.text(min_size=1, max_size=5), max_size=6), st.integers(1, 50), st.booleans(), st.booleans())
def test_an_answer_is_what_its_stream_said_however_it_is_cut(
    texts: list[str], size: int, stopped: bool, cut: bool
) -> None:
    stream = record(reasoning_content="hm") + b"".join(record(content=text) for text in texts)
    for ends in (True, False):
        answer = tree.AnswerText(MessageNode(id="a", role="assistant", content="before ", state="answering"))
        data = stream + (END if ends else b"")
        for start in range(0, len(data), size):
            answer.feed(data[start : start + size])
        message = answer.ended(stopped=stopped, cut=cut)
        assert message.content == "before " + "".join(texts)
        assert message.reasoning == "hm"
        if ends:
            assert (message.state, message.model) == ("done", "m")
            assert message.timings == {"predicted_n": 2}
        else:
            assert message.state == ("stopped" if stopped else "interrupted" if cut else "failed")
            assert bool(message.error) == (message.state == "failed")


def test_an_error_record_becomes_the_messages_error() -> None:
    answer = tree.AnswerText(MessageNode(id="a", role="assistant", state="answering"))
    answer.feed(record(content="so") + b'data: {"error":{"message":"out of memory"}}\n\n')
    message = answer.ended(stopped=False, cut=False)
    assert (message.content, message.state) == ("so", "failed")
    assert "out of memory" in message.error


def test_tool_calls_are_put_together() -> None:
    answer = tree.AnswerText(MessageNode(id="a", role="assistant", state="answering"))
    pieces = {"name": "get", "arguments": ""}, {"arguments": '{"a":'}, {"arguments": "1}"}
    for piece in pieces:
        answer.feed(record(tool_calls=[{"index": 0, "id": "c1", "function": piece}]))
    (call,) = answer.ended(stopped=True, cut=False).tool_calls
    assert msgspec.json.decode(call)["function"] == {"name": "get", "arguments": '{"a":1}'}


PIECES = ["audio", "video", "image", "text", "/", "/", "png", "ogg", "svg+xml", "html", ";", ","]
PIECES += [" ", "\r\n", "\0", "\u1234", "\xff"]
TYPES = (
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(max_size=20) | st.just("Audio/Ogg; codecs=x")
)


@given(TYPES)
def test_an_attachment_is_given_out_as_a_type_that_a_browser_may_show_or_as_unknown(kind: str) -> None:
    shown = tree.shown_type(kind)
    known = re.fullmatch(r"image/(png|jpeg|gif|webp)|(audio|video)/[a-z0-9.+-]+", shown, re.ASCII)
    assert known or shown == tree.UNKNOWN_TYPE
    assert shown == tree.UNKNOWN_TYPE or kind.lower().lstrip().startswith(shown)
    assert tree.shown_type(shown) == shown


ODD = st.sampled_from('aAbBä\u0308ßſİΣσς "*()-^\0\n東京ｶﾞ한\u0301😀\2%_')
LETTERS = st.text(ODD, max_size=40) | st.text(max_size=12)
numbers = itertools.count()


def titled(name: str, title: str = "t") -> Conversation:
    return Conversation(id=name, title=title, created=1, updated=1)


def said(name: str, content: str) -> MessageNode:
    return MessageNode(id=name, role="user", content=content, created=1, revision=1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    with closing(ConversationStore(tmp_path_factory.mktemp("search") / "conversations.db", 1 << 30)) as opened:
        yield opened


def whole(text: str, query: str) -> bool:
    """Look through a text for every word of a query, without an index."""
    return all(word in folded(text) for word in words_of(query))


@given(texts=st.lists(LETTERS, min_size=1, max_size=5), title=LETTERS, data=st.data())
@example(texts=["Wärmepumpe"], title="STRASSE", data=None)
def test_every_part_is_found_and_nothing_else(
    store: ConversationStore, texts: list[str], title: str, data: st.DataObject | None
):
    """Whatever the letters are, also those that mean something to SQLite."""
    place = f"c{next(numbers)}"
    store.empty()
    store.add(titled(place, title), [], 1)
    names = {f"{place}-{at}": text for at, text in enumerate(texts)}
    for name, text in names.items():
        store.write(place, said(name, text), "other", 1)
    title = store.list()[0].title  # an empty one becomes the first line of a question
    queries = ["warmepumpe", "PUMP", "straße", "rm"]
    if data is not None:
        source = data.draw(st.sampled_from([*texts, title]))
        begin = data.draw(st.integers(0, len(source)))
        queries = [source[begin : begin + data.draw(st.integers(1, 20))], data.draw(LETTERS)]
    for query in queries:
        hits = store.search(query)
        wanted = {name for name, text in names.items() if whole(text, query)} if words_of(query) else set[str]()
        assert {hit.message for hit in hits if hit.message} == wanted, query
        assert any(hit.message is None for hit in hits) == (bool(words_of(query)) and whole(title, query)), query
        for hit in hits:
            assert "\2" in hit.excerpt
            assert len(hit.excerpt) < 1000


@given(text=LETTERS, data=st.data())
def test_the_folded_form_of_a_part_is_a_part_of_the_folded_form(text: str, data: st.DataObject):
    """And an excerpt is a part of the text, with the hits marked."""
    begin = data.draw(st.integers(0, len(text)))
    part = text[begin : data.draw(st.integers(begin, len(text)))]
    assert folded(part) in folded(text)
    shown = excerpt("x" * 5000 + text + "x" * 5000, words_of(part))
    if words_of(part) and "x" not in folded(part):
        assert folded(shown.partition("\2")[2].partition("\3")[0]).strip()


def test_an_excerpt_begins_near_the_first_word_that_is_there():
    shown = excerpt("x" * 1000 + "needle" + "y" * 1000, ["needle", "absent"])
    assert shown.startswith("…")
    assert "\2needle\3" in shown


def test_a_database_of_whole_words_is_taken_over(tmp_path: Path):
    path = tmp_path / "conversations.db"
    with closing(ConversationStore(path, 1 << 30)) as store:
        store.add(titled("c"), [stored(said("m", "Die Wärmepumpe"))], 1)
        store.add(titled("d"), [stored(said("n", ""))], 1)
    with closing(sqlite3.connect(path)) as old:  # as the version before made it
        old.executescript(
            "DROP TABLE words; CREATE VIRTUAL TABLE words USING fts5 (content, tokenize = 'unicode61'); "
            "INSERT INTO words (rowid, content) VALUES (1, 'Die Wärmepumpe'); PRAGMA user_version = 1;"
        )
    with closing(ConversationStore(path, 1 << 30)) as store:
        assert [hit.message for hit in store.search("PUMPE")] == ["m"]
        store.delete_message("c", "m", 1)
        assert store.search("pumpe") == []
    with closing(sqlite3.connect(path)) as now:
        assert now.execute("PRAGMA user_version").fetchone() == (VERSION,)


@given(titles=st.integers(0, MAX_HITS + 2), messages=st.integers(0, MAX_HITS + 2))
@settings(max_examples=12, deadline=None)
@example(titles=MAX_HITS + 2, messages=1)
@example(titles=1, messages=MAX_HITS + 2)
def test_titles_and_messages_take_no_places_from_each_other(store: ConversationStore, titles: int, messages: int):
    store.empty()
    for at in range(titles):
        store.add(titled(f"t{next(numbers)}", f"needle {at}"), [], 1)
    place = f"c{next(numbers)}"
    store.add(titled(place), [], 1)
    for at in range(messages):
        store.write(place, said(f"{place}-{at}", "needle"), "other", 1)
    hits = store.search("needle")
    found = [hit.message for hit in hits if hit.message]
    shown = len(found)
    assert found == [f"{place}-{at}" for at in reversed(range(messages))][:shown], "the newest first"
    assert len(hits) == min(titles + messages, MAX_HITS)
    assert shown >= min(messages, MAX_HITS // 2)
    assert len(hits) - shown >= min(titles, MAX_HITS // 2)
