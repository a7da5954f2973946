"""The parts of one server that all of its routes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from appliance.core.settings import HttpSettings, Listen, UnixSocket, is_loopback
from appliance.http.bytes.body import Bodies
from appliance.http.bytes.listening import url_of
from appliance.http.way.guard import Guard
from appliance.traffic.traffic import Traffic


class Edge(NamedTuple):
    settings: HttpSettings
    bound: Sequence[Listen]
    """The addresses that it listens on."""
    guard: Guard
    traffic: Traffic
    bodies: Bodies

    @property
    def url(self) -> str:
        """The URL with the address that it listens on, one for other machines if there is any; empty: files alone."""
        places = [place for place in self.bound if not isinstance(place, UnixSocket)]
        found = min(places, key=lambda place: is_loopback(place[0]), default=None)
        tls = self.settings.tls is not None
        return f"{url_of(found, tls=tls)}{self.settings.api_prefix}" if found is not None else ""
