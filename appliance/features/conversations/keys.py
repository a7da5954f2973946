"""The keys of the configuration that are this feature's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, structs

from appliance.core.config.additions import FeatureKeys, Section, doc


class ConversationsConfig(Section, frozen=True):
    """The conversations of the page: their texts and files, which the program keeps so that every device has them."""

    enabled: Annotated[bool, doc("Addition: keep the page's conversations on this machine")] = True
    path: Annotated[str, doc("Addition: SQLite file of the conversations; empty: in the program's data folder")] = ""
    max_bytes: Annotated[int, doc("Addition: bytes that they may take together"), Meta(ge=1)] = 2 << 30


class ConversationKeys(FeatureKeys, frozen=True):
    conversations: Annotated[ConversationsConfig, doc("Addition: the conversations of the page")] = (
        ConversationsConfig()
    )

    over_http = (("conversations", "max_bytes"),)

    def for_trial(self, copied: Callable[[str, str], str]) -> ConversationKeys:
        kept = self.conversations
        path = copied(kept.path, "conversations.db") if kept.path else ""
        return ConversationKeys(conversations=structs.replace(kept, path=path))
