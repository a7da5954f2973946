"""The sign-in of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance.cli.verb import Verb
from appliance.feature import Feature

if TYPE_CHECKING:
    import click

    from appliance.core.examination import Examiner
    from appliance.settings import AppSettings


def _verb() -> click.Command:
    from appliance.features.programs.verb import upgrade

    return upgrade


async def _look_for_versions(settings: AppSettings) -> None:
    """Look for newer versions of the program once a day, if the user has named an address."""
    from appliance.features.programs.address import look_address
    from appliance.start import programs_folder

    root = programs_folder()
    if settings.offline or settings.trial or (address := look_address(root)) is None:
        return
    from appliance.features.programs.look import look_daily  # with keys and archives, which few servers need

    await look_daily(root, address)


def _examiner() -> Examiner:
    from appliance.features.programs.findings import versions_examiner

    return versions_examiner()


ABOUT = "Switch to a newer version of the program, and back."
PROGRAMS = Feature(
    name="programs",
    verbs=(Verb("upgrade", "this machine", ABOUT, _verb, page="upgrade.md"),),
    beside=_look_for_versions,
    examiners=(_examiner,),
)
