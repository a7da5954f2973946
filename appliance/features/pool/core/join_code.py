"""The code that lets one box into a pool: where to ask, whom to believe, and a token that is good for one box.

Its text is ``LAP1-`` and base32 without padding. Case, spaces and hyphens do not count, so it survives a message that
breaks lines, and being typed. A check sum tells a mistyped code from a good one before anything is asked, so that an
error of the network or of the other box is never the fault of a finger.
"""

from __future__ import annotations

import base64
import hashlib
import re

from msgspec import Struct

from appliance.core.signing import SEED_SIZE
from appliance.errors import BadRequest

TOKEN_SIZE = 16
LIFE = 600.0  # Seconds for which a code is good. Only the box that made it counts them, so no clocks are compared.
MOST_ADDRESSES = 6  # addresses in a code: each makes it longer, and a machine of containers has dozens
_HEAD, _VERSION, _SUM_SIZE = "LAP", "1", 4
_FORM = "a code begins with LAP1-; 'llama-appliance pool invite' on a box of the pool makes one"


class JoinCode(Struct, frozen=True, kw_only=True):
    """``ca_public`` is the public key of the pool's authority, 32 bytes; ``token`` is 16 random ones."""

    addresses: tuple[str, ...]  # addresses where a box of the pool can be dialled, best first
    port: int
    ca_public: bytes
    token: bytes

    def text(self) -> str:
        places = ",".join((str(self.port), *self.addresses[:MOST_ADDRESSES]))
        content = self.ca_public + self.token + places.encode()
        return f"{_HEAD}{_VERSION}-{base64.b32encode(content + _sum(content)).decode().rstrip('=')}"


def read_code(text: str) -> JoinCode:
    """Read what somebody typed. Raises BadRequest, which tells a typing mistake from a code of another version."""
    plain = re.sub(r"[\s-]", "", text).upper()
    if not plain.startswith(_HEAD):
        raise BadRequest(f"this is not a code of a pool: {_FORM}", param="code")
    if plain[len(_HEAD) : len(_HEAD) + 1] != _VERSION:
        raise BadRequest(
            f"the code is for another version of llama-appliance ({plain[: len(_HEAD) + 1]}, not {_HEAD}{_VERSION}): "
            "upgrade the older of the two boxes",
            param="code",
        )
    encoded = plain[len(_HEAD) + 1 :]
    mistake = BadRequest("the code has a typing mistake, or lacks a part: copy all of it again", param="code")
    try:
        data = base64.b32decode(encoded + "=" * (-len(encoded) % 8))
        content, given = data[:-_SUM_SIZE], data[-_SUM_SIZE:]
        port, first, *more = content[SEED_SIZE + TOKEN_SIZE :].decode().split(",")
        number = int(port)
    except ValueError:  # not base 32, not a text, not a number, or no address
        raise mistake from None
    if given != _sum(content):
        raise mistake
    return JoinCode(
        addresses=(first, *more),
        port=number,
        ca_public=content[:SEED_SIZE],
        token=content[SEED_SIZE : SEED_SIZE + TOKEN_SIZE],
    )


def _sum(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_SUM_SIZE]


class Codes:
    """The tokens of one box: each lets one box in, within `LIFE`. Only this box's memory has them.

    A token has 128 bits, so nobody guesses one. `MOST_WRONG` only makes sure that a try is noticed: after so many, all
    codes are void. Times are in seconds of any clock.
    """

    MOST_WRONG = 10

    def __init__(self) -> None:
        self._until: dict[bytes, float] = {}
        self._used: set[bytes] = set()
        self._wrong = 0

    def add(self, token: bytes, now: float) -> None:
        """Let this token in from now on."""
        if not any(until > now for until in self._until.values()):
            self._wrong = 0  # it counts for the codes that were there
        self._until[token] = now + LIFE

    def take(self, token: bytes, now: float) -> float:
        """Use a token up; return until when it was good. Raises BadRequest, with what is wrong with it and the fix."""
        again = "make a new one with 'llama-appliance pool invite' there"
        if token in self._used:
            raise BadRequest(f"the code was used already, and is good for one box: {again}", param="code")
        until = self._until.get(token)
        if until is None:
            self._wrong += 1
            if self._wrong >= self.MOST_WRONG:
                self._until.clear()
            raise BadRequest(f"the box does not know the code; it has restarted, or voided it: {again}", param="code")
        if until <= now:
            raise BadRequest(f"the code is too old, it was good for {LIFE / 60:g} minutes: {again}", param="code")
        del self._until[token]
        self._used.add(token)
        return until

    def give_back(self, token: bytes, until: float) -> None:
        """The box that used it was not let in after all, for example for its name."""
        self._used.discard(token)
        self._until[token] = until
