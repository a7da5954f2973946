"""The protocol of workers, as far as it says what a worker is, and the choice of those that a model can use.

The protocol's few messages that describe a worker (ggml-rpc of llama.cpp b11434, 7.0.0): a request is its number (1
byte), the length of its body (8 bytes) and the body; an answer is a length (8 bytes) and a body. Numbers are
little-endian. The greeting has had the number 14 since there is one, and its answer begins with the version; the
meaning of the other numbers is known for version `KNOWN` alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
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
        self._count: int | None = None
        self._buffer = bytearray()

    def begin(self) -> bytes:
        """Return the first bytes to send."""
        return request(HELLO, CAPABILITIES)

    def receive(self, data: bytes) -> bytes:
        """Return the bytes to send next; empty: nothing yet, or never again when it is `done`. Raises RpcError.

        It never keeps more than one short answer, whatever length the answer claims to have.
        """
        self._buffer += data
        answer = None if self.done else self._answer()
        if answer is None and not self.done:
            return b""
        reply = b"" if answer is None else self._understand(answer)
        if self._buffer:
            raise BadWorkerAnswer("says more than it was asked")
        return reply

    def _answer(self) -> bytes | None:
        """Return the next answer, once all of it is here."""
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not self._may_have(length):
            raise BadWorkerAnswer(f"answered with {length} bytes where {self._expected} belong")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        answer = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return answer

    @property
    def _expected(self) -> str:
        if self.version is None:
            return f"3 to {LONGEST_HELLO}"
        return str(_COUNT.size if self._count is None else _MEMORY.size)

    def _may_have(self, length: int) -> bool:
        if self.version is None:
            return len(ProtocolVersion._fields) <= length <= LONGEST_HELLO
        return length == (_COUNT.size if self._count is None else _MEMORY.size)

    def _understand(self, answer: bytes) -> bytes:
        if self.version is None:
            self.version = ProtocolVersion(*answer[:3])
            self.done = self.version.major != KNOWN
            return b"" if self.done else request(DEVICE_COUNT)
        if self._count is None:
            (count,) = _COUNT.unpack(answer)
            if not 0 < count <= MAX_DEVICES:
                raise BadWorkerAnswer(f"says that it has {count} devices")
            self._count = int(count)
        else:
            self.devices.append(_device(answer))
        self.done = len(self.devices) == self._count
        return b"" if self.done else request(DEVICE_MEMORY, _COUNT.pack(len(self.devices)))


def request(number: int, body: bytes = b"") -> bytes:
    """Encode one request."""
    return _REQUEST.pack(number, len(body)) + body


def _device(answer: bytes) -> WorkerDevice:
    free, total = _MEMORY.unpack(answer)
    if total > MAX_MEMORY:
        raise BadWorkerAnswer(f"says that a device has {total} bytes of memory")
    return WorkerDevice(total=total, free=min(free, total))
