"""The parts of one server that all of its routes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from appliance.core.settings import HttpSettings, Listen
from appliance.http.bytes.body import Bodies
from appliance.http.way.guard import Guard
from appliance.traffic.traffic import Traffic


class Edge(NamedTuple):
    settings: HttpSettings
    bound: Sequence[Listen]
    """The addresses that it listens on."""
    guard: Guard
    traffic: Traffic
    bodies: Bodies
