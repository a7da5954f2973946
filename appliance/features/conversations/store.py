"""Conversations in SQLite: a row for each, for each message and for each attachment, and an index of parts of words.

The index holds which three letters follow each other in a message's folded text (`tree.folded`). It says
which messages may have a part of a word; a look at the text decides. Texts shorter than three letters need that look at
every message. Titles are few and short, and are not in the index.

Everything here blocks and is for one worker thread at a time. Every change takes the next number; with the numbers
readers learn what they have missed. What is deleted stays for `UNDO_MS`, marked, and is purged with a later write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import UNSET, Raw, UnsetType, structs

from appliance.errors import ApplianceError, BadRequest, Busy, Conflict, NotFound, StoreFailed, UsageError
from appliance.features.conversations import shapes
from appliance.features.conversations.core import tree
from appliance.store.activity_schema import make_private, set_aside
from appliance.store.versions import restored

VERSION = 2
UNDO_MS = 60_000  # how long a deletion can be taken back; the page offers it for ten seconds
UNUSED_MS = 86_400_000  # how long a file that was attached may wait until its message is sent
MAX_MESSAGES = 20_000  # messages of one conversation
MAX_HITS = 50
MAX_PARTS = 40  # groups of three letters of one word that the index is asked for; the text decides about longer words
MAX_PRESETS = 100
MAX_PRESET = 64 << 10  # bytes of one preset
BUSY_MS = 5000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS counter (change INTEGER NOT NULL);
INSERT INTO counter SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM counter);
CREATE TABLE IF NOT EXISTS conversations (
  id TEXT PRIMARY KEY, change INTEGER NOT NULL, body TEXT NOT NULL, updated INTEGER NOT NULL, deleted INTEGER);
CREATE TABLE IF NOT EXISTS messages (
  row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, conversation TEXT NOT NULL, change INTEGER NOT NULL,
  body TEXT NOT NULL, partial TEXT, answering INTEGER NOT NULL, deleted INTEGER);
CREATE INDEX IF NOT EXISTS messages_of ON messages (conversation, change);
CREATE INDEX IF NOT EXISTS messages_answering ON messages (answering) WHERE answering;
CREATE INDEX IF NOT EXISTS messages_deleted ON messages (deleted) WHERE deleted IS NOT NULL;
CREATE INDEX IF NOT EXISTS conversations_deleted ON conversations (deleted) WHERE deleted IS NOT NULL;
CREATE TABLE IF NOT EXISTS attachments (
  hash TEXT PRIMARY KEY, type TEXT NOT NULL, added INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS attachments_added ON attachments (added);
CREATE TABLE IF NOT EXISTS uses (message INTEGER NOT NULL, hash TEXT NOT NULL, PRIMARY KEY (hash, message));
CREATE INDEX IF NOT EXISTS uses_of ON uses (message);
CREATE TABLE IF NOT EXISTS presets (name TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (
  content, tokenize = 'trigram case_sensitive 1', detail = none, columnsize = 0);
"""
_UPGRADE = f"""
DROP TABLE words;
{_SCHEMA}
INSERT INTO words (rowid, content) SELECT row, folded(coalesce(json_extract(body, '$.content'), '')) FROM messages;
"""
"""The index of version 1 had whole words."""
_message = msgspec.json.Decoder(shapes.MessageNode).decode
_conversation = msgspec.json.Decoder(shapes.Conversation).decode
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _hit(conversation: shapes.Conversation, message: str | None, text: str, words: Sequence[str]) -> shapes.Hit:
    excerpt = tree.excerpt(text, words)
    return shapes.Hit(conversation=conversation.id, message=message, title=conversation.title, excerpt=excerpt)


def failure(path: Path, error: sqlite3.Error) -> ApplianceError:
    """Return what an error of the store means: damage, or something that may be over when it is tried again."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
        return StoreFailed(f"the file of the conversations is damaged ({error}); {set_aside(path)}")
    remedy = "try again when there is room, and no other program holds the file"
    return Busy(f"the conversations in '{path}' cannot be used now ({error}); {remedy}", retry_after=10)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_MS / 1000, check_same_thread=False, isolation_level=None)


class ConversationStore:
    """Methods raise sqlite3.Error, see `failure`. ``limit``: bytes that it may have before writes are refused."""

    def __init__(self, path: Path, limit: int) -> None:
        """Raises UsageError where no file can be made."""
        self._limit = limit
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            make_private(path)
            self._db = _connect(path)
        except OSError as error:
            raise UsageError(
                f"conversations cannot be kept in '{path}' ({error}); name another file as conversations.path, or "
                "start with --no-conversations"
            ) from None
        try:
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > VERSION:
                self._db.close()
                if not restored(path, VERSION):
                    raise UsageError(f"the conversations in '{path}' were written by a later version of this program")
                self._db = _connect(path)
                (version,) = self._db.execute("PRAGMA user_version").fetchone()
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA secure_delete = ON")
            script = _UPGRADE if version == 1 else _SCHEMA
            self._db.create_function("folded", 1, tree.folded, deterministic=True)
            self._db.executescript(f"BEGIN IMMEDIATE;{script}PRAGMA user_version = {VERSION};COMMIT;")
            self.horizon = self.change_number()
            """A reader that has seen no later change has to read everything: what was purged before leaves no trace."""
            self._presets_change = self.horizon
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def size(self) -> int:
        """Bytes in use."""
        (pages,), (free,), (page,) = (
            self._db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page

    def change_number(self) -> int:
        return self._db.execute("SELECT change FROM counter").fetchone()[0]

    def deleted(self, now: int, since: int = 0) -> list[shapes.DeletedConversation]:
        """Return those that were deleted after a change and are not purged yet, the latest first."""
        rows = self._db.execute(
            "SELECT body, deleted FROM conversations WHERE deleted IS NOT NULL AND change > ? ORDER BY deleted DESC",
            (since,),
        )
        found = ((_conversation(body), deleted) for body, deleted in rows)
        return [
            shapes.DeletedConversation(id=each.id, title=each.title, left=max(deleted + UNDO_MS - now, 0))
            for each, deleted in found
        ]

    def list(self, since: int = 0) -> list[shapes.Conversation]:
        """All of them, or those changed after a change; the newest first."""
        answering = {row[0] for row in self._db.execute("SELECT conversation FROM messages WHERE answering")}
        rows = self._db.execute(
            "SELECT body, change FROM conversations WHERE deleted IS NULL AND change > ? ORDER BY updated DESC",
            (since,),
        )
        found = (structs.replace(_conversation(body), change=change) for body, change in rows)
        return [structs.replace(each, answering=each.id in answering) for each in found]

    def presets(self, since: int = 0) -> dict[str, Raw] | UnsetType:
        """All of them, if one has changed after the change ``since``."""
        if 0 < since >= self._presets_change:
            return UNSET
        return {name: Raw(body.encode()) for name, body in self._db.execute("SELECT * FROM presets ORDER BY name")}

    def read(self, conversation: str, since: int = 0) -> shapes.Whole:
        """All of one, or what has changed since. Raises NotFound."""
        found = self._find(conversation)
        rows = self._db.execute(
            "SELECT id, body, deleted FROM messages WHERE conversation = ? AND change > ? ORDER BY row",
            (conversation, since),
        ).fetchall()
        return shapes.Whole(
            conversation=found,
            messages=tuple(_message(body) for _, body, deleted in rows if deleted is None),
            deleted=tuple(message for message, _, deleted in rows if deleted is not None) if since else (),
        )

    def search(self, text: str) -> list[shapes.Hit]:
        """Titles, then messages, of which every word of the text is a part; the newest first."""
        words = tree.words_of(text)
        if not words:
            return []
        bodies = self._db.execute("SELECT body FROM conversations WHERE deleted IS NULL ORDER BY updated DESC")
        titled = ((each := _conversation(body), tree.folded(each.title)) for (body,) in bodies)
        named = [each for each, title in titled if all(word in title for word in words)]
        parts = {word[at : at + 3] for word in words for at in range(min(len(word) - 2, MAX_PARTS))}
        index = [" AND ".join('"' + part.replace('"', '""') + '"' for part in parts)] if parts else []  # as FTS5 quotes
        conditions = ["words MATCH ?" for _ in index] + ["instr(words.content, ?)" for _ in words]
        rows = self._db.execute(
            "SELECT conversations.body, messages.body FROM words JOIN messages ON messages.row = words.rowid "
            "JOIN conversations ON conversations.id = messages.conversation "
            f"WHERE {' AND '.join(conditions)} "
            "AND messages.deleted IS NULL AND conversations.deleted IS NULL ORDER BY words.rowid DESC LIMIT ?",
            (*index, *words, MAX_HITS),
        )
        found = [(_conversation(one), _message(other)) for one, other in rows]
        titles = named[: MAX_HITS - min(len(found), MAX_HITS // 2)]  # neither kind takes all places from the other
        hits = [_hit(each, None, each.title, words) for each in titles]
        return hits + [_hit(each, one.id, one.content, words) for each, one in found[: MAX_HITS - len(hits)]]

    def attachment(self, digest: str) -> tuple[str, bytes]:
        """Type and content. Raises NotFound."""
        row = self._db.execute("SELECT type, data FROM attachments WHERE hash = ?", (digest,)).fetchone()
        if row is None:
            raise NotFound(f"there is no attachment '{digest}'; upload it first")
        return row

    def answering(self) -> list[tuple[shapes.MessageNode, shapes.MessageNode | None]]:
        """Answers under way: the message, and how far it had come when it was last noted."""
        rows = self._db.execute("SELECT body, partial FROM messages WHERE answering").fetchall()
        return [(_message(body), _message(partial) if partial else None) for body, partial in rows]

    def change(self, conversation: str, fields: shapes.Fields, now: int) -> shapes.Conversation:
        """Change what is given; a conversation that is not there is made. Raises Conflict for one that was deleted."""
        with self._writing(now, more=len(fields.draft) if fields.draft is not UNSET else 0) as change:
            try:
                before = self._find(conversation)
            except NotFound:
                if self._db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation,)).fetchone():
                    raise Conflict(f"the conversation '{conversation}' was deleted; restore it first") from None
                before = shapes.Conversation(id=conversation, created=now, updated=now)
            given = {name: value for name in fields.__struct_fields__ if (value := getattr(fields, name)) is not UNSET}
            after = structs.replace(before, **given)
            if given.keys() - {"leaf", "draft"}:
                after = structs.replace(after, updated=max(after.updated, now if not before.change else after.updated))
            self._save(after, change)
        return structs.replace(after, change=change)

    def write(self, conversation: str, sent: shapes.MessageNode, new_id: str, now: int) -> shapes.WrittenMessage:
        """Store a message by the rules of `tree.write`. Raises BadRequest, Conflict, NotFound, Busy."""
        with self._writing(now, more=len(sent.content)) as change:
            found = self._find(conversation)
            known = self._messages(conversation)
            if sent.id not in known and self._row(sent.id) is not None:
                raise Conflict(f"the message '{sent.id}' is in another conversation, or was deleted; use another id")
            if len(known) >= MAX_MESSAGES:
                raise BadRequest(f"a conversation may have {MAX_MESSAGES} messages; begin another one")
            for attachment in sent.attachments:
                self.attachment(attachment.hash)
            written = tree.write(known, sent, new_id, now)
            self._store(conversation, tree.stored(written.message), change, written.message.state)
            title = found.title or (tree.title_of(sent.content) if sent.role == "user" else "")
            self._save(structs.replace(found, title=title, updated=now), change)
        return written

    def note(self, message: shapes.MessageNode) -> None:
        """Note how far an answer under way has come, in case that the program is killed."""
        self._db.execute(
            "UPDATE messages SET partial = ? WHERE id = ? AND answering", (msgspec.json.encode(message), message.id)
        )

    def finish(self, message: shapes.MessageNode, now: int) -> str | None:
        """Store an answer that has ended; its conversation. None: somebody has deleted or ended it before."""
        row = self._row(message.id)
        if row is None or not row[2]:
            return None
        with self._writing(now, check=False) as change:
            before = self._messages(row[1]).get(message.id, message)  # what it answers may be another message by now
            ended = structs.replace(message, parent=before.parent, revision=message.revision + 1)
            self._store(row[1], tree.stored(ended), change, ended.state)
            found = self._db.execute("SELECT body FROM conversations WHERE id = ?", (row[1],)).fetchone()
            if found is not None:
                self._save(structs.replace(_conversation(found[0]), updated=now), change)
        return row[1]

    def delete(self, conversations: Iterable[str], now: int) -> list[str]:
        """Delete those that are there, all or none; their ids."""
        with self._writing(now, check=False) as change:
            mark = "UPDATE conversations SET deleted = ?, change = ? WHERE id = ? AND deleted IS NULL"
            return [each for each in conversations if self._db.execute(mark, (now, change, each)).rowcount]

    def restore(self, conversations: Iterable[str], now: int) -> None:
        """Take back a deletion of these. Raises NotFound when it is too late for one of them."""
        with self._writing(now, check=False) as change:
            mark = "UPDATE conversations SET deleted = NULL, change = ? WHERE id = ?"
            for each in conversations:
                if not self._db.execute(mark, (change, each)).rowcount:
                    raise NotFound(f"the conversation '{each}' is gone for good")

    def delete_message(self, conversation: str, message: str, now: int, *, alone: bool = False) -> shapes.Removed:
        """Delete it with everything below it, or ``alone``: its answers then answer its parent. Raises NotFound."""
        with self._writing(now, check=False) as change:
            known = self._messages(conversation)
            if message not in known:
                raise NotFound(f"there is no message '{message}' in this conversation")
            parent = known[message].parent
            below = tree.below({each.id: each.parent for each in known.values()}, message)
            moved = [each for each in below if known[each].parent == message] if alone else []
            gone = [message] if alone else below
            self._move(conversation, [known[each] for each in moved], parent, change)
            self._db.executemany(
                "UPDATE messages SET deleted = ?, answering = 0, change = ? WHERE id = ?",
                [(now, change, each) for each in gone],
            )
            found = self._find(conversation)
            leaf = parent if found.leaf in gone else found.leaf
            self._save(structs.replace(found, leaf=leaf), change)
        return shapes.Removed(ids=gone, moved=moved)

    def restore_messages(
        self, conversation: str, ids: Sequence[str], leaf: str | None, now: int, moved: Sequence[str] = ()
    ) -> None:
        """Take back a deletion of these, and of one alone what was ``moved``.

        Raises NotFound when it is too late for one of them.
        """
        with self._writing(now, check=False) as change:
            mark = "UPDATE messages SET deleted = NULL, change = ? WHERE id = ? AND conversation = ?"
            for each in ids:
                if not self._db.execute(mark, (change, each, conversation)).rowcount:
                    raise NotFound(f"the message '{each}' is gone for good")
            known, found = self._messages(conversation), self._find(conversation)
            if ids:
                again = [known[each] for each in moved if each in known and known[each].parent == known[ids[0]].parent]
                self._move(conversation, again, ids[0], change)
            self._save(structs.replace(found, leaf=leaf if leaf in known else found.leaf), change)

    def _move(self, conversation: str, messages: Iterable[shapes.MessageNode], parent: str | None, change: int) -> None:
        for each in messages:
            self._store(conversation, tree.stored(structs.replace(each, parent=parent)), change, each.state)

    def add(self, conversation: shapes.Conversation, messages: Iterable[tree.StoredMessage], now: int) -> bool:
        """Add a whole conversation. False: one with its id is there, or was until a moment ago."""
        with self._writing(now) as change:
            if self._db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation.id,)).fetchone():
                return False
            for message in messages:
                if self._row(message.id) is not None:
                    raise Conflict(f"the message '{message.id}' is in another conversation")
                self._store(conversation.id, message, change)
            self._save(conversation, change)
        return True

    def attach(self, digest: str, kind: str, data: bytes, now: int) -> None:
        with self._writing(now, more=len(data)):
            self._db.execute("INSERT OR IGNORE INTO attachments VALUES (?, ?, ?, ?)", (digest, kind, now, data))

    def set_preset(self, preset: shapes.StoredPreset, now: int) -> None:
        """Keep it instead of another one of its name; null deletes that. Raises BadRequest for too large or many."""
        body = bytes(preset.settings)
        with self._writing(now, more=len(body), check=body != b"null") as self._presets_change:
            self._db.execute("DELETE FROM presets WHERE name = ?", (preset.name,))
            if body == b"null":
                return
            (count,) = self._db.execute("SELECT count(*) FROM presets").fetchone()
            if count >= MAX_PRESETS:
                raise BadRequest(f"there are {MAX_PRESETS} presets, the most that are kept; delete one first")
            if len(body) > MAX_PRESET:
                raise BadRequest(f"a preset may have {MAX_PRESET} bytes; shorten its system prompt or schema")
            self._db.execute("INSERT INTO presets VALUES (?, ?)", (preset.name, body.decode()))

    def empty(self) -> None:
        """Delete all conversations at once and give their room back; presets stay."""
        self._db.executescript(
            "BEGIN IMMEDIATE; DELETE FROM words; DELETE FROM uses; DELETE FROM attachments; DELETE FROM messages; "
            "DELETE FROM conversations; UPDATE counter SET change = change + 1; COMMIT; VACUUM;"
        )
        self.horizon = self.change_number()

    @contextmanager
    def _writing(self, now: int, *, more: int = 0, check: bool = True) -> Generator[int]:
        """One change: begins with the next number, and is rolled back by any error. Raises Busy where it is full."""
        if check and self.size() + more > self._limit:
            raise Busy(
                f"the conversations have reached their limit of {self._limit} bytes (conversations.max_bytes); delete "
                "some, or raise it"
            )
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._purge(now)
            yield self._db.execute("UPDATE counter SET change = change + 1 RETURNING change").fetchone()[0]
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:  # a full disk may have ended it already
                self._db.execute("ROLLBACK")

    def _purge(self, now: int) -> None:
        """Drop what nobody can want back."""
        until = (now - UNDO_MS,)
        gone = self._db.execute(
            "SELECT row FROM messages WHERE deleted < ?1 OR conversation IN "
            "(SELECT id FROM conversations WHERE deleted < ?1)",
            until,
        ).fetchall()
        for table, key in (("words", "rowid"), ("uses", "message"), ("messages", "row")):
            self._db.executemany(f"DELETE FROM {table} WHERE {key} = ?", gone)
        purged = self._db.execute("DELETE FROM conversations WHERE deleted < ? RETURNING change", until).fetchall()
        self.horizon = max(self.horizon, *(change for (change,) in purged), 0)
        self._db.execute(
            "DELETE FROM attachments WHERE added < ? "
            "AND NOT EXISTS (SELECT 1 FROM uses WHERE uses.hash = attachments.hash)",
            (now - UNUSED_MS,),
        )

    def _find(self, conversation: str) -> shapes.Conversation:
        row = self._db.execute(
            "SELECT body, change, EXISTS (SELECT 1 FROM messages WHERE conversation = conversations.id AND answering) "
            "FROM conversations WHERE id = ? AND deleted IS NULL",
            (conversation,),
        ).fetchone()
        if row is None:
            raise NotFound(f"there is no conversation '{conversation}'")
        return structs.replace(_conversation(row[0]), change=row[1], answering=bool(row[2]))

    def _messages(self, conversation: str) -> Mapping[str, shapes.MessageNode]:
        rows = self._db.execute("SELECT body FROM messages WHERE conversation = ? AND deleted IS NULL", (conversation,))
        return {message.id: message for message in (_message(body) for (body,) in rows)}

    def _row(self, message: str) -> tuple[int, str, bool] | None:
        return self._db.execute("SELECT row, conversation, answering FROM messages WHERE id = ?", (message,)).fetchone()

    def _save(self, conversation: shapes.Conversation, change: int) -> None:
        kept = msgspec.json.encode(structs.replace(conversation, change=0, answering=False)).decode()
        self._db.execute(
            "INSERT INTO conversations VALUES (?, ?, ?, ?, NULL) ON CONFLICT (id) DO UPDATE SET "
            "change = excluded.change, body = excluded.body, updated = excluded.updated",
            (conversation.id, change, kept, conversation.updated),
        )

    def _store(self, conversation: str, message: tree.StoredMessage, change: int, state: shapes.State = "done") -> None:
        """SQLite itself takes the bytes for text: a large message would keep Python, and so everybody, waiting."""
        (number,) = self._db.execute(
            "INSERT INTO messages (id, conversation, change, body, answering) VALUES (?, ?, ?, CAST(? AS TEXT), ?) "
            "ON CONFLICT (id) DO UPDATE SET conversation = excluded.conversation, change = excluded.change, "
            "body = excluded.body, answering = excluded.answering, partial = NULL RETURNING row",
            (message.id, conversation, change, message.body, state == "answering"),
        ).fetchone()
        self._db.execute("DELETE FROM words WHERE rowid = ?", (number,))
        self._db.execute(
            "INSERT INTO words (rowid, content) VALUES (?, folded(CAST(? AS TEXT)))", (number, message.content)
        )
        self._db.execute("DELETE FROM uses WHERE message = ?", (number,))
        self._db.executemany("INSERT OR IGNORE INTO uses VALUES (?, ?)", [(number, each) for each in message.hashes])
