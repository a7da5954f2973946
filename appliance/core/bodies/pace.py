"""The speed at which a client has to send a body, and to take an answer."""

from __future__ import annotations

from appliance.core.sizes import KIB

LEAST_RATE = KIB
"""Bytes a second; a client that sends or takes one now and then would hold the rest for ever."""


class Pace:
    """The seconds that a client is behind `LEAST_RATE`: a leaky bucket that never runs below empty.

    Every second of waiting for it adds one, every `LEAST_RATE` bytes take one away. A client that stays below some
    limit of seconds has passed, in every stretch of waiting, at least what the rate wants of the stretch without that
    limit. An average from the beginning would not do: much at once would pay for hours of nearly nothing.
    """

    __slots__ = ("behind",)

    def __init__(self) -> None:
        self.behind = 0.0

    def passed(self, seconds: float, size: int) -> None:
        """So many bytes came, or were taken, after waiting for so long."""
        self.behind = max(0.0, self.behind + seconds - size / LEAST_RATE)
