"""The owners that the program's own routes show and drive."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from appliance.catalog.catalog import Catalog
from appliance.catalog.configuration import ConfigInForce, Reloads
from appliance.catalog.supply import Supply
from appliance.core.records.history import KeptTimeline
from appliance.core.tools.box import Toolbox
from appliance.fleet.chooser import EngineChoice
from appliance.fleet.owner import Fleet
from appliance.traffic.other_servers import OtherServers


class Owners(Struct, frozen=True, kw_only=True):
    """The owners that the composition root has opened. ``configuration`` is None without a configuration file."""

    engines: EngineChoice
    fleet: Fleet
    catalog: Catalog
    peers: OtherServers
    supply: Supply
    configuration: ConfigInForce | None
    tools: Toolbox
    """Empty where no tool was switched on."""
    reloads: Reloads
    history: KeptTimeline
    folders: Mapping[str, Path]
    """The program's folders on the disk, by their kind, and its databases by their first file."""
