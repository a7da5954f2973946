"""A download's report about itself, and its errors, each with its advice."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from appliance.core.models.download import Location, Remote, WantedModel
from appliance.errors import Conflict, Forbidden, ModelError, NotFound, PeerFailed

LOG_IN = "set HF_TOKEN to a token with access, or log in with 'hf auth login'"
MAKE_ROOM = "make room ('llama-appliance disk' shows what takes it)"
FULL = (errno.ENOSPC, errno.EDQUOT)
ENDED: tuple[State, ...] = ("finished", "failed", "cancelled")


class HubFailed(PeerFailed):
    """The hub, or a server that it sent us to, could not be reached or answered nonsense.

    ``passing``: the same request may succeed later, after ``retry_after`` seconds if the server said so. ``busy``: it
    answers that it has too much to do.
    """

    reason = "hub_failed"

    def __init__(self, host: str, why: str, *, passing: bool = True, retry_after: float | None = None) -> None:
        super().__init__(host, why)
        self.message, self.why = f"the model hub at {host} failed: {why}", why
        self.passing = passing
        self.retry_after = retry_after
        self.busy = False


class MemberFailed(HubFailed):
    """Another box of the pool could not be reached, or did not give a file of a model."""

    reason = "member_failed"

    def __init__(self, host: str, why: str, *, passing: bool = True, retry_after: float | None = None) -> None:
        super().__init__(host, why, passing=passing, retry_after=retry_after)
        self.message = f"the box {host} did not give a file: {why}"


class RepoChanged(HubFailed):
    """A listed file is not there any more: somebody has changed the repository. A new list will do."""

    reason = "repository_changed"

    def __init__(self, repo: str, host: str) -> None:
        super().__init__(host, f"{repo} has changed since its files were listed", passing=False)
        self.message = f"{self.why} by {host}; download it again"


class RepoNotFound(NotFound):
    """The repository is missing or private; the hub does not say which without a token."""

    reason = "repository_not_found"

    def __init__(self, repo: str, host: str, *, token: bool) -> None:
        private = "the token in use has no access" if token else LOG_IN
        super().__init__(
            f"there is no repository {repo} on {host}; check how it is written, and if it is private: {private}"
        )


class GatedRepo(Forbidden):
    """The repository's owner wants to know the users who download."""

    reason = "repository_gated"

    def __init__(self, repo: str, page: str, *, token: bool) -> None:
        then = "then download again" if token else LOG_IN
        super().__init__(f"{repo} is gated: open {page}, accept its terms, {then}")


class TokenRefused(Forbidden):
    """The hub does not accept the token."""

    reason = "hub_token_refused"

    def __init__(self, host: str) -> None:
        super().__init__(f"{host} does not accept the token in use; renew it with 'hf auth login', or correct HF_TOKEN")


class LoginUnusable(Forbidden):
    """huggingface_hub cannot make a token of a stored login."""

    reason = "hub_login_unusable"

    def __init__(self, why: str) -> None:
        super().__init__(f"the stored Hugging Face login cannot be used ({why}); log in again with 'hf auth login'")


class DownloadsOff(Forbidden):
    """Offline mode."""

    reason = "offline"

    def __init__(self) -> None:
        super().__init__("downloads are switched off (HF_HUB_OFFLINE, or --offline); switch them on, or copy the file")


class UnderWay(Conflict):
    """Another process downloads one of the files."""

    reason = "download_under_way"

    def __init__(self, model: str) -> None:
        super().__init__(f"another program is downloading '{model}' now; wait until it has finished, or stop it")


class NotEnoughSpace(ModelError):
    """The disk has no room for the rest."""

    reason = "disk_full"

    def __init__(self, folder: str, needed: int, free: int) -> None:
        super().__init__(
            f"the download needs {needed / 1e9:.2f} GB in {folder}, where {free / 1e9:.2f} GB are free; "
            f"{MAKE_ROOM}, or name another cache with HF_HUB_CACHE"
        )


class ModelTooLarge(Forbidden):
    """The model has more bytes than the configuration lets a request download."""

    reason = "download_too_large"

    def __init__(self, model: str, size: int, most: int) -> None:
        super().__init__(
            f"{model} has {size / 1e9:.2f} GB, and requests may download at most {most / 1e9:.2f} GB "
            f"(autoDownloadMax); 'llama-appliance pull {model}' downloads it anyway"
        )


class DownloadFailed(ModelError):
    """A file arrived damaged. ``why`` gives the mistake."""

    reason = "download_failed"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} was not downloaded: {why}")


def disk_failed(what: str, error: OSError) -> DownloadFailed:
    """Return the error of a download whose disk refuses. If it is full, the advice says what to do."""
    where = f" ({error.filename})" if error.filename else ""
    then = f"; {MAKE_ROOM}, and download it again" if error.errno in FULL else ""
    return DownloadFailed(what, f"{error.strerror or error}{where}; the part so far is kept{then}")


State = Literal["queued", "downloading", "paused", "finished", "failed", "cancelled"]


class FileProgress(Struct, frozen=True):
    """Bytes of one file, in llama-server's words."""

    done: int
    total: int


class DownloadStatus(Struct, frozen=True, kw_only=True):
    """One download at one moment. ``files`` by their addresses."""

    model: str
    repo: str
    state: State
    files: dict[str, FileProgress]
    error: str | None = None
    reason: str | None = None
    callers_fault: bool = False
    """True if beginning it again unchanged cannot help."""
    number: int = 0
    """Distinguishes one download of a model from the next."""
    place: int | None = None
    """Its place in the queue, from 1; None if it does not wait."""
    speed: float | None = None
    """Bytes per second while it comes; None until that is known."""
    left: float | None = None
    """Seconds until it is here, at this speed."""

    @property
    def done(self) -> int:
        return sum(file.done for file in self.files.values())

    @property
    def total(self) -> int:
        return sum(file.total for file in self.files.values())

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def is_for(status: DownloadStatus, wanted: Remote) -> bool:
    """True if this download brings what is wanted."""
    if isinstance(wanted, Location):
        return status.repo == str(wanted)
    if not isinstance(wanted, WantedModel):
        return status.model == str(wanted)
    if status.repo.casefold() != wanted.reference.repo.casefold():
        return False
    if wanted.file:
        return status.model == str(wanted) or any(unquote(url).endswith(f"/{wanted.file}") for url in status.files)
    return wanted.reference.tag is None or status.model.casefold() == str(wanted.reference).casefold()


class DownloadEvent(Struct, frozen=True, omit_defaults=True):
    """One record of llama-server's ``GET /models/sse`` (llama.cpp b11434)."""

    model: str
    event: Literal["model_status", "download_progress", "download_finished", "download_failed"]
    data: dict[str, object] | None = None


def events_between(before: Mapping[str, DownloadStatus], now: Iterable[DownloadStatus]) -> list[DownloadEvent]:
    """Return the events for a listener that knew ``before``, by model. A cancelled download has failed in its words."""
    events: list[DownloadEvent] = []
    for status in now:
        known = before.get(status.model)
        another = known is None or known.number != status.number
        if another:
            events.append(DownloadEvent(status.model, "model_status", {"status": "downloading"}))
        if another or known is None or known.files != status.files:
            events.append(DownloadEvent(status.model, "download_progress", {"progress": status.files}))
        if status.ended and (another or known is None or not known.ended):
            end = "download_finished" if status.state == "finished" else "download_failed"
            events.append(DownloadEvent(status.model, end))
    return events
