"""read_file, write_file and edit_file."""

from __future__ import annotations

import base64
from functools import partial

import trio

from appliance.core.tools.specs import EditFile, ReadFile, WriteFile
from appliance.core.tools.texts import MAX_OUTPUT, EditProblem, LineWindow, apply_edits
from appliance.core.tools.tool import ToolOutcome
from appliance.core.units import MIB
from appliance.tools.outcomes import answer, failed, said
from appliance.tools.place import Place, TooLarge

MAX_BASE64 = 32 * MIB
"""llama-server's (b11434)."""
MAX_EDITED = 32 * MIB
_EDITING = trio.CapacityLimiter(2)
"""Looking for many pieces in a large file takes seconds; nobody else should wait for that."""


async def read_file(place: Place, asked: ReadFile, *, as_base64: bool) -> ToolOutcome:
    if as_base64:
        return await _read_base64(place, asked.path)
    whole = asked.end_line == -1
    window = LineWindow(asked.start_line, None if whole else max(asked.end_line, 0), numbered=asked.append_loc)

    def take(data: bytes) -> bool:
        window.feed(data)
        return not window.full

    try:
        await place.read(asked.path, take, limit=MAX_OUTPUT if whole else None)
    except TooLarge as error:
        return failed(
            f"file too large ({error.size} bytes, max {MAX_OUTPUT}); name start_line and end_line to read a part of it"
        )
    return said(window.text())


async def _read_base64(place: Place, path: str) -> ToolOutcome:
    try:
        content = await _whole(place, path, MAX_BASE64)
    except TooLarge as error:
        return failed(f"file too large ({error.size} bytes, max {MAX_BASE64})")
    encoded = base64.b64encode(content).decode("ascii")
    return answer({"base64": encoded, "size_bytes": len(content)}, f"{len(content)} bytes in base64: {encoded}")


async def write_file(place: Place, asked: WriteFile) -> ToolOutcome:
    content = asked.content.encode()
    await place.write(asked.path, content)
    result = {"result": "file written successfully", "path": asked.path, "bytes": len(content)}
    return answer(result, f"file written successfully: {asked.path}, {len(content)} bytes")


async def edit_file(place: Place, asked: EditFile) -> ToolOutcome:
    """Bytes in the file that are not UTF-8 stay as they are."""
    try:
        before = (await _whole(place, asked.path, MAX_EDITED)).decode("utf-8", "surrogateescape")
        after = await trio.to_thread.run_sync(
            partial(apply_edits, before, asked.edits), abandon_on_cancel=True, limiter=_EDITING
        )
    except TooLarge as error:
        return failed(f"file too large to edit ({error.size} bytes, max {MAX_EDITED})")
    except EditProblem as error:
        return failed(f"{asked.path}: {error}")
    await place.write(asked.path, after.encode("utf-8", "surrogateescape"))
    count = len(asked.edits)
    result = {"result": "file edited successfully", "path": asked.path, "edits_applied": count}
    return answer(result, f"file edited successfully: {asked.path}, edits applied: {count}")


async def _whole(place: Place, path: str, limit: int) -> bytes:
    """Raises TooLarge, also for a file that grows while it is read."""
    content = bytearray()

    def take(data: bytes) -> bool:
        content.extend(data)
        return len(content) <= limit

    await place.read(path, take, limit=limit)
    if len(content) > limit:
        raise TooLarge(len(content))
    return bytes(content)
