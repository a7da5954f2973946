"""A look for a newer version, at an address that the user has named; without one, nothing is ever asked.

The address is that of a folder with a payload's list and its signature: ``<address>/payload.json`` and
``<address>/payload.json.sig``. Only a list that is signed with the key known here is believed. Nothing is downloaded.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import trio
from msgspec import Struct

from appliance import __version__
from appliance.core.models.hub_address import HubAccess
from appliance.core.payload import LIST, SIGNATURE, read_payload
from appliance.core.signing import signer_of
from appliance.core.versions import numbers_of
from appliance.errors import ApplianceError, PeerFailed, UpstreamFailed, UsageError
from appliance.features.programs.shelf import MAX_LIST
from appliance.platform.console import PROGRAM, say
from appliance.store.trusted_keys import TRUSTED, trusted_keys
from appliance.upstream.hub import DownloadsOff, Hub, HubFailed, hub_access

LOOK_TIME = 60.0
EVERY = 24 * 3600.0  # seconds between two looks of a running server

log = logging.getLogger(__name__)


class UpdateCheck(Struct, frozen=True, kw_only=True):
    """The result of a look, as ``upgrade check --json`` prints it."""

    address: str
    version: str  # the version at the address
    used: str
    newer: bool

    @property
    def in_words(self) -> str:
        if not self.newer:
            return f"{self.used} is used, and {self.address} has {self.version}"
        return (
            f"version {self.version} is at {self.address}; fetch its archive, and switch with '{PROGRAM} upgrade "
            "install ARCHIVE'"
        )


class LookFailed(PeerFailed):
    """The address for newer versions did not answer as it should."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(host, why)
        self.message, self.why = f"{host} cannot be asked for a newer version: {why}", why


async def look(root: Path, address: str) -> UpdateCheck:
    """Ask the address. Raises UsageError without a key, LookFailed for what cannot be had or believed."""
    if hub_access(os.environ).offline:
        raise DownloadsOff
    trusted = trusted_keys(root)
    if not trusted:
        raise UsageError("no publisher's key is known yet, so no answer could be believed; give it with --key")
    hub = Hub(HubAccess(endpoint=address))
    try:
        with trio.fail_after(LOOK_TIME):
            content, signature = [await _fetched(hub, f"{address}/{name}") for name in (LIST, SIGNATURE)]
    except (HubFailed, UpstreamFailed) as cause:
        raise LookFailed(hub.host, cause.why) from None
    except trio.TooSlowError:
        raise LookFailed(hub.host, f"no answer within {LOOK_TIME:.0f} s") from None
    if signer_of(trusted, content, signature) is None:
        why = f"{address}/{LIST} was not signed with a key in {root / TRUSTED}, so it is not believed"
        raise LookFailed(hub.host, why)
    try:
        version = read_payload(content).version
    except ValueError as cause:
        raise LookFailed(hub.host, f"{address}/{LIST} cannot be read: {cause}") from None
    newer = numbers_of(version) > numbers_of(__version__)
    return UpdateCheck(address=address, version=version, used=__version__, newer=newer)


async def _fetched(hub: Hub, url: str) -> bytes:
    async with hub.open("GET", url) as answer:
        if answer.status != 200:
            raise LookFailed(hub.host, f"{url} was answered with {answer.status}")
        return await answer.response.read(MAX_LIST)


async def look_daily(root: Path, address: str) -> None:
    """Look once a day, and log a newer version."""
    while True:
        try:
            found = await look(root, address)
        except (ApplianceError, OSError) as cause:
            log.warning("%s", cause)
        else:
            if found.newer:
                say(found.in_words)
        await trio.sleep(EVERY)
