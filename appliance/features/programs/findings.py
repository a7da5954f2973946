"""Versions that were taken back, in the doctor's examination."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import trio

from appliance.core.examination import Examiner, Known, OwnFacts
from appliance.core.findings import Finding, Told, note
from appliance.core.machine_look import NOTHING
from appliance.start import program_file, programs_folder


class VersionsExamined(OwnFacts, frozen=True, kw_only=True):
    versions_back: Mapping[str, str] = NOTHING  # versions of this program that were returned from, with the reasons

    def findings(self, known: Known) -> Sequence[Told]:
        return (("updates", taken_back(self)),)


def taken_back(own: VersionsExamined) -> Iterator[Finding]:
    for version, why in own.versions_back.items():
        yield note(
            "update-taken-back",
            f"The version {version.partition('/')[2] or version} of this program was taken back",
            why,
            "A later version may be better; this one is not taken again by itself.",
            "llama-appliance upgrade check",
        )


def versions_examiner() -> Examiner:
    return Examiner(part="versions of the program", facts=VersionsExamined, look=_look)


async def _look(known: Known, _: str) -> tuple[Known, OwnFacts]:
    state = await trio.to_thread.run_sync(program_file(programs_folder()).read)
    return known, VersionsExamined(versions_back=state.withdrawn)
