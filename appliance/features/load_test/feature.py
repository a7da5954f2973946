"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.load_test.verb import load_test

    return load_test


ABOUT = "Ask models many times at once, and show how fast each answers."
LOAD_TEST = Feature(
    name="load_test",
    verbs=(Verb("load-test", "for developers", ABOUT, _verb),),
)
