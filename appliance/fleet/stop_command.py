"""A model's own command to stop it (llama-swap's ``cmdStop``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from appliance.fleet.output import read_lines, text_of
from appliance.platform.children import REAP_TIME, Children, describe_status

OUTPUT_GRACE = 1.0
"""Seconds that its output may be held open by something it left behind."""


async def run_stop_command(
    children: Children, argv: Sequence[str], env: Mapping[str, str], log: Callable[[str], None]
) -> bool:
    """Run it to its end, its output into the log; False when it fails. Cancelling kills it with all it has started."""
    try:
        child = await children.spawn(argv, env)
    except (OSError, ValueError) as error:
        log(f"cmdStop cannot be run: {error}")
        return False
    status: int | None = None

    def take(line: bytes) -> None:
        log(text_of(line))

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_lines, child.output, take)
            await child.stdin.aclose()  # there is nobody to type
            status = await child.wait()
            nursery.cancel_scope.deadline = trio.current_time() + OUTPUT_GRACE
    finally:
        with trio.move_on_after(REAP_TIME, shield=True):
            if status is None:
                log("cmdStop has not ended in time, and is killed")
                child.kill()
                await child.wait()
            await child.stdin.aclose()
            await child.output.aclose()
    if status:
        log(f"cmdStop ended with {describe_status(status)}; stopping the process itself")
    return status == 0
