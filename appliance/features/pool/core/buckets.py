"""Keys with revisions on the bus, without I/O: the requests and answers of JetStream behind a bucket.

A bucket is a stream that keeps the last message of each subject; a key is a subject in it. Its revision is the number
of that message in the stream. A put may name the revision that it replaces: of two that name the same one, the server
accepts one and refuses the other as `BusConflict`. That alone is proof of a value. What `DIRECT.GET` returns may be
old, since any replica answers.

Records are never deleted by this program. A person's tool may: then the key holds a marker, which is an entry with a
revision as any other, and without bytes. The next put has to name that revision, and not 0.
"""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from appliance.features.pool.core.nats import BusMessage

WRONG_REVISION = (10071, 10164)  # codes of a put that names another revision; the second: while one is under way
NO_LEADER = 10008  # the error code of a cluster without a quorum
EXISTS = 10058  # the error code for a bucket that is there already, with other settings
REVISION_HEADER = "Nats-Expected-Last-Subject-Sequence"
MARKER_HEADER = "KV-Operation"
MOST_BYTES = 16 << 20  # Bytes of a bucket. A pool's facts are a few kilobytes; the limit guards the disk against a bug.
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
        }
    )


Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]  # a box may answer instead of the server, with any number
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


class _ApiError(Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _ApiAnswer(Struct, frozen=True):
    error: _ApiError | None = None
    seq: Number = 0


def api_answer(data: bytes) -> int:
    """Return the revision that a put has made, 0 for another request. Raises BusConflict, BusRefused."""
    try:
        answer = msgspec.json.decode(data, type=_ApiAnswer)
    except (msgspec.DecodeError, RecursionError) as cause:
        raise BusRefused(f"the bus gave an answer that cannot be read: {cause}") from None
    if (error := answer.error) is not None:
        if error.err_code in WRONG_REVISION:
            raise BusConflict(error.description)
        raise BusRefused(error.description or f"error {error.err_code}", error.err_code or error.code)
    return answer.seq


def direct_entry(key: str, message: BusMessage) -> BucketEntry | None:
    """Understand the answer of ``DIRECT.GET``; None: there is no such key. Raises BusRefused."""
    if message.status == "404":
        return None
    number = message.headers.get("Nats-Sequence", "")
    if message.status or not _DIGITS.fullmatch(number):
        raise BusRefused(f"the bus does not return '{key}': status {message.status or 'missing'}")
    return BucketEntry(value=b"" if MARKER_HEADER in message.headers else message.data, revision=int(number))
