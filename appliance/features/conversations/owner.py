"""The owner of the conversations: its store in a thread, the news for readers, and the answers under way.

The page writes an empty answer first (state ``answering``), and then asks the model with the message's id as
``X-Conversation-Id``. The generation of that id is read here, too, and its end is written into the message. So an
answer is complete whether or not a page is open, and an answer cut short by the program's end says so.

This is the only room that changes a conversation. It refuses to ask models: it reads what a generation says, no matter
which client asked for it.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trio
from msgspec import Struct, structs

from appliance.core.openai import error_text
from appliance.errors import ApplianceError, BadRequest, Busy, Forbidden, NotFound, StoreFailed
from appliance.features.conversations import shapes
from appliance.replay.generation import Generation, GenerationEnd
from appliance.trio_parts import Awaited, Changed, persist

if TYPE_CHECKING:
    from appliance.features.conversations.core.files import Arrived
    from appliance.features.conversations.store import ConversationStore

log = logging.getLogger(__name__)

BEGIN_WITHIN = 30.0  # seconds after which an answer that nobody asked a model for has failed
NOTE_EVERY = 2.0  # seconds of an answer that a kill of the program may cost
REMEMBERED = 500  # changes that a reader may miss before it has to read everything again
RETRY = 10.0  # seconds until an answer that could not be written down is written again
LAST_WORDS = 5.0  # seconds that answers get to be written down when the program ends
STOPPED = (GenerationEnd.STOPPED, GenerationEnd.REPLACED)

T = TypeVar("T")


class ConversationChange(Struct, frozen=True):
    """Something of this conversation has changed; None: of all. ``number`` orders the changes of one run."""

    number: int
    conversation: str | None


class Conversations:
    """Made by `open_conversations`. Methods raise Forbidden where no conversations are kept, and what the store raises.

    The file is opened by the first call. Only one call at a time is in the thread, so each is atomic.
    """

    def __init__(self, path: Path | None, limit: int, nursery: trio.Nursery) -> None:
        self.enabled = path is not None
        self.news = Changed()
        self._path = path
        self._limit = limit
        self._nursery = nursery
        self._turn = trio.CapacityLimiter(1)
        self._store: ConversationStore | None = None
        self._opening = trio.Lock()
        self._changes: deque[ConversationChange] = deque(maxlen=REMEMBERED)
        self.latest = 0  # the number of the newest change
        self._generations: dict[str, Generation] = {}
        self._awaited: dict[str, Awaited[Generation]] = {}  # until they are here, by the ids of their answers
        self._under_way: set[str] = set()  # ids of answers that a task writes down

    def changes_since(self, number: int) -> list[ConversationChange]:
        """The changes after ``number``; one change of everything if those are not known any more."""
        if self.latest - number > len(self._changes):
            return [ConversationChange(self.latest, None)]
        return [change for change in self._changes if change.number > number]

    async def list(self, since: int = 0) -> shapes.ConversationListing:
        """All of them, or what is different after the change ``since``, as far as the store can tell."""
        if not self.enabled:
            return shapes.ConversationListing(enabled=False)

        def read(store: ConversationStore) -> shapes.ConversationListing:
            newest = store.change_number()
            known = since if store.horizon <= since <= newest else 0
            return shapes.ConversationListing(
                enabled=True, change=newest, since=known, conversations=tuple(store.list(known)),
                deleted=tuple(store.deleted(_now(), known)), presets=store.presets(known), bytes=store.size(),
                limit=self._limit,
            )  # fmt: skip

        return await self._do(read)

    async def read(self, conversation: str, since: int = 0) -> shapes.Whole:
        return await self._do(lambda store: store.read(conversation, since))

    async def search(self, text: str) -> list[shapes.Hit]:
        return await self._do(lambda store: store.search(text))

    async def attachment(self, digest: str) -> tuple[str, bytes]:
        return await self._do(lambda store: store.attachment(digest))

    async def change(self, conversation: str, fields: shapes.Fields) -> shapes.Conversation:
        changed = await self._do(lambda store: store.change(conversation, fields, _now()))
        self._note_change(conversation)
        return changed

    async def write(self, conversation: str, message: shapes.MessageNode) -> shapes.WrittenMessage:
        """Store a message, and follow the generation of its id if it is an answer under way."""
        done = await self._do(lambda store: store.write(conversation, message, secrets.token_hex(16), _now()))
        self._note_change(conversation)
        if done.message.state == "answering":
            self._expect(done.message)
        return done

    async def delete(self, *conversations: str) -> list[str]:
        """Delete them at once; the ids of those that were there."""
        gone = await self._do(lambda store: store.delete(conversations, _now()))
        self._note_changes(gone)
        return gone

    async def restore(self, *conversations: str) -> None:
        await self._do(lambda store: store.restore(conversations, _now()))
        self._note_changes(conversations)

    async def delete_message(self, conversation: str, message: str, *, alone: bool = False) -> shapes.Removed:
        gone = await self._do(lambda store: store.delete_message(conversation, message, _now(), alone=alone))
        self._note_change(conversation)
        return gone

    async def restore_messages(
        self, conversation: str, ids: list[str], leaf: str | None, moved: Sequence[str] = ()
    ) -> None:
        await self._do(lambda store: store.restore_messages(conversation, ids, leaf, _now(), moved))
        self._note_change(conversation)

    async def attach(self, kind: str, data: bytes) -> str:
        """Store a file's content under its hash, once."""
        if not data:
            raise BadRequest("the attachment is empty")
        digest = await trio.to_thread.run_sync(lambda: hashlib.sha256(data).hexdigest())
        await self._do(lambda store: store.attach(digest, kind, data, _now()))
        return digest

    async def fork(self, conversation: str, message: str) -> shapes.Conversation:
        """A conversation of its own out of the branch that ends with this message."""
        from appliance.features.conversations.core.tree import copied, path_to, stored

        def fork(store: ConversationStore) -> shapes.Conversation:
            whole = store.read(conversation)
            known = {each.id: each for each in whole.messages}
            path = path_to({each.id: each.parent for each in whole.messages}, message)
            if not path:
                raise NotFound(f"there is no message '{message}' in this conversation")
            ids = {old: secrets.token_hex(16) for old in path}
            now = _now()
            made = structs.replace(
                whole.conversation, id=secrets.token_hex(16), created=now, updated=now, leaf=ids[message], pinned=False,
                draft="",
            )  # fmt: skip
            store.add(made, map(stored, copied([known[each] for each in path], ids)), now)
            return made

        made = await self._do(fork)
        self._note_change(made.id)
        return made

    async def add(self, found: Iterator[Arrived]) -> tuple[list[str], list[str]]:
        """Add conversations of a file, each in a turn of its own: the ids of those added, and of those here before."""
        added: list[str] = []
        skipped: list[str] = []

        def add(store: ConversationStore) -> bool:
            one, now = next(found, None), _now()
            if one is None:
                return False
            for kind, data in one.files:
                store.attach(hashlib.sha256(data).hexdigest(), kind, data, now)
            (added if store.add(one.conversation, one.messages, now) else skipped).append(one.conversation.id)
            return True

        try:
            while await self._do(add):
                pass
        finally:
            self._note_change(None)
        return added, skipped

    async def set_preset(self, preset: shapes.StoredPreset) -> None:
        await self._do(lambda store: store.set_preset(preset, _now()))
        self._note_change(None)

    async def empty(self) -> None:
        """Delete all conversations at once, for good."""
        await self._do(lambda store: store.empty())
        self._note_change(None)

    def begun(self, generation: Generation) -> None:
        """Take notice of a generation, at the moment in which its work begins."""
        self._generations[generation.conversation] = generation
        if (awaited := self._awaited.pop(generation.conversation, None)) is not None:
            awaited.give(generation)

    def forget(self, generation: Generation) -> None:
        if self._generations.get(generation.conversation) is generation:
            del self._generations[generation.conversation]

    def _expect(self, message: shapes.MessageNode, generation: Generation | None = None) -> None:
        if message.id not in self._under_way:
            self._under_way.add(message.id)
            awaited = self._awaited[message.id] = Awaited[Generation]()
            if generation is not None:
                self.begun(generation)
            self._nursery.start_soon(self._write_down, message, awaited)

    async def _write_down(self, message: shapes.MessageNode, awaited: Awaited[Generation]) -> None:
        """Follow an answer from the request for it to its end. Cancelled only at the end of the program."""
        ended = structs.replace(message, state="interrupted")
        try:
            generation = None
            with trio.move_on_after(BEGIN_WITHIN):
                generation = await awaited.get()
            if generation is not None:
                ended = await persist("keeping an answer", partial(self._follow, generation, message))
            else:
                ended = structs.replace(message, state="failed", error="no model was asked for this answer")
            await self._finish(ended)
        except trio.Cancelled:
            with trio.move_on_after(LAST_WORDS, shield=True):
                await self._finish(ended)
            raise
        finally:
            self._under_way.remove(message.id)
            self._awaited.pop(message.id, None)

    async def _follow(self, generation: Generation, message: shapes.MessageNode) -> shapes.MessageNode:
        await generation.wait_begun()
        if generation.head is None:
            return structs.replace(message, state="stopped" if generation.end in STOPPED else "interrupted")
        if not generation.kept:
            await generation.wait_ended()
            why = error_text(generation.refusal) or "the model refused to answer"
            return structs.replace(message, state="failed", error=why)
        from appliance.features.conversations.core.tree import AnswerText

        answer, reader, noted = AnswerText(message), generation.reader(0), trio.current_time()
        while data := await reader.receive():
            answer.feed(data)
            if trio.current_time() >= noted + NOTE_EVERY:
                noted, so_far = trio.current_time(), answer.so_far
                with suppress(ApplianceError):  # its end is written as soon as that is possible
                    await self._do(lambda store, so_far=so_far: store.note(so_far))
        cut = generation.end in (GenerationEnd.SHUT_DOWN, GenerationEnd.BROKEN) or generation.interrupted_at is not None
        cut = cut or reader.overtaken
        return answer.ended(stopped=generation.end in STOPPED, cut=cut)

    async def _finish(self, ended: shapes.MessageNode) -> None:
        """Write an answer down. A disk that is full is tried again until it has room, or the program ends."""
        told = False
        while True:
            try:
                finish = partial(self._do, lambda store: store.finish(ended, _now()))
                conversation = await persist("keeping an answer", finish)
                break
            except ApplianceError as error:
                if not told:
                    log.warning("an answer cannot be written into its conversation: %s", error)
                told = True
                if not isinstance(error, Busy):
                    return
            await trio.sleep(RETRY)
        if conversation is not None:
            self._note_change(conversation)

    def _note_change(self, conversation: str | None) -> None:
        self.latest += 1
        self._changes.append(ConversationChange(self.latest, conversation))
        self.news.wake()

    def _note_changes(self, conversations: Sequence[str]) -> None:
        """Several at once are one change: every reader has to read the list again for each."""
        if conversations:
            self._note_change(conversations[0] if len(conversations) == 1 else None)

    async def _do(self, work: Callable[[ConversationStore], T]) -> T:
        path = self._path
        if path is None:
            raise Forbidden("this server keeps no conversations; start it without --no-conversations")
        import sqlite3  # not at the top: it takes 1.8 MB of a server whose page nobody opens

        try:
            store = await self._open(path)
            return await trio.to_thread.run_sync(work, store, limiter=self._turn)
        except sqlite3.Error as error:
            from appliance.features.conversations.store import failure

            failed = failure(path, error)
            if isinstance(failed, StoreFailed):
                await self.close()  # the next call takes the file that is there then
            raise failed from error

    async def _open(self, path: Path) -> ConversationStore:
        from appliance.features.conversations.store import ConversationStore  # with its rules, not for the start

        async with self._opening:
            if self._store is None:
                store = await trio.to_thread.run_sync(ConversationStore, path, self._limit, limiter=self._turn)
                try:
                    for message, so_far in await trio.to_thread.run_sync(store.answering, limiter=self._turn):
                        if generation := self._generations.get(message.id):  # of an earlier run: its stream is here
                            self._expect(message, generation)
                        else:
                            ended = structs.replace(so_far or message, state="interrupted")
                            await trio.to_thread.run_sync(store.finish, ended, _now(), limiter=self._turn)
                except BaseException:
                    store.close()
                    raise
                self._store = store
        return self._store

    async def close(self) -> None:
        """Close the file, until it is used again."""
        store, self._store = self._store, None
        if store is not None:
            with trio.move_on_after(LAST_WORDS, shield=True):
                await trio.to_thread.run_sync(store.close, limiter=self._turn, abandon_on_cancel=True)


def _now() -> int:
    return int(time.time() * 1000)


@asynccontextmanager
async def open_conversations(path: Path | None, limit: int) -> AsyncGenerator[Conversations]:
    """Own the conversations in this file; None keeps none. Leaving the block waits for answers to be written down."""
    conversations: Conversations | None = None
    try:
        async with trio.open_nursery() as nursery:
            conversations = Conversations(path, limit, nursery)
            yield conversations
            nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS
    finally:
        if conversations is not None:
            await conversations.close()
