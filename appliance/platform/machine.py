"""This system's own module, `here`, which describes the machine; and a watch for times when the machine was asleep."""

from __future__ import annotations

import sys
from collections.abc import Callable

if sys.platform == "darwin":
    from appliance.platform import machine_macos as here
elif sys.platform == "win32":
    from appliance.platform import machine_windows as here
else:
    from appliance.platform import machine_linux as here

__all__ = ["SLEPT", "Suspends", "here"]

SLEPT = 5.0
"""Seconds by which the clocks must differ: a smaller difference is a corrected clock."""

Clock = Callable[[], float]


class Suspends:
    """Knows whether the machine was asleep since the last question (or since it was made)."""

    def __init__(self, running: Clock = here.without_sleep, always: Clock = here.with_sleep) -> None:
        self._running, self._always = running, always
        self._behind = always() - running()

    def happened(self) -> bool:
        """True if it was asleep for `SLEPT` seconds or more. A wall clock that was set forward looks the same."""
        before, self._behind = self._behind, self._always() - self._running()
        return self._behind - before >= SLEPT
