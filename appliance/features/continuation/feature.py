"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.feature import Feature

if TYPE_CHECKING:
    from appliance.core.answers.families import Family
    from appliance.core.answers.going_on import StreamSoFar


def _so_far(family: Family) -> StreamSoFar:
    from appliance.features.continuation.core.reading import BreakableStream

    return BreakableStream(family)


CONTINUATION = Feature(name="continuation", continues=_so_far)
