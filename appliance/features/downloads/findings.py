"""Downloads in the doctor's examination."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from shlex import quote

from msgspec import structs

from appliance.core.examination import Examiner, FailedDownload, Known, OwnFacts
from appliance.core.findings import Finding, Told, some, warning
from appliance.core.models.download_status import DownloadStatus


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


def downloads_examiner(downloads: Callable[[], Sequence[DownloadStatus]] = tuple) -> Examiner:
    """``downloads`` are those of a server, also ended ones; a command has none."""

    async def look(known: Known, _: str) -> tuple[Known, OwnFacts]:
        ended = [one for one in downloads() if one.state == "failed"]
        failed = tuple(FailedDownload(model=one.model, error=one.error or "") for one in ended)
        return structs.replace(known, lately=structs.replace(known.lately, downloads=failed)), DownloadsExamined()

    return Examiner(part="downloads", facts=DownloadsExamined, look=look)
