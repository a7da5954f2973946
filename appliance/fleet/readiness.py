"""Learning from outside when a server is ready: a GET that is answered with 200."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from appliance.errors import Busy, UpstreamFailed
from appliance.upstream.client import Address, Exchange

FIRST_LOOK = 0.005
PAUSE = 0.007
"""Seconds between two looks, and so the longest that a ready process waits for nothing..."""
PATIENT_PAUSE = 0.001
"""... or this part of the time that it has loaded for, if that is longer: nobody notices it, and servers log less."""
LOOK_TIME = 0.5
"""Seconds after which a look without an answer gets company: one that is never answered must not hide the next."""


FOREIGN = (
    "port {port} is held by {holder}, and not by the process of the model's command or one that it has started; stop "
    "the other program, change startPort or the port, or set compat.foreignPort if the command starts a container or "
    "a service"
)

log = logging.getLogger(__name__)


async def unanswered(address: Address, path: str, seconds: float) -> str:
    """Ask a server that is ready whether it lives: any answer will do. Return why there was none; empty: it lives."""
    with trio.move_on_after(seconds):
        try:
            async with Exchange(address, "GET", path):
                return ""
        except Busy:
            return ""  # this program has no descriptor left, which says nothing of the server
        except UpstreamFailed as cause:
            return f"GET {path} was not answered: {cause.why}"
    return f"GET {path} was not answered within {seconds:g} s"


class Readiness:
    """Looks at one server until it is ready. ``last`` says what the latest finished look saw, for an error message."""

    def __init__(self, address: Address, path: str, foreign: Callable[[], Awaitable[str | None]] | None = None) -> None:
        """``foreign`` tells who has answered in place of the server itself, None where nobody has."""
        self.last = ""
        self._foreign = foreign
        self._warned = False
        self._address = address
        self._path = path
        self._ready = trio.Event()

    async def wait(self) -> None:
        """Return when the server has answered 200.

        A server may answer slowly as well as swallow what it is asked before it is ready. So the first look that takes
        long is left to itself for as long as it takes, and the others, each of which gets `LOOK_TIME`, go on beside it.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_again_and_again, nursery)
            await self._ready.wait()
            nursery.cancel_scope.cancel()

    async def _look_again_and_again(self, nursery: trio.Nursery) -> None:
        began = trio.current_time()
        pause = FIRST_LOOK
        patient: trio.Event | None = None
        while True:
            await trio.sleep(pause)
            pause = max(PAUSE, (trio.current_time() - began) * PATIENT_PAUSE)
            answered, scope = trio.Event(), trio.CancelScope()
            nursery.start_soon(self._look, answered, scope)
            with trio.move_on_after(LOOK_TIME):
                await answered.wait()
            if answered.is_set():
                continue
            if patient is None or patient.is_set():
                patient = answered
            else:
                scope.cancel()

    async def _look(self, answered: trio.Event, scope: trio.CancelScope) -> None:
        self.last = self.last or f"GET {self._path} was not answered"
        with scope:
            try:
                async with Exchange(self._address, "GET", self._path) as response:
                    if response.status == 200 and await self._is_foreign():
                        return
                    self.last = f"GET {self._path} was answered with status {response.status}"
                    if response.status == 200:
                        self._ready.set()
            except (UpstreamFailed, Busy) as cause:  # not listening yet, or no descriptor left to ask with
                self.last = cause.why if isinstance(cause, UpstreamFailed) else str(cause)
            finally:
                answered.set()
        if scope.cancelled_caught:
            self.last = f"GET {self._path} was not answered"

    async def _is_foreign(self) -> bool:
        """Whether another program has the server's port, which is told at once."""
        if self._foreign is None or (holder := await self._foreign()) is None:
            return False
        self.last = FOREIGN.format(port=self._address.port, holder=holder)
        if not self._warned:
            self._warned = True
            log.warning("model '%s' is not used: %s", self._address.label, self.last)
        return True
