"""The facts about engines that the doctor examines. Sizes in bytes, times are Unix times."""

from __future__ import annotations

from msgspec import Struct

from appliance.core.builds import BuildNeeds
from appliance.core.examination import OwnFacts
from appliance.features.engines.core.builds import EngineOffer
from appliance.features.engines.core.choice import Ranked
from appliance.features.engines.core.state import EngineState


class Installed(Struct, frozen=True, kw_only=True):
    """One engine that was found, usable or not."""

    id: str
    backend: str
    source: str  # its place, in words
    digest: str = ""
    damage: str = ""
    needs: BuildNeeds = BuildNeeds()


class EngineFacts(OwnFacts, frozen=True, kw_only=True):
    ranked: tuple[Ranked, ...] = ()  # seats for an unknown model, best first; for the model that was asked about
    state: EngineState = EngineState()
    engines: tuple[Installed, ...] = ()
    offers: tuple[EngineOffer, ...] = ()  # builds for cards that none of the engines can use
    named_engine: str = ""  # the engine that the environment (or an option) names instead of a choice
    named_fault: str = ""  # the reason why no server starts with that
