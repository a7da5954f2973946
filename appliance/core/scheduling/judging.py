"""Judges processes that fall silent at work, and requests under which processes die."""

from __future__ import annotations

from collections.abc import Collection

from appliance.core.config.additions import HangsConfig

REMEMBERED = 600.0
"""Seconds for which a request is remembered that a process died under."""
MOST = 256
"""Such requests; the oldest are forgotten first."""


class Silence:
    """How long nothing worth the name has come from a process that has work.

    Each piece of the answers counts, whichever request it is for. Fewer than ``floor`` bytes are nothing: an engine
    that sends a byte a minute is as good as hung. Call `look` only while the process has work.
    """

    def __init__(self, passed: int, now: float) -> None:
        self.began = now
        self._passed = passed
        self._since = now

    def look(self, passed: int, now: float, floor: int) -> float:
        """Seconds of silence; ``passed`` are the bytes of all its answers so far."""
        # The mark moves only when a whole ``floor`` has come. If every byte counted as life, a slow drip would keep a
        # hung process for ever; a rate between two looks would condemn a process that sends in bursts.
        if passed >= self._passed + floor:
            self.on_progress(passed, now)
        return now - self._since

    def on_progress(self, passed: int, now: float) -> None:
        """It lives."""
        self._passed, self._since = passed, now


def patience(hangs: HangsConfig, *, awaited: bool) -> float:
    """Seconds of silence after which a process is asked whether it lives. ``awaited``: another model waits for room."""
    return min(hangs.after, hangs.awaited) if awaited else hangs.after


class Suspects:
    """Requests under which processes died: one that kills wherever it comes is not sent to a third process.

    A request is *suspected* once a process died while it was under way, and *convicted* when a second one did, whatever
    the seats. That counts for the request itself, which is not sent again. The next one like it is refused from the
    start only if at least one of these processes had nothing else to do: others that were under way by chance are not
    barred for that. A request that has been answered is not suspected any more, so a seat that always breaks convicts
    nobody as long as another one answers.
    """

    def __init__(self) -> None:
        self._deaths: dict[int, list[tuple[float, str, bool]]] = {}

    def __bool__(self) -> bool:
        return bool(self._deaths)

    def died(self, requests: Collection[int], seat: str, now: float) -> dict[int, list[str]]:
        """A process on this seat died under these requests. Return the convicted that no other one can have been, each
        with the seats that are not to blame.
        """
        cleared: dict[int, list[str]] = {}
        for request in requests:
            deaths = [one for one in self._deaths.pop(request, ()) if now < one[0] + REMEMBERED]
            self._deaths[request] = deaths = [*deaths, (now, seat, len(requests) == 1)]
            if self.refuses(request, now):
                cleared[request] = [on for _, on, _ in deaths]
        # A request that kills again was taken out above and put in anew. So the first key is the one not seen for the
        # longest time.
        while len(self._deaths) > MOST:
            del self._deaths[next(iter(self._deaths))]
        return cleared

    def convicted(self, request: int) -> bool:
        """Two processes have died under it."""
        return len(self._deaths.get(request, ())) > 1

    def refuses(self, request: int, now: float) -> bool:
        """It is not to be sent to any process."""
        deaths = [one for one in self._deaths.get(request, ()) if now < one[0] + REMEMBERED]
        return len(deaths) > 1 and any(alone for _, _, alone in deaths)

    def answered(self, request: int) -> None:
        """A process has answered it and lives."""
        self._deaths.pop(request, None)
