"""The decisions of downloads: the name that a request may download by, and the speed of a download.

The meaning of a name, and the files that it selects, are in `core.models.download`.
"""

from __future__ import annotations

from collections import deque

from msgspec import structs

from appliance.core.config.types import Config
from appliance.core.models.download import WantedModel, read_wanted

PACE_WINDOW = 10.0
PACE_STEP = 0.5  # seconds between two notes of a download's bytes


def wanted_by_name(name: str, config: Config) -> WantedModel | None:
    """Return the download that a request for this name begins, if the configuration lets it begin one."""
    if config.auto_download not in ("allow", "ask") or (wanted := read_wanted(name)) is None:
        return None
    owner = wanted.reference.repo.partition("/")[0].casefold()
    if config.auto_download_from and owner not in {allowed.casefold() for allowed in config.auto_download_from}:
        return None
    return structs.replace(wanted, most=int(config.auto_download_max))


def how_to_get(name: str, config: Config) -> str:
    """Return the advice for a model that is not here and that no request may fetch; empty for no name of the hub."""
    wanted = read_wanted(name)
    if wanted is None:
        return ""
    pull = f"'llama-appliance pull {wanted}' downloads it"
    if config.auto_download in ("allow", "ask"):
        owners = ", ".join(config.auto_download_from)
        return f"; requests may only download models of {owners} (autoDownloadFrom), but {pull}"
    return f"; {pull}, or set 'autoDownload: allow' so that requests do"


class DownloadPace:
    """The speed of one download: that of the last `PACE_WINDOW` seconds, so that it follows a change."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, done: int, now: float) -> None:
        """Note the bytes that are here. Fewer than before: it was begun anew."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        if not self._seen or now - self._seen[-1][0] >= PACE_STEP:
            self._seen.append((now, done))

    def rate(self, done: int, now: float) -> float | None:
        """Return bytes per second; None until there is something to measure."""
        while len(self._seen) > 1 and self._seen[1][0] <= now - PACE_WINDOW:
            self._seen.popleft()
        if not self._seen or now - self._seen[0][0] < PACE_STEP:
            return None
        since, before = self._seen[0]
        return max(0, done - before) / (now - since)
