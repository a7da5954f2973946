"""The one way in which tests wait: for a fact, with a deadline, and with words about it when it does not come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

import trio

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds. It only bounds a failure, so it is far more than any fact takes on a busy machine."""
SOON = 5.0
"""Seconds for what happens at once, on a busy machine. The thing that it must not wait for takes far longer."""
LOOK_EVERY = 0.01
SELDOM = 0.05
"""Seconds between two looks, at first and later: what takes long is not asked about all the time."""


async def until(
    look: Callable[[], T | Awaitable[T]],
    is_so: Callable[[T], object] = bool,
    *,
    within: float = PATIENCE,
    changed: Callable[[], Awaitable[object]] | None = None,
    told: Callable[[], object] = str,
) -> T:
    """Look until what is found ``is_so``, and return it. After ``within`` seconds the test fails, with what is `told`.

    ``changed`` waits for the next moment at which it may be so; without it, this looks again and again.
    """
    found: object = None
    pause = LOOK_EVERY
    with trio.move_on_after(within):
        while True:
            found = look()
            if isawaitable(found):
                found = await found
            if is_so(found):
                return found
            if changed is not None:
                await changed()
            else:
                await trio.sleep(pause)
                pause = min(1.1 * pause, SELDOM)
    raise AssertionError(_words(found, within, told))


def wait(
    look: Callable[[], T],
    is_so: Callable[[T], object] = bool,
    *,
    within: float = PATIENCE,
    told: Callable[[], object] = str,
) -> T:
    """The same without Trio: nothing else runs in this thread meanwhile."""
    deadline, pause = time.monotonic() + within, LOOK_EVERY
    while not is_so(found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(_words(found, within, told))
        time.sleep(pause)
        pause = min(1.1 * pause, SELDOM)
    return found


def _words(found: object, within: float, told: Callable[[], object]) -> str:
    return f"not so within {within:g} s: {found!r}\n{told()}".rstrip()
