"""Downloads in the doctor's examination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from msgspec import structs

from appliance.catalog.supply import Supply
from appliance.core.examination import Examiner, FailedDownload, Known, OwnFacts
from appliance.core.findings import Finding, Told, some, warning


class DownloadsExamined(OwnFacts, frozen=True, kw_only=True):
    """Its facts are `Lately.downloads`."""

    def findings(self, known: Known) -> Sequence[Told]:
        return (("failures", failed_downloads(known)),)


def failed_downloads(known: Known) -> Iterator[Finding]:
    for one in known.lately.downloads:
        yield warning(
            "download-failed",
            f"The download of '{one.model}' failed",
            some(one.error.splitlines()),
            "The bytes that came stay: begin it again, and it goes on from there.",
            f"llama-appliance pull {quote(one.model)}",
            "llama-appliance disk",
        )


def downloads_examiner(supply: Supply | None = None) -> Examiner:
    """Return the examiner of this supply; None: of a command, where nothing is downloaded."""

    async def look(known: Known, _: str) -> tuple[Known, OwnFacts]:
        ended = [one for one in supply.snapshot() if one.state == "failed"] if supply is not None else []
        failed = tuple(FailedDownload(model=one.model, error=one.error or "") for one in ended)
        return structs.replace(known, lately=structs.replace(known.lately, downloads=failed)), DownloadsExamined()

    return Examiner(part="downloads", facts=DownloadsExamined, look=look)
