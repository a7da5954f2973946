"""The protocol of workers, as far as it says what a worker is, and the choice of those that a model can use.

The protocol's few messages that describe a worker (ggml-rpc of llama.cpp b11434, 7.0.0): a request is its number (1
byte), the length of its body (8 bytes) and the body; an answer is a length (8 bytes) and a body. Numbers are
little-endian. The greeting has had the number 14 since there is one, and its answer begins with the version; the
meaning of the other numbers is known for version `KNOWN` alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Sequence

from appliance.core.rpc_workers import Crew, RpcWorker, WorkerDevice
from appliance.errors import ModelFailedToStart

KNOWN = 7  # the major version of the protocol that this module speaks
HELLO, DEVICE_COUNT, DEVICE_MEMORY = 14, 15, 11
CAPABILITIES = bytes(24)  # the greeting's list of transports faster than TCP: none
LONGEST_HELLO = 64  # most bytes of an answer to a greeting: 28 in 7.0.0, 3 in the first versions that had one
MAX_DEVICES = 64
MAX_MEMORY = 1 << 52  # four pebibytes: a device that claims more is not believed
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


Talk = Generator[bytes, bytes, tuple[str, tuple[WorkerDevice, ...]]]


def talk() -> Talk:
    """Ask one worker: yield the bytes to send, empty for none yet, for those that came; return version and devices.

    Raises BadWorkerAnswer. A worker of a version other than `KNOWN` is asked only for its version: equal versions
    understand each other, others may mean something else by a number. It never keeps more than one short answer,
    whatever length the answer claims to have.
    """
    hello = yield from _answer(request(HELLO, CAPABILITIES), 3, LONGEST_HELLO)
    version, devices = ".".join(map(str, hello[:3])), list[WorkerDevice]()
    if hello[0] != KNOWN:
        return version, ()
    (count,) = _COUNT.unpack((yield from _answer(request(DEVICE_COUNT), _COUNT.size)))
    if not 0 < count <= MAX_DEVICES:
        raise BadWorkerAnswer(f"says that it has {count} devices")
    for number in range(count):
        free, total = _MEMORY.unpack((yield from _answer(request(DEVICE_MEMORY, _COUNT.pack(number)), _MEMORY.size)))
        if total > MAX_MEMORY:
            raise BadWorkerAnswer(f"says that a device has {total} bytes of memory")
        devices.append(WorkerDevice(total=total, free=min(free, total)))
    return version, tuple(devices)


def _answer(asked: bytes, least: int, most: int = 0) -> Generator[bytes, bytes, bytes]:
    """Yield what is to be sent, for what comes; return the answer, of ``least`` to ``most`` bytes, once it is here."""
    said = yield asked
    while len(said) < _LENGTH.size:
        said += yield b""
    (length,) = _LENGTH.unpack_from(said)
    if not least <= length <= (most or least):
        expected = f"{least} to {most}" if most else least
        raise BadWorkerAnswer(f"answered with {length} bytes where {expected} belong")
    end = _LENGTH.size + length
    while len(said) < end:
        said += yield b""
    if len(said) > end:
        raise BadWorkerAnswer("says more than it was asked")
    return said[_LENGTH.size :]


def request(number: int, body: bytes = b"") -> bytes:
    """Encode one request."""
    return _REQUEST.pack(number, len(body)) + body
