"""The profile that is active now: its pins change what names mean. Kept in memory alone."""

from __future__ import annotations

from appliance.trio_parts import Changed


class ActiveProfile:
    """At most one profile of the configuration, none at the start."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._changed = Changed()

    @property
    def name(self) -> str | None:
        return self._name

    def choose(self, name: str | None) -> None:
        """Make this profile the active one, or none. The caller has checked that the configuration has it."""
        if name == self._name:
            return
        self._name = name
        self._changed.wake()

    async def wait_changed(self) -> None:
        await self._changed.wait()
