"""Keys with revisions on the bus, without I/O: the requests and answers of JetStream behind a bucket, and its watch.

A bucket is a stream that keeps the last message of each subject; a key is a subject in it. Its revision is the number
of that message in the stream. A put may name the revision that it replaces: of two that name the same one, the server
accepts one and refuses the other as `BusConflict`. That alone is proof of a value. What `DIRECT.GET` returns may be
old, since any replica answers.

Records are never deleted by this program. A person's tool may: then the key holds a marker, which is an entry with a
revision as any other, and without bytes. The next put has to name that revision, and not 0.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from appliance.features.pool.core.nats import BusMessage

WRONG_REVISION = (10071, 10164)  # codes of a put that names another revision; the second: while one is under way
NO_LEADER = 10008  # the error code of a cluster without a quorum
EXISTS = 10058  # the error code for a bucket that is there already, with other settings
REVISION_HEADER = "Nats-Expected-Last-Subject-Sequence"
MARKER_HEADER = "KV-Operation"
MOST_BYTES = 16 << 20  # Bytes of a bucket. A pool's facts are a few kilobytes; the limit guards the disk against a bug.
HEARTBEAT = 1.0  # seconds between two signs of life of a watch in which nothing changes
FORGOTTEN = 10.0  # seconds after which the server forgets a watch that nobody listens to
NANO = 1_000_000_000
UNSAFE = re.compile(rb"[^A-Za-z0-9_/-]")


class BusError(Exception):
    """A request on the bus did not succeed. Its subclasses say whether anything was done."""


class BusLost(BusError):
    """The connection ended, or there was none. It is UNKNOWN whether the request was carried out."""


class BusTimeout(BusError):
    """No answer came in time. It is UNKNOWN whether the request was carried out."""


class NoResponders(BusError):
    """No client listens on the subject, so nothing was done."""


class BusConflict(BusError):
    """The key has another revision than the put names, so nothing was done."""


class BusRefused(BusError):
    """The server refused the request, so nothing was done. ``code`` is JetStream's number of the error, or 0."""

    def __init__(self, words: str, code: int = 0) -> None:
        super().__init__(words)
        self.code = code


class BucketEntry(Struct, frozen=True, kw_only=True):
    """A key's value. A marker has no bytes (see the head of this file)."""

    value: bytes
    revision: int


def as_word(name: str) -> str:
    """Return a name of any characters as one word of a key or subject; two names never give the same word."""
    return UNSAFE.sub(lambda found: b"=%02X" % ord(found[0]), name.encode("utf-8", "surrogatepass")).decode() or "="


def bucket_request(name: str, replicas: int) -> bytes:
    """Return the body of ``STREAM.CREATE.KV_name``. Every field of it is understood by nats-server 2.9 too."""
    return msgspec.json.encode(
        {
            "name": f"KV_{name}",
            "subjects": [f"$KV.{name}.>"],
            "max_msgs_per_subject": 1,
            "storage": "file",
            "num_replicas": replicas,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
            "max_bytes": MOST_BYTES,
            "max_age": 0,
            "retention": "limits",
        }
    )


def watch_request(name: str, consumer: str, inbox: str) -> bytes:
    """Return the body of ``CONSUMER.CREATE``: the last value of each key now, and each change from now on."""
    return msgspec.json.encode(
        {
            "stream_name": f"KV_{name}",
            "config": {
                "name": consumer,
                "deliver_subject": inbox,
                "deliver_policy": "last_per_subject",
                "ack_policy": "none",
                "max_deliver": 1,
                "flow_control": True,
                "idle_heartbeat": int(HEARTBEAT * NANO),
                "mem_storage": True,
                "num_replicas": 1,
                "inactive_threshold": int(FORGOTTEN * NANO),
                "filter_subject": f"$KV.{name}.>",
            },
        }
    )


Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # a box may answer instead of the server, with any number
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


class _ApiError(Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class ApiAnswer(Struct, frozen=True):
    """An answer of JetStream. ``seq``: the revision that a put has made; ``num_pending``: entries of a new watch."""

    error: _ApiError | None = None
    seq: Number = 0
    num_pending: Number = 0


_decode_answer = msgspec.json.Decoder(ApiAnswer).decode


def api_answer(data: bytes) -> ApiAnswer:
    """Understand JetStream's answer. Raises BusConflict, BusRefused."""
    try:
        answer = _decode_answer(data)
    except (msgspec.DecodeError, RecursionError) as cause:
        raise BusRefused(f"the bus gave an answer that cannot be read: {cause}") from None
    if (error := answer.error) is not None:
        if error.err_code in WRONG_REVISION:
            raise BusConflict(error.description)
        raise BusRefused(error.description or f"error {error.err_code}", error.err_code or error.code)
    return answer


def direct_entry(key: str, message: BusMessage) -> BucketEntry | None:
    """Understand the answer of ``DIRECT.GET``; None: there is no such key. Raises BusRefused."""
    if message.status == "404":
        return None
    number = message.headers.get("Nats-Sequence", "")
    if message.status or not _DIGITS.fullmatch(number):
        raise BusRefused(f"the bus does not return '{key}': status {message.status or 'missing'}")
    return _entry(message, int(number))


def _entry(message: BusMessage, revision: int) -> BucketEntry:
    return BucketEntry(value=b"" if MARKER_HEADER in message.headers else message.data, revision=revision)


class Watching:
    """One consumer of a bucket, from its creation to its first gap. Owned by one watch.

    The server numbers the messages of a consumer without a gap, and says the last number in its heartbeats. So a
    message that was lost on the way, even the last one, shows within a heartbeat. A watch with a gap is thrown away and
    begun anew, since the server sends each message once.
    """

    def __init__(self, bucket: str) -> None:
        self._prefix = f"$KV.{bucket}."
        self.entries: dict[str, BucketEntry] = {}  # all keys that are known now
        self._last = 0
        self.broken = False  # True if something is missing. Nothing is taken after that.

    def hear(self, message: BusMessage) -> Literal["changed", "more", "alive", "flow", "broken"]:
        """Take a message.

        "changed": the entries are whole, and differ from before. "more": others come at once. "flow": the server waits
        for an empty message on ``message.reply``.
        """
        if self.broken:
            return "broken"
        if message.status == "100":
            if message.reply:
                return "flow"
            self.broken = message.headers.get("Nats-Last-Consumer", str(self._last)) != str(self._last)
            return "broken" if self.broken else "alive"
        place = _place(message.reply)
        is_next = place is not None and place[1] == self._last + 1
        if place is None or not is_next or message.status or not message.subject.startswith(self._prefix):
            self.broken = True
            return "broken"
        revision, self._last, pending = place
        self.entries[message.subject.removeprefix(self._prefix)] = _entry(message, revision)
        return "more" if pending else "changed"


def _place(reply: str) -> tuple[int, int, int] | None:
    """Return a message's revision, its number in the watch, and how many are still to come.

    They are in ``$JS.ACK.stream.consumer.deliveries.revision.number.time.pending``. Newer servers have two words more
    after ``ACK``, the domain and the account, and may have one more at the end.
    """
    words = reply.split(".")
    if words[:2] != ["$JS", "ACK"] or len(words) < 9 or len(words) == 10:
        return None
    numbers = words[5:9] if len(words) == 9 else words[7:11]
    if not all(_DIGITS.fullmatch(word) for word in numbers):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[3])
