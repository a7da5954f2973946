"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.http.way.hooks import EngineTranslate


def _translate() -> EngineTranslate:
    from appliance.features.older.translate import OlderBodies

    return OlderBodies()


OLDER = Feature(name="older", engine_translates=(_translate,))
