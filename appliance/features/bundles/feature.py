"""The sign-in of the feature."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature
from appliance.start import ONE_FILE

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.bundles.verb import bundle

    return bundle


def _introduce() -> bool:
    """Introduce the bundle behind the one-file program; False: there is no bundle."""
    if ONE_FILE not in os.environ:
        return False
    from appliance.features.bundles.container import is_runnable

    if found := is_runnable(own := Path(os.environ[ONE_FILE])):
        from appliance.features.bundles.verb import introduce

        introduce(own)
    return found


BUNDLES = Feature(
    name="bundles",
    verbs=(
        Verb(
            "bundle",
            "several machines",
            "Carry models, engines and settings to a machine without a network.",
            _verb,
            _introduce,
            page="air-gap.md",
        ),
    ),
)
