"""The text of a PDF, for the question that it is attached to. A process of its own reads it (`tools.pdf_process`)."""

from __future__ import annotations

import trio

from appliance.core.parts import decoded
from appliance.errors import BadRequest, Busy
from appliance.platform.children import inherited_env, open_children
from appliance.platform.process import run_to_end
from appliance.tools.pdf_process import MAX_TEXT, SECONDS, Reading, command

LAST = 10.0
"""Seconds beyond its budget that the process gets: to start, and for a page that it has begun."""
MAX_OUTPUT = 8 * MAX_TEXT
"""Bytes; a character takes six of them in JSON at most."""
MAX_WAITING = 4
"""Files that wait for their turn."""
BEGINNING = 1024
"""The bytes at the beginning within which a PDF says that it is one."""

_TURN = trio.CapacityLimiter(1)


async def read_pdf(data: bytes) -> Reading:
    """Return the text of a PDF. Raises BadRequest with the reason why there is none, Busy if too many files wait."""
    if b"%PDF-" not in data[:BEGINNING]:
        raise BadRequest("the file is not a PDF")
    if _TURN.statistics().tasks_waiting >= MAX_WAITING:
        raise Busy("other PDFs are being read; try again in a moment", retry_after=10)
    async with _TURN, open_children() as children:
        try:
            ran = await run_to_end(
                children, command(), inherited_env(), seconds=SECONDS + LAST, stdin=data, most=MAX_OUTPUT
            )
        except OSError as error:
            raise Busy(f"the process that reads PDFs cannot be started: {error}") from None
    if ran.status is None:
        raise BadRequest(f"the PDF cannot be read: it takes longer than {SECONDS + LAST:.0f} s; attach a part of it")
    reading = decoded(Reading, ran.output)
    if reading is None:
        last = ran.errors.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise BadRequest(f"the PDF cannot be read: the process that reads it ended ({last or ran.status})")
    if reading.error:
        raise BadRequest(f"the PDF cannot be read: {reading.error}")
    return reading
