"""The search of stored conversations: every part of a title or message is found, and nothing else."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.features.conversations.core.tree import excerpt, folded, stored, words_of
from appliance.features.conversations.shapes import Conversation, MessageNode
from appliance.features.conversations.store import MAX_HITS, VERSION, ConversationStore

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
