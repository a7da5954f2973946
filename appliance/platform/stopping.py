"""The user's signals: those to stop, with the watchdog that ends the process when unwinding hangs, and SIGHUP."""

from __future__ import annotations

import faulthandler
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio

STOP_SIGNALS = (signal.SIGINT, signal.SIGBREAK if sys.platform == "win32" else signal.SIGTERM)
HANGUP = () if sys.platform == "win32" else (signal.SIGHUP,)
"""A terminal or a connection to it was closed. It asks for an orderly end, too, and never for more than that: `upkeep`
puts a reload in its place where there is something to reload, and `nohup` had it ignored before the program began."""
WATCHDOG_MARGIN = 5.0
"""Seconds that unwinding may take after the grace, or after the second signal."""


class StopSignals:
    """The meaning of the user's signals: the first asks for an orderly end, the second for one without waiting."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.at_once = trio.CancelScope()


@contextmanager
def stop_signals(grace: Callable[[], float]) -> Generator[StopSignals]:
    """Turn signals into a `StopSignals` for the length of the block, each with a watchdog that nothing can hold up.

    The handlers are Python's own and not tasks, so that the watchdog is armed even when the event loop is stuck. Once
    an end was asked for, a hang-up is ignored until the process is gone.
    """
    stop = StopSignals()
    token = trio.lowlevel.current_trio_token()
    received = 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received == 1:
            # A signal handler runs between any two instructions of the main thread, and must not touch Trio's state by
            # itself.
            token.run_sync_soon(stop.asked.set)
            _arm_watchdog(grace() + WATCHDOG_MARGIN)
        elif number in HANGUP:
            received -= 1
        elif received == 2:
            token.run_sync_soon(stop.at_once.cancel)
            _arm_watchdog(WATCHDOG_MARGIN)

    heard = (*STOP_SIGNALS, *(each for each in HANGUP if signal.getsignal(each) is not signal.SIG_IGN))
    before = {number: signal.signal(number, on_signal) for number in heard}
    try:
        yield stop
    finally:  # the watchdog stays armed: leaving the interpreter may hang, too
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if received and number in HANGUP else handler)


def _arm_watchdog(seconds: float) -> None:
    """End the process after this time, whatever it does then; its children end with it, as the platform layer promises.

    The timer is C code in a thread of its own, which needs neither the event loop nor the interpreter. It shows where
    every thread is before it calls ``_exit(1)``. The kernel's alarm ends the process a second later (not on Windows):
    it needs neither a thread, where the system has none left, nor a reader of standard error.
    """
    if sys.platform != "win32":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(seconds) + 1)
    try:
        file = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  a program without a console has none
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
    except (OSError, RuntimeError):
        pass  # no descriptor, no thread; an exception here would end the program without its grace


async def on_hangup(act: Callable[[], Awaitable[None]]) -> None:
    """Run ``act`` after every `HANGUP` until cancelled; where there is no such signal it returns at once."""
    if HANGUP:
        signal.signal(HANGUP[0], signal.SIG_IGN)  # the receiver restores this: a late one must not end the program
        with trio.open_signal_receiver(*HANGUP) as signals:
            async for _ in signals:
                await act()
