"""The running program as its features see it."""

from __future__ import annotations

from msgspec import Struct

from appliance.core.settings import HttpSettings
from appliance.http.owners import Owners
from appliance.traffic.traffic import Traffic


class Kernel(Struct, frozen=True, kw_only=True):
    """The owners of the program, what is known of its requests, and how it serves."""

    owners: Owners
    traffic: Traffic
    settings: HttpSettings
