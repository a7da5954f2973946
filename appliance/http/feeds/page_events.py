"""``GET /api/conversations/events``: the page's one event connection, with models and conversations."""

from __future__ import annotations

import msgspec

from appliance.conversations.owner import Conversations
from appliance.core.bodies.sse import Event, encode
from appliance.http.control.model_routes import ModelEvent, ModelFeed
from appliance.http.owners import Owners
from appliance.traffic.traffic import Lifetime


class _Changed(ModelEvent, frozen=True, omit_defaults=True):
    """``conversation_changed``; without a ``conversation`` anything may have changed."""

    conversation: str | None = None


class PageFeed(ModelFeed):
    """The records of a `ModelFeed`, and one for each change of a conversation, within its look at models."""

    def __init__(self, owners: Owners, lifetime: Lifetime) -> None:
        super().__init__(owners.fleet, owners.catalog, owners.downloads, lifetime, everything=True, readme=False)
        self._conversations: Conversations = owners.conversations
        self._told = self._conversations.latest
        self._greeted = False

    def _collect(self) -> bytes:
        records = super()._collect()
        if not self._greeted:  # a proxy passes an answer's head on with its first bytes
            self._greeted, records = True, records or b": hello\n\n"
        changes = self._conversations.changes_since(self._told)
        self._told = self._conversations.latest
        names = dict.fromkeys(change.conversation for change in changes)
        told = (_Changed("", "conversation_changed", conversation=name) for name in names)
        return records + b"".join(encode(Event(msgspec.json.encode(each).decode())) for each in told)
