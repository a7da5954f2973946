"""Files of strangers, read apart: by a process with bounded time and memory (`file_process`), one at a time.

The time and memory that a file costs are that process's. The server passes its bytes on and holds the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager

import trio

from appliance.core.capped_output import CappedOutput
from appliance.core.lenient_json import decoded
from appliance.errors import BadRequest, Busy
from appliance.features.conversations import file_process
from appliance.features.conversations.file_process import HEAD, SECONDS, UNREAD, ZIP, FileVerdict, Task
from appliance.http.bytes.body import Bodies
from appliance.platform.children import inherited_env, open_children, own_process
from appliance.platform.process import Command, into, run

LAST = 10.0
"""Seconds beyond its budget that the process gets for a document: to start, and for a page that it has begun."""
PATIENCE = 120.0  # seconds for a file of conversations; one of 100 MB takes four
MAX_DOCUMENT = 16 << 20  # bytes; larger files cannot be attached
MAX_WAITING = 4  # files that wait for their turn
MAX_ERRORS = 1 << 16
BEGINNING = 1024  # the bytes at the beginning within which a PDF says that it is one
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""The beginning of what Word wrote until 2003, and of what it encrypts today (MS-OFFCRYPTO)."""

Room = Callable[[int], None]  # Reserves room for so many more bytes. Raises Busy.

_TURN = trio.CapacityLimiter(1)


@contextmanager
def room_in(bodies: Bodies) -> Generator[Room]:
    """Count what is held in the block against the budget of all bodies."""
    held = 0

    def take(size: int) -> None:
        nonlocal held
        bodies.reserve(size)
        held += size

    try:
        yield take
    finally:
        bodies.release(held)


class ApartOutput:
    """The output of the process, in the pieces in which it came. A piece that is taken is held no longer."""

    def __init__(self, room: Room) -> None:
        self.refused: Busy | None = None
        self.size = 0  # bytes that are left
        self._room = room
        self._pieces: deque[bytes | memoryview] = deque()

    async def __call__(self, piece: bytes) -> bool:
        """A `Sink`."""
        try:
            self._room(len(piece))
        except Busy as error:
            self.refused = error
            return False
        self._pieces.append(piece)
        self.size += len(piece)
        return True

    def take(self, size: int) -> bytes:
        """Return the next so many bytes, fewer at the end."""
        taken: list[memoryview] = []
        while size and self._pieces:
            piece = memoryview(self._pieces.popleft())
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
            taken.append(piece[:size])
            size -= len(taken[-1])
        found = b"".join(taken)
        self.size -= len(found)
        return found

    def next(self) -> bytes:
        """Return the next piece, whatever its size; none at the end."""
        return self.take(len(self._pieces[0])) if self._pieces else b""


async def read_apart(task: Task, data: bytes, room: Room) -> tuple[str, ApartOutput]:
    """Have a file read, or made: the name of the result, and its bytes.

    Raises BadRequest with the reason why there is none, Busy if too many files wait, or the result has no room.
    """
    seconds = PATIENCE
    if task == "document":
        seconds = SECONDS + LAST
        if data.startswith(OLE):
            raise BadRequest("the file is of an older Word, or asks for a password; save it as .docx, without one")
        if not data.startswith(ZIP) and b"%PDF-" not in data[:BEGINNING]:
            raise BadRequest("the file is not a PDF, nor a Word document (.docx)")
    if _TURN.statistics().tasks_waiting >= MAX_WAITING:
        raise Busy("other files are being read; try again in a moment", retry_after=10)
    output, errors = ApartOutput(room), CappedOutput(MAX_ERRORS)
    asked = Command(argv=own_process(file_process.__name__, task), env=inherited_env(), stdin=data, own_errors=True)
    async with _TURN, open_children() as children:
        try:
            ended = await run(children, asked, output, errors=into(errors), seconds=seconds)
        except OSError as error:
            raise Busy(f"the process that reads files cannot be started: {error}") from None
    if output.refused is not None:
        raise output.refused
    if ended.timed_out or ended.status is None:
        raise BadRequest(f"{UNREAD} that takes longer than {seconds:.0f} s; take a part of it")
    verdict = decoded(FileVerdict, output.take(int.from_bytes(output.take(HEAD))))
    if verdict is None:
        last = errors.text().strip().rpartition("\n")[2][:200]
        raise BadRequest(f"{UNREAD} the process that reads it ended ({last or ended.status})")
    if verdict.error:
        raise BadRequest(verdict.error, param=verdict.param)
    return verdict.name, output
