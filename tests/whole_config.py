"""The type of the configuration that the whole program reads, with the keys of every feature."""

from __future__ import annotations

from appliance.feature import config_type
from appliance.features import FEATURES

WHOLE = config_type(FEATURES)
