"""The protocol of workers, as far as it says what a worker is, and the choice of those that a model can use.

The protocol's few messages that describe a worker (ggml-rpc of llama.cpp b11434, 7.0.0): a request is its number (1
byte), the length of its body (8 bytes) and the body; an answer is a length (8 bytes) and a body. Numbers are
little-endian. The greeting has had the number 14 since there is one, and its answer begins with the version; the
meaning of the other numbers is known for version `KNOWN` alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from appliance.core.rpc_workers import Crew, RpcWorker, WorkerDevice
from appliance.errors import ModelFailedToStart

KNOWN = 7
"""The major version of the protocol that this module speaks."""
HELLO, DEVICE_COUNT, DEVICE_MEMORY = 14, 15, 11
CAPABILITIES = bytes(24)
"""The greeting's list of transports faster than TCP: none."""
LONGEST_HELLO = 64
"""Longest answer to a greeting, in bytes; it has 28 in 7.0.0, and had 3 in the first versions with a greeting."""
MAX_DEVICES = 64
MAX_MEMORY = 1 << 52
"""Four pebibytes: a device that claims more is not believed."""
_LENGTH = struct.Struct("<Q")
_REQUEST = struct.Struct("<BQ")
_COUNT = struct.Struct("<I")
_MEMORY = struct.Struct("<QQ")


def agree(build_rpc: str | None, worker: RpcWorker) -> str:
    """Return why this build and this worker cannot work together; empty when they can.

    A worker that has not reported its version is refused for that.
    """
    if build_rpc is None:
        return (
            "the engine has no RPC; install a build that has it ('llama-appliance engines install cpu', or "
            "'python3 llama-builds/build.py'), or choose one with engine:"
        )
    if worker.state != "ready":
        return worker.why
    if worker.version != build_rpc:
        return (
            f"worker {worker.endpoint} has RPC {worker.version}, but the engine here has {build_rpc}; "
            "install the same build on both machines"
        )
    return ""


def choose_workers(
    model_id: str, workers: Sequence[RpcWorker], build_rpc: str | None, fits: Callable[[Sequence[RpcWorker]], bool]
) -> Crew:
    """Choose the workers for a model. If some cannot be used, the model goes without them, provided that it ``fits``.

    Raises ModelFailedToStart, which names them and the remedy.
    """
    refused = {worker.endpoint: why for worker in workers if (why := agree(build_rpc, worker))}
    crew = tuple(worker for worker in workers if worker.endpoint not in refused)
    reasons = tuple(dict.fromkeys(refused.values()))
    if refused and not fits(crew):
        without = ", ".join(refused)
        raise ModelFailedToStart(model_id, f"{'; '.join(reasons)}; it does not fit without {without}")
    return Crew(workers=crew, notes=tuple(f"{why}; the model goes without it" for why in reasons))


class BadWorkerAnswer(Exception):
    """The bytes are not a worker's answer. The message is the end of a sentence that begins with the sender."""


class ProtocolVersion(NamedTuple):
    """A protocol version.

    Operations are sent by number, and any release may change the numbers: equal versions understand each other, others
    may compute something else.
    """

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class Questions:
    """One connection to a worker: bytes from it go into `receive`, and the result goes to it, until it is `done`.

    A worker of a version other than `KNOWN` is asked only for its version.
    """

    def __init__(self) -> None:
        self.version: ProtocolVersion | None = None
        self.devices: list[WorkerDevice] = []
        self.done = False
        self._buffer = bytearray()
        self._talk = self._ask()
        self._request, self._lengths = next(self._talk)

    def begin(self) -> bytes:
        """Return the first bytes to send."""
        return self._request

    def receive(self, data: bytes) -> bytes:
        """Return the bytes to send next; empty: nothing yet, or never again when it is `done`. Raises RpcError.

        It never keeps more than one short answer, whatever length the answer claims to have.
        """
        self._buffer += data
        reply = b""
        if not self.done:
            if (answer := self._answer()) is None:
                return b""
            try:
                self._request, self._lengths = self._talk.send(answer)
                reply = self._request
            except StopIteration:
                self.done = True
        if self._buffer:
            raise BadWorkerAnswer("says more than it was asked")
        return reply

    def _answer(self) -> bytes | None:
        """Return the next answer, once all of it is here."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length not in self._lengths:
            expected = " to ".join(str(end) for end in dict.fromkeys((self._lengths[0], self._lengths[-1])))
            raise BadWorkerAnswer(f"answered with {length} bytes where {expected} belong")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        answer = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return answer

    def _ask(self) -> Generator[tuple[bytes, range], bytes]:
        """Yield each request with the lengths that its answer may have, for the answer."""
        hello = yield request(HELLO, CAPABILITIES), range(len(ProtocolVersion._fields), LONGEST_HELLO + 1)
        self.version = ProtocolVersion(*hello[:3])
        if self.version.major != KNOWN:
            return
        (count,) = _COUNT.unpack((yield request(DEVICE_COUNT), range(_COUNT.size, _COUNT.size + 1)))
        if not 0 < count <= MAX_DEVICES:
            raise BadWorkerAnswer(f"says that it has {count} devices")
        for number in range(count):
            memory = yield request(DEVICE_MEMORY, _COUNT.pack(number)), range(_MEMORY.size, _MEMORY.size + 1)
            free, total = _MEMORY.unpack(memory)
            if total > MAX_MEMORY:
                raise BadWorkerAnswer(f"says that a device has {total} bytes of memory")
            self.devices.append(WorkerDevice(total=total, free=min(free, total)))


def request(number: int, body: bytes = b"") -> bytes:
    """Encode one request."""
    return _REQUEST.pack(number, len(body)) + body
