"""The facts that the icon shows, between the program that changes them and the system's way to show an icon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from appliance.features.desktop.rules import Action, TrayState
from appliance.trio_parts import Changed

Act = Callable[[Action], Awaitable[None]]  # does what the user has asked for, without waiting for its end


class Board:
    """The facts that the icon shows. ``revision`` counts their changes."""

    def __init__(self, facts: TrayState) -> None:
        self.facts = facts
        self.revision = 0
        self._changed = Changed()

    def show(self, facts: TrayState) -> None:
        """Show these facts from now on."""
        if facts != self.facts:
            self.facts = facts
            self.revision += 1
            self._changed.wake()

    async def change_since(self, revision: int) -> int:
        """Return the present revision, once it is another than this one."""
        while self.revision == revision:
            await self._changed.wait()
        return self.revision
