"""The language of the doors: paths, and the shapes of what boxes say there."""

from __future__ import annotations

from msgspec import Struct

from appliance.features.pool.core.roster import Box, Roster

PROTOCOL = 1  # a box refuses one that speaks another, and tells it to upgrade the older one
ROSTER, SECRET, JOIN = "/pool/roster", "/pool/secret", "/pool/join"
MAX_MESSAGE = 1 << 20  # bytes of a body or an answer; a roster has less (`roster.LARGEST`)


class JoinRequest(Struct, frozen=True, kw_only=True):
    """Body of ``POST /pool/join``; it needs no key, only the token of a code."""

    token: bytes
    box: Box
    protocol: int = PROTOCOL


class NewSecret(Struct, frozen=True, kw_only=True):
    """The answer to a box that has joined, and the body of ``POST /pool/secret``."""

    secret: bytes
    roster: Roster
