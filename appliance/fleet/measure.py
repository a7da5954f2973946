"""What a running model really takes, set against what was expected of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import trio

from appliance.core.config.types import ModelConfig
from appliance.core.scheduling.policy import NO_MEMORY
from appliance.fleet.terms import in_bytes
from appliance.platform.drivers import Gpus, process_memory

AFTER = 1.0
EVERY = 30.0
"""Seconds after readiness until the first look, and between looks: servers grow while they are used."""


async def keep_measuring(
    pid: int, devices: Callable[[], Collection[str]], gpus: Gpus, tell: Callable[[Mapping[str, int]], None]
) -> None:
    """Look at a ready process, for those devices that count, until cancelled. ``tell`` gets bytes by device."""
    await trio.sleep(AFTER)
    while True:
        if wanted := devices():
            taken = await process_memory(pid, tuple(wanted), gpus)
            await trio.lowlevel.checkpoint_if_cancelled()  # the process may have ended meanwhile
            tell(taken)
        await trio.sleep(EVERY)


def corrected(
    expected: Mapping[str, int],
    config: ModelConfig | None,
    taken: Mapping[str, int],
    buffers: Mapping[str, int] = NO_MEMORY,
) -> Mapping[str, int]:
    """Bytes by device that count from now on.

    The ``buffers`` that the server says it has allocated replace what was expected of it. What was measured counts
    where it is more: weights that are read from the file on demand are not resident yet, and caches grow. Nothing goes
    below what the configuration says: of a server in a container only the client can be seen; and of a configured one
    that says nothing, what is measured is all that is known.
    """
    if config is not None:
        least: Mapping[str, int] = in_bytes(config.memory)
    else:
        least = NO_MEMORY if buffers else expected
    known = {d: max(taken.get(d, 0), buffers.get(d, 0), least.get(d, 0)) for d in {**taken, **buffers}}
    return {**(NO_MEMORY if buffers and config is None else expected), **known}
