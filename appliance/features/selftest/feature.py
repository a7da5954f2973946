"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.selftest.verb import selftest

    return selftest


SELFTEST = Feature(
    name="selftest",
    verbs=(Verb("selftest", "this machine", "Prove that the engine and the starter model work here.", _verb),),
)
