"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click


def _verb() -> click.Command:
    from appliance.features.terminal.verb import run_model

    return run_model


TERMINAL = Feature(
    name="terminal",
    verbs=(Verb("run", "models", "Chat with a model in the terminal, or ask it one question.", _verb),),
)
